"""Identities: the agents and processes of a home. The record, its status table and the pure changes to it.

There is one identity per name and run; `incarnation` grows with each start. Only `supervise.incarnation` starts
incarnations and ends them by force; a living process changes its own record, fenced by its incarnation.
"""

from __future__ import annotations

from typing import Any

import msgspec

from garrison.ends import Departure
from garrison.errors import ForbiddenTransition
from garrison.records import earlier
from garrison.records.names import Key, key_of
from garrison.records.record import is_timestamp
from garrison.values import Value, replace

STATUSES: dict[str, frozenset[str]] = {
    "starting": frozenset({"active", "crashed", "terminated", "starting"}),
    "active": frozenset({"held", "crashed", "terminated", "parked", "active"}),
    "held": frozenset({"active", "crashed", "terminated"}),
    "crashed": frozenset({"starting", "active", "parked", "terminated", "crashed"}),
    "terminated": frozenset({"starting", "active", "parked", "terminated"}),
    "parked": frozenset({"starting", "active", "terminated", "crashed"}),
}
"""Status → the statuses that may follow. `active` after an ended one is a successor made by hand, without a lease."""


KEYBOARD = "keyboard"
"""Key of an orchestrator's metadata: true once the user's input in its session reaches the agent."""
ALIVE = frozenset({"starting", "active", "held"})
"""Statuses that claim a living process; `supervise.verdict` decides whether it exists."""


class Identity(Value):
    """One name in one run. Times are ISO 8601 UTC; `tmux` holds socket, session and pane ids of an orchestrator."""

    agent_id: str
    role: str
    name: str
    run_id: str
    created_at: str
    session_id: str = ""
    incarnation: int = 1
    pid: int | None = None
    start_ticks: int | None = None
    pid_ns: str = ""
    boot_id: str = ""
    host: str = ""
    parent: dict[str, str] | None = None
    worktree: str | None = None
    branch: str | None = None
    tmux: dict[str, object] | None = None
    status: str = "active"
    last_heartbeat: str = ""
    spawn_deadline: str | None = None
    crashed_at: str | None = None
    terminated_at: str | None = None
    exit: int | str | None = None
    predecessor_id: str | None = None
    respawns: int = 0
    metadata: dict[str, object] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is none of {', '.join(STATUSES)}")
        if self.incarnation < 1:
            raise ValueError("incarnation is below 1")
        for time in (self.created_at, self.last_heartbeat or self.created_at, self.spawn_deadline or self.created_at):
            if not is_timestamp(time):
                raise ValueError(f"not a time: {time!r}")

    @property
    def key(self) -> Key:
        return key_of(self.role, self.name, self.run_id)

    @property
    def attempt(self) -> int:
        """Return the attempt of its node that it belongs to; 1 if it has no attempts."""
        return int(str(self.metadata.get("attempt", 1)))

    @property
    def evidence(self) -> dict[str, object]:
        """Return what its supervisor observed on declaring it crashed."""
        found = self.metadata.get("evidence")
        return found if isinstance(found, dict) else {}

    @property
    def reason(self) -> str:
        """Return why it ended (`done`, `failed`, `stopped`, `orphaned`, …), or ''."""
        return str(self.metadata.get("reason", ""))

    @property
    def departure(self) -> Departure | None:
        """Return how it ended by itself; None if it has not, and after a crash."""
        if self.status != "terminated":
            return None
        # Not the reason: that is a sentence for users, and its wording changes between versions.
        told = self.metadata.get("departure")
        return earlier.departure_of(self.reason) if told is None else Departure(str(told))


def change_status(identity: Identity, status: str, **changes: Any) -> Identity:
    """Return `identity` with another status; ForbiddenTransition if the table does not list it."""
    allowed = STATUSES[identity.status]
    if status not in allowed:
        raise ForbiddenTransition(identity.key.full, identity.status, status, allowed)
    return replace(identity, status=status, **changes)


def mark_ended(identity: Identity, status: str, now: str, reason: str, departure: Departure = Departure.EARLY,
               **changes: Any) -> Identity:
    """Return the identity of an incarnation that is over: `crashed` or `terminated`, with time and reason.

    Args:
        departure: how it ended, if it is `terminated`.
    """
    stamp = {"crashed": "crashed_at", "terminated": "terminated_at"}[status]
    metadata = {**identity.metadata, "reason": reason, "departure": departure.value}
    return change_status(identity, status, metadata=metadata, **{stamp: now}, **changes)


def record_heartbeat(identity: Identity, now: str) -> Identity:
    """Return the identity with a heartbeat at `now`, as the script writes it (a process touches only its life file)."""
    return replace(identity, last_heartbeat=now)
