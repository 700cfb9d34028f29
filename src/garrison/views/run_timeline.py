"""Timeline of a run: activities and waits of each node, and costs over time.

A `TimelineModel` replays records into the run's `RunModel` and after each one determines the activity of the affected
nodes; a span starts and ends where that changes. So the spans of a node never overlap, and they use the words of all
other views. Times are seconds since the epoch. `garrison timeline` and the page draw a `RunTimeline`. All except the
reader at the end is pure. It adds data outside journals: costs, waits for limits, and the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from heapq import heappop, heappush
from pathlib import Path
from types import MappingProxyType

import msgspec

from garrison.agents.conversation.policy import NEEDS_PERSON
from garrison.errors import GarrisonError, NotFound
from garrison.merge import records as queue_records
from garrison.merge.records import EntryEnqueued, EntryLanded, GateStarted, StatusChanged, VerdictGiven
from garrison.pipeline.node_status import IMPL_COMPLETE, lands_nothing
from garrison.pipeline.questions import SIGNAL
from garrison.records import costs
from garrison.records import run as run_records
from garrison.records.costs import UsageRecord
from garrison.records.events import ChildDied, ChildSpawned, GuardianSignal
from garrison.records.json_io import read_lines
from garrison.records.names import Key
from garrison.records.run import Launch, RunFiles
from garrison.run.plan import read_plan
from garrison.run.state import ENDED, NodeState
from garrison.run.status import Status
from garrison.supervise.death_classes import RATE_LIMIT, ruling
from garrison.system.clock import from_iso
from garrison.values import Value, median, replace
from garrison.views.event_log import NODE_ROLES, QUEUE, RUNNER, EventLog, StoredRecord
from garrison.views.run_model import CANNOT_REPLAY, RunModel
from garrison.views.run_view import RunReader

TEXT = 300
"""Maximum length of a reason within a timeline."""


class SpanKind(StrEnum):
    """Activity of a span; the values are the words of the other views, if any."""

    READY = "ready"
    """Its predecessors have landed, and no agent is free."""
    STARTING = "starting"
    """Its runner and worktree are created, or its set-up runs."""
    WORKING = "working"
    CHECKING = "checking"
    """Its acceptance command or validator runs."""
    RESTARTING = "restarting"
    """Its agent or runner died and its successor has not started."""
    ASKS = "asks"
    """It waits for the user: a question of its agent or of the pipeline."""
    SIGNAL = "signal"
    """It waits for a signal from outside."""
    LIMIT = "limit"
    """It waits for a limit: of a rate, a budget, an account."""
    PARKED = "parked"
    QUEUED = "queued"
    TESTING = "testing"
    APPROVAL = "waiting for approval"
    STOPPED = "stopped"


class MarkKind(StrEnum):
    """Kind of a marked moment."""

    RETRY = "retry"
    DIED = "died"
    LANDED = "landed"
    NO_CHANGE = "no change"
    KEPT = "kept"
    FAILED = "failed"
    CONFLICT = "conflict"
    REJECTED = "rejected"
    ANSWERED = "answered"


FOR_PEOPLE = (SpanKind.ASKS, SpanKind.APPROVAL, SpanKind.PARKED)
"""Kinds of spans in which a node waits for the user."""


class Span(Value):
    """Activity of a node; `end` is None while it lasts."""

    kind: SpanKind
    begin: float
    end: float | None
    attempt: int = 1
    text: str = ""

    def length(self, now: float) -> float:
        """Return its duration so far in seconds."""
        return max(0.0, (now if self.end is None else self.end) - self.begin)


class Mark(Value):
    """Moment of a node."""

    kind: MarkKind
    at: float
    attempt: int = 1
    text: str = ""


class Lane(Value):
    """Node: its spans, which do not overlap, and its marks, both in order."""

    node: str
    status: str
    """Journaled status of the node; '' for a question of the pipeline."""
    spans: Sequence[Span]
    marks: Sequence[Mark]
    seconds: Mapping[str, float] = MappingProxyType({})
    """Kind → seconds spent in it."""


class ShownGateRun(Value):
    """Run of the merge queue's gate for this run; `result` is '' while it lasts."""

    begin: float
    end: float | None
    entries: int
    result: str = ""


class QueueFigures(Value):
    """Throughput of the merge queue for this run; None if there is nothing to measure."""

    landed: int = 0
    per_hour: float | None = None
    """Landings per hour, from the first entry to the last landing."""
    gate_s: float | None = None
    """Median duration of a gate run."""
    wait_s: float | None = None
    """Median time from entry to landing."""
    red: int = 0
    """Gate runs that did not pass."""
    gates: Sequence[ShownGateRun] = ()
    landings: Sequence[float] = ()


STEPS = 60
"""Number of times at which sums are given."""
SHOWN = 12
"""Number of nodes with their own series, most expensive first; the others share one."""
OTHERS = "others"
UNKNOWN = "unknown"
"""Model of a cost without a call."""


class Payment(Value):
    """Model call, or another cost of a session."""

    at: float
    node: str
    model: str
    usd: float


class CostSeries(Value):
    """Cumulative US dollars at `times`, by node and by model; `usd` is the total of the last ones."""

    times: Sequence[float] = ()
    nodes: Mapping[str, Sequence[float]] = MappingProxyType({})
    models: Mapping[str, Sequence[float]] = MappingProxyType({})
    usd: float = 0.0


NO_COSTS = CostSeries()


def payments(node: str, records: Sequence[UsageRecord]) -> list[Payment]:
    """Return the costs in a node's usage file, each at its time; they add up to the file's sum."""
    whole = costs.total(records).usd
    calls = {f"{record.session}/{record.message}": record for record in records if record.kind == "call"}
    # the billed total is certain, its times are not: divide the sum in proportion to the estimates
    estimated = sum(call.usd for call in calls.values())
    if estimated:
        share = whole / estimated
        return [Payment(from_iso(call.at), node, call.model or UNKNOWN, call.usd * share) for call in calls.values()]
    last = records[-1] if records else None
    return [Payment(from_iso(last.at), node, last.model or UNKNOWN, whole)] if last is not None and whole else []


def cost_series(paid: Iterable[Payment], begin: float, end: float, steps: int = STEPS) -> CostSeries:
    """Return the sums from `begin` to `end`; costs outside count at the nearer end."""
    ordered = sorted(paid, key=lambda each: each.at)
    if not ordered:
        return NO_COSTS
    width = max(end - begin, 0.001) / steps
    times = [round(begin + width * (step + 1), 3) for step in range(steps)]
    nodes: dict[str, list[float]] = {}
    models: dict[str, list[float]] = {}
    for each in ordered:
        step = min(max(int((each.at - begin) / width), 0), steps - 1)
        for name, series in ((each.node, nodes), (each.model, models)):
            series.setdefault(name, [0.0] * steps)[step] += each.usd
    summed = _summed(models)
    return CostSeries(times, _most(_summed(nodes)), summed, round(sum(sums[-1] for sums in summed.values()), 6))


def _summed(series: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return cumulative series, the largest total first."""
    summed: dict[str, list[float]] = {}
    for name, parts in series.items():
        total = 0.0
        summed[name] = [round(total := total + part, 6) for part in parts]
    return dict(sorted(summed.items(), key=lambda item: -item[1][-1]))


def _most(series: Mapping[str, list[float]]) -> dict[str, list[float]]:
    shown = dict(list(series.items())[:SHOWN])
    rest = list(series.values())[SHOWN:]
    return {**shown, **({OTHERS: [round(sum(sums), 6) for sums in zip(*rest, strict=True)]} if rest else {})}


class RestEstimate(Value):
    """Estimate of the rest: duration of the unfinished nodes, without waits for users."""

    seconds: float
    nodes: int
    """Number of unfinished nodes."""
    sample: int
    """Number of finished nodes behind the estimate."""


class RunTimeline(Value):
    """Timeline of one run at one moment, for the page and `timeline --json`, to milliseconds."""

    run: str
    status: str
    begin: float
    end: float
    """Now, or the time of its end or interruption."""
    is_over: bool = msgspec.field(name="over")
    duration_s: float
    seconds: Mapping[str, float]
    """Kind → seconds over all nodes."""
    lanes: Sequence[Lane]
    queue: QueueFigures
    estimate: RestEstimate | None
    costs: CostSeries = NO_COSTS
    problems: Sequence[str] = ()
    """Unreadable records."""


def to_ms(seconds: float) -> float:
    return round(seconds, 3)


def sum_seconds(spans: Iterable[Span], now: float) -> dict[str, float]:
    """Return kind → seconds spent in it."""
    spent: dict[str, float] = {}
    for span in spans:
        spent[span.kind] = spent.get(span.kind, 0.0) + span.length(now)
    return {kind: to_ms(seconds) for kind, seconds in spent.items()}


# ---- replaying


@dataclass
class _Track:
    """Spans and marks of one node so far; `open` is its current activity, `since` the start of that."""

    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    open: Span | None = None
    down: str = ""
    """Class of the death whose successor has not started, '' for none."""
    worked_in: int = 0
    """Attempt with a started agent."""
    entry: str = ""
    """Its latest merge entry."""

    def show(self, kind: SpanKind | None, at: float, attempt: int, text: str) -> None:
        """Record its activity from `at` on; None for none."""
        before = self.open
        if before is not None:
            if (before.kind, before.attempt) == (kind, attempt):
                return
            # records of one moment do not make a span; the last one determines the activity from then on
            if at > before.begin:
                self.spans.append(replace(before, end=at))
        self.open = Span(kind, at, None, attempt, text[:TEXT]) if kind is not None else None

    def mark(self, kind: MarkKind, at: float, attempt: int = 1, text: str = "") -> None:
        """Add a mark."""
        self.marks.append(Mark(kind, at, attempt, text[:TEXT]))


@dataclass
class TimelineModel:
    """Timeline of one run, replayed from its records in time order."""

    run: str
    model: RunModel = field(init=False)
    first: float = 0.0
    last: float = 0.0
    """Times of the first and the last record of the run's own journals."""
    _tracks: dict[str, _Track] = field(default_factory=dict)
    _gates: dict[str, ShownGateRun] = field(default_factory=dict)
    """Job → gate run with entries of this run."""
    _entered: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Merge entry → its node and enqueueing time."""
    _landed: dict[str, float] = field(default_factory=dict)
    """Merge entry → landing time."""

    def __post_init__(self) -> None:
        self.model = RunModel(self.run)

    def apply(self, record: StoredRecord) -> None:
        """Replay one record."""
        if record.entry.kind == "decision":
            return
        # check before and after: a record may be the first to name a node, or the last one that knows its entry
        nodes = self._touched(record)
        state = self.model.state
        before = {name: state.nodes.get(name) for name in nodes}
        problems = len(self.model.problems)
        self.model.apply(record)
        try:
            at = to_ms(from_iso(record.entry.at))
            if len(self.model.problems) == problems:
                self._apply_queue(record, at) if record.journal == QUEUE else self._apply_process(record, at)
        except CANNOT_REPLAY:
            return  # the model reports records that cannot be replayed
        for name in dict.fromkeys([*nodes, *self._touched(record)]):
            self._mark_change(name, before.get(name), at)
            self._show(name, at)

    def _touched(self, record: StoredRecord) -> list[str]:
        """Return the nodes that a record may change: checking all for each record would be too slow."""
        data, kind = record.entry.data, record.entry.kind
        known = [*self.model.state.nodes, *self._tracks]
        if record.journal == QUEUE:
            if kind in ("pause", "resume"):
                return known
            entries = data.get("entries") or [data.get("entry")]
            return [self._entered[name][0] for name in entries if name in self._entered]
        if record.journal.startswith(RUNNER):
            return [record.journal.removeprefix(RUNNER)]
        touched = None if kind == "run" or data.get("run") else self.model.touched(record)
        return known if touched is None else touched

    def _track(self, node: str) -> _Track:
        return self._tracks.setdefault(node, _Track())

    def _attempt(self, node: str) -> int:
        found = self.model.state.nodes.get(node)
        return found.attempt if found else 1

    def _apply_process(self, record: StoredRecord, at: float) -> None:
        self.first, self.last = self.first or at, max(self.last, at)
        match record.event:
            case ChildDied() as death if (key := Key.parse(death.full)).role in NODE_ROLES:
                self._track(key.name).down = death.death_class
                who = "its agent" if key.role == "orchestrator" else "its runner"
                self._track(key.name).mark(MarkKind.DIED, at, death.attempt, f"{who}: {death.why or death.death_class}")
            case ChildSpawned() as spawn if (key := Key.parse(spawn.full)).role in NODE_ROLES:
                track = self._track(key.name)
                track.down = ""
                if key.role == "orchestrator":
                    track.worked_in = spawn.attempt
            case GuardianSignal() as signal if signal.answer and signal.node:
                self._track(signal.node).mark(MarkKind.ANSWERED, at, self._attempt(signal.node))

    def _apply_queue(self, record: StoredRecord, at: float) -> None:
        match queue_records.decode(record.entry.kind, record.entry.data):
            case EntryEnqueued() as entered if entered.run == self.run:
                self._entered[entered.entry] = (entered.node, at)
                self._track(entered.node).entry = entered.entry
            case StatusChanged(status="conflict" | "rejected" as status) as change:
                for node, _ in self._ours(change.entries):
                    self._track(node).mark(MarkKind(status), at, self._attempt(node), change.reason)
            case GateStarted() as gate if ours := self._ours(gate.entries):
                self._gates[gate.job] = ShownGateRun(at, None, len(ours))
            case VerdictGiven() as verdict if verdict.job in self._gates:
                self._gates[verdict.job] = replace(self._gates[verdict.job], end=at, result=verdict.result)
            case EntryLanded() as landed if landed.entry in self._entered:
                self._landed[landed.entry] = at

    def _ours(self, entries: Iterable[str]) -> list[tuple[str, float]]:
        return [self._entered[name] for name in entries if name in self._entered]

    def _mark_change(self, name: str, before: NodeState | None, at: float) -> None:
        """Add a mark for a change of a node's status."""
        now = self.model.state.nodes.get(name)
        if now is None or before is None or (now.status, now.attempt) == (before.status, before.attempt):
            return
        track = self._track(name)
        if now.status == "active" and now.attempt > 1 and now.attempt != before.attempt:
            track.mark(MarkKind.RETRY, at, now.attempt, now.reason)
        elif now.status == "validated":
            mark = MarkKind(now.landing) if lands_nothing(now.status, now.landing) else MarkKind.LANDED
            track.mark(mark, at, now.attempt, now.commit[:10])
        elif now.status == "failed":
            track.mark(MarkKind.FAILED, at, now.attempt, now.reason)

    def _show(self, name: str, at: float) -> None:
        kind, text = self._activity(name)
        if kind is not None or name in self._tracks:
            self._track(name).show(kind, at, self._attempt(name), text)

    # ---- what a node does

    def _activity(self, name: str) -> tuple[SpanKind | None, str]:
        """Return a node's current activity and a word about it; None for none."""
        state = self.model.state
        wait = next((wait for wait in state.waits.values() if wait.node == name), None)
        if wait is not None:
            return (SpanKind.SIGNAL, wait.signal) if wait.kind == SIGNAL else (SpanKind.ASKS, wait.question.text)
        node = state.nodes.get(name)
        if node is None or node.status not in ("pending", "active", IMPL_COMPLETE):
            return None, ""
        if node.status == "pending":
            return (SpanKind.PARKED, state.held[name]) if name in state.held and state.status not in ENDED else (
                None, "")
        if state.status in ENDED:
            return SpanKind.STOPPED, state.reason
        if (why := self.model.why_parked(name)) is not None:
            return SpanKind.PARKED, why
        return self._landing(name) if node.status == IMPL_COMPLETE else self._work(name, node.attempt)

    def _work(self, name: str, attempt: int) -> tuple[SpanKind, str]:
        track, question = self._track(name), self.model.state.questions.get(name)
        if question is not None:
            return SpanKind.ASKS, question.text
        if track.down:
            waits = ruling(track.down).follows in ("reset", "pause", "person")
            return (SpanKind.LIMIT if waits else SpanKind.RESTARTING), track.down.replace("_", " ")
        if job := self.model.job(name, attempt):
            return (SpanKind.STARTING if job == "setup" else SpanKind.CHECKING), job
        return (SpanKind.WORKING if track.worked_in == attempt else SpanKind.STARTING), ""

    def _landing(self, name: str) -> tuple[SpanKind, str]:
        queue = self.model.queue
        entry = queue.entries.get(self._track(name).entry) if queue is not None else None
        if entry is None or queue is None:
            return SpanKind.QUEUED, ""
        if entry.awaits_approval:
            return SpanKind.APPROVAL, ""
        if entry.status == "held":
            return SpanKind.PARKED, "held in the merge queue"
        if queue.pause is not None:
            return SpanKind.QUEUED, f"the queue is paused: {queue.pause.reason}"
        is_tested = entry.status in ("candidate", "testing", "landing")
        return (SpanKind.TESTING if is_tested else SpanKind.QUEUED), entry.reason

    # ---- the result

    def timeline(self, now: float, status: str, *, alive: bool, predecessors: Mapping[str, Sequence[str]],
                 agents: int = 1, waits: Mapping[str, Sequence[Span]] | None = None) -> RunTimeline:
        """Return the timeline so far.

        Args:
            now: seconds since the epoch.
            status: status of the run (`run.status.decide_status`).
            alive: whether any of its processes is alive; otherwise nothing happened after its last record.
            predecessors: node → nodes that must be over before it starts; {} if the flow walks one edge at a time.
            agents: maximum number of nodes at work.
            waits: node → times during which its session waited for a limit, which no journal records.
        """
        over = status in ENDED or not alive
        end = (self.last or to_ms(now)) if over else to_ms(now)
        begin = self.first or end
        names = list(dict.fromkeys([*self.model.state.nodes, *self._tracks]))
        with_ready: dict[str, Lane] = {}
        lanes = {name: self._lane(name, end if over else None, (waits or {}).get(name, ())) for name in names}
        for name, lane in lanes.items():
            spans = [*ready_spans(lane, lanes, predecessors, begin, over), *lane.spans]
            with_ready[name] = replace(lane, spans=spans, seconds=sum_seconds(spans, end))
        shown = sorted(with_ready.values(), key=lambda lane: _begin(lane) or float("inf"))  # stable: graph order
        estimate = None if status in (Status.DONE, Status.FAILED) else estimate_rest(shown, predecessors, agents, end)
        return RunTimeline(self.run, status, begin, end, over, to_ms(end - begin),
                           sum_seconds((span for lane in shown for span in lane.spans), end), shown,
                           self._queue_figures(), estimate)

    def _lane(self, name: str, end: float | None, waits: Sequence[Span]) -> Lane:
        track = self._tracks.get(name, _Track())
        spans = list(track.spans)
        if track.open is not None and (end is None or end > track.open.begin):
            spans.append(replace(track.open, end=end))
        node = self.model.state.nodes.get(name)
        return Lane(name, node.status if node else "", overlaid(spans, waits), list(track.marks))

    def _queue_figures(self) -> QueueFigures:
        gates = sorted(self._gates.values(), key=lambda gate: gate.begin)
        lengths = [gate.end - gate.begin for gate in gates if gate.end is not None]
        waits = [at - self._entered[name][1] for name, at in self._landed.items()]
        landings = sorted(self._landed.values())
        spent = landings[-1] - min(at for _, at in self._entered.values()) if landings else 0.0
        return QueueFigures(len(landings), len(landings) * 3600 / spent if spent > 0 else None, median(lengths),
                            median(waits), sum(1 for gate in gates if gate.result not in ("", "green")), gates,
                            landings)


# ---- pure functions of spans


def _begin(lane: Lane) -> float | None:
    return lane.spans[0].begin if lane.spans else lane.marks[0].at if lane.marks else None


def _over_at(lane: Lane) -> float | None:
    """Return when a node ended, None if it has not; a question of the pipeline ends with its answer."""
    ends = [mark.at for mark in lane.marks if mark.kind in (MarkKind.LANDED, MarkKind.NO_CHANGE, MarkKind.KEPT)]
    if lane.status == "validated":
        return ends[-1] if ends else 0.0
    if lane.status == "" and lane.spans and lane.spans[-1].end is not None:
        return lane.spans[-1].end
    return None


def ready_spans(lane: Lane, lanes: Mapping[str, Lane], predecessors: Mapping[str, Sequence[str]], begin: float,
                over: bool) -> list[Span]:
    """Return the time between the end of a node's predecessors and its first start, when it waits for a free agent."""
    if lane.node not in predecessors or lane.status in ("", "skipped"):
        return []
    first = _begin(lane)
    if first is None and (over or lane.status != "pending"):
        return []
    ends = [_over_at(lanes[name]) if name in lanes else None for name in predecessors[lane.node]]
    if any(end is None for end in ends):
        return []
    since = max([begin, *(end for end in ends if end is not None)])
    return [Span(SpanKind.READY, since, first)] if first is None or first > since else []


def overlaid(spans: Sequence[Span], waits: Sequence[Span]) -> list[Span]:
    """Return spans of work, replacing the parts in which the session waited for a limit."""
    result = list(spans)
    for wait in waits:
        parts: list[Span] = []
        for span in result:
            parts += _without(span, wait) if span.kind == SpanKind.WORKING else [span]
        result = parts
    return result


def _without(span: Span, wait: Span) -> list[Span]:
    """Split a span of work into up to three parts: before, during and after a wait."""
    last = float("inf")
    end, until = last if span.end is None else span.end, last if wait.end is None else wait.end
    begin, stop = max(span.begin, wait.begin), min(end, until)
    if begin >= stop:
        return [span]
    middle = replace(wait, begin=begin, end=None if stop == last else stop, attempt=span.attempt)
    before = [replace(span, end=begin)] if begin > span.begin else []
    return [*before, middle, *([replace(span, begin=stop)] if stop < end else [])]


# ---- estimating

_EFFORT = (SpanKind.STARTING, SpanKind.WORKING, SpanKind.CHECKING, SpanKind.RESTARTING, SpanKind.QUEUED,
           SpanKind.TESTING)
"""Kinds of spans that count as a node's own time, without waits for the user, a limit or an agent."""


def effort(lane: Lane, now: float) -> float:
    """Return the seconds used by a node so far in all its attempts."""
    return sum(span.length(now) for span in lane.spans if span.kind in _EFFORT)


def estimate_rest(lanes: Sequence[Lane], predecessors: Mapping[str, Sequence[str]], agents: int,
                  now: float) -> RestEstimate | None:
    """Estimate the duration of the unfinished nodes; None without a finished node, or if none is left.

    Each is assumed to take the median of the finished ones, in the order of the graph, `agents` at once.
    """
    nodes = [lane for lane in lanes if lane.status]
    finished = [effort(lane, now) for lane in nodes if lane.status == "validated" and lane.spans]
    left = {lane.node: lane for lane in nodes if lane.status in ("pending", "active", IMPL_COMPLETE)}
    usual = median(finished)
    if usual is None or not left:
        return None
    rest = {name: max(usual - effort(lane, now), 0.0) for name, lane in left.items()}
    before = {name: [other for other in predecessors.get(name, ()) if other in left] for name in left}
    return RestEstimate(round(simulate(rest, before, max(1, agents)), 1), len(left), len(finished))


def simulate(rest: Mapping[str, float], before: Mapping[str, Sequence[str]], agents: int) -> float:
    """Return when the last task ends if `agents` of them run at once, each after those `before` it."""
    open_before = {name: len(set(others)) for name, others in before.items()}
    after: dict[str, list[str]] = {}
    for name, others in before.items():
        for other in set(others):
            after.setdefault(other, []).append(name)
    # list scheduling: the first ready task gets the first free agent; in a loop of the graph no task is ever ready
    ready = [(0.0, name) for name in rest if not open_before.get(name)]
    ready_at = dict.fromkeys(rest, 0.0)
    free, last = [0.0] * agents, 0.0
    while ready:
        at, name = heappop(ready)
        end = max(at, heappop(free)) + rest[name]
        heappush(free, end)
        last = max(last, end)
        for other in after.get(name, ()):
            open_before[other] -= 1
            ready_at[other] = max(ready_at[other], end)
            if not open_before[other]:
                heappush(ready, (ready_at[other], other))
    return last


# ---- reading

LIMITS = frozenset({RATE_LIMIT, *NEEDS_PERSON})
"""Ends of a session's connection after which it waits for a limit."""


class TimelineReader:
    """Reads one run's timeline, from one thread at a time; NotFound for a run that does not exist."""

    def __init__(self, home: Path, run: str) -> None:
        self.home, self.run, self.files = home, run, RunFiles(home, run)
        launch = run_records.load(Launch, self.files.launch)
        if launch is None:
            raise NotFound(f"no run {run} in {home}; `garrison status` lists the runs")
        self.launch, self._log, self._model = launch, EventLog(home, run), TimelineModel(run)
        self._runs, self._usage = RunReader(home), costs.UsageCache()

    def read(self) -> RunTimeline:
        """Return the timeline up to now."""
        for record in self._log.records():
            self._model.apply(record)
        view = self._runs.read(self.run, details=False)
        now = self._runs.observer.clock.time()
        made = self._model.timeline(now, view.status, alive=view.living, predecessors=self._predecessors,
                                    agents=self.launch.max_agents, waits=self._waits())
        return replace(made, costs=self._costs(made), problems=self.problems)

    @property
    def problems(self) -> list[str]:
        return [*sorted(self._log.problems), *self._model.model.problems]

    @cached_property
    def _predecessors(self) -> Mapping[str, Sequence[str]]:
        try:
            plan = read_plan(self.files)
        except (GarrisonError, OSError):
            return {}
        return {task: plan.nearest_before(task, lambda name: name in plan.tasks or name in plan.waits)
                for task in plan.tasks} if plan.flow == "dag" else {}

    def _costs(self, made: RunTimeline) -> CostSeries:
        paid = [each for _, node, path in costs.usage_files(self.home, self.run)
                for each in payments(node, self._usage.read(path))]
        return cost_series(paid, made.begin, made.end)

    def _waits(self) -> dict[str, list[Span]]:
        """Return node → times when its sessions waited for a limit: from that end to the next prompt."""
        waits: dict[str, list[Span]] = {}
        for endings in self.files.root.glob("nodes/*/*/claude/endings.jsonl"):
            spans = limit_spans(read_lines(endings), read_lines(endings.with_name("prompts.jsonl")))
            if spans:
                waits.setdefault(endings.parent.parent.parent.name, []).extend(spans)
        return waits


def limit_spans(endings: Sequence[Mapping[str, object]], prompts: Sequence[Mapping[str, object]]) -> list[Span]:
    """Return the times when a session waited for a limit; `prompts` are its connections' first messages. Pure."""
    begins = sorted(at for each in prompts if isinstance(at := each.get("at"), int | float))
    return [Span(SpanKind.LIMIT, to_ms(at), next((to_ms(begin) for begin in begins if begin > at), None),
                 text=str(ending.get("reason") or ending.get("kind")))
            for ending in endings if ending.get("kind") in LIMITS and isinstance(at := ending.get("at"), int | float)]
