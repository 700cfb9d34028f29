"""Log retention: shorten long logs, and remove the oldest ones of a folder.

No error escapes: a log that cannot be shortened or removed stays as it is.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.records import atomic

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

MAX_BYTES = 8 << 20
"""Bytes kept of one log."""
MAX_LOGS = 500
"""Logs kept in one folder."""
_HEAD_FRACTION = 4
"""A quarter of what is kept is the log's beginning; the rest is its end, which holds the reason of a failure."""


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
