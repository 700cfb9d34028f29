"""Records of the run and process journals: one dataclass per kind, and their form on disk.

Writers append `encode(event)` under `event.kind`; readers get the event back from `decode(entry)`. The keys on disk are
the names of the fields, except for `RENAMED`. A `sparse` field is left out while it has its default; readers fill in
missing fields and ignore unknown keys.

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
from dataclasses import MISSING, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypedDict, TypeVar, get_args

from garrison.ends import End
from garrison.errors import GarrisonError
from garrison.frozen import frozen
from garrison.records import earlier, journal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from garrison.records.journal import Entry

    R = TypeVar("R")

RENAMED = {"death_class": "class", "sender": "from", "failure_kind": "kind"}
"""Field → key on disk, where the two differ."""

CRASH = "crash"


class Follows(StrEnum):
    """What was before an incarnation that was started."""

    NOTHING = "nothing"
    """It is the first of its name in its attempt, and the last one's end is recorded."""
    LAST_ATTEMPT = "last_attempt"
    """The last attempt's incarnation, which ended by itself; nothing but this tells that it did."""
    END = "end"
    """One of its own attempt that ended by itself; nothing but this tells that it did."""
    DEATH = "death"


def sparse(default: Any = None) -> Any:
    """Declare a field that is left out of the record while it equals `default`."""
    if isinstance(default, (list, dict)):
        return field(default_factory=type(default), metadata={"sparse": True})
    return field(default=default, metadata={"sparse": True})


def nested(of: type) -> Any:
    """Declare a sparse field that holds a record of that class, or None."""
    return field(default=None, metadata={"sparse": True, "of": of})


# ---- every process ---------------------------------------------------------------------------------------------------


@frozen
class ProcessOpened:
    """An incarnation opened the journal; `phase` is a runner's; `resume` and `why` (what became of its predecessor) are
    a launcher's."""

    kind: ClassVar[str] = "open"
    incarnation: int
    pid: int | None = None
    phase: str = sparse("")
    resume: bool | None = sparse()
    why: str = sparse("")


# ---- supervisors, about their children -------------------------------------------------------------------------------


@frozen
class LaunchRecorded:
    """A copy of launch.json and of the graphs, from which a damaged or lost one is restored; once a journal."""

    kind: ClassVar[str] = "launch"
    launch: str
    """Text of launch.json."""
    graph: str
    nested: dict[str, str] = field(default_factory=dict)
    """Name of a nested pipeline → its text."""


@frozen
class DecisionMade:
    """A restart or cleanup decision, before it is carried out; `basis` holds all its inputs (`supervise.decisions`)."""

    kind: ClassVar[str] = "decision"
    act: str
    why: str
    basis: dict[str, Any]


@frozen
class ChildFenced:
    """An incarnation was declared crashed; `evidence` holds what was observed."""

    kind: ClassVar[str] = "fenced"
    full: str
    incarnation: int
    why: str
    evidence: dict[str, Any] = field(default_factory=dict)


@frozen
class ChildSwept:
    """Remaining processes of a fenced incarnation were killed."""

    kind: ClassVar[str] = "swept"
    full: str
    incarnation: int
    pids: list[int]


@frozen
class ChildDied:
    """An incarnation died: recorded once, and counted from here on. `monotonic` is in seconds of the boot `boot_id`."""

    kind: ClassVar[str] = "death"
    full: str
    incarnation: int
    monotonic: float
    boot_id: str
    attempt: int = 1
    why: str = ""
    death_class: str = CRASH
    until: float = sparse(0.0)


@frozen
class ChildSpawned:
    """An incarnation was started; the time of a half-open probe runs from here. `follows` is what was before it
    (`Follows`), '' in journals of earlier versions."""

    kind: ClassVar[str] = "spawn"
    full: str
    incarnation: int
    attempt: int = 1
    why: str = ""
    probe: bool = sparse(default=False)
    monotonic: float = sparse(0.0)
    boot_id: str = sparse("")
    follows: str = sparse("")

    @property
    def is_respawn(self) -> bool:
        """Return whether it continues what an earlier incarnation of its attempt had begun."""
        if self.follows:
            return self.follows in (Follows.END, Follows.DEATH)
        return earlier.is_respawn(self.incarnation, self.why)


@frozen
class ChildParked:
    """A name's circuit opened: no successor until the probe is due or a person unparks it."""

    kind: ClassVar[str] = "park"
    full: str
    incarnation: int = 0
    why: str = ""
    monotonic: float = 0.0
    boot_id: str = ""
    attempt: int = 1
    probe_at: str = ""


@frozen
class ProbeHealthy:
    """A probe stayed healthy: the circuit is closed."""

    kind: ClassVar[str] = "heal"
    full: str
    incarnation: int
    why: str = ""
    attempt: int | None = sparse()


@frozen
class SignalRefused:
    """A signal was moved to `refused/`."""

    kind: ClassVar[str] = "refused"
    file: str
    why: str


# ---- guardian --------------------------------------------------------------------------------------------------------


@frozen
class RunChanged:
    """Change of the run's status: running, stopped, done or failed."""

    kind: ClassVar[str] = "run"
    status: str
    reason: str = ""


@frozen
class NodeChanged:
    """A node's new status, in an attempt.

    `step` is the step of the flow that the attempt is for (None: as before), `failure_kind` says what failed, `steer`
    is the instruction of a manager (at the place `steered_by`) for the node's agent. `landing` is `no change` if the
    attempt succeeded without one.
    """

    kind: ClassVar[str] = "node"
    node: str
    status: str
    attempt: int = 1
    reason: str = sparse("")
    commit: str = sparse("")
    step: str | None = sparse()
    failure_kind: str = sparse("")
    steer: str = sparse("")
    steered_by: str = sparse("")
    landing: str = sparse("")
    changes: list[list[Any]] = sparse([])
    """What a person should know of what landed (`ends.Told`)."""
    escalated: str = sparse("")
    """Of a new attempt: the agent that does it in place of the node's own, since that one's work was refused."""


@frozen
class FlowAdvanced:
    """An event of the flow (`pipeline.flow.events`): `body` is that event as data.

    `node` is the node of its place, `took` the pipeline signal that it used up.
    """

    kind: ClassVar[str] = "flow"
    body: dict[str, Any]
    node: str = ""
    took: str = ""

    @property
    def event(self) -> str:
        """Return the event's name."""
        return str(self.body.get("event", ""))

    @property
    def place(self) -> str:
        """Return the id of the place that it ends; '' for an event of the whole flow."""
        return str(self.body.get("place_id", ""))


@frozen
class GateChanged:
    """A gate was opened, or closed with its place; `body` is the open gate (see `pipeline.gates`)."""

    kind: ClassVar[str] = "gate"
    place: str
    node: str
    closed: bool = False
    body: dict[str, Any] = field(default_factory=dict)


@frozen
class ManagerCycled:
    """A manager observed its child pipeline for the `cycle`-th time, or ended with it (`closed`).

    `steer` is its instruction for the next agent there, `steered` the last cycle in which it gave one.
    """

    kind: ClassVar[str] = "manager"
    place: str
    node: str
    cycle: int = 0
    steer: str = ""
    steered: int | None = None
    closed: bool = sparse(default=False)


@frozen
class LandingChanged:
    """A step of the landing of the whole run, at its exit: `requested` (its branch is at `oid`), `tested` (as `commit`,
    for a pull request), `landed` (as `commit`), `no change`, `declined` (by the answer of a gate), `refused` (`flow`
    sends the run back) or `failed`."""

    kind: ClassVar[str] = "landing"
    status: str
    attempt: int = 1
    oid: str = sparse("")
    commit: str = sparse("")
    reason: str = sparse("")
    failure_kind: str = sparse("")
    flow: FlowAdvanced | None = nested(FlowAdvanced)
    base: str = sparse("")
    """Commit of the pull request's base that the branch is tested with; '' without a pull request."""


@frozen
class PullRequestChanged:
    """A step of the run's pull request (`records.pull_request`); empty fields stay as they were.

    `taken` are the ids of checks and comments for which `flow` sends the run back to `node`.
    """

    kind: ClassVar[str] = "pull_request"
    state: str
    number: int = sparse(0)
    url: str = sparse("")
    head: str = sparse("")
    ready: str = sparse("")
    auto: str = sparse("")
    reason: str = sparse("")
    node: str = sparse("")
    taken: list[str] = sparse([])
    flow: FlowAdvanced | None = nested(FlowAdvanced)
    told: str = sparse("")


@frozen
class ForeignMove:
    """The target was moved from `old` to `new`, and no merge queue did it; `at_work` are the nodes at work then.

    `subject` is that of the new commit, with its author; `rewritten`: the target no longer has the old commit.
    """

    kind: ClassVar[str] = "foreign"
    branch: str
    old: str
    new: str
    at_work: list[str] = sparse([])
    subject: str = sparse("")
    rewritten: bool = sparse(default=False)

    def describe(self) -> str:
        """Return the warning."""
        nodes = f" while {', '.join(self.at_work)} {'was' if len(self.at_work) == 1 else 'were'} at work" \
            if self.at_work else ""
        subject = f": {self.subject}" if self.subject else ""
        return (f"{self.branch} was {'rewritten' if self.rewritten else 'moved'} outside the merge queue, "
                f"{self.old[:10]} → {self.new[:10]}{nodes}{subject}")


class GitChanges(TypedDict, total=False):
    """Changes of git's configuration and hooks (`processes.git_record.GitState`)."""

    settings: dict[str, dict[str, str]]
    """File → key → its values, a line each; '' if it is gone."""
    files: dict[str, str]
    """Path in the git directory → hash; '' if it is gone."""


@frozen
class Warned:
    """A change of what the run depends on, of which a person is warned; `at_work` are the nodes at work then.

    `about` is `git` (its configuration or hooks) or `gate` (the queue's settings). `state` is what it became, so that
    each change is reported once; `changes` is what to restore.
    """

    kind: ClassVar[str] = "warning"
    about: str
    text: str
    at_work: list[str] = sparse([])
    state: str = sparse("")
    changes: GitChanges = sparse({})

    def describe(self) -> str:
        """Return the warning."""
        if not self.at_work:
            return self.text
        return f"while {', '.join(self.at_work)} {'was' if len(self.at_work) == 1 else 'were'} at work, {self.text}"


@frozen
class NodeCancelled:
    """A node was cancelled: its runner was sent a signal that the work is no longer needed."""

    kind: ClassVar[str] = "cancel"
    node: str
    attempt: int = 1
    why: str = ""


MACHINE = "machine"
"""`NoteWritten.who` of a note about the machine, which waits for no person."""
REPAIR = "repair"
"""`NoteWritten.who` of a note about a journal that was rebuilt, which waits for no person either."""


@frozen
class NoteWritten:
    """Something waits for a person: `who` waits, `text` says for what; `approval`: for their approval."""

    kind: ClassVar[str] = "note"
    who: str
    text: str
    approval: bool | None = sparse()
    """None in journals of earlier versions."""

    @property
    def is_for_approval(self) -> bool:
        """Return whether it is an entry of the merge queue that waits for approval."""
        return earlier.is_for_approval(self.text) if self.approval is None else self.approval


@frozen
class Question:
    """An agent's open question."""

    id: str
    text: str


@frozen
class StuckAgent:
    """A node's agent that its runner parked: its last incarnation, and when a probe is due (UTC)."""

    why: str
    probe_at: str = ""
    life: int = 0


@frozen
class PipelineSignal:
    """A signal by name, for a gate of the pipeline."""

    name: str
    value: Any = True


@frozen
class GuardianSignal:
    """A signal that the guardian applied, with all its effects."""

    kind: ClassVar[str] = "signal"
    id: str
    type: str
    node: str | None = None
    attempt: int = 0
    sender: str = ""
    incarnation: int | None = None
    why: str = sparse("")
    departure: str = sparse("")
    """How the orchestrator whose death it reports ended by itself (`Departure`)."""
    effect: NodeChanged | None = nested(NodeChanged)
    question: Question | None = nested(Question)
    answer: str = sparse("")
    """The id of the question that was answered."""
    stuck: StuckAgent | None = nested(StuckAgent)
    unstuck: int | None = sparse()
    """The last incarnation of the node's agent that is no longer parked."""
    hold: str | None = sparse()
    """Node or `processor` that a person parked, with `text` as the reason."""
    text: str = sparse("")
    unhold: str | None = sparse()
    lives: dict[str, int] = sparse({})
    """Full name → stopped incarnation that may have a successor."""
    flow: FlowAdvanced | None = nested(FlowAdvanced)
    heard: PipelineSignal | None = nested(PipelineSignal)
    budget: int | None = sparse()
    """Steps that the flow may take from the next resume on."""
    resume: dict[str, int] | None = sparse()
    """As `lives`, in a run that is resumed."""
    run: str | None = sparse()
    """The run's new status."""
    graph: str = sparse("")
    """Text of the run's graph from here on: a person added a node or edited one."""
    unparked: list[str] = sparse([])
    stop: bool = field(default=False, metadata={"transient": True})
    """True to stop the run; on disk the `run` record that follows says so."""


@frozen
class Snapshot:
    """A compacted journal's first record: the state of all before it."""

    kind: ClassVar[str] = "snapshot"
    state: dict[str, Any]


# ---- launcher --------------------------------------------------------------------------------------------------------


@frozen
class LauncherSignal:
    """A signal that the launcher applied."""

    kind: ClassVar[str] = "signal"
    id: str
    type: str
    payload: dict[str, Any] = field(default_factory=dict)


@frozen
class NotificationSent:
    """The person's notify command was run for this `key`."""

    kind: ClassVar[str] = "told"
    key: str
    event: str = ""
    text: str = ""


@frozen
class GuardianUnparked:
    """A person resumed a run whose guardian was parked: its deaths no longer count."""

    kind: ClassVar[str] = "lift"
    full: str
    why: str = ""


@frozen
class LauncherDetached:
    """The terminal is gone; the run continues."""

    kind: ClassVar[str] = "detached"


@frozen
class LauncherEnded:
    """The launcher ended with the run."""

    kind: ClassVar[str] = "end"
    status: str
    reason: str = ""


# ---- runner ----------------------------------------------------------------------------------------------------------


@frozen
class RunnerSignal:
    """A signal that a runner applied, with all its effects."""

    kind: ClassVar[str] = "signal"
    id: str
    type: str
    attempt: int = 0
    kill: int = sparse(0)
    """The orchestrator's incarnation to kill."""
    cancel: str = sparse("")
    """Why the node was cancelled."""
    forward: str = sparse("")
    """Direction in which a question (`up`) or an answer (`down`) was passed on."""
    unpark: bool = sparse(default=False)
    text: str = sparse("")
    """Content of a user's signal."""


@frozen
class FactRecorded:
    """A fact about an attempt that its next runner must know; `failure_kind` belongs to the fact `failed`."""

    kind: ClassVar[str] = "fact"
    name: str
    value: str | int
    attempt: int
    failure_kind: str = ""
    code: int | None = sparse()
    """Exit code of a job that failed; None if nothing tells it, and in journals of earlier versions."""
    timed_out: bool = sparse(default=False)
    said: str = sparse("")
    """Why a validator refused the work, in its own words."""

    @property
    def end(self) -> End | None:
        """Return how a job that failed ended; None if nothing tells it."""
        return End(self.code, self.timed_out) if self.code is not None or self.timed_out else None


@frozen
class JobStarted:
    """A set-up, an acceptance command or a validation was started."""

    kind: ClassVar[str] = "job"
    name: str
    command: str = ""
    attempt: int = 1


@frozen
class WorkSaved:
    """The content of a worktree was saved under a rescue ref."""

    kind: ClassVar[str] = "rescue"
    ref: str
    attempt: int


# ---- merge processor -------------------------------------------------------------------------------------------------


@frozen
class QueueTaken:
    """The processor took the merge queue, with this epoch."""

    kind: ClassVar[str] = "took"
    epoch: int


@frozen
class QueueStepDone:
    """One step of the merge processor."""

    kind: ClassVar[str] = "step"
    what: str
    entry: str


Event = (ProcessOpened | DecisionMade | ChildFenced | ChildSwept | ChildDied | ChildSpawned | ChildParked | ProbeHealthy
         | SignalRefused | RunChanged | NodeChanged | FlowAdvanced | GateChanged | ManagerCycled | NodeCancelled
         | LandingChanged | PullRequestChanged | ForeignMove | Warned | NoteWritten | GuardianSignal | Snapshot
         | LauncherSignal | NotificationSent | GuardianUnparked | LauncherDetached | LauncherEnded | RunnerSignal
         | FactRecorded | JobStarted | WorkSaved | QueueTaken | QueueStepDone | LaunchRecorded)
"""Everything that a run's journal or a process's journal can hold."""

_SIGNALS = (GuardianSignal, LauncherSignal, RunnerSignal)
_CLASSES: Mapping[str, type[Event]] = {cls.kind: cls for cls in get_args(Event) if cls not in _SIGNALS}


def encode(event: Event) -> dict[str, Any]:
    """Return the `data` of an event's journal record."""
    match event:
        case FlowAdvanced():
            return {**event.body, **_present(node=event.node, took=event.took)}
        case GateChanged():
            return {**event.body, "place": event.place, "node": event.node, **_present(closed=event.closed)}
        case Snapshot():
            return event.state
    return _encode_fields(event)


def read_attempt(path: Path, attempt: int) -> list[tuple[str, Event | None]]:
    """Return the events of one attempt in a runner's journal, each with its time; none if it cannot be read."""
    with suppress(GarrisonError, OSError, ValueError):
        return [(entry.at, decode(entry)) for entry in journal.read_all(path) if entry.data.get("attempt") == attempt]
    return []


def decode(entry: Entry) -> Event | None:
    """Return the event of a journal record; None for an unknown kind. ValueError if a field is missing."""
    return decode_data(entry.kind, entry.data)


def decode_data(kind: str, data: Mapping[str, Any]) -> Event | None:
    """Return the event of a record's kind and data; as `decode`."""
    match kind:
        case "flow":
            return _decode_flow(data)
        case "gate":
            body = {name: value for name, value in data.items() if name != "closed"}
            return GateChanged(data["place"], data["node"], bool(data.get("closed")), body)
        case "snapshot":
            return Snapshot(dict(data))
        case "signal":
            return _decode_signal(data)
    cls = _CLASSES.get(kind)
    return None if cls is None else _decode_fields(cls, data)


def _decode_flow(data: Mapping[str, Any]) -> FlowAdvanced:
    body = {name: value for name, value in data.items() if name not in ("node", "took")}
    return FlowAdvanced(body, data.get("node", ""), data.get("took", ""))


def _decode_signal(data: Mapping[str, Any]) -> Event:
    """Decode a record of kind `signal`; a key that only one process writes tells whose it is."""
    if "payload" in data:
        return _decode_fields(LauncherSignal, data)
    if "node" in data:
        return _decode_fields(GuardianSignal, data)
    return _decode_fields(RunnerSignal, data)


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}


class _Field(NamedTuple):
    """Form of a field on disk."""

    name: str
    key: str
    is_sparse: bool
    default: Any
    of: type[Any] | None


def _stored_fields(cls: type[Any]) -> tuple[_Field, ...]:
    stored = []
    for field_ in fields(cls):
        if not field_.metadata.get("transient"):
            default = field_.default_factory() if field_.default_factory is not MISSING else field_.default
            stored.append(_Field(field_.name, RENAMED.get(field_.name, field_.name),
                                 bool(field_.metadata.get("sparse")), default, field_.metadata.get("of")))
    return tuple(stored)


_FIELDS = {cls: _stored_fields(cls) for cls in (*get_args(Event), Question, StuckAgent, PipelineSignal)}


def _encode_fields(event: Any) -> dict[str, Any]:
    data = {}
    for stored in _FIELDS[type(event)]:
        value = getattr(event, stored.name)
        if not (stored.is_sparse and value == stored.default):
            data[stored.key] = encode(value) if stored.of is not None else value
    return data


def _decode_fields(cls: type[R], data: Mapping[str, Any]) -> R:
    values = {}
    for stored in _FIELDS[cls]:
        if stored.key not in data:
            if stored.default is MISSING:
                raise ValueError(f"a journal record of {cls.__name__} has no {stored.key!r}")
            continue
        value = data[stored.key]
        if stored.of is not None and value is not None:
            value = _decode_flow(value) if stored.of is FlowAdvanced else _decode_fields(stored.of, value)
        values[stored.name] = value
    return cls(**values)
