"""All journals of one run as one stream of events, in the order of their times: guardian, layers, merge queue.

The rule of this room: it only reads, follows where it is asked again, and says of each event whom it is about, so that
`why`, `events` and whoever watches from outside need to know no journal's form. Whoever folds states of their own takes
the records (snapshots, and the whole of each merge queue, among them) instead of the events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from garrison.errors import RecordError
from garrison.records.journal import Reader
from garrison.records.names import Key
from garrison.records.run import RunFiles

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from pathlib import Path

    from garrison.records.journal import Entry


@dataclass(frozen=True)
class Event:
    """One journal record, with who wrote it and whom it is about."""

    at: str
    run: str
    journal: str
    """`guardian`, a layer's `role-name`, or `merge-queue`."""
    by: str
    """The writer's fencing token, `role-name@run#incarnation`, or a person's."""
    seq: int
    kind: str
    node: str
    """'' for what concerns no node."""
    about: str
    """The full name of the agent it concerns, '' for none."""
    data: dict[str, Any]


@dataclass(frozen=True)
class Record:
    """One journal record as it stands; `journal` as in `Event`, `queue` the folder of a merge queue (else '')."""

    journal: str
    entry: Entry
    queue: str = ""


class Chronicle:
    """The events of one run; each `read` gives those since the last."""

    def __init__(self, home: Path, run: str) -> None:
        self.home, self.run, self.files = home, run, RunFiles(home, run)
        self._readers: dict[Path, Reader] = {}
        self._begun = False
        self._entries: dict[str, str] = {}
        """Merge entry → node, of this run's entries."""
        self.problems: set[str] = set()
        """What could not be read; the other journals are read all the same."""

    def read(self) -> list[Event]:
        """New events, by time."""
        return [event for record in self.records() if (event := self.event(record)) is not None]

    def records(self, only: Container[Path] | None = None) -> list[Record]:
        """New records, by time; `only`: of these files, where somebody knows which have changed."""
        found: list[Record] = []
        for path, journal in self._journals() if only is None else self._known(only):
            try:
                entries = self._readers.setdefault(path, Reader(path)).read()
            except RecordError as error:
                self.problems.add(str(error))
                continue
            queue = f"{path.parent.parent.name}/{path.parent.name}" if journal == QUEUE else ""
            found += [Record(journal, entry, queue) for entry in entries]
        self._begun = True
        return sorted(found, key=lambda record: record.entry.at)  # stable: one journal's order stays

    def _journals(self) -> Iterator[tuple[Path, str]]:
        # What compaction keeps was read from the journal itself by whoever was there before.
        guardian = [self.files.journal] if self._begun else _with_kept(self.files.journal)
        yield from ((path, GUARDIAN) for path in guardian)
        folder = self.files.root / "layers"
        for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
            yield path, path.stem
        for path in sorted((self.home / "merge-queue").glob("*/*/journal.jsonl")):
            yield path, QUEUE

    def _known(self, only: Container[Path]) -> Iterator[tuple[Path, str]]:
        return ((path, journal) for path, journal in self._journals() if path in only)

    def event(self, record: Record) -> Event | None:
        """A record as an event of this run; None for a snapshot, and for what concerns other runs."""
        if record.entry.kind == "snapshot":
            return None
        return self._merge(record.entry) if record.journal == QUEUE else self._event(record.entry, record.journal)

    def _event(self, entry: Entry, journal: str) -> Event:
        about = about_of(entry, journal, self.run)
        node = str(entry.data.get("node") or (about.name if about and about.role in _OF_A_NODE else ""))
        return Event(entry.at, self.run, journal, entry.token, entry.seq, entry.kind, node,
                     about.full if about else "", entry.data)

    def _merge(self, entry: Entry) -> Event | None:
        name = str(entry.data.get("entry", ""))
        if entry.kind == "enq" and entry.data.get("run") == self.run:
            self._entries[name] = entry.data["node"]
        if name not in self._entries:
            return None
        return Event(entry.at, self.run, QUEUE, entry.token, entry.seq, entry.kind, self._entries[name], "", entry.data)


GUARDIAN, LAUNCHER, QUEUE, RUNNER = "guardian", "launch", "merge-queue", "runner-"
"""Names of journals; a runner's is `runner-NODE`."""
_OF_A_NODE = ("runner", "orchestrator")


def about_of(entry: Entry, journal: str, run: str) -> Key | None:
    """Whom a guardian's or a layer's record concerns; None for nobody in particular. Pure."""
    if entry.kind == "decision":
        found = entry.data.get("basis", {}).get("identity")
        return Key(found["role"], found["name"], run) if found else None
    if "full" in entry.data:
        return Key.parse(entry.data["full"])
    if journal == GUARDIAN:
        return None
    role, _, name = journal.partition("-")
    return Key(role, name or role, run)


def _with_kept(path: Path) -> list[Path]:
    """A journal and what compaction kept of it, the oldest first."""
    kept = [one for one in path.parent.glob(f"{path.stem}-*.jsonl") if one.stem.rpartition("-")[2].isdigit()]
    return [*sorted(kept, key=lambda one: int(one.stem.rpartition("-")[2])), path]
