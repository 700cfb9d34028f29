"""Disk space: recognise a full disk, and wait until there is room.

Nothing is reserved: a step that meets ENOSPC waits and is tried again.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeVar

    T = TypeVar("T")

ENOUGH = 65536
"""Bytes below which a disk counts as full: a record and its temporary need less, an agent's work mostly more."""
NAMES = 16
"""Files that may still be made, below which a disk counts as full although it has room for bytes."""

_LACKING = ("No space left on device", "Disk quota exceeded")


def reports_no_space(said: str) -> bool:
    """Return whether a program's output says that it found no space. Pure."""
    return any(word in said for word in _LACKING)


def is_full(path: Path) -> bool:
    """Return whether the disk that holds `path` has no space or no inodes left.

    An absent path, or a disk that reports no size or no inode count, is not full.
    """
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    bytes_gone = found.f_blocks > 0 and found.f_bavail * found.f_frsize < ENOUGH
    return bytes_gone or (found.f_files > 0 and max(found.f_favail, found.f_ffree) < NAMES)


def require_space(path: Path) -> None:
    """OSError (ENOSPC) if the disk that holds `path` is full: what is begun there would fail for that alone."""
    if is_full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


PAUSE = 0.1
"""Seconds between two tries of what found no room."""


def retry_until_space(step: Callable[[], T], wait: Callable[[float], None], over: Callable[[], bool]) -> T:
    """Return what `step` returns; after ENOSPC call it again after `wait(seconds)`, until `over()`.

    For code that runs before an event loop does this waiting. `step` must be safe to repeat after it failed.
    """
    while True:
        try:
            return step()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or over():
                raise
        wait(PAUSE)
