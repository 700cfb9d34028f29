"""A node's entry in the merge queue, as runner and guardian see it. Enqueueing the same work again changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import MergeQueue
    from garrison.records.run import Task

SIGNAL_GRACE = 2.0
"""Seconds that a landing seen in the queue's journal waits for its signal."""

_PHASES_WITH_ENTRY = frozenset({"validating", "impl_complete"})


@dataclass(frozen=True)
class MergeStatus:
    """What the merge journal says about a node's entry; `attempt` is the one it was enqueued for."""

    attempt: int
    status: str
    reason: str = ""
    commit: str = ""

    @classmethod
    def of(cls, entry: MergeEntry) -> MergeStatus:
        """Return the status of an entry."""
        return cls(entry.attempt, entry.status, entry.reason or "", entry.commit or "")


class MergeClient:
    """The entry of one attempt; the merge processor reports to `recipient`, a full name."""

    def __init__(self, queue: MergeQueue, task: Task, branch: str, recipient: str) -> None:
        self.queue, self.task, self.branch, self.recipient = queue, task, branch, recipient
        self._landed_since: float | None = None

    @property
    def folder(self) -> Path:
        """The queue's folder: something in it changes when the queue does."""
        return self.queue.path.parent

    def enqueue(self) -> None:
        """Enqueue the branch."""
        self.queue.enqueue(self.task.run_id, self.task.node, self.task.attempt, self.branch, recipient=self.recipient)

    def read_status(self, phase: str) -> MergeStatus | None:
        """Return the entry's status, for a runner in that phase of its hook; None while there is no entry."""
        if phase not in _PHASES_WITH_ENTRY:
            return None
        mine = (self.task.run_id, self.task.node, self.task.attempt)
        entries = [entry for entry in self.queue.entries() if (entry.run, entry.node, entry.attempt) == mine]
        return MergeStatus.of(entries[-1]) if entries else None

    def is_signal_overdue(self, merge: MergeStatus | None, now: float) -> bool:
        """Return whether the entry landed so long ago (monotonic) that its signal is not waited for any more."""
        if merge is None or merge.status != "landed":
            return False
        if self._landed_since is None:
            self._landed_since = now
        return now - self._landed_since > SIGNAL_GRACE
