"""One run's journals, followed: each look reads on from where the last one ended. Reads only.

The rule of this room: a journal is opened when somebody asks about it, its reader kept; a damaged one raises
RecordCorrupt each time it is asked for. The graph is parsed once, and only when somebody waits for somebody.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.layers.run_state import RunState
from garrison.layers.runner_policy import RunnerFacts
from garrison.merge.entry import Entry
from garrison.merge.queue import Follower
from garrison.merge.state import QueueState
from garrison.pipeline.routing import blocked_by
from garrison.records.journal import Reader
from garrison.records.run import RunFiles
from garrison.supervise.restart import Death

if TYPE_CHECKING:
    from garrison.pipeline.launch import RunPlan


class RunnerLook:
    """A runner's journal as to one attempt."""

    def __init__(self, path: Path, attempt: int) -> None:
        self.attempt, self.facts, self.job, self.over = attempt, RunnerFacts(), "", False
        self._reader = Reader(path)

    def refresh(self) -> None:
        """Read on."""
        for entry in self._reader.read():
            self.facts.apply(entry, self.attempt)
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
        self._queues: dict[Path, Follower] = {}
        self._plan: RunPlan | None = None

    def state(self) -> RunState:
        """The run as its guardian's journal tells it."""
        for entry in self._journal.read():
            self._state.apply(entry)
        return self._state

    def runner(self, node: str, attempt: int, *, over: bool) -> RunnerLook:
        """What a node's runner remembers of an attempt; one that is `over` is read once."""
        look = self._runners.get(node)
        if look is None or look.attempt != attempt or not (over and look.over):
            if look is None or look.attempt != attempt:
                look = self._runners[node] = RunnerLook(self.files.layer_journal(f"runner-{node}"), attempt)
            look.refresh()
            look.over = over
        return look

    def guardian_deaths(self) -> dict[str, list[Death]]:
        """The guardian's deaths, as the launcher journaled them, by full name."""
        for entry in self._launcher.read():
            if entry.kind == "death":
                data = entry.data
                self._guardian.setdefault(data["full"], []).append(Death.of(data))
        return self._guardian

    def queue(self) -> QueueState | None:
        """The merge queue that holds entries of this run; None before the first."""
        for path in (self.home / "merge-queue").glob("*/*/journal.jsonl"):
            follower = self._queues.setdefault(path, Follower(path.parent))
            state = follower.refresh()
            if any(entry.run == self.run for entry in state.entries.values()):
                self._queues = {path: follower}
                return state
        return None

    def waiting(self, statuses: Mapping[str, str]) -> dict[str, tuple[list[str], tuple[str, ...]]]:
        """For each pending task: those it waits for, and the failed ones that keep it from ever beginning."""
        from garrison.layers.plans import plan_of

        if self._plan is None:
            self._plan = plan_of(self.files)
        plan, blocked = self._plan, blocked_by(self._plan, statuses)
        return {name: ([one for one in plan.predecessors.get(name, ()) if one in plan.tasks
                        and statuses.get(one) != "validated"], blocked.get(name, ()))
                for name, status in statuses.items() if status == "pending"}


def place(queue: QueueState | None, run: str, node: str, attempt: int) -> tuple[Entry | None, int]:
    """A node's merge entry of that attempt, and how many unfinished ones are before it. Pure."""
    found = [entry for entry in queue.of_key(run, node) if entry.attempt == attempt] if queue else []
    if queue is None or not found:
        return None, 0
    return found[-1], sum(1 for entry in queue.unfinished() if entry.seq < found[-1].seq)
