"""An attempt's entry in the merge queue, as the node's runner sees it: put in once, and followed.

The rule of this room: the queue's journal is the truth about what landed; a signal about it is only waited for, so that
it is taken and not left in the inbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.layers.guardian_policy import Merge

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.merge.queue import MergeQueue
    from garrison.records.run import Task

SIGNAL_GRACE = 2.0
"""Seconds that a landing seen in the queue's journal waits for its signal."""
_AWAITED = frozenset({"validating", "impl_complete"})
"""Phases in which there may be an entry that counts."""


class OwnEntry:
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

    def look(self, phase: str) -> Merge | None:
        """How it stands, for a runner in that phase; None while there is none."""
        if phase not in _AWAITED:
            return None
        own = (self.task.run_id, self.task.node, self.task.attempt)
        found = [entry for entry in self.queue.entries() if (entry.run, entry.node, entry.attempt) == own]
        if not found:
            return None
        return Merge(found[-1].attempt, found[-1].status, found[-1].reason or "", found[-1].commit or "")

    def waited(self, merge: Merge | None, now: float) -> bool:
        """Whether it landed so long ago that its signal is waited for no more; `now` in monotonic seconds."""
        if merge is None or merge.status != "landed":
            return False
        if self._landed_since is None:
            self._landed_since = now
        return now - self._landed_since > SIGNAL_GRACE
