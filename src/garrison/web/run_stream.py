"""Stream of one run, for all clients that follow it: its page model, the latest events, and the clients.

Each journal record is read, replayed and encoded once, however many clients there are. A client that reconnects with an
event id gets the missed events from memory after a short absence, else from the journals, which are replayed in the
order in which that client saw them. An id is a position in all journals of the run, with a number for each:

    3f2a9c1d-g412.l5.m88-12.9.0.31

stamp of the run, guardian, launcher, merge queue, then the runners in the order in which the guardian's journal names
their nodes. That order only grows, so that an id of one server means the same to the next.
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec

from msgspec import UNSET, UnsetType

from garrison.config import NotifyConfig, read_config
from garrison.errors import GarrisonError, NotFound, UsageError
from garrison.pipeline.dot_writer import SHAPE_OF, to_drawing
from garrison.pipeline.graph import Graph, text
from garrison.pipeline.parser import parse, parse_file
from garrison.pipeline.plan import RunPlan
from garrison.records import run as run_records
from garrison.records.names import check_run
from garrison.records.run import Launch, RunFiles
from garrison.run.flow import RunFlow
from garrison.run.plan import read_plan
from garrison.run.state import RunState
from garrison.system.stamps import file_stamp
from garrison.values import Value, fields_of, replace
from garrison.views.event_log import GUARDIAN, LAUNCHER, QUEUE, RUNNER, EventLog, StoredRecord
from garrison.views.explain import describe
from garrison.views.page_view import NOTHING, GraphNode, LiveState, PageModel, Parts
from garrison.views.run_model import CANNOT_REPLAY, RunModel
from garrison.web.sse import Client, encode_event

P = ParamSpec("P")

KEPT_EVENTS = 1000
"""Events kept in memory for clients that reconnect soon."""


def _notify_on(home: Path) -> tuple[str, ...]:
    """Return the events that `[notify]` lists; the default ones if the configuration cannot be read."""
    try:
        return read_config(home).notify().on
    except UsageError:
        return NotifyConfig().on


class DrawnFlow(RunFlow):
    """Flow with drawn edges. One that cannot be replayed (a graph or journal of another version) marks no edge
    from then on, and the rest of a view stays as it is.
    """

    is_known = True

    def apply(self, data: Mapping[str, Any]) -> None:
        self._try(super().apply, data)

    def change(self, text: str) -> None:
        self._try(super().change, text)

    def restore(self, data: object, text: str = "") -> None:
        self._try(super().restore, data, text)

    def _try(self, replay: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> None:
        try:
            if self.is_known:
                replay(*arguments, **named)
        except CANNOT_REPLAY:
            self.is_known = False
            self.followed.clear()


class StreamChange(Value):
    """A journal record that changed something visible, as an event; `id` is the position after it."""

    id: str
    run: str
    at: str
    type: str
    node: str
    text: str
    patch: Parts


class Beat(Parts, kw_only=True):
    """Changes of an observation, as an event."""

    run: str


class RunSnapshot(Parts, kw_only=True):
    """All of a run: the parts that never change, and the others as they are after event `id`."""

    run: str
    title: str
    goal: str
    pipeline: str
    target: str
    created: str
    dot: str
    next: Mapping[str, Sequence[str]]
    id: str
    write: bool | UnsetType = UNSET
    """True if the client may act; only in a client's first snapshot."""
    missed: bool | UnsetType = UNSET
    """Set if the client missed events that can no longer be sent."""


class FollowedRun:
    """Journals of a run, replayed as far as they were read."""

    def __init__(self, home: Path, launch: Launch, graph: Mapping[str, GraphNode], plan: RunPlan | None = None) -> None:
        self.home, self.launch = home, launch
        self.log = EventLog(home, launch.run_id)
        flow = DrawnFlow(plan.program, launch.run_id, plan.children) if plan is not None and plan.program else None
        self.page = PageModel(RunModel(launch.run_id, RunState(flow=flow)), graph, launch.adhoc, _notify_on(home))
        self.cursor = Cursor(run_stamp(launch.run_id, launch.created_at))

    def read(self, only: Container[Path] | None = None) -> list[StreamChange]:
        """Read on; return an event for each record that changed something, with the id of the position after it."""
        return self.replay(self.log.records(only))

    def replay(self, records: list[StoredRecord]) -> list[StreamChange]:
        """Replay records; return as `read` does."""
        return [event for record in records if (event := self._event(record)) is not None]

    def catch_up(self, records: list[StoredRecord]) -> None:
        """Replay records without announcing them one by one."""
        for record in records:
            self.replay_one(record)
        self.page.mark_sent()

    def replay_one(self, record: StoredRecord) -> str:
        """Replay one record without its patch; return it in words."""
        words = self._describe(record)
        self.page.replay(record, words)
        self._advance(record)
        return words

    def _advance(self, record: StoredRecord) -> None:
        if record.journal != QUEUE or record.queue == self.page.model.queue_folder:
            self.cursor.advance(record)

    def _event(self, record: StoredRecord) -> StreamChange | None:
        words = self._describe(record)
        patch = self.page.apply(record, words)
        self._advance(record)
        if patch == NOTHING:
            return None
        entry = record.entry
        return StreamChange(self.id, self.launch.run_id, entry.at, entry.kind, self.page.node_of(record), words, patch)

    def _describe(self, record: StoredRecord) -> str:
        try:
            event = self.log.event(record) if record.entry.kind != "decision" else None
            line = describe(event) if event is not None else None
        except CANNOT_REPLAY as error:
            self.page.model.report(record, error)
            return ""
        return line.text if line is not None else ""

    @property
    def id(self) -> str:
        return self.cursor.encode(self.order)

    @property
    def order(self) -> list[str]:
        """Return the nodes in the order of event ids; for an ad-hoc run, which has no guardian, by name."""
        return self.page.order or sorted(self.cursor.runners)


class RunStream:
    """Run that clients follow; NotFound if there is no run of that id."""

    def __init__(self, home: Path, run: str) -> None:
        self.home, self.files = home, RunFiles(home, check_run(run))
        launch = run_records.load(Launch, self.files.launch)
        if launch is None:
            raise NotFound(f"no run {run} in {home}; `garrison status` lists the runs")
        self.run, self.launch, self._stamp = run, launch, file_stamp(self.files.launch)
        self._changed = ""
        """Text of the graph as the user has changed it, '' if unchanged."""
        self._plan = _read_plan(self.files, launch)
        self.graph = self._plan.graph if self._plan is not None else _read_graph(self.files)
        self.followed = FollowedRun(home, launch, graph_nodes(self.graph, launch), self._plan)
        self.clients: set[Client] = set()
        self._latest: deque[tuple[str, bytes]] = deque(maxlen=KEPT_EVENTS)
        self._before = ""
        """Id before the oldest kept event."""
        self._first: tuple[tuple[str, LiveState | None, bool, bool], bytes] | None = None
        """Encoded snapshot and its inputs: clients that connect at once share the work."""

    @property
    def page(self) -> PageModel:
        return self.followed.page

    def snapshot(self) -> RunSnapshot:
        """Return the current state of the run."""
        graph, parts = self.graph, self.page.snapshot()
        title, goal = (str(text(graph.attrs, name, "")) if graph else "" for name in ("label", "goal"))
        problems = list(dict.fromkeys([*sorted(self.followed.log.problems), *self.page.problems]))
        return RunSnapshot(
            **fields_of(replace(parts, problems=problems)), run=self.run, title=title or self.launch.pipeline_id,
            goal=goal, pipeline=self.launch.pipeline_id, target=self.launch.base, created=self.launch.created_at,
            dot=to_drawing(graph, titled=False, font="Helvetica", for_page=True) if graph else "",
            next=graph.successors() if graph else {}, id=self.followed.id)

    def snapshot_event(self, *, write: bool, missed: bool) -> bytes:
        """Return a new client's first event."""
        inputs = (self.followed.id, self.page.observation, write, missed)
        if self._first is None or self._first[0] != inputs:
            whole = replace(self.snapshot(), write=write, missed=missed or UNSET)
            self._first = inputs, encode_event("snapshot", whole, self.followed.id)
        return self._first[1]

    def observation_event(self) -> bytes:
        return encode_event("beat", Beat(run=self.run, **fields_of(self.page.observed())))

    def exists(self) -> bool:
        """Return whether this is still the same run: launch.json is written once."""
        return self._stamp is not None and file_stamp(self.files.launch) == self._stamp

    def folders(self) -> list[Path]:
        """Return the folders of its journals, and those in which new ones appear."""
        queues = self.home / "merge-queue"
        return [self.files.root, self.files.root / "layers", queues, *queues.glob("*"), *queues.glob("*/*")]

    def read(self, only: Container[Path] | None = None) -> None:
        """Read on, and send the changes to the clients; the first time there are none."""
        if not self._before:
            self.followed.catch_up(self.followed.log.records(only))
            self._before = self.followed.id
        for event in self.followed.read(only):
            data = encode_event("change", event, event.id)
            if len(self._latest) == KEPT_EVENTS:  # the oldest is dropped: its id now precedes the first kept one
                self._before = self._latest[0][0]
            self._latest.append((event.id, data))
            self._send(data)
        if self.page.model.state.graph != self._changed:
            self._draw_again()

    def _draw_again(self) -> None:
        """Read the graph that the user has changed, and send the clients a new snapshot."""
        self._changed = self.page.model.state.graph
        with suppress(GarrisonError):
            self.graph = parse(self._changed)
        self.page.graph = graph_nodes(self.graph, self.launch)
        self._send(encode_event("snapshot", self.snapshot(), self.followed.id))

    def _send(self, data: bytes) -> None:
        for client in list(self.clients):
            client.put(data, self.run)

    def observe(self, observation: LiveState) -> None:
        """Apply a new observation, and send its changes to the clients."""
        if (patch := self.page.observe(observation)) != NOTHING:
            self._send(encode_event("beat", Beat(run=self.run, **fields_of(patch))))

    def events_since(self, after: str) -> list[bytes] | None:
        """Return the events since `after`, if they are in memory; else None."""
        if after == self.followed.id:
            return []
        ids = [self._before, *(name for name, _ in self._latest)]
        if after not in ids or not after:
            return None
        return [data for _, data in list(self._latest)[ids.index(after):]]

    def reread(self) -> FollowedRun:
        return FollowedRun(self.home, self.launch, self.page.graph, self._plan)


def replay_since(fresh: FollowedRun, after: str) -> list[bytes] | None:
    """Replay a run's journals from the start: first the records that the client had seen at `after`, then the later
    ones.

    Returns None if `after` is not a position in them. Reads files; for a thread.
    """
    records = fresh.log.records()
    # Replayed twice: the order of the nodes, and so of the numbers in an id, is known only from the whole journal.
    whole = FollowedRun(fresh.home, fresh.launch, {})
    whole.catch_up(records)
    seen = decode(after, whole.order)
    if seen is None or not seen.within(whole.cursor):
        return None
    this_run = ("", whole.page.model.queue_folder)
    parts: tuple[list[StoredRecord], list[StoredRecord]] = ([], [])
    for record in records:
        parts[record.queue not in this_run or record.entry.seq > seen.position(record)].append(record)
    fresh.catch_up(parts[False])
    return encode_changes(fresh.replay(parts[True]))


def encode_changes(events: list[StreamChange]) -> list[bytes]:
    """Encode events for sending."""
    return [encode_event("change", event, event.id) for event in events]


def graph_nodes(graph: Graph | None, launch: Launch) -> dict[str, GraphNode]:
    """Return the nodes as the graph describes them."""
    if graph is None:
        return {}
    nodes = {}
    for node in graph.nodes.values():
        works = node.handler in ("codergen", "tool")
        agent = text(node.attrs, "agent") or text(node.attrs, "worker_type") or launch.agent if works else ""
        nodes[str(node.id)] = GraphNode(str(node.label), SHAPE_OF.get(node.handler, "box"), str(agent))
    return nodes


def _read_graph(files: RunFiles) -> Graph | None:
    """Return the run's graph; None for a run without one, or if it cannot be read."""
    try:
        return parse_file(files.graph) if files.graph.is_file() else None
    except (GarrisonError, OSError):
        return None


def _read_plan(files: RunFiles, launch: Launch) -> RunPlan | None:
    """Return the run's plan; None for a run without a graph, or if it cannot be read."""
    try:
        return read_plan(files, launch, as_launched=True) if files.graph.is_file() else None
    except (GarrisonError, OSError):
        return None


# ---- positions

_ID = re.compile(r"([0-9a-f]{8})-g(\d{1,12})\.l(\d{1,12})\.m(\d{1,12})-((?:\d{1,12}(?:\.\d{1,12})*)?)\Z", re.ASCII)


def run_stamp(run: str, created_at: str) -> str:
    return f"{zlib.crc32(f'{run} {created_at}'.encode()):08x}"


@dataclass
class Cursor:
    """Number of the last seen record of each journal, 0 for none."""

    stamp: str
    guardian: int = 0
    launch: int = 0
    queue: int = 0
    runners: dict[str, int] = field(default_factory=dict)
    """Node → number in its runner's journal."""

    def position(self, record: StoredRecord) -> int:
        """Return the last seen number in the journal of a record."""
        journal = record.journal
        if journal.startswith(RUNNER):
            return self.runners.get(journal.removeprefix(RUNNER), 0)
        return {GUARDIAN: self.guardian, LAUNCHER: self.launch, QUEUE: self.queue}.get(journal, 0)

    def advance(self, record: StoredRecord) -> None:
        """Count a record as seen."""
        journal, seq = record.journal, max(record.entry.seq, self.position(record))
        if journal.startswith(RUNNER):
            self.runners[journal.removeprefix(RUNNER)] = seq
        elif journal == GUARDIAN:
            self.guardian = seq
        elif journal == LAUNCHER:
            self.launch = seq
        elif journal == QUEUE:
            self.queue = seq

    def within(self, other: Cursor) -> bool:
        return (self.stamp == other.stamp and self.guardian <= other.guardian and self.launch <= other.launch
                and self.queue <= other.queue
                and all(seq <= other.runners.get(node, 0) for node, seq in self.runners.items()))

    def encode(self, order: Sequence[str]) -> str:
        """Return it as an event id; `order`: the nodes as the guardian's journal named them."""
        numbers = [self.runners.get(node, 0) for node in order]
        while numbers and not numbers[-1]:
            numbers.pop()
        return (f"{self.stamp}-g{self.guardian}.l{self.launch}.m{self.queue}-" + ".".join(map(str, numbers)))


def decode(text: str, order: Sequence[str]) -> Cursor | None:
    """Return the cursor that an event id encodes; None if it does not fit a run with these nodes."""
    match = _ID.match(text)
    if match is None:
        return None
    numbers = [int(digits) for digits in match[5].split(".") if digits]
    if len(numbers) > len(order):
        return None
    runners = {node: seq for node, seq in zip(order, numbers, strict=False) if seq}
    return Cursor(match[1], int(match[2]), int(match[3]), int(match[4]), runners)
