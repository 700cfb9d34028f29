"""Read one run's journals incrementally: each read continues where the previous one ended.

Reads only. Files are read again only when they were replaced or have changed; what cannot be read is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from garrison.errors import GarrisonError
from garrison.merge.entry import MergeEntry
from garrison.merge.queue import QueueReader
from garrison.merge.state import QueueState
from garrison.pipeline.plan import blocked_by
from garrison.processes.run_state import RunState
from garrison.processes.runner.policy import RunnerFacts
from garrison.records.journal import Entry as JournalEntry
from garrison.records.journal import Reader
from garrison.records.run import RunFiles
from garrison.supervise.restart import Death

if TYPE_CHECKING:
    from garrison.pipeline.plan import RunPlan


EVENTS = 50
"""Deaths, respawns and parkings of a run that are remembered."""
KINDS: Mapping[str, str] = {"death": "died", "spawn": "respawned", "park": "parked"}
"""Kind of a journal record → what happened."""


class RunnerLook:
    """A runner's journal as to one attempt."""

    def __init__(self, path: Path, attempt: int, hear: Callable[[JournalEntry], None]) -> None:
        self.hear = hear
        self.attempt, self.facts, self.job, self.over = attempt, RunnerFacts(), "", False
        self._reader = Reader(path)

    def refresh(self) -> None:
        """Read on."""
        for entry in self._reader.read():
            self.facts.apply(entry, self.attempt)
            self.hear(entry)
            mine = entry.data.get("attempt") == self.attempt
            if entry.kind == "job" and mine:
                self.job = entry.data["name"]
            elif entry.kind == "open" or (entry.kind == "fact" and entry.data.get("name") == self.job):
                self.job = ""


class RunLook:
    """What one run's journals say now."""

    def __init__(self, home: Path, run: str) -> None:
        self.home, self.run, self.files = home, run, RunFiles(home, run)
        self._journal, self._state = Reader(self.files.journal), RunState()
        self._runners: dict[str, RunnerLook] = {}
        self._launcher = Reader(self.files.layer_journal("launch"))
        self._guardian: dict[str, list[Death]] = {}
        self._queues: dict[Path, QueueReader] = {}
        self._plan: RunPlan | None = None
        self._events: dict[tuple[str, str, int], dict[str, Any]] = {}

    def state(self) -> RunState:
        """The run as its guardian's journal tells it."""
        for entry in self._journal.read():
            self._state.apply(entry)
            self._hear(entry)
        return self._state

    def runner(self, node: str, attempt: int, *, over: bool) -> RunnerLook:
        """What a node's runner remembers of an attempt; one that is `over` is read once."""
        look = self._runners.get(node)
        if look is None or look.attempt != attempt or not (over and look.over):
            if look is None or look.attempt != attempt:
                look = self._runners[node] = RunnerLook(
                    self.files.layer_journal(f"runner-{node}"), attempt, self._hear)
            look.refresh()
            look.over = over
        return look

    def guardian_deaths(self) -> dict[str, list[Death]]:
        """The guardian's deaths, as the launcher journaled them, by full name."""
        for entry in self._launcher.read():
            self._hear(entry)
            if entry.kind == "death":
                data = entry.data
                self._guardian.setdefault(data["full"], []).append(Death.of(data))
        return self._guardian

    def events(self) -> list[dict[str, Any]]:
        """The latest deaths, respawns and parkings that the journals read so far tell of, youngest first: at, kind,
        agent (full name), life, why."""
        latest = sorted(self._events.items(), key=lambda item: str(item[1]["at"]), reverse=True)[:EVENTS]
        self._events = dict(latest)
        return list(self._events.values())

    def _hear(self, entry: JournalEntry) -> None:
        told = event_of(entry)
        if told is not None:
            self._events[told["kind"], told["agent"], told["life"]] = told

    def queue(self) -> QueueState | None:
        """The merge queue that holds entries of this run; None before the first."""
        for path in (self.home / "merge-queue").glob("*/*/journal.jsonl"):
            follower = self._queues.setdefault(path, QueueReader(path.parent))
            state = follower.refresh()
            if any(entry.run == self.run for entry in state.entries.values()):
                self._queues = {path: follower}
                return state
        return None

    @property
    def plan(self) -> RunPlan:
        """The run's plan; what its launch allows does not matter here."""
        from garrison.processes.run_plan import read_plan

        if self._plan is None:
            self._plan = read_plan(self.files)
        return self._plan

    @property
    def walks(self) -> bool:
        """Whether its pipeline follows one edge after the other; False where the graph cannot be read."""
        try:
            return self.plan.flow == "walk"
        except (GarrisonError, OSError):
            return False

    def waiting(self, statuses: Mapping[str, str]) -> dict[str, tuple[list[str], tuple[str, ...]]]:
        """For each pending task: those it waits for, and the failed ones that keep it from ever beginning."""
        plan, blocked = self.plan, blocked_by(self.plan, statuses)
        if plan.flow != "dag":
            return {}
        return {name: ([one for one in plan.predecessors.get(name, ()) if one in plan.tasks
                        and statuses.get(one) != "validated"], blocked.get(name, ()))
                for name, status in statuses.items() if status == "pending"}


def event_of(entry: JournalEntry) -> dict[str, Any] | None:
    """What a journal record tells of a death, a respawn or a parking; None for all others, and first lives. Pure."""
    kind, data = KINDS.get(entry.kind, ""), entry.data
    life = int(data.get("incarnation", 0))
    if not kind or "full" not in data or (kind == "respawned" and life < 2):
        return None
    return {"at": entry.at, "kind": kind, "agent": data["full"], "life": life, "why": data.get("why", "")}


def place(queue: QueueState | None, run: str, node: str, attempt: int) -> tuple[MergeEntry | None, int]:
    """A node's merge entry of that attempt, and how many unfinished ones are before it. Pure."""
    found = [entry for entry in queue.entries_of(run, node) if entry.attempt == attempt] if queue else []
    if queue is None or not found:
        return None, 0
    return found[-1], sum(1 for entry in queue.unfinished() if entry.seq < found[-1].seq)


T = TypeVar("T")


class Reading:
    """`problems` holds what could not be read since it was last emptied, each once."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._known: dict[Path, tuple[tuple[int, int, int], Any]] = {}

    def file(self, path: Path, load: Callable[[], T]) -> T | None:
        """What `load` makes of `path`; None if there is no such file, or if it cannot be read, which is told."""
        return self.tried(lambda: self._file(path, load))

    def _file(self, path: Path, load: Callable[[], T]) -> T | None:
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            known = self._known[path] = (stamp, load())
        value: T = known[1]
        return value

    def tried(self, read: Callable[[], T]) -> T | None:
        """What `read` gives; None for what cannot be read, which is told."""
        try:
            return read()
        except GarrisonError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return None
