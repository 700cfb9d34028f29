"""The disk: whether there is room to go on. Nothing is kept free; who meets a full disk waits and tries again."""

from __future__ import annotations

import os
from pathlib import Path

ENOUGH = 65536
"""Bytes below which a disk counts as full: a record and its temporary need less, an agent's work mostly more."""


def full(path: Path) -> bool:
    """Whether the disk that holds `path` is full; an absent path, or a disk without a size, is not."""
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    return found.f_blocks > 0 and found.f_bavail * found.f_frsize < ENOUGH
