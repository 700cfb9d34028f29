"""When a disk counts as full, and waiting for room."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from garrison.system import machine


@pytest.mark.parametrize(("found", "full"), [
    ({}, False),
    ({"f_bavail": 15}, True),
    ({"f_favail": 3, "f_ffree": 3}, True),
    ({"f_favail": 0, "f_ffree": 3}, True),
    ({"f_favail": 0}, False),
    ({"f_files": 0, "f_ffree": 0, "f_favail": 0}, False),
    ({"f_blocks": 0, "f_bavail": 0}, False),
])
def test_a_disk_is_full_of_bytes_or_of_files(found: dict[str, int], full: bool,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to begin lives that could not write a name on a disk with bytes to spare, and to count their deaths."""
    roomy = {"f_blocks": 1000, "f_bavail": 500, "f_frsize": 4096, "f_files": 1000, "f_ffree": 500, "f_favail": 500}
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(**(roomy | found)))
    assert machine.is_full(Path("/anywhere")) is full


def test_a_write_without_space_is_retried_until_the_deadline() -> None:
    tries: list[int] = []
    waits: list[float] = []

    def step() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return "done"

    assert machine.retry_until_space(step, waits.append, lambda: False) == "done"
    assert len(tries) == 3 and waits == [machine.SPACE_PAUSE] * 2
    tries.clear()
    with pytest.raises(OSError, match="No space left"):
        machine.retry_until_space(step, waits.append, lambda: True)
    assert len(tries) == 1


def test_any_other_error_is_raised_at_once() -> None:
    def step() -> None:
        raise OSError(errno.EACCES, "Permission denied")

    with pytest.raises(PermissionError):
        machine.retry_until_space(step, pytest.fail, lambda: False)
