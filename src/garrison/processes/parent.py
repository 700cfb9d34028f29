"""The process above a runner: where it reports to, and whether anything above it is alive.

By name, never by incarnation: a guardian that was replaced is the same parent. A runner that was started by hand has no
parent: then nothing is sent, and it is never orphaned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.processes.loop import log_line
from garrison.records.identity import Identity
from garrison.records.names import Key, launcher_key

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.processes.supervisor import Supervisor
    from garrison.records.payloads import Payload
    from garrison.records.run import Task
    from garrison.records.signals import Signal
    from garrison.supervise.start import Incarnation


class Parent:
    """The parent of one incarnation, and the launcher above that."""

    def __init__(self, me: Incarnation, supervisor: Supervisor, task: Task) -> None:
        self.supervisor, self.task = supervisor, task
        parent = me.identity.parent
        self.key = Key(parent["role"], parent["name"], me.key.run) if parent else None
        self._orphaned_since: float | None = None

    @property
    def is_gone(self) -> bool:
        """Whether nothing above was alive at the last observation."""
        return self._orphaned_since is not None

    @property
    def record_paths(self) -> list[Path]:
        """The parent's identity record, if there is a parent."""
        return [self.supervisor.runtime.store.path(Identity, self.key)] if self.key else []

    def orphaned_for(self, now: float) -> float | None:
        """Return the seconds (monotonic) since nothing above is alive; None while something is."""
        if self.key is None:
            return None
        if any(self.supervisor.is_alive(key) for key in (self.key, launcher_key(self.key.run))):
            self._orphaned_since = None
            return None
        if self._orphaned_since is None:
            self._orphaned_since = now
            log_line("neither guardian nor launcher is alive: finishing this attempt; after the grace period nothing "
                     "new is started")
        return now - self._orphaned_since

    def send(self, payload: Payload, id_: str) -> None:
        """Write the parent a signal about the node; it recognises the id when the signal is sent again."""
        if self.key is not None:
            self.supervisor.send(self.key, payload, node=self.task.node, attempt=self.task.attempt, id_=id_)

    def forward(self, received: Signal) -> None:
        """Pass a signal from below on to the parent."""
        if self.key is not None:
            self.supervisor.forward(self.key, received)
