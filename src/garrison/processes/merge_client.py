"""An attempt's entry in the merge queue, as the node's runner sees it: enqueued once, then followed.

Also reads what a launch reports of a queue that it shares with other runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import RecordError
from garrison.merge.queue import MergeQueue
from garrison.processes.actions import MergeStatus
from garrison.records.identity import Identity

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import MergeQueue
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Task


SIGNAL_GRACE = 2.0
"""Seconds that a landing seen in the queue's journal waits for its signal."""
_AWAITED = frozenset({"validating", "impl_complete"})
"""Phases in which there may be an entry that counts."""


class MergeClient:
    """The entry of one attempt; what becomes of it is told to `recipient`, a full name."""

    def __init__(self, queue: MergeQueue, task: Task, branch: str, recipient: str) -> None:
        self.queue, self.task, self.branch, self.recipient = queue, task, branch, recipient
        self._landed_since: float | None = None

    @property
    def folder(self) -> Path:
        """Where something changes when the queue does."""
        return self.queue.path.parent

    def put(self) -> None:
        """Enqueue the branch; done twice it is the same entry."""
        self.queue.enqueue(self.task.run_id, self.task.node, self.task.attempt, self.branch, recipient=self.recipient)

    def look(self, phase: str) -> MergeStatus | None:
        """How it stands, for a runner in that phase; None while there is none."""
        if phase not in _AWAITED:
            return None
        own = (self.task.run_id, self.task.node, self.task.attempt)
        found = [entry for entry in self.queue.entries() if (entry.run, entry.node, entry.attempt) == own]
        if not found:
            return None
        return MergeStatus(found[-1].attempt, found[-1].status, found[-1].reason or "", found[-1].commit or "")

    def waited(self, merge: MergeStatus | None, now: float) -> bool:
        """Whether it landed so long ago that its signal is waited for no more; `now` in monotonic seconds."""
        if merge is None or merge.status != "landed":
            return False
        if self._landed_since is None:
            self._landed_since = now
        return now - self._landed_since > SIGNAL_GRACE


_SHOWN = 5
"""Entries named in a note; of more, how many they are."""


def foreign_entries_note(world: Runtime, launch: Launch) -> str:
    """One line about entries of runs that are not under way, which will land while this one is; '' for none."""
    queue = MergeQueue(world.home, Path(launch.repo), launch.base, clock=world.clock)
    living = running_runs(world)
    foreign = [entry for entry in queue.state.unfinished() if entry.run not in living | {launch.run_id}]
    return describe_foreign_entries(foreign)


def describe_foreign_entries(entries: list[MergeEntry]) -> str:
    """Which entries will land too, and how to withdraw one. Pure."""
    if not entries:
        return ""
    named = ", ".join(f"{entry.id} ({entry.branch})" for entry in entries[:_SHOWN])
    more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return (f"note: left in the merge queue by runs that are not under way, and will be judged and land too: {named}"
            f"{more}; `garrison merge-queue cancel ID` withdraws one")


def running_runs(world: Runtime) -> set[str]:
    """Runs of which any layer lives; one whose records cannot be read counts as such, for nobody knows."""
    found = set()
    for key in world.store.keys(Identity):
        try:
            identity = world.store.read(Identity, key)
            lives = identity is not None and world.observer.judge(identity).living
        except RecordError:
            lives = True
        if lives:
            found.add(key.run)
    return found
