"""Signals that a command or the page sends for its user."""

from __future__ import annotations

from garrison.records.names import Key
from garrison.records.signals import Payload, Signal
from garrison.records.store import new_id
from garrison.system.clock import SystemClock


def signal_by_person(recipient: Key, payload: Payload, *, node: str | None = None, attempt: int = 0, id: str = "",
                     now: str = "") -> Signal:
    """Return a signal that a command sends for its user; the source `launch` with incarnation 0 means the user.

    Args:
        id: the signal's id, for an idempotent signal (default: a fresh one).
        now: its timestamp (default: the current time).
    """
    person = {"role": "launch", "name": "launch", "incarnation": 0}
    return Signal(id or new_id()[:12], person, {"role": recipient.role, "name": recipient.name}, payload.type,
                  recipient.run, now or SystemClock().utc(), node, attempt, payload.to_data())
