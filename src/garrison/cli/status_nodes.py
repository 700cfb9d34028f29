"""The nodes of one run as `garrison status` tells of them, gathered from hooks, journals and the merge queue.

The rule of this room: one object a look; what it says of a node it takes from `Facts` through `doing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from garrison.cli.doing import PLACES, Facts, asks, doing
from garrison.cli.limits import Used
from garrison.cli.reading import Reading
from garrison.cli.run_look import RunLook, place
from garrison.layers.run_state import NodeState, RunState
from garrison.merge.state import QueueState
from garrison.records import run as run_records
from garrison.records.names import Key
from garrison.records.run import Launch, Result, Task
from garrison.supervise.restart import Death

UNFINISHED = ("new", "running")
"""Run statuses in which somebody should be at work."""


class Nodes:
    """All nodes of a run at one moment. `body` is the head that was gathered of the run."""

    def __init__(self, reading: Reading, look: RunLook, body: Mapping[str, Any], launch: Launch,
                 state: RunState) -> None:
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
        return [{**self._node(name), "since_s": age(node.since)} for name, node in self.state.nodes.items()]

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
        facts = self._facts(name, node, runner, agent)
        never = task is not None and task.attributes.get("rework") == "none"
        return {"node": name, **vars(node), "place": PLACES[node.status], "doing": doing(facts), "asks": asks(facts),
                "phase": facts.phase, "agent_phase": agent.get("phase", ""),
                "attempts": 1 if never else 1 + self.launch.max_rework, "deaths": facts.deaths,
                "lives": {"runner": runner.get("incarnation", 0), "agent": agent.get("incarnation", 0)}}

    def _facts(self, name: str, node: NodeState, runner: Mapping[str, Any], agent: Mapping[str, Any]) -> Facts:
        over = node.status in ("validated", "failed", "pending")
        heard = self.reading.tried(lambda: self.look.runner(name, node.attempt, over=over))
        full = Key("orchestrator", name, self.look.run).full
        if heard and heard.facts.deaths:
            self.deaths[full] = heard.facts.deaths
        entry, ahead = place(self.queue, self.look.run, name, node.attempt)
        waits_for, blocked_by = self.waiting.get(name, ((), ()))
        return Facts(
            node.status, node.attempt, node.reason, node.commit, runner.get("phase", ""),
            over="" if self.under_way else self.body["status"],
            led=any(layer["role"] == "guardian" and layer["living"] for layer in self.layers.values()),
            runner_living=bool(runner.get("living")), agent_living=bool(agent.get("living")),
            agent_status=agent.get("status", ""), agent_lives=agent.get("incarnation", 0),
            asked=self.state.questions.get(name, {}).get("text", ""), waits=self._waits(name, node),
            job=heard.job if heard and runner.get("living") else "", deaths=len(self.deaths.get(full, ())),
            waits_for=waits_for, blocked_by=blocked_by, busy=self.body["counts"]["working"], entry=entry, ahead=ahead,
            pause=self.queue.pause if self.queue else None)

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
