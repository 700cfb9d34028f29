"""The nodes of one run as `garrison status` tells of them, gathered from hooks, journals and the merge queue.

The rule of this room: one object a look; what it says of a node it takes from `Facts` through `doing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from garrison.merge.state import QueueState
from garrison.processes.agent_activity import AgentActivity
from garrison.processes.guardian.parking import find_parked
from garrison.processes.run_state import NodeState, RunState
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.run import Launch, Result, Task
from garrison.supervise.observer import Observer
from garrison.supervise.restart import Death
from garrison.system.clock import from_iso
from garrison.views import heartbeats
from garrison.views.limits import Used
from garrison.views.node_state import PARKED, PLACES, Facts, asks, doing
from garrison.views.run_model import Reading, RunLook, place

UNFINISHED = ("new", "running")
"""Run statuses in which somebody should be at work."""


def place_of(state: RunState, name: str) -> str:
    """A node's place in the run; one that is parked is not at work. Pure."""
    return PARKED if name in state.held or find_parked(state, name) else PLACES[state.nodes[name].status]


class Nodes:
    """All nodes of a run at one moment. `body` is the head that was gathered of the run."""

    def __init__(self, reading: Reading, look: RunLook, body: Mapping[str, Any], launch: Launch,
                 state: RunState, observer: Observer) -> None:
        self.observer, self.now = observer, observer.clock.time()
        self.reading, self.look, self.body, self.launch, self.state = reading, look, body, launch, state
        self.layers = {layer["agent"]: layer for layer in body["layers"]}
        self.under_way = body["status"] in UNFINISHED
        self.queue: QueueState | None = reading.tried(look.queue)
        self.tasks = {name: self._task(name, node) for name, node in state.nodes.items()}
        self.deaths: dict[str, list[Death]] = {**state.deaths, **(reading.tried(look.guardian_deaths) or {})}
        waiting = self.under_way and any(node.status == "pending" for node in state.nodes.values())
        self.waiting = (reading.tried(lambda: look.waiting(state.statuses)) or {}) if waiting else {}

    def all(self, age: Callable[[str], float | None]) -> list[dict[str, Any]]:
        """A body a node; `age` gives the seconds since a time."""
        bodies = [{**self._node(name), "since_s": age(node.since)} for name, node in self.state.nodes.items()]
        for parking in [body["parked"] for body in bodies if body["parked"]]:
            parking["probe_in_s"] = self._left(parking["probe_at"])
        return bodies

    def _left(self, probe_at: str | None) -> float | None:
        """Seconds to a probe; None where none will come, for nobody is there who would."""
        return max(0.0, from_iso(probe_at) - self.now) if probe_at and self.under_way else None

    def used(self, now: float, boot_id: str) -> Used:
        """What the run has used of its limits; after `all`, which gathers the agents' deaths."""
        config = self.queue.config if self.queue else None
        tasks = {name: task for name, task in self.tasks.items() if task}
        return Used(self.deaths, self.state.attempts, self.body["counts"]["working"],
                    {name: task.timeout_s for name, task in tasks.items() if task.timeout_s},
                    [name for name, task in tasks.items() if task.attributes.get("rework") == "none"],
                    config.timeout if config else None, now, boot_id)

    def failed(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Why a node failed, the end of its log, and where to look."""
        folder = self.look.files.attempt(node["node"], node["attempt"])
        path = folder / "result.json"
        result = self.reading.file(path, lambda: run_records.load(Result, path))
        return {"node": node["node"], "attempt": node["attempt"], "reason": node["reason"],
                "tail": result.tail if result else "", "folder": str(folder)}

    def landing(self, age: Callable[[str], float | None]) -> list[dict[str, Any]]:
        """The run's unfinished entries in the merge queue; `position` counts those of other runs too, from 1."""
        waiting = self.queue.unfinished() if self.queue else []
        pause = self.queue.pause if self.queue else None
        return [{"position": ahead + 1, "node": entry.node, "attempt": entry.attempt, "status": entry.status,
                 "age_s": age(entry.enqueued_at),
                 "doing": doing(Facts("impl_complete", entry=entry, ahead=ahead, pause=pause))}
                for ahead, entry in enumerate(waiting) if entry.run == self.look.run]

    def _task(self, name: str, node: NodeState) -> Task | None:
        path = self.look.files.attempt(name, node.attempt) / "task.json"
        return self.reading.file(path, lambda: run_records.load(Task, path))

    def _node(self, name: str) -> dict[str, Any]:
        node, task = self.state.nodes[name], self.tasks[name]
        agent, runner = self._layer("orchestrator", name), self._layer("runner", name)
        signs = self._signs(name, node, task) if agent.get("living") and agent.get("status") == "active" else None
        facts = self._facts(name, node, runner, agent, signs)
        never = task is not None and task.attributes.get("rework") == "none"
        return {"node": name, **vars(node), "place": place_of(self.state, name), "doing": doing(facts),
                "parked": self._parked(name), "asks": asks(facts),
                "phase": facts.phase, "agent_phase": agent.get("phase", ""),
                "signs": signs, "attempts": node.first + (0 if never else self.launch.max_rework),
                "deaths": facts.deaths,
                "lives": {"runner": runner.get("incarnation", 0), "agent": agent.get("incarnation", 0)}}

    def _signs(self, name: str, node: NodeState, task: Task | None) -> dict[str, Any] | None:
        key = Key("orchestrator", name, self.look.run)
        identity = self.reading.tried(lambda: self.observer.store.read(Identity, key))
        if identity is None or identity.worktree is None:
            return None
        signs = AgentActivity(self.look.files.attempt(name, node.attempt), Path(identity.worktree), task)
        return heartbeats.of_node(self.observer, identity, signs)

    def _facts(self, name: str, node: NodeState, runner: Mapping[str, Any], agent: Mapping[str, Any],
               signs: Mapping[str, Any] | None) -> Facts:
        over = node.status in ("validated", "failed", "pending")
        heard = self.reading.tried(lambda: self.look.runner(name, node.attempt, over=over))
        full = Key("orchestrator", name, self.look.run).full
        if heard and heard.facts.deaths:
            self.deaths[full] = heard.facts.deaths
        entry, ahead = place(self.queue, self.look.run, name, node.attempt)
        waits_for, blocked_by = self.waiting.get(name, ((), ()))
        rests = find_parked(self.state, name)
        unreached = node.status == "pending" and not node.step and self.under_way and self.look.walks
        return Facts(
            node.status, node.attempt, node.reason, node.commit, runner.get("phase", ""),
            held=self.state.held.get(name), parked=rests.why if rests else "",
            over="" if self.under_way else self.body["status"],
            led=any(layer["role"] == "guardian" and layer["living"] for layer in self.layers.values()),
            runner_living=bool(runner.get("living")), agent_living=bool(agent.get("living")),
            stopped=bool(signs and (signs["stopped"] or signs["processes_stopped"])),
            agent_status=agent.get("status", ""), agent_lives=agent.get("incarnation", 0),
            asked=self.state.questions.get(name, {}).get("text", ""), waits=self._waits(name, node),
            job=heard.job if heard and runner.get("living") else "",
            deaths=sum(one.counts for one in self.deaths.get(full, ())), waits_for=waits_for,
            unreached=unreached, blocked_by=blocked_by, busy=self.body["counts"]["working"], entry=entry, ahead=ahead,
            pause=self.queue.pause if self.queue else None)

    def _parked(self, name: str) -> dict[str, Any] | None:
        """By whom, why, and when a probe is due, of a node that is parked."""
        if name in self.state.held:
            return {"by": "person", "why": self.state.held[name], "probe_at": None}
        rests = find_parked(self.state, name)
        return {"by": "policy", "why": rests.why, "probe_at": rests.probe_at or None} if rests else None

    def _waits(self, name: str, node: NodeState) -> str:
        """What the node's session says it waits for; '' while it works, and of agents without a session."""
        path = self.look.files.attempt(name, node.attempt) / "claude" / "waiting"
        try:
            return path.read_text(errors="replace")
        except OSError:
            return ""

    def _layer(self, role: str, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.layers.get(Key(role, name, self.look.run).full, {})
        return found
