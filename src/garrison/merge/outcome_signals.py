"""Outcome signals: the same journal record gives the same signal file, so sending again after a crash changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.records.names import Key
from garrison.records.signals import Signal

if TYPE_CHECKING:
    from garrison.merge.state import Outcome


def to_signal(outcome: Outcome, processor: str = "hand", incarnation: int = 0) -> Signal | None:
    """The signal to the entry's runner, None if it was enqueued by hand and nobody is to be told."""
    entry = outcome.entry
    if not entry.recipient:
        return None
    target = Key.parse(entry.recipient)
    return Signal(
        id=f"mq-{outcome.seq}-{outcome.type}", source={"role": "processor", "name": processor,
                                                      "incarnation": incarnation},
        target={"role": target.role, "name": target.name}, signal_type=outcome.type, run_id=target.run,
        timestamp=outcome.at, node_id=entry.node, attempt=entry.attempt, payload=outcome.payload)
