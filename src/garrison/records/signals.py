"""Signals: messages between processes, each a file that is applied once.

A signal, followed through the code:

1. Send: `Supervisor.send` (processes/supervisor.py) or `garrison signals send` build a `Signal` from a `Payload`;
   `post` writes its file into the inbox of the recipient. A target is a name, not an incarnation: a successor
   inherits it.
2. Wake: the recipient's event loop watches the inbox (`Supervisor.watch`); a lost event costs one rescan, a second.
3. Read: `observe` of the recipient's process lists the inbox (`list_pending`), oldest first.
4. Decide (pure): `take_signals` (processes/actions.py) asks `find_objection` whether run, attempt and incarnation are
   current, and the policy `parse`s the payload (`_apply` in run/guardian_policy.py and node/policy.py). The result is
   an action: APPLY_SIGNAL, with the event that holds its effects, or REFUSE_SIGNAL.
5. Apply: the process forwards it to others, journals id and effects in one record, then moves the file to `taken/`
   (`acknowledge`); after a crash in between, the id in the journal shows that it was applied. A refused one goes to
   `refused/`, with the reason in a file alongside it (`refuse`).

Payloads: one class per meaning. `to_data` returns what a sender writes (without empty fields). The user may
write a signal file by hand, so `parse` is lenient: missing values become empty ones, numbers are converted. Signals of
the merge queue carry plain dictionaries.
"""

from __future__ import annotations

import errno
import json
import re
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, ClassVar

import msgspec

from garrison.errors import RecordCorrupt, RecordError, UsageError
from garrison.records import atomic, record
from garrison.records.names import Key
from garrison.values import Value, asdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


TYPES = frozenset({
    "NODE_COMPLETE", "NEEDS_REVIEW", "NEEDS_INPUT", "VIOLATION", "ORCHESTRATOR_STUCK", "ORCHESTRATOR_CRASHED",
    "RUNNER_EXITED", "MERGE_READY", "MERGE_COMPLETE", "MERGE_FAILED", "VALIDATION_PASSED", "VALIDATION_FAILED",
    "INPUT_RESPONSE", "GUIDANCE", "KILL_ORCHESTRATOR", "AGENT_REGISTERED", "AGENT_CRASHED", "AGENT_TERMINATED",
    "ESCALATE", "PIPELINE_COMPLETE",
})
"""Signal types."""
OWN_TYPE = re.compile(r"X-[A-Za-z0-9][A-Za-z0-9_-]{0,39}\Z")
"""Prefix of user-defined types: such a signal is delivered, journaled and shown, and has no other effect."""

BY_ATTEMPT = frozenset({"NODE_COMPLETE", "MERGE_READY", "MERGE_COMPLETE", "MERGE_FAILED", "RUNNER_EXITED"})
"""Refused unless they belong to the node's current attempt."""
BY_INCARNATION = frozenset({"RUNNER_EXITED", "ORCHESTRATOR_CRASHED"})
"""Refused if the sender has a later incarnation."""
TO_INCARNATION = frozenset({"KILL_ORCHESTRATOR", "INPUT_RESPONSE"})
"""Commands to one incarnation (`payload.incarnation`); refused when that is over."""

# Signals of one process within the same microsecond are applied in the order in which they were sent.
_counter = count()


def is_type(name: object) -> bool:
    """Return whether a word is a signal type, garrison's or user-defined."""
    return name in TYPES or is_own(name)


def is_own(name: object) -> bool:
    return isinstance(name, str) and OWN_TYPE.match(name) is not None


def list_types() -> str:
    """List the types for messages."""
    return f"{', '.join(sorted(TYPES))}; one of your own begins with X-"


MAX_OWN_TEXT = 500
"""Characters of a user's signal that are journaled; the file in `taken/` has all."""


def describe_own(signal: Signal) -> str:
    """Return the content of a user-defined signal in one line, for journals and logs; '' for none and for garrison's
    own."""
    if not is_own(signal.signal_type):
        return ""
    content = {key: value for key, value in signal.payload.items() if key not in ("run_id", "node_id")}
    text = json.dumps(content, ensure_ascii=False) if content else ""
    if set(content) == {"text"}:
        text = str(content["text"])
    return " ".join(text.split())[:MAX_OWN_TEXT]


class Signal(Value):
    """One message; `source` is {role, name, incarnation}, `target` {role, name}; `attempt` 0 means not of a node."""

    id: str
    source: dict[str, object]
    target: dict[str, object]
    signal_type: str
    run_id: str
    timestamp: str
    node_id: str | None = None
    attempt: int = 0
    payload: dict[str, object] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_type(self.signal_type):
            raise ValueError(f"signal_type {self.signal_type!r} is none of {list_types()}")

    @property
    def recipient(self) -> Key:
        return Key(str(self.target["role"]), str(self.target["name"]), self.run_id)

    @property
    def sender(self) -> Key:
        return Key(str(self.source["role"]), str(self.source["name"]), self.run_id)

    @property
    def incarnation(self) -> int | None:
        """Return its sender's incarnation; None if the user sent it, ValueError if it is not a number."""
        number = self.source.get("incarnation")
        return None if number is None else int(str(number))


class PostedSignal(Value):
    """A file in an inbox, with its signal, or the reason why it cannot be read."""

    path: Path
    signal: Signal | None
    error: str = ""


def inbox_path(home: Path, recipient: Key) -> Path:
    return home / "signals" / recipient.full


def file_name(signal: Signal, number: int) -> str:
    """Return `{UTC µs}-{counter}Z-{source role}-{target role}-{TYPE}-{id}.json`, which sorts in the order of
    writing.
    """
    stamp = signal.timestamp.rstrip("Z").replace("-", "").replace(":", "").replace(".", "")
    return (f"{stamp}-{number:06d}Z-{signal.source['role']}-{signal.target['role']}"
            f"-{signal.signal_type}-{signal.id}.json")


def post(home: Path, signal: Signal, number: int | None = None) -> Path:
    """Write a signal durably into its recipient's inbox; return the file.

    With `number` (of a journal record) the file's name follows from the signal: sent again after a crash, it is the
    same file, and nothing is written if it was already applied. Without it, a counter of this process is used.
    """
    folder = atomic.make_directory(inbox_path(home, signal.recipient))
    name = file_name(signal, next(_counter) if number is None else number)
    # A sender that was killed sends again with the same number: a signal that was taken since must not be applied
    # twice.
    if number is not None and (folder / "taken" / name).exists():
        return folder / "taken" / name
    atomic.write(folder / name, record.encode(signal))
    return folder / name


def read(path: Path) -> Signal:
    """Return the signal in a file; RecordError if it is not one, FileNotFoundError if it is gone."""
    data = atomic.read(path)
    if data is None:
        raise FileNotFoundError(errno.ENOENT, "No such signal", str(path))
    # The user may write a signal by hand: a name with a slash would leave the inboxes.
    signal = record.decode(Signal, data, path)
    try:
        signal.recipient, signal.sender, signal.incarnation  # noqa: B018  # this checks the body
    except (UsageError, KeyError, TypeError, ValueError) as error:
        raise RecordCorrupt(path, f"source or target is not a name ({error})") from error
    return signal


def list_pending(home: Path, recipient: Key) -> list[PostedSignal]:
    """Return the signals waiting in an inbox, oldest first; unreadable ones come with their error."""
    folder = inbox_path(home, recipient)
    pending = []
    names = [name for name in atomic.list_names(folder) if name.endswith(".json") and not name.startswith(".")]
    for name in sorted(names):
        try:
            pending.append(PostedSignal(folder / name, read(folder / name)))
        # Another process has acknowledged it since the listing.
        except FileNotFoundError:
            continue
        except RecordError as error:
            pending.append(PostedSignal(folder / name, None, str(error)))
    return pending


def acknowledge(path: Path) -> None:
    """Move an applied signal to `taken/`; do nothing if it is gone."""
    _move(path, "taken")


def refuse(path: Path, reason: str) -> None:
    """Move a signal to `refused/`, with the reason in a file alongside it."""
    # The reason first: after a kill the signal is still in the inbox and is refused again, never without a reason.
    folder = atomic.make_directory(path.parent / "refused")
    atomic.write(folder / f"{path.name}.reason", (reason + "\n").encode(), durable=False)
    _move(path, "refused")


def _move(path: Path, where: str) -> None:
    folder = atomic.make_directory(path.parent / where)
    try:  # not synced: after a power cut it is pending again, and its recipient knows which signals it has applied
        path.rename(folder / path.name)
    except FileNotFoundError:
        return


def find_objection(signal: Signal, run: str, attempts: Mapping[str, int],
                   incarnations: Mapping[str, int]) -> str | None:
    """Return why `signal` must not be applied, or None. Pure.

    A dead sender's signal counts while its run and attempt are current.

    Args:
        attempts: node → current attempt.
        incarnations: full name → current incarnation.
    """
    if signal.run_id != run:
        return f"it belongs to run {signal.run_id}, this is {run}"
    kind = signal.signal_type
    if kind in BY_ATTEMPT:
        current = attempts.get(signal.node_id or "")
        if current is None:
            return f"this run has no node {signal.node_id}"
        # A runner may be killed after sending its report, which then arrives during the next attempt.
        if signal.attempt != current:
            return f"it belongs to attempt {signal.attempt} of {signal.node_id}, the current one is {current}"
    if kind in BY_INCARNATION:
        current = incarnations.get(signal.sender.full, 0)
        # The report of a dead sender is superseded by its successor's about the same attempt.
        if (signal.incarnation or 0) < current:
            return f"{signal.sender.full} has a later incarnation ({current})"
    if kind in TO_INCARNATION and "incarnation" in signal.payload:
        # The command was meant for one observed incarnation; its successor gave no cause for it, and may have another
        # question.
        target = Key("orchestrator", signal.recipient.name, run).full
        if signal.payload["incarnation"] != incarnations.get(target, 0):
            return f"it was meant for incarnation {signal.payload['incarnation']} of {target}, which is over"
    return None


# ---- payloads --------------------------------------------------------------------------------------------------------

KEYS = {"node": "node_id", "failure_kind": "kind", "last_incarnation": "life", "retry_failed": "again"}
"""Field → key on disk, where the two differ."""


class Payload(Value, rename=KEYS):
    """Content of a signal of `type`; guidance has an `action` as well."""

    type: ClassVar[str] = "GUIDANCE"
    action: ClassVar[str] = ""

    def to_data(self) -> dict[str, object]:
        data: dict[str, object] = {"action": self.action} if self.action else {}
        return data | {key: value for key, value in asdict(self).items() if value not in ("", None)}


# reports, upward

class NodeComplete(Payload):
    """The node's acceptance is green; `landing` is `no change` if there is nothing to land, and `kept` for a candidate,
    whose work is then `commit`."""

    type = "NODE_COMPLETE"
    node: str
    branch: str
    landing: str = ""
    commit: str = ""
    lines: int | None = None
    """Lines that a candidate adds and removes."""
    score: float | None = None
    """Number that the judge's command printed for it."""
    label: str = ""
    """The agent's choice, such as the verdict of a judge."""


class MergeReady(Payload):
    """The node's branch is in the merge queue."""

    type = "MERGE_READY"
    node: str
    branch: str


class NeedsReview(Payload):
    """The node's branch is in the merge queue, and the user must approve it before it lands."""

    type = "NEEDS_REVIEW"
    node: str
    branch: str


class RunnerExited(Payload):
    """A runner has ended: its node is `done` or `failed`; `failure_kind` says what failed, `rescue` names the saved
    work."""

    type = "RUNNER_EXITED"
    node: str
    branch: str
    status: str
    failure_kind: str = ""
    reason: str = ""
    rescue: str = ""


class OrchestratorHung(Payload):
    """The node's orchestrator hangs and is replaced."""

    type = "ORCHESTRATOR_STUCK"
    incarnation: int
    why: str
    evidence: dict[str, object] | None = None


class OrchestratorParked(Payload):
    """The node's orchestrator is parked, or no longer is; a probe is due at `probe_at` (UTC)."""

    type = "ORCHESTRATOR_STUCK"
    node: str
    branch: str
    parked: bool
    last_incarnation: int
    why: str = ""
    probe_at: str = ""


class OrchestratorCrashed(Payload):
    """An incarnation of the node's orchestrator died, or ended without a result; `departure` says how that ended."""

    type = "ORCHESTRATOR_CRASHED"
    incarnation: int
    why: str = ""
    departure: str = ""


class NeedsInput(Payload):
    """An agent asks the user."""

    type = "NEEDS_INPUT"
    question: str
    question_id: str


class AgentRegistered(Payload):
    """An incarnation was registered by hand."""

    type = "AGENT_REGISTERED"
    incarnation: int


class AgentCrashed(Payload):
    """An incarnation was recorded by hand as crashed."""

    type = "AGENT_CRASHED"
    incarnation: int
    why: str = ""


class AgentTerminated(Payload):
    """An incarnation was recorded by hand as terminated."""

    type = "AGENT_TERMINATED"
    incarnation: int
    why: str = ""


class Escalation(Payload):
    """A name was parked; a probe is due at `probe_at` (UTC), if at all."""

    type = "ESCALATE"
    who: str
    why: str
    probe_at: str = ""


class Violation(Payload):
    """Something that agents must not change, such as git's hooks, was changed while `nodes` were working."""

    type = "VIOLATION"
    why: str
    nodes: tuple[str, ...] = ()


class PipelineComplete(Payload):
    """The run is over: done or failed."""

    type = "PIPELINE_COMPLETE"
    status: str
    reason: str = ""


# requests, downward

class InputResponse(Payload):
    """The user's answer to an agent's question, or to a gate: then `question_id` is its place.

    `by` names where it was given, if not in a terminal: a paired phone, the page. `asked` is the question as the user
    saw it: a successor that gets the answer before its agent asks again does not know it.
    """

    type = "INPUT_RESPONSE"
    question_id: str
    text: str
    by: str = ""
    asked: str = ""


class KillOrchestrator(Payload):
    """Kill this incarnation of the node's orchestrator; None: the living one."""

    type = "KILL_ORCHESTRATOR"
    incarnation: int | None = None


class StopRun(Payload):
    """Stop the run gracefully; with `hurry` kill what does not stop at once."""

    action = "stop"
    hurry: bool | None = None


class ResumeRun(Payload):
    """Resume the run; with `retry_failed` the flow also returns to the node at which it failed, or to `nodes` alone."""

    action = "resume"
    retry_failed: bool | None = None
    nodes: tuple[str, ...] | None = None


def resume_id(run: str, incarnation: int) -> str:
    """Return the id of a launcher incarnation's request to resume, which is written with its lease and again by the
    process."""
    return f"{run}-resume-{incarnation}"


class ParkNode(Payload):
    """Park a node (or `processor`) until the user unparks it."""

    action = "park"
    who: str
    text: str = ""


class UnparkNode(Payload):
    """Unpark a node (or `processor`); without `who`, the recipient's own child."""

    action = "unpark"
    who: str = ""


class RetryNode(Payload):
    """Try a failed node of a running run again."""

    action = "retry"
    who: str


class CancelNode(Payload):
    """End the node's work, which is no longer needed."""

    action = "cancel"
    text: str = ""


class SendPipelineSignal(Payload):
    """A signal by name, for a node of the pipeline."""

    action = "signal"
    name: str
    value: object = True

    def to_data(self) -> dict[str, object]:
        """Return it with its value, of any type."""
        return {**super().to_data(), "value": self.value}


class AddNode(Payload):
    """Add a task to the run's graph, after the node `after` ('': as the graph begins), with these attributes."""

    action = "add"
    who: str
    attributes: dict[str, str]
    after: str = ""


class EditNode(Payload):
    """Change these attributes of a task that has not started."""

    action = "edit"
    who: str
    attributes: dict[str, str]


class SetBudget(Payload):
    """Allow the flow so many steps from the next resume on."""

    action = "budget"
    max_steps: int


def parse(signal: Signal) -> Payload | None:
    """Return the payload of a signal; None for a type without a payload class, and for unknown guidance."""
    return parse_payload(signal.signal_type, signal.payload)


def parse_payload(type_: str, data: Mapping[str, object]) -> Payload | None:
    """Return the payload for a signal's type and JSON; as `parse`."""
    match type_:
        case "ORCHESTRATOR_STUCK":
            cls: type[Payload] | None = OrchestratorParked if "parked" in data else OrchestratorHung
        case "GUIDANCE":
            cls = _GUIDANCE.get(str(data.get("action")))
        case _:
            cls = _REPORTS.get(type_)
    if cls is None or (cls is SendPipelineSignal and not data.get("name")) or (
            cls is SetBudget and not isinstance(data.get("max_steps"), int)):
        return None
    data = {**_MISSING.get(cls, {}), **data}
    return cls(**{name: read(data.get(key)) for name, key, read in _readers(cls)})


_GUIDANCE = {cls.action: cls for cls in Payload.__subclasses__() if cls.action}
_REPORTS = {cls.type: cls for cls in Payload.__subclasses__() if not cls.action}
_MISSING: Mapping[type[Payload], Mapping[str, object]] = {
    RunnerExited: {"reason": "no reason given"}, SendPipelineSignal: {"value": True}}
"""Payload → defaults of fields that a file lacks, if not empty."""


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else ()


def _number(value: object) -> int:
    try:
        return int(value) if isinstance(value, (int, float, str)) else 0
    except ValueError:
        return 0


_READERS: Mapping[object, Callable[[object], object]] = {
    str: _text, int: _number, bool: bool, object: lambda value: value, tuple[str, ...]: _texts,
    dict[str, str]: lambda value: {
        str(key): str(each) for key, each in value.items()} if isinstance(value, dict) else {},
    dict[str, object] | None: lambda value: value if isinstance(value, dict) else None,
    int | None: lambda value: _number(value) or None,
    float | None: lambda value: float(value) if isinstance(value, (int, float)) else None,
    bool | None: lambda value: bool(value) or None,
    tuple[str, ...] | None: lambda value: _texts(value) or None}
"""Type of a field → lenient conversion of a value that the user may have written."""


@cache
def _readers(cls: type[Payload]) -> list[tuple[str, str, Callable[[object], object]]]:
    return [(field.name, field.encode_name, _READERS[field.type]) for field in msgspec.structs.fields(cls)]
