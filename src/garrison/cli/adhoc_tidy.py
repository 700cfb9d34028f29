"""After an ad-hoc branch has landed: archive it and end its node's hook, as a runner of a run does for itself.

An ad-hoc run's runner ends once its branch is enqueued, so whoever processes the queue by hand does this. The rule of
this room: only what landed, of a run whose runner is over; twice is as once; a branch that moved on since, or that
somebody has checked out, stays.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from garrison.cli.resolve import observer_of
from garrison.errors import RecordError
from garrison.records import hook as hooks
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key, branch_of
from garrison.records.run import Launch, RunFiles
from garrison.records.store import Store
from garrison.system.clock import SystemClock

if TYPE_CHECKING:
    from garrison.merge.entry import Entry
    from garrison.merge.queue import MergeQueue


def tidy_landed(queue: MergeQueue) -> None:
    """Tidy what landed ad-hoc branches left in this queue's repository."""
    branches = queue.git.refs("refs/heads/garrison/")
    for entry in queue.entries():
        ref = f"refs/heads/{entry.branch}"
        if entry.status == "landed" and branches.get(ref) == entry.oid and _is_over(queue.home, entry):
            _end_hook(queue.home, entry)
            _archive(queue, entry, ref)


def _is_over(home: Path, entry: Entry) -> bool:
    """Whether the entry is of an ad-hoc run, and its runner has ended."""
    try:
        launch = run_records.load(Launch, RunFiles(home, entry.run).launch) if entry.run else None
        if launch is None or not launch.adhoc or entry.branch != branch_of(entry.run, entry.node):
            return False
        store = Store(home)
        runner = store.read(Identity, Key("runner", entry.node, entry.run))
        return runner is not None and not observer_of(store).judge(runner).living
    except RecordError:
        return False  # `status` tells of it; the landing is not undone by it


def _end_hook(home: Path, entry: Entry) -> None:
    store, now = Store(home), SystemClock().utc()

    def merged(old: Hook | None) -> Hook:
        assert old is not None
        return hooks.move(old, "merged", now) if old.phase == "validating" else old

    key = Key("runner", entry.node, entry.run)
    if store.read(Hook, key) is not None:
        store.update(Hook, key, merged)


def _archive(queue: MergeQueue, entry: Entry, ref: str) -> None:
    if any(tree.branch == entry.branch for tree in queue.git.worktrees()):
        return
    if queue.git.update_ref(f"refs/garrison/archive/{entry.run}/{entry.node}", entry.oid):
        queue.git.delete_refs([ref])
