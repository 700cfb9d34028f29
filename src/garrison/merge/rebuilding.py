"""Rebuilding a queue whose journal is damaged or gone: traces are gathered, `salvage` decides, a snapshot is written.

The rules of this room: both locks are held, so nobody works or enqueues meanwhile; the damaged file stays beside the
new one; numbers go on beyond all that may have been given, so that no follower takes a new record for an old one.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from garrison.errors import RecordCorrupt, RecordError, Refused
from garrison.light import replace
from garrison.merge import failpoint
from garrison.merge.entry import FINAL, Entry
from garrison.merge.queue import PINS
from garrison.merge.salvage import Salvaged, Trace, Traces, recognized, salvage
from garrison.merge.snapshot import saved
from garrison.records import atomic, journal, journal_past
from garrison.records.life import LifeLock
from garrison.system.clock import iso

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from garrison.merge.queue import MergeQueue

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
    lost = (trace for trace in _pinned(queue, before=records[0].at if records else "") if trace.entry not in known)
    if not journal_past.past(queue.path) and not any(recognized(trace, names) for trace in lost):
        return ""
    return "it was begun anew, without what had been enqueued before" if records else "it is gone"


def rebuild(queue: MergeQueue) -> list[str]:
    """Write a new journal in place of the damaged one; what could not be known. Refused while a processor lives."""
    atomic.make_directory(queue.locks)
    life = LifeLock.try_take(queue.processor_lock)
    if life is None:
        raise Refused("a processor works this queue by what it read before; stop it, then say doctor again")
    try:
        with atomic.locked(queue.locks / "queue.lock"):
            records, wrong = journal_past.salvage(queue.path)
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
    tip = queue.place.tip()
    return replace(_names(queue), pins=list(_pinned(queue)), landed=list(_landed(queue, tip)) if tip else [],
                   told=list(_told(queue)))


def _names(queue: MergeQueue) -> Traces:
    """By what an entry's name is recognized; no traces yet."""
    return Traces(str(queue.folder), str(queue.repo), queue.target, atomic.names(queue.home / "runs"))


def _pinned(queue: MergeQueue, before: str = "") -> Iterator[Trace]:
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


def _landed(queue: MergeQueue, tip: str) -> Iterator[Trace]:
    told = queue.git.run("log", "-z", "--grep=^Merge-Queue-Entry: ", f"--format={_LOG}", tip, "--").out
    parts = told.split("\0")
    for commit, parents, at, subject, names in zip(*(parts[at::5] for at in range(5)), strict=False):
        branch = subject.removeprefix("Merge ").partition(" into ")[0] if subject.startswith("Merge ") else ""
        for name in names.split(","):
            yield Trace(name.strip(), (parents.split()[1:] or [commit])[0], iso(float(at)), branch, commit)


def _told(queue: MergeQueue) -> Iterator[Entry]:
    """What runners were told of entries that are over; `seq` is the number of the record that told it."""
    for path in (queue.home / "signals").rglob("*-MERGE_*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError, RecordError):
            entry = _entry_of(json.loads(path.read_bytes()), queue)
            if entry:
                yield entry


def _entry_of(body: dict[str, Any], queue: MergeQueue) -> Entry | None:
    told, target = body["payload"], body["target"]
    if told["target"] != queue.target or told["status"] not in FINAL:
        return None
    trace = Trace(told["entry"], told["oid"], body["timestamp"], told["branch"])
    known = recognized(trace, replace(_names(queue), runs=[body["run_id"]]))
    return known and Entry(
        known.id, known.run, known.node, known.attempt, known.branch, known.oid, known.target, known.repo,
        f"{target['role']}-{target['name']}@{body['run_id']}", told["status"], told["error"] or "",
        tuple(told["files"]), commit=told["commit"], log=told["log"], enqueued_at=known.enqueued_at,
        updated_at=known.updated_at, seq=int(body["id"].split("-")[1]))
