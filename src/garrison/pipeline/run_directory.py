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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.errors import NotFound, RecordCorrupt, Refused
from garrison.records import atomic
from garrison.records.blobs import BLOB_BYTES
from garrison.records.journal import SNAPSHOT_EVERY, Entry, Writer, read_all
from garrison.records.life_lock import LifeLock, is_held
from garrison.system.failpoint import here

if TYPE_CHECKING:
    from garrison.pipeline.flow import FlowState
    from garrison.pipeline.flow.program import Program

BEGUN, FLOW, GRAPH, SNAPSHOT = "begun", "flow", "graph", "snapshot"
"""The kinds of records: how it began, one event of the machine, a changed graph, a compacted journal."""

_RESERVED = frozenset({"artifacts", "answers", "signals", "children", "blobs", "attempts"})
_PLAIN = re.compile(r"[\w -][\w. -]{0,99}\Z")
_BLOB = "$blob"


class RunFolder:
    """The paths of one run directory."""

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
        """Whether a run was begun here; the torn beginning of a first record is none."""
        try:
            with self.journal.open("rb") as file:
                return b"\n" in file.read(1 << 20)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def is_running(self) -> bool:
        """Whether some process runs it now."""
        return is_held(self.lock)

    def node(self, node: str) -> Path:
        """The folder of a node's latest attempt."""
        fit = bool(_PLAIN.match(node)) and node not in _RESERVED and "." not in node
        return self.root / (node if fit else f"node-{node.encode().hex()[:120]}" if not _PLAIN.match(node)
                            else f"{node.replace('.', '_')}_")

    def rotate(self, node: str) -> Path:
        """Make room for a new attempt: what the last one left goes below `attempts/`. Returns the node's folder."""
        folder = self.node(node)
        left = [name for name in atomic.list_names(folder) if name not in ("attempts", "intervention.md")]
        if left:
            older = folder / "attempts"
            number = 1 + max((int(name) for name in atomic.list_names(older) if name.isdigit()), default=0)
            target = atomic.make_directory(older / str(number))
            for name in left:
                (folder / name).rename(target / name)
        return folder


@dataclass
class Begun:
    """How a run began; what a resume needs besides the events."""

    run: str
    graph: str
    """The graph's text."""
    source: str
    hash: str
    initial: dict[str, Any] = field(default_factory=dict)
    seed: str = ""
    max_steps: int | None = None
    tree: str = ""
    base: str = ""
    at: str = ""
    agent: str = ""
    """The agent that the command line named; empty for a program's own."""
    simulated: dict[str, Any] = field(default_factory=dict)
    """What a simulation was told; empty for a real run."""
    state: str = ""
    """The state it began with, as JSON, where it was forked from another run."""
    forked: str = ""
    """The run and node it was forked from."""
    flow: str = ""
    """`walk` or `dag` if the caller said so; empty: as the graph says."""

    def to_data(self) -> dict[str, Any]:
        """As a journal record's data; large parts as text of their own, so that they may become blobs."""
        return {**self.__dict__, "initial": json.dumps(self.initial, ensure_ascii=False)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Begun:
        """The inverse of `to_data`; fields of a later version are passed over."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(**{**known, "initial": json.loads(data["initial"])})


@dataclass
class Recorded:
    """What a run's journal says: how it began, its state at the last snapshot (if any), and the events since."""

    begun: Begun
    snapshot: dict[str, Any] | None
    events: list[dict[str, Any]]
    active_s: float = 0.0
    """Seconds that it was at work, since a time limit stopped it if one did."""


def read_run(folder: RunFolder) -> Recorded:
    """What is recorded of a run; NotFound if there is none, RecordCorrupt if the journal is damaged."""
    if not folder.exists():
        raise NotFound(f"no pipeline run in {folder.root}; `garrison pipeline run FILE` begins one")
    return recorded(read_all(folder.journal), folder.journal)


def recorded(entries: list[Entry], path: Path) -> Recorded:
    """The journal's entries, sorted."""
    found: Recorded | None = None
    for entry in entries:
        if entry.kind == SNAPSHOT:
            found = Recorded(Begun.from_data(json.loads(entry.data["begun"])), json.loads(entry.data["state"]), [])
        elif entry.kind == BEGUN:
            found = Recorded(Begun.from_data(entry.data), None, [])
        elif found is None:
            raise RecordCorrupt(path, "it does not say how the run began")
        elif entry.kind == FLOW:
            found.events.append(unpacked(entry.data))
        elif entry.kind == GRAPH:
            found.begun.graph, found.begun.hash = entry.data["graph"], entry.data["hash"]
            found.snapshot, found.events = json.loads(entry.data["state"]), []
    if found is None:
        raise RecordCorrupt(path, "it does not say how the run began")
    found.active_s = _active(entries)
    return found


def _active(entries: list[Entry]) -> float:
    """The seconds between the first and the last record of each writer, summed up; anew after a time limit."""
    total, epoch, first, last = 0.0, -1, 0.0, 0.0
    for entry in entries:
        at = _epoch_s(entry.at)
        if entry.epoch != epoch:
            total, epoch, first = total + last - first, entry.epoch, at
        last = at
        if entry.kind == FLOW and entry.data["event"].get("event") == "timed_out":
            total, first = 0.0, last
    return total + last - first


def _epoch_s(at: str) -> float:
    from datetime import datetime

    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return 0.0


class RunJournal:
    """The owner's hold of a run directory: lock, journal and checkpoint. `close` lets go."""

    def __init__(self, folder: RunFolder, now: Callable[[], str]) -> None:
        self.folder, self._now = folder, now
        atomic.make_directory(folder.root)
        lock = LifeLock.try_acquire(folder.lock)
        if lock is None:
            raise Refused(f"another process runs {folder.root} now; wait for it, or end it first")
        self._lock = lock
        try:
            self._writer = Writer(folder.journal, f"pipeline#{os.getpid()}")
        except BaseException:
            lock.release()
            raise
        self.entries = self._writer.entries
        self._since = len(self.entries)

    @property
    def seq(self) -> int:
        """The number of the last record."""
        return self._writer.seq

    def append(self, kind: str, data: dict[str, Any]) -> None:
        """One record, on the disk when this returns."""
        self._writer.append(kind, data, self._now(), sync=True)
        self._since += 1

    def flow(self, event: Mapping[str, Any]) -> None:
        """One event of the machine."""
        self.append(FLOW, packed(event))

    def compact(self, begun: Begun, state: Callable[[], Mapping[str, Any]]) -> None:
        """Fold a long journal into one record of the state."""
        if self._since < SNAPSHOT_EVERY:
            return
        here("pipeline:compact.before")
        self._writer.compact({"begun": _text(begun.to_data()), "state": _text(state())}, self._now())
        self._since = 0
        here("pipeline:compact.after")

    def close(self) -> None:
        """Let go of the directory; again is no matter."""
        self._writer.close()
        self._lock.release()


# ---- a step's record: large values are top-level texts, which the journal keeps as blobs -----------------------------


def packed(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event as a record's data: values of its outcome's context that are large stand beside it as JSON texts."""
    outcome: dict[str, Any] = event.get("outcome") or {}
    updates = outcome.get("context_updates")
    if not updates:
        return {"event": dict(event)}
    small: dict[str, Any] = {}
    large: dict[str, str] = {}
    for key, value in updates.items():
        written = _large(value)
        if written is None:
            small[key] = value
        else:
            small[key] = {_BLOB: f"value{len(large)}"}
            large[f"value{len(large)}"] = written
    return {"event": {**event, "outcome": {**outcome, "context_updates": small}}, **large} if large \
        else {"event": dict(event)}


def _large(value: Any) -> str | None:
    """The JSON text of a value that should stand alone; None for a small one."""
    if value is None or isinstance(value, (bool, int, float)):
        return None
    if isinstance(value, str) and len(value) <= BLOB_BYTES // 4:
        return None
    if isinstance(value, dict) and _BLOB in value:  # nobody's own value may pass for one of ours
        return _text(value)
    written = _text(value)
    return written if len(written) > BLOB_BYTES // 4 else None


def unpacked(data: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `packed`."""
    event: dict[str, Any] = data["event"]
    if len(data) == 1:
        return event
    updates = {key: json.loads(data[value[_BLOB]]) if isinstance(value, dict) and _BLOB in value else value
               for key, value in event["outcome"]["context_updates"].items()}
    return {**event, "outcome": {**event["outcome"], "context_updates": updates}}


_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""A value as JSON text."""


def status_of(state: FlowState) -> str:
    """A run's status as people and programs are told it."""
    return {"done": "success", "failed": "fail"}.get(state.status, state.status)


def checkpoint_of(program: Program, state: FlowState, run: str, how: str) -> dict[str, Any]:
    """Where a run is, as JSON."""
    return {
        "schema": 1, "run": run, "graph_hash": program.digest, "status": status_of(state),
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
    """status.json of a node: its latest outcome."""
    outcome = state.outcomes.get(node)
    if outcome is None:
        return
    atomic.make_directory(folder)
    body = {"node": node, "outcome": outcome.status, **outcome.to_data(), "visits": state.visits.get(node, 0)}
    (folder / "status.json").write_text(json.dumps(body, ensure_ascii=False, indent=1), encoding="utf-8",
                                        errors="backslashreplace")


def write_checkpoint(folder: RunFolder, checkpoint: Mapping[str, Any], *, durable: bool) -> None:
    """Replace checkpoint.json."""
    body = json.dumps(checkpoint, ensure_ascii=False, indent=1 if durable else None)  # indented is ten times slower
    atomic.write(folder.checkpoint, body.encode("utf-8", "backslashreplace"), durable=durable)


def read_checkpoint(folder: RunFolder) -> dict[str, Any] | None:
    """What checkpoint.json says; None if there is none. It may be a moment older than the journal."""
    raw = atomic.read(folder.checkpoint)
    if raw is None:
        return None
    try:
        found: dict[str, Any] = json.loads(raw)
    except ValueError as error:
        raise RecordCorrupt(folder.checkpoint, f"it is no JSON ({error})") from None
    return found
