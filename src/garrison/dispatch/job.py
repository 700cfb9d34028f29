"""Jobs: what a host is told of an attempt, what it reports while it works, and its result; JSON of a limited size.

A host decides by itself how its agents run: the sandbox, the keys and the profiles are its own. Both sides read what
the other one wrote as foreign: types are checked, texts are limited, and commits are looked at before they are used.
"""

from __future__ import annotations

import hashlib
import json
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from garrison.errors import RecordError, Refused, UsageError
from garrison.records import record
from garrison.records.names import check_node, check_run
from garrison.values import Value

if TYPE_CHECKING:
    from garrison.dispatch.records import AttemptId

T = TypeVar("T")

HOST_RUNS = "for-"
"""Begins the ids of runs that do a claim."""
MAX_JOB, MAX_PROGRESS, MAX_RESULT, MAX_MESSAGE = 1_000_000, 32_000, 200_000, 100_000
"""Bytes of a job, of what a heartbeat reports, of a result and of a message."""
MAX_QUESTION, MAX_LINE, MAX_NOTES = 3_000, 300, 3_000
"""Characters of a question, of the last line that an agent printed, and of its notes."""
MAX_COUNT = 10**12
"""Largest number of tokens, calls or dollars that is believed."""
_OID = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")


class Job(Value):
    """An attempt as its host gets it."""

    home: str
    """Name of the home that it comes from."""
    repository: str
    """Name of the repository; attempts of one share a clone on the host."""
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
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    """Attributes of the node that its agent knows."""
    words: list[str] = msgspec.field(default_factory=list)
    """Words besides the statuses that its agent may report."""
    env: list[str] = msgspec.field(default_factory=list)
    """Names of variables that its agent gets where the host has them."""
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
    """What a host reports with each heartbeat."""

    run: str = ""
    """Id of its run."""
    phase: str = ""
    head: str = ""
    """Last commit of its branch."""
    line: str = ""
    """Last line that its agent printed."""
    question_id: str = ""
    question: str = ""
    """Open question to a person."""
    usd: float = 0.0
    calls: int = 0
    input: int = 0
    output: int = 0
    deaths: int = 0
    """How often its agent died there."""
    agent: str = ""
    notes: str = ""
    """What it left for a successor."""

    def __post_init__(self) -> None:
        check_commit(self.head)
        if not all(0 <= value <= MAX_COUNT for value in (self.usd, self.calls, self.input, self.output, self.deaths)):
            raise UsageError("not what an agent can have used")


class JobStatus(StrEnum):
    """How the work on a host ended."""

    SUCCESS = "success"
    FAIL = "fail"
    BROKEN = "broken"
    """Something beside the work kept it from its end; a successor goes on."""


class JobResult(Value):
    """Result of a job."""

    host: str
    status: str
    reason: str = ""
    failure_kind: str = ""
    head: str = ""
    """Commit with everything that was made."""
    said: dict[str, Any] = msgspec.field(default_factory=dict)
    """The agent's report."""
    tail: str = ""
    """End of what it printed."""
    progress: dict[str, Any] = msgspec.field(default_factory=dict)
    """The last `JobProgress`."""

    def __post_init__(self) -> None:
        JobStatus(self.status)
        check_commit(self.head)


class MessageKind(StrEnum):
    """What home tells the worker of an attempt."""

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
    """Return `oid` if it is the id of a commit, or '', else raise UsageError."""
    if oid and not _OID.match(oid):
        raise UsageError("not the id of a commit")
    return oid


def encode(value: Any, limit: int) -> str:
    """Return a record of this module as JSON; Refused if it has more than `limit` bytes."""
    text = json.dumps(record.to_dict(value), ensure_ascii=False).encode(errors="replace").decode()
    if (size := len(text.encode())) > limit:
        raise Refused(f"what a host is to be told has {size:,} bytes, and {limit:,} is the limit; shorten the task, "
                      "or do the node on this machine (host=local)")
    return text


def decode(kind: type[T], text: str, limit: int) -> T | None:
    """Return what the other side wrote as a record of `kind`, None if it is none."""
    if not text or len(text) > limit:
        return None
    try:
        return record.decode(kind, text.encode(errors="replace"), "message")
    except (RecordError, UsageError):
        return None


def base_ref(id_: AttemptId) -> str:
    """Return the ref of a host's clone to which home brings the commit that an attempt begins at."""
    return f"refs/garrison/base/{id_.run}/{id_.node}/{id_.number}"


def result_ref(id_: AttemptId) -> str:
    return f"refs/garrison/result/{id_.run}/{id_.node}/{id_.number}"


def left_ref(id_: AttemptId) -> str:
    """Return the ref of a host's clone with what a worker left that was cut off or stopped."""
    return f"refs/garrison/left/{id_.run}/{id_.node}/{id_.number}"
