"""All journals of one run as one stream of events, in the order of their times: guardian, layers, merge queue.

The rule of this room: it only reads, follows where it is asked again, and says of each event whom it is about, so that
`why`, `events` and whoever watches from outside need to know no journal's form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from garrison.errors import RecordError
from garrison.light import dataclass
from garrison.records.journal import Reader
from garrison.records.names import Key
from garrison.records.run import RunFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
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


class Chronicle:
    """The events of one run; each `read` gives those since the last."""

    def __init__(self, home: Path, run: str) -> None:
        self.home, self.run, self.files = home, run, RunFiles(home, run)
        self._readers: dict[Path, Reader] = {}
        self._entries: dict[str, str] = {}
        """Merge entry → node, of this run's entries."""
        self.problems: set[str] = set()
        """What could not be read; the other journals are read all the same."""

    def read(self) -> list[Event]:
        """New events, by time."""
        events = []
        for path, journal in self._journals():
            try:
                events += list(self._of(path, journal))
            except RecordError as error:
                self.problems.add(str(error))
        return sorted(events, key=lambda event: event.at)  # stable: one journal's order stays

    def _journals(self) -> Iterator[tuple[Path, str]]:
        yield from ((path, "guardian") for path in _with_kept(self.files.journal))
        folder = self.files.root / "layers"
        for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
            yield path, path.stem
        for path in sorted((self.home / "merge-queue").glob("*/*/journal.jsonl")):
            yield path, "merge-queue"

    def _of(self, path: Path, journal: str) -> Iterator[Event]:
        reader = self._readers.setdefault(path, Reader(path))
        for entry in reader.read():
            if entry.kind == "snapshot":
                continue
            if journal == "merge-queue":
                yield from self._merge(entry)
            else:
                yield self._event(entry, journal)

    def _event(self, entry: Entry, journal: str) -> Event:
        about = about_of(entry, journal, self.run)
        node = str(entry.data.get("node") or (about.name if about and about.role in _OF_A_NODE else ""))
        return Event(entry.at, self.run, journal, entry.token, entry.seq, entry.kind, node,
                     about.full if about else "", entry.data)

    def _merge(self, entry: Entry) -> Iterator[Event]:
        name = str(entry.data.get("entry", ""))
        if entry.kind == "enq" and entry.data.get("run") == self.run:
            self._entries[name] = entry.data["node"]
        if name in self._entries:
            yield Event(entry.at, self.run, "merge-queue", entry.token, entry.seq, entry.kind, self._entries[name], "",
                        entry.data)


_OF_A_NODE = ("runner", "orchestrator")


def about_of(entry: Entry, journal: str, run: str) -> Key | None:
    """Whom a guardian's or a layer's record concerns; None for nobody in particular. Pure."""
    if entry.kind == "decision":
        found = entry.data.get("basis", {}).get("identity")
        return Key(found["role"], found["name"], run) if found else None
    if "full" in entry.data:
        return Key.parse(entry.data["full"])
    if journal == "guardian":
        return None
    role, _, name = journal.partition("-")
    return Key(role, name or role, run)


def _with_kept(path: Path) -> list[Path]:
    """A journal and what compaction kept of it, the oldest first."""
    kept = [one for one in path.parent.glob(f"{path.stem}-*.jsonl") if one.stem.rpartition("-")[2].isdigit()]
    return [*sorted(kept, key=lambda one: int(one.stem.rpartition("-")[2])), path]
