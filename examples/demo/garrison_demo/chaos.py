"""Chaos of the demonstration: each kind of process is killed once, at a moment when its death matters.

One death at a time. A kind of process counts only when its successor was seen; where a death needed no successor, the
process is killed again at its next moment.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key, launcher_key
from garrison_demo.sandbox import RUN, Sandbox

SUCCESSOR_TIMEOUT = 10.0
"""Seconds after which a death counts as one that needed no successor."""


@dataclass
class Kill:
    """One kill: the incarnation that died, when, and the seconds until a successor was active."""

    key: Key
    incarnation: int
    at: float
    moment: str
    back_after: float | None = None

    def is_pending(self, now: float) -> bool:
        """Return whether a successor may still come."""
        return self.back_after is None and now - self.at < SUCCESSOR_TIMEOUT


@dataclass(frozen=True)
class PlannedKill:
    """Plan to kill a kind of process: the moment in words, and the processes that may be killed now."""

    role: str
    moment: str
    targets: Callable[[Sandbox], list[Key]]


def _with_agent_at_work(role: str) -> Callable[[Sandbox], list[Key]]:
    """Target nodes whose agent has made a commit and not finished: the commit must neither be lost nor repeated."""

    def targets(sandbox: Sandbox) -> list[Key]:
        return [Key(role, name, RUN) for name, node in sandbox.state.nodes.items()
                if node.status == "active" and _has_commit(sandbox, name)
                and not (sandbox.runtime.files(RUN).attempt(name, node.attempt) / "result.json").exists()]

    return targets


def _has_commit(sandbox: Sandbox, node: str) -> bool:
    hook = sandbox.runtime.store.read(Hook, Key("orchestrator", node, RUN))
    return hook is not None and hook.last_committed_node is not None


def _during_gate(sandbox: Sandbox) -> list[Key]:
    testing = any(entry.status == "testing" for entry in sandbox.queue.entries())
    return [Key("processor", "demo", RUN)] if testing else []


def _while_waiting_to_land(sandbox: Sandbox) -> list[Key]:
    waiting = any(node.status == "impl_complete" for node in sandbox.state.nodes.values())
    return [Key("guardian", "demo", RUN)] if waiting else []


def _during_rework(sandbox: Sandbox) -> list[Key]:
    rework = any(node.status == "active" and node.attempt > 1 for node in sandbox.state.nodes.values())
    return [launcher_key(RUN)] if rework else []


PLAN = (
    PlannedKill("orchestrator", "its agent had committed a step", _with_agent_at_work("orchestrator")),
    PlannedKill("runner", "its agent was at work", _with_agent_at_work("runner")),
    PlannedKill("processor", "a merged tree was being tested", _during_gate),
    PlannedKill("guardian", "a branch waited to land", _while_waiting_to_land),
    PlannedKill("launcher", "a task was in rework", _during_rework),
)
"""Every kind of process, once."""


@dataclass
class Chaos:
    """Planned kills, and those that happened."""

    plan: tuple[PlannedKill, ...]
    show: Callable[[str, str], None]
    """Prints a line in a colour."""
    kills: list[Kill] = field(default_factory=list)

    def missing(self) -> list[PlannedKill]:
        """Return the planned kills after which no successor was seen yet."""
        succeeded = {_role(kill.key) for kill in self.kills if kill.back_after is not None}
        return [planned for planned in self.plan if planned.role not in succeeded]

    def step(self, sandbox: Sandbox) -> None:
        """Notice successors; if none is pending, carry out the first planned kill whose moment has come."""
        self._notice_successors(sandbox)
        if any(kill.is_pending(time.monotonic()) for kill in self.kills):
            return
        killed_before = {kill.key.name for kill in self.kills}  # prefer another node than last time
        for planned in self.missing():
            targets = sorted(planned.targets(sandbox), key=lambda key: key.name in killed_before)
            if targets and self._kill(sandbox, planned, targets[0]):
                return

    def _kill(self, sandbox: Sandbox, planned: PlannedKill, key: Key) -> bool:
        found = sandbox.identity(key)
        if found is None or found[1].state != "alive" or found[0].status != "active":
            return False
        identity = found[0]
        if identity.pid is None or identity.start_ticks is None:
            return False
        if not sandbox.runtime.processes.send(identity.pid, identity.start_ticks, signal.SIGKILL):
            return False
        self.kills.append(Kill(key, identity.incarnation, time.monotonic(), planned.moment))
        self.show(f"          kill -9 {display_name(key)} (pid {identity.pid}): {planned.moment}", "red")
        return True

    def _notice_successors(self, sandbox: Sandbox) -> None:
        for kill in self.kills:
            found = sandbox.identity(kill.key) if kill.back_after is None else None
            if found is not None and _succeeds(found[0], kill):
                kill.back_after = time.monotonic() - kill.at
                self.show(f"          {display_name(kill.key)} is back as incarnation {found[0].incarnation} "
                          f"after {kill.back_after:.2f} s", "green")


def _succeeds(identity: Identity, kill: Kill) -> bool:
    return identity.incarnation > kill.incarnation and identity.status != "starting"


def _role(key: Key) -> str:
    return "launcher" if key.role == "launch" else key.role


def display_name(key: Key) -> str:
    """Return a process's name for people, without the run."""
    return "launcher" if key.role == "launch" else key.full.partition("@")[0]
