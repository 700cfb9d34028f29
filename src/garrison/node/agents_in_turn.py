"""Failover between the agents of one attempt or validation: which one works now, and the hand-over to the next.

`agents.failover` decides. A failover is recorded once no process of the current agent runs, and ends the
incarnation: the next one starts with the next agent, in the same worktree, with everything that a successor gets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.agents import failover as policy
from garrison.agents.registry import follower_attributes, followers_of
from garrison.agents.trouble import TroubleKind
from garrison.errors import GarrisonError
from garrison.processes.loop import log_line
from garrison.records import failover as records
from garrison.records.failover import Failover
from garrison.records.identity import Identity
from garrison.supervise.incarnation import require_unfenced
from garrison.system import failpoint
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from garrison.agents.base import Trouble
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Task
    from garrison.supervise.incarnation import Incarnation


class AgentsInTurn:
    """The agents that may do the work of one attempt, for one incarnation."""

    def __init__(self, runtime: Runtime, incarnation: Incarnation, task: Task, folder: Path,
                 is_fit: Callable[[str], bool] | None = None) -> None:
        """Read what has happened in the attempt.

        Args:
            folder: the attempt's, or its validation's.
            is_fit: whether an agent can do the work; None if all can.
        """
        self._is_fit = is_fit
        self.runtime, self.incarnation, self._first, self.folder = runtime, incarnation, task, folder
        self.failovers = records.read_failovers(folder)
        self.agents = policy.order(task.agent, self._followers())
        self._limits = self._read_limits() if len(self.agents) > 1 else {}
        self._reset = 0.0
        """When an earlier agent's limit is next reset; 0: unknown."""

    @property
    def turn(self) -> int:
        return len(self.failovers)

    @property
    def tried(self) -> str:
        """Return the agents that were tried before the current one, '' for none."""
        return policy.list_tried(self.failovers)

    def begin(self, *, is_first: bool) -> Task:
        """Move the files of earlier agents' sessions aside; return the task as the current agent gets it."""
        if is_first and not self.failovers and len(self.agents) > 1:
            self._pass_over()
        records.keep_earlier_sessions(self.folder, self.failovers)
        return self.task

    @property
    def task(self) -> Task:
        """Return the task as the current agent gets it: with its own model, in a new session."""
        task, agent = self._first, self.failovers[-1].agent if self.failovers else self._first.agent
        if agent == task.agent:
            return replace(task, continues="") if self.failovers else task
        return replace(task, agent=agent, attributes=follower_attributes(task.attributes), continues="")

    def choose(self, trouble: Trouble) -> Failover | None:
        """Return the failover to another agent; None if the current one keeps the work."""
        if not policy.gives_up(trouble, self.runtime.timing.failover_patience):
            return None
        now = self.runtime.clock.time()
        agent = policy.choose_next(self.agents, self.failovers, self._limits, now)
        if agent is None:
            self._reset = policy.next_reset(self.failovers, now) or 0.0
            return None
        return Failover(now, self.task.agent, agent, trouble.kind, trouble.reason, trouble.resets_at)

    def wake_at(self) -> float | None:
        """Return when an earlier agent can work again, in monotonic seconds, if the current one waits."""
        if not self._reset:
            return None
        return self.runtime.clock.monotonic() + max(0.0, self._reset - self.runtime.clock.time())

    def _followers(self) -> tuple[str, ...]:
        """Return the agents that may continue; none if the configuration has become invalid since the launch."""
        if self._first.agent == "command":
            return ()
        try:
            followers = followers_of(self._first.agent, self.runtime.home, self._first.failover)
            return tuple(name for name in followers if self._is_fit is None or self._is_fit(name))
        except GarrisonError as error:
            log_line(str(error))
            return ()

    def _pass_over(self) -> None:
        now = self.runtime.clock.time()
        agent = policy.choose_first(self.agents, self._limits, now)
        if agent != self.agents[0]:
            until = self._limits[self.agents[0]]
            self.record(Failover(now, self.agents[0], agent, TroubleKind.RATE_LIMIT, "its limit still applies", until,
                                 started=False))

    def _read_limits(self) -> dict[str, float]:
        """Return when each agent's limit is reset, as other attempts of the run have recorded."""
        limits: dict[str, float] = {}
        nodes = self.runtime.files(self._first.run_id).root / "nodes"
        for path in nodes.glob(f"*/*/{records.FILE}"):
            for each in records.read_failovers(path.parent) if path.parent != self.folder else ():
                if each.until is not None:
                    limits[each.previous] = max(each.until, limits.get(each.previous, 0.0))
        return limits

    def record(self, failover: Failover) -> None:
        """Record the failover, unless a successor of this incarnation already works.

        No process of the current agent may still run.
        """
        key, number = self.incarnation.key, self.incarnation.number
        with self.runtime.store.locked(Identity, key, incarnation=number) as identity:
            require_unfenced(identity, key)
            records.add_failover(self.folder, failover)
        self.failovers.append(failover)
        failpoint.here(":failed_over")
