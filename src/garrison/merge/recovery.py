"""Recovery: repair what a crash or a foreign hand left in a queue, and rebuild a damaged or lost journal.

Repairing twice is the same as once; what a living processor would handle itself is left to it; nothing is removed but
what the journal says is over. Rebuilding holds both locks; the damaged file stays beside the new one; sequence numbers
go on beyond every number that may have been given, so that no reader mistakes a new record for an old one.

`salvage` is pure and loses no entry: records that can be read count; signals say what is over; the history's trailers
say what landed; a pin says what was enqueued, if its name is the one that this very queue gives. Whatever is still
open is judged again, and what cannot be known is reported.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from garrison.errors import GarrisonError, RecordCorrupt, RecordError, Refused
from garrison.merge import failpoint, guard
from garrison.merge.entry import FINAL, MergeEntry, entry_id
from garrison.merge.processor import MergeProcessor
from garrison.merge.queue import PINS, Progress, pin_ref
from garrison.merge.state import QueueState, moves, saved, stepped
from garrison.records import atomic, journal
from garrison.records.life_lock import LifeLock
from garrison.system.clock import iso
from garrison.system.environment import child_environment

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from garrison.merge.queue import MergeQueue
    from garrison.records.journal import Entry as Record


_TRIES = 20
"""Steps after which a landing that does not settle is left to the next processor."""


@dataclass(frozen=True)
class Finding:
    """Something that was wrong, in one line; mended, or left to a person."""

    what: str
    repaired: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON's shape."""
        return {"what": self.what, "mended": self.repaired}


def repair(queue: MergeQueue, trees: Path) -> list[Finding]:
    """Repair what can be repaired of `queue`; what was found. Refused if its journal is damaged and a processor lives.
    """
    found = [*_journal(queue), *_tail(queue)]
    queue.entries()
    if queue.path.exists():
        found += [*_pins(queue), *_processed(queue, trees), *_owed(queue)]
    return [*found, *_guard(queue), *_locks(queue)]


def _journal(queue: MergeQueue) -> Iterator[Finding]:
    """Damage that stops everybody."""
    if why := damage(queue):
        notes = rebuild(queue)
        state = queue.state
        yield Finding(f"rebuilt the journal of {queue.target} ({why}): {len(state.entries)} entries, "
                      f"{len(state.unfinished())} of them wait", True)
        yield from (Finding(note, False) for note in notes)


def _tail(queue: MergeQueue) -> Iterator[Finding]:
    """A record that was cut off while it was written: it was never promised to anyone."""
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
        yield Finding(f"cut {cut} bytes of a record that was never whole from {queue.path}", True)


def _pins(queue: MergeQueue) -> Iterator[Finding]:
    """Commits of waiting entries must not be lost to gc."""
    pinned = queue.git.refs(f"{PINS}/")
    for entry in queue.state.unfinished():
        ref = pin_ref(entry.id, "head")
        if pinned.get(ref) == entry.oid:
            continue
        if queue.git.rev(entry.oid) is None:
            yield Finding(f"commit {entry.oid[:10]} of {entry.id} is gone; `garrison merge-queue cancel {entry.id}`, "
                          "or fetch it again", False)
        elif queue.git.update_ref(ref, entry.oid, message="garrison: doctor"):
            yield Finding(f"pinned {entry.id} at {entry.oid[:10]} again", True)


def _processed(queue: MergeQueue, trees: Path) -> Iterator[Finding]:
    """What a dead processor left: held checkouts, a landing not settled, gate runs and pins that nobody needs."""
    processor = MergeProcessor(queue, trees=trees, environment=child_environment(os.environ))
    state = queue.state
    if not (state.landing or _left(queue)):
        return
    if not processor.acquire():
        return  # it lives, and sees to this itself
    try:
        before = _left(queue)
        processor.recover()
        gone = sorted(before - _left(queue))
        if gone:
            yield Finding(f"cleared away what nobody needs any more: {', '.join(gone)}", True)
        landing = queue.state.landing
        for _ in range(_TRIES if landing else 0):
            if queue.state.landing is None or not isinstance(processor.step(), Progress):
                break
        if landing and queue.state.landing:
            yield Finding(f"{landing.entry} is still landing; `garrison merge-queue process` tells why", False)
        elif landing:
            yield Finding(f"settled the landing of {landing.entry}: {queue.entry(landing.entry).status}", True)
    finally:
        processor.close()


def _left(queue: MergeQueue) -> set[str]:
    """Pins, and folders of gate runs, of entries that are over."""
    state = queue.state
    pins = (ref.removeprefix(f"{PINS}/") for ref in queue.git.refs(f"{PINS}/"))
    found = {name for name in pins if (entry := state.entries.get(name.split("/")[0])) and entry.final
             and (name.endswith("/candidate") or entry.status == "landed")}
    running = state.test.job if state.test else ""
    names = (name for name in atomic.list_names(queue.folder / "tests") if name != running)
    return found | {f"gate run {name}" for name in names if name.rpartition(".")[0] in state.entries}


def _owed(queue: MergeQueue) -> Iterator[Finding]:
    for owed in queue.state.owed:
        yield Finding(f"{owed.path} still shows {owed.old[:10]} although {queue.target} is at {owed.new[:10]}; commit "
                      "or stash its edits, and the next processor moves it along", False)


def _guard(queue: MergeQueue) -> Iterator[Finding]:
    config = queue.state.config
    if config is None or not config.guard or guard.is_installed(queue.git, queue.branch.ref):
        return
    try:
        guard.install(queue.git, queue.branch.ref)
        yield Finding(f"put the guard of {queue.target} up again", True)
    except GarrisonError as error:
        yield Finding(f"the guard of {queue.target} is down: {error}", False)


def _locks(queue: MergeQueue) -> Iterator[Finding]:
    """git's own lock on the target: nobody but a person knows whether its git still runs."""
    if not queue.branch.brief:
        return
    lock = queue.git.common / f"{queue.branch.ref}.lock"
    with suppress(FileNotFoundError):
        age = queue.clock.time() - lock.stat().st_mtime
        if age > 1:
            yield Finding(f"{lock} is there since {age:.0f} s; if no git runs, remove it", False)


_BEYOND = 100_000
"""So many numbers may have been given by records of which nothing is left."""
_LOG = "%H%x00%P%x00%ct%x00%s%x00%(trailers:key=Merge-Queue-Entry,valueonly,separator=%x2C)"


def damage(queue: MergeQueue) -> str:
    """What is wrong with the journal, in words; empty if it can be read, or if there never was one."""
    try:
        records = journal.read_all(queue.path)
    except RecordCorrupt as error:
        return error.why
    if records and records[0].kind == "snapshot":
        return ""
    known = {record.data["entry"] for record in records if record.kind == "enq"}
    names = _names(queue)
    lost = (trace for trace in _pinned_traces(queue, before=records[0].at if records else "")
            if trace.entry not in known)
    if not journal.finished_parts(queue.path) and not any(recognized(trace, names) for trace in lost):
        return ""
    return "it was begun anew, without what had been enqueued before" if records else "it is gone"


def rebuild(queue: MergeQueue) -> list[str]:
    """Write a new journal in place of the damaged one; what could not be known. Refused while a processor lives."""
    atomic.make_directory(queue.locks)
    life = LifeLock.try_acquire(queue.processor_lock)
    if life is None:
        raise Refused("a processor works this queue by what it read before; stop it, then say doctor again")
    try:
        with atomic.locked(queue.locks / "queue.lock"):
            records, wrong = journal.salvage(queue.path)
            traces = _traces(queue)
            found = salvage(records, traces)
            failpoint.here("rebuild")
            _write(queue, found, records, traces)
            failpoint.here("rebuilt")
    finally:
        life.release()
    told = [f"could not be read: {', '.join(wrong[:10])}" + (f" and {len(wrong) - 10} more" if len(wrong) > 10 else "")]
    return [*(told if wrong else ()), *found.notes]


def _write(queue: MergeQueue, found: Salvaged, records: list[journal.Entry], traces: Traces) -> None:
    """All of it in one file that gets its name at once: who dies over this has rebuilt everything, or nothing."""
    path, at = queue.path, queue.clock.utc()
    seq = max([0, *(record.seq for record in records), *(entry.seq for entry in traces.told)]) + _BEYOND
    epoch = max((record.epoch for record in records), default=0) + 1
    if path.exists() and not any(old.samefile(path) for old in path.parent.glob("damaged-*.jsonl")):
        path.with_name(f"damaged-{at.replace(':', '').replace('.', '')}.jsonl").hardlink_to(path)
    failpoint.here("rebuild_kept")
    atomic.make_directory(path.parent)
    told = [("snapshot", saved(found.state))]
    told += [("landed", {"entry": name, "commit": commit, "old": "", "reason": "found in the history"})
             for name, commit in found.landed.items()]
    journal.replace_shared(path, *(journal.Entry(number, epoch, queue.token, at, kind, data)
                                   for number, (kind, data) in enumerate(told, seq)))


def _traces(queue: MergeQueue) -> Traces:
    """What the repository and the home tell of the queue."""
    tip = queue.branch.tip()
    return replace(_names(queue), pins=list(_pinned_traces(queue)),
                   landed=list(_landed_traces(queue, tip)) if tip else [], told=list(_told(queue)))


def _names(queue: MergeQueue) -> Traces:
    """By what an entry's name is recognized; no traces yet."""
    return Traces(str(queue.folder), str(queue.repo), queue.target, atomic.list_names(queue.home / "runs"))


def _pinned_traces(queue: MergeQueue, before: str = "") -> Iterator[Trace]:
    """Entries by their pins; with `before` those that were pinned by then, for a pin comes before its record."""
    heads = {oid: ref.removeprefix("refs/heads/") for ref, oid in queue.git.refs("refs/heads/").items()}
    found = []
    for ref, oid in queue.git.refs(f"{PINS}/").items():
        name, _, what = ref.removeprefix(f"{PINS}/").partition("/")
        if what == "head":
            found.append((_age(queue.git.common / ref), Trace(name, oid, "", heads.get(oid, ""))))
    for at, trace in sorted(found):
        if not before or iso(at) < before:
            yield trace._replace(at=iso(at or queue.clock.time()))


def _age(ref: Path) -> float:
    """When a pin was made; 0 if git has packed it since."""
    with suppress(OSError):
        return ref.stat().st_mtime
    return 0.0


def _landed_traces(queue: MergeQueue, tip: str) -> Iterator[Trace]:
    told = queue.git.run("log", "-z", "--grep=^Merge-Queue-Entry: ", f"--format={_LOG}", tip, "--").out
    parts = told.split("\0")
    for commit, parents, at, subject, names in zip(*(parts[at::5] for at in range(5)), strict=False):
        branch = subject.removeprefix("Merge ").partition(" into ")[0] if subject.startswith("Merge ") else ""
        for name in names.split(","):
            yield Trace(name.strip(), (parents.split()[1:] or [commit])[0], iso(float(at)), branch, commit)


def _told(queue: MergeQueue) -> Iterator[MergeEntry]:
    """What runners were told of entries that are over; `seq` is the number of the record that told it."""
    for path in (queue.home / "signals").rglob("*-MERGE_*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError, RecordError):
            entry = _entry_of(json.loads(path.read_bytes()), queue)
            if entry:
                yield entry


def _entry_of(body: dict[str, Any], queue: MergeQueue) -> MergeEntry | None:
    told, target = body["payload"], body["target"]
    if told["target"] != queue.target or told["status"] not in FINAL:
        return None
    trace = Trace(told["entry"], told["oid"], body["timestamp"], told["branch"])
    known = recognized(trace, replace(_names(queue), runs=[body["run_id"]]))
    return known and MergeEntry(
        known.id, known.run, known.node, known.attempt, known.branch, known.oid, known.target, known.repo,
        f"{target['role']}-{target['name']}@{body['run_id']}", told["status"], told["error"] or "",
        tuple(told["files"]), commit=told["commit"], log=told["log"], enqueued_at=known.enqueued_at,
        updated_at=known.updated_at, seq=int(body["id"].split("-")[1]))


ANEW = "its journal was rebuilt; it is judged anew"


class Trace(NamedTuple):
    """An entry as something beside the journal names it; `commit` is the target's that holds it, if it landed."""

    entry: str
    oid: str
    at: str
    branch: str = ""
    commit: str = ""


@dataclass(frozen=True)
class Traces:
    """What is known beside the journal. `queue` is the queue's directory, `runs` the runs there are."""

    queue: str
    repo: str
    target: str
    runs: Collection[str] = ()
    pins: Sequence[Trace] = ()
    """What was enqueued and did not land, the first enqueued first."""
    landed: Sequence[Trace] = ()
    told: Sequence[MergeEntry] = ()
    """What is over, as its runner was told."""


@dataclass
class Salvaged:
    """The state, what is still to be recorded as landed (entry → commit), and what a person should know."""

    state: QueueState
    landed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def salvage(records: Iterable[Record], traces: Traces) -> Salvaged:
    """Put the queue together again."""
    found = Salvaged(_folded(records))
    state = found.state
    for entry in traces.told:
        known = state.entries.get(entry.id)
        if known is None:
            _put(state, entry)
        elif not known.final:
            state.entries[entry.id] = replace(known, status=entry.status, reason=entry.reason, files=entry.files,
                                              commit=entry.commit or known.commit, log=entry.log,
                                              updated_at=entry.updated_at)
    for trace in traces.landed:
        _landed(found, trace, traces)
    for trace in traces.pins:
        _pinned(found, trace, traces)
    _reopen(state, found)
    if state.config is None:
        found.notes.append("what the queue runs is not known any more; say it: `garrison merge-queue config --gate …`")
    return found


def _folded(records: Iterable[Record]) -> QueueState:
    """The fold of what can be read: a record counts for the entries that are known, whatever is missing before it."""
    state = QueueState()
    for record in records:
        known = replace(record, data=_known(record, state))
        try:
            state.apply(known)
        except (GarrisonError, KeyError, ValueError):
            for name in _moved(known, state):
                state.entries[name] = stepped(state.entries[name], record.kind, known.data)
    return state


def _known(record: Record, state: QueueState) -> dict[str, object]:
    """A record's data without the entries of which no record is left."""
    data = dict(record.data)
    if record.kind == "enq":
        data["supersedes"] = [name for name in data["supersedes"] if _open(state, name)]
    elif data.get("entries"):
        places = [place for place, name in enumerate(data["entries"]) if name in state.entries]
        for key in ("entries", "trees", "commits"):
            if key in data:
                data[key] = [data[key][place] for place in places]
        data["entry"] = (data["entries"] or [""])[0]
    return data


def _open(state: QueueState, name: str) -> bool:
    return name in state.entries and state.entries[name].status not in ("landing", "landed")


def _moved(record: Record, state: QueueState) -> list[str]:
    """The entries that a record moves, and that are known."""
    names = record.data.get("entries") or [record.data.get("entry", "")]
    return [name for name in names if name in state.entries] if moves(record.kind) else []


def _put(state: QueueState, entry: MergeEntry) -> None:
    if entry.id not in state.entries:
        state.places[entry.id] = state.count
        state.count += 1
    state.entries[entry.id] = entry


def _landed(found: Salvaged, trace: Trace, traces: Traces) -> None:
    known = found.state.entries.get(trace.entry)
    if known is None:
        entry = recognized(trace, traces)
        if entry:
            _put(found.state, replace(entry, status="landed", commit=trace.commit, landed_at=trace.at))
    elif known.status != "landed":
        found.state.entries[known.id] = replace(known, status="queued", reason=ANEW)
        found.landed[known.id] = trace.commit


def _pinned(found: Salvaged, trace: Trace, traces: Traces) -> None:
    entry = None if trace.entry in found.state.entries else recognized(trace, traces)
    if entry is None:
        return
    _put(found.state, entry)
    found.notes.append(f"{entry.id} is known by its pin alone ({trace.oid[:10]}, branch {entry.branch}): whether it "
                       "was judged, and what was wished for it, is not known; it waits")


def _reopen(state: QueueState, found: Salvaged) -> None:
    """Nothing is under way; of a node only the last waits, as ever."""
    state.tests, state.landing = {}, None
    last: dict[tuple[str, str], str] = {}
    begun = 0
    for entry in state.unfinished():
        if entry.status != "held":
            begun += entry.status != "queued"
            state.entries[entry.id] = replace(entry, status="queued", verdict="", reason=ANEW)
        if entry.id in found.landed:
            continue
        before = last.get(entry.key)
        if before:
            old = state.entries[before]
            state.entries[before] = replace(old, status="superseded", reason=f"replaced by {entry.id}")
        last[entry.key] = entry.id
    if begun:
        found.notes.append(f"{begun} entries that were under way are judged anew")


def recognized(trace: Trace, traces: Traces) -> MergeEntry | None:
    """The entry whose name a trace bears; None if another queue gave it."""
    node, attempt, _ = [*trace.entry.rsplit("-", 2), "", ""][:3]
    if not attempt.isdigit():
        return None
    for run in ("", *traces.runs):
        if entry_id(traces.queue, run, node, int(attempt), trace.oid) == trace.entry:
            return MergeEntry(trace.entry, run, node, int(attempt), trace.branch or trace.oid, trace.oid, traces.target,
                         traces.repo, f"runner-{node}@{run}" if run else "", enqueued_at=trace.at, updated_at=trace.at,
                         reason=ANEW)
    return None
