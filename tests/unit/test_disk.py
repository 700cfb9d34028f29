"""Disk space: what goes first where the home takes more than its limit, and when a disk counts as full."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from garrison.launch.disk import Held, What, choose
from garrison.system import machine

HELD = [Held(What.RECORDS, "r1", Path("r1"), 50, 1), Held(What.SETUP, "p", Path("new"), 30, 9, removable=True),
        Held(What.SETUP, "p", Path("used"), 30, 1), Held(What.SETUP, "p", Path("old"), 30, 2, removable=True),
        Held(What.WORKTREE, "r1", Path("tree"), 30, 3, removable=True)]
"""170 bytes in all, 90 of which may go."""


@pytest.mark.parametrize(("limit", "gone"), [
    (170, []), (169, ["old"]), (140, ["old"]), (139, ["old", "tree"]), (110, ["old", "tree"]),
    (80, ["old", "tree", "new"]), (0, ["old", "tree", "new"])])
def test_what_was_used_longest_ago_goes_first_and_nothing_that_is_in_use(limit: int, gone: list[str]) -> None:
    assert [each.path.name for each in choose(HELD, limit)] == gone


# ---- when a disk counts as full, and waiting for room


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
