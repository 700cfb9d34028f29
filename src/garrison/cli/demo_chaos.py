"""Who is killed in the demonstration, and when: each layer once, at a moment when its death matters.

The rule of this room: one death at a time, and a layer counts only when its successor was seen. A death that found
nothing left to do proves nothing; then the layer is struck again at its next moment.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from garrison.cli.demo_stage import RUN, Stage
from garrison.records.hook import Hook
from garrison.records.names import Key, launcher_key

if TYPE_CHECKING:
    from garrison.records.identity import Identity

ANSWER = 10.0
"""Seconds after which a death is taken for one that needed no successor."""


@dataclass
class Death:
    """One kill: who, of which life, when, and how long until a successor was active (seconds)."""

    key: Key
    incarnation: int
    at: float
    moment: str
    back: float | None = None

    def pending(self, now: float) -> bool:
        """Whether a successor may still come."""
        return self.back is None and now - self.at < ANSWER


@dataclass(frozen=True)
class Blow:
    """One planned kill: a role, the moment in words, and whom it may hit now."""

    role: str
    moment: str
    targets: Callable[[Stage], list[Key]]


def _at_work(role: str) -> Callable[[Stage], list[Key]]:
    """Nodes whose agent has committed a step and has not ended: that commit must not be lost or made again."""

    def targets(stage: Stage) -> list[Key]:
        return [Key(role, name, RUN) for name, node in stage.state.nodes.items()
                if node.status == "active" and _committed(stage, name)
                and not (stage.world.files(RUN).attempt(name, node.attempt) / "result.json").exists()]

    return targets


def _committed(stage: Stage, node: str) -> bool:
    hook = stage.world.store.read(Hook, Key("orchestrator", node, RUN))
    return hook is not None and hook.last_committed_node is not None


def _during_a_gate(stage: Stage) -> list[Key]:
    testing = any(entry.status == "testing" for entry in stage.queue.entries())
    return [Key("processor", "demo", RUN)] if testing else []


def _while_one_waits_to_land(stage: Stage) -> list[Key]:
    waiting = any(node.status == "impl_complete" for node in stage.state.nodes.values())
    return [Key("guardian", "demo", RUN)] if waiting else []


def _during_rework(stage: Stage) -> list[Key]:
    again = any(node.status == "active" and node.attempt > 1 for node in stage.state.nodes.values())
    return [launcher_key(RUN)] if again else []


CHAOS = (
    Blow("orchestrator", "its agent had committed a step", _at_work("orchestrator")),
    Blow("runner", "its agent was at work", _at_work("runner")),
    Blow("processor", "a merged tree was being tested", _during_a_gate),
    Blow("guardian", "a branch waited to land", _while_one_waits_to_land),
    Blow("launcher", "a task was being done again", _during_rework),
)
"""Every layer, once."""


@dataclass
class Chaos:
    """The blows that are planned and the deaths there were."""

    planned: tuple[Blow, ...]
    say: Callable[[str, str], None]
    """Tells the person a line, in a colour."""
    deaths: list[Death] = field(default_factory=list)

    def missing(self) -> list[Blow]:
        """The layers whose death and return were not seen yet."""
        seen = {_role(death.key) for death in self.deaths if death.back is not None}
        return [blow for blow in self.planned if blow.role not in seen]

    def step(self, stage: Stage) -> None:
        """See who is back; if nobody is missing, strike the first whose moment has come."""
        self._notice(stage)
        if any(death.pending(time.monotonic()) for death in self.deaths):
            return
        spared = {death.key.name for death in self.deaths}  # another node than last time, if there is one
        for blow in self.missing():
            targets = sorted(blow.targets(stage), key=lambda key: key.name in spared)
            if targets and self._strike(stage, blow, targets[0]):
                return

    def _strike(self, stage: Stage, blow: Blow, key: Key) -> bool:
        seen = stage.identity(key)
        if seen is None or seen[1].state != "alive" or seen[0].status != "active":
            return False
        identity = seen[0]
        if identity.pid is None or identity.start_ticks is None:
            return False
        if not stage.world.processes.send(identity.pid, identity.start_ticks, signal.SIGKILL):
            return False
        self.deaths.append(Death(key, identity.incarnation, time.monotonic(), blow.moment))
        self.say(f"          kill -9 {who(key)} (pid {identity.pid}): {blow.moment}", "red")
        return True

    def _notice(self, stage: Stage) -> None:
        for death in self.deaths:
            seen = stage.identity(death.key) if death.back is None else None
            if seen is not None and _succeeds(seen[0], death):
                death.back = time.monotonic() - death.at
                self.say(f"          {who(death.key)} is back as life {seen[0].incarnation} after {death.back:.2f} s",
                         "green")


def _succeeds(identity: Identity, death: Death) -> bool:
    return identity.incarnation > death.incarnation and identity.status != "starting"


def _role(key: Key) -> str:
    return "launcher" if key.role == "launch" else key.role


def who(key: Key) -> str:
    """A layer's name for people, without the run."""
    return "launcher" if key.role == "launch" else key.full.partition("@")[0]
