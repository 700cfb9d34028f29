"""Run as the web page shows it: a snapshot, then a patch per journal record and per observation.

A patch holds the whole values of the parts that changed, so that a snapshot with all later patches applied is the
current snapshot. The records of one journal arrive in order, those of several in any; the snapshot is the same.
Everything that no journal holds (processes, resource usage, hook phases, costs) is an `Observation`; only the changes
between two of them are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from garrison.config import NotifyConfig
from garrison.ends import WaitKind
from garrison.merge.entry import MergeEntry
from garrison.merge.queue import target_of_folder
from garrison.merge.turns import describe_wait
from garrison.pipeline.node_status import IMPL_COMPLETE, Landing, is_unchanged, shown
from garrison.processes.launcher.notifications import open_notifications
from garrison.processes.launcher.policy import Parked
from garrison.processes.run_state import ENDED
from garrison.processes.run_status import StatusReason, decide_status
from garrison.records.events import (
    GateChanged,
    GuardianSignal,
    NodeChanged,
    ProbeHealthy,
    RunChanged,
    WorkSaved,
)
from garrison.records.names import Key
from garrison.records.run import RunFiles
from garrison.system.resource_usage import NO_USAGE, Usage
from garrison.system.terminal_text import clean
from garrison.values import Value
from garrison.views.event_log import GUARDIAN, NODE_ROLES, QUEUE, RUNNER, Record
from garrison.views.flow_trace import FlowTrace
from garrison.views.node_view import place_of, refused_hosts, shared_outages
from garrison.views.process_view import ProcessView
from garrison.views.run_lines import RunLines
from garrison.views.run_model import CANNOT_REPLAY, RunModel
from garrison.views.run_view import PROBLEMS, RunReader, RunView, waits_for
from garrison.views.usage import (
    NO_RUN_COSTS,
    CostReader,
    RunCosts,
    UsageByProcess,
    process_meter,
    rounded,
    sum_by_process,
)
from garrison.views.waits import entries_to_approve, gate_json, review_json, waits_of
from garrison.views.work_in_progress import EARLIER_RUNS, ProgressReader, WorkInProgress

TIMELINE, SIGNALS = 300, 200
"""Entries of either list that a snapshot holds, the latest."""
PASSED_STATUS: Mapping[str, str] = {"success": "passed", "partial_success": "passed", "fail": "failed",
                                    "retry": "active", "skipped": "skipped"}
"""Outcome of a node without an agent (a decision, a gate) → its status on the page."""
TEXT = 600
"""Characters of a text within an event; the rest is in the node's detail."""
MIB = 1 << 20
NO_WORK: Mapping[str, WorkInProgress] = {}


# ---- observing


class Observation(Value):
    """State of a run that no journal holds: its processes, and for each node its activity and cost. JSON data,
    except `view`, from which the rest is derived.
    """

    view: RunView
    processes: Mapping[str, dict[str, Any]]
    """By role-name."""
    nodes: Mapping[str, dict[str, Any]]
    costs: dict[str, Any]

    def changes(self, before: Observation | None) -> dict[str, Any]:
        """Return what differs from the earlier observation `before` (None: everything)."""
        patch: dict[str, Any] = {}
        processes = [process for stem, process in self.processes.items()
                     if before is None or before.processes.get(stem) != process]
        nodes = {name: node for name, node in self.nodes.items() if before is None or before.nodes.get(name) != node}
        if processes:
            patch["layers"] = processes
        if nodes:
            patch["nodes"] = nodes
        if before is None or before.costs != self.costs:
            patch["costs"] = self.costs
        if before is None or before.view.hint != self.view.hint:
            patch["hint"] = self.view.hint
        if before is None or before.view.living != self.view.living:
            patch["living"] = self.view.living
        return patch


class HomeObserver:
    """Observe the runs of a home repeatedly; from one thread at a time."""

    def __init__(self, home: Path) -> None:
        self.home, self.runs = home, RunReader(home)
        self._meter, self._costs, self._progress = process_meter(home), CostReader(home), ProgressReader(home)
        self._lines = RunLines(self.runs)

    def observe(self, runs: list[str]) -> dict[str, Observation]:
        """Return an observation of each of `runs` that exists; the processes are measured once for all."""
        used = sum_by_process(self._meter.sample())
        costs = self._costs.read(self.runs.observer.clock.utc()[:10])
        existing = [run for run in runs if RunFiles(self.home, run).launch.exists()]
        views = {run: self.runs.read(run) for run in existing}
        return {run: observation_of(view, used, costs.of_run(run), self._work(view)) for run, view in views.items()}

    def _work(self, view: RunView) -> Mapping[str, WorkInProgress]:
        """Return the progress of a run's agents at work."""
        launch = self.runs.launch(view.run_id)
        if launch is None or view.details is None:
            return {}
        return self._progress.read(launch, view.details.nodes, self.runs.worked(view.run_id),
                                   self.runs.worked_earlier(launch, EARLIER_RUNS))

    def lines(self) -> list[dict[str, Any]]:
        costs = self._costs.read(self.runs.observer.clock.utc()[:10]).by_run()
        views = self._lines.read()
        return [run_line(view, costs.get(view.run_id, NO_RUN_COSTS)) for view in reversed(views)]


def observation_of(view: RunView, used: UsageByProcess, costs: RunCosts,
                   work: Mapping[str, WorkInProgress] = NO_WORK) -> Observation:
    """Make an observation of a run that was read with details; `work`: progress of its nodes at work. Pure."""
    spent = costs.to_json()
    nodes = view.details.nodes if view.details else []
    return Observation(
        view,
        {process.stem: process_json(process, used.get((view.run_id, process.stem), NO_USAGE))
         for process in view.processes},
        {node.node: {"state": node.state, "phase": node.phase, "doing": node.doing,
                     "cost": spent["nodes"].get(node.node), "cannot": node.place == "waiting" and node.blocked,
                     "work": work[node.node].to_json() if node.node in work else None}
         for node in nodes},
        spent)


def process_json(process: ProcessView, used: Usage) -> dict[str, Any]:
    """Return one process: ages in seconds, CPU in percent of a core, memory in MiB."""
    beat = process.beat_age_s if process.living else None
    return {"who": process.stem, "kind": process.role, "node": process.name if process.role in NODE_ROLES else "",
            "status": process.status, "living": process.living, "phase": process.phase, "life": process.incarnation,
            "pid": process.pid if process.living else None, "why": process.why,
            "beat_age_s": None if beat is None else round(beat, 1),
            "cpu": None if used.cpu is None else round(used.cpu, 1),
            "memory_mib": round(used.memory / MIB, 1) if used.memory else 0}


def run_line(view: RunView, costs: RunCosts) -> dict[str, Any]:
    """Return a run's line in the list of runs; `gates` is the number of its `waits`.

    `counts`: as the bar of the run's own page, where a node that asks is in no other place.
    """
    counts = {**{place: count - view.asking.get(place, 0) for place, count in view.counts.items()},
              "asking": sum(view.asking.values())}
    return {"run": view.run_id, "title": view.pipeline_id or view.run_id, "pipeline": view.pipeline_id,
            "status": view.status, "reason": view.reason[:TEXT], "created": view.created_at,
            "ended": (view.ended_at or None) if view.status in ENDED or not view.living else None,
            "nodes_done": view.landed,
            "nodes": view.total, "counts": {place: count for place, count in counts.items() if count},
            "progress": view.progress, "failed": view.counts.get("failed", 0), "gates": len(view.waits),
            "waits": [wait.to_json() for wait in view.waits], "cost": rounded(costs.usd), "repo": view.repo,
            "target": view.base, "deaths": view.deaths, "hint": view.hint}


# ---- the page's model


class GraphNode(Value):
    """A node as the run's graph describes it."""

    label: str = ""
    shape: str = "box"
    agent: str = ""


@dataclass
class PageModel:
    """One run as the page shows it: its read model, the graph, the lists and the latest observation."""

    model: RunModel
    graph: Mapping[str, GraphNode] = field(default_factory=dict)
    adhoc: bool = False
    trace: FlowTrace | None = None
    notify_on: tuple[str, ...] = NotifyConfig().on
    """Events of which the page notifies, as `[notify]` lists them."""
    timeline: list[dict[str, Any]] = field(default_factory=list)
    signals: list[dict[str, Any]] = field(default_factory=list)
    observation: Observation | None = None
    keeps_all: bool = False
    """True to keep all entries of both lists, not only the latest."""
    _is_observed: bool = False
    """True if the guardian has written nothing since the observation: a process that writes is alive."""
    _sent: dict[str, Any] = field(default_factory=dict)
    """The parts as the clients have them."""

    def __post_init__(self) -> None:
        self._sent = self._parts()

    def snapshot(self) -> dict[str, Any]:
        """Return everything known, the lists sorted by time."""
        observed = self.observation
        parts = {**self._parts(), "timeline": latest_entries(self.timeline, TIMELINE),
                 "signals": latest_entries(self.signals, SIGNALS)}
        if observed is None:
            return parts
        unknown = {"state": "", "phase": "", "doing": "", "cost": None, "cannot": False, "work": None}
        nodes = {name: {**node, **observed.nodes.get(name, unknown)} for name, node in parts["nodes"].items()}
        return {**parts, "nodes": nodes, "layers": list(observed.processes.values()), "costs": observed.costs,
                "hint": observed.view.hint, "living": observed.view.living}

    def apply(self, record: Record, text: str = "") -> dict[str, Any]:
        """Replay a record; return its patch, {} if nothing visible changed. `text` is the record in words.

        A record that cannot be shown is listed in `problems`; the others are still shown.
        """
        problems = len(self.model.problems)
        self._is_observed = self._is_observed and record.journal != GUARDIAN
        lifecycle = self.model.apply(record)
        added: dict[str, Any] = {}
        if len(self.model.problems) == problems:
            try:
                kind = _TIMELINE_KINDS[lifecycle.kind] if lifecycle else self._timeline_kind(record)
                added = self._list(record, kind, text)
            except CANNOT_REPLAY as error:
                self.model.report(record, error)
        followed = self.trace.apply(record) if self.trace else {}
        return {**self._changed(record), **added, **({"followed": followed} if followed else {})}

    def observe(self, observation: Observation) -> dict[str, Any]:
        """Apply a new observation; return its patch, {} if nothing visible changed."""
        before, self.observation, self._is_observed = self.observation, observation, True
        patch = observation.changes(before)
        self._compare_status(patch)
        self._compare(patch, "problems", self.problems)
        self._compare(patch, "waits", self._waits())
        return patch

    def observed(self) -> dict[str, Any]:
        observed = self.observation.changes(None) if self.observation else {}
        return {**observed, **self._status(), "problems": self.problems, "waits": self._waits()}

    # ---- parts

    @property
    def status(self) -> StatusReason:
        """Return the run's status and its reason, as every other view computes them."""
        view, model = self.observation.view if self.observation else None, self.model
        known = view is not None and (self._is_observed or self.adhoc)
        return decide_status(model.state, view.processes if view is not None and known else None, adhoc=self.adhoc,
                             failure="; ".join(model.failures.values()),
                             corrupt=model.corrupt or (view.corrupt if view else ""),
                             waits_for=waits_for(model, view.questions if view else ()))

    @property
    def problems(self) -> list[str]:
        """Records of the run that cannot be read or shown, and what holds up more than a node."""
        observed = self.observation.view.problems if self.observation else []
        told = [f"warning: {warning.describe()}" for warning in self.model.state.told[-PROBLEMS:]]
        view = self.observation.view if self.observation else None
        nodes = view.details.nodes if view is not None and view.details else ()
        held_up = [*shared_outages(nodes), *refused_hosts(nodes)]
        return list(dict.fromkeys([*self.model.problems[-PROBLEMS:], *told, *held_up, *observed]))

    @property
    def order(self) -> list[str]:
        """Return the nodes in the order in which the guardian's journal named them."""
        return list(self.model.state.nodes)

    def _parts(self) -> dict[str, Any]:
        return {**self._status(), "problems": self.problems, "gates": self._gates(), "waits": self._waits(),
                "queue": self._queue(), "notices": self._notices(),
                "followed": dict(self.trace.followed) if self.trace else {},
                "nodes": {name: self._node(name) for name in self._names()}}

    def _status(self) -> dict[str, Any]:
        status, reason = self.status
        return {"status": status, "reason": reason}

    def _names(self) -> list[str]:
        return list(dict.fromkeys([*self.graph, *self.model.state.nodes, *self.model.died]))

    def _node(self, name: str) -> dict[str, Any]:
        state, drawn = self.model.state, self.graph.get(name, GraphNode(name))
        common = {"node": name, "label": drawn.label or name, "shape": drawn.shape, "agent": drawn.agent,
                  "deaths": self.model.died.get(name, 0)}
        node, question = state.nodes.get(name), state.questions.get(name)
        if node is None:
            outcome = state.outcomes.get(name)
            waits = any(gate.node == name for gate in state.gates.values())
            status = "waiting" if waits else PASSED_STATUS.get(outcome.status, "") if outcome else ""
            return {**common, "status": status, "place": status, "attempt": 0, "since": "", "commit": "", "asks": "",
                    "reason": outcome.reason if outcome else "", "parked": None,
                    "answer": outcome.label if outcome else ""}
        entry = self.model.place_in_queue(name, node.attempt)[0] if node.status == IMPL_COMPLETE else None
        place = place_of(self.model, name)
        status = entry.landing if entry is not None else place if place == Landing.UNDONE else \
            shown(node.status, node.landing)
        return {**common, "status": status, "place": place,
                "attempt": node.attempt, "since": node.since, "reason": node.reason[:TEXT], "commit": node.commit,
                "asks": question.text[:TEXT] if question else "", "parked": state.held.get(name)}

    def _gates(self) -> list[dict[str, Any]]:
        return [*map(gate_json, self.model.state.gates.values()), *map(review_json, entries_to_approve(self.model))]

    def _waits(self) -> list[dict[str, Any]]:
        """Return what waits for a person, as `status` and the home have it."""
        view = self.observation.view if self.observation else None
        asking = [wait.node for wait in view.waits if wait.kind == WaitKind.ASKS] if view else []
        waits = waits_of(self.model, self.status.status, asking=asking, hint=view.hint if view else "",
                         corrupt=self.model.corrupt or (view.corrupt if view else ""))
        return [wait.to_json() for wait in waits]

    def _notices(self) -> list[dict[str, Any]]:
        """Return what a person is to be told now, from the same source as the command of `[notify]`."""
        state = self.model.state
        parked = [Parked(f"{name}:{state.nodes[name].attempt}", name, why) for name, why in state.held.items()
                  if name in state.nodes]
        found = open_notifications(state, parked, self.notify_on, state.status if state.over else "")
        return [{"key": one.key, "event": one.event, "node": one.node, "text": clean(one.text)[:TEXT]} for one in found]

    def _queue(self) -> dict[str, Any]:
        """Return the queues of the run as one; `target` is the branch of the one to pause or resume.

        That is the paused one, else the one in which work of the run waits: a run that lands as a whole has two.
        """
        folders = (self.model.queue_folder, self.model.landing_folder)
        queues = {folder: self.model.queues[folder] for folder in folders if folder in self.model.queues}
        if not queues:
            return {"paused": False, "reason": "", "target": "", "entries": []}
        entries = {folder: [entry_json(entry, ahead + 1) for ahead, entry in enumerate(queue.unfinished())
                            if entry.run == self.model.run] for folder, queue in queues.items()}
        paused = next((folder for folder, queue in queues.items() if queue.pause is not None), None)
        acted_on = paused or next((folder for folder in queues if entries[folder]), next(iter(queues)))
        pause = queues[acted_on].pause
        return {"paused": pause is not None, "reason": f"{pause.reason}: {pause.explain()}" if pause else "",
                "target": target_of_folder(Path(acted_on)),
                "entries": [entry for folder in queues for entry in entries[folder]]}

    # ---- patches

    def _changed(self, record: Record) -> dict[str, Any]:
        """Return the parts that have changed, among those that such a record can change."""
        patch: dict[str, Any] = {}
        if record.journal == QUEUE:
            if record.queue in (self.model.queue_folder, self.model.landing_folder):
                self._compare(patch, "queue", self._queue())
                self._compare(patch, "gates", self._gates())
                self._compare(patch, "waits", self._waits())
                self._compare_status(patch)
                self._compare_nodes(patch, [name for name, node in self.model.state.nodes.items()
                                            if node.status == IMPL_COMPLETE])
            return patch
        if record.journal == GUARDIAN:
            self._compare_status(patch)
            self._compare(patch, "gates", self._gates())
            self._compare(patch, "waits", self._waits())
            self._compare(patch, "notices", self._notices())
            self._compare(patch, "problems", self.problems)
        self._compare_nodes(patch, self._touched(record))
        return patch

    def _compare_nodes(self, patch: dict[str, Any], names: list[str]) -> None:
        sent = self._sent["nodes"]
        nodes = {name: node for name in names if sent.get(name) != (node := self._node(name))}
        if nodes:
            sent.update(nodes)
            patch["nodes"] = nodes

    def _compare_status(self, patch: dict[str, Any]) -> None:
        for part, value in self._status().items():
            self._compare(patch, part, value)

    def _compare(self, patch: dict[str, Any], part: str, value: Any) -> None:
        if self._sent[part] != value:
            self._sent[part] = patch[part] = value

    def _touched(self, record: Record) -> list[str]:
        """Return the nodes that a record may have changed."""
        data = record.entry.data
        if record.entry.kind == "snapshot" or "resume" in data:
            return self._names()
        named = [str(data.get(key, "")) for key in ("node", "hold", "unhold")]
        if (agent := _agent_of(record)) is not None:
            named += self._names() if agent.role == "processor" else [agent.name]
        if "processor" in named:
            named = self._names()
        return [name for name in dict.fromkeys(named) if name in self.graph or name in self.model.state.nodes
                or name in self.model.died]

    # ---- lists

    def _list(self, record: Record, kind: str, text: str) -> dict[str, Any]:
        """Add a record to the lists where it belongs; return what was added."""
        added: dict[str, Any] = {}
        data, node = record.entry.data, self.node_of(record)
        entry = {"id": f"{record.journal}:{record.entry.seq}", "at": record.entry.at}
        if kind:
            words = text or str(data.get("why") or data.get("text") or "")
            added["timeline_add"] = [{**entry, "kind": kind, "node": node, "text": words[:TEXT]}]
            self._append(self.timeline, added["timeline_add"], TIMELINE)
        if record.entry.kind == "signal" and record.journal != QUEUE:
            added["signals_add"] = [{**entry, "type": data.get("type", ""), "source": data.get("from", ""),
                                     "target": record.entry.token.partition("#")[0], "node": node,
                                     "text": text[:TEXT]}]
            self._append(self.signals, added["signals_add"], SIGNALS)
        return added

    def _append(self, entries: list[dict[str, Any]], added: list[dict[str, Any]], most: int) -> None:
        entries += added
        if len(entries) > 2 * most and not self.keeps_all:
            entries[:] = latest_entries(entries, most)

    def _timeline_kind(self, record: Record) -> str:
        """Return what a record that reports no death, respawn or parking is in the timeline; '' for most."""
        if record.journal != QUEUE:
            kind = _RECORD_KINDS.get(type(record.event))
            return kind(record.event) if kind else ""
        ours = record.queue == self.model.queue_folder and (
            record.entry.kind in _OF_THE_WHOLE_QUEUE or self.model.merge_entry(record) is not None)
        queue_kind = _QUEUE_KINDS.get(record.entry.kind) if ours else None
        return queue_kind(record.entry.data) if queue_kind else ""

    def node_of(self, record: Record) -> str:
        """Return the node that a record concerns, '' for none."""
        data = record.entry.data
        if record.journal == QUEUE:
            entry = self.model.merge_entry(record)
            return entry.node if entry else str(data.get("node", ""))
        if data.get("node"):
            return str(data["node"])
        agent = _agent_of(record)
        if agent is not None:
            return agent.name if agent.role in NODE_ROLES else ""
        return record.journal.removeprefix(RUNNER) if record.journal.startswith(RUNNER) else ""


def _agent_of(record: Record) -> Key | None:
    """Return the agent that a record is about; None for none, or for an invalid name."""
    full = record.entry.data.get("full")
    try:
        return Key.parse(full) if full else None
    except CANNOT_REPLAY:
        return None


def latest_entries(entries: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    return sorted(entries, key=lambda entry: (str(entry["at"]), str(entry["id"])))[-most:]


def apply_patch(snapshot: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a snapshot after a record's patch, as the page applies it."""
    after = {**snapshot, **{part: {**snapshot[part], **patch.get(part, {})} for part in ("nodes", "followed")}}
    for part in ("status", "reason", "problems", "gates", "waits", "queue", "notices"):
        after[part] = patch.get(part, snapshot[part])
    for part, most in (("timeline", TIMELINE), ("signals", SIGNALS)):
        after[part] = latest_entries([*snapshot[part], *patch.get(f"{part}_add", [])], most)
    return after


def entry_json(entry: MergeEntry, position: int) -> dict[str, Any]:
    """Return an unfinished merge entry; `position` counts from 1, those of other runs too."""
    return {"id": entry.id, "node": entry.node, "attempt": entry.attempt, "branch": entry.branch,
            "state": entry.status, "word": entry.landing,
            "position": position, "since": entry.enqueued_at, "priority": entry.priority,
            "detail": describe_wait(entry.waits_for[1], entry.files) if entry.waits_for else entry.reason[:TEXT],
            "tests": entry.tests}


def _node_kind(record: NodeChanged) -> str:
    if is_unchanged(record.status, record.landing):
        return "unchanged"
    retry = "attempt" if record.attempt > 1 else ""
    return {"validated": "landed", "failed": "failed", "skipped": "skipped", "active": retry}.get(record.status, "")


def _signal_kind(record: GuardianSignal) -> str:
    if record.effect:
        return _node_kind(record.effect)
    kinds = ((record.question, "asks"), (record.hold, "parked"), (record.unhold, "unparked"), (record.stuck, "parked"),
             (record.run, "run"))
    return next((kind for value, kind in kinds if value), "")


_TIMELINE_KINDS: Mapping[str, str] = {"died": "death", "respawned": "respawn", "parked": "parked"}
"""Kind of a lifecycle event → its kind in the timeline."""
_RECORD_KINDS: Mapping[type[Any], Callable[[Any], str]] = {
    RunChanged: lambda record: "run",
    NodeChanged: _node_kind,
    GuardianSignal: _signal_kind,
    GateChanged: lambda record: "" if record.closed else "asks",
    ProbeHealthy: lambda record: "healed",
    WorkSaved: lambda record: "rescued",
}
"""Class of a record → its kind in the timeline."""
_QUEUE_KINDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "enq": lambda data: "enqueued", "cancel": lambda data: "withdrawn",
    "state": lambda data: data["status"] if data["status"] in ("conflict", "rejected", "held") else "",
    "pause": lambda data: "paused", "resume": lambda data: "resumed",
}
"""Kind of a merge queue's record → its kind in the timeline."""
_OF_THE_WHOLE_QUEUE = ("pause", "resume")
"""Records of a merge queue that concern the entries of all runs."""
