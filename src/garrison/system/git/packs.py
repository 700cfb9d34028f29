"""Whether an object lies in a pack: asked of the packs' indexes, for a hundredth of what asking git costs.

The rule of this room: a yes is certain, anything else means that git is to be asked: an index of another version, a
pack that is just being replaced, an alternate. Indexes are read as git's `pack-format` gives them (version 2): a
fan-out of 256 counts by the name's first byte, then all names in their order.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_HEAD = b"\xfftOc\0\0\0\2"
_NAMES = len(_HEAD) + 256 * 4
_MOST = 40
"""With more packs than that git, which may have one index of them all, is as quick."""


def packed(common: Path, oid: str) -> bool:
    """Whether a pack of the repository with that common directory is known to hold the object."""
    folder = f"{common}/objects/pack"
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".idx")]  # noqa: PTH208  # names only
    except OSError:
        return False
    return len(names) <= _MOST and any(_lists(f"{folder}/{name}", bytes.fromhex(oid)) for name in names)


def _lists(index: str, name: bytes) -> bool:
    """Whether an index whose pack is there lists the object."""
    with suppress(OSError):
        descriptor = os.open(index, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _finds(descriptor, name) and os.path.exists(f"{index[:-4]}.pack")  # noqa: PTH110  # light
        finally:
            os.close(descriptor)
    return False


def _finds(descriptor: int, name: bytes) -> bool:
    """Bisect the names that begin with the same byte."""
    head = os.pread(descriptor, _NAMES, 0)
    if len(head) != _NAMES or not head.startswith(_HEAD):
        return False
    counts = memoryview(head)[len(_HEAD):]
    low = int.from_bytes(counts[4 * name[0] - 4:4 * name[0]]) if name[0] else 0
    high = int.from_bytes(counts[4 * name[0]:4 * name[0] + 4])
    while low < high:
        middle = (low + high) // 2
        found = os.pread(descriptor, len(name), _NAMES + middle * len(name))
        if found == name:
            return True
        low, high = (middle + 1, high) if found < name else (low, middle)
    return False
