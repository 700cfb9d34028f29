"""Disk space: recognise a full disk, and wait until there is room.

Nothing is reserved: a step that meets ENOSPC waits and is tried again.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from garrison.system import shortage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeVar

    T = TypeVar("T")

MIN_BYTES = 65536
"""Free bytes below which a disk counts as full: a record and its temporary file need less, an agent's work more."""
MIN_INODES = 16
"""Free inodes below which a disk counts as full although it has room for bytes."""
PAUSE = 0.1
"""Seconds between two attempts of a step that found the disk full."""
_MESSAGES = ("No space left on device", "Disk quota exceeded")


def reports_no_space(output: str) -> bool:
    """Return whether a program's output reports a full disk. Pure."""
    return any(message in output for message in _MESSAGES)


def is_full(path: Path) -> bool:
    """Return whether the disk that holds `path` has no space or no inodes left.

    An absent path, or a disk that reports no size or no inode count, is not full.
    """
    try:
        stat = os.statvfs(path)
    except OSError:
        return False
    lacks_bytes = stat.f_blocks > 0 and stat.f_bavail * stat.f_frsize < MIN_BYTES
    return lacks_bytes or (stat.f_files > 0 and max(stat.f_favail, stat.f_ffree) < MIN_INODES)


def require_space(path: Path) -> None:
    """Raise OSError (ENOSPC) if the disk that holds `path` is full: work begun there would fail for that alone."""
    if is_full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def retry_until_space(step: Callable[[], T], wait: Callable[[float], None], over: Callable[[], bool]) -> T:
    """Return the result of `step`; after ENOSPC, or for lack of memory or descriptors, repeat it after `wait(seconds)`
    until `over()`.

    For code that runs before the event loop, which waits by itself. `step` must be safe to repeat after it failed.
    """
    while True:
        try:
            return step()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, *shortage.ERRNOS) or over():
                raise
        wait(PAUSE)
