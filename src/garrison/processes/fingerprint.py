"""Fingerprints: a cheap check whether anything changed that a whole turn would find, and whether all children beat.

A hundred waiting nodes are two hundred processes; a whole turn of each every second would cost a fifth of a core. The
loop takes the fingerprint before a turn, so that whatever changes during the turn counts as a change afterwards. All
times here are small parts of the heartbeat timeout: with a short one every timer brings a whole turn.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from garrison.config import Timing

Fingerprint = tuple[tuple[int, int, int] | None, ...]
"""Two that are equal mean that nothing has changed."""

_LONGEST = 60.0


def max_age(timing: Timing) -> float:
    """Return for how many seconds equal fingerprints may stand in for whole turns."""
    return min(_LONGEST, timing.beat_timeout / 5)


def check_interval(timing: Timing) -> float:
    """Return the seconds between two fingerprints of an event-driven process; its heartbeat may be that old."""
    return max(timing.rescan, max_age(timing) / 2)


def heartbeat_limit(timing: Timing) -> float:
    """Return the age of a heartbeat (seconds) from which on a child is observed each second: it may be hanging."""
    return 2.5 * check_interval(timing)


def fingerprint_of(paths: Iterable[str]) -> Fingerprint:
    """Return what changes when any of these files or directories does; None stands for one that is absent."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(path)  # noqa: PTH116  # a Path each would double the cost of a fingerprint
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def all_beating(life_files: Iterable[str], monotonic: float, limit: float) -> bool:
    """Return whether each of these life files has a heartbeat within `limit` seconds of this boot's clock."""
    try:
        return all(0.0 <= monotonic - os.stat(path).st_atime <= limit for path in life_files)  # noqa: PTH116
    except OSError:
        return False
