"""A run as the page shows it, folded from journal records: a snapshot, and for each record what it changed. Pure.

The rule of this room: no clock, disk or process. A patch holds whole values of the parts that changed, so that a
snapshot with the patches of all later records laid over it is the snapshot of all records. What no journal tells
(process ages, costs, phases) is not here but in `observed`.

The records of one journal come in order; those of several may come in any, and the snapshot is the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from garrison.merge.entry import Entry
from garrison.merge.state import QueueState
from garrison.pipeline.questions import FREE_TEXT
from garrison.processes.run_state import RunState
from garrison.records.names import Key
from garrison.views.event_log import GUARDIAN, QUEUE, Record
from garrison.views.node_view import place_of
from garrison.views.run_reader import event_of
from garrison.views.run_view import gates_told
from garrison.web.position import RUNNER

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

    def _own_entry(self, record: Record) -> Entry | None:
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
            waits = any(gate["node"] == name for gate in self.state.gates.values())
            status = "waiting" if waits else DRAWN_STATUS.get(outcome["status"], "") if outcome else ""
            return {**common, "status": status, "place": status, "attempt": 0, "since": "", "commit": "", "asks": "",
                    "reason": outcome.get("reason", "") if outcome else "", "parked": None}
        return {**common, "status": known.status, "place": place_of(self.state, name), "attempt": known.attempt,
                "since": known.since, "reason": known.reason[:TEXT], "commit": known.commit,
                "asks": self.state.questions.get(name, {}).get("text", "")[:TEXT],
                "parked": self.state.held.get(name)}

    def _gates(self) -> list[dict[str, Any]]:
        return [gate_told(told, record) for told, record in
                zip(gates_told(self.state), self.state.gates.values(), strict=True)]

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


def gate_told(told: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """An open gate, as the page asks it."""
    return {"gate": told["place"], "node": told["node"], "kind": told["kind"], "question": told["text"],
            "signal": told["signal"], "deadline": told["deadline"], "free": record.get("type") == FREE_TEXT,
            "default": record.get("default", ""),
            "choices": [{"label": one["label"], "key": one["key"]} for one in record["options"]]}


def entry_told(entry: Entry, position: int) -> dict[str, Any]:
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
