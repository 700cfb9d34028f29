"""One run, followed for everybody who looks at it: its projection, the latest events, and who is told of them.

The rule of this room: each journal record is read, folded and encoded once, however many look. A client that comes
back with an event id is sent what it missed from memory if it was away for a moment, else from the journals: they are
folded anew in the order in which that client saw them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from garrison.errors import GarrisonError, NotFound
from garrison.pipeline.dot_writer import SHAPE_OF, to_drawing
from garrison.pipeline.graph import Graph, text
from garrison.pipeline.parser import parse_file
from garrison.records import run as run_records
from garrison.records.names import check_run
from garrison.records.run import Launch, RunFiles
from garrison.views.event_log import QUEUE, Chronicle, Record
from garrison.views.explain import tell
from garrison.views.page_view import Drawn, Projection
from garrison.web.cursor import Position, decode, stamp
from garrison.web.sse import Client, encoded

KEPT = 1000
"""Events kept in memory for clients that come back soon."""
PROBLEMS = 20
"""Lines about records that cannot be shown, the latest."""
TRIES = 5
"""How often what a client missed is brought level with the journals before it gets a snapshot instead."""


@dataclass
class Followed:
    """The journals of a run, folded as far as they were read."""

    home: Path
    launch: Launch
    drawn: dict[str, Drawn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        run = self.launch.run_id
        self.chronicle = Chronicle(self.home, run)
        self.projection = Projection(run, self.drawn)
        self.problems: list[str] = []
        """What could not be folded."""
        self.position = Position(stamp(run, self.launch.created_at))

    def read(self, only: Container[Path] | None = None) -> list[dict[str, Any]]:
        """Read on; the events of what changed something, with the id of the position after each."""
        return self.fold(self.chronicle.records(only))

    def fold(self, records: list[Record]) -> list[dict[str, Any]]:
        """Fold records in, as `read` does."""
        return [event for record in records if (event := self._fold(record)) is not None]

    def _fold(self, record: Record) -> dict[str, Any] | None:
        try:
            words = self._words(record)
            patch = self.projection.apply(record, words)
        except (GarrisonError, LookupError, TypeError, ValueError) as error:  # the others are good all the same
            self.problems.append(f"record {record.entry.seq} of {record.journal} cannot be shown: {error!r:.200}")
            words, patch = "", {}
        if record.journal != QUEUE or record.queue == self.projection.queue:
            self.position.move(record)
        if not patch:
            return None
        entry = record.entry
        return {"id": self.id, "run": self.launch.run_id, "at": entry.at, "type": entry.kind,
                "node": self.projection.node_of(record), "text": words, "patch": patch}

    def _words(self, record: Record) -> str:
        event = self.chronicle.event(record) if record.entry.kind != "decision" else None
        line = tell(event) if event is not None else None
        return line.text if line is not None else ""

    @property
    def id(self) -> str:
        """The event id of here."""
        return self.position.encode(self.order)

    @property
    def order(self) -> list[str]:
        """The nodes in the order that ids count them in; of an ad-hoc run, which no guardian leads, its runner's."""
        return self.projection.order or sorted(self.position.runners)


class Feed:
    """A run that is looked at. NotFound if there is none of that id."""

    def __init__(self, home: Path, run: str) -> None:
        self.home, self.files = home, RunFiles(home, check_run(run))
        launch = run_records.load(Launch, self.files.launch)
        if launch is None:
            raise NotFound(f"no run {run} in {home}; `garrison status` lists the runs")
        self.run, self.launch, self._stamp = run, launch, _stamp(self.files.launch)
        self.graph = graph_of(self.files)
        self.followed = Followed(home, launch, drawn_of(self.graph, launch))
        self.clients: set[Client] = set()
        self._latest: deque[tuple[str, bytes]] = deque(maxlen=KEPT)
        self._before = ""
        """The id before the oldest event that is kept."""

    def head(self) -> dict[str, Any]:
        """What never changes of a run."""
        graph = self.graph
        title, goal = (text(graph.attrs, name, "") if graph else "" for name in ("label", "goal"))
        return {"run": self.run, "title": title or self.launch.pipeline_id, "goal": goal,
                "pipeline": self.launch.pipeline_id, "target": self.launch.base, "created": self.launch.created_at,
                "dot": to_drawing(graph, titled=False, font="Helvetica") if graph else "",
                "next": graph.successors() if graph else {}}

    def lasts(self) -> bool:
        """Whether it is still this run that bears its name: launch.json is written once."""
        return self._stamp is not None and _stamp(self.files.launch) == self._stamp

    def folders(self) -> list[Path]:
        """Where its journals lie, and where new ones appear."""
        queues = self.home / "merge-queue"
        return [self.files.root, self.files.root / "layers", queues, *queues.glob("*"), *queues.glob("*/*")]

    def read(self, only: Container[Path] | None = None) -> None:
        """Read on, and tell the clients."""
        for event in self.followed.read(only):
            data = encoded("change", event, event["id"])
            if not self._latest:
                self._before = self._before or event["id"]
            elif len(self._latest) == KEPT:
                self._before = self._latest[0][0]
            self._latest.append((event["id"], data))
            for client in list(self.clients):
                client.put(data, self.run)

    def snapshot(self) -> dict[str, Any]:
        """What journals and graph tell, with the id of the last event in it."""
        followed = self.followed
        problems = [*sorted(followed.chronicle.problems), *followed.problems[-PROBLEMS:]]
        return {**self.head(), "id": followed.id, **followed.projection.snapshot(), "problems": problems}

    def missed(self, after: str) -> list[bytes] | None:
        """The events since `after`, if they are in memory."""
        if after == self.followed.id:
            return []
        ids = [self._before, *(name for name, _ in self._latest)]
        if after not in ids or not after:
            return None
        return [data for _, data in list(self._latest)[ids.index(after):]]

    def other(self) -> Followed:
        """Its journals, to be read anew."""
        return Followed(self.home, self.launch, self.followed.drawn)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def replay(other: Followed, after: str) -> list[bytes] | None:
    """Fold a run's journals anew: first what the client had seen at `after`, then the events since then.

    None if `after` is no place in them. Reads; for a thread.
    """
    records = other.chronicle.records()
    whole = Followed(other.home, other.launch)
    whole.fold(records)
    seen = decode(after, whole.order)
    if seen is None or not seen.within(whole.position):
        return None
    own = ("", whole.projection.queue)
    parts: tuple[list[Record], list[Record]] = ([], [])
    for record in records:
        parts[record.queue not in own or record.entry.seq > seen.of(record)].append(record)
    other.fold(parts[False])
    return as_bytes(other.fold(parts[True]))


def as_bytes(events: list[dict[str, Any]]) -> list[bytes]:
    """Events as they go over the wire."""
    return [encoded("change", event, event["id"]) for event in events]


def graph_of(files: RunFiles) -> Graph | None:
    """The run's graph; None of a run without one, or where it cannot be read."""
    try:
        return parse_file(files.graph) if files.graph.is_file() else None
    except (GarrisonError, OSError):
        return None


def drawn_of(graph: Graph | None, launch: Launch) -> dict[str, Drawn]:
    """What the graph says of its nodes."""
    if graph is None:
        return {}
    found = {}
    for node in graph.nodes.values():
        works = node.handler in ("codergen", "tool")
        agent = text(node.attrs, "agent") or text(node.attrs, "worker_type") or launch.agent if works else ""
        found[str(node.id)] = Drawn(str(node.label), SHAPE_OF.get(node.handler, "box"), str(agent))
    return found
