"""Recovery: repair a queue after a crash or a foreign change, and rebuild a damaged or lost journal.

This module is for `garrison doctor`. A processor that takes over after a kill does not need it:
`MergeProcessor.recover` and `Lander.finish` complete its predecessor's work.

`repair` is idempotent. It leaves to a running processor what that handles itself, and removes only things of final
entries. `rebuild` takes both locks and keeps the damaged file. New sequence numbers start beyond every number that may
have been used, so that no reader mistakes a new record for an old one.

`salvage` is pure and loses no entry: it replays the readable records; signals tell which entries are final, trailers in
the target's history which landed, and pins which were enqueued (if this queue would give an entry the same name). All
other entries are judged again, and unknowns are reported.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from garrison.ends import Effect, LandingNote, with_effect
from garrison.errors import GarrisonError, RecordCorrupt, RecordError, Refused
from garrison.merge import guard, records
from garrison.merge.entry import BRANCH_TRAILER, FINAL, TRAILER, WAITING_FOR_APPROVAL, MergeEntry, entry_id
from garrison.merge.processor import MergeProcessor
from garrison.merge.queue import PINS, StepResult, pin_ref
from garrison.merge.records import EntriesRecord, EntryEnqueued, EntryLanded, LandingStarted, QueueRecord, StatusChanged
from garrison.merge.state import QueueState, move_entry, moves_entries, snapshot
from garrison.records import atomic, earlier, journal
from garrison.records.events import FactRecorded, read_attempt
from garrison.records.life_lock import hold
from garrison.records.record import from_data
from garrison.records.run import RunFiles, Task, load
from garrison.system import failpoint
from garrison.system.clock import iso
from garrison.system.environment import child_environment
from garrison.system.stamps import modified_at
from garrison.system.terminal_text import list_some
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from garrison.merge.queue import MergeQueue
    from garrison.records.journal import Entry as Stored

T = TypeVar("T")

FAILPOINTS = ("rebuild", "rebuild_kept", "rebuilt")
"""Points at which tests kill a rebuild (see `system.failpoint`)."""
REBUILT = "its journal was rebuilt; it is judged again"
"""Reason of entries that were open when the journal was rebuilt."""
_CONFIG_LOST = "the queue's configuration is lost; record it again: `garrison merge-queue config --gate …`"
"""Note of a rebuild, dropped if the gate is restored from a run's launch."""
_MAX_STEPS = 20
"""Steps after which an unsettled landing is left to the next processor."""
_NUMBERS_BEYOND = 100_000
"""Number of lost records to allow for."""
_MAX_NAMED = 10
"""Maximum number of unreadable records named in a note."""
_LOG_FORMAT = f"%H%x00%P%x00%ct%x00%s%x00%(trailers:key={TRAILER},valueonly,separator=%x2C)%x00" \
              f"%(trailers:key={BRANCH_TRAILER},valueonly,separator=%x2C)"


# --------------------------------------------------------------------------------------------------- `garrison doctor`


class QueueProblem(Value, rename={"repaired": "mended"}):
    """Problem in one line, and whether `repair` repairs it, or has repaired it; otherwise it needs the user.
    """

    what: str
    repaired: bool


def find_problems(queue: MergeQueue) -> Iterator[QueueProblem]:
    """Yield the problems of a queue with a readable journal, without changing anything."""
    if queue.path.exists():
        if not queue.path.read_bytes().endswith(b"\n"):
            yield QueueProblem("an incomplete record at the end of the journal", True)
        for entry, exists in _lost_pins(queue):
            yield QueueProblem(f"{entry.id} is not pinned at {entry.oid[:10]}", True) if exists else \
                QueueProblem(_commit_gone(entry), False)
        if queue.state.landing and not queue.is_processor_running():
            yield QueueProblem(f"the landing of {queue.state.landing.first} is not settled, and no processor runs",
                               True)
        yield from _find_stale_checkouts(queue)
    if queue.state.config and queue.state.config.guard and not guard.is_installed(queue.git, queue.branch.ref):
        yield QueueProblem("its guard is not installed", True)
    yield from _find_ref_lock(queue)


def repair(queue: MergeQueue, trees: Path, restore_gate: Callable[[MergeQueue], None] = lambda _queue: None,
           ) -> list[QueueProblem]:
    """Repair what can be repaired; return the problems. Refused if the journal is damaged and a processor runs.

    Args:
        trees: folder of the gate slots.
        restore_gate: records a lost gate again if a run knows it.
    """
    findings = [*_repair_journal(queue, restore_gate), *_cut_torn_tail(queue)]
    queue.entries()
    if queue.path.exists():
        findings += [*_repair_pins(queue), *_finish_processing(queue, trees), *_find_stale_checkouts(queue)]
    return [*findings, *_repair_guard(queue), *_find_ref_lock(queue)]


def _repair_journal(queue: MergeQueue, restore_gate: Callable[[MergeQueue], None]) -> Iterator[QueueProblem]:
    """Rebuild a journal that cannot be read."""
    if why := find_damage(queue):
        notes = rebuild(queue)
        restore_gate(queue)
        state = queue.state
        yield QueueProblem(f"rebuilt the journal of {queue.target} ({why}): {len(state.entries)} entries, "
                           f"{len(state.unfinished())} of them wait", True)
        yield from (QueueProblem(note, False) for note in notes)
        if state.config is None:
            yield QueueProblem(_CONFIG_LOST, False)


def _cut_torn_tail(queue: MergeQueue) -> Iterator[QueueProblem]:
    """Cut off a half-written record, which was never acknowledged."""
    if not queue.path.exists():
        return
    with queue.locked():
        descriptor = os.open(queue.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            before = os.fstat(descriptor).st_size
            journal.cut_torn_tail(descriptor, queue.path)
            cut = before - os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    if cut:
        yield QueueProblem(f"cut {cut} bytes of an incomplete record from {queue.path}", True)


def _repair_pins(queue: MergeQueue) -> Iterator[QueueProblem]:
    """Pin commits of unfinished entries, which gc could otherwise remove."""
    for entry, exists in _lost_pins(queue):
        if not exists:
            yield QueueProblem(_commit_gone(entry), False)
        elif queue.git.update_ref(pin_ref(entry.id, "head"), entry.oid, message="garrison: doctor"):
            yield QueueProblem(f"pinned {entry.id} at {entry.oid[:10]} again", True)


def _lost_pins(queue: MergeQueue) -> Iterator[tuple[MergeEntry, bool]]:
    """Yield each unfinished entry whose commit is not pinned, and whether the commit exists."""
    pinned = queue.git.refs(f"{PINS}/")
    for entry in queue.state.unfinished():
        if pinned.get(pin_ref(entry.id, "head")) != entry.oid:
            yield entry, queue.git.rev(entry.oid) is not None


def _commit_gone(entry: MergeEntry) -> str:
    return f"commit {entry.oid[:10]} of {entry.id} is gone; `garrison merge-queue cancel {entry.id}`, or fetch it again"


def _finish_processing(queue: MergeQueue, trees: Path) -> Iterator[QueueProblem]:
    """Clean up after a dead processor: a landing, locked checkouts, unneeded gate runs and pins."""
    processor = MergeProcessor(queue, trees=trees, environment=child_environment(os.environ))
    if not (queue.state.landing or _leftovers(queue)):
        return
    if not processor.acquire():
        return  # a running processor handles this itself
    try:
        before = _leftovers(queue)
        processor.recover()
        removed = sorted(before - _leftovers(queue))
        if removed:
            yield QueueProblem(f"removed leftovers: {', '.join(removed)}", True)
        landing = queue.state.landing
        for _ in range(_MAX_STEPS if landing else 0):
            if queue.state.landing is None or not isinstance(processor.step(), StepResult):
                break
        if landing and queue.state.landing:
            yield QueueProblem(f"{landing.first} is still landing; `garrison merge-queue process` says why", False)
        elif landing:
            yield QueueProblem(f"settled the landing of {landing.first}: {queue.entry(landing.first).status}", True)
    finally:
        processor.close()


def _leftovers(queue: MergeQueue) -> set[str]:
    """Return unneeded pins of final entries, and folders of ended gate runs."""
    state = queue.state
    pins = (ref.removeprefix(f"{PINS}/") for ref in queue.git.refs(f"{PINS}/"))
    left = {name for name in pins if (entry := state.entries.get(name.split("/")[0])) and entry.is_final
            and (name.endswith("/candidate") or entry.status == "landed")}
    running = state.gate.job if state.gate else ""
    jobs = (name for name in atomic.list_names(queue.folder / "tests") if name != running)
    return left | {f"gate run {name}" for name in jobs if name.rpartition(".")[0] in state.entries}


def _find_stale_checkouts(queue: MergeQueue) -> Iterator[QueueProblem]:
    for stale in queue.state.stale_checkouts:
        yield QueueProblem(f"{stale.path} still shows {stale.old[:10]} although {queue.target} is at {stale.new[:10]}; "
                           "commit or stash its edits, and the next processor updates it", False)


def _repair_guard(queue: MergeQueue) -> Iterator[QueueProblem]:
    config = queue.state.config
    if config is None or not config.guard or guard.is_installed(queue.git, queue.branch.ref):
        return
    try:
        guard.install(queue.git, queue.branch.ref)
        yield QueueProblem(f"installed the guard of {queue.target} again", True)
    except GarrisonError as error:
        yield QueueProblem(f"the guard of {queue.target} is not installed: {error}", False)


def _find_ref_lock(queue: MergeQueue) -> Iterator[QueueProblem]:
    """Report git's lock on the target; the next landing removes an abandoned one."""
    if not queue.branch.is_local:
        return
    lock = queue.git.common / f"{queue.branch.ref}.lock"
    with suppress(FileNotFoundError):
        age = queue.clock.time() - lock.stat().st_mtime
        # a working git locks it for milliseconds
        if age > 1:
            yield QueueProblem(f"{lock} has been there for {age:.0f} s; if a killed git left it, it is removed after a "
                               "minute", False)


# --------------------------------------------------------------------------------------------------- a damaged journal


class Trace(NamedTuple):
    """Trace of an entry outside the journal; `commit` is its commit on the target, if it landed."""

    entry: str
    oid: str
    at: str
    branch: str = ""
    commit: str = ""


class Traces(Value):
    """Traces outside the journal. `queue` is the queue's directory, `runs` are the existing runs."""

    queue: str
    repo: str
    target: str
    runs: Collection[str] = ()
    pins: Sequence[Trace] = ()
    """Entries that were enqueued and did not land, oldest first."""
    landed: Sequence[Trace] = ()
    signalled: Sequence[MergeEntry] = ()
    """Final entries, according to the signals to their runners."""
    approvals: Collection[tuple[str, str, int]] = ()
    """Run, node and attempt of work that needs approval."""


@dataclass
class Salvaged:
    """Salvaged state, entries still to be recorded as landed (entry → commit), and notes for the user."""

    state: QueueState
    landed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_damage(queue: MergeQueue) -> str:
    """Return the damage to the journal; empty if it is readable, or never existed."""
    try:
        stored = journal.read_all(queue.path)
    except RecordCorrupt as error:
        return error.why
    if stored and stored[0].kind == "snapshot":
        return ""
    recorded = {each.data["entry"] for each in stored if each.kind == EntryEnqueued.kind}
    identity = _queue_identity(queue)
    lost = (trace for trace in _pin_traces(queue, before=stored[0].at if stored else "") if trace.entry not in recorded)
    if not journal.finished_parts(queue.path) and not any(recognize(trace, identity) for trace in lost):
        return ""
    return "it was started again, without the entries enqueued before" if stored else "it is gone"


def rebuild(queue: MergeQueue) -> list[str]:
    """Replace a damaged journal, and return notes on unknowns. Refused while a processor runs."""
    # A processor would continue from its memory of the old records; an enqueue would append to the replaced file.
    with hold(queue.git.make_lock(queue.processor_lock)) as processor_lock:
        if processor_lock is None:
            raise Refused("a processor still works on this queue from memory; stop it and run `garrison doctor` again")
        with queue.lock():
            stored, unreadable = journal.salvage(queue.path)
            traces = _traces(queue)
            salvaged = salvage(stored, traces)
            failpoint.here("rebuild")
            _write(queue, salvaged, stored, traces)
            failpoint.here("rebuilt")
    notes = [f"could not be read: {list_some(unreadable, _MAX_NAMED)}"] if unreadable else []
    return [*notes, *salvaged.notes]


def _write(queue: MergeQueue, salvaged: Salvaged, stored: list[Stored], traces: Traces) -> None:
    """Write the new journal as one file, renamed into place: a crash leaves the old journal or the new one."""
    path, at = queue.path, queue.clock.utc()
    seq = max([0, *(each.seq for each in stored), *(entry.seq for entry in traces.signalled)]) + _NUMBERS_BEYOND
    epoch = max((each.epoch for each in stored), default=0) + 1
    # a rebuild killed after this link has already kept the file
    if path.exists() and not any(old.samefile(path) for old in path.parent.glob("damaged-*.jsonl")):
        path.with_name(f"damaged-{at.replace(':', '').replace('.', '')}.jsonl").hardlink_to(path)
    failpoint.here("rebuild_kept")
    atomic.make_directory(path.parent)
    new: list[QueueRecord] = [snapshot(salvaged.state)]
    new += [EntryLanded(name, commit, "", "found in the history") for name, commit in salvaged.landed.items()]
    journal.replace_shared(path, *(journal.Entry(number, epoch, queue.token, at, record.kind, records.encode(record))
                                   for number, record in enumerate(new, seq)))


# ------------------------------------------------------------------------------------- traces in repository and home


def _traces(queue: MergeQueue) -> Traces:
    tip = queue.branch.tip()
    identity, pins = _queue_identity(queue), list(_pin_traces(queue))
    return replace(identity, pins=pins, approvals=_find_approvals(queue.home, pins, identity),
                   landed=list(_landed_traces(queue, tip)) if tip else [], signalled=list(_signalled(queue)))


def _find_approvals(home: Path, pins: Iterable[Trace], identity: Traces) -> set[tuple[str, str, int]]:
    """Return which pinned entries need approval, according to the tasks of their nodes."""
    entries = (recognize(trace, identity) for trace in pins)
    return {(entry.run, entry.node, entry.attempt) for entry in entries
            if entry is not None and entry.run and _needs_approval(RunFiles(home, entry.run), entry)}


def _needs_approval(files: RunFiles, entry: MergeEntry) -> bool:
    """Return whether a task of the node or its runner's findings require approval, or the task of the entry's attempt
    is lost: it must not land unseen.

    An entry that the user enqueued again has an attempt of its own, without a task.
    """
    own = files.attempt(entry.node, entry.attempt)
    is_lost = own.is_dir()
    for _, event in read_attempt(files.process_journal(f"runner-{entry.node}"), entry.attempt):
        if isinstance(event, FactRecorded) and event.name == "changes" and \
                with_effect(from_data(tuple[LandingNote, ...], json.loads(str(event.value))["changes"]), Effect.ASK):
            return True
    for path in own.parent.glob("*/task.json"):
        with suppress(GarrisonError):
            task = load(Task, path)
            if task is not None and task.approve:
                return True
            is_lost &= task is None or path.parent != own
    return is_lost


def _queue_identity(queue: MergeQueue) -> Traces:
    """Return the facts needed to recognize an entry's name, without traces."""
    return Traces(str(queue.folder), str(queue.repo), queue.target, atomic.list_names(queue.home / "runs"))


def _pin_traces(queue: MergeQueue, before: str = "") -> Iterator[Trace]:
    """Yield entries by their pins; with `before`, those pinned by then (pins are written before records)."""
    branches = {oid: ref.removeprefix("refs/heads/") for ref, oid in queue.git.refs("refs/heads/").items()}
    traces = []
    for ref, oid in queue.git.refs(f"{PINS}/").items():
        name, _, what = ref.removeprefix(f"{PINS}/").partition("/")
        if what == "head":
            traces.append((modified_at(queue.git.common / ref), Trace(name, oid, "", branches.get(oid, ""))))
    for at, trace in sorted(traces):
        if not before or iso(at) < before:
            yield trace._replace(at=iso(at or queue.clock.time()))


def _landed_traces(queue: MergeQueue, tip: str) -> Iterator[Trace]:
    """Yield entries by the trailers of the target's history."""
    log = queue.git.run("log", "-z", f"--grep=^{TRAILER}: ", f"--format={_LOG_FORMAT}", tip, "--").out
    parts = log.split("\0")
    for commit, parents, at, subject, names, named in zip(*(parts[start::6] for start in range(6)), strict=False):
        branch = named.strip() or earlier.branch_of_merge(subject)
        if "," not in names:  # otherwise the merge of a batch, whose entries have their own commits
            yield Trace(names.strip(), (parents.split()[1:] or [commit])[0], iso(float(at)), branch, commit)


def _signalled(queue: MergeQueue) -> Iterator[MergeEntry]:
    """Yield final entries by the signals to their runners; `seq` is the number of the record signalled."""
    for path in (queue.home / "signals").rglob("*-MERGE_*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError, RecordError):
            entry = _entry_of_signal(json.loads(path.read_bytes()), queue)
            if entry:
                yield entry


def _entry_of_signal(body: dict[str, Any], queue: MergeQueue) -> MergeEntry | None:
    payload, target = body["payload"], body["target"]
    if payload["target"] != queue.target or payload["status"] not in FINAL:
        return None
    trace = Trace(payload["entry"], payload["oid"], body["timestamp"], payload["branch"])
    entry = recognize(trace, replace(_queue_identity(queue), runs=[body["run_id"]]))
    return entry and replace(
        entry, recipient=f"{target['role']}-{target['name']}@{body['run_id']}", status=payload["status"],
        reason=payload["error"] or "", files=tuple(payload["files"]), commit=payload["commit"], log=payload["log"],
        seq=int(body["id"].split("-")[1]))


# ------------------------------------------------------------------------------------------------------ salvage (pure)


def salvage(stored: Iterable[Stored], traces: Traces) -> Salvaged:
    """Reconstruct a queue from its readable records and its traces."""
    salvaged = Salvaged(_replay(stored))
    state = salvaged.state
    for entry in traces.signalled:
        existing = state.entries.get(entry.id)
        if existing is None:
            _add(state, replace(entry, approval=_key(entry) in traces.approvals))
        elif not existing.is_final:
            state.entries[entry.id] = replace(existing, status=entry.status, reason=entry.reason, files=entry.files,
                                              commit=entry.commit or existing.commit, log=entry.log,
                                              updated_at=entry.updated_at)
    for trace in traces.landed:
        _salvage_landed(salvaged, trace, traces)
    for trace in traces.pins:
        _salvage_pinned(salvaged, trace, traces)
    _requeue_open(salvaged)
    return salvaged


def _replay(stored: Iterable[Stored]) -> QueueState:
    """Replay the readable records: each applies to known entries, despite gaps before it."""
    state = QueueState()
    for each in stored:
        state.seq, state.epoch, state.updated_at = each.seq, each.epoch, each.at
        record = None
        with suppress(KeyError, ValueError):
            record = records.decode(each.kind, each.data)
        if record is None:
            continue
        record = _without_unknown(record, state)
        try:
            state.apply_record(record, each)
        except (GarrisonError, KeyError, ValueError):
            for name in record.named if moves_entries(record) else ():
                if name in state.entries:
                    state.entries[name] = move_entry(state.entries[name], record)
    return state


def _without_unknown(record: QueueRecord, state: QueueState) -> QueueRecord:
    """Return a record without the entries whose `enq` record is lost."""
    if isinstance(record, EntryEnqueued):
        return replace(record, supersedes=tuple(name for name in record.supersedes if _can_be_superseded(state, name)))
    if not isinstance(record, EntriesRecord):
        return record
    positions = [index for index, name in enumerate(record.entries) if name in state.entries]

    def keep(values: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(values[index] for index in positions) if values else ()

    if isinstance(record, StatusChanged):
        record = replace(record, trees=keep(record.trees), commits=keep(record.commits))
    elif isinstance(record, LandingStarted):
        record = replace(record, commits=keep(record.commits), united=keep(record.united))
    return replace(record, entries=keep(record.entries))


def _can_be_superseded(state: QueueState, name: str) -> bool:
    return name in state.entries and state.entries[name].status not in ("landing", "landed")


def _add(state: QueueState, entry: MergeEntry) -> None:
    if entry.id not in state.entries:
        state.positions[entry.id] = state.enqueued
        state.enqueued += 1
    state.entries[entry.id] = entry


def _salvage_landed(salvaged: Salvaged, trace: Trace, traces: Traces) -> None:
    state = salvaged.state
    existing = state.entries.get(trace.entry)
    if existing is None:
        entry = recognize(trace, traces)
        if entry:
            _add(state, replace(entry, status="landed", commit=trace.commit, landed_at=trace.at))
    elif existing.status != "landed":  # gets its own `landed` record, so that its runner is signalled
        state.entries[existing.id] = replace(existing, status="queued", reason=REBUILT)
        salvaged.landed[existing.id] = trace.commit


def _salvage_pinned(salvaged: Salvaged, trace: Trace, traces: Traces) -> None:
    entry = None if trace.entry in salvaged.state.entries else recognize(trace, traces)
    if entry is None:
        return
    if any(other.attempt > entry.attempt for other in salvaged.state.entries_of(*entry.key)):
        return  # the other was enqueued only because this one had failed
    if _key(entry) in traces.approvals:  # it must not land unseen
        entry = replace(entry, approval=True, status="held", reason=WAITING_FOR_APPROVAL)
    _add(salvaged.state, entry)
    salvaged.notes.append(f"{entry.id} is known by its pin alone ({trace.oid[:10]}, branch {entry.branch}): its "
                          "verdict and options are unknown; it waits")


def _key(entry: MergeEntry) -> tuple[str, str, int]:
    return entry.run, entry.node, entry.attempt


def _requeue_open(salvaged: Salvaged) -> None:
    """Requeue entries in progress, only the last one per node."""
    state = salvaged.state
    state.gates, state.landing = {}, None
    last: dict[tuple[str, str], str] = {}
    started = 0
    for entry in state.unfinished():
        if entry.status != "held":
            started += entry.status != "queued"
            state.entries[entry.id] = replace(entry, status="queued", verdict="", reason=REBUILT)
        if entry.id in salvaged.landed:
            continue
        before = last.get(entry.key)
        if before:
            state.entries[before] = replace(state.entries[before], status="superseded",
                                            reason=f"replaced by {entry.id}")
        last[entry.key] = entry.id
    if started:
        salvaged.notes.append(f"{started} entries that were in progress are judged again")


def recognize(trace: Trace, traces: Traces) -> MergeEntry | None:
    """Return the entry with a trace's name, None if another queue named it."""
    node, attempt, _ = [*trace.entry.rsplit("-", 2), "", ""][:3]
    if not attempt.isdigit():
        return None
    for run in ("", *traces.runs):
        if entry_id(traces.queue, run, node, int(attempt), trace.oid) == trace.entry:
            return MergeEntry(
                trace.entry, run, node, int(attempt), trace.branch or trace.oid, trace.oid, traces.target, traces.repo,
                f"runner-{node}@{run}" if run else "", enqueued_at=trace.at, updated_at=trace.at, reason=REBUILT)
    return None
