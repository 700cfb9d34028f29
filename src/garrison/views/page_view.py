"""Run for the web page: a snapshot, then a patch per journal record and per observation.

Both are `Parts`. A patch contains whole values of the changed parts, so that a snapshot plus all later patches is the
current snapshot. Records of one journal arrive in order, records of several in any order, with the same result. State
outside journals (processes, resource usage, hook phases, costs) is a `LiveState`; only the changes between two of them
are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from garrison.config import NotifyConfig
from garrison.ends import WaitKind
from garrison.merge.entry import MergeEntry
from garrison.merge.queue import target_of_folder
from garrison.merge.turns import describe_wait
from garrison.pipeline.node_status import IMPL_COMPLETE, LandingWord, lands_nothing, shown
from garrison.records.events import (
    ChildDied,
    ChildHealed,
    ChildSpawned,
    GuardianSignal,
    NodeChanged,
    PullRequestChanged,
    RunChanged,
    WaitChanged,
    WorkSaved,
)
from garrison.records.names import Key
from garrison.records.pull_request import (
    GivenReview,
    PullRequestReports,
    PullRequestState,
    ReportedCheck,
    read_reports,
    without_number,
)
from garrison.records.run import RunFiles
from garrison.run.launcher_policy import ParkedName
from garrison.run.notifications import open_notifications
from garrison.run.state import ENDED
from garrison.run.status import Status, StatusReason, decide_status
from garrison.system.resource_usage import NO_USAGE, ResourceUsage
from garrison.system.terminal_text import clean
from garrison.values import Value, fields_of, project, replace
from garrison.views.event_log import GUARDIAN, NODE_ROLES, QUEUE, RUNNER, StoredRecord
from garrison.views.explain import in_users_words
from garrison.views.node_view import place_of, refused_hosts, shared_outages
from garrison.views.process_view import ProcessView
from garrison.views.run_model import CANNOT_REPLAY, RunModel
from garrison.views.run_view import PROBLEMS, RunReader, RunView, waits_for
from garrison.views.usage import (
    CostReader,
    RunCosts,
    ShownCosts,
    UsageByProcess,
    process_meter,
    rounded,
    sum_by_process,
)
from garrison.views.waits import ShownQuestion, ShownWait, entries_to_approve, show_question, show_review, waits_of
from garrison.views.work_in_progress import EARLIER_RUNS, ProgressReader, WorkInProgress

TIMELINE, SIGNALS = 300, 200
"""Maximum number of latest entries of either list in a snapshot."""
PASSED_STATUS: Mapping[str, str] = {"success": "passed", "partial_success": "passed", "fail": "failed",
                                    "retry": "active", "skipped": "skipped"}
"""Outcome of a node without an agent (a decision, a question) → its status on the page."""
TEXT = 600
"""Maximum length of a text within an event; the rest is in the node's details."""
MIB = 1 << 20
E = TypeVar("E", "TimelineEntry", "SignalEntry")
NO_WORK: Mapping[str, WorkInProgress] = {}


# ---- parts of a page


class ObservedNode(Value):
    """Facts about a node outside journals."""

    state: str = ""
    phase: str = ""
    doing: str = ""
    cost: float | None = None
    cannot: bool = False
    """True if failed nodes keep it from ever starting."""
    work: WorkInProgress | None = None


class PageNode(Value):
    """Facts about a node from journals and graph."""

    node: str
    label: str
    shape: str
    agent: str
    deaths: int
    status: str
    place: str
    attempt: int = 0
    since: str = ""
    reason: str = ""
    commit: str = ""
    asks: str = ""
    parked: str | None = None
    """Why the user parked it; None if the user did not."""
    answer: str | UnsetType = UNSET
    """Edge taken at a node without an agent."""


class WholeNode(PageNode, kw_only=True):
    """Node with its observed facts."""

    state: str
    phase: str
    doing: str
    cost: float | None
    cannot: bool
    work: WorkInProgress | None


class PageProcess(Value):
    """Process: ages in seconds, CPU in percent of a core, memory in MiB."""

    who: str
    kind: str
    node: str
    status: str
    living: bool
    phase: str
    incarnation: int = msgspec.field(name="life")
    pid: int | None
    why: str
    beat_age_s: float | None
    cpu: float | None
    memory_mib: float


class PageEntry(Value):
    """Unfinished merge entry; `position` counts all runs' entries, from 1."""

    id: str
    node: str
    attempt: int
    branch: str
    state: str
    word: str
    position: int
    since: str
    priority: int
    detail: str
    tests: int


class PageQueue(Value):
    """The queues of a run as one; `target` is the branch of the one to pause or resume."""

    paused: bool = False
    reason: str = ""
    target: str = ""
    entries: Sequence[PageEntry] = ()


class Notice(Value):
    """Notification for the user."""

    key: str
    event: str
    node: str
    text: str


class TimelineEntry(Value):
    """Event of the run's timeline; `minor` ones are shown only among all events."""

    id: str
    at: str
    kind: str
    node: str
    text: str
    minor: bool = False


class SignalEntry(Value):
    """A signal."""

    id: str
    at: str
    type: str
    source: str
    target: str
    node: str
    text: str


class ShownPullRequest(Value):
    """The run's pull request; empty fields are unknown (yet)."""

    state: str
    number: int
    url: str
    text: str
    """Reason, '' for none."""
    waits_for: str
    """'' while garrison itself acts."""
    since: str
    returns: dict[str, int]
    """Node → number of times that it was sent back for a check or comment."""
    checks: tuple[ReportedCheck, ...] = ()
    reviews: tuple[GivenReview, ...] = ()


class Parts(Value):
    """Parts of a run on the page: all in a snapshot, the changed ones in a patch."""

    status: Status | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    problems: list[str] | UnsetType = UNSET
    gates: list[ShownQuestion] | UnsetType = UNSET
    waits: list[ShownWait] | UnsetType = UNSET
    queue: PageQueue | UnsetType = UNSET
    notices: list[Notice] | UnsetType = UNSET
    pull_request: ShownPullRequest | UnsetType | None = UNSET
    """None for a run without one."""
    followed: Mapping[str, int] | UnsetType = UNSET
    """Edge of the graph → how often it was followed; in a patch only changed ones."""
    nodes: Mapping[str, PageNode | ObservedNode] | UnsetType = UNSET
    """In a patch the changed ones, with their changed fields."""
    timeline: list[TimelineEntry] | UnsetType = UNSET
    signals: list[SignalEntry] | UnsetType = UNSET
    timeline_add: list[TimelineEntry] | UnsetType = UNSET
    signals_add: list[SignalEntry] | UnsetType = UNSET
    layers: list[PageProcess] | UnsetType = UNSET
    costs: ShownCosts | UnsetType = UNSET
    hint: str | UnsetType = UNSET
    living: bool | UnsetType = UNSET


NOTHING = Parts()


# ---- observing


class LiveState(Value):
    """State of a run outside journals: its processes, and the activity and cost of each node."""

    view: RunView
    processes: Mapping[str, PageProcess]
    """By role-name."""
    nodes: Mapping[str, ObservedNode]
    costs: ShownCosts
    reports: PullRequestReports = PullRequestReports()
    """Checks and reviews of its pull request."""

    def changes(self, before: LiveState | None) -> Parts:
        """Return the differences from the earlier observation `before` (None: everything)."""
        processes = [process for stem, process in self.processes.items()
                     if before is None or before.processes.get(stem) != process]
        nodes = {name: node for name, node in self.nodes.items() if before is None or before.nodes.get(name) != node}
        return Parts(
            layers=processes or UNSET, nodes=nodes or UNSET,
            costs=self.costs if before is None or before.costs != self.costs else UNSET,
            hint=self.view.hint if before is None or before.view.hint != self.view.hint else UNSET,
            living=self.view.living if before is None or before.view.living != self.view.living else UNSET)


class HomeObserver:
    """Observes the runs of a home repeatedly, from one thread at a time."""

    def __init__(self, home: Path) -> None:
        self.home, self.runs = home, RunReader(home)
        self._meter, self._costs, self._progress = process_meter(home), CostReader(home), ProgressReader(home)

    def observe(self, runs: list[str]) -> dict[str, LiveState]:
        """Return an observation of each existing run of `runs`; the processes are measured once for all."""
        used = sum_by_process(self._meter.sample())
        costs = self._costs.read(self.runs.observer.clock.utc()[:10])
        existing = [run for run in runs if RunFiles(self.home, run).launch.exists()]
        views = {run: self.runs.read(run) for run in existing}
        return {run: replace(observation_of(view, used, costs.of_run(run), self._work(view)),
                             reports=read_reports(RunFiles(self.home, run).root)) for run, view in views.items()}

    def _work(self, view: RunView) -> Mapping[str, WorkInProgress]:
        """Return the progress of a run's agents at work."""
        launch = self.runs.launch(view.run_id)
        if launch is None or view.details is None:
            return {}
        return self._progress.read(launch, view.details.nodes, self.runs.worked(view.run_id),
                                   self.runs.worked_earlier(launch, EARLIER_RUNS))

    def lines(self) -> list[RunLine]:
        costs = self._costs.read(self.runs.observer.clock.utc()[:10])
        views = self.runs.read_all()
        return [run_line(view, costs.of_run(view.run_id)) for view in reversed(views)]


def observation_of(view: RunView, used: UsageByProcess, costs: RunCosts,
                   work: Mapping[str, WorkInProgress] = NO_WORK) -> LiveState:
    """Return an observation of a run that was read with details; `work`: progress of its nodes at work. Pure."""
    spent = costs.shown()
    return LiveState(
        view,
        {process.stem: _page_process(process, used.get((view.run_id, process.stem), NO_USAGE))
         for process in view.processes},
        {node.node: ObservedNode(node.state, node.phase, node.doing, spent.nodes.get(node.node),
                                 node.place == "waiting" and node.blocked, work.get(node.node))
         for node in (view.details.nodes if view.details else ())},
        spent)


def _page_process(process: ProcessView, used: ResourceUsage) -> PageProcess:
    beat = process.beat_age_s if process.living else None
    return PageProcess(
        process.stem, process.role, process.name if process.role in NODE_ROLES else "", process.status, process.living,
        process.phase, process.incarnation, process.pid if process.living else None, process.why,
        None if beat is None else round(beat, 1), None if used.cpu is None else round(used.cpu, 1),
        round(used.memory / MIB, 1) if used.memory else 0)


class RunLine(Value):
    """Line of a run in the list of runs."""

    run: str
    title: str
    pipeline: str
    status: Status
    reason: str
    created: str
    ended: str | None
    nodes_done: int
    nodes: int
    counts: Mapping[str, int]
    """As in the bar of the run's page, where an asking node has its own place."""
    progress: str
    failed: int
    gates: int
    """Number of its `waits`."""
    waits: list[ShownWait]
    cost: float | None
    repo: str
    target: str
    deaths: int
    hint: str


def run_line(view: RunView, costs: RunCosts) -> RunLine:
    """Return the line of a run, with its name if it has no pipeline."""
    counts = {**{place: count - view.asking.get(place, 0) for place, count in view.counts.items()},
              "asking": sum(view.asking.values())}
    return RunLine(
        view.run_id, view.pipeline_id or view.run_id, view.pipeline_id, view.status, view.reason[:TEXT],
        view.created_at, (view.ended_at or None) if view.status in ENDED or not view.living else None, view.landed,
        view.total, {place: count for place, count in counts.items() if count}, view.progress,
        view.counts.get("failed", 0), len(view.waits), [project(ShownWait, wait) for wait in view.waits],
        rounded(costs.usd), view.repo, view.base, view.deaths, view.hint)


# ---- the page's model


class GraphNode(Value):
    """Node as described by the run's graph."""

    label: str = ""
    shape: str = "box"
    agent: str = ""


@dataclass
class PageModel:
    """One run for the page: its read model, the graph, the lists and the latest observation."""

    model: RunModel
    graph: Mapping[str, GraphNode] = field(default_factory=dict)
    adhoc: bool = False
    notify_on: tuple[str, ...] = NotifyConfig().on
    """Events for the page's notifications, as in `[notify]`."""
    timeline: list[TimelineEntry] = field(default_factory=list)
    signals: list[SignalEntry] = field(default_factory=list)
    observation: LiveState | None = None
    keeps_all: bool = False
    """True to keep all entries of both lists instead of the latest."""
    _pull: tuple[str, str] = ("", "")
    """State and reason of its pull request in the latest timeline entry."""
    _is_observed: bool = False
    """True if the guardian has written nothing since the observation: a writing process is alive."""
    _sent: Parts = NOTHING
    """The parts as sent to clients, except `nodes` and `followed`."""
    _sent_nodes: dict[str, PageNode] = field(default_factory=dict)
    _sent_followed: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mark_sent()

    def mark_sent(self) -> None:
        """Start patches from here: a client gets everything known so far in its snapshot."""
        self._sent, self._sent_nodes, self._sent_followed = self._parts(), self._nodes(), self.model.followed

    def snapshot(self) -> Parts:
        """Return everything known, the lists sorted by time."""
        seen, nodes = self.observation, self._nodes()
        parts = replace(self._parts(), nodes=nodes, followed=self.model.followed,
                        timeline=latest_entries(self.timeline, TIMELINE), signals=latest_entries(self.signals, SIGNALS))
        if seen is None:
            return parts
        unknown = ObservedNode()
        whole = {name: WholeNode(**fields_of(node), **fields_of(seen.nodes.get(name, unknown)))
                 for name, node in nodes.items()}
        return replace(parts, nodes=whole, layers=list(seen.processes.values()), costs=seen.costs, hint=seen.view.hint,
                       living=seen.view.living)

    def replay(self, record: StoredRecord, text: str = "") -> Parts:
        """Replay a record; return its additions to the lists. `text` is the record in words.

        A record that cannot be shown is listed in `problems`; others are still shown.
        """
        problems = len(self.model.problems)
        # the observed processes may predate this record: until the next observation the journal counts
        self._is_observed = self._is_observed and record.journal != GUARDIAN
        lifecycle = self.model.apply(record)
        if len(self.model.problems) == problems:
            try:
                kind = _TIMELINE_KINDS[lifecycle.kind] if lifecycle else self._timeline_kind(record)
                return self._list(record, kind, text)
            except CANNOT_REPLAY as error:
                self.model.report(record, error)
        return NOTHING

    def apply(self, record: StoredRecord, text: str = "") -> Parts:
        """Replay a record; return its patch, NOTHING if nothing visible changed."""
        added = self.replay(record, text)
        return replace(self._changed(record), timeline_add=added.timeline_add, signals_add=added.signals_add)

    def observe(self, observation: LiveState) -> Parts:
        """Apply a new observation; return its patch, NOTHING if nothing visible changed."""
        before, self.observation, self._is_observed = self.observation, observation, True
        return replace(observation.changes(before), **self._newer(self._judged()))

    def observed(self) -> Parts:
        observed = self.observation.changes(None) if self.observation else NOTHING
        return replace(observed, **_set_fields(self._judged()))

    # ---- parts

    @property
    def _view(self) -> RunView | None:
        return self.observation.view if self.observation else None

    @property
    def status(self) -> StatusReason:
        """Return the run's status and its reason, computed as in every other view."""
        view, model = self._view, self.model
        known = view is not None and (self._is_observed or self.adhoc)
        return decide_status(model.state, view.processes if view is not None and known else None, adhoc=self.adhoc,
                             failure="; ".join(model.failures.values()),
                             corrupt=model.corrupt or (view.corrupt if view else ""),
                             waits_for=waits_for(model, view.questions if view else ()))

    @property
    def problems(self) -> list[str]:
        """Records of the run that cannot be read or shown, and obstacles for more than one node."""
        view = self._view
        observed = view.problems if view else []
        told = [f"warning: {warning.describe()}" for warning in self.model.state.told[-PROBLEMS:]]
        nodes = view.details.nodes if view is not None and view.details else ()
        held_up = [*shared_outages(nodes), *refused_hosts(nodes)]
        return list(dict.fromkeys([*self.model.problems[-PROBLEMS:], *told, *held_up, *observed]))

    @property
    def order(self) -> list[str]:
        """Return the nodes in the order in which the guardian's journal named them."""
        return list(self.model.state.nodes)

    def _parts(self) -> Parts:
        """Return the parts that are compared as wholes."""
        return replace(self._judged(), gates=self._questions(), queue=self._queue(), notices=self._notices())

    def _judged(self) -> Parts:
        """Return the parts that also depend on an observation."""
        status, reason = self.status
        return Parts(status=status, reason=reason, problems=self.problems, waits=self._waits(),
                     pull_request=self._pull_request())

    def _pull_request(self) -> ShownPullRequest | None:
        pull = self.model.state.pull_request
        reports = self.observation.reports if self.observation else PullRequestReports()
        return ShownPullRequest(pull.state, pull.number, pull.url, without_number(pull.reason, pull.number),
                                pull.waits_for(), pull.since, pull.returns, reports.checks,
                                reports.reviews) if pull.state else None

    def _nodes(self) -> dict[str, PageNode]:
        return {name: self._node(name) for name in self._names()}

    def _names(self) -> list[str]:
        return list(dict.fromkeys([*self.graph, *self.model.state.nodes, *self.model.died]))

    def _node(self, name: str) -> PageNode:
        state, drawn = self.model.state, self.graph.get(name, GraphNode(name))
        common = (name, drawn.label or name, drawn.shape, drawn.agent, self.model.died.get(name, 0))
        node, question = state.nodes.get(name), state.questions.get(name)
        if node is None:
            outcome = state.outcomes.get(name)
            waits = any(wait.node == name for wait in state.waits.values())
            status = "waiting" if waits else PASSED_STATUS.get(outcome.status, "") if outcome else ""
            return PageNode(*common, status, status, reason=outcome.reason if outcome else "",
                            answer=outcome.label if outcome else "")
        entry = self.model.place_in_queue(name, node.attempt)[0] if node.status == IMPL_COMPLETE else None
        place = place_of(self.model, name)
        status = entry.landing if entry is not None else place if place == LandingWord.UNDONE else \
            shown(node.status, node.landing)
        return PageNode(*common, status, place, node.attempt, node.since, node.reason[:TEXT], node.commit,
                        question.text[:TEXT] if question else "", state.held.get(name))

    def _questions(self) -> list[ShownQuestion]:
        return [*map(show_question, self.model.state.waits.values()), *map(show_review, entries_to_approve(self.model))]

    def _waits(self) -> list[ShownWait]:
        """Return what waits for the user, as in `status` and on the home page."""
        view = self._view
        asking = [wait.node for wait in view.waits if wait.kind == WaitKind.ASKS] if view else []
        waits = waits_of(self.model, self.status.status, asking=asking, hint=view.hint if view else "",
                         corrupt=self.model.corrupt or (view.corrupt if view else ""))
        return [project(ShownWait, wait) for wait in waits]

    def _notices(self) -> list[Notice]:
        """Return what to notify the user of now, from the same source as the command of `[notify]`."""
        state = self.model.state
        parked = [ParkedName(f"{name}:{state.nodes[name].attempt}", name, why) for name, why in state.held.items()
                  if name in state.nodes]
        found = open_notifications(state, parked, self.notify_on, state.status if state.over else "")
        return [Notice(one.key, one.event, one.node, clean(one.text)[:TEXT]) for one in found]

    def _queue(self) -> PageQueue:
        """Return the queues of the run as one.

        Its target is the paused one's, else that of the queue in which work of the run waits: a run that lands as a
        whole has two.
        """
        folders = (self.model.queue_folder, self.model.landing_folder)
        queues = {folder: self.model.queues[folder] for folder in folders if folder in self.model.queues}
        if not queues:
            return PageQueue()
        entries = {folder: [_page_entry(entry, ahead + 1) for ahead, entry in enumerate(queue.unfinished())
                            if entry.run == self.model.run] for folder, queue in queues.items()}
        paused = next((folder for folder, queue in queues.items() if queue.pause is not None), None)
        acted_on = paused or next((folder for folder in queues if entries[folder]), next(iter(queues)))
        pause = queues[acted_on].pause
        return PageQueue(pause is not None, f"{pause.reason}: {pause.explain()}" if pause else "",
                         target_of_folder(Path(acted_on)), [entry for folder in queues for entry in entries[folder]])

    # ---- patches

    def _changed(self, record: StoredRecord) -> Parts:
        """Return the parts that have changed, among those that such a record can change."""
        model, touched = self.model, list[str]()
        parts = NOTHING
        if record.journal == QUEUE:
            if record.queue in (model.queue_folder, model.landing_folder):
                status, reason = self.status
                parts = Parts(status=status, reason=reason, queue=self._queue(), gates=self._questions(),
                              waits=self._waits())
                touched = [name for name, node in model.state.nodes.items() if node.status == IMPL_COMPLETE]
        else:
            if record.journal == GUARDIAN:
                parts = replace(self._judged(), gates=self._questions(), notices=self._notices())
            touched = self._touched(record)
        newer = self._newer(parts)
        nodes = {name: node for name in touched if self._sent_nodes.get(name) != (node := self._node(name))}
        if nodes:
            self._sent_nodes.update(nodes)
            newer["nodes"] = nodes
        if record.journal == GUARDIAN and (now := model.followed) != self._sent_followed:
            newer["followed"] = {edge: count for edge, count in now.items() if self._sent_followed.get(edge) != count}
            self._sent_followed = now
        return Parts(**newer)

    def _newer(self, parts: Parts) -> dict[str, Any]:
        """Return the parts that differ from those sent, and mark them as sent."""
        newer = {name: value for name, value in _set_fields(parts).items() if value != getattr(self._sent, name)}
        self._sent = replace(self._sent, **newer)
        return newer

    def _touched(self, record: StoredRecord) -> list[str]:
        """Return the shown nodes that a record may have changed."""
        with suppress(*CANNOT_REPLAY):  # an invalid name, reported elsewhere
            touched = self.model.touched(record)
            return self._names() if touched is None else [
                name for name in touched if name in self.graph or name in self.model.state.nodes
                or name in self.model.died]
        return []

    # ---- lists

    def _list(self, record: StoredRecord, kind: str, text: str) -> Parts:
        """Add a record to the lists; return the additions."""
        data, node = record.entry.data, self.node_of(record)
        name, at = f"{record.journal}:{record.entry.seq}", record.entry.at
        events, signals = list[TimelineEntry](), list[SignalEntry]()
        if kind:
            plain = in_users_words(record.event) if isinstance(record.event, ChildDied | ChildSpawned) else ""
            words = plain or text or str(data.get("why") or data.get("text") or "")
            events.append(TimelineEntry(name, at, kind, node, words[:TEXT],
                                        plain is None or self._is_minor(record.event)))
            self._append(self.timeline, events, TIMELINE)
        if record.entry.kind == "signal" and record.journal != QUEUE:
            signals.append(SignalEntry(name, at, data.get("type", ""), data.get("from", ""),
                                       record.entry.token.partition("#")[0], node, text[:TEXT]))
            self._append(self.signals, signals, SIGNALS)
        return Parts(timeline_add=events or UNSET, signals_add=signals or UNSET)

    def _is_minor(self, event: Any) -> bool:
        """Return whether a record is about routine work of garrison: nothing was lost, and nobody needs to know."""
        if isinstance(event, PullRequestChanged):  # some only record a commit or a number
            # compare with the last one sent, since each record has the whole state of the pull request
            before, self._pull = self._pull, (event.state, event.reason)
            return event.state == PullRequestState.PUSHING or self._pull == before
        return isinstance(event, WorkSaved)

    def _append(self, entries: list[E], added: list[E], most: int) -> None:
        entries += added
        # sort and cut once in `most` records, not at each
        if len(entries) > 2 * most and not self.keeps_all:
            entries[:] = latest_entries(entries, most)

    def _timeline_kind(self, record: StoredRecord) -> str:
        """Return the kind in the timeline of a record other than a death, respawn or parking; '' for most."""
        if record.journal != QUEUE:
            kind = _RECORD_KINDS.get(type(record.event))
            return kind(record.event) if kind else ""
        ours = record.queue == self.model.queue_folder and (
            record.entry.kind in _OF_THE_WHOLE_QUEUE or self.model.merge_entry(record) is not None)
        queue_kind = _QUEUE_KINDS.get(record.entry.kind) if ours else None
        return queue_kind(record.entry.data) if queue_kind else ""

    def node_of(self, record: StoredRecord) -> str:
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


def _agent_of(record: StoredRecord) -> Key | None:
    """Return the agent that a record is about; None for none, or for an invalid name."""
    full = record.entry.data.get("full")
    try:
        return Key.parse(full) if full else None
    except CANNOT_REPLAY:
        return None


def latest_entries(entries: list[E], most: int) -> list[E]:
    return sorted(entries, key=lambda entry: (entry.at, entry.id))[-most:]


def _set_fields(parts: Parts) -> dict[str, Any]:
    return {name: value for name, value in fields_of(parts).items() if value is not UNSET}


def _page_entry(entry: MergeEntry, position: int) -> PageEntry:
    detail = describe_wait(entry.waits_for[1], entry.files) if entry.waits_for else entry.reason[:TEXT]
    return PageEntry(entry.id, entry.node, entry.attempt, entry.branch, entry.status, entry.landing, position,
                     entry.enqueued_at, entry.priority, detail, entry.tests)


def _node_kind(record: NodeChanged) -> str:
    if lands_nothing(record.status, record.landing):
        return "unchanged" if record.landing == LandingWord.NO_CHANGE else "kept"
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
    WaitChanged: lambda record: "" if record.closed else "asks",
    ChildHealed: lambda record: "healed",
    PullRequestChanged: lambda record: "pull_request",
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
"""Records of a merge queue that concern all runs' entries."""
