"""How many entries are tested together, and how many gates run at a time. Pure: from what the journal has seen.

With n entries of which each is bad with probability p, a run tells most when it is as likely green as red: n = 0.69/p.
With k gates at a time the longest prefix is chosen so that the first bad entry is as likely between any two of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CAP = 32
"""Entries of the longest batch."""
WINDOW = 64
"""Judged entries that are remembered."""
SHORT_TEST = 0.25
"""Seconds; a gate that is quicker is not worth a batch, and one by one every entry has a verdict of its own."""
SHORT_QUEUE = 2
"""So many waiting entries, or fewer, are tested one by one."""
WIDEST = 4
"""Gates that run at a time, at most."""
_SEEN, _BAD = 8.0, 0.4
"""What is believed before anything was seen: as if of 8 entries 0.4 had been bad."""


def rate(judged: Sequence[bool]) -> float:
    """The share of bad entries to be expected; `judged` says of each entry so far whether it was rejected."""
    recent = judged[-WINDOW:]
    return (sum(recent) + _BAD) / (len(recent) + _SEEN)


def size(judged: Sequence[bool], backlog: int, seconds: Sequence[float], *, width: int = 1, most: int = CAP) -> int:
    """How many entries to test together, 1 or more; `seconds` is what the last gate runs took, `backlog` who waits."""
    if backlog <= SHORT_QUEUE or not seconds or min(seconds) < SHORT_TEST:
        return 1
    best = math.log(width + 1) / -math.log1p(-min(rate(judged), 0.99))
    return max(1, min(CAP, most, backlog, round(best)))


def width(cores: int, gate_cores: int) -> int:
    """How many gates may run at a time on `cores`, if one keeps `gate_cores` busy (0: all of them)."""
    return max(1, min(WIDEST, cores // gate_cores)) if gate_cores > 0 else 1
