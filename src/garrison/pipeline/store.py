"""Store of a run in its directory: owner lock, journal, answers, artifacts, events, and the files derived from these.

    journal.jsonl         source of truth: `started`, then one `flow` record a step, synced before the run continues
    checkpoint.json       derived: progress of the run, for users and programs; never read to resume
    graph.dot             the graph it started with (or was changed to)
    manifest.json         summary for listings
    events.jsonl          the event stream, for users and programs
    owner.lock            locked while a process drives it
    NODE/                 files of the node's latest attempt; earlier ones in NODE/attempts/; status.json is derived
    NODE/question.json    a node's question, and when it was first asked
    answers/PLACE         an answer, as text; one that the question rejects is renamed to PLACE.refused
    signals/NAME          a signal, as JSON or text; the visit that consumes it renames it to NAME@PLACE
    artifacts/ID.json     outputs of 100 kB and more, too large for the context
    children/ blobs/      runs of inner pipelines, and large values of the journal

One owner at a time; the journal is written first, and the derived files may lag behind it. Values over 8 kB of a step
are stored alongside the journal as blobs. The command line writes answers and signals, and a run need not be running to
be answered. No decision depends on the events: after an interruption some may be missing or repeated.
"""

from __future__ import annotations

import json
import os
import re
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict
from urllib.parse import quote

import msgspec

from garrison.errors import NotFound, RecordCorrupt, Refused, UsageError
from garrison.pipeline.flow import Event as FlowEvent
from garrison.pipeline.flow import Finished, FlowState, event_from_data
from garrison.pipeline.questions import Question
from garrison.records import atomic
from garrison.records.journal import BLOB_BYTES, SNAPSHOT_EVERY, Entry, Writer, read_all
from garrison.records.life_lock import LifeLock, is_held
from garrison.records.record import from_data
from garrison.system import untrusted
from garrison.system.clock import SystemClock
from garrison.system.failpoint import here
from garrison.values import Value, asdict, fields_of, replace

if TYPE_CHECKING:
    from garrison.pipeline.flow.program import Program


BEGUN, FLOW, GRAPH, SNAPSHOT = "begun", "flow", "graph", "snapshot"
"""Kinds of records: how the run started, one flow event, a changed graph, a compacted journal."""

# Folders of the run itself. A node with such a name, or with a dot (`journal.jsonl`), gets a differently named folder.
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
                # An unterminated first line is incomplete: the process died before it had any consequence.
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
                untrusted.mend_folder(folder / name)  # a folder without permissions cannot be moved to another parent
                (folder / name).rename(target / name)
        return folder

    # ---- answers and signals

    def write_answer(self, question_id: str, answer: str) -> None:
        """Store the answer to a question."""
        path = self._answer(question_id)
        atomic.make_directory(path.parent)
        atomic.write(path, answer.encode())

    def waiting_answer(self, question_id: str) -> str:
        return (atomic.read(self._answer(question_id)) or b"").decode(errors="replace").strip()

    def read_answer(self, question: Question) -> str | None:
        """Return the answer to a question, None without one. A rejected one is moved aside, so that it is read once."""
        path = self._answer(question.id)
        raw = atomic.read(path)
        if raw is None:
            return None
        answer = raw.decode(errors="replace").strip()
        if question.rejection(answer):
            # Kept for inspection, but moved: read again, it would be rejected forever.
            path.replace(path.with_name(f"{path.name}.refused"))
        return answer

    def write_signal(self, name: str, data: str) -> None:
        """Store a signal; `data` is JSON, or empty for true."""
        path = self._signal(name)
        atomic.make_directory(path.parent)
        atomic.write(path, data.encode())

    def take_signal(self, name: str, place: str) -> object:
        """Return the value of a signal and keep it for `place`, which may ask again; None if it has not arrived."""
        # The rename claims the signal: two visits cannot both take it, and one that died right after it finds the
        # signal under its own name.
        taken = self._signal(name).with_name(f"{quote(name, safe='')}@{quote(place, safe='#')}")
        if not taken.exists():
            try:
                self._signal(name).replace(taken)
            except FileNotFoundError:
                return None
        body = (atomic.read(taken) or b"").decode(errors="replace").strip()
        try:
            return json.loads(body) if body else True
        except ValueError:
            return body

    def _answer(self, question_id: str) -> Path:
        return self.root / "answers" / quote(question_id, safe="#")

    def _signal(self, name: str) -> Path:
        return self.root / "signals" / quote(name, safe="")


# ---- the journal -----------------------------------------------------------------------------------------------------


@dataclass
class RunStart:
    """Start of a run: the fields of its `started` record, everything that a resume needs besides the events."""

    run: str
    graph: str
    """Text of the graph."""
    source: str
    hash: str
    initial: dict[str, object] = field(default_factory=dict)
    seed: str = ""
    max_steps: int | None = None
    tree: str = ""
    """Directory in which commands run."""
    base: str = ""
    """Base directory of file names in the graph."""
    at: str = ""
    agent: str = ""
    """Agent named on the command line; empty for a program's own."""
    simulated: dict[str, Any] = field(default_factory=dict)
    """Settings of a simulation; empty for a real run."""
    state: str = ""
    """Initial state, as JSON, if it was forked from another run."""
    forked: str = ""
    """Run and node from which it was forked."""
    repository: str = ""
    """Checkout of the worktree in `tree`; empty if commands run in a folder of the user."""
    flow: str = ""
    """`walk` or `dag` if the caller chose; empty: the graph decides."""

    def to_data(self) -> dict[str, object]:
        """Return the data of a `started` record; `initial` is its own text, so that it may become a blob."""
        return {**fields_of(self), "initial": json.dumps(self.initial, ensure_ascii=False)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> RunStart:
        return from_data(cls, {**data, "initial": json.loads(data["initial"])})


@dataclass
class RecordedRun:
    """A recorded run: its start, its state at the last snapshot, and the events since."""

    start: RunStart
    snapshot: FlowState | None
    events: list[FlowEvent]
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
            raise RecordCorrupt(path, "it does not say how the run started")
        elif entry.kind == FLOW:
            run.events.append(unpack_event(entry.data))
        elif entry.kind == GRAPH:
            run.start.graph, run.start.hash = entry.data["graph"], entry.data["hash"]
            run.snapshot, run.events = FlowState.from_data(json.loads(entry.data["state"])), []
    if run is None:
        raise RecordCorrupt(path, "it does not say how the run started")
    run.active_s = _active_seconds(entries)
    return run


def _active_seconds(entries: list[Entry]) -> float:
    """Add up the time between the first and the last record of each writer; a time limit resets the sum."""
    # A writer is a process (`epoch`): the time between two of them, when no process drove the run, does not count.
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

    def __init__(self, directory: RunDirectory, now: Callable[[], str], snapshot_every: int = SNAPSHOT_EVERY) -> None:
        self.directory, self._now, self._snapshot_every = directory, now, snapshot_every
        atomic.make_directory(directory.root)
        lock = LifeLock.try_acquire(directory.lock)
        if lock is None:
            raise Refused(f"another process is running {directory.root}; wait for it, or end it first")
        self._lock = lock
        try:
            # Under the lock: opening truncates a torn tail, which may be a record that another process is writing.
            self._writer = Writer(directory.journal, f"pipeline#{os.getpid()}")
        except BaseException:
            lock.release()
            raise
        self.entries = self._writer.entries
        self._since_snapshot = len(self.entries)
        self.start: RunStart | None = None
        """Start of the run, once known."""

    @property
    def seq(self) -> int:
        return self._writer.seq

    def append(self, kind: str, data: dict[str, object]) -> None:
        """Append one record and sync it, unless the run is a simulation, which has no work that could be repeated."""
        self._writer.append(kind, data, self._now(), sync=self.start is None or not self.start.simulated)
        self._since_snapshot += 1

    def append_event(self, event: FlowEvent) -> None:
        """Append one flow event and sync it."""
        self.append(FLOW, pack_event(event))

    def compact(self, state: Callable[[], Mapping[str, object]]) -> None:
        """Replace a long journal by one snapshot of the state."""
        if self._since_snapshot < self._snapshot_every or self.start is None:
            return
        # The new journal replaces the old one by a rename: a crash leaves either one, and both lead to the same state.
        here("pipeline:compact.before")
        self._writer.compact({"begun": _to_json(self.start.to_data()), "state": _to_json(state())}, self._now())
        self._since_snapshot = 0
        here("pipeline:compact.after")

    def close(self) -> None:
        """Release the directory; a second call has no effect."""
        self._writer.close()
        self._lock.release()


_BLOB_KEY = "$blob"


def pack_event(event: FlowEvent) -> dict[str, object]:
    """Return an event as data of a `flow` record.

    Large values of its outcome's context become texts alongside it, which the journal stores as blobs.
    """
    texts: dict[str, str] = {}
    outcome = event.outcome if isinstance(event, Finished) else None
    if outcome is not None and isinstance(event, Finished):
        updates: dict[str, object] = {}
        for key, value in outcome.context_updates.items():
            body = _large_value(value)
            updates[key] = value if body is None else {_BLOB_KEY: f"value{len(texts)}"}
            if body is not None:
                texts[f"value{len(texts)}"] = body
        event = replace(event, outcome=replace(outcome, context_updates=updates)) if texts else event
    return {"event": asdict(event), **texts}


def _large_value(value: object) -> str | None:
    """Return the JSON text of a value to be stored separately; None for a small one."""
    if value is None or isinstance(value, (bool, int, float)):
        return None
    if isinstance(value, str) and len(value) <= BLOB_BYTES // 4:
        return None
    if isinstance(value, dict) and _BLOB_KEY in value:  # a user's value must not look like a reference to a blob
        return _to_json(value)
    body = _to_json(value)
    return body if len(body) > BLOB_BYTES // 4 else None


def unpack_event(data: Mapping[str, Any]) -> FlowEvent:
    """Return the event that `pack_event` packed."""
    event = event_from_data(data["event"])
    if len(data) == 1 or not isinstance(event, Finished) or event.outcome is None:
        return event
    updates = {key: json.loads(data[value[_BLOB_KEY]]) if isinstance(value, dict) and _BLOB_KEY in value else value
               for key, value in event.outcome.context_updates.items()}
    return replace(event, outcome=replace(event.outcome, context_updates=updates))


_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


# ---- derived files ---------------------------------------------------------------------------------------------------


class Checkpoint(TypedDict):
    """Content of checkpoint.json."""

    schema: int
    run: str
    graph_hash: NotRequired[str]
    status: str
    reason: str
    detail: NotRequired[str]
    how: NotRequired[str]
    """How to continue a waiting run."""
    steps: int
    current_node: str
    next_nodes: list[str]
    in_flight: list[dict[str, Any]]
    """Places in flight with their folders."""
    completed_nodes: list[str]
    node_outcomes: dict[str, str]
    visits: dict[str, int]
    counters: NotRequired[dict[str, int]]
    context: NotRequired[dict[str, object]]
    seq: NotRequired[int]
    """Last record of the journal that it includes."""
    timestamp: NotRequired[str]


def checkpoint_of(program: Program, state: FlowState, run: str, how: str) -> Checkpoint:
    """Return the checkpoint of a run; `how`: how to continue a waiting one."""
    return {
        "schema": 1, "run": run, "graph_hash": program.digest, "status": state.shown_status,
        "reason": state.reason or state.detail, "detail": state.detail, "how": how, "steps": state.steps,
        "current_node": state.completed[-1] if state.completed else "",
        "next_nodes": state.next_nodes,
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
    body = {"node": node, "outcome": outcome.status, **asdict(outcome), "visits": state.visits.get(node, 0)}
    text = json.dumps(body, ensure_ascii=False, indent=1)
    untrusted.write(folder, "status.json", text.encode(errors="backslashreplace"))


def write_checkpoint(directory: RunDirectory, checkpoint: Checkpoint, *, durable: bool) -> None:
    """Replace checkpoint.json, with the time at which it was written."""
    stamped = {**checkpoint, "timestamp": SystemClock().utc()}
    body = json.dumps(stamped, ensure_ascii=False, indent=1 if durable else None)  # indenting is ten times slower
    atomic.write(directory.checkpoint, body.encode("utf-8", "backslashreplace"), durable=durable)


def read_checkpoint(directory: RunDirectory) -> Checkpoint | None:
    """Return checkpoint.json, which may lag behind the journal; None without one."""
    raw = atomic.read(directory.checkpoint)
    try:
        return None if raw is None else from_data(Checkpoint, json.loads(raw))
    except ValueError as error:
        raise RecordCorrupt(directory.checkpoint, f"it is not a checkpoint ({error})") from None


# ---- open questions ---------------------------------------------------------------------------------------------


def first_asked_at(folder: Path | None, question: Question) -> float:
    """Return when `question` was first asked, in seconds since 1970, and store it in the node's `folder`."""
    now = time.time()
    if folder is None:
        return now
    path = folder / "question.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        # Another id belongs to an earlier visit, with its own time limit.
        if stored["id"] == question.id:
            return float(stored["asked_at"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    atomic.write(path, json.dumps({**asdict(question), "asked_at": now}, indent=1).encode(), durable=False)
    return now


class OpenQuestion(NamedTuple):
    """An unsettled question of a run, that run, its question.json, and the answer that was given ('' if none: it waits
    for one)."""

    run: RunDirectory
    question: Question
    data: Mapping[str, object]
    answer: str = ""


def open_questions(run: RunDirectory) -> dict[str, OpenQuestion]:
    """Return the questions open in a run and its children, by node."""
    questions: dict[str, OpenQuestion] = {}
    for path in sorted((run.root / "children").glob("*/journal.jsonl")):
        questions.update(open_questions(RunDirectory(path.parent)))
    checkpoint = read_checkpoint(run)
    for place in checkpoint["in_flight"] if checkpoint is not None else ():
        raw = atomic.read(Path(place.get("folder") or run.node(place["node"])) / "question.json")
        body = json.loads(raw) if raw else None
        # The second form is `confirm_rerun`'s; any other file is from an earlier visit, and settled.
        if body and body["id"] in (place["id"], f"{place['id']}@{place['attempt']}") and body["options"]:
            question = from_data(Question, body)
            questions[place["node"]] = OpenQuestion(run, question, body,
                                                    run.waiting_answer(question.id))
    return questions


# ---- artifacts -------------------------------------------------------------------------------------------------------


THRESHOLD = 100 * 1024
"""Size in bytes above which an artifact is a file."""
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.#/-]{0,127}\Z")


class ArtifactInfo(Value):
    """Description of an artifact."""

    id: str
    name: str
    size_bytes: int
    stored_at: str
    is_file_backed: bool


class Artifacts:
    """Artifacts of one run. `directory` is `RUN_DIR/artifacts`, None for a run in memory."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory
        self._artifacts: dict[str, tuple[ArtifactInfo, str | None]] = {}
        index = atomic.read(directory / "index.json") if directory else None
        if index and directory:
            for entry in json.loads(index):
                path = self._path(entry["id"])
                if path and path.is_file():
                    self._artifacts[entry["id"]] = (ArtifactInfo(**entry), None)

    def store(self, artifact: str, name: str, data: object, at: str = "") -> ArtifactInfo:
        """Store `data` (any JSON value) under the id `artifact`; raise UsageError for other values and invalid ids."""
        if not _ID.match(artifact) or ".." in artifact:
            raise UsageError(f"{artifact!r:.60} is not an artifact id; use letters, digits and _ . # / -")
        try:
            body = json.dumps(data, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"artifact {artifact} cannot be stored as JSON: {error}") from None
        raw = body.encode("utf-8", "surrogatepass")
        path = self._path(artifact) if len(raw) > THRESHOLD else None
        info = ArtifactInfo(artifact, name, len(raw), at, path is not None)
        if path:
            atomic.make_directory(path.parent)
            atomic.write(path, raw)
        self._artifacts[artifact] = (info, None if path else body)
        if path:
            self._write_index()
        return info

    def retrieve(self, artifact: str) -> object:
        """Return a stored value; raise NotFound if there is none."""
        info, body = self._find(artifact)
        path = self._path(artifact)
        if info.is_file_backed and path:
            raw = atomic.read(path)
            if raw is None:
                raise NotFound(f"artifact {artifact} is gone: {path}")
            return json.loads(raw.decode("utf-8", "surrogatepass"))
        return json.loads(body or "null")

    def has(self, artifact: str) -> bool:
        return artifact in self._artifacts

    def list(self) -> list[ArtifactInfo]:
        """Return all artifacts in the order in which they were stored."""
        return [info for info, _ in self._artifacts.values()]

    def remove(self, artifact: str) -> None:
        """Remove an artifact and its file; raise NotFound if there is none."""
        info, _ = self._find(artifact)
        path = self._path(artifact)
        del self._artifacts[artifact]
        if info.is_file_backed and path:
            path.unlink(missing_ok=True)
            self._write_index()

    def clear(self) -> None:
        """Remove all artifacts."""
        for artifact in [*self._artifacts]:
            self.remove(artifact)

    def _find(self, artifact: str) -> tuple[ArtifactInfo, str | None]:
        if artifact not in self._artifacts:
            raise NotFound(f"no artifact {artifact!r:.60} in this run")
        return self._artifacts[artifact]

    def _path(self, artifact: str) -> Path | None:
        return None if self.directory is None else self.directory / f"{artifact.replace('/', '_')}.json"

    def _write_index(self) -> None:
        assert self.directory is not None
        entries = [asdict(info) for info in self.list() if info.is_file_backed]
        atomic.write(self.directory / "index.json", json.dumps(entries, indent=1).encode(), durable=False)


# ---- events ----------------------------------------------------------------------------------------------------------


KINDS = (
    "PipelineStarted", "PipelineResumed", "PipelineWaiting", "PipelineFinished", "NodeStarted", "NodeFinished",
    "NodeSkipped", "NodeCancelled", "RetryScheduled", "EdgeFollowed", "ParallelBranchStarted",
    "ParallelBranchFinished", "ParallelBranchCancelled", "HumanWaiting", "HumanAnswered", "HumanAnswerRefused",
    "SignalWaiting", "ManagerCycle", "ManagerSteered", "CheckpointSaved", "Note",
)
"""Kinds of events; a handler may emit others."""

_event_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


class Event(Value):
    """One event: its kind, run, time (ISO 8601), node if it has one, and other data."""

    kind: str
    run: str
    at: str
    node: str = ""
    data: Mapping[str, object] = msgspec.field(default_factory=dict)

    def to_data(self) -> dict[str, object]:
        head = {"event": self.kind, "at": self.at, "run": self.run}
        return {**head, **({"node": self.node} if self.node else {}), **self.data}


class EventSink:
    """Destination of a run's events; `is_enabled` is False if there is none."""

    def __init__(self, run: str, path: Path | None, listener: Callable[[Event], None] | None,
                 now: Callable[[], str]) -> None:
        self.run, self._listener, self._now = run, listener, now
        self._pending: list[str] = []
        self._descriptor = -1
        if path is not None:
            self._descriptor = atomic.open_or_create(path, os.O_APPEND)
        self.is_enabled = listener is not None or path is not None

    def emit(self, kind: str, node: str = "", **data: object) -> None:
        """Emit an event; the next `flush` writes it."""
        if not self.is_enabled:
            return
        event = Event(kind, self.run, self._now(), node, data)
        if self._descriptor >= 0:
            # Encoded at once: the handler may change its data before this is written.
            self._pending.append(_event_json(event.to_data()))
        if self._listener is not None:
            self._notify(event)

    def _notify(self, event: Event) -> None:
        """Call the listener; one that raises must not end the run: warn, and do not call it again."""
        assert self._listener is not None
        try:
            self._listener(event)
        except Exception as error:  # the listener is the user's code; the run continues without it
            self._listener = None
            warnings.warn(f"on_event failed at {event.kind} and is no longer called: {error!r}", RuntimeWarning,
                          stacklevel=2)

    def flush(self) -> None:
        """Write the pending events in one write, without syncing."""
        if self._pending:
            lines, self._pending = "\n".join(self._pending) + "\n", []
            os.write(self._descriptor, lines.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Write the rest and close the file; a second call has no effect."""
        if self._descriptor >= 0:
            self.flush()
            os.close(self._descriptor)
            self._descriptor = -1
