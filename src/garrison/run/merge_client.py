"""Merge client: a node's entry in the merge queue, for its runner and guardian.

A merge entry, followed through the code:

1. `node/policy.py _impl_complete`: the node's work is accepted → ENQUEUE, then MERGE_READY to the guardian.
2. `MergeClient.enqueue` → `merge/queue.py`: the entry is journaled, its commit pinned by a ref. Enqueueing the same
   work again changes nothing.
3. `run/merge_processor.py` steps `merge/processor.py`: build the candidate (`merge/candidates.py`), run its gate
   (`merge/gate.py`), move the target branch (`merge/landing.py`); each step is journaled first.
4. `run/merge_processor.py _report` → MERGE_COMPLETE or MERGE_FAILED to the runner, which wakes for that, and once per
   rescan. If each waiting runner woke at every record, a run's cost would grow with the square of its nodes.
5. `node/policy.py _validating` reads `read_status`. Landed → hook `merged`, clean up; conflict or red gate → the node
   fails, and `plan.py change_after_failure` starts another attempt. The guardian also reads the queue's journal
   (`guardian_policy.py _follow_merges`), so that neither a lost signal nor a dead runner blocks the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.ends import Effect, RefusedBy, with_effect
from garrison.merge.entry import HAS_LANDED, EntryOptions
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.ends import LandingNote
    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import MergeQueue
    from garrison.records.run import Task

SIGNAL_GRACE = 2.0
"""Seconds to wait for the signal of a landing that the queue's journal shows."""

_FAILURE_KINDS = {"conflict": RefusedBy.CONFLICT, "rejected": RefusedBy.GATE}
"""Final status of an entry → the kind of its node's failure."""
_PHASES_WITH_ENTRY = frozenset({"validating", "impl_complete"})


class MergeStatus(Value):
    """Status of a node's entry in the merge journal; `attempt` is the one it was enqueued for."""

    attempt: int
    status: str
    reason: str = ""
    commit: str = ""
    target: str = ""
    moved: bool = False
    """With `conflict`: only the target had moved."""
    changes: tuple[LandingNote, ...] = ()
    """Findings for the user."""

    @property
    def failure_kind(self) -> str:
        return RefusedBy.MOVED if self.moved else _FAILURE_KINDS.get(self.status, "")

    @classmethod
    def of(cls, entry: MergeEntry) -> MergeStatus:
        return cls(entry.attempt, entry.status, entry.reason or "", entry.commit or "", entry.target, entry.moved,
                   entry.changes or ())


MAX_TITLE = 72
"""Characters of a commit's subject."""


def title_of(task: Task) -> str:
    """Return the words of a task in one line, without control characters; '' if it has only its name. Pure."""
    words = task.label if task.label not in ("", task.node) else task.prompt.partition("\n")[0]
    line = " ".join("".join(letter for letter in words if letter.isprintable() or letter.isspace()).split())
    if line == task.node:
        return ""
    return line if len(line) <= MAX_TITLE else f"{line[:MAX_TITLE - 1].rstrip()}…"


class MergeClient:
    """Merge entry of one attempt; the merge processor reports to `recipient`, a full name."""

    def __init__(self, queue: MergeQueue, task: Task, branch: str, recipient: str) -> None:
        self.queue, self.task, self.branch, self.recipient = queue, task, branch, recipient
        self._landed_since: float | None = None

    def enqueue(self, changes: tuple[LandingNote, ...]) -> None:
        """Enqueue the branch, with the findings `changes` for the user; it is held if the user has to approve it."""
        self.queue.enqueue(self.task.run_id, self.task.node, self.task.attempt, self.branch, recipient=self.recipient,
                           options=EntryOptions(approval=self.task.approve or bool(with_effect(changes, Effect.ASK)),
                                                changes=changes),
                           agent=self.task.agent, title=title_of(self.task))

    def read_status(self, phase: str) -> MergeStatus | None:
        """Return the entry's status for a runner in that phase of its hook; None while there is no entry."""
        if phase not in _PHASES_WITH_ENTRY:
            return None
        wanted = (self.task.run_id, self.task.node, self.task.attempt)
        entries = [entry for entry in self.queue.entries() if (entry.run, entry.node, entry.attempt) == wanted]
        return MergeStatus.of(entries[-1]) if entries else None

    def is_signal_overdue(self, merge: MergeStatus | None, now: float) -> bool:
        """Return whether the entry landed so long ago that its signal is no longer awaited; `now` is monotonic."""
        if merge is None or merge.status not in HAS_LANDED:
            return False
        if self._landed_since is None:
            self._landed_since = now
        return now - self._landed_since > SIGNAL_GRACE


class RunEntries:
    """Entries of a run in a queue, for its guardian."""

    def __init__(self, queue: MergeQueue, run: str) -> None:
        self.queue, self.run = queue, run
        self._known: dict[str, tuple[MergeEntry, MergeStatus]] = {}

    def read(self, on_change: Callable[[MergeEntry], object]) -> dict[str, MergeStatus]:
        """Return the status of each node's latest entry.

        Args:
            on_change: called, in the queue's order, only with entries that are new or have changed; otherwise an
                unchanged earlier entry would clear its node's note in each turn.
        """
        statuses: dict[str, MergeStatus] = {}
        for entry in self.queue.entries():
            if entry.run != self.run:
                continue
            known = self._known.get(entry.id)
            if known is None or known[0] != entry:
                on_change(entry)
                known = self._known[entry.id] = entry, MergeStatus.of(entry)
            statuses[entry.node] = known[1]
        return statuses
