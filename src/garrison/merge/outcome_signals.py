"""Outcome signals: what an entry's runner is signalled, derived from journal records alone. Pure.

An outcome is identified by its record's number, so a signal that is sent again after a crash is the same file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from garrison.records.names import Key
from garrison.values import Value

if TYPE_CHECKING:
    from garrison.merge.entry import MergeEntry
    from garrison.records.signals import Signal

GREEN_SIGNAL = "VALIDATION_PASSED"
"""Signal of a green verdict."""
STATUS_SIGNALS = {
    "landed": ("MERGE_COMPLETE",),
    "conflict": ("MERGE_FAILED",),
    "cancelled": ("MERGE_FAILED",),
    "rejected": ("VALIDATION_FAILED", "MERGE_FAILED"),
}
"""Status that an entry reaches → signals to send."""


class Outcome(Value):
    """Fact to signal; `seq` and `at` are its journal record's."""

    entry: MergeEntry
    type: str
    seq: int
    at: str
    payload: dict[str, Any]


def make_outcome(entry: MergeEntry, signal_type: str, seq: int, at: str) -> Outcome:
    """Return the outcome of an entry as it was after record `seq`."""
    return Outcome(entry, signal_type, seq, at, {
        "node_id": entry.node, "entry": entry.id, "attempt": entry.attempt, "branch": entry.branch,
        "target": entry.target, "oid": entry.oid, "commit": entry.commit, "status": entry.status,
        "files": list(entry.files), "log": entry.log,
        "error": entry.reason if signal_type.endswith("FAILED") else None})


def to_signal(outcome: Outcome, processor: str = "hand", incarnation: int = 0) -> Signal | None:
    """Return the signal to the entry's runner, None if it was enqueued by hand and has none."""
    entry = outcome.entry
    if not entry.recipient:
        return None
    from garrison.records.signals import Signal  # who only enqueues sends none

    target = Key.parse(entry.recipient)
    return Signal(
        id=f"mq-{outcome.seq}-{outcome.type}", source={"role": "processor", "name": processor,
                                                      "incarnation": incarnation},
        target={"role": target.role, "name": target.name}, signal_type=outcome.type, run_id=target.run,
        timestamp=outcome.at, node_id=entry.node, attempt=entry.attempt, payload=outcome.payload)
