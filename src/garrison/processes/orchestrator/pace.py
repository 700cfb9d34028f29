"""Pace of work that an agent can cause at will. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.1
"""Part of an orchestrator's time that such work may take."""
LONGEST_PAUSE = 60.0
"""Seconds after which it is done again, however long it took."""


@dataclass
class Pace:
    """Time at which the work may be done again: its orchestrator has to answer its agent and its runner meanwhile."""

    due: float = 0.0
    is_awaited: bool = False
    """There is work to do once it is due."""

    def allows(self, now: float) -> bool:
        """Return whether the work may be done now; else it is awaited."""
        self.is_awaited = now < self.due
        return not self.is_awaited

    def record(self, began: float, ended: float) -> None:
        """Record that it was done."""
        self.due = ended + min(LONGEST_PAUSE, (ended - began) * (1 / SHARE - 1))

    def wake_at(self) -> float | None:
        """Return when it has to be done, None if there is nothing to do."""
        return self.due if self.is_awaited else None
