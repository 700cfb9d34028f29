"""Queue state: replay the journal of a queue, derive the outcomes to signal, save and restore snapshots. Pure.

`QueueState.apply` replays one stored record: first each entry that it names changes (`_ENTRY_STEPS`), then the queue
(`_APPLY`). `QueueState.check` uses the same functions to refuse an invalid record before it is written. `restore` turns
a `snapshot` back into the state. A snapshot omits old verdicts, and final entries except for recent ones and those that
a waiting entry depends on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from garrison.errors import NotFound
from garrison.merge import records
from garrison.merge.config import QueueConfig
from garrison.merge.entry import (
    GREEN_SIGNAL,
    STATUS_SIGNALS,
    WAITING_FOR_APPROVAL,
    EntryFact,
    MergeEntry,
    check_transition,
    make_outcome,
    order_by_dependencies,
    rank_entries,
)
from garrison.merge.verdicts import KEPT_VERDICTS, SavedVerdicts, SetRun, VerdictCache
from garrison.records.record import Record, from_data
from garrison.system.clock import from_iso, iso
from garrison.values import Value, asdict, fields_of, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from garrison.records.journal import Entry as Stored

KEPT_ENTRIES = 1000
"""Final entries kept in a snapshot; the archived parts of the journal have all."""

KEPT_LANDINGS = 300
"""Landings kept, to know which runs on an earlier tip tested the current one."""
KEPT_FAILURES = 200
"""Flaky tests kept, and red trees kept with their failed tests."""


class RunningGate(records.GateStarted):
    """Gate run without a verdict, started `at` that time."""

    at: str = ""


class BaseVerdict(Value):
    """Verdict on the bare target, tested because of `entry`."""

    entry: str
    result: str
    reason: str
    log: str


class StaleCheckout(Value):
    """Open checkout that still shows `old` although its branch is at `new`."""

    path: str
    old: str
    new: str


class Pause(Value):
    """Reason why the queue judges nothing now; `tip` was the target's when it started.

    `retry_after` seconds after its start, `at`, the queue retries automatically; 0 without `at`: never.
    """

    reason: str
    detail: str
    tip: str
    log: str = ""
    at: str = ""
    retry_after: float = 0.0

    @property
    def is_manual(self) -> bool:
        """Return whether the user asked for it; then only the user resumes the queue."""
        return self.reason == records.PauseReason.ASKED

    def describe(self) -> str:
        if self.is_manual:
            return f"the queue is paused: {self.detail}; `garrison merge-queue unpause` lets it continue"
        return f"the queue is paused: {self.reason}: {self.explain()}"

    def explain(self) -> str:
        first, line_end, rest = self.detail.partition("\n")  # a one-line display shows the first line
        retry = f"; the queue tries again at {self.retry_at}" if self.retry_at else ""
        return f"{first}{retry}{line_end}{rest}"

    @property
    def retry_at(self) -> str:
        """Return the time of the automatic retry, to the second; '' for never."""
        return f"{iso(from_iso(self.at) + self.retry_after)[:19]}Z" if self.retry_after else ""

    def is_retry_due(self, now: float) -> bool:
        """Return whether the automatic retry is due at `now`, in seconds since the epoch.

        It is also due if the clock was set back to before the pause.
        """
        return self.retry_after > 0 and not 0 <= now - from_iso(self.at) < self.retry_after


class QueueTurn(Record):
    """Turn of a node that lost to a moved target (see `turns`); `number` orders the turns by their losses."""

    run: str
    node: str
    number: int
    files: tuple[str, ...]
    limit: float
    """Maximum duration in seconds."""
    used: float = 0.0
    waits: bool = False
    """Set while the holder's agent waits for the end of a limit or an outage."""

    @property
    def key(self) -> tuple[str, str]:
        """Return (run, node)."""
        return (self.run, self.node)


class QueueState(msgspec.Struct):
    """State of a queue after some records of its journal."""

    config: QueueConfig | None = None
    entries: dict[str, MergeEntry] = msgspec.field(default_factory=dict)
    """Entries by id, in the order of enqueueing."""
    positions: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of entries enqueued before each."""
    enqueued: int = 0
    """Entries enqueued so far."""
    epoch: int = 0
    holder: str = ""
    """Token of the last processor."""
    seq: int = 0
    snapshot_seq: int = 0
    updated_at: str | None = None
    gates: dict[str, RunningGate] = msgspec.field(default_factory=dict)
    """Gate runs in progress, by job."""
    base: BaseVerdict | None = None
    tip: str = ""
    """Target's commit when the batch was built, or after the last landing."""
    verdicts: VerdictCache = msgspec.field(default_factory=VerdictCache)
    failing: dict[tuple[str, str], tuple[str, ...]] = msgspec.field(default_factory=dict)
    """(tree, key) → failed tests named by a red run on it, for recent runs."""
    flaky_tests: dict[str, None] = msgspec.field(default_factory=dict)
    """Tests that failed on a tree that also passed the same gate, latest last."""
    landing: records.LandingStarted | None = None
    """Landing in progress, with the entries not yet recorded as landed."""
    stale_checkouts: tuple[StaleCheckout, ...] = ()
    landings: dict[str, tuple[str, tuple[str, ...]]] = msgspec.field(default_factory=dict)
    """Target's commit → the commit after the next landing, and its entries, for recent landings."""
    partial_landings: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(tree, entries) of recent landings, since the last one whose tree had passed the whole gate."""
    moves: dict[str, str] = msgspec.field(default_factory=dict)
    """New commit of the target → the old one, for each started landing."""
    pause: Pause | None = None
    retried_pauses: int = 0
    """Number of automatically ended pauses in a row."""
    hindrance: str = ""
    """Failure that hinders the queue and is retried; '' for none."""
    hindered_at: str = ""
    """When that was recorded."""
    turns: dict[tuple[str, str], QueueTurn] = msgspec.field(default_factory=dict)
    """(run, node) → its turn, for nodes that lost to a moved target and have not landed since."""
    outcomes: list[EntryFact] = msgspec.field(default_factory=list)

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def gate(self) -> RunningGate | None:
        return next(iter(self.gates.values()), None)

    @property
    def green(self) -> Collection[tuple[str, str]]:
        """Return the (tree, key) pairs that passed."""
        return self.verdicts.green

    def entry(self, entry_id: str) -> MergeEntry:
        """Return the entry of that id; NotFound."""
        if entry_id not in self.entries:
            raise NotFound(f"no merge entry {entry_id}; `garrison merge-queue list` shows them")
        return self.entries[entry_id]

    def entries_of(self, run: str, node: str) -> list[MergeEntry]:
        """Return all entries of a node in a run, oldest first."""
        return [entry for entry in self.entries.values() if entry.node == node and entry.run == run]

    def unfinished(self) -> list[MergeEntry]:
        return [entry for entry in self.entries.values() if not entry.is_final]

    def ranked(self, *statuses: str) -> list[MergeEntry]:
        """Return the unfinished entries, or those with these statuses, in judging order: holders of a turn go first."""
        ranked = rank_entries([entry for entry in self.unfinished() if not statuses or entry.status in statuses],
                              self.positions)
        if not self.turns:
            return ranked
        first = sorted((entry for entry in ranked if entry.key in self.turns),
                       key=lambda entry: self.turns[entry.key].number)
        return [*first, *(entry for entry in ranked if entry.key not in self.turns)]

    def batch(self) -> list[MergeEntry]:
        return self.ranked("candidate", "testing")

    def waiting(self) -> list[MergeEntry]:
        """Return the queued entries in the order in which they are tested, each after those it depends on."""
        queued = self.ranked("queued")
        needs = {entry.id: {other.id for other in self.unmet_dependencies(entry)} for entry in queued
                 if entry.depends_on}
        return order_by_dependencies(queued, needs)

    def landed_since(self, base: str, tip: str) -> tuple[str, ...] | None:
        """Return the entries that landed between two commits of the target; None if something else moved it."""
        landed: list[str] = []
        while base != tip:
            if base not in self.landings or len(landed) > KEPT_ENTRIES:
                return None
            base, names = self.landings[base]
            landed += names
        return tuple(landed)

    def unmet_dependencies(self, entry: MergeEntry) -> list[MergeEntry]:
        """Return what must still land before `entry` is judged: the latest entry of each node that it depends on.

        A dependency is met once that entry, or a later one of the same node, has landed.
        """
        unmet: list[MergeEntry] = []
        for name in entry.depends_on:
            other = self.entries.get(name)
            later = [each for each in self.entries_of(*other.key) if each.seq >= other.seq] if other else []
            if later and all(each.status != "landed" for each in later) and later[-1] not in unmet:
                unmet.append(later[-1])
        return unmet

    # --- replaying --------------------------------------------------------------------------------------------------

    def check(self, record: records.QueueRecord) -> None:
        """Raise what `apply` would raise, without changing anything."""
        step = _ENTRY_STEPS.get(type(record))
        for name in record.named if step else ():
            entry = self.entry(name)
            check_transition(entry.id, entry.status, move_entry(entry, record).status)

    def apply(self, stored: Stored) -> None:
        """Replay one stored record."""
        self.seq, self.epoch, self.updated_at = stored.seq, stored.epoch, stored.at
        record = records.decode(stored.kind, stored.data)
        if record is not None:
            self.apply_record(record, stored)

    def apply_record(self, record: records.QueueRecord, stored: Stored) -> None:
        """Replay one record; `stored` has its number, epoch, writer and time."""
        if type(record) in _ENTRY_STEPS:
            for name in record.named:
                self._step(self.entry(name), record, stored)
        if handle := _APPLY.get(type(record)):
            handle(self, record, stored)
        # a hold, a withdrawal or a requeue may have left a run without entries under test
        self.gates = {job: gate for job, gate in self.gates.items() if self._is_wanted(gate)}

    def _is_wanted(self, gate: RunningGate) -> bool:
        return any(self.entries[name].status == "testing" for name in gate.entries)

    def _step(self, old: MergeEntry, record: records.QueueRecord, stored: Stored) -> None:
        new = replace(move_entry(old, record), updated_at=stored.at)
        if isinstance(record, records.LandingsUndone) and new.status == old.status:
            return  # shown before it was recorded (`find_unrecorded`)
        check_transition(old.id, old.status, new.status)
        if new.status == "landed" and old.status != "undone":
            new = replace(new, landed_at=stored.at)
        self.entries[new.id] = new
        if "undone" in (old.status, new.status):
            return  # its runner already knows of the landing, which does not change
        for signal_type in STATUS_SIGNALS.get(new.status, ()) if new.status != old.status else ():
            self.outcomes.append(make_outcome(new, signal_type, stored.seq, stored.at))


# ---------------------------------------------------------------------------------------- effect of a record on entries


def move_entry(entry: MergeEntry, record: records.QueueRecord) -> MergeEntry:
    """Return an entry as a record leaves it; the lifecycle is not checked."""
    return _ENTRY_STEPS[type(record)](entry, record)


def moves_entries(record: records.QueueRecord) -> bool:
    return type(record) in _ENTRY_STEPS


def _change_status(entry: MergeEntry, record: records.StatusChanged) -> MergeEntry:
    index = record.entries.index(entry.id)
    return replace(entry, status=record.status, reason=record.reason, files=record.files,
                   base=record.base or entry.base, log=record.log or entry.log,
                   tree=record.trees[index] if record.trees else entry.tree,
                   commit=record.commits[index] if record.commits else entry.commit,
                   moved=record.moved, review=record.review, comments=record.comments or entry.comments, waits_for=(),
                   verdict="" if record.status in ("queued", "candidate") else entry.verdict)


def _start_gate(entry: MergeEntry, record: records.GateStarted) -> MergeEntry:
    testing = replace(entry, status="testing", tests=entry.tests + 1)
    if record.subject == "base":
        return testing
    again = entry.reason if entry.status == "testing" and not entry.verdict else ""  # why there was no verdict
    return replace(testing, log=record.log, gate=record.gate, verdict="", reason=again)


def _start_landing(entry: MergeEntry, record: records.LandingStarted) -> MergeEntry:
    others = tuple(name for name in record.entries if name != entry.id)
    united = record.united[record.entries.index(entry.id)] if record.united else ()
    return replace(entry, status="landing", together=others, united=united)


def _land(entry: MergeEntry, record: records.EntryLanded) -> MergeEntry:
    # If the target already contained the entry, it did not move, and its tip is another entry's commit.
    commit = "" if record.commit == record.old else record.commit
    return replace(entry, status="landed", commit=commit, reason=record.reason, files=())


def _undo(entry: MergeEntry, record: records.LandingsUndone) -> MergeEntry:
    return replace(entry, status="landed" if record.again else "undone", reason=record.reason)


def _block(entry: MergeEntry, record: records.LandingBlocked) -> MergeEntry:
    return replace(entry, status="landing_blocked", reason=record.reason, files=record.files, together=())


def _requeue(entry: MergeEntry, record: records.TargetMoved) -> MergeEntry:
    return replace(entry, status="queued", verdict="", reason=record.reason, together=())


def _cancel(entry: MergeEntry, record: records.EntryCancelled) -> MergeEntry:
    return replace(entry, status="cancelled", reason=record.reason)


_ENTRY_STEPS: Mapping[type[records.QueueRecord], Callable[[MergeEntry, Any], MergeEntry]] = {
    records.StatusChanged: _change_status,
    records.GateStarted: _start_gate,
    records.LandingStarted: _start_landing,
    records.EntryLanded: _land,
    records.LandingsUndone: _undo,
    records.LandingBlocked: _block,
    records.TargetMoved: _requeue,
    records.EntryCancelled: _cancel,
}
"""Record → change of each entry that it names."""


# -------------------------------------------------------------------------------------- effect of a record on the queue


def _apply_configured(state: QueueState, record: records.Configured, stored: Stored) -> None:
    state.config = record.config
    state.verdicts.forget_runs()
    if state.pause and not state.pause.is_manual:
        state.pause = None


def _apply_enqueued(state: QueueState, record: records.EntryEnqueued, stored: Stored) -> None:
    for name in record.supersedes:
        old = state.entries[name]
        check_transition(name, old.status, "superseded")
        state.entries[name] = replace(old, status="superseded", reason=f"replaced by {record.entry}",
                                      updated_at=stored.at)
    state.positions[record.entry] = state.enqueued
    state.enqueued += 1
    state.entries[record.entry] = new_entry(record, stored)
    if record.status == "held":
        state.turns.pop((record.run, record.node), None)


def new_entry(record: records.EntryEnqueued, stored: Stored) -> MergeEntry:
    """Return the entry of an `enq` record."""
    return MergeEntry(
        record.entry, record.run, record.node, record.attempt, record.branch, record.oid, record.target, record.repo,
        record.recipient, record.status, _reason_to_hold(record) if record.status == "held" else "",
        enqueued_at=stored.at, updated_at=stored.at, seq=stored.seq, priority=record.priority,
        depends_on=record.depends_on, strategy=record.strategy, approval=record.approval, agent=record.agent,
        title=record.title, changes=record.changes)


def _reason_to_hold(record: records.EntryEnqueued) -> str:
    return WAITING_FOR_APPROVAL if record.approval else "held by the user"


def _apply_amended(state: QueueState, record: records.EntryAmended, stored: Stored) -> None:
    state.entries[record.entry] = replace(
        state.entry(record.entry), priority=record.priority, depends_on=record.depends_on, strategy=record.strategy,
        updated_at=stored.at)


def _apply_lease_taken(state: QueueState, record: records.LeaseTaken, stored: Stored) -> None:
    state.holder, state.hindrance = stored.token, ""
    state.verdicts.forget_lost()


def _apply_status_changed(state: QueueState, record: records.StatusChanged, stored: Stored) -> None:
    if record.status == "candidate":
        if state.tip != record.base:
            state.verdicts.forget_base()
        state.tip = record.base
    elif record.status == "rejected":
        state.verdicts.forget_base()
        state.verdicts.record_judgement(rejected=True)
    elif record.status == "held":
        _end_turns(state, record.entries)
    elif record.turn:
        for entry in (state.entries[name] for name in record.entries):
            before = state.turns.get(entry.key)
            number, files = (before.number, before.files) if before else (stored.seq, ())
            state.turns[entry.key] = QueueTurn(entry.run, entry.node, number,
                                               tuple(dict.fromkeys((*files, *record.files))),
                                               record.turn)


def _end_turns(state: QueueState, names: Iterable[str]) -> None:
    for name in names:
        state.turns.pop(state.entries[name].key, None)


def _apply_cancelled(state: QueueState, record: records.EntryCancelled, stored: Stored) -> None:
    _end_turns(state, record.named)


def _apply_turn_awaited(state: QueueState, record: records.TurnAwaited, stored: Stored) -> None:
    entry = state.entry(record.entry)
    if entry.status == "queued":
        state.entries[entry.id] = replace(entry, waits_for=(record.run, record.node) if record.node else (),
                                          files=record.files, updated_at=stored.at)


def _apply_turn(state: QueueState, record: records.TurnRecord, stored: Stored) -> None:
    turn = state.turns.get(record.key)
    if turn is None or turn.number != record.number:
        return
    match record:
        case records.TurnTimed():
            state.turns[turn.key] = replace(turn, used=record.used)
        case records.TurnSuspended():
            state.turns[turn.key] = replace(turn, waits=record.waits)
        case records.TurnEnded():
            del state.turns[turn.key]


def _apply_gate_started(state: QueueState, record: records.GateStarted, stored: Stored) -> None:
    # a dead processor left its run without a verdict: the new run on the same tree replaces it
    state.gates = {job: gate for job, gate in state.gates.items()
                   if (gate.tree, gate.subject) != (record.tree, record.subject)}
    state.gates[record.job] = RunningGate(**fields_of(record), at=stored.at)


def _apply_verdict_given(state: QueueState, record: records.VerdictGiven, stored: Stored) -> None:
    gate = state.gates.pop(record.job, None)
    if record.result == "green":
        state.retried_pauses = 0
    _note_lost(state, record, stored)
    if record.uncounted:
        return
    _note_failing(state, record)
    if gate is None and state.gate and not (record.job or record.reused or record.subject == "preflight"):
        gate = state.gates.pop(state.gate.job)  # early journals have no jobs
    if gate and record.result != "lost":
        state.verdicts.record_duration(from_iso(stored.at) - from_iso(gate.at))
    verdict = (record.tree, record.key, record.result)
    if record.subject == "base":
        if state.verdicts.record_base(*verdict, stored.seq, record.code):
            state.base = BaseVerdict(record.first, record.result, record.reason, record.log)
    elif state.verdicts.record(*verdict, record.entries, stored.seq, record.code):
        base = (gate.base if gate else "") or record.base
        state.verdicts.record_run(SetRun(record.entries, record.tree, record.key, base, record.result, stored.seq,
                                         record.suspicion, gate.commit if gate else "", record.gates))
        for entry in [state.entries[name] for name in record.entries if name in state.entries]:
            if entry.status in ("candidate", "testing"):
                _judge(state, entry, record, stored)


def _note_lost(state: QueueState, record: records.VerdictGiven, stored: Stored) -> None:
    """Record in the entries under test why a run gave no verdict: they are tested again, and users see the cause."""
    for name in record.entries if record.result == "lost" and record.subject not in ("base", "preflight") else ():
        entry = state.entries.get(name)
        if entry is not None and entry.status in ("candidate", "testing"):
            state.entries[name] = replace(entry, reason=record.reason, log=record.log, updated_at=stored.at)


def _note_failing(state: QueueState, record: records.VerdictGiven) -> None:
    """Learn flaky tests: a red run named them, and the same tree passed before or passes now."""
    place = (record.tree, record.key)
    if record.failing:
        state.failing[place] = tuple(dict.fromkeys((*state.failing.get(place, ()), *record.failing)))
    passed = record.result == "green" or place in state.green
    for test in state.failing.pop(place, ()) if passed else ():
        state.flaky_tests.pop(test, None)
        state.flaky_tests[test] = None
    state.failing = dict(list(state.failing.items())[-KEPT_FAILURES:])
    state.flaky_tests = dict.fromkeys(list(state.flaky_tests)[-KEPT_FAILURES:])


def _judge(state: QueueState, entry: MergeEntry, record: records.VerdictGiven, stored: Stored) -> None:
    """Record a verdict in an entry under test; red for several together is not a verdict on one."""
    others = len(record.entries) - 1
    if record.result != "green" and others:
        state.entries[entry.id] = replace(
            entry, reason=f"red together with {others} others; finding the culprit", log=record.log,
            updated_at=stored.at)
        return
    entry = replace(entry, verdict=record.result, reason=record.reason, code=record.code, note=record.note,
                    log=record.log, updated_at=stored.at)
    state.entries[entry.id] = entry
    if record.result == "green":
        state.outcomes.append(make_outcome(entry, GREEN_SIGNAL, stored.seq, stored.at))


def _apply_landing_started(state: QueueState, record: records.LandingStarted, stored: Stored) -> None:
    state.landing = record
    state.moves[record.new] = record.old


def _apply_landed(state: QueueState, record: records.EntryLanded, stored: Stored) -> None:
    _end_turns(state, record.named)
    landing = state.landing
    # the target already contained it, or a rebuild found it in the history: the queue has no landing in progress
    if landing is None or record.entry not in landing.entries:
        return
    state.verdicts.record_judgement(rejected=False)
    left = [pair for pair in zip(landing.entries, landing.commits, strict=True) if pair[0] != record.entry]
    if left:
        state.landing = replace(landing, entries=tuple(name for name, _ in left),
                                commits=tuple(commit for _, commit in left))
        return
    _apply_landing_over(state, record, stored)
    names = (record.entry, *state.entries[record.entry].together)
    state.partial_landings = (*state.partial_landings, (landing.tree, names))[-KEPT_LANDINGS:] if landing.gates else ()
    state.tip = landing.new
    state.landings[landing.old] = (landing.new, names)
    state.landings = dict(list(state.landings.items())[-KEPT_LANDINGS:])
    state.stale_checkouts += tuple(StaleCheckout(path, record.old, landing.new) for path in record.stale_checkouts)


def _apply_landing_over(state: QueueState, record: records.QueueRecord, stored: Stored) -> None:
    state.landing = None
    state.verdicts.forget_base()


def _apply_checkout_updated(state: QueueState, record: records.CheckoutUpdated, stored: Stored) -> None:
    state.stale_checkouts = tuple(stale for stale in state.stale_checkouts if stale.path != record.path)


def _apply_paused(state: QueueState, record: records.QueuePaused, stored: Stored) -> None:
    # in the same record: a kill between two records would leave entries under test in a paused queue
    for name in record.entries:
        if name in state.entries:
            state.entries[name] = replace(state.entries[name], status="queued", verdict="", reason=record.detail,
                                          updated_at=stored.at)
    if state.pause and state.pause.is_manual and record.reason != records.PauseReason.ASKED:
        return  # the queue's own pause never replaces the user's
    state.pause = Pause(record.reason, record.detail, record.tip, record.log, stored.at if record.retry_after else "",
                        record.retry_after)
    state.retried_pauses += record.retry_after > 0
    state.verdicts.forget_base()
    state.verdicts.forget_runs()


def _apply_resumed(state: QueueState, record: records.QueueResumed, stored: Stored) -> None:
    state.pause = None


def _apply_hindered(state: QueueState, record: records.QueueHindered, stored: Stored) -> None:
    state.hindrance, state.hindered_at = record.reason, stored.at if record.reason else ""


def _apply_snapshot_taken(state: QueueState, record: records.SnapshotTaken, stored: Stored) -> None:
    restore(state, record.state)
    state.snapshot_seq = stored.seq


_APPLY: Mapping[type[records.QueueRecord], Callable[[QueueState, Any, Stored], None]] = {
    records.Configured: _apply_configured,
    records.EntryEnqueued: _apply_enqueued,
    records.EntryAmended: _apply_amended,
    records.EntryCancelled: _apply_cancelled,
    records.LeaseTaken: _apply_lease_taken,
    records.StatusChanged: _apply_status_changed,
    records.TurnAwaited: _apply_turn_awaited,
    records.TurnTimed: _apply_turn,
    records.TurnSuspended: _apply_turn,
    records.TurnEnded: _apply_turn,
    records.GateStarted: _apply_gate_started,
    records.VerdictGiven: _apply_verdict_given,
    records.LandingStarted: _apply_landing_started,
    records.EntryLanded: _apply_landed,
    records.LandingBlocked: _apply_landing_over,
    records.TargetMoved: _apply_landing_over,
    records.CheckoutUpdated: _apply_checkout_updated,
    records.QueuePaused: _apply_paused,
    records.QueueResumed: _apply_resumed,
    records.QueueHindered: _apply_hindered,
    records.SnapshotTaken: _apply_snapshot_taken,
}
"""Record → its effect on the queue as a whole."""


# ------------------------------------------------------------------------------------------------------------ snapshots


class SavedOutcome(Value):
    """Outcome in a snapshot; `entry` is the id of an entry that has not changed since."""

    type: str
    seq: int
    at: str
    entry: str | MergeEntry


class SavedState(Value):
    """`QueueState` in a snapshot."""

    holder: str
    updated_at: str | None
    tip: str
    enqueued: int = msgspec.field(name="count")
    base: BaseVerdict | None
    landing: records.LandingStarted | None
    pause: Pause | None
    config: QueueConfig | None
    entries: list[MergeEntry]
    positions: list[int] = msgspec.field(name="places")
    gates: list[RunningGate] = msgspec.field(name="tests")
    stale_checkouts: tuple[StaleCheckout, ...] = msgspec.field(name="owed")
    outcomes: list[SavedOutcome]
    verdicts: SavedVerdicts = msgspec.field(name="seen")
    turns: list[QueueTurn] = msgspec.field(default_factory=list)
    hindrance: str = ""
    hindered_at: str = ""
    retried_pauses: int = 0
    landings: list[tuple[str, str, tuple[str, ...]]] = msgspec.field(default_factory=list)
    moves: dict[str, str] = msgspec.field(default_factory=dict)
    flaky_tests: list[str] = msgspec.field(default_factory=list)
    failing: list[tuple[str, str, tuple[str, ...]]] = msgspec.field(default_factory=list)
    partial_landings: tuple[tuple[str, tuple[str, ...]], ...] = ()


def snapshot(state: QueueState, *, kept_entries: int = KEPT_ENTRIES, kept_verdicts: int = KEPT_VERDICTS,
             ) -> records.SnapshotTaken:
    """Return the state as the first record of a new journal."""
    entries = _entries_to_keep(state, kept_entries)
    names = {entry.id for entry in entries}
    return records.SnapshotTaken(asdict(SavedState(
        state.holder, state.updated_at, state.tip, state.enqueued, state.base, state.landing, state.pause, state.config,
        entries, [state.positions[entry.id] for entry in entries], list(state.gates.values()), state.stale_checkouts,
        [_save_outcome(state, outcome) for outcome in state.outcomes if outcome.entry.id in names],
        state.verdicts.saved(kept_verdicts), list(state.turns.values()), state.hindrance, state.hindered_at,
        state.retried_pauses,
        [(old, new, landed) for old, (new, landed) in state.landings.items()],
        dict(list(state.moves.items())[-KEPT_ENTRIES:]), list(state.flaky_tests),
        [(*place, tests) for place, tests in state.failing.items()], state.partial_landings)))


def restore(state: QueueState, data: Mapping[str, object]) -> None:
    """Set `state` from the data of a snapshot."""
    saved = from_data(SavedState, data)
    state.holder, state.updated_at, state.tip, state.enqueued = (
        saved.holder, saved.updated_at, saved.tip, saved.enqueued)
    state.base, state.landing, state.pause, state.config = saved.base, saved.landing, saved.pause, saved.config
    state.hindrance, state.hindered_at, state.retried_pauses = saved.hindrance, saved.hindered_at, saved.retried_pauses
    state.entries = {entry.id: entry for entry in saved.entries}
    state.positions = dict(zip(state.entries, saved.positions, strict=True))
    state.gates = {gate.job: gate for gate in saved.gates}
    state.landings = {old: (new, names) for old, new, names in saved.landings}
    state.moves, state.stale_checkouts = saved.moves, saved.stale_checkouts
    state.turns = {turn.key: turn for turn in saved.turns}
    state.flaky_tests, state.partial_landings = dict.fromkeys(saved.flaky_tests), saved.partial_landings
    state.failing = {(tree, key): tests for tree, key, tests in saved.failing}
    state.outcomes = [_restore_outcome(state, each) for each in saved.outcomes]
    state.verdicts = VerdictCache.restored(saved.verdicts)


def _entries_to_keep(state: QueueState, most: int) -> list[MergeEntry]:
    """Return the entries for a snapshot: unfinished ones, all of the nodes that they depend on, and the last others."""
    todo = list(state.unfinished())
    keys: set[tuple[str, str]] = set()
    while todo:
        entry = todo.pop()
        if entry.key not in keys:
            keys.add(entry.key)
            todo += [state.entries[name] for each in state.entries_of(*entry.key) for name in each.depends_on
                     if name in state.entries]
    final = [entry.id for entry in state.entries.values() if entry.is_final]
    last = set(final[max(0, len(final) - most):])
    return [entry for entry in state.entries.values() if entry.id in last or entry.key in keys]


def _save_outcome(state: QueueState, outcome: EntryFact) -> SavedOutcome:
    same = state.entries[outcome.entry.id] == outcome.entry
    return SavedOutcome(outcome.type, outcome.seq, outcome.at, outcome.entry.id if same else outcome.entry)


def _restore_outcome(state: QueueState, saved: SavedOutcome) -> EntryFact:
    entry = state.entries[saved.entry] if isinstance(saved.entry, str) else saved.entry
    return make_outcome(entry, saved.type, saved.seq, saved.at)
