"""The nodes of one run as views show them, gathered from the run's model, hooks, task records and processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.errors import GarrisonError
from garrison.pipeline.plan import blocked_by
from garrison.processes.agent_activity import AgentActivity
from garrison.processes.guardian.parking import find_parked
from garrison.processes.run_state import NodeState
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.run import Launch, Result, RunFiles, Task
from garrison.system.clock import from_iso
from garrison.views.layer_view import LayerView, SignsOfLife, signs_of_life
from garrison.views.limits import Used
from garrison.views.node_state import NodeFacts, asks, doing, one_word, place_of

if TYPE_CHECKING:
    from garrison.pipeline.plan import RunPlan
    from garrison.supervise.observer import Observer
    from garrison.views.record_reader import RecordReader
    from garrison.views.run_model import RunModel

UNFINISHED = ("new", "running")
"""Statuses of a run that should have processes at work."""


@dataclass(frozen=True)
class Parking:
    """Why a node is parked, and when a probe will try it again."""

    by: str
    """`person` or `policy`."""
    why: str
    probe_at: str | None = None
    probe_in_s: float | None = None
    """None where no probe will come."""


@dataclass(frozen=True)
class NodeView:
    """One node at one moment."""

    node: str
    journaled: NodeState
    place: str
    doing: str
    asks: bool
    blocked: bool
    """Whether failed nodes keep it from ever starting."""
    parking: Parking | None
    phase: str
    """Of its runner's hook."""
    agent_phase: str
    signs: SignsOfLife | None
    """Of its agent, while that works."""
    attempts: int
    """How many attempts it may have."""
    deaths: int
    """Of its agent, in this attempt."""
    runner: LayerView | None
    agent: LayerView | None
    since_s: float | None

    @property
    def incarnations(self) -> dict[str, int]:
        """Incarnations of its runner and of its agent so far."""
        return {"runner": self.runner.incarnation if self.runner else 0,
                "agent": self.agent.incarnation if self.agent else 0}

    @property
    def state(self) -> str:
        """Its state in one word."""
        return one_word(self.place, self.runner, self.agent, asks=self.asks)

    def to_json(self) -> dict[str, Any]:
        """Return it as `status --json` prints it."""
        return {"node": self.node, **vars(self.journaled), "place": self.place, "doing": self.doing,
                "parked": asdict(self.parking) if self.parking else None, "asks": self.asks, "phase": self.phase,
                "agent_phase": self.agent_phase, "signs": self.signs.to_json() if self.signs else None,
                "attempts": self.attempts, "deaths": self.deaths, "lives": self.incarnations, "since_s": self.since_s}


@dataclass(frozen=True)
class FailedNode:
    """Why a node failed, the end of its log, and its attempt's folder."""

    node: str
    attempt: int
    reason: str
    tail: str
    folder: str

    def to_json(self) -> dict[str, Any]:
        """Return it as `status --json` prints it."""
        return asdict(self)


@dataclass(frozen=True)
class QueueEntryView:
    """An unfinished merge entry of the run; `position` counts those of other runs too, from 1."""

    position: int
    node: str
    attempt: int
    status: str
    age_s: float | None
    doing: str

    def to_json(self) -> dict[str, Any]:
        """Return it as `status --json` prints it."""
        return asdict(self)


class NodeReader:
    """Reads the nodes of one run at one moment. `status` and `layers` are the run's, `busy` its nodes at work, `plan`
    parses its graph (slow, so only where it is needed)."""

    def __init__(self, records: RecordReader, observer: Observer, model: RunModel, launch: Launch, status: str,
                 layers: Sequence[LayerView], busy: int, plan: Callable[[], RunPlan]) -> None:
        self.records, self.observer, self.model, self.launch = records, observer, model, launch
        self.status, self.busy, self.plan, self.state = status, busy, plan, model.state
        self.files = RunFiles(observer.store.home, model.run)
        self.under_way = status in UNFINISHED
        self.guardian_alive = any(layer.role == "guardian" and layer.living for layer in layers)
        self._layers = {(layer.role, layer.name): layer for layer in layers}
        self._tasks: dict[str, Task | None] = {}

    def nodes(self, age: Callable[[str], float | None]) -> list[NodeView]:
        """Return all nodes; `age` gives the seconds since a time."""
        waiting = self._waiting()
        return [self._node(name, age, *waiting.get(name, ((), ()))) for name in self.state.nodes]

    def open_questions(self) -> list[str]:
        """Return the nodes whose agent waits for a person's answer."""
        return [name for name in self.state.questions if name in self.state.nodes and asks(self._facts(name))]

    def failed(self, node: NodeView) -> FailedNode:
        """Return why a node failed."""
        folder = self.files.attempt(node.node, node.journaled.attempt)
        path = folder / "result.json"
        result = self.records.load(path, lambda: run_records.load(Result, path))
        return FailedNode(node.node, node.journaled.attempt, node.journaled.reason, result.tail if result else "",
                          str(folder))

    def landing(self, age: Callable[[str], float | None]) -> list[QueueEntryView]:
        """Return the run's unfinished merge entries."""
        queue = self.model.queue
        return [QueueEntryView(ahead + 1, entry.node, entry.attempt, entry.status, age(entry.enqueued_at), doing(
                    NodeFacts("impl_complete", entry=entry, entries_ahead=ahead, pause=queue.pause)))
                for ahead, entry in enumerate(queue.unfinished()) if entry.run == self.model.run] if queue else []

    def used(self) -> Used:
        """Return what the run has used of its limits."""
        queue = self.model.queue
        tasks = {name: task for name, node in self.state.nodes.items() if (task := self._task(name, node))}
        return Used(self.model.deaths(), self.state.attempts, self.busy,
                    {name: task.timeout_s for name, task in tasks.items() if task.timeout_s},
                    [name for name, task in tasks.items() if task.attributes.get("rework") == "none"],
                    queue.config.timeout if queue and queue.config else None, self.observer.clock.monotonic(),
                    self.observer.machine.boot_id)

    def _node(self, name: str, age: Callable[[str], float | None], waits_for: list[str] | tuple[()],
              blocked: tuple[str, ...]) -> NodeView:
        node = self.state.nodes[name]
        agent, runner = self._layers.get(("orchestrator", name)), self._layers.get(("runner", name))
        task = self._task(name, node)
        signs = self._signs(name, node, task) if agent and agent.living and agent.status == "active" else None
        facts = self._facts(name, waits_for, blocked, suspended=signs is not None and signs.suspended)
        no_rework = task is not None and task.attributes.get("rework") == "none"
        return NodeView(name, node, place_of(self.state, name), doing(facts), asks(facts), bool(blocked),
                        self._parking(name), facts.phase, agent.phase if agent else "", signs,
                        node.first + (0 if no_rework else self.launch.max_rework), facts.deaths, runner, agent,
                        age(node.since))

    def _facts(self, name: str, waits_for: list[str] | tuple[()] = (), blocked: tuple[str, ...] = (), *,
               suspended: bool = False) -> NodeFacts:
        node = self.state.nodes[name]
        agent, runner = self._layers.get(("orchestrator", name)), self._layers.get(("runner", name))
        entry, ahead = self.model.place_in_queue(name, node.attempt)
        parking, queue = find_parked(self.state, name), self.model.queue
        runner_alive = runner is not None and runner.living
        question = self.state.questions.get(name)
        return NodeFacts(
            node.status, node.attempt, node.reason, node.commit, runner.phase if runner else "",
            run_over="" if self.under_way else self.status,
            held=self.state.held.get(name), parked=parking.why if parking else "",
            guardian_alive=self.guardian_alive, runner_alive=runner_alive,
            agent_alive=agent is not None and agent.living, agent_suspended=suspended,
            agent_status=agent.status if agent else "", agent_incarnation=agent.incarnation if agent else 0,
            question=question.text if question else "", session_waits=self._session_waits(name, node),
            job=self.model.job(name, node.attempt) if runner_alive else "",
            deaths=sum(death.counts for death in self.model.agent_deaths(name, node.attempt)),
            waits_for=waits_for, unreached=self._unreached(node), blocked_by=blocked, busy=self.busy,
            entry=entry, entries_ahead=ahead, pause=queue.pause if queue else None)

    def _waiting(self) -> dict[str, tuple[list[str], tuple[str, ...]]]:
        """Return, for each node that waits, the ones it waits for, and the failed ones that block it."""
        statuses = self.state.statuses
        if not self.under_way or "pending" not in statuses.values():
            return {}
        plan = self.records.attempt(self.plan)
        if plan is None or plan.flow != "dag":
            return {}
        blocked = blocked_by(plan, statuses)
        return {name: ([before for before in plan.predecessors.get(name, ()) if before in plan.tasks
                        and statuses.get(before) != "validated"], blocked.get(name, ()))
                for name, status in statuses.items() if status == "pending"}

    def _unreached(self, node: NodeState) -> bool:
        """Return whether the pipeline follows one edge after the other and has not come to a node."""
        if node.status != "pending" or node.step or not self.under_way:
            return False
        try:
            return self.plan().flow == "walk"
        except (GarrisonError, OSError):
            return False

    def _parking(self, name: str) -> Parking | None:
        if name in self.state.held:
            return Parking("person", self.state.held[name])
        found = find_parked(self.state, name)
        if found is None:
            return None
        left = max(0.0, from_iso(found.probe_at) - self.observer.clock.time()) if found.probe_at else None
        return Parking("policy", found.why, found.probe_at or None, left if self.under_way else None)

    def _task(self, name: str, node: NodeState) -> Task | None:
        if name not in self._tasks:
            path = self.files.attempt(name, node.attempt) / "task.json"
            self._tasks[name] = self.records.load(path, lambda: run_records.load(Task, path))
        return self._tasks[name]

    def _signs(self, name: str, node: NodeState, task: Task | None) -> SignsOfLife | None:
        key = Key("orchestrator", name, self.model.run)
        identity = self.records.attempt(lambda: self.observer.store.read(Identity, key))
        if identity is None or identity.worktree is None:
            return None
        signs = AgentActivity(self.files.attempt(name, node.attempt), Path(identity.worktree), task)
        return signs_of_life(self.observer, identity, signs)

    def _session_waits(self, name: str, node: NodeState) -> str:
        """Return what the node's session says it waits for; '' while it works, and of agents without a session."""
        if node.status != "active":
            return ""
        path = self.files.attempt(name, node.attempt) / "claude" / "waiting"
        try:
            return path.read_text(errors="replace")
        except OSError:
            return ""
