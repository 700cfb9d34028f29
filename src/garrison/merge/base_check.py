"""Check of the bare target, before an entry is blamed for what may be the gate's or the target's fault. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from garrison.backoff import Backoff
from garrison.merge.decision import RED_RUNS_NEEDED
from garrison.merge.verdicts import BROKEN

if TYPE_CHECKING:
    from collections.abc import Collection

    from garrison.merge.verdicts import Evidence

Answer = Literal["passes", "test", "base_red", "gate_broken"]
_RETRIED = frozenset({"red", "setup"})
"""Results of the bare target that are tried again before the queue pauses."""
_TRANSIENT = _RETRIED | {"lost"}
"""Results of the bare target that may change by themselves: a flaky test, a killed process, a service or a network that
is down, a lack of memory or disk. A gate that is missing, hangs or runs no tests stays so until a person helps."""
RETRY = Backoff(30.0, 1800.0)
"""Delays after which a queue that paused for such a result tries again by itself."""


def check_base(tree: str, results: Collection[str], evidence: Evidence) -> Answer:
    """Return whether the bare target passes, has to be tested, or gives cause to pause the queue.

    A plain red is the entries' fault if the target's tree passed; but the gate may have broken since.

    Args:
        tree: the bare target's.
        results: of the runs that were not green, and that an entry may be blamed for.
    """
    base = evidence.base
    if base is not None and base.result != "green":
        if base.failures < RED_RUNS_NEEDED and base.result in _RETRIED:
            return "test"
        return "base_red" if base.result == "red" else "gate_broken"
    is_answered = base is not None and base.seq > evidence.broken
    if is_answered or (tree in evidence.green and not evidence.broken and not BROKEN.intersection(results)):
        return "passes"
    return "test"


def choose_retry(result: str, pauses: int) -> float:
    """Return after how many seconds a paused queue tries again by itself; 0: only a person or a new target helps.

    Args:
        result: of the bare target.
        pauses: how often in a row the queue has paused for such a result before.
    """
    return RETRY.delay(pauses + 1) if result in _TRANSIENT else 0.0
