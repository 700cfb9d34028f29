"""Bounds of what is tested: how many gates run at a time, and how many entries are tested together. Pure.

Within these bounds, `decision` chooses the sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.merge.decision import MAX_SET
from garrison.merge.verdicts import JUDGED_WINDOW

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BATCH = MAX_SET
"""Entries that are tested together at most."""
MAX_GATES = 16
"""Gates that run at a time, at most."""
SHORT_GATE = 0.25
"""Seconds; entries with a quicker gate are tested one by one, each with a verdict of its own."""
SHORT_QUEUE = 2
"""Length of a queue up to which entries that were never tested are tested one by one."""
_ASSUMED_ENTRIES, _ASSUMED_BAD = 8.0, 0.4
"""Prior of the failure rate: as if 0.4 of 8 earlier entries had been bad."""


def choose_max_set(backlog: int, durations: Sequence[float], *, max_batch: int = MAX_BATCH) -> int:
    """Return how many entries may be tested together, 1 or more.

    Args:
        backlog: entries that wait, or that are under test.
        durations: seconds that the last gate runs took.
        max_batch: the queue's own bound.
    """
    if backlog <= SHORT_QUEUE or not durations or min(durations) < SHORT_GATE:
        return 1
    return max(1, min(MAX_BATCH, max_batch))


def failure_rate(rejections: Sequence[bool]) -> float:
    recent = rejections[-JUDGED_WINDOW:]
    return (sum(recent) + _ASSUMED_BAD) / (len(recent) + _ASSUMED_ENTRIES)


def choose_gate_width(cores: int, gate_cores: int) -> int:
    """Return how many gates may run at a time on `cores`, if one keeps `gate_cores` busy (0: all of them)."""
    return max(1, min(MAX_GATES, cores // gate_cores)) if gate_cores > 0 else 1
