"""Who stands above a runner: whom it reports to, and whether anybody there lives.

The rule of this room: by name, never by incarnation; a guardian that was replaced is the same guardian. A runner that
was started by hand has nobody above it: then nothing is said, and it is never left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from garrison.processes.loop import log_line
from garrison.records.identity import Identity
from garrison.records.names import Key, launcher_key
from garrison.supervise.start import Incarnation

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.processes.supervisor import Supervisor
    from garrison.records.run import Task
    from garrison.records.signals import Signal


class Parent:
    """The parent of one life, and its launcher."""

    def __init__(self, life: Incarnation, crew: Supervisor, task: Task) -> None:
        self.supervisor, self.task = crew, task
        parent = life.identity.parent
        self.key = Key(parent["role"], parent["name"], life.key.run) if parent else None
        self._alone_since: float | None = None

    @property
    def alone(self) -> bool:
        """Whether nobody was there at the last look."""
        return self._alone_since is not None

    @property
    def records(self) -> list[Path]:
        """The parent's record, if somebody started us."""
        return [self.supervisor.world.store.path(Identity, self.key)] if self.key else []

    def alone_for(self, now: float) -> float | None:
        """Seconds (monotonic) since nobody above is alive; None while somebody is."""
        if self.key is None:
            return None
        if any(self.supervisor.lives(key) for key in (self.key, launcher_key(self.key.run))):
            self._alone_since = None
            return None
        if self._alone_since is None:
            self._alone_since = now
            log_line("neither guardian nor launcher is alive: finishing the attempt, starting nothing new after the "
                     "grace")
        return now - self._alone_since

    def tell(self, kind: str, payload: dict[str, Any], id_: str) -> None:
        """Write the parent a signal about the node; one with the same id is recognised as said."""
        if self.key is not None:
            self.supervisor.tell(self.key, kind, payload, node=self.task.node, attempt=self.task.attempt, id_=id_)

    def pass_on(self, signal: Signal) -> None:
        """Say a signal from below again, to the parent."""
        if self.key is not None:
            self.supervisor.pass_on(self.key, signal)
