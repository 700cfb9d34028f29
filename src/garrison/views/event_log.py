"""Event log of a run: all its journals (guardian, processes, merge queue) as one stream, ordered by time.

Read-only and incremental: each read continues where the previous one ended, even if compaction has archived records
since. An unreadable journal is reported in `problems` and does not hide the others; records lost for good are in
`gaps`. `why` and `events` use `LoggedEvent`s, which name a record's node and agent; read models use `StoredRecord`s,
including snapshots and whole merge queues.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.errors import RecordError
from garrison.merge.queue import target_of_folder
from garrison.records import atomic
from garrison.records import run as run_records
from garrison.records.events import Event as JournalEvent
from garrison.records.events import decode
from garrison.records.journal import Reader, archived_number, archived_parts, read_all
from garrison.records.names import Key
from garrison.records.run import Launch, RunFiles
from garrison.system.clock import from_iso
from garrison.system.stamps import file_stamp
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from garrison.records.journal import Entry

GUARDIAN, LAUNCHER, QUEUE, RUNNER = "guardian", "launch", "merge-queue", "runner-"
"""Names of journals; a runner's is `runner-NODE`."""
NODE_ROLES = ("runner", "orchestrator")
"""Roles whose processes work for one node and have its name."""
CLOCK_MARGIN = 86400.0
"""Seconds by which a clock may have been set back since an archived part of a queue's journal was written. A part older
than the run by more than that has no record of it and is skipped: a queue serves a home for years."""


class LoggedEvent(Value):
    """Journal record with its writer and subject."""

    at: str
    run: str
    journal: str
    """`guardian`, a process's `role-name`, or `merge-queue`."""
    by: str
    """The writer's fencing token, `role-name@run#incarnation`, or the user's."""
    seq: int
    kind: str
    node: str
    """'' for a record that concerns no node."""
    about: str
    """The full name of the agent it concerns, '' for none."""
    data: dict[str, Any]
    queue: str = ""
    """Target branch of its merge queue, '' for other journals. A run may use two queues, each with its own numbers."""


class StoredRecord(Value, dict=True):
    """Journal record as stored; `journal` as in `LoggedEvent`, `queue` is a merge queue's folder or ''."""

    journal: str
    entry: Entry
    queue: str = ""

    @cached_property
    def event(self) -> JournalEvent | None:
        """Return the typed record of a run's or process's journal; None for a merge queue's, or an unknown kind.

        Raises ValueError if a record of a known kind lacks a field.
        """
        return None if self.journal == QUEUE else decode(self.entry)


class EventLog:
    """Journals of one run; each `read` returns the records appended since the last one.

    `unrecorded`: records of merge queues that are read once each, as if appended to the journals.
    """

    def __init__(self, home: Path, run: str, unrecorded: Mapping[Path, Sequence[Entry]] | None = None) -> None:
        self.home, self.run, self.files = home, run, RunFiles(home, run)
        self._unrecorded = dict(unrecorded or {})
        self._process_logs = str(self.files.root / "layers")
        self._readers: dict[Path, Reader] = {}
        self._stamps: dict[str, tuple[int, ...]] = {}
        """Journal → (inode, size, time) of its file when it was last read."""
        self._latest: dict[Path, str] = {}
        """Journal → time of its latest record so far."""
        self._merge_entries: dict[str, str] = {}
        """Merge entry → node, of this run's entries."""
        self._problems: dict[Path, str] = {}
        self._gaps: dict[Path, str] = {}

    @property
    def gaps(self) -> list[str]:
        """Journals with lost records that may have concerned this run, each with their numbers."""
        return list(self._gaps.values())

    @property
    def problems(self) -> set[str]:
        """Journals that could not be read, each with the reason."""
        return set(self._problems.values())

    def problem(self, path: Path) -> str:
        return self._problems.get(path, "")

    def read(self) -> list[LoggedEvent]:
        return [event for record in self.records() if (event := self.event(record)) is not None]

    def records(self, only: Container[Path] | None = None) -> list[StoredRecord]:
        """Return new records, ordered by time; with `only`, read only these files, since no other has changed.

        Each journal keeps its own order even if the clock was set back: a record counts as at least as late as the one
        before it.
        """
        records: list[tuple[str, StoredRecord]] = []
        for path, journal in self._changed_journals():
            if only is None or path in only:
                queue = f"{path.parent.parent.name}/{path.parent.name}" if journal == QUEUE else ""
                for entry in self._new_entries(path):
                    self._latest[path] = max(self._latest.get(path, ""), entry.at)
                    records.append((self._latest[path], StoredRecord(journal, entry, queue)))
        return [record for _, record in sorted(records, key=lambda pair: pair[0])]  # stable: keeps each journal's order

    def guardian_records(self) -> list[StoredRecord]:
        path = self.files.journal
        entries = self._new_entries(path, archived=False) if self._has_changed(str(path)) else []
        return [StoredRecord(GUARDIAN, entry) for entry in entries]

    def _changed_journals(self) -> Iterator[tuple[Path, str]]:
        """Yield the journals that may have changed, with their names; most of hundreds belong to finished nodes."""
        if self._has_changed(str(self.files.journal)):
            yield self.files.journal, GUARDIAN
        for name in sorted(atomic.list_names(Path(self._process_logs))):
            if name.endswith(".jsonl") and self._has_changed(f"{self._process_logs}/{name}"):
                yield Path(self._process_logs, name), name.removesuffix(".jsonl")
        for path in sorted((self.home / "merge-queue").glob("*/*/journal.jsonl")):
            if self._has_changed(str(path)):
                yield path, QUEUE

    def _has_changed(self, path: str) -> bool:
        stamp = file_stamp(path)
        return stamp is None or self._stamps.get(path) != stamp  # None: the reader reports the error, if it is one

    def _new_entries(self, path: Path, *, archived: bool = True) -> list[Entry]:
        stamp = file_stamp(path)
        reader = self._readers.setdefault(path, Reader(path))
        known = reader.seq
        try:
            entries = reader.read()
        except RecordError as error:
            self._problems[path] = str(error)
            return []
        self._problems.pop(path, None)
        if stamp is not None:  # before reading: later appends are read next time
            self._stamps[str(path)] = stamp
        entries = [*entries, *self._unrecorded.pop(path, ())]
        # the journal was compacted since the last read: the records in between are in the archived parts
        if archived and entries and entries[0].kind == "snapshot" and entries[0].seq > known:
            return [*self._archived_entries(path, known, entries[0]), *entries]
        return entries

    def _archived_entries(self, path: Path, known: int, snapshot: Entry) -> list[Entry]:
        """Return the archived records after number `known`, for which the journal has only a snapshot; record gaps.

        If records are gone or too old, the following snapshot is returned in their place: it names the merge entries of
        later records. No other snapshot is newer than the known records.
        """
        found: list[Entry] = []
        for part in archived_parts(path):
            number = archived_number(part, path)
            if number <= known:
                continue
            if path != self.files.journal and self._was_written_before(part):
                known = number - 1  # the next part starts with the snapshot of that number
                continue
            try:
                entries = [entry for entry in read_all(part) if known < entry.seq <= snapshot.seq]
            except RecordError as error:
                self._problems[part] = str(error)
                continue
            if entries:
                self._note_gap(path, known, entries[0])
                found += entries
                known = entries[-1].seq
        self._note_gap(path, known, snapshot)
        return found

    def _note_gap(self, path: Path, known: int, following: Entry) -> None:
        """Record a gap if a snapshot follows record `known`: it replaces all records up to its own number."""
        if following.kind == "snapshot" and following.seq > known and following.at >= self._created_at:
            self._gaps.setdefault(path, f"records {known + 1} to {following.seq} of {path} are gone")

    def _was_written_before(self, part: Path) -> bool:
        """Return whether an archived part is older than the run."""
        try:
            return bool(self._created_at) and part.stat().st_mtime < from_iso(self._created_at) - CLOCK_MARGIN
        except (OSError, ValueError):
            return False

    @cached_property
    def _created_at(self) -> str:
        """Launch time of the run; '' if unknown."""
        try:
            launch = run_records.load(Launch, self.files.launch)
        except RecordError:
            return ""
        return launch.created_at if launch is not None else ""

    def event(self, record: StoredRecord) -> LoggedEvent | None:
        """Return a record as an event of this run; None for a snapshot, and for other runs' records."""
        if record.entry.kind == "snapshot":
            return None
        return self._queue_event(record) if record.journal == QUEUE else self._event(record.entry, record.journal)

    def _event(self, entry: Entry, journal: str) -> LoggedEvent:
        about = subject_of(entry, journal, self.run)
        node = str(entry.data.get("node") or (about.name if about and about.role in NODE_ROLES else ""))
        return LoggedEvent(entry.at, self.run, journal, entry.token, entry.seq, entry.kind, node,
                           about.full if about else "", entry.data)

    def _queue_event(self, record: StoredRecord) -> LoggedEvent | None:
        entry = record.entry
        # a record may be about several entries (a candidate of many branches): use the first of this run
        names = entry.data.get("entries") or [str(entry.data.get("entry", ""))]
        if entry.kind == "enq" and entry.data.get("run") == self.run:
            self._merge_entries[names[0]] = entry.data["node"]
        nodes = [self._merge_entries[name] for name in names if name in self._merge_entries]
        if not nodes:
            return None
        return LoggedEvent(entry.at, self.run, QUEUE, entry.token, entry.seq, entry.kind, nodes[0], "", entry.data,
                           target_of_folder(Path(record.queue)))


def subject_of(entry: Entry, journal: str, run: str) -> Key | None:
    """Return the agent that a guardian's or process's record is about; None if none. Pure."""
    if entry.kind == "decision":
        identity = entry.data.get("basis", {}).get("identity")
        return Key(identity["role"], identity["name"], run) if identity else None
    if "full" in entry.data:
        return Key.parse(entry.data["full"])
    if journal == GUARDIAN:
        return None
    role, _, name = journal.partition("-")
    return Key(role, name or role, run)
