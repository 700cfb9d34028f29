"""Log retention: shorten long logs, bound those that grow, and remove the oldest ones of a folder.

A log that a living process appends to is not replaced: a hole is punched into its middle, so that writers and readers
keep their offsets. No error escapes: a log that cannot be shortened or removed stays as it is.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.records import atomic

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

MAX_BYTES = 8 << 20
"""Bytes kept of one log."""
MAX_GROWING_BYTES = 64 << 20
"""Bytes that a log may occupy on disk while it is written."""
MAX_LOGS = 500
"""Logs kept in one folder."""
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_BLOCK = 4096
_HEAD_FRACTION = 4
"""A quarter of what is kept is the log's start; the rest is its end, which contains the reason of a failure."""


def shorten_log(path: Path, max_bytes: int = MAX_BYTES) -> None:
    """Cut whole lines out of the middle of a log of more than `max_bytes`, and leave a note there."""
    with suppress(OSError, GarrisonError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= max_bytes:
            return
        head = file.read(max_bytes // _HEAD_FRACTION)
        head = head[:head.rfind(b"\n") + 1] or head
        file.seek(size - (max_bytes - max_bytes // _HEAD_FRACTION))
        tail = file.read(max_bytes - max_bytes // _HEAD_FRACTION)
        tail = tail[tail.find(b"\n") + 1:] or tail
        newline = b"" if head.endswith(b"\n") else b"\n"
        note = f"[garrison left out {size - len(head) - len(tail)} bytes here]\n".encode()
        atomic.write(path, head + newline + note + tail, durable=False)


def find_data(descriptor: int, offset: int, size: int) -> tuple[int, int]:
    """Return start and end of the next allocated bytes of a file; its size twice if there are none."""
    try:
        begin = os.lseek(descriptor, offset, os.SEEK_DATA)
        return begin, min(size, os.lseek(descriptor, begin, os.SEEK_HOLE))
    except OSError as error:
        # ENXIO: nothing but a hole up to the end. Any other error: a file system without holes, so all of it is data.
        return (size, size) if error.errno == errno.ENXIO else (offset, size)


def bound_log(path: Path, max_bytes: int | None = None) -> bool:
    """Free the middle of a log that occupies more than `max_bytes` (MAX_GROWING_BYTES), even while it is written.

    The file's size and every offset stay as they are. Returns whether something was freed; not every file system can.
    """
    max_bytes = MAX_GROWING_BYTES if max_bytes is None else max_bytes
    with suppress(OSError):
        found = path.lstat()
        if found.st_blocks * 512 <= max_bytes or not stat.S_ISREG(found.st_mode):
            return False
        # Whole blocks: only these are freed. In a partial block the kernel only writes zeros.
        begin = _aligned(max_bytes // _HEAD_FRACTION)
        end = _aligned(found.st_size - (max_bytes - max_bytes // _HEAD_FRACTION) // 2)
        # Not through a link, which an agent may have put in place of its own output.
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if end <= begin or not _punch_hole(descriptor, begin, end - begin):
                return False
            os.pwrite(descriptor, b"\n[garrison left out what follows here]\n", begin)
        finally:
            os.close(descriptor)
        return True
    return False


def _aligned(offset: int) -> int:
    return offset // _BLOCK * _BLOCK


def _punch_hole(descriptor: int, offset: int, length: int) -> bool:
    """Return whether the file system freed the range."""
    import ctypes  # only for a log of that size

    fallocate = ctypes.CDLL(None).fallocate
    return bool(fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(length)) == 0)


def remove_old_logs(folder: Path, spare: Collection[Path] = (), max_logs: int | None = None) -> None:
    """Remove the oldest logs of a folder until `max_logs` (MAX_LOGS) are left; none of `spare`."""
    max_logs = MAX_LOGS if max_logs is None else max_logs
    names = [name for name in atomic.list_names(folder) if name.endswith(".log")]
    if len(names) <= max_logs:
        return
    ages = {}
    for name in names:
        with suppress(OSError):
            ages[folder / name] = (folder / name).lstat().st_mtime_ns
    for path in sorted(ages, key=ages.__getitem__)[:len(ages) - max_logs]:
        if path not in spare:
            with suppress(OSError):
                path.unlink()
