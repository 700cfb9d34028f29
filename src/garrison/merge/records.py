"""Journal records of a merge queue: one class per kind. Their form on disk is frozen. Pure.

Fields with their default value are left out. Records about several entries store them, in the order of their batch, as
`entries`, and the first also as `entry`. `decode` reads the records of every earlier version. It returns None for an
unknown kind: such a record is skipped.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from garrison.ends import LandingNote
from garrison.merge.config import QueueConfig
from garrison.merge.entry import STRATEGIES
from garrison.records import earlier
from garrison.records.comments import ReviewComment
from garrison.records.record import Record, from_data
from garrison.values import asdict

if TYPE_CHECKING:
    from collections.abc import Mapping

Subject = Literal["entry", "base", "preflight"]
"""Subject of a gate run: entries on the tip, the bare tip, or the target before a launch."""


class QueueRecord(Record):
    """Record of any kind."""

    kind: ClassVar[str]

    @property
    def named(self) -> tuple[str, ...]:
        return ()


class EntryRecord(QueueRecord):
    """Record about one entry."""

    entry: str

    @property
    def named(self) -> tuple[str, ...]:
        return (self.entry,)


class EntriesRecord(QueueRecord):
    """Record about several entries, in the order of their batch."""

    entries: tuple[str, ...]

    @property
    def named(self) -> tuple[str, ...]:
        return self.entries

    @property
    def first(self) -> str:
        return self.entries[0] if self.entries else ""


# ------------------------------------------------------------------------------------------------------------ the queue


class Configured(QueueRecord):
    """New configuration of the queue."""

    kind = "config"
    config: QueueConfig


class LeaseTaken(QueueRecord):
    """Start of a processor; the record's epoch is its fencing token."""

    kind = "lease"


class PauseReason(StrEnum):
    """Why a queue pauses."""

    ASKED = "asked"
    """The user asked for it."""
    BASE_RED = "base_red"
    GATE_BROKEN = "gate_broken"


class QueuePaused(EntriesRecord):
    """Pause: nothing is judged until the queue is resumed. `entries` are requeued; `tip` is the target's at that time.

    After `retry_after` seconds the queue resumes automatically; 0: never.
    """

    kind = "pause"
    reason: str
    """A `PauseReason`."""
    detail: str
    tip: str
    log: str = ""
    retry_after: float = 0.0


class QueueResumed(QueueRecord):
    """End of a pause."""

    kind = "resume"
    reason: str


class QueueHindered(QueueRecord):
    """Failure that hinders the queue and is retried; an empty reason: no longer."""

    kind = "hindered"
    reason: str = ""


class SnapshotTaken(QueueRecord):
    """Whole state of the queue, with which its journal starts again (see `state.snapshot`)."""

    kind = "snapshot"
    state: dict[str, object]


# -------------------------------------------------------------------------------------------------------------- entries


class EntryEnqueued(EntryRecord):
    """Enqueue of a branch at a commit."""

    kind = "enq"
    run: str
    node: str
    attempt: int
    branch: str
    oid: str
    target: str
    repo: str
    recipient: str
    priority: int
    depends_on: tuple[str, ...]
    strategy: str
    status: str
    """`queued`, or `held` if it supersedes a held one or has to be approved."""
    supersedes: tuple[str, ...]
    approval: bool = False
    agent: str = ""
    """Agent that the run's graph names for the node; '' if the user enqueued it."""
    title: str = ""
    """One-line task; '' if it has none."""
    changes: tuple[LandingNote, ...] | None = None
    """Findings about it for the user; None if not inspected."""


class EntryAmended(EntryRecord):
    """Change of an entry's options."""

    kind = "amend"
    priority: int
    depends_on: tuple[str, ...]
    strategy: str


class EntryCancelled(EntryRecord):
    """Withdrawal of an entry."""

    kind = "cancel"
    reason: str = "cancelled"


class StatusChanged(EntriesRecord):
    """Change of the status of entries.

    With `candidate` they were stacked on `base`: `trees` and `commits` have one item per entry. Empty means unchanged.
    """

    kind = "state"
    status: str
    reason: str = ""
    files: tuple[str, ...] = ()
    base: str = ""
    trees: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    log: str = ""
    review: str = ""
    """With `rejected`: the reviewer's words."""
    comments: tuple[ReviewComment, ...] = ()
    """Line comments of the reviewer who rejects or approves them."""
    turn: float = 0.0
    """With `conflict`: duration in seconds of the turn that the entry's node gets; 0: none (see `turns`)."""
    moved: bool = False
    """With `conflict`: only the target had moved, so another attempt costs no rework."""


# ---------------------------------------------------------------------------------------------------------------- turns


class TurnAwaited(EntryRecord):
    """Turn of `node` in `run` that a queued entry waits for, and the files that both change; no node: no longer.
    """

    kind = "awaits"
    run: str = ""
    node: str = ""
    files: tuple[str, ...] = ()


class TurnRecord(QueueRecord):
    """Record about the turn of a node; ignored if that turn is over."""

    run: str
    node: str
    number: int
    """Number that distinguishes the turn from earlier ones of the node."""

    @property
    def key(self) -> tuple[str, str]:
        """Return (run, node)."""
        return (self.run, self.node)


class TurnTimed(TurnRecord):
    """Elapsed seconds of a turn."""

    kind = "turn_time"
    used: float


class TurnSuspended(TurnRecord):
    """True if a turn's clock is stopped, since its holder's agent waits for a limit or an outage to pass."""

    kind = "turn_waits"
    waits: bool


class TurnEnded(TurnRecord):
    """End of a turn before its holder has landed; `end` is a `turns.TurnEnd`."""

    kind = "turn_over"
    end: str


# ------------------------------------------------------------------------------------------------------------ gate runs


class GateStarted(EntriesRecord):
    """Start of a gate run on a commit, for these entries; `number` counts the runs of the first."""

    kind = "test"
    subject: Subject = msgspec.field(name="of")
    number: int
    job: str
    """Name of the run's folder."""
    commit: str
    tree: str
    slot: int
    key: str = msgspec.field(name="command")
    """Key of its verdict (`QueueConfig.verdict_key`)."""
    log: str
    base: str = ""
    """Target's commit on which the entries were merged; missing in early journals."""
    why: str = ""
    """Why this set was chosen, for display."""
    gate: str = ""
    """The command that runs; early journals have only its key."""
    gates: tuple[str, ...] = ()
    """Gates by path to run; () for the whole gate."""


class VerdictGiven(EntriesRecord):
    """End of a gate run, or a verdict reused without one."""

    kind = "verdict"
    subject: Subject = msgspec.field(name="of")
    tree: str
    key: str = msgspec.field(name="command")
    result: str
    reason: str
    log: str
    job: str = ""
    code: int | None = None
    note: str = ""
    """Part of the reason beyond how the command ended: remedies, and differences from other runs."""
    reused: bool = False
    """Set if an earlier verdict on the same tree was used."""
    uncounted: bool = False
    """Set if the run ended for lack of disk space, which proves nothing about the tree."""
    failing: tuple[str, ...] = ()
    """Failed tests in the log of a red run, else files that it names."""
    suspicion: tuple[float, ...] = ()
    """Likelihood ratio of that log for each entry (see `suspects`); empty if not informative."""
    base: str = ""
    """Target's commit on which the entries were merged, for a reused verdict; else the run's record has it."""
    gates: tuple[str, ...] = ()
    """Gates by path that ran; () for the whole gate."""

    @property
    def suspects(self) -> dict[str, float]:
        return dict(zip(self.entries, self.suspicion, strict=False))


# ------------------------------------------------------------------------------------------------------------- landings


class LandingStarted(EntriesRecord):
    """Intent to swap the target from `old` to `new`: the last of `commits`, one for each entry, or a merge of it."""

    kind = "landing"
    old: str
    new: str
    commits: tuple[str, ...]
    united: tuple[tuple[str, ...], ...] = ()
    """For each entry, the files in which both sides' lines were kept (see `union`); empty if there are none."""
    gates: tuple[str, ...] = ()
    """Gates by path that its tree passed; () for the whole gate."""
    tree: str = ""
    """Its tree, if it passed only gates by path."""


class EntryLanded(EntryRecord):
    """Landing of an entry: the target contains it as `commit`. The last record of a landing names checkouts that still
    show `old`."""

    kind = "landed"
    commit: str
    old: str
    reason: str = ""
    stale_checkouts: tuple[str, ...] = msgspec.field(default=(), name="owed")
    united: tuple[str, ...] = ()
    """Files of which both sides' lines were kept (see `union`)."""


class LandingsUndone(EntriesRecord):
    """Landings undone by a move of the target to `tip`; with `again`, landings that a move restored.
    """

    kind = "undone"
    tip: str
    reason: str
    again: bool = False


class LandingBlocked(EntriesRecord):
    """Recorded landing that was not done: `files` of an open checkout are in the way."""

    kind = "unlanded"
    old: str
    reason: str
    files: tuple[str, ...] = ()


class TargetMoved(EntriesRecord):
    """Recorded landing that was not done: someone else moved the target to `found`."""

    kind = "foreign"
    old: str
    reason: str
    expected: str = ""
    found: str = ""


class CheckoutUpdated(QueueRecord):
    """Update of an open checkout to `new`; `entry` is the first of its landing, empty if the landing was over."""

    kind = "moved"
    entry: str
    path: str
    old: str
    new: str


RECORDS: dict[str, type[QueueRecord]] = {each.kind: each for each in (
    Configured, LeaseTaken, QueuePaused, QueueResumed, QueueHindered, SnapshotTaken,
    EntryEnqueued, EntryAmended, EntryCancelled, StatusChanged,
    TurnAwaited, TurnTimed, TurnSuspended, TurnEnded,
    GateStarted, VerdictGiven,
    LandingStarted, EntryLanded, LandingsUndone, LandingBlocked, TargetMoved, CheckoutUpdated)}
"""Kind on disk → record."""


def encode(record: QueueRecord) -> dict[str, object]:
    """Return the `data` of a record in the journal."""
    match record:
        case Configured():
            return asdict(record.config)
        case SnapshotTaken():
            return record.state
        case EntriesRecord():
            return {"entry": record.first, **asdict(record)}
    return asdict(record)


def decode(kind: str, data: dict[str, object]) -> QueueRecord | None:
    """Return a stored record, None for a kind that this version does not know."""
    match kind:
        case "config":
            return Configured(from_data(QueueConfig, data))
        case "snapshot":
            return SnapshotTaken(data)
    record = RECORDS.get(kind)
    return from_data(record, complete(record, data)) if record else None


def complete(record: type[QueueRecord], data: Mapping[str, object]) -> Mapping[str, object]:
    """Return stored data with fields added and renamed for early journals, above all those without batches."""
    if issubclass(record, EntriesRecord) and not data.get("entries"):
        data = {**data, "entries": [data["entry"]] if data.get("entry") else []}
    if record is EntryEnqueued:
        return {"priority": 0, "depends_on": [], "strategy": STRATEGIES[0], "status": "queued", **data}
    if record is StatusChanged:
        single = {f"{key}s": [data[key]] for key in ("tree", "commit") if key in data}
        early = {"review": review} if (review := earlier.review_of(str(data.get("reason", "")))) else {}
        return {**single, **early, **data}
    return {"commits": [data["new"]], **data} if record is LandingStarted else data
