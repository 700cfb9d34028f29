"""One run at one moment: its status, questions, processes, nodes, queue and limits, read from records and journals.

`RunReader` only reads. When called repeatedly, it reads journals from their last position, and records only if their
file changed. Unreadable records are listed in `problems`, never skipped silently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from garrison.errors import GarrisonError
from garrison.pipeline.node_status import LandingWord
from garrison.pipeline.questions import SIGNAL, OpenWait
from garrison.processes.runtime import Runtime
from garrison.records import run as run_records
from garrison.records.costs import UsageCache
from garrison.records.events import GitChanges, RunChanged
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.journal import read_last
from garrison.records.names import ROLES, Key
from garrison.records.run import LAND_NODE, Launch, RunFiles, RunSandbox
from garrison.run.guardian_view import find_parked
from garrison.run.state import (
    DECLINED,
    LANDED,
    NO_CHANGE,
    NOT_LANDED,
    REFUSED,
    REQUESTED,
    TESTED,
    describe_landed,
    describe_next,
)
from garrison.run.status import FINAL, UNFINISHED, Status, check_journal_present, decide_status
from garrison.system.clock import from_iso
from garrison.system.machine import find_lack
from garrison.system.stamps import modified_at
from garrison.values import Value, fields_of, project
from garrison.views.event_log import GUARDIAN, EventLog, StoredRecord
from garrison.views.limits import Limit, Used, limits
from garrison.views.node_view import (
    PLACES,
    FailedNode,
    NodeReader,
    NodeView,
    QueueEntryView,
    RecordReader,
    ShownNode,
    place_of,
)
from garrison.views.process_view import ProcessView, ShownProcess, observe_process
from garrison.views.run_model import Lifecycle, RunModel
from garrison.views.usage import describe_cost, rounded
from garrison.views.waits import PersonWait, ShownWait, entries_to_approve, waits_of

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Sequence

    from garrison.pipeline.plan import RunPlan
    from garrison.records.events import ForeignMove, Warned
    from garrison.records.journal import Entry

PROBLEMS = 20
"""Maximum number of listed records that cannot be shown, latest ones."""


class RunLandingView(Value):
    """Landing of a run whose nodes land on its own branch; `land` is `run`, or `none` for one that stays there."""

    land: str
    branch: str
    progress: str
    """How much has landed, and where, in words."""
    status: str
    """queued, testing, waiting for approval, landed, rejected, no change; '' before its exit."""
    commit: str = ""
    reason: str = ""


class RunFacts(Value, kw_only=True):
    """Fields of a run for JSON."""

    run_id: str
    status: Status
    reason: str
    counts: Mapping[str, int]
    """Place → its nodes."""
    total: int
    pipeline_id: str
    repo: str
    base: str
    adhoc: bool
    """True if it is a single node without a guardian."""
    created_at: str
    age_s: float | None
    deaths: int
    folder: str
    problems: list[str] = msgspec.field(default_factory=list)
    candidates: int = 0
    """Number of nodes whose work lands only as another node's."""
    lands: RunLandingView | None = None
    """Its landing as a whole; None if its nodes land individually."""
    sandbox: str = ""
    """Line about its sandbox and the gaps of that; '' in older runs."""


class RunView(RunFacts, kw_only=True):
    """Run at one moment; `details` is None if only its line is shown."""

    gates: list[OpenWait]
    questions: list[str]
    """Nodes that wait for the user's answer: to their agent, or to a question of the graph."""
    step: str
    """Advice for a run that needs the user to continue; '' for none."""
    processes: list[ProcessView]
    branch: str = ""
    """Word for the landing of an ad-hoc run's branch; '' before it is queued."""
    foreign_moves: Sequence[ForeignMove] = ()
    """Moves of its target by others than a merge queue."""
    warnings: Sequence[Warned] = ()
    """Changes of git's configuration, of hooks and of the gate since its launch."""
    corrupt: str = ""
    """Why its records cannot be trusted, '' while they can."""
    sandbox_gaps: bool = False
    """True if a sandbox has gaps."""
    waits: Sequence[PersonWait] = ()
    """Everything in it that waits for the user."""
    asking: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Place → nodes that wait for the user's answer or approval."""
    ended_at: str = ""
    """Time of its guardian's last record; '' if there is none."""

    @property
    def details(self) -> RunInFull | None:
        """Return itself if read in full, else None."""
        return self if isinstance(self, RunInFull) else None

    @property
    def open_gates(self) -> list[ListedQuestion]:
        return [ListedQuestion(wait.node, wait.place, wait.kind, wait.question.text,
                               [option.label for option in wait.question.options], wait.signal, wait.deadline or None,
                               wait.summary()) for wait in self.gates]

    @property
    def hint(self) -> str:
        """Return advice for a run that needs the user to continue; '' for none."""
        return _advice(self.status, self.step)

    @property
    def landed(self) -> int:
        return self.counts["landed"]

    @property
    def waiting(self) -> bool:
        """Return whether it needs the user's answer or an external signal to continue."""
        return self.status == Status.WAITING

    @property
    def progress(self) -> str:
        """Describe how much of it has landed, and where: `3 of 6 landed`."""
        if self.adhoc:
            return f"ad hoc, {self.branch}" if self.branch else "ad hoc"
        if not self.total and self.status == "new":
            return "starting"
        unchanged = self.counts.get(LandingWord.NO_CHANGE, 0)
        more = f", {unchanged} {LandingWord.NO_CHANGE}" if unchanged else ""
        more += f", {undone} {LandingWord.UNDONE}" if (undone := self.counts.get(LandingWord.UNDONE, 0)) else ""
        return self.lands.progress if self.lands else f"{self.landed} of {self.total - self.candidates} landed{more}"

    @property
    def living(self) -> bool:
        return any(process.living for process in self.processes)

    def process(self, role: str) -> ProcessView | None:
        return next((process for process in self.processes if process.role == role), None)

    @property
    def merged(self) -> int:
        """Return `landed` by its name in version 0.1."""
        return self.landed


class RunInFull(RunView, kw_only=True):
    """Run with all details."""

    nodes: list[NodeView]
    failed: list[FailedNode]
    queue: ListedPause | None
    """Pause of its merge queue."""
    landing: list[QueueEntryView]
    events: list[Lifecycle]
    limits: list[Limit]
    usd: float | None = None
    """Cost of its model calls, None if there were none."""
    cost: str = ""
    """The same in words."""


# ---- as `status --json` prints them


class ListedQuestion(Value):
    """Open question or signal of the pipeline."""

    node: str
    place: str
    kind: str
    text: str
    options: list[str]
    signal: str
    deadline: str | None
    doing: str


class ListedPause(Value):
    """Pause of a merge queue."""

    paused: str
    detail: str


class ListedMove(Value):
    """Move of the target by others than a queue; see `ForeignMove`."""

    branch: str
    old: str
    new: str
    at_work: list[str]
    subject: str
    rewritten: bool


class ListedWarning(Value):
    """Change of something that the run depends on; see `Warned`."""

    about: str
    text: str
    at_work: list[str]
    state: str
    changes: GitChanges


class ShownRun(RunFacts, kw_only=True):
    """Line of a run."""

    waiting: bool
    landed: int
    merged: int
    hint: str
    open_gates: list[ListedQuestion] = msgspec.field(name="gates")
    waits: list[ShownWait]
    foreign_moves: list[ListedMove]
    warnings: list[ListedWarning]
    processes: list[ShownProcess] = msgspec.field(name="layers")


class ShownInFull(ShownRun, kw_only=True):
    """Run with all details."""

    nodes: list[ShownNode]
    failed: list[FailedNode]
    queue: ListedPause | None
    landing: list[QueueEntryView]
    events: list[Lifecycle]
    limits: list[Limit]
    usd: float | None


def show_run(view: RunView) -> ShownRun:
    return project(ShownInFull if view.details else ShownRun, view)


class _FollowedRun:
    """Journals of one run, replayed as far as read."""

    def __init__(self, home: Path, launch: Launch, unrecorded: Mapping[Path, Sequence[Entry]]) -> None:
        run, self.created_at = launch.run_id, launch.created_at
        self.files, self.log, self.model = RunFiles(home, run), EventLog(home, run, unrecorded), RunModel(run)
        self.ended_at = ""
        self._plan: tuple[str, RunPlan] | None = None
        """Current text of the graph, and its plan."""

    def refresh(self, *, guardian_only: bool) -> None:
        """Read new records."""
        for record in self.log.guardian_records():
            self._apply(record)
        state = self.model.state
        # only runners know whether a question is still open, only the queue whether an entry waits for the user
        if not guardian_only or state.questions or "impl_complete" in state.statuses.values():
            for record in self.log.records():
                self._apply(record)

    def _apply(self, record: StoredRecord) -> None:
        self.model.apply(record)
        if record.journal == GUARDIAN:
            self.ended_at = record.entry.at

    @property
    def plan(self) -> RunPlan:
        """Return the run's plan, regardless of the options of its launch."""
        from garrison.run.plan import change_plan, read_plan  # imported late: an ended run is shown without its graph

        text = self.model.state.graph
        if self._plan is None or self._plan[0] != text:
            self._plan = text, change_plan(read_plan(self.files, as_launched=True), text)
        return self._plan[1]


class RunReader:
    """Reads the runs of one home repeatedly; `unrecorded`: see `EventLog`."""

    def __init__(self, home: Path, environ: Mapping[str, str] | None = None,
                 unrecorded: Mapping[Path, Sequence[Entry]] | None = None, *, with_costs: bool = False) -> None:
        """Open a home. `with_costs`: read costs as well for runs read in full, from one or more files per node."""
        self.home, self._unrecorded, self._usage = home, unrecorded or {}, UsageCache() if with_costs else None
        runtime = Runtime.real(home, environ)
        self.store, self.observer, self.timing = runtime.store, runtime.observer, runtime.timing
        self._records = RecordReader()
        self._followed: dict[str, _FollowedRun] = {}
        self._final: dict[str, tuple[tuple[float, float], RunView]] = {}
        """Ended run → last change of its files, and its line."""

    def runs(self) -> list[str]:
        """Return the ids of all runs, oldest first."""
        return run_records.list_runs(self.home)

    def read_all(self, in_full: Container[str] = ()) -> list[RunView]:
        """Return all runs, oldest first, those `in_full` with details.

        An ended run is read again only if its journal changed: a home with hundreds of ended runs costs little more
        than the few active ones.
        """
        names = self.runs()
        self._final = {run: final for run, final in self._final.items() if run in set(names)}
        processes = self._list_processes(names)
        return [self._read_unless_final(run, processes.get(run, ()), details=run in in_full) for run in names]

    def read_each(self, runs: Collection[str], *, details: bool = False) -> list[RunView]:
        """Return the current state of some runs, listing the home's processes once for all."""
        processes = self._list_processes(runs)
        return [self.read(run, details=details, processes=processes.get(run, ())) for run in runs]

    def is_done(self, run: str) -> bool:
        """Return whether a run succeeded and nothing has happened since, from the last record of its journal alone."""
        last = read_last(RunFiles(self.home, run).journal)
        return last is not None and last.kind == RunChanged.kind and last.data.get("status") == Status.DONE

    def _read_unless_final(self, run: str, processes: Sequence[Key], *, details: bool) -> RunView:
        files = RunFiles(self.home, run)
        # before reading: concurrent writes give another stamp next time
        stamp = (modified_at(files.journal), modified_at(files.launch))
        final = self._final.get(run)
        if final is not None and final[0] == stamp:
            return final[1]
        view = self.read(run, details=details, processes=processes)
        # not while any part of it lives or waits: that changes without a record in its journal
        if view.status in FINAL and not view.details and not view.adhoc and not view.living and not view.waits:
            self._final[run] = (stamp, view)
        return view

    def read(self, run: str, *, details: bool = True, processes: Sequence[Key] | None = None) -> RunView:
        """Return the current state of a run; without `details` only for its line.

        Args:
            processes: the names of its processes, if the caller has listed them.
        """
        records = self._records
        records.problems = []
        files = RunFiles(self.home, run)
        # a run without launch record is still shown, as far as its journal allows
        saved = records.load(files.launch, lambda: run_records.load(Launch, files.launch))
        launch = saved or Launch(run, "", "", "", "", "")
        resumed = records.load(files.sandbox, lambda: run_records.load(RunSandbox, files.sandbox))
        followed = self._follow(launch)
        followed.refresh(guardian_only=not details and not launch.adhoc)
        model = followed.model
        corrupt = self._corrupt(followed, launch) if saved is not None else (
            f"{files.launch} is damaged or gone; `garrison resume {run}` restores it")
        for problem in ([corrupt] if corrupt else []) + sorted(followed.log.problems) + model.problems[-PROBLEMS:]:
            records.report(problem)
        keys = self._list_processes([run]).get(run, ()) if processes is None else processes
        observed = [process for key in keys if (process := self._process(key))]
        waits = list(model.state.waits.values())
        counts = dict.fromkeys(PLACES, 0)
        for name in model.state.nodes:
            place = place_of(model, name)
            counts[place] = counts.get(place, 0) + 1
        nodes = NodeReader(records, self.observer, model, launch, observed, counts["working"], lambda: followed.plan)
        asking, reviews = nodes.open_questions(), [entry.node for entry in entries_to_approve(model)]
        status, reason = decide_status(model.state, observed, adhoc=launch.adhoc,
                                       failure="; ".join(model.failures.values()), corrupt=corrupt,
                                       waits_for=waits_for(model, asking))
        nodes.status = status
        if status in UNATTENDED and counts["working"]:
            # their journal still says active, but no process works on them
            counts |= {STOPPED: counts["working"], "working": 0}
        asked = {*reviews, *(wait.place for wait in waits), *(() if status in UNATTENDED else asking)}
        resumable = status == Status.FAILED and not launch.adhoc and not model.state.over
        branch = adhoc_branch(model) if launch.adhoc else ""
        held = launch.resumed_in(resumed) if resumed is not None else launch
        step = next_step(run, status, observed, resumable=resumable, branch=branch) or _shortage_hint(status)
        line = RunView(
            run_id=run, status=status, reason=reason, corrupt=corrupt, gates=waits,
            questions=[*asking, *reviews, *(wait.place for wait in waits if wait.kind != SIGNAL)],
            counts=counts, asking=Counter(place_of(model, name) for name in asked & model.state.nodes.keys()),
            total=len(model.state.nodes), candidates=len(model.state.nodes) - model.state.own,
            pipeline_id=launch.pipeline_id, repo=launch.repo, base=launch.base, lands=landing_view(model, launch),
            foreign_moves=model.state.foreign_moves, warnings=model.state.warnings,
            adhoc=launch.adhoc, created_at=launch.created_at, age_s=self._age(launch.created_at),
            step=step,
            waits=waits_of(model, status, asking=asking, hint=_advice(status, step), corrupt=corrupt,
                           retriable=nodes.can_retry(), hindrances=nodes.hindrances()),
            ended_at=followed.ended_at, processes=observed, branch=branch,
            deaths=sum(len(deaths) for deaths in model.state.deaths.values()), folder=str(files.root),
            sandbox=held.sandbox, sandbox_gaps=held.has_sandbox_gaps,
            problems=records.problems)
        return self._in_full(line, nodes, launch) if details else line

    def _follow(self, launch: Launch) -> _FollowedRun:
        followed = self._followed.get(launch.run_id)
        if followed is None or followed.created_at != launch.created_at:  # a run may have the name of a removed one
            followed = self._followed[launch.run_id] = _FollowedRun(self.home, launch, self._unrecorded)
        return followed

    def launch(self, run: str) -> Launch | None:
        """Return the launch of a run, None if unreadable."""
        path = RunFiles(self.home, run).launch
        return self._records.load(path, lambda: run_records.load(Launch, path))

    def worked(self, run: str) -> Mapping[str, Sequence[float]]:
        """Return node → durations in seconds of its successful attempts, for a run already read."""
        followed = self._followed.get(run)
        return followed.model.worked if followed is not None else {}

    def worked_earlier(self, launch: Launch, runs: int) -> list[Mapping[str, Sequence[float]]]:
        """Return the same for the latest earlier `runs` of a pipeline in its repository, among those already read."""
        earlier = [one for name in self._followed if name != launch.run_id and (one := self.launch(name)) is not None
                   and (one.pipeline_id, one.repo) == (launch.pipeline_id, launch.repo)
                   and one.created_at < launch.created_at]
        latest = sorted(earlier, key=lambda one: one.created_at)[-runs:]
        return [self.worked(one.run_id) for one in latest]

    def default_limits(self) -> list[Limit]:
        return limits(Launch("", "", "", "", "", ""), self.timing, Used())

    def _corrupt(self, followed: _FollowedRun, launch: Launch) -> str:
        """Return why a run's journal cannot be trusted, '' if it can."""
        journal = followed.files.journal
        if problem := followed.log.problem(journal) or followed.model.corrupt:
            return problem
        try:
            check_journal_present(self.store, launch, followed.model.state, journal)
        except GarrisonError as error:
            return str(error)
        return ""

    def _in_full(self, line: RunView, nodes: NodeReader, launch: Launch) -> RunInFull:
        views, states = nodes.nodes(self._age), nodes.state.nodes
        pause = nodes.model.queue.pause if nodes.model.queue else None
        usd, cost = describe_cost(self.home, launch.run_id, self._usage) if self._usage is not None else (None, "")
        return RunInFull(
            **fields_of(line), nodes=views,
            failed=[nodes.failed(node) for node in views if states[node.node].status == "failed"],
            queue=ListedPause(pause.reason, pause.explain()) if pause else None, landing=nodes.landing(self._age),
            events=nodes.model.latest(), limits=limits(launch, self.timing, nodes.used()), usd=rounded(usd), cost=cost)

    def _list_processes(self, runs: Collection[str]) -> dict[str, list[Key]]:
        """Return run → names of its processes, top-down."""
        processes: dict[str, list[Key]] = {}
        keys = self.store.keys(Identity, frozenset(runs))
        for key in sorted(keys, key=lambda key: (ROLES.index(key.role), key.name)):
            processes.setdefault(key.run, []).append(key)
        return processes

    def _process(self, key: Key) -> ProcessView | None:
        identity = self._records.load(self.store.path(Identity, key), lambda: self.store.read(Identity, key))
        return observe_process(self.observer, identity, self._phase(key)) if identity is not None else None

    def _phase(self, key: Key) -> str:
        problems = len(self._records.problems)
        hook = self._records.load(self.store.path(Hook, key), lambda: self.store.read(Hook, key))
        return hook.phase if hook else "corrupt" if len(self._records.problems) > problems else ""

    def _age(self, since: str) -> float | None:
        return max(0.0, self.observer.clock.time() - from_iso(since)) if since else None


# ---- deciding


def waits_for(model: RunModel, asking: Collection[str]) -> list[str]:
    """Return what a run waits for if it needs the user or an external signal to continue; else nothing. Pure.

    `asking`: nodes whose agent has an open question.
    """
    state, queue = model.state, model.queue
    if state.landing.status in (REQUESTED, TESTED):
        return _landing_waits_for(model)
    waiting = [f"an answer at {wait.node}" if wait.kind != SIGNAL else f"the signal {wait.signal} at {wait.node}"
               for wait in state.waits.values()]
    for name, node in state.nodes.items():
        if node.status == "pending" and not node.step and name not in state.held:
            continue  # behind another node
        if node.status not in ("pending", "active", "impl_complete"):
            continue
        parked = find_parked(state, name)
        entry = model.place_in_queue(name, node.attempt)[0] if node.status == "impl_complete" else None
        if name in state.held:
            waiting.append(f"you to unpark {name}")
        elif parked is not None and not parked.probe_at:
            waiting.append(f"you to unpark {name} ({parked.why})")
        elif name in asking and node.status == "active":
            waiting.append(f"an answer to the agent of {name}")
        elif entry is not None and entry.status == "held":
            waiting.append(f"your approval of {name}" if entry.approval
                           else f"you to release {name} in the merge queue")
        elif entry is not None and not entry.is_final and queue is not None and queue.pause is not None:
            waiting.append(f"the merge queue, which is paused ({queue.pause.reason})")
        else:
            return []
    return list(dict.fromkeys(waiting))


def _landing_waits_for(model: RunModel) -> list[str]:
    """Return what the landing of a whole run waits for if it needs the user to continue. Pure."""
    if model.state.landing.status == TESTED:
        waits = model.state.pull_request.waits_for()
        return [waits] if waits else []
    entry, queue = model.landing_entry, model.queues.get(model.landing_folder)
    if entry is None or entry.is_final or queue is None or entry.attempt != model.state.landing.attempt:
        return []
    if entry.status == "held":
        return [f"you to release {entry.id} in the merge queue"]
    return [f"the merge queue, which is paused ({queue.pause.reason})"] if queue.pause is not None else []


def landing_view(model: RunModel, launch: Launch) -> RunLandingView | None:
    """Return the landing of a whole run; None if its nodes land individually. Pure."""
    if launch.land == LAND_NODE:
        return None
    state, entry = model.state, model.landing_entry
    landing = state.landing
    status, reason = _LANDING_WORDS.get(landing.status, ""), landing.reason
    if landing.status == REQUESTED and entry is not None and entry.attempt == landing.attempt:
        status, reason = "testing" if entry.status in ("testing", "landing") else status, entry.reason
    progress = describe_landed(state, launch.land, launch.base, launch.onto, state.own)
    if landing.status == TESTED:
        reason = state.pull_request.describe()
    return RunLandingView(launch.land, launch.onto, progress, status, landing.commit, reason)


_LANDING_WORDS = {REQUESTED: "queued", TESTED: "waiting for approval", LANDED: "landed", NO_CHANGE: "no change",
                  REFUSED: "rejected", DECLINED: "rejected", NOT_LANDED: "rejected"}
"""Status of a run's landing → its word for users."""
UNATTENDED = frozenset({Status.STOPPED, Status.INTERRUPTED, Status.FAILED, Status.CORRUPT})
"""Statuses of a run without working processes: a node at work is stopped there."""
STOPPED = "stopped"
"""Place of such a node, in the counts of its run."""


def shown_in_full(runs: Sequence[RunView], also: Container[str] = ()) -> set[str]:
    """Return the runs to show in full by default: unfinished ones and `also`, else the last. Pure."""
    selected = {run.run_id for run in runs if run.status in UNFINISHED or run.run_id in also}
    return selected or {run.run_id for run in runs[-1:]}


def adhoc_branch(model: RunModel) -> str:
    """Return the word for the landing of an ad-hoc run's branch; '' before it is queued. Pure."""
    entries = [entry for entry in model.queue.entries.values() if entry.run == model.run] if model.queue else []
    return entries[-1].landing if entries else ""


def _shortage_hint(status: str) -> str:
    """Return what the machine lacks if a run at work waits for it, else ''."""
    lack = find_lack() if status in (Status.NEW, Status.RUNNING) else None
    return f"{lack.what}; the rest starts {lack.ends}" if lack else ""


def _advice(status: str, step: str) -> str:
    """Return advice about a run, preceded by its status unless that is shown elsewhere."""
    return f"{status}; {step}" if status == Status.STOPPED and step else step


def next_step(run: str, status: str, processes: Sequence[ProcessView], *, resumable: bool, branch: str = "") -> str:
    """Return advice for a run that needs the user to continue, '' for none."""
    if branch == "queued" and status == Status.DONE:
        return "its branch is queued; `garrison merge-queue process` lands it"
    resume = f"`garrison resume {run}`"
    if resumable or status in (Status.STOPPED, Status.PARKED):
        why = "failed with parked nodes or without having landed; " if resumable else ""
        return why + describe_next(run, status, over=False)
    launchers = [process for process in processes if process.role == "launch"]
    if status not in UNFINISHED or any(process.living for process in launchers) or (processes and not launchers):
        return ""
    return f"its launcher is not running; `garrison up` or {resume} continues it"
