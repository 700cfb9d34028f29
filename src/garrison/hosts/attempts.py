"""Records that pass through a dispatcher: attempts, claims, heartbeat answers, results and views."""

from __future__ import annotations

import hashlib
import json
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from garrison.errors import GarrisonError, RecordError, Refused, UsageError
from garrison.records import record
from garrison.records.late_work import LateWork, note_late
from garrison.records.names import check_node, check_run
from garrison.records.remote import RemotePhase, look_remote, write_remote
from garrison.values import Value, replace

if TYPE_CHECKING:
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Task


class AttemptId(Value):
    """Identity of one attempt of a node of a run; a retry or a rework is another attempt."""

    run: str
    node: str
    attempt: int
    offer: int = 1
    """Number of the offer: an attempt that was stopped, or whose worker was lost, is offered again."""

    def __post_init__(self) -> None:
        check_run(self.run)
        check_node(self.node)
        if self.attempt < 1 or self.offer < 1:
            raise UsageError(f"not an attempt: {self.attempt}.{self.offer}; attempts and offers are counted from 1")

    def __str__(self) -> str:
        return f"{self.run}/{self.node}/{self.number}"

    @property
    def number(self) -> str:
        """Return the number of the attempt, followed by the offer's unless it is the first."""
        return str(self.attempt) if self.offer == 1 else f"{self.attempt}.{self.offer}"

    @classmethod
    def parse(cls, text: str) -> AttemptId:
        """Parse the output of `str`; UsageError for anything else."""
        run, _, rest = text.partition("/")
        node, _, numbers = rest.partition("/")
        number, dot, offer = numbers.partition(".")
        if not all(each.isascii() and each.isdigit() for each in (number, offer if dot else "1")):
            raise UsageError(f"not an attempt of a node: {text!r}; the form is run/node/number")
        return cls(run, node, int(number), int(offer or 1))


class NodeAttempt(Value):
    """An attempt to do, as it is submitted."""

    id: AttemptId
    payload: str = ""
    """Data for the worker, opaque to the dispatcher."""
    queue: str = ""
    """Queue whose workers may claim it."""
    lease: float = 5.0
    """Seconds without a heartbeat after which another worker may claim it."""
    max_claims: int = 1
    """Workers that may claim it one after the other, until one completes it."""


class ClaimToken(Value):
    """Right of one claim to act for an attempt. A later claim makes it stale forever."""

    id: AttemptId
    claim: int
    """Number of the claim, from 1: a fence for everything the worker writes elsewhere."""
    secret: str = ""
    """Secret by which the backend recognises the claim."""


class Claim(Value):
    """A claimed attempt, with the token to act for it."""

    token: ClaimToken
    attempt: NodeAttempt


class WorkerMessage(Value):
    """A message to the worker of an attempt; a repetition has the same `id`."""

    id: str
    body: str


class WorkerOrder(StrEnum):
    """Order to the worker in the answer to a heartbeat."""

    OK = "ok"
    CANCEL = "cancel"
    """End the attempt, and complete it as cancelled."""
    LOST = "lost"
    """The claim is no longer current: stop at once, nothing more is accepted."""


class HeartbeatReply(Value):
    """Answer to a heartbeat, with the messages that arrived since the last one."""

    order: WorkerOrder
    messages: tuple[WorkerMessage, ...] = ()


class Completion(StrEnum):
    """How a worker completed an attempt."""

    DONE = "done"
    CANCELLED = "cancelled"


class AttemptResult(Value):
    """Result of an attempt, given by the worker with its current claim."""

    outcome: Completion
    body: str = ""


class AttemptState(StrEnum):
    """State of an attempt in the run's view."""

    WAITING = "waiting"
    """No worker has it: it was not claimed, or its last claim ended and it may be claimed again."""
    CLAIMED = "claimed"
    DONE = "done"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Its last claim ended without a result, and it may not be claimed again."""
    UNKNOWN = "unknown"
    """It was never submitted."""


OVER = frozenset({AttemptState.DONE, AttemptState.CANCELLED, AttemptState.LOST})
"""States that no longer change."""


class AttemptView(Value):
    """Attempt in the run's view."""

    id: AttemptId
    state: AttemptState
    claim: int = 0
    """Number of the last claim, 0 before the first."""
    worker: str = ""
    """Name of the worker with that claim."""
    progress: str = ""
    """Report of the last heartbeat; a successor gets its predecessor's."""
    result: AttemptResult | None = None
    why: str = ""


# ---- Dispatcher: the seam between a run and its workers.
#
# The run's side submits, cancels, sends and watches; a worker claims, sends heartbeats and completes. A backend
# keeps submissions while either side is away. All backends pass one contract suite
# (`tests/contract/test_dispatch.py`).
#
# Guarantees of every backend:
#
# - An attempt has at most one current claim. A heartbeat, a result or a message of an earlier one is refused.
# - A claim ends with a result, or when no heartbeat arrived for the attempt's lease, never earlier. Only then may
#   another worker claim the attempt.
# - Submitting, cancelling and sending are idempotent: a run that was killed between action and record repeats them.


class StaleToken(Refused):
    """A result with the token of a claim that is not current; nothing was accepted."""

    def __init__(self, token: ClaimToken) -> None:
        super().__init__(f"claim {token.claim} of {token.id} is no longer current; its result was refused")


class DispatcherLost(GarrisonError):
    """The dispatcher did not answer; it is unknown whether it executed the request."""


class Dispatcher(Protocol):
    """Backend that brings attempts to workers and results back."""

    # ---- the run's side

    def submit(self, attempt: NodeAttempt) -> None:
        """Offer an attempt to the workers of its queue; one that was already submitted is unchanged."""
        ...

    def cancel(self, attempt: AttemptId, why: str) -> None:
        """Cancel an attempt: at once if no worker has it, else when its worker ends it or its lease ends."""
        ...

    def send(self, attempt: AttemptId, message: WorkerMessage) -> None:
        """Send the attempt's worker a message; the answer to a heartbeat delivers it."""
        ...

    def watch(self, attempt: AttemptId, seen: AttemptView | None = None, timeout: float = 0.0) -> AttemptView:
        """Return the attempt's state; wait up to `timeout` seconds for one that differs from `seen`."""
        ...

    # ---- a worker's side

    def claim(self, timeout: float) -> Claim | None:
        """Claim an attempt; None if none was offered within `timeout` seconds.

        A claim does not yet allow any work: its lease starts with the first answered heartbeat.
        """
        ...

    def heartbeat(self, token: ClaimToken, progress: str = "") -> HeartbeatReply:
        """Renew the lease, report progress, and return what the worker must do; DispatcherLost without an answer."""
        ...

    def is_called(self, token: ClaimToken) -> bool:
        """Return whether an order or a message is already known to wait for the next heartbeat. Makes no request."""
        ...

    def complete(self, token: ClaimToken, result: AttemptResult) -> None:
        """Complete the attempt; StaleToken if the claim is not current, DispatcherLost without an answer."""
        ...


# ---- Jobs: a host's input for an attempt, its progress reports, and its result; JSON of a limited
# size.
#
# A host decides by itself how its agents run: it has its own sandbox, keys and profiles. Each side treats
# the other's data as foreign: types are checked, texts are limited, and commits are inspected before they
# are used.


T = TypeVar("T")

HOST_RUNS = "for-"
"""Prefix of the ids of runs that do a claim."""
MAX_JOB, MAX_PROGRESS, MAX_RESULT, MAX_MESSAGE = 1_000_000, 32_000, 200_000, 100_000
"""Bytes of a job, of a heartbeat's report, of a result and of a message."""
MAX_QUESTION, MAX_LINE, MAX_NOTES = 3_000, 300, 3_000
"""Characters of a question, of an agent's last line of output, and of its notes."""
MAX_COUNT = 10**12
"""Largest plausible number of tokens, calls or dollars."""
_OID = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")


class HostJob(Value):
    """An attempt as its host gets it."""

    home: str
    """Name of its home."""
    repository: str
    """Name of the repository; its attempts share a clone on the host."""
    run_id: str
    node: str
    attempt: int
    offer: int
    label: str = ""
    prompt: str = ""
    agent: str = "command"
    command: str | None = None
    acceptance: str | None = None
    setup: str | None = None
    lock_files: list[str] = msgspec.field(default_factory=list)
    timeout_s: float | None = None
    silence_s: float | None = None
    allow_empty: bool = True
    goal: str = ""
    prd_ref: str = ""
    failover: list[str] | None = None
    attributes: dict[str, object] = msgspec.field(default_factory=dict)
    """Attributes of the node for its agent."""
    words: list[str] = msgspec.field(default_factory=list)
    """Words that its agent may report in addition to the statuses."""
    env: list[str] = msgspec.field(default_factory=list)
    """Names of the host's variables that its agent gets."""
    max_respawn: int = 10
    author: dict[str, str] = msgspec.field(default_factory=dict)
    """Name and e-mail address of the user, for commits."""

    def __post_init__(self) -> None:
        check_run(self.run_id)
        check_node(self.node)

    @property
    def host_run(self) -> str:
        return host_run(self.home, self.run_id, self.node, self.attempt, self.offer)


class JobProgress(Value):
    """Report of a host with each heartbeat."""

    run: str = ""
    """Id of its run."""
    phase: str = ""
    head: str = ""
    """Last commit of its branch."""
    line: str = ""
    """Last line that its agent printed."""
    question_id: str = ""
    question: str = ""
    """Open question to the user."""
    usd: float = 0.0
    calls: int = 0
    input: int = 0
    output: int = 0
    deaths: int = 0
    """How often its agent died there."""
    agent: str = ""
    notes: str = ""
    """Its notes for a successor."""

    def __post_init__(self) -> None:
        check_commit(self.head)
        if not all(0 <= value <= MAX_COUNT for value in (self.usd, self.calls, self.input, self.output, self.deaths)):
            raise UsageError("not a possible usage of an agent")


class JobStatus(StrEnum):
    """How the work on a host ended."""

    SUCCESS = "success"
    FAIL = "fail"
    BROKEN = "broken"
    """Something other than the work failed; a successor continues."""


class JobResult(Value):
    """Result of a job."""

    host: str
    status: str
    reason: str = ""
    failure_kind: str = ""
    head: str = ""
    """Commit with all of the work."""
    said: dict[str, object] = msgspec.field(default_factory=dict)
    """The agent's report."""
    tail: str = ""
    """End of its output."""
    progress: dict[str, object] = msgspec.field(default_factory=dict)
    """The last `JobProgress`."""

    def __post_init__(self) -> None:
        JobStatus(self.status)
        check_commit(self.head)


class MessageKind(StrEnum):
    """Kind of a message from home to the worker of an attempt."""

    ANSWER = "answer"
    TELL = "tell"


class JobMessage(Value):
    """A message to an agent on a host."""

    kind: str
    text: str
    question_id: str = ""

    def __post_init__(self) -> None:
        MessageKind(self.kind)


def host_run(home: str, run: str, node: str, attempt: int, offer: int) -> str:
    """Return the id of the run that does an attempt on a host: the same one for the same offer."""
    digest = hashlib.sha256(f"{home}/{run}/{node}/{attempt}/{offer}".encode()).hexdigest()
    return f"{HOST_RUNS}{digest[:20]}"


def check_commit(oid: str) -> str:
    """Return `oid` if it is the id of a commit or '', else raise UsageError."""
    if oid and not _OID.match(oid):
        raise UsageError("not the id of a commit")
    return oid


def encode(value: object, limit: int) -> str:
    """Return a record of this module as JSON; Refused if it has more than `limit` bytes."""
    # A lone surrogate, which an agent's output may have, has no UTF-8.
    text = json.dumps(record.to_dict(value), ensure_ascii=False).encode(errors="replace").decode()
    if (size := len(text.encode())) > limit:
        raise Refused(f"the task for a host has {size:,} bytes, more than the limit of {limit:,}; shorten the task, "
                      "or do the node on this machine (host=local)")
    return text


def decode(kind: type[T], text: str, limit: int) -> T | None:
    """Decode the other side's text as a record of `kind`; None if it is invalid."""
    if not text or len(text) > limit:
        return None
    try:
        return record.decode(kind, text.encode(errors="replace"), "message")
    except (RecordError, UsageError):
        return None


def base_ref(id_: AttemptId) -> str:
    """Return the ref of a host's clone to which home brings the commit at which an attempt starts."""
    return f"refs/garrison/base/{id_.run}/{id_.node}/{id_.number}"


def result_ref(id_: AttemptId) -> str:
    return f"refs/garrison/result/{id_.run}/{id_.node}/{id_.number}"


def left_ref(id_: AttemptId) -> str:
    """Return the ref of a host's clone with the work of a worker that was cut off or stopped."""
    return f"refs/garrison/left/{id_.run}/{id_.node}/{id_.number}"


# ---- Withdraw the open offer of an attempt: its keeper cancels it, and fetches its worker's work.


def give_up(runtime: Runtime, launch: Launch, task: Task, cancel: str) -> None:
    """Withdraw the open offer of an attempt, if there is one.

    Args:
        cancel: why it is cancelled, '' if it is over.
    """
    folder = runtime.files(task.run_id).attempt(task.node, task.attempt)
    state = look_remote(folder)
    if state is None or state.phase == RemotePhase.ENDED:
        return
    id_ = AttemptId(task.run_id, task.node, task.attempt, state.offer)
    # Recorded first: after a death in between it is recorded again, which changes nothing. In the other order the offer
    # would never be cancelled, nor its worker's work fetched.
    if state.host or cancel:
        note_late(runtime.home, LateWork(str(id_), launch.repo, runtime.clock.utc(), state.host, state.claim, cancel))
    write_remote(folder, replace(state, phase=RemotePhase.ENDED, since=runtime.clock.utc()))
