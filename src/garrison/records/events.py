"""Records of the run and process journals: one class per kind, and their form on disk.

Writers append `encode(event)` under `event.kind`; readers get the event back from `decode(entry)`. A field is left out
while it has its default, unless that is `stated`; readers fill in missing fields and ignore unknown keys.

Which process writes which kinds:

    every process      open
    every supervisor   decision, fenced, swept, death, spawn, park, refused, signal
    guardian           run, node, flow, gate, manager, cancel, landing, pull_request, foreign, note, heal, snapshot
    launcher           told, lift, detached, end
    runner             fact, job, rescue, heal
    merge processor    took, step

`signal` records differ by process (what a signal changes depends on who applies it): guardian, runner and launcher have
a class each. A signal's id and its effect are one record, so that no crash can come between them.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, TypedDict, get_args

import msgspec

from garrison.ends import End, LandingNote
from garrison.errors import GarrisonError
from garrison.records import earlier, journal
from garrison.records.record import Record, from_data, stated
from garrison.values import Value, asdict, replace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from garrison.records.journal import Entry

CRASH = "crash"


class Follows(StrEnum):
    """What preceded a started incarnation."""

    NOTHING = "nothing"
    """It is the first of its name in its attempt, and the end of the last one is recorded."""
    LAST_ATTEMPT = "last_attempt"
    """The last attempt's incarnation, which ended by itself; only this records that."""
    END = "end"
    """One of its own attempt, which ended by itself; only this records that."""
    DEATH = "death"


# ---- every process ---------------------------------------------------------------------------------------------------


class ProcessOpened(Record):
    """An incarnation opened the journal; `phase` is set by a runner; `resume` and `why` (how its predecessor ended) by
    a launcher."""

    kind: ClassVar[str] = "open"
    incarnation: int
    pid: int | None = stated(None)
    phase: str = ""
    resume: bool | None = None
    why: str = ""


# ---- supervisors, about their children -------------------------------------------------------------------------------


class LaunchRecorded(Record):
    """A copy of launch.json and of the graphs, to restore a damaged or lost one; once per journal."""

    kind: ClassVar[str] = "launch"
    launch: str
    """Text of launch.json."""
    graph: str
    nested: dict[str, str] = stated({})
    """Name of a nested pipeline → its text."""


class DecisionMade(Record):
    """A restart or cleanup decision, before it is carried out; `basis` holds all its inputs (`supervise.decisions`)."""

    kind: ClassVar[str] = "decision"
    act: str
    why: str
    basis: dict[str, object]


class ChildFenced(Record):
    """An incarnation was declared crashed; `evidence` holds what was observed."""

    kind: ClassVar[str] = "fenced"
    full: str
    incarnation: int
    why: str
    evidence: dict[str, object] = stated({})


class ChildSwept(Record):
    """Remaining processes of a fenced incarnation were killed."""

    kind: ClassVar[str] = "swept"
    full: str
    incarnation: int
    pids: list[int]


class ChildDied(Record):
    """An incarnation died: recorded once, and counted from here on. `monotonic` is in seconds of the boot `boot_id`."""

    kind: ClassVar[str] = "death"
    full: str
    incarnation: int
    monotonic: float
    boot_id: str
    attempt: int = stated(1)
    why: str = stated("")
    death_class: str = msgspec.field(default_factory=lambda: CRASH, name="class")
    until: float = 0.0


class ChildSpawned(Record):
    """An incarnation was started; the time of a half-open probe runs from here. `follows` is what was before it
    (`Follows`), '' in journals of earlier versions."""

    kind: ClassVar[str] = "spawn"
    full: str
    incarnation: int
    attempt: int = stated(1)
    why: str = stated("")
    probe: bool = False
    monotonic: float = 0.0
    boot_id: str = ""
    follows: str = ""

    @property
    def is_respawn(self) -> bool:
        if self.follows:
            return self.follows in (Follows.END, Follows.DEATH)
        return earlier.is_respawn(self.incarnation, self.why)


class ChildParked(Record):
    """A name's circuit opened: no successor until the probe is due or the user unparks it."""

    kind: ClassVar[str] = "park"
    full: str
    incarnation: int = stated(0)
    why: str = stated("")
    monotonic: float = stated(0.0)
    boot_id: str = stated("")
    attempt: int = stated(1)
    probe_at: str = stated("")


class ChildHealed(Record):
    """A probe stayed healthy: the circuit is closed."""

    kind: ClassVar[str] = "heal"
    full: str
    incarnation: int
    why: str = stated("")
    attempt: int | None = None


class SignalRefused(Record):
    """A signal was moved to `refused/`."""

    kind: ClassVar[str] = "refused"
    file: str
    why: str


# ---- guardian --------------------------------------------------------------------------------------------------------


class RunChanged(Record):
    """Change of the run's status: running, stopped, done or failed."""

    kind: ClassVar[str] = "run"
    status: str
    reason: str = stated("")


class Kept(Value):
    """Work of a candidate that passed its checks."""

    commit: str
    lines: int = 0
    """Lines that it adds and removes."""
    score: float | None = None
    """Number that the judge's command printed, None without one."""
    label: str = ""
    """The agent's choice, such as the verdict of a judge."""


class NodeChanged(Record):
    """A node's new status, in an attempt.

    `step` is the step of the flow that the attempt is for (None: as before), `failure_kind` says what failed, `steer`
    is the instruction of a manager (at the place `steered_by`) for the node's agent. `landing` is `no change` if there
    was nothing to land, and `kept` for the work of a candidate.
    """

    kind: ClassVar[str] = "node"
    node: str
    status: str
    attempt: int = stated(1)
    reason: str = ""
    commit: str = ""
    step: str | None = None
    failure_kind: str = msgspec.field(default="", name="kind")
    steer: str = ""
    steered_by: str = ""
    landing: str = ""
    changes: tuple[LandingNote, ...] = ()
    """What the user should know of what landed (`ends.LandingNote`)."""
    escalated: str = ""
    """Agent of a new attempt that replaces the node's own, whose work was refused."""
    kept: Kept | None = None
    candidate_of: str = ""
    """Node whose work it does as one of its candidates; '' as before."""


class CandidatesRanked(Record):
    """The candidates of a node that may land in one step of the flow, the best first; `by` names who ranked them."""

    kind: ClassVar[str] = "choice"
    node: str
    step: str
    order: list[str]
    why: str = ""
    by: str = ""


class CandidatesCompared(Record):
    """A judge's verdict on two candidates, in one of its attempts: `a` for the first one shown, `b` for the second,
    `none` for neither; anything else counts as `none`."""

    kind: ClassVar[str] = "verdict"
    node: str
    step: str
    attempt: int
    first: str
    second: str
    verdict: str = ""


class StepOutcome(Value):
    """Result of a step of the flow, from its `pipeline.outcome.Outcome`."""

    status: str = ""
    preferred_label: str = ""
    failure_reason: str = ""
    context_updates: dict[str, object] = msgspec.field(default_factory=dict)


class FlowAdvanced(Record):
    """An event of the flow (`pipeline.flow.Event`): `body` is that event as data.

    `node` is the node of its place, `took` the pipeline signal that it consumed.
    """

    kind: ClassVar[str] = "flow"
    body: dict[str, object]
    node: str = stated("")
    took: str = stated("")

    @property
    def event(self) -> str:
        return str(self.body.get("event", ""))

    @property
    def place(self) -> str:
        """Return the id of the place that it ends; '' for an event of the whole flow."""
        return str(self.body.get("place_id", ""))

    @property
    def outcome(self) -> StepOutcome:
        """Return the result of the place, empty for an event of the whole flow."""
        return from_data(StepOutcome, self.body.get("outcome") or {})


class WaitChanged(Record):
    """A wait was opened, or closed with its place; `body` is the open wait (`pipeline.questions`)."""

    kind: ClassVar[str] = "gate"
    place: str
    node: str
    closed: bool = stated(False)
    body: dict[str, object] = stated({})


class ManagerCycled(Record):
    """A manager observed its child pipeline for the `cycle`-th time, or ended with it (`closed`).

    `steer` is its instruction for the next agent there, `steered` the last cycle in which it gave one.
    """

    kind: ClassVar[str] = "manager"
    place: str
    node: str
    cycle: int = stated(0)
    steer: str = stated("")
    steered: int | None = stated(None)
    closed: bool = False


class LandingChanged(Record):
    """A step of the landing of the whole run, at its exit: `requested` (its branch is at `oid`), `tested` (as `commit`,
    for a pull request), `landed` (as `commit`), `no change`, `declined` (by the answer of a gate), `refused` (`flow`
    sends the run back) or `failed`."""

    kind: ClassVar[str] = "landing"
    status: str
    attempt: int = stated(1)
    oid: str = ""
    commit: str = ""
    reason: str = ""
    failure_kind: str = msgspec.field(default="", name="kind")
    flow: FlowAdvanced | None = None
    base: str = ""
    """Commit of the pull request's base that the branch is tested with; '' without a pull request."""


class PullRequestChanged(Record):
    """A step of the run's pull request (`records.pull_request`); empty fields stay as they were.

    `taken` are the ids of checks and comments for which `flow` sends the run back to `node`, `said` the starts of these
    comments.
    """

    kind: ClassVar[str] = "pull_request"
    state: str
    number: int = 0
    url: str = ""
    head: str = ""
    ready: str = ""
    auto: str = ""
    reason: str = ""
    node: str = ""
    taken: list[str] = msgspec.field(default_factory=list)
    flow: FlowAdvanced | None = None
    told: str = ""
    said: list[str] = msgspec.field(default_factory=list)


class ForeignMove(Record):
    """The target was moved from `old` to `new` by something other than a merge queue; `at_work` are the nodes that were
    working.

    `subject` is that of the new commit, with its author; `rewritten`: the target no longer has the old commit.
    """

    kind: ClassVar[str] = "foreign"
    branch: str
    old: str
    new: str
    at_work: list[str] = msgspec.field(default_factory=list)
    subject: str = ""
    rewritten: bool = False

    def describe(self) -> str:
        """Return the warning."""
        nodes = f" while {', '.join(self.at_work)} {'was' if len(self.at_work) == 1 else 'were'} at work" \
            if self.at_work else ""
        subject = f": {self.subject}" if self.subject else ""
        return (f"{self.branch} was {'rewritten' if self.rewritten else 'moved'} outside the merge queue, "
                f"{self.old[:10]} → {self.new[:10]}{nodes}{subject}")


class GitChanges(TypedDict, total=False):
    """Changes of git's configuration and hooks (`run.git_record.GitState`)."""

    settings: dict[str, dict[str, str]]
    """File → key → its values, a line each; '' if it is gone."""
    files: dict[str, str]
    """Path in the git directory → hash; '' if it is gone."""


class Warned(Record):
    """A change of what the run depends on, which the user is warned about; `at_work` are the nodes that were working.

    `about` is `git` (its configuration or hooks) or `gate` (the queue's settings). `state` is the new state, so that
    each change is reported once; `changes` is what to restore.
    """

    kind: ClassVar[str] = "warning"
    about: str
    text: str
    at_work: list[str] = msgspec.field(default_factory=list)
    state: str = ""
    changes: GitChanges = msgspec.field(default_factory=GitChanges)

    def describe(self) -> str:
        if not self.at_work:
            return self.text
        return f"while {', '.join(self.at_work)} {'was' if len(self.at_work) == 1 else 'were'} at work, {self.text}"


class NodeCancelled(Record):
    """A node was cancelled: its runner was sent a signal that the work is no longer needed."""

    kind: ClassVar[str] = "cancel"
    node: str
    attempt: int = stated(1)
    why: str = stated("")


MACHINE = "machine"
"""`NoteWritten.who` of a note about the machine, which does not wait for the user."""
REPAIR = "repair"
"""`NoteWritten.who` of a note about a rebuilt journal, which does not wait for the user either."""


class NoteWritten(Record):
    """Something waits for the user: `who` waits, `text` says for what; `approval`: for their approval."""

    kind: ClassVar[str] = "note"
    who: str
    text: str
    approval: bool | None = None
    """None in journals of earlier versions."""

    @property
    def is_for_approval(self) -> bool:
        return earlier.is_for_approval(self.text) if self.approval is None else self.approval


class AgentQuestion(Record):
    """An agent's open question."""

    id: str
    text: str
    at: str = ""
    """When it was recorded, UTC; the journal's entry has it."""


class StuckAgent(Record):
    """A node's agent that its runner parked: its last incarnation, and when a probe is due (UTC)."""

    why: str
    probe_at: str = stated("")
    incarnation: int = msgspec.field(default_factory=int, name="life")


class PipelineSignal(Record):
    """A signal by name, for a node of the pipeline."""

    name: str
    value: object = stated(True)


class GuardianSignal(Record):
    """A signal that the guardian applied, with all its effects."""

    kind: ClassVar[str] = "signal"
    id: str
    type: str
    node: str | None = stated(None)
    attempt: int = stated(0)
    sender: str = msgspec.field(default_factory=lambda: "", name="from")
    incarnation: int | None = stated(None)
    why: str = ""
    departure: str = ""
    """How the orchestrator that it reports dead ended by itself (`Departure`)."""
    effect: NodeChanged | None = None
    question: AgentQuestion | None = None
    answer: str = ""
    """The id of the question that was answered."""
    by: str = ""
    """Where the user's answer came from (`signals.InputResponse`)."""
    stuck: StuckAgent | None = None
    unstuck: int | None = None
    """The last incarnation of the node's agent that is no longer parked."""
    hold: str | None = None
    """Node or `processor` that the user parked, with `text` as the reason."""
    text: str = ""
    unhold: str | None = None
    stopped: dict[str, int] = msgspec.field(default_factory=dict, name="lives")
    """Full name → stopped incarnation that may get a successor."""
    flow: FlowAdvanced | None = None
    heard: PipelineSignal | None = None
    budget: int | None = None
    """Steps that the flow may take from the next resume on."""
    resume: dict[str, int] | None = None
    """As `stopped`, in a run that is resumed."""
    run: str | None = None
    """The run's new status."""
    choice: CandidatesRanked | None = None
    graph: str = ""
    """Text of the run's graph from here on: the user added or edited a node."""
    unparked: list[str] = msgspec.field(default_factory=list)
    stop: bool = False
    """True to stop the run; on disk the `run` record that follows says so."""


class JournalSnapshot(Record):
    """A compacted journal's first record: the state of everything before it."""

    kind: ClassVar[str] = "snapshot"
    state: dict[str, object]


# ---- launcher --------------------------------------------------------------------------------------------------------


class LauncherSignal(Record):
    """A signal that the launcher applied."""

    kind: ClassVar[str] = "signal"
    id: str
    type: str
    payload: dict[str, object] = stated({})


class NotificationSent(Record):
    """The user's notify command was run for this `key`."""

    kind: ClassVar[str] = "told"
    key: str
    event: str = stated("")
    text: str = stated("")


class GuardianUnparked(Record):
    """The user resumed a run whose guardian was parked: its deaths no longer count."""

    kind: ClassVar[str] = "lift"
    full: str
    why: str = stated("")


class LauncherDetached(Record):
    """The terminal is gone; the run continues."""

    kind: ClassVar[str] = "detached"


class LauncherEnded(Record):
    """The launcher ended with the run."""

    kind: ClassVar[str] = "end"
    status: str
    reason: str = stated("")


# ---- runner ----------------------------------------------------------------------------------------------------------


class RunnerSignal(Record):
    """A signal that a runner applied, with all its effects."""

    kind: ClassVar[str] = "signal"
    id: str
    type: str
    attempt: int = stated(0)
    kill: int = 0
    """The orchestrator's incarnation to kill."""
    cancel: str = ""
    """Why the node was cancelled."""
    forward: str = ""
    """Direction of a question (`up`) or an answer (`down`)."""
    unpark: bool = False
    text: str = ""
    """Content of a user's signal."""


class FactRecorded(Record):
    """A fact about an attempt that its next runner must know; `failure_kind` belongs to the fact `failed`."""

    kind: ClassVar[str] = "fact"
    name: str
    value: str | int
    attempt: int
    failure_kind: str = msgspec.field(default_factory=lambda: "", name="kind")
    code: int | None = None
    """Exit code of a job that failed; None if unknown, and in journals of earlier versions."""
    timed_out: bool = False
    said: str = ""
    """The validator's own reason for refusing the work."""

    @property
    def end(self) -> End | None:
        """Return how a job that failed ended; None if unknown."""
        return End(self.code, self.timed_out) if self.code is not None or self.timed_out else None


class JobStarted(Record):
    """A set-up, an acceptance command or a validation was started."""

    kind: ClassVar[str] = "job"
    name: str
    command: str = stated("")
    attempt: int = stated(1)


class WorkSaved(Record):
    """The content of a worktree was saved under a rescue ref."""

    kind: ClassVar[str] = "rescue"
    ref: str
    attempt: int


# ---- merge processor -------------------------------------------------------------------------------------------------


class QueueTaken(Record):
    """The processor took the merge queue, with this epoch."""

    kind: ClassVar[str] = "took"
    epoch: int


class QueueStepDone(Record):
    """One step of the merge processor."""

    kind: ClassVar[str] = "step"
    what: str
    entry: str


Event = (ProcessOpened | DecisionMade | ChildFenced | ChildSwept | ChildDied | ChildSpawned | ChildParked | ChildHealed
         | SignalRefused | RunChanged | NodeChanged | FlowAdvanced | WaitChanged | ManagerCycled | NodeCancelled
         | LandingChanged | PullRequestChanged | ForeignMove | Warned | NoteWritten | GuardianSignal | JournalSnapshot
         | LauncherSignal | NotificationSent | GuardianUnparked | LauncherDetached | LauncherEnded | RunnerSignal
         | FactRecorded | JobStarted | WorkSaved | QueueTaken | QueueStepDone | LaunchRecorded | CandidatesRanked
         | CandidatesCompared)
"""Everything that a run's journal or a process's journal can hold."""

_SIGNALS = (GuardianSignal, LauncherSignal, RunnerSignal)
_CLASSES: Mapping[str, type[Event]] = {cls.kind: cls for cls in get_args(Event) if cls not in _SIGNALS}


def encode(event: Event) -> dict[str, object]:
    """Return the `data` of an event's journal record."""
    match event:
        case FlowAdvanced():
            return _encode_flow(event)
        case WaitChanged():
            closed = {"closed": True} if event.closed else {}
            return {**event.body, "place": event.place, "node": event.node, **closed}
        case JournalSnapshot():
            return event.state
        case GuardianSignal(stop=True):
            return encode(replace(event, stop=False))
    data = asdict(event)
    if flow := getattr(event, "flow", None):
        data["flow"] = _encode_flow(flow)
    return data


def read_attempt(path: Path, attempt: int) -> list[tuple[str, Event | None]]:
    """Return the events of one attempt in a runner's journal, each with its time; none if it cannot be read."""
    with suppress(GarrisonError, OSError, ValueError):
        return [(entry.at, decode(entry)) for entry in journal.read_all(path) if entry.data.get("attempt") == attempt]
    return []


def decode(entry: Entry) -> Event | None:
    """Return the event of a journal record; None for an unknown kind. ValueError if a field is missing."""
    return decode_data(entry.kind, entry.data)


def decode_data(kind: str, data: Mapping[str, object]) -> Event | None:
    """Return the event of a record's kind and data; as `decode`."""
    match kind:
        case "flow":
            return _decode_flow(data)
        case "gate":
            body = {name: value for name, value in data.items() if name != "closed"}
            return WaitChanged(str(data["place"]), str(data["node"]), bool(data.get("closed")), body)
        case "snapshot":
            return JournalSnapshot(dict(data))
    cls = _class_of_signal(data) if kind == "signal" else _CLASSES.get(kind)
    if cls is None:
        return None
    if data.get("flow"):
        data = {**data, "flow": _decode_flow(from_data(dict[str, object], data["flow"]))}
    return from_data(cls, data)


def _encode_flow(event: FlowAdvanced) -> dict[str, object]:
    named = {"node": event.node, "took": event.took}
    return {**event.body, **{name: value for name, value in named.items() if value}}


def _decode_flow(data: Mapping[str, object]) -> FlowAdvanced:
    body = {name: value for name, value in data.items() if name not in ("node", "took")}
    return FlowAdvanced(body, str(data.get("node", "")), str(data.get("took", "")))


def _class_of_signal(data: Mapping[str, object]) -> type[Event]:
    """Return the class of a record of kind `signal`, by a key that only one process writes."""
    return LauncherSignal if "payload" in data else GuardianSignal if "node" in data else RunnerSignal
