"""User commands for a queue: hold, release, retry, cancel, pause, resume, configure.

Every command is checked and recorded under `queue.lock`, so it is safe at any moment while a processor works; the
processor reads it from the journal at its next step. A landing in progress finishes first, and a command that comes too
late is refused. Commands are idempotent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.merge import guard, landing
from garrison.merge.config import QueueConfig
from garrison.merge.entry import FAILED, WITHDRAWABLE, MergeEntry
from garrison.merge.queue import STARTED
from garrison.merge.records import Configured, EntryCancelled, PauseReason, QueuePaused, QueueResumed, StatusChanged
from garrison.merge.state import Pause
from garrison.values import replace

if TYPE_CHECKING:
    from garrison.merge.queue import MergeQueue
    from garrison.records.comments import ReviewComment

_AWAITS_APPROVAL = ("waits for approval; `garrison review {node} --run {run}` shows it, `--approve` lets it be tested "
                    "and land")


def hold(queue: MergeQueue, entry_id: str, reason: str = "") -> MergeEntry:
    """Exclude an entry from judging until it is released; its gate run is ended."""
    with queue.locked() as state:
        entry = state.entry(entry_id)
        if entry.status != "held":
            if entry.status not in WITHDRAWABLE:
                raise Refused(f"{entry_id} is {entry.status}; only an entry that still waits can be held")
            queue.append(StatusChanged((entry_id,), "held", reason or "held by the user"), sync=True)
        return queue.entry(entry_id)


def release(queue: MergeQueue, entry_id: str) -> MergeEntry:
    """Release a held entry: it waits again at its old place. Refused if it needs approval."""
    with queue.locked() as state:
        entry = state.entry(entry_id)
        if entry.is_final:
            raise Refused(f"{entry_id} is {entry.status}, not held; `garrison merge-queue retry {entry_id}` "
                          "retries a failed one")
        if entry.awaits_approval:
            raise Refused(f"{entry_id} {_AWAITS_APPROVAL.format(node=entry.node, run=entry.run)}")
        if entry.status == "held":
            queue.append(StatusChanged((entry_id,), "queued"), sync=True)
        return queue.entry(entry_id)


def approve(queue: MergeQueue, entry_id: str, note: str = "", comments: tuple[ReviewComment, ...] = ()) -> MergeEntry:
    """Approve a waiting entry, which is then tested and landed like any other. Idempotent."""
    with queue.locked() as state:
        entry = state.entry(entry_id)
        if entry.status in FAILED or entry.status == "superseded":
            raise Refused(f"attempt {entry.attempt} of {entry.node} cannot land any more: it is {entry.landing} "
                          f"({entry.reason}); `garrison review {entry.node}` shows the latest")
        if entry.awaits_approval:
            queue.append(StatusChanged((entry_id,), "queued", f"approved by the user{f': {note}' if note else ''}",
                                       comments=comments), sync=True)
        elif not entry.approval:
            raise Refused(f"{entry_id} is {entry.status} and needs no approval")
        return queue.entry(entry_id)


def reject(queue: MergeQueue, entry_id: str, reason: str, comments: tuple[ReviewComment, ...] = ()) -> MergeEntry:
    """Reject an entry that waits for approval; the reason reaches the next attempt of its node."""
    with queue.locked() as state:
        entry = state.entry(entry_id)
        if entry.status != "rejected":
            if not entry.awaits_approval:
                raise Refused(f"attempt {entry.attempt} of {entry.node} is {entry.landing}; only an entry that waits "
                              "for approval can be rejected")
            queue.append(StatusChanged((entry_id,), "rejected", f"rejected in review: {reason}", review=reason,
                                       comments=comments), sync=True)
        return queue.entry(entry_id)


def cancel(queue: MergeQueue, entry_id: str, reason: str) -> MergeEntry:
    """Withdraw an entry; its branch stays. NotFound, or Refused if it is landing or final."""
    with queue.locked() as state:
        entry = state.entry(entry_id)
        if entry.status not in WITHDRAWABLE:
            raise Refused(f"{entry_id} is {entry.status}; only an entry that still waits can be withdrawn")
        queue.append(EntryCancelled(entry_id, reason), sync=True)
        return queue.entry(entry_id)


def retry(queue: MergeQueue, entry_id: str) -> MergeEntry:
    """Enqueue the commit of a failed entry again, as the next attempt; no runner is signalled.

    Refused for an entry that did not fail, or whose commit is gone.
    """
    queue.notice_undone()
    old = queue.entry(entry_id)
    why = explain_no_retry(old)
    if why:
        raise Refused(why)
    last = queue.state.entries_of(*old.key)[-1]
    if (last.attempt, last.oid, last.is_final) == (old.attempt + 1, old.oid, False):
        return last
    if last.id != old.id:
        raise Refused(f"{entry_id} has a later attempt, {last.id} ({last.status}); see that one")
    if queue.git.rev(old.oid) is None:
        raise Refused(f"commit {old.oid} of {entry_id} is gone from {queue.repo}; enqueue the branch again")
    return queue.enqueue(old.run, old.node, old.attempt + 1, old.branch, oid=old.oid, agent=old.agent)


def explain_no_retry(entry: MergeEntry) -> str | None:
    """Return why an entry is not retried, None if it is."""
    if entry.status in FAILED:
        return None
    if entry.status == "superseded":
        return f"{entry.id} was replaced ({entry.reason}); retry or enqueue that one"
    if entry.status == "landed":
        return f"{entry.id} has landed; enqueue the branch's new commit"
    if entry.awaits_approval:
        return f"{entry.id} {_AWAITS_APPROVAL.format(node=entry.node, run=entry.run)}"
    if entry.status == "held":
        return f"{entry.id} is held; `garrison merge-queue release {entry.id}` releases it"
    return f"{entry.id} is {entry.status}, not failed; only a failed entry can be retried"


def pause(queue: MergeQueue, reason: str = "") -> Pause:
    """Stop judging and landing until the user resumes; a running gate continues and its verdict is kept."""
    with queue.locked() as state:
        if state.pause is None or not state.pause.is_manual:
            queue.append(QueuePaused((), PauseReason.ASKED.value, reason or "by the user", ""), sync=True)
        assert queue.state.pause is not None
        return queue.state.pause


def resume(queue: MergeQueue) -> Pause | None:
    """Resume the queue, and return the pause that ended; None if there was none."""
    with queue.locked() as state:
        pause = state.pause
        if pause:
            queue.append(QueueResumed("resumed by the user"), sync=True)
        return pause


def reconfigure(queue: MergeQueue, **changes: object) -> QueueConfig:
    """Record new settings; entries under test by another gate are judged again.

    Refused during the milliseconds in which an entry is landing.
    """
    with queue.locked() as state:
        old = state.config or QueueConfig()
        new = replace(old, **changes)
        if new == state.config:
            _set_guard(queue, new.guard)
            return new
        if not old.has_same_gate(new):
            for entry in state.unfinished():
                if entry.status == "landing":
                    raise Refused(f"{entry.id} is landing; try again")
                if entry.status in STARTED:
                    queue.append(StatusChanged((entry.id,), "queued", "the gate was changed"))
        _set_guard(queue, new.guard)
        if old.hooks and new.hooks and old.guard != new.guard:  # the guard calls the user's hook
            new = replace(new, hooks=landing.digest(queue.git))
        queue.append(Configured(new), sync=True)
        return new


def _set_guard(queue: MergeQueue, wanted: bool) -> None:
    """Install or remove the guard, even if an interrupted command left it half done."""
    if not wanted and not (queue.branch.is_local and guard.is_requested(queue.git, queue.branch.ref)):
        return
    if not queue.branch.is_local:
        raise Refused(f"{queue.target} is a branch of a remote: protect it on its server")
    (guard.install if wanted else guard.uninstall)(queue.git, queue.branch.ref)
