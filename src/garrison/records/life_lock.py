"""Life lock: a lock that a process holds while it lives, and its heartbeat.

The lock is a raw flock on `X.life`, close-on-exec, opened by the process itself after its last fork and never passed
on: a lock object shared with a forked child would stay held after its owner's death. The kernel releases it at any
death. A heartbeat is `utime` of that file; the holder first compares the open inode with the path, since `git clean
-fdx` may have removed it.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from garrison.errors import LockLost
from garrison.records import atomic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class LifeLock:
    """Exclusive lock on a life file."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def try_acquire(cls, path: Path) -> LifeLock | None:
        """Lock `path` without waiting; None if another process holds it."""
        descriptor = atomic.open_or_create(path)
        try:
            atomic.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
            if atomic.same_file(descriptor, path):  # else it was replaced between open and flock, and protects nothing
                return cls(path, descriptor)
        except BlockingIOError:
            pass
        except BaseException:
            os.close(descriptor)  # a leaked lock would block the name until this process exits
            raise
        os.close(descriptor)
        return None

    def beat(self, monotonic_ns: int, time_ns: int) -> None:
        """Record a heartbeat; LockLost if the file was removed or replaced.

        The modification time is the wall clock's, for display; the access time holds CLOCK_MONOTONIC, so that a reader
        of the same boot can compute an age that is immune to suspend and clock steps.
        """
        if not atomic.same_file(self._descriptor, self.path):
            raise LockLost(f"life lock {self.path} was removed or replaced; stopping gracefully")
        try:
            os.utime(self._descriptor, ns=(monotonic_ns, time_ns))
        except PermissionError:  # another user created it, in a shared repository
            # Only the owner may set arbitrary times; other writers may only set both to now.
            os.utime(self._descriptor)

    def release(self) -> None:
        """Release the lock; the file stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextmanager
def hold(path: Path) -> Iterator[LifeLock | None]:
    """Hold the lock on `path` for a block; yield None if another process holds it."""
    lock = LifeLock.try_acquire(path)
    try:
        yield lock
    finally:
        if lock is not None:
            lock.release()


def read_heartbeat(path: Path) -> tuple[float, float] | None:
    """Return (CLOCK_MONOTONIC, epoch) seconds of the last heartbeat, None if no process ever held this lock."""
    try:
        stat = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return None
    return stat.st_atime, stat.st_mtime


def is_held(path: Path) -> bool:
    """Return whether some process holds the life lock at `path`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # reading needs no permission to write
    except FileNotFoundError:
        return False
    try:
        # A shared, non-blocking lock can make another's try fail for an instant; starts retry until their deadline.
        atomic.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, path)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
