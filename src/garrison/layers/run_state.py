"""The state of a run, folded from the guardian's journal. No clock, disk or process here.

Journal kinds: `run` {status, reason} · `node` {node, status, attempt, reason, commit} · `signal` {id, type, node, …,
effect?, question?, answer?} (applied: effect and id are one record, so that a crash between them is impossible) ·
`death` {full, …} · `lift` {lives} · `spawn`, `park`, `note` (told, not folded) · `snapshot`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from garrison.pipeline.routing import step
from garrison.supervise.restart import Death

if TYPE_CHECKING:
    from garrison.records.journal import Entry

RUN_STATUS: dict[str, frozenset[str]] = {
    "new": frozenset({"running"}),
    "running": frozenset({"stopped", "done", "failed"}),
    "stopped": frozenset({"running"}),
    "done": frozenset(),
    "failed": frozenset(),
}
"""Run status → what may follow; `stopped` is lifted by `--resume`."""


@dataclass(frozen=True)
class NodeState:
    """Where a node is; `commit` is what landed for it."""

    status: str = "pending"
    attempt: int = 1
    reason: str = ""
    commit: str = ""
    since: str = ""


@dataclass
class RunState:
    """One run as its journal tells it."""

    status: str = "new"
    reason: str = ""
    nodes: dict[str, NodeState] = field(default_factory=dict)
    applied: set[str] = field(default_factory=set)
    deaths: dict[str, list[Death]] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=dict)
    lifted: dict[str, int] = field(default_factory=dict)
    questions: dict[str, dict[str, str]] = field(default_factory=dict)
    """Node → its open question, {id, text}."""

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

    def _on_run(self, data: dict[str, Any], _at: str) -> None:
        self.status, self.reason = data["status"], data.get("reason", "")

    def _on_node(self, data: dict[str, Any], at: str) -> None:
        old = self.nodes.get(data["node"])
        if old is not None and old.status != data["status"]:
            step(old.status, data["status"])
        if old is not None and data.get("attempt", 1) > old.attempt:  # each attempt has its deaths for itself
            self.deaths = {full: deaths for full, deaths in self.deaths.items()
                           if not full.startswith(f"runner-{data['node']}@")}
        if data["status"] != "active" or (old is not None and data.get("attempt", 1) > old.attempt):
            self.questions.pop(data["node"], None)
        self.nodes[data["node"]] = NodeState(data["status"], data.get("attempt", 1), data.get("reason", ""),
                                             data.get("commit", ""), at)

    def _on_signal(self, data: dict[str, Any], at: str) -> None:
        self.applied.add(data["id"])
        if data.get("effect"):
            self._on_node(data["effect"], at)
        if data.get("question"):
            self.questions[data["node"]] = data["question"]
        if data.get("answer") and self.questions.get(data["node"], {}).get("id") == data["answer"]:
            del self.questions[data["node"]]

    def _on_spawn(self, data: dict[str, Any], _at: str) -> None:
        self.incarnations[data["full"]] = max(self.incarnations.get(data["full"], 0), data["incarnation"])

    def _on_death(self, data: dict[str, Any], _at: str) -> None:
        self.add_death(data)

    def add_death(self, data: dict[str, Any]) -> None:
        """Remember a death, once a life."""
        known = self.deaths.setdefault(data["full"], [])
        if all(death.incarnation != data["incarnation"] for death in known):
            known.append(Death(data["incarnation"], data["monotonic"], data["boot_id"], data.get("why", "")))

    def _on_lift(self, data: dict[str, Any], _at: str) -> None:
        self.lifted.update(data["lives"])

    def _on_snapshot(self, data: dict[str, Any], _at: str) -> None:
        restored = from_snapshot(data)
        self.__dict__.update(restored.__dict__)


def to_snapshot(state: RunState) -> dict[str, Any]:
    """The state as JSON's shapes, for a journal snapshot."""
    return {"status": state.status, "reason": state.reason, "applied": sorted(state.applied),
            "nodes": {name: asdict(node) for name, node in state.nodes.items()},
            "deaths": {full: [asdict(death) for death in deaths] for full, deaths in state.deaths.items()},
            "incarnations": state.incarnations, "lifted": state.lifted, "questions": state.questions}


def from_snapshot(data: dict[str, Any]) -> RunState:
    """The inverse of `to_snapshot`."""
    return RunState(data["status"], data["reason"],
                    {name: NodeState(**node) for name, node in data["nodes"].items()}, set(data["applied"]),
                    {full: [Death(**death) for death in deaths] for full, deaths in data["deaths"].items()},
                    dict(data["incarnations"]), dict(data["lifted"]), dict(data.get("questions", {})))


def fold(entries: list[Entry]) -> RunState:
    """The state after `entries`."""
    state = RunState()
    for entry in entries:
        state.apply(entry)
    return state
