"""Orchestrator of a node whose work a host does: everything of an orchestrator but the agent, in whose place is
`RemoteWork`.

Nothing of the agent is decided here: its sandbox, network, keys, socket and failover are the host's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.ends import Departure
from garrison.processes.agents_in_turn import AgentsInTurn
from garrison.processes.briefing import Briefer
from garrison.processes.orchestrator.process import Orchestrator
from garrison.processes.remote.remote_work import RemoteWork
from garrison.supervise.death_classes import HOST
from garrison.system import failpoint
from garrison.values import replace

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.agents.base import Outcome, Work
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Task
    from garrison.supervise.incarnation import Incarnation
    from garrison.system.event_loop import EventLoop


class RemoteOrchestrator(Orchestrator):
    """One incarnation of the orchestrator of a remote node."""

    def __init__(self, runtime: Runtime, incarnation: Incarnation, launch: Launch, task: Task) -> None:
        self._whole_task = task
        self._remote: RemoteWork | None = None
        self._watched: set[int] = set()
        super().__init__(runtime, incarnation, launch, task)

    def _make_agents(self, task: Task, folder: Path) -> AgentsInTurn:
        return AgentsInTurn(self.runtime, self.incarnation, replace(task, failover=[]), folder)

    def _make_environment(self) -> dict[str, str]:
        return dict(self.runtime.environ)

    def _open_channel(self, folder: Path) -> None:
        return None

    def _prepare(self, *, is_successor: bool) -> None:
        briefer = Briefer(self.runtime, self.launch, self.task, self.git, self.worktree, copies=False)
        text = briefer.for_host(self.hook.resumption_instructions or "", is_successor=is_successor)
        self.assignment.write_prompt(text)

    def _start(self, now: float) -> Work:
        self._remote = RemoteWork(self.runtime, self.launch, self._whole_task, self.git, self.assignment, now)
        return self._remote

    def watch(self, event_loop: EventLoop) -> None:
        """Wake at anything that the host reports, too."""
        super().watch(event_loop)
        wanted = set(self._remote.descriptors()) if self._remote is not None else set()
        for descriptor in self._watched - wanted:
            event_loop.forget_descriptor(descriptor)
        for descriptor in wanted:
            event_loop.watch_descriptor(descriptor)
        self._watched = wanted

    def _fail_over(self, work: Work, outcome: Outcome | None) -> bool:
        return False

    def _end_with(self, outcome: Outcome) -> None:
        failpoint.here(":ended")
        if self.stopping:
            self._end_without_result(*self._why_stopped())
        elif outcome.killed and not self._worktree_gone:
            self._end_without_result(outcome.reason,
                                     death_class=HOST if self._remote and self._remote.lost_host else "")
        else:
            self._finish(outcome)

    def _end(self, reason: str, departure: Departure, death_class: str = "") -> None:
        if self._remote is not None:
            self._remote.close()
        super()._end(reason, departure, death_class)
