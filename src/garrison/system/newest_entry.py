"""Newest entry of a folder: what changes whenever anything below it changes, by a walk of bounded length."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Stamp = tuple[int, int] | None

MAX_ENTRIES = 5000
"""Entries of a folder that are counted at most."""


def newest_entry(folder: Path) -> Stamp:
    """Return (newest modification time in ns, entries) below `folder`, up to `MAX_ENTRIES`; None if it is empty."""
    newest, count = 0, 0
    for modified in _walk(folder):
        newest, count = max(newest, modified), count + 1
        if count >= MAX_ENTRIES:
            break
    return (newest, count) if count else None


def _walk(folder: Path) -> Iterator[int]:
    """Yield the modification times of all entries below `folder`."""
    folders = [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    yield entry.stat(follow_symlinks=False).st_mtime_ns
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:  # removed during the walk
            continue
