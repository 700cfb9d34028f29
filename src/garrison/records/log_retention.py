"""Log retention: shorten long logs, and remove the oldest ones of a folder.

A log never makes anything fail: what cannot be shortened or removed stays as it is.
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

MOST = 8 << 20
"""Bytes that stay of one log."""
KEPT = 500
"""Logs that stay in one folder."""
_HEAD = 4
"""One part in so many of what is kept is the log's beginning; the rest is its end, where the reason is."""


def shorten_log(path: Path, most: int = MOST) -> None:
    """Cut whole lines out of the middle of a log that has more than `most` bytes, and say so there."""
    with suppress(OSError, GarrisonError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= most:
            return
        head = file.read(most // _HEAD)
        head = head[:head.rfind(b"\n") + 1] or head
        file.seek(size - (most - most // _HEAD))
        tail = file.read(most - most // _HEAD)
        tail = tail[tail.find(b"\n") + 1:] or tail
        between = b"" if head.endswith(b"\n") else b"\n"
        said = f"[garrison left out {size - len(head) - len(tail)} bytes here]\n".encode()
        atomic.write(path, head + between + said + tail, durable=False)


def remove_old_logs(folder: Path, spare: Collection[Path] = (), kept: int | None = None) -> None:
    """Remove the logs of a folder that were written longest ago, until `kept` (KEPT) are left; none of `spare`."""
    kept = KEPT if kept is None else kept
    names = [name for name in atomic.list_names(folder) if name.endswith(".log")]
    if len(names) <= kept:
        return
    ages = {}
    for name in names:
        with suppress(OSError):
            ages[folder / name] = (folder / name).lstat().st_mtime_ns
    for path in sorted(ages, key=ages.__getitem__)[:len(ages) - kept]:
        if path not in spare:
            with suppress(OSError):
                path.unlink()
