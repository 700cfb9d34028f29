"""Run directory: its owner lock, its journal, and the files derived from the journal.

    journal.jsonl     source of truth: `begun`, then one `flow` record a step, synced before the run continues
    checkpoint.json   derived: where the run is, for people and programs; never read to resume
    graph.dot         the graph it started with (or was changed to)    manifest.json    summary for listings
    events.jsonl      the event stream                                 owner.lock       held while a process drives it
    NODE/             files of the node's latest attempt; earlier ones in NODE/attempts/; status.json is derived
    artifacts/ answers/ signals/ children/ blobs/

One owner at a time; the journal is written first. Values over 8 kB of a step are stored beside the journal as blobs.
The derived files may lag behind the journal.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.errors import NotFound, RecordCorrupt, Refused
from garrison.pipeline.flow import Event, FlowState, event_from_data, event_to_data
from garrison.records import atomic
from garrison.records.journal import BLOB_BYTES, SNAPSHOT_EVERY, Entry, Writer, read_all
from garrison.records.life_lock import LifeLock, is_held
from garrison.system import untrusted
from garrison.system.clock import SystemClock
from garrison.system.failpoint import here
from garrison.values import asdict, field_names, fields_of

if TYPE_CHECKING:
    from garrison.pipeline.flow.program import Program

BEGUN, FLOW, GRAPH, SNAPSHOT = "begun", "flow", "graph", "snapshot"
"""Kinds of records: how the run started, one flow event, a changed graph, a compacted journal."""

_RESERVED = frozenset({"artifacts", "answers", "signals", "children", "blobs", "attempts"})
_PLAIN_NAME = re.compile(r"[\w -][\w. -]{0,99}\Z")


class RunDirectory:
    """Paths of one run directory."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))  # noqa: PTH100  # resolve() would follow a symlinked home
        self.journal = self.root / "journal.jsonl"
        self.checkpoint = self.root / "checkpoint.json"
        self.graph = self.root / "graph.dot"
        self.manifest = self.root / "manifest.json"
        self.events = self.root / "events.jsonl"
        self.lock = self.root / "owner.lock"
        self.artifacts = self.root / "artifacts"

    def exists(self) -> bool:
        """Return whether a run was started here; a torn first record does not count."""
        try:
            with self.journal.open("rb") as file:
                return b"\n" in file.read(1 << 20)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def is_running(self) -> bool:
        return is_held(self.lock)

    def node(self, node: str) -> Path:
        """Return the folder of a node's latest attempt."""
        if not _PLAIN_NAME.match(node):
            return self.root / f"node-{node.encode().hex()[:120]}"
        if node in _RESERVED or "." in node:
            return self.root / f"{node.replace('.', '_')}_"
        return self.root / node

    def new_attempt(self, node: str) -> Path:
        """Move the files of a node's last attempt below `attempts/` and return the node's folder."""
        folder = self.node(node)
        names = [name for name in atomic.list_names(folder) if name not in ("attempts", "intervention.md")]
        if names:
            attempts = folder / "attempts"
            number = 1 + max((int(name) for name in atomic.list_names(attempts) if name.isdigit()), default=0)
            target = atomic.make_directory(attempts / str(number))
            for name in names:
                untrusted.mend_folder(folder / name)  # a folder without rights to it cannot get another parent
                (folder / name).rename(target / name)
        return folder


# ---- the journal -----------------------------------------------------------------------------------------------------


@dataclass
class RunStart:
    """Start of a run: the fields of its `begun` record, all that a resume needs besides the events."""

    run: str
    graph: str
    """Text of the graph."""
    source: str
    hash: str
    initial: dict[str, Any] = field(default_factory=dict)
    seed: str = ""
    max_steps: int | None = None
    tree: str = ""
    """Directory in which commands run."""
    base: str = ""
    """Directory that file names in the graph are relative to."""
    at: str = ""
    agent: str = ""
    """Agent named on the command line; empty for a program's own."""
    simulated: dict[str, Any] = field(default_factory=dict)
    """Settings of a simulation; empty for a real run."""
    state: str = ""
    """State it started with, as JSON, if it was forked from another run."""
    forked: str = ""
    """Run and node it was forked from."""
    repository: str = ""
    """Checkout that the worktree in `tree` belongs to; empty if commands run in a folder of the person's."""
    flow: str = ""
    """`walk` or `dag` if the caller chose; empty: as the graph says."""

    def to_data(self) -> dict[str, Any]:
        """Return the data of a `begun` record; `initial` is a text of its own, so that it may become a blob."""
        return {**fields_of(self), "initial": json.dumps(self.initial, ensure_ascii=False)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> RunStart:
        stored = {name: data[name] for name in field_names(cls) if name in data}
        return cls(**{**stored, "initial": json.loads(data["initial"])})


@dataclass
class RecordedRun:
    """A run as its journal records it: its start, its state at the last snapshot, and the events since."""

    start: RunStart
    snapshot: FlowState | None
    events: list[Event]
    active_s: float = 0.0
    """Seconds that it was at work, since a time limit last stopped it."""


def read_run(directory: RunDirectory) -> RecordedRun:
    """Read the journal of a run; raise NotFound without one, RecordCorrupt if it is damaged."""
    if not directory.exists():
        raise NotFound(f"no pipeline run in {directory.root}; `garrison pipeline run FILE` starts one")
    return recorded_run(read_all(directory.journal), directory.journal)


def recorded_run(entries: list[Entry], path: Path) -> RecordedRun:
    """Return the run that the entries of the journal at `path` record."""
    run: RecordedRun | None = None
    for entry in entries:
        if entry.kind == SNAPSHOT:
            run = RecordedRun(RunStart.from_data(json.loads(entry.data["begun"])),
                              FlowState.from_data(json.loads(entry.data["state"])), [])
        elif entry.kind == BEGUN:
            run = RecordedRun(RunStart.from_data(entry.data), None, [])
        elif run is None:
            raise RecordCorrupt(path, "it does not say how the run began")
        elif entry.kind == FLOW:
            run.events.append(event_from_data(unpack_event(entry.data)))
        elif entry.kind == GRAPH:
            run.start.graph, run.start.hash = entry.data["graph"], entry.data["hash"]
            run.snapshot, run.events = FlowState.from_data(json.loads(entry.data["state"])), []
    if run is None:
        raise RecordCorrupt(path, "it does not say how the run began")
    run.active_s = _active_seconds(entries)
    return run


def _active_seconds(entries: list[Entry]) -> float:
    """Add up the time between the first and the last record of each writer; a time limit resets the sum."""
    total, epoch, first, last = 0.0, -1, 0.0, 0.0
    for entry in entries:
        at = _timestamp(entry.at)
        if entry.epoch != epoch:
            total, epoch, first = total + last - first, entry.epoch, at
        last = at
        if entry.kind == FLOW and entry.data["event"].get("event") == "timed_out":
            total, first = 0.0, last
    return total + last - first


def _timestamp(at: str) -> float:
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return 0.0


class RunJournal:
    """Ownership of a run directory: its lock and its journal, until `close`."""

    def __init__(self, directory: RunDirectory, now: Callable[[], str]) -> None:
        self.directory, self._now = directory, now
        atomic.make_directory(directory.root)
        lock = LifeLock.try_acquire(directory.lock)
        if lock is None:
            raise Refused(f"another process runs {directory.root} now; wait for it, or end it first")
        self._lock = lock
        try:
            self._writer = Writer(directory.journal, f"pipeline#{os.getpid()}")
        except BaseException:
            lock.release()
            raise
        self.entries = self._writer.entries
        self._since_snapshot = len(self.entries)
        self.is_synced = True
        """False for a simulation: it does no work that a power cut could make it repeat."""

    @property
    def seq(self) -> int:
        return self._writer.seq

    def append(self, kind: str, data: dict[str, Any]) -> None:
        """Append one record and sync it, unless the run is a simulation."""
        self._writer.append(kind, data, self._now(), sync=self.is_synced)
        self._since_snapshot += 1

    def append_event(self, event: Event) -> None:
        """Append one flow event and sync it."""
        self.append(FLOW, pack_event(event_to_data(event)))

    def compact(self, start: RunStart, state: Callable[[], Mapping[str, Any]]) -> None:
        """Replace a long journal by one snapshot of the state."""
        if self._since_snapshot < SNAPSHOT_EVERY:
            return
        here("pipeline:compact.before")
        self._writer.compact({"begun": _to_json(start.to_data()), "state": _to_json(state())}, self._now())
        self._since_snapshot = 0
        here("pipeline:compact.after")

    def close(self) -> None:
        """Release the directory; a second call has no effect."""
        self._writer.close()
        self._lock.release()


_BLOB_KEY = "$blob"


def pack_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event as data of a `flow` record.

    Large values of its outcome's context become texts beside it, which the journal stores as blobs.
    """
    outcome: dict[str, Any] = event.get("outcome") or {}
    updates = outcome.get("context_updates")
    if not updates:
        return {"event": dict(event)}
    small: dict[str, Any] = {}
    large: dict[str, str] = {}
    for key, value in updates.items():
        body = _large_value(value)
        if body is None:
            small[key] = value
        else:
            small[key] = {_BLOB_KEY: f"value{len(large)}"}
            large[f"value{len(large)}"] = body
    return {"event": {**event, "outcome": {**outcome, "context_updates": small}}, **large} if large \
        else {"event": dict(event)}


def _large_value(value: Any) -> str | None:
    """Return the JSON text of a value that is to be stored apart; None for a small one."""
    if value is None or isinstance(value, (bool, int, float)):
        return None
    if isinstance(value, str) and len(value) <= BLOB_BYTES // 4:
        return None
    if isinstance(value, dict) and _BLOB_KEY in value:  # a user's value must not look like a reference to a blob
        return _to_json(value)
    body = _to_json(value)
    return body if len(body) > BLOB_BYTES // 4 else None


def unpack_event(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event that `pack_event` packed."""
    event: dict[str, Any] = data["event"]
    if len(data) == 1:
        return event
    updates = {key: json.loads(data[value[_BLOB_KEY]]) if isinstance(value, dict) and _BLOB_KEY in value else value
               for key, value in event["outcome"]["context_updates"].items()}
    return {**event, "outcome": {**event["outcome"], "context_updates": updates}}


_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


# ---- derived files ---------------------------------------------------------------------------------------------------


def public_status(state: FlowState) -> str:
    return {"done": "success", "failed": "fail"}.get(state.status, state.status)


def checkpoint_of(program: Program, state: FlowState, run: str, how: str) -> dict[str, Any]:
    """Return where a run is, as JSON values; `how` says how to continue one that waits."""
    return {
        "schema": 1, "run": run, "graph_hash": program.digest, "status": public_status(state),
        "reason": state.reason or state.detail, "detail": state.detail, "how": how, "steps": state.steps,
        "current_node": state.completed[-1] if state.completed else "",
        "next_nodes": [*dict.fromkeys([place.node for place in state.in_flight.values()]
                                      + [move.node for move in state.queue])],
        "in_flight": [asdict(place) for place in state.in_flight.values()],
        "completed_nodes": list(state.completed),
        "node_outcomes": {node: outcome.status for node, outcome in state.outcomes.items()},
        "visits": dict(state.visits),
        "counters": {"max_steps": state.max_steps, "redirects": state.redirects, "restarts": state.restarts},
        "context": dict(state.context()),
    }


def write_status(folder: Path, node: str, state: FlowState) -> None:
    """Write status.json of a node: its latest outcome."""
    outcome = state.outcomes.get(node)
    if outcome is None:
        return
    atomic.make_directory(folder)
    body = {"node": node, "outcome": outcome.status, **outcome.to_data(), "visits": state.visits.get(node, 0)}
    text = json.dumps(body, ensure_ascii=False, indent=1)
    untrusted.write(folder, "status.json", text.encode(errors="backslashreplace"))


def write_checkpoint(directory: RunDirectory, checkpoint: Mapping[str, Any], *, durable: bool) -> None:
    """Replace checkpoint.json, with the time at which it was written."""
    stamped = {**checkpoint, "timestamp": SystemClock().utc()}
    body = json.dumps(stamped, ensure_ascii=False, indent=1 if durable else None)  # indenting is ten times slower
    atomic.write(directory.checkpoint, body.encode("utf-8", "backslashreplace"), durable=durable)


def read_checkpoint(directory: RunDirectory) -> dict[str, Any] | None:
    """Return checkpoint.json, which may lag behind the journal; None without one."""
    raw = atomic.read(directory.checkpoint)
    if raw is None:
        return None
    try:
        checkpoint: dict[str, Any] = json.loads(raw)
    except ValueError as error:
        raise RecordCorrupt(directory.checkpoint, f"it is no JSON ({error})") from None
    return checkpoint
