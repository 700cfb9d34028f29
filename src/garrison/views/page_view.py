"""Run as the web page shows it: a snapshot, and for each journal record the patch that it makes.

A patch holds whole values of the parts that changed, so that a snapshot with the patches of all later records laid over
it is the snapshot of all records. The records of one journal come in order; those of several may come in any, and the
snapshot is the same. What no journal holds (processes, resource usage, hook phases, costs) is an `observation`, laid
over the snapshot; only what changed between two observations is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from garrison.merge.entry import MergeEntry
from garrison.merge.state import QueueState
from garrison.pipeline.gates import OpenGate
from garrison.pipeline.questions import FREE_TEXT
from garrison.processes.run_state import RunState
from garrison.records.names import Key
from garrison.records.run import RunFiles
from garrison.system import resource_usage
from garrison.views.event_log import GUARDIAN, QUEUE, RUNNER, Record
from garrison.views.node_view import place_of
from garrison.views.run_model import event_of
from garrison.views.run_view import Gatherer
from garrison.views.usage import Costs, Spent, Trees, by_stem, meter_of, narrowest, together

TIMELINE, SIGNALS = 300, 200
"""The latest entries of either list that a snapshot holds."""
DRAWN_STATUS: Mapping[str, str] = {"success": "validated", "partial_success": "validated", "fail": "failed",
                                   "retry": "active", "skipped": "skipped"}
"""Outcome of a node that nobody works on (a decision, a gate) → its status on the page."""
TEXT = 600
"""Characters of a text within an event; the rest is in the node's detail."""


@dataclass(frozen=True)
class Drawn:
    """What the graph says of a node."""

    label: str = ""
    shape: str = "box"
    agent: str = ""


@dataclass
class Projection:
    """One run, folded record by record."""

    run: str
    drawn: Mapping[str, Drawn] = field(default_factory=dict)
    state: RunState = field(default_factory=RunState)
    queues: dict[str, QueueState] = field(default_factory=dict)
    queue: str = ""
    """The folder of the merge queue that has entries of this run; '' before the first."""
    timeline: list[dict[str, Any]] = field(default_factory=list)
    signals: list[dict[str, Any]] = field(default_factory=list)
    _ends: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    """Node → the lives (full name, incarnation) of its runner and its agent that died."""
    _told: set[tuple[str, str, int]] = field(default_factory=set)
    _shown: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._shown = self._parts()

    # ---- reading

    def snapshot(self) -> dict[str, Any]:
        """Everything that journals and graph tell, the lists by time."""
        return {**self._parts(), "timeline": latest(self.timeline, TIMELINE), "signals": latest(self.signals, SIGNALS)}

    @property
    def order(self) -> list[str]:
        """The nodes in the order in which the guardian's journal named them."""
        return list(self.state.nodes)

    def _parts(self) -> dict[str, Any]:
        return {"status": self.state.status, "reason": self.state.reason, "gates": self._gates(),
                "queue": self._queue(), "nodes": {name: self._node(name) for name in self._names()}}

    def _names(self) -> list[str]:
        return list(dict.fromkeys([*self.drawn, *self.state.nodes, *self._ends]))

    # ---- folding

    def apply(self, record: Record, text: str = "") -> dict[str, Any]:
        """Fold a record in; what it changed ({} if nothing that is shown). `text`: it in words, for the lists."""
        self._fold(record)
        added = {f"{name}_add": [entry] for name, entry in self._lists(record, text)}
        return {**self._changed(record), **added}

    def _fold(self, record: Record) -> None:
        if record.journal == GUARDIAN:
            self.state.apply(record.entry)
        elif record.journal == QUEUE:
            state = self.queues.setdefault(record.queue, QueueState())
            state.apply(record.entry)
            state.outcomes.clear()  # they are for guardians
            if record.entry.kind == "enq" and record.entry.data.get("run") == self.run:
                self.queue = record.queue

    def _changed(self, record: Record) -> dict[str, Any]:
        """The parts that are others now, of those that such a record can change."""
        found: dict[str, Any] = {}
        if record.journal == QUEUE:
            self._differs(found, "queue", self._queue() if record.queue == self.queue else self._shown["queue"])
            return found
        if record.journal == GUARDIAN:
            for part, value in (("status", self.state.status), ("reason", self.state.reason), ("gates", self._gates())):
                self._differs(found, part, value)
        known = self._shown["nodes"]
        nodes = {name: self._node(name) for name in self._touched(record)}
        changed = {name: node for name, node in nodes.items() if known.get(name) != node}
        if changed:
            known.update(changed)
            found["nodes"] = changed
        return found

    def _differs(self, found: dict[str, Any], part: str, value: Any) -> None:
        if self._shown[part] != value:
            self._shown[part] = found[part] = value

    def _touched(self, record: Record) -> list[str]:
        """The nodes that a record may have changed."""
        data = record.entry.data
        if record.entry.kind == "snapshot" or "resume" in data:
            return self._names()
        named = [str(data.get(key, "")) for key in ("node", "hold", "unhold")]
        if "full" in data:
            key = Key.parse(data["full"])
            named += self._names() if key.role == "processor" else [key.name]
        if "processor" in named:
            named = self._names()
        return [name for name in dict.fromkeys(named) if name in self.drawn or name in self.state.nodes
                or name in self._ends]

    # ---- lists

    def _lists(self, record: Record, text: str) -> list[tuple[str, dict[str, Any]]]:
        """What a record adds to the lists: (list, entry)."""
        found = []
        told = self._life_told(record)
        kind = told or self._kind(record)
        where = {"id": f"{record.journal}:{record.entry.seq}", "at": record.entry.at}
        data = record.entry.data
        if kind:
            said = text or str(data.get("why") or data.get("text") or "")
            entry = {**where, "kind": kind, "node": self.node_of(record), "text": said[:TEXT]}
            found.append(("timeline", entry))
        if record.entry.kind == "signal" and record.journal != QUEUE:
            signal = {**where, "type": data.get("type", ""), "source": data.get("from", ""),
                      "target": record.entry.token.partition("#")[0], "node": self.node_of(record),
                      "text": text[:TEXT]}
            found.append(("signals", signal))
        for name, entry in found:
            kept = self.timeline if name == "timeline" else self.signals
            kept.append(entry)
            limit = TIMELINE if name == "timeline" else SIGNALS
            if len(kept) > 2 * limit:
                kept[:] = latest(kept, limit)
        return found

    def _life_told(self, record: Record) -> str:
        """`death`, `respawn` or `parked`, once of each life."""
        told = event_of(record.entry) if record.journal != QUEUE else None
        if told is None or (told["kind"], told["agent"], told["life"]) in self._told:
            return ""
        if told["kind"] == "respawned" and _FIRST.fullmatch(str(told["why"])):
            return ""
        self._told.add((told["kind"], told["agent"], told["life"]))
        key = Key.parse(told["agent"])
        if told["kind"] == "died" and key.role in _OF_A_NODE:
            self._ends.setdefault(key.name, set()).add((told["agent"], told["life"]))
        return _LIVES[told["kind"]]

    def _kind(self, record: Record) -> str:
        """What else belongs into the timeline; '' for most."""
        if record.journal == GUARDIAN:
            teller = _GUARDIAN.get(record.entry.kind)
        elif record.journal == QUEUE:
            mine = record.entry.kind in _OF_ALL or self._own_entry(record) is not None
            teller = _QUEUE.get(record.entry.kind) if mine and record.queue == self.queue else None
        else:
            teller = _LAYER.get(record.entry.kind)
        return teller(record.entry.data) if teller else ""

    def _own_entry(self, record: Record) -> MergeEntry | None:
        state = self.queues.get(record.queue)
        found = state.entries.get(str(record.entry.data.get("entry", ""))) if state else None
        return found if found and found.run == self.run else None

    def node_of(self, record: Record) -> str:
        """The node that a record concerns, '' for none."""
        data = record.entry.data
        if record.journal == QUEUE:
            own = self._own_entry(record)
            return own.node if own else str(data.get("node", ""))
        if data.get("node"):
            return str(data["node"])
        key = Key.parse(data["full"]) if "full" in data else None
        if key is not None:
            return key.name if key.role in _OF_A_NODE else ""
        return record.journal.removeprefix(RUNNER) if record.journal.startswith(RUNNER) else ""

    # ---- parts

    def _node(self, name: str) -> dict[str, Any]:
        drawn, known = self.drawn.get(name, Drawn(name)), self.state.nodes.get(name)
        common = {"node": name, "label": drawn.label or name, "shape": drawn.shape, "agent": drawn.agent,
                  "deaths": len(self._ends.get(name, ()))}
        if known is None:
            outcome = self.state.outcomes.get(name)
            waits = any(gate.node == name for gate in self.state.gates.values())
            status = "waiting" if waits else DRAWN_STATUS.get(outcome["status"], "") if outcome else ""
            return {**common, "status": status, "place": status, "attempt": 0, "since": "", "commit": "", "asks": "",
                    "reason": outcome.get("reason", "") if outcome else "", "parked": None}
        return {**common, "status": known.status, "place": place_of(self.state, name), "attempt": known.attempt,
                "since": known.since, "reason": known.reason[:TEXT], "commit": known.commit,
                "asks": self.state.questions.get(name, {}).get("text", "")[:TEXT],
                "parked": self.state.held.get(name)}

    def _gates(self) -> list[dict[str, Any]]:
        return [gate_told(gate) for gate in self.state.gates.values()]

    def _queue(self) -> dict[str, Any]:
        state = self.queues.get(self.queue)
        if state is None:
            return {"paused": False, "reason": "", "entries": []}
        pause = state.pause
        return {"paused": pause is not None, "reason": f"{pause.reason}: {pause.detail}" if pause else "",
                "entries": [entry_told(entry, ahead + 1) for ahead, entry in enumerate(state.unfinished())
                            if entry.run == self.run]}


_OF_A_NODE = ("runner", "orchestrator")
_FIRST = re.compile(r"attempt \d+")
"""Why a life began that is the first of its attempt: nobody came back."""
_LIVES: Mapping[str, str] = {"died": "death", "respawned": "respawn", "parked": "parked"}
"""What became of a life → its word in the timeline."""


def latest(entries: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """The youngest of a list, by time."""
    return sorted(entries, key=lambda entry: (str(entry["at"]), str(entry["id"])))[-most:]


def laid_over(snapshot: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot after a patch, as the page does it."""
    after = {**snapshot, "nodes": {**snapshot["nodes"], **patch.get("nodes", {})}}
    for part in ("status", "reason", "gates", "queue"):
        after[part] = patch.get(part, snapshot[part])
    for part, most in (("timeline", TIMELINE), ("signals", SIGNALS)):
        after[part] = latest([*snapshot[part], *patch.get(f"{part}_add", [])], most)
    return after


def gate_told(gate: OpenGate) -> dict[str, Any]:
    """Return an open gate as the page asks it."""
    question = gate.question
    return {"gate": gate.place, "node": gate.node, "kind": gate.kind, "question": question.text,
            "signal": gate.signal, "deadline": gate.deadline or None, "free": question.kind == FREE_TEXT,
            "default": question.default,
            "choices": [{"label": option.label, "key": option.key} for option in question.options]}


def entry_told(entry: MergeEntry, position: int) -> dict[str, Any]:
    """An unfinished merge entry; `position` counts from 1, those of other runs too."""
    return {"id": entry.id, "node": entry.node, "attempt": entry.attempt, "branch": entry.branch,
            "state": entry.status, "position": position, "since": entry.enqueued_at, "priority": entry.priority,
            "detail": entry.reason[:TEXT], "tests": entry.tests}


def _of_node(data: Mapping[str, Any]) -> str:
    again = "attempt" if data.get("attempt", 1) > 1 else ""
    return {"validated": "merged", "failed": "failed", "skipped": "skipped", "active": again}.get(data["status"], "")


def _of_signal(data: Mapping[str, Any]) -> str:
    if data.get("effect"):
        return _of_node(data["effect"])
    words = (("question", "asks"), ("hold", "parked"), ("unhold", "unparked"), ("stuck", "parked"), ("run", "run"))
    return next((word for key, word in words if data.get(key)), "")


_GUARDIAN: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "run": lambda data: "run", "node": _of_node, "signal": _of_signal, "heal": lambda data: "healed",
    "gate": lambda data: "" if data.get("closed") else "asks",
}
_LAYER: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "heal": lambda data: "healed", "rescue": lambda data: "rescued",
}
_QUEUE: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "enq": lambda data: "enqueued", "cancel": lambda data: "withdrawn",
    "state": lambda data: data["status"] if data["status"] in ("conflict", "rejected", "held") else "",
    "pause": lambda data: "paused", "resume": lambda data: "resumed",
}
"""Record kind → its word in the timeline."""
_OF_ALL = ("pause", "resume")
"""Records of a queue that are about everybody's entries."""


MIB = 1 << 20


class Observer:
    """Looks at a home again and again; in one thread at a time."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.gather, self.meter, self.costs = Gatherer(home), meter_of(home), Costs(home)

    def look(self, runs: list[str]) -> dict[str, dict[str, Any]]:
        """Run → what is observed of it."""
        trees = by_stem(self.meter.look())
        day = self.gather.observer.clock.utc()[:10]
        spent = self.costs.look(day)
        known = [run for run in runs if RunFiles(self.home, run).launch.exists()]
        return {run: observed(self.gather.run(run), trees, costs_told(spent, run)) for run in known}

    def heads(self) -> list[dict[str, Any]]:
        """All runs of the home, a line each, the youngest first."""
        return [head_told(self.gather.run(run, whole=False)) for run in reversed(self.gather.runs())]


# ---------------------------------------------------------------------------------------------------------- pure


def observed(body: Mapping[str, Any], trees: Trees, costs: Mapping[str, Any]) -> dict[str, Any]:
    """A `status` body as the page shows it: layers by name, and what is said of each node besides its journal."""
    run, usd = body["run_id"], costs["nodes"]
    layers = {layer["agent"].partition("@")[0]: layer for layer in body["layers"]}
    return {
        "layers": {who: layer_told(who, layer, trees.get((run, who), resource_usage.NO_USAGE))
                   for who, layer in layers.items()},
        "nodes": {node["node"]: {"phase": node["phase"], "doing": node["doing"], "cost": usd.get(node["node"]),
                                 "cannot": bool(node["place"] == "waiting" and node["doing"].startswith("cannot"))}
                  for node in body["nodes"]},
        "costs": costs,
        "hint": body["hint"], "problems": list(body["problems"]),
        "living": any(layer["living"] for layer in body["layers"])}


def costs_told(spent: Spent, run: str) -> dict[str, Any]:
    """What a run's sessions have cost: dollars (None where none was asked), tokens, and the limits on them.

    `nodes`: dollars by node; `tokens`: [input, output] by node, of all at `all`; `limits`: dollars by node, and of the
    run (`run`) and the home's day (`day`, with what is spent of it as `today`), each where there is one.
    """
    sums = {node: one for (of, node), one in spent.sums.items() if of == run}
    limits = {node: one for (of, node), one in spent.limits.items() if of == run}
    whole = together(sums.values())
    day = narrowest(one.day for one in limits.values())
    return {
        "usd": rounded(whole.usd) if sums else None, "nodes": {node: rounded(one.usd) for node, one in sums.items()},
        "tokens": {"all": [whole.input, whole.output],
                   "nodes": {node: [one.input, one.output] for node, one in sums.items()}},
        "limits": {"run": narrowest(one.run for one in limits.values()), "day": day,
                   "nodes": {node: one.node for node, one in limits.items() if one.node is not None}},
        "today": None if day is None else rounded(spent.today)}


def layer_told(who: str, layer: Mapping[str, Any], used: Any) -> dict[str, Any]:
    """One life: ages in seconds, CPU in percent of a core, memory in MiB."""
    beat = layer["beat_age_s"] if layer["living"] else None
    return {"who": who, "kind": layer["role"], "node": layer["name"] if layer["role"] in _OF_A_NODE else "",
            "status": layer["status"], "living": layer["living"], "phase": layer["phase"], "life": layer["incarnation"],
            "pid": layer["pid"] if layer["living"] else None, "why": layer["why"],
            "beat_age_s": None if beat is None else round(beat, 1),
            "cpu": None if used.cpu is None else round(used.cpu, 1),
            "memory_mib": round(used.memory / MIB, 1) if used.memory else 0}


NOTHING: Mapping[str, Any] = {"layers": {}, "nodes": {}, "costs": None, "hint": None, "problems": None, "living": None}
"""An observation of nothing; `difference` from it is the whole of another."""


def rounded(usd: float | None) -> float | None:
    """Money to a hundredth of a cent."""
    return None if usd is None else round(usd, 4)


def head_told(body: Mapping[str, Any]) -> dict[str, Any]:
    """A run in the list of runs."""
    return {"run": body["run_id"], "title": body["pipeline_id"] or body["run_id"], "pipeline": body["pipeline_id"],
            "status": body["status"], "reason": body["reason"], "created": body["created_at"],
            "nodes_done": body["merged"], "nodes": body["total"], "failed": body["counts"].get("failed", 0),
            "gates": len(body["gates"]), "hint": body["hint"]}


def into(snapshot: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot of the journals with what is observed laid over it."""
    nodes = {name: {**node, **seen["nodes"].get(name, {"phase": "", "doing": "", "cost": None, "cannot": False})}
             for name, node in snapshot["nodes"].items()}
    return {**snapshot, "nodes": nodes, "layers": list(seen["layers"].values()),
            **{part: seen[part] for part in ("costs", "hint", "living")},
            "problems": list(dict.fromkeys([*snapshot["problems"], *seen["problems"]]))}


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What of two observations a client has to be told; {} if nothing."""
    layers = [layer for who, layer in now["layers"].items() if before["layers"].get(who) != layer]
    nodes = {name: node for name, node in now["nodes"].items() if before["nodes"].get(name) != node}
    found: dict[str, Any] = {}
    if layers:
        found["layers"] = layers
    if nodes:
        found["nodes"] = nodes
    return found | {part: now[part] for part in ("costs", "hint", "problems", "living") if before[part] != now[part]}
