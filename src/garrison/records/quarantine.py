"""Quarantine: where a damaged record goes before it is rebuilt, so that a person can still look at it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from garrison.records import atomic

if TYPE_CHECKING:
    from pathlib import Path


def quarantine(home: Path, path: Path, now: str, *, replaced: bool = False) -> Path:
    """Move a file to `quarantine/` of its home, never over another one there; return its new path.

    The caller holds the lock of whatever the file is; `now` is UTC. FileNotFoundError if the file is gone.

    Args:
        replaced: the caller replaces the file next; until then it stays, so that no reader takes it for absent.
    """
    folder = atomic.make_directory(home / "quarantine")
    stamp = now.translate({ord(char): None for char in "-:."})
    name = path.relative_to(home).as_posix().replace("/", "_") if path.is_relative_to(home) else path.name
    target = folder / f"{stamp}-{os.getpid()}-{name}"
    if replaced:
        target.hardlink_to(path)
    else:
        path.rename(target)
    atomic.sync_directory(folder)
    atomic.sync_directory(path.parent)
    return target
