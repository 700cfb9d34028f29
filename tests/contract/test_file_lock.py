"""Lock files: our flock and filelock's FileLock exclude each other on the same file, and a wait can be bounded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from garrison.errors import RecordUnreadable, Refused
from garrison.records import atomic

HOLD = {
    "locked": "from garrison.records.atomic import locked as lock; held = lock(path)",
    "locked in time": "from garrison.records.atomic import locked; held = locked(path, 10.0)",
    "FileLock": "from filelock import FileLock; held = FileLock(path)",
}


@contextmanager
def holder(path: Path, how: str) -> Iterator[None]:
    """Keep the lock in another process."""
    code = (f"import pathlib, sys; path = pathlib.Path({str(path)!r}); {HOLD[how]}\n"
            "with held: print('held', flush=True); sys.stdin.read()")
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        yield
    finally:
        process.communicate(timeout=60)


@pytest.mark.parametrize("how", HOLD)
def test_a_lock_excludes_every_way_to_take_it(tmp_path: Path, how: str) -> None:
    path = tmp_path / "queue.lock"
    with holder(path, how):
        with pytest.raises(Refused, match=r"queue\.lock stays locked after 0\.05 s"), atomic.locked(path, 0.05):
            raise AssertionError
        with pytest.raises(Timeout):
            FileLock(path).acquire(timeout=0.05)
    for timeout in (None, 10.0):
        with atomic.locked(path, timeout):
            pass
    assert path.exists(), "a lock file is never unlinked"
    assert path.stat().st_mode & 0o077 == 0 or how == "FileLock"


def test_an_error_inside_frees_the_lock_and_a_directory_in_its_place_is_named(tmp_path: Path) -> None:
    path = tmp_path / "queue.lock"
    with pytest.raises(ZeroDivisionError), atomic.locked(path, 1.0):
        raise ZeroDivisionError
    with atomic.locked(path, 0.05):
        path.unlink()
    path.mkdir()
    with pytest.raises(RecordUnreadable, match=r"queue\.lock"), atomic.locked(tmp_path / "queue.lock", 0.05):
        raise AssertionError
