"""Commands of people: hold, release, retry, pause, resume, other options for an entry, another configuration.

The rules of this room: every request is judged and recorded in one hold of `queue.lock`, so it is safe at any moment
beside a working processor, which meets it in the journal at its next step. What is landing is landed first; a request
that comes too late is refused with one line. What the queue itself found wrong never takes a person's word's place.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from garrison.errors import NotFound, Refused, UsageError
from garrison.merge import guard
from garrison.merge.config import QueueConfig
from garrison.merge.entry import FAILED, PRIORITIES, STRATEGIES, WITHDRAWABLE, MergeEntry
from garrison.merge.state import MANUAL, Pause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.merge.queue import MergeQueue
    from garrison.merge.state import QueueState

BEGUN = ("candidate", "testing", "landing_blocked")
"""Statuses in which the queue has built on an entry's wishes; other options mean that it is built again."""


@dataclass(frozen=True)
class EntryOptions:
    """How an entry is to be treated; None where nothing was said. `depends_on`: ids of entries, or names of nodes."""

    priority: int | None = None
    depends_on: tuple[str, ...] | None = None
    strategy: str | None = None

    def check(self) -> EntryOptions:
        """Itself; UsageError for what is no wish."""
        if self.strategy is not None:
            check_strategy(self.strategy)
        if self.priority is not None and self.priority not in PRIORITIES:
            raise UsageError(f"priority {self.priority} is out of bounds; give one from {PRIORITIES[0]} to "
                             f"{PRIORITIES[-1]}, higher goes first")
        return self


NO_OPTIONS = EntryOptions()


@dataclass(frozen=True)
class ResolvedOptions:
    """What the options came to."""

    priority: int = 0
    depends_on: tuple[str, ...] = ()
    strategy: str = STRATEGIES[0]

    def record(self) -> dict[str, Any]:
        """As it stands in the journal."""
        return {**asdict(self), "depends_on": list(self.depends_on)}


def check_strategy(strategy: str) -> str:
    """Itself; UsageError if there is none of that name."""
    if strategy not in STRATEGIES:
        raise UsageError(f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)}")
    return strategy


# -------------------------------------------------------------------------------------------------------- pure


def resolve_options(state: QueueState, options: EntryOptions, run: str, node: str,
                    default: str = STRATEGIES[0]) -> ResolvedOptions:
    """What a new entry of (run, node) gets: what was said, else what its forerunner had that did not land.

    Refused if it would wait for itself, NotFound for an unknown dependency.
    """
    line = state.entries_of(run, node)
    old = line[-1] if line and line[-1].status != "landed" else None
    before = ResolvedOptions(old.priority, old.depends_on, old.strategy) if old else ResolvedOptions(strategy=default)
    return settled(state, options, before, run, node)


def settled(state: QueueState, options: EntryOptions, before: ResolvedOptions, run: str, node: str) -> ResolvedOptions:
    """`before` with the options applied."""
    told = before.depends_on if options.depends_on is None else \
        tuple(dict.fromkeys(_named(state, name, run).id for name in options.depends_on))
    after = ResolvedOptions(before.priority if options.priority is None else options.priority, told,
                      options.strategy or before.strategy)
    _refuse_circle(state, after.depends_on, (run, node))
    return after


def _named(state: QueueState, name: str, run: str) -> MergeEntry:
    if name in state.entries:
        return state.entries[name]
    line = state.entries_of(run, name)
    if not line:
        raise NotFound(f"nothing to depend on: no merge entry and no node {name} in this queue; "
                       "`garrison merge-queue list` shows them")
    return line[-1]


def _refuse_circle(state: QueueState, depends_on: Sequence[str], key: tuple[str, str]) -> None:
    """Refused if what is depended on waits, at whatever remove, for the node itself."""
    waiting, seen = list(depends_on), set()
    while waiting:
        name = waiting.pop()
        entry = state.entries.get(name)
        if entry is None or name in seen or entry.status == "landed":
            continue
        seen.add(name)
        if entry.key == key:
            raise Refused(f"{key[1]} would wait for itself, by way of {name}; leave that dependency out")
        waiting += [name for other in state.unmet_dependencies(entry) for name in (other.id, *other.depends_on)]
        waiting += entry.depends_on


def explain_no_retry(entry: MergeEntry) -> str | None:
    """Why an entry is not tried again; None if it is."""
    if entry.status in FAILED:
        return None
    if entry.status == "superseded":
        return f"{entry.id} was replaced ({entry.reason}); retry or enqueue that one"
    if entry.status == "landed":
        return f"{entry.id} has landed; enqueue the branch's new commit"
    if entry.status == "held":
        return f"{entry.id} is held; `garrison merge-queue release {entry.id}` lets it go on"
    return f"{entry.id} is {entry.status} and still on its way; only what failed is tried again"


# -------------------------------------------------------------------------------------------------------- recorded


def hold(queue: MergeQueue, entry_id: str, why: str = "") -> MergeEntry:
    """Keep an entry from being judged until it is released; a test under way is ended. Again is no matter."""
    with queue.locked() as state:
        entry = state.entry(entry_id)
        if entry.status != "held":
            if entry.status not in WITHDRAWABLE:
                raise Refused(f"{entry_id} is {entry.status}; only an entry that still waits can be held")
            queue.append("state", {"entry": entry_id, "status": "held", "reason": why or "held by a person"}, sync=True)
        return queue.state.entry(entry_id)


def release(queue: MergeQueue, entry_id: str) -> MergeEntry:
    """Let a held entry wait for its turn again, where it stood. Again is no matter."""
    with queue.locked() as state:
        entry = state.entry(entry_id)
        if entry.final:
            raise Refused(f"{entry_id} is {entry.status}, nothing holds it; `garrison merge-queue retry {entry_id}` "
                          "tries again what failed")
        if entry.status == "held":
            queue.append("state", {"entry": entry_id, "status": "queued", "reason": ""}, sync=True)
        return queue.state.entry(entry_id)


def retry(queue: MergeQueue, entry_id: str) -> MergeEntry:
    """Enqueue the commit of a failed entry again, as the next attempt; nobody but the journal is told what becomes of
    it. Twice is as once. Refused for what did not fail, or whose commit is gone."""
    old = queue.state.entry(entry_id)
    why = explain_no_retry(old)
    if why:
        raise Refused(why)
    last = queue.state.entries_of(*old.key)[-1]
    if (last.attempt, last.oid, last.final) == (old.attempt + 1, old.oid, False):
        return last
    if last.id != old.id:
        raise Refused(f"{entry_id} has a later attempt, {last.id} ({last.status}); see that one")
    if queue.git.rev(old.oid) is None:
        raise Refused(f"commit {old.oid} of {entry_id} is gone from {queue.repo}; enqueue the branch again")
    return queue.enqueue(old.run, old.node, old.attempt + 1, old.branch, oid=old.oid)


def pause(queue: MergeQueue, why: str = "") -> Pause:
    """Judge and land nobody until a person resumes; a test under way runs on and its verdict is kept."""
    with queue.locked() as state:
        if state.pause is None or not state.pause.is_manual:
            queue.append("pause", {"reason": MANUAL, "detail": why or "by a person", "tip": ""}, sync=True)
        assert queue.state.pause is not None
        return queue.state.pause


def resume(queue: MergeQueue, why: str = "a person said so") -> Pause | None:
    """Lift whatever pause there is; it, None if there was none."""
    with queue.locked() as state:
        pause = state.pause
        if pause:
            queue.append("resume", {"reason": why}, sync=True)
        return pause


def amend(queue: MergeQueue, entry: MergeEntry, options: EntryOptions) -> MergeEntry:
    """Other options for an entry that is under way; the caller holds `queue.lock`. One begun with another strategy is
    built again; Refused for one that is landing."""
    state = queue.state
    before = ResolvedOptions(entry.priority, entry.depends_on, entry.strategy)
    after = settled(state, options, before, *entry.key)
    if after == before:
        return entry
    if entry.status == "landing":
        raise Refused(f"{entry.id} is landing; it is too late for other wishes")
    if entry.status in BEGUN and (after.strategy, after.depends_on) != (before.strategy, before.depends_on):
        queue.append("state", {"entry": entry.id, "status": "queued", "reason": "asked to be treated otherwise"})
    queue.append("amend", {"entry": entry.id, **after.record()}, sync=True)
    return queue.state.entry(entry.id)


def reconfigure(queue: MergeQueue, **changes: object) -> QueueConfig:
    """Record other settings of the queue, because a person says so: entries begun with another gate are judged anew.

    Refused while one is landing, for a millisecond.
    """
    with queue.locked() as state:
        old = state.config or QueueConfig()
        new = replace(old, **changes)  # type: ignore[arg-type]
        if new == state.config:
            _set_guard(queue, new.guard)
            return new
        if not old.same_gate(new):
            for entry in state.unfinished():
                if entry.status == "landing":
                    raise Refused(f"{entry.id} is landing; say it again")
                if entry.status in BEGUN:
                    queue.append("state", {"entry": entry.id, "status": "queued", "reason": "the gate was changed"})
        _set_guard(queue, new.guard)
        queue.record(new)
        return new


def _set_guard(queue: MergeQueue, up: bool) -> None:
    """Put the guard up or take it down, whatever was left half-way when it was said the last time."""
    if not up and not (queue.branch.brief and guard.is_requested(queue.git, queue.branch.ref)):
        return
    if not queue.branch.brief:
        raise Refused(f"{queue.target} is guarded where it lies: protect the branch on its server")
    (guard.install if up else guard.uninstall)(queue.git, queue.branch.ref)

