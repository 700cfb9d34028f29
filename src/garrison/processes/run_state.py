"""The state of a run, folded from the guardian's journal. No clock, disk or process here.

Journal kinds: `run` {status, reason} · `node` {node, status, attempt, reason, commit, step?, kind?} · `flow` {event,
place_id, node, outcome, took?} (see run_flow) · `gate` {place, node, …} (it waits for a word) · `manager` {place, node,
cycle, steer, steered} (it looked at its child) · `signal` {id, type, node, …, effect?, flow?, heard?, budget?,
question?, answer?, stuck?, unstuck?, hold?, unhold?, resume?, run?, unparked?} (applied: effect and id are one record,
so that a crash between them is impossible) · `cancel` {node} · `death` {full, …} · `spawn`, `park`, `heal` {full, …}
(see supervise.circuit) · `note` (told, not folded) · `snapshot`.

Who folds with the run's program (its guardian does) has the flow's state; who reads without it (status, answer) has
the nodes, the gates and the latest outcomes, which need no graph.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from garrison.pipeline.gates import OpenGate
from garrison.pipeline.node_status import check_transition
from garrison.processes.run_flow import RunFlow
from garrison.records.names import Key
from garrison.supervise import circuit
from garrison.supervise.circuit import CLOSED, Circuit
from garrison.supervise.restart import Death

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.pipeline.flow.program import Program
    from garrison.pipeline.plan import RunPlan
    from garrison.records.journal import Entry

RUN_TRANSITIONS: dict[str, frozenset[str]] = {
    "new": frozenset({"running"}),
    "running": frozenset({"stopped", "done", "failed"}),
    "stopped": frozenset({"running"}),
    "done": frozenset(),
    "failed": frozenset({"running"}),
}
"""Run status → what may follow; `--resume` lifts `stopped`, and a `failed` whose nodes are parked (`RunState.over`)."""


ENDED = frozenset({"stopped", "done", "failed"})
"""Statuses in which nothing goes on."""

RESUMED = "resumed"
"""Why a run goes on that had ended, as its state says it."""

HOLDABLE = frozenset({"pending", "active"})
"""Statuses of a node that a person can park; later the merge queue has it."""


@dataclass(frozen=True)
class NodeState:
    """Where a node is; `commit` is what landed for it.

    `step` names the step of the flow that the attempt is for (see run_flow.step_of), '' before its first; `first` is
    that step's first attempt, the ones after it are rework. `kind` says what failed, as its runner calls it.
    """

    status: str = "pending"
    attempt: int = 1
    reason: str = ""
    commit: str = ""
    since: str = ""
    step: str = ""
    first: int = 1
    kind: str = ""
    steer: str = ""
    """What a manager says to the agent of this step."""


@dataclass
class RunState:
    """One run as its journal tells it."""

    status: str = "new"
    reason: str = ""
    nodes: dict[str, NodeState] = field(default_factory=dict)
    applied: set[str] = field(default_factory=set)
    deaths: dict[str, list[Death]] = field(default_factory=dict)
    buried: dict[str, int] = field(default_factory=dict)
    """Full name → its latest life whose death was journaled, in whatever attempt."""
    incarnations: dict[str, int] = field(default_factory=dict)
    lifted: dict[str, int] = field(default_factory=dict)
    questions: dict[str, dict[str, str]] = field(default_factory=dict)
    """Node → its open question, {id, text}."""
    circuits: dict[str, Circuit] = field(default_factory=dict)
    """Full name → its circuit, of those who were parked by the guardian in this attempt."""
    stuck: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Node → {why, probe_at, life}, where its runner parked its agent."""
    unstuck: dict[str, int] = field(default_factory=dict)
    """Node → the last life of its agent of which was said that it is not parked any more."""
    held: dict[str, str] = field(default_factory=dict)
    """Node or `processor` → why a person parked it."""
    began: str = ""
    """When the run began, UTC."""
    gates: dict[str, OpenGate] = field(default_factory=dict)
    """Place of the flow → the gate open there."""
    heard: dict[str, list[Any]] = field(default_factory=dict)
    """Name of a pipeline's signal → what came with it, of those that no gate has taken yet."""
    cancelled: set[str] = field(default_factory=set)
    """Nodes whose runner was told that their work is not needed any more."""
    budget: int | None = None
    """Steps that a person allows the flow when the run goes on."""
    managers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Place of the flow → the latest cycle of the manager there (see flow_policy)."""
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Node → its latest outcome in the flow: status, and label, reason, visits where there are any."""
    ends: int = 0
    """How often the run has ended: once more each time it was resumed."""
    flow: RunFlow | None = field(default=None, compare=False)

    @property
    def over(self) -> bool:
        """Whether the run cannot be resumed; one that failed because its nodes are parked can."""
        unfinished = any(node.status in ("active", "impl_complete") for node in self.nodes.values())
        return self.status == "done" or (self.status == "failed" and not unfinished)

    def circuit(self, full: str) -> Circuit:
        """The circuit of a name."""
        return self.circuits.get(full, CLOSED)

    @property
    def statuses(self) -> dict[str, str]:
        """Node → status."""
        return {name: node.status for name, node in self.nodes.items()}

    @property
    def attempts(self) -> dict[str, int]:
        """Node → current attempt."""
        return {name: node.attempt for name, node in self.nodes.items()}

    def apply(self, entry: Entry) -> RunState:
        """Fold one journal record in; returns self."""
        handler = getattr(self, f"_on_{entry.kind}", None)
        if handler is not None:
            handler(entry.data, entry.at)
        return self

    def _on_run(self, data: dict[str, Any], at: str) -> None:
        self.ends += data["status"] in ENDED and self.status not in ENDED
        self.status, self.reason = data["status"], data.get("reason", "")
        if self.status == "running":
            self.began = self.began or at

    def _on_flow(self, data: dict[str, Any], _at: str) -> None:
        if data.get("place_id"):
            self.gates.pop(data["place_id"], None)
            self.managers.pop(data["place_id"], None)
            self.outcomes[data["node"]] = outcome_summary(data, self.outcomes.get(data["node"]))
        if data.get("took"):
            self.heard[data["took"]] = self.heard.get(data["took"], [])[1:]
        if self.flow is not None:
            self.flow.follow(data)

    def _on_gate(self, data: dict[str, Any], at: str) -> None:
        self.gates.pop(data["place"], None)
        if not data.get("closed"):
            self.gates[data["place"]] = OpenGate.from_record(data, at)

    def _on_manager(self, data: dict[str, Any], at: str) -> None:
        _kept(self.managers, data, at)

    def _on_cancel(self, data: dict[str, Any], _at: str) -> None:
        self.cancelled.add(data["node"])

    def _on_node(self, data: dict[str, Any], at: str) -> None:
        old = self.nodes.get(data["node"])
        if old is not None and old.status != data["status"]:
            check_transition(old.status, data["status"])
        if old is not None and data.get("attempt", 1) > old.attempt:  # each attempt has its deaths for itself
            self.deaths = {full: deaths for full, deaths in self.deaths.items()
                           if not full.startswith(f"runner-{data['node']}@")}
            self.circuits = {full: known for full, known in self.circuits.items()
                             if not full.startswith(f"runner-{data['node']}@")}
        if data["status"] != "active" or (old is not None and data.get("attempt", 1) > old.attempt):
            self.questions.pop(data["node"], None)
            self.stuck.pop(data["node"], None)
        if data["status"] != "active":
            self.cancelled.discard(data["node"])
        if data["status"] not in HOLDABLE:
            self.held.pop(data["node"], None)
        if (steering := self.managers.get(data.get("steered_by", ""))) is not None:
            self.managers[data["steered_by"]] = {**steering, "steer": ""}
        asked, before = data.get("step"), old or NodeState()
        new = asked is not None and asked != before.step
        self.nodes[data["node"]] = NodeState(
            data["status"], data.get("attempt", 1), data.get("reason", ""), data.get("commit", ""), at,
            asked if asked is not None else before.step, data.get("attempt", 1) if new else before.first,
            data.get("kind", ""), data.get("steer", "" if new else before.steer))

    def _on_signal(self, data: dict[str, Any], at: str) -> None:
        self.applied.add(data["id"])
        if data.get("effect"):
            self._on_node(data["effect"], at)
        self._hear(data, at)
        if data.get("question"):
            self.questions[data["node"]] = data["question"]
        if data.get("answer") and self.questions.get(data["node"], {}).get("id") == data["answer"]:
            del self.questions[data["node"]]
        self._hear_of_parking(data)
        if "resume" in data:
            self._unpark(data.get("unparked", []), data["resume"])
        if "run" in data:
            self.status, self.reason = data["run"], RESUMED

    def _hear(self, data: dict[str, Any], at: str) -> None:
        """What a signal says to the flow."""
        if data.get("flow"):
            self._on_flow(data["flow"], at)
            if data["flow"]["event"] == "resumed":  # in this record: who dies after it leaves a run that goes on
                self.status, self.reason = "running", ""
        if data.get("heard"):
            name = data["heard"]["name"]
            self.heard[name] = [*self.heard.get(name, []), data["heard"].get("value", True)]
        if data.get("budget"):
            self.budget = int(data["budget"])

    def _hear_of_parking(self, data: dict[str, Any]) -> None:
        """What a signal says of who is parked."""
        if "stuck" in data:
            self.stuck[data["node"]] = data["stuck"]
        if "unstuck" in data:
            life = self.unstuck[data["node"]] = max(data["unstuck"], self.unstuck.get(data["node"], 0))
            if data["node"] in self.stuck and self.stuck[data["node"]]["life"] <= life:
                del self.stuck[data["node"]]
        if "hold" in data:
            self.held[data["hold"]] = data.get("text", "")
        if "unhold" in data:
            self.held.pop(data["unhold"], None)
            self._unpark([data["unhold"]], data.get("lives", {}))

    def _unpark(self, names: list[str], lives: dict[str, int]) -> None:
        """Empty the windows of these nodes' runners (or of the processor): a person lets them go on."""
        self.lifted.update(lives)
        for name in names:
            self.stuck.pop(name, None)
        for full in self.circuits:
            key = Key.parse(full)
            if (key.name if key.role == "runner" else key.role) in names:
                self.circuits[full] = circuit.reset_circuit(self.circuits[full], self.incarnations.get(full, 0))

    def _on_spawn(self, data: dict[str, Any], _at: str) -> None:
        self.incarnations[data["full"]] = max(self.incarnations.get(data["full"], 0), data["incarnation"])
        self.turn("spawn", data)

    def _on_park(self, data: dict[str, Any], _at: str) -> None:
        self.turn("park", data)

    def _on_heal(self, data: dict[str, Any], _at: str) -> None:
        self.turn("heal", data)

    def turn(self, kind: str, data: dict[str, Any]) -> None:
        """Fold a record about a name's parking (see supervise.circuit) in."""
        known = self.circuit(data["full"])
        if (new := circuit.apply_event(known, kind, data)) != known:
            self.circuits[data["full"]] = new

    def _on_death(self, data: dict[str, Any], _at: str) -> None:
        self.add_death(data)

    def add_death(self, data: dict[str, Any]) -> None:
        """Remember a death, once a life."""
        known = self.deaths.setdefault(data["full"], [])
        self.buried[data["full"]] = max(self.buried.get(data["full"], 0), data["incarnation"])
        if all(death.incarnation != data["incarnation"] for death in known):
            known.append(Death.of(data))

    def _on_snapshot(self, data: dict[str, Any], _at: str) -> None:
        restored = from_snapshot(data)
        restored.flow = self.flow
        if self.flow is not None and data.get("flow"):
            self.flow.restore(data["flow"])
        self.__dict__.update(restored.__dict__)


def to_snapshot(state: RunState) -> dict[str, Any]:
    """The state as JSON's shapes, for a journal snapshot."""
    return {"status": state.status, "reason": state.reason, "applied": sorted(state.applied),
            "nodes": {name: asdict(node) for name, node in state.nodes.items()},
            "deaths": {full: [asdict(death) for death in deaths] for full, deaths in state.deaths.items()},
            "buried": state.buried, "incarnations": state.incarnations, "lifted": state.lifted,
            "questions": state.questions, "stuck": state.stuck, "unstuck": state.unstuck,
            "circuits": {full: asdict(one) for full, one in state.circuits.items()},
            "held": state.held, "began": state.began,
            "gates": {place: gate.to_record() for place, gate in state.gates.items()},
            "outcomes": state.outcomes, "managers": state.managers, "heard": state.heard,
            "cancelled": sorted(state.cancelled), "budget": state.budget, "ends": state.ends,
            "flow": state.flow.to_data() if state.flow is not None else {}}


def from_snapshot(data: dict[str, Any]) -> RunState:
    """The inverse of `to_snapshot`."""
    return RunState(data["status"], data["reason"],
                    {name: NodeState(**node) for name, node in data["nodes"].items()}, set(data["applied"]),
                    {full: [Death(**death) for death in deaths] for full, deaths in data["deaths"].items()},
                    dict(data.get("buried", {})), dict(data["incarnations"]), dict(data["lifted"]),
                    dict(data.get("questions", {})),
                    {full: Circuit(**one) for full, one in data.get("circuits", {}).items()},
                    dict(data.get("stuck", {})), dict(data.get("unstuck", {})), dict(data.get("held", {})),
                    data.get("began", ""),
                    {place: OpenGate.from_record(gate) for place, gate in data.get("gates", {}).items()},
                    dict(data.get("heard", {})), set(data.get("cancelled", ())),
                    data.get("budget"), dict(data.get("managers", {})), dict(data.get("outcomes", {})),
                    data.get("ends", 0))


def _kept(table: dict[str, dict[str, Any]], data: dict[str, Any], at: str) -> None:
    """Put a record about a place into its table, or take it out when it is closed."""
    table.pop(data["place"], None)
    if not data.get("closed"):
        table[data["place"]] = {**data, "at": at}


def outcome_summary(data: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
    """What of a finished step is kept for people: status, label, reason, and how often the node came to an end."""
    outcome = data["outcome"]
    told = {"status": outcome["status"], "label": outcome.get("preferred_label", ""),
            "reason": outcome.get("failure_reason", "").partition("\n")[0], "place": data["place_id"]}
    ends = 1 + int(before["ends"]) if before else 1
    return {**{name: value for name, value in told.items() if value}, "ends": ends}


def replay_run(entries: list[Entry], program: Program | None = None, run: str = "",
         children: Mapping[str, RunPlan] | None = None) -> RunState:
    """The state after `entries`; with the run's program (its id, and the pipelines within it) the flow's, too."""
    state = RunState(flow=None if program is None else RunFlow(program, run, children))
    for entry in entries:
        state.apply(entry)
    return state
