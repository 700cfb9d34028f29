"""A look that costs next to nothing: have the files changed that a whole turn would read, do the lives below beat?

A hundred waiting nodes are two hundred processes; a whole turn of each every second would cost a fifth of a core. The
loop takes the glance before a turn, so that whatever changes while the turn looks is seen as a change afterwards. All
times here are small parts of the beat timeout: with a short one every timer brings a whole turn.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from garrison.config import Timing

Fingerprint = tuple[tuple[int, int, int] | None, ...]
"""What was seen; two that are equal mean that nothing has changed."""
_LONGEST = 60.0


def max_age(timing: Timing) -> float:
    """Seconds for which glances may stand in for whole turns: a fifth of the time after which silence counts."""
    return min(_LONGEST, timing.beat_timeout / 5)


def check_interval(timing: Timing) -> float:
    """Seconds between two glances of a layer whose every event wakes it (pidfds, files): so old may its beat be."""
    return max(timing.rescan, max_age(timing) / 2)


def heartbeat_limit(timing: Timing) -> float:
    """Seconds without a beat after which a life is looked at whole each second: it may be on its way to a verdict."""
    return 2.5 * check_interval(timing)


def fingerprint_of(paths: Iterable[str]) -> Fingerprint:
    """What changes when any of these files or directories does; None stands for one that is absent."""
    return tuple(_stamp(path) for path in paths)


def all_beating(lives: Iterable[str], monotonic: float, limit: float) -> bool:
    """Whether every one of these life files was beaten within `limit` seconds of this boot's clock."""
    try:
        return all(0.0 <= monotonic - os.stat(path).st_atime <= limit for path in lives)  # noqa: PTH116  # each second
    except OSError:
        return False


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        seen = os.stat(path)  # noqa: PTH116  # a Path each would double what a glance costs
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_ino, seen.st_size
