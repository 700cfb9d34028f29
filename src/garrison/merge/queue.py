"""Merge queue of one (repository, target): where its files are, who may write, enqueueing and reading.

State is in `<home>/merge-queue/<repository key>/<target>/`, both locks in `<git common dir>/garrison/`, so that two
homes exclude each other. Every append holds `queue.lock` for milliseconds and keeps nothing open. Every record of the
processor bears the epoch of its lock and is refused after a takeover.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from garrison.errors import Fenced, GarrisonError, RecordError, Refused
from garrison.merge import commands, failpoint, verdicts
from garrison.merge import state as snapshot
from garrison.merge.config import QueueConfig
from garrison.merge.entry import FAILED, STRATEGIES, WITHDRAWABLE, MergeEntry, entry_id
from garrison.merge.state import QueueState, enqueued
from garrison.merge.target import Target, check_target_name, open_target
from garrison.records import atomic, journal, names
from garrison.records.life_lock import is_held
from garrison.system.clock import Clock, SystemClock
from garrison.system.git import Git

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from garrison.merge.entry import MergeEntry
    from garrison.merge.state import QueueState


PINS = "refs/garrison/mq"
"""Refs that keep heads and candidates alive: `<PINS>/<entry>/head` and `…/candidate`."""


def safe_target(target: str) -> str:
    """A target branch as one directory name: `release/1.0` → `release%2F1.0`."""
    return quote(target, safe="")


def pin_ref(entry: str, what: str) -> str:
    """The ref that pins an entry's `head` or `candidate`."""
    return f"{PINS}/{entry}/{what}"


class QueueReader:
    """Reads one queue's journal as it grows; never writes. What guardians hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "journal.jsonl"
        self._reader = journal.Reader(self.path)
        self.state = QueueState()

    def poll(self) -> list[MergeEntry]:
        """Fold what was appended; the entries that changed since the last call, in their state of now."""
        before = dict(self.state.entries)
        self.refresh()
        return [entry for entry in self.state.entries.values() if before.get(entry.id) != entry]

    def refresh(self) -> QueueState:
        """Fold what was appended; the state."""
        for record in self._reader.read():
            self.state.apply(record)
        return self.state

    def concerns(self, node: str) -> bool:
        """Whether what was appended since the last fold may be about an entry of that node, or what all hang on."""
        told = json.dumps(node).encode()
        return self._reader.mentions(b'"node":' + told, b'"kind":"config"')  # a snapshot is a file of its own

    def find(self, run: str, node: str, attempt: int) -> MergeEntry | None:
        """The latest entry of that attempt, as of the last poll."""
        found = [entry for entry in self.state.entries_of(run, node) if entry.attempt == attempt]
        return found[-1] if found else None


class MergeQueue:
    """A queue, for whoever enqueues, configures, lists or processes."""

    def __init__(self, home: Path, repo: Path, target: str = "main", *, clock: Clock | None = None,
                 token: str = "hand", git: Git | None = None) -> None:
        self.home, self.repo, self.target, self.token = home, repo, target, token
        self.git = git or Git(repo)
        self.clock: Clock = clock or SystemClock()
        check_target_name(target)
        self.folder = home / "merge-queue" / self.git.key / safe_target(target)
        self.locks = self.git.common / "garrison" / safe_target(target)
        self._follower = QueueReader(self.folder)

    @cached_property
    def branch(self) -> Target:
        """The target itself."""
        return open_target(self.git, self.target)

    @property
    def path(self) -> Path:
        """The journal."""
        return self._follower.path

    @property
    def processor_lock(self) -> Path:
        """The lock that a processor holds for its life."""
        return self.locks / "processor.lock"

    def processor_alive(self) -> bool:
        """Whether some process holds the processor's lock now."""
        return is_held(self.processor_lock)

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> QueueState:
        """The fold of the journal as it is now."""
        return self._follower.refresh()

    def entries(self) -> list[MergeEntry]:
        """All entries, first in first."""
        return list(self.state.entries.values())

    def entry(self, entry: str) -> MergeEntry:
        """The entry of that id; NotFound."""
        return self.state.entry(entry)

    def follow(self) -> QueueReader:
        """A reader of its own for somebody who watches."""
        return QueueReader(self.folder)

    # --- writing ----------------------------------------------------------------------------------------------------

    def remove_idle_slots(self, trees: Path) -> None:
        """Remove the gate slots of this repository, unless some processor or entry of this queue may need one soon."""
        from garrison.merge import slots  # whoever only enqueues is quicker without it

        if not self.processor_alive() and not self.state.unfinished():
            slots.remove_idle_slots(self.git, trees / self.git.key)

    def _lock(self) -> AbstractContextManager[None]:
        atomic.make_directory(self.locks)
        return atomic.locked(self.locks / "queue.lock")

    @contextmanager
    def locked(self) -> Iterator[QueueState]:
        """Hold `queue.lock`; gives the state as it is under the lock."""
        with self._lock():
            yield self._follower.refresh()

    def append(self, kind: str, data: dict[str, Any], *, epoch: int | None = None, take: bool = False,
               sync: bool = False) -> journal.Entry:
        """Check and append one record; the caller holds `queue.lock`. Fenced if the journal is past `epoch`."""
        self.state.check(kind, data)
        record = self._write(kind, data, epoch=epoch, take=take, sync=sync)
        self._follower.refresh()
        return record

    def _write(self, kind: str, data: dict[str, Any], *, epoch: int | None = None, take: bool = False,
               sync: bool = False) -> journal.Entry:
        return journal.append_shared(self.path, self.token, kind, data, self.clock.utc(), epoch=epoch, take=take,
                                     sync=sync)

    def compact(self) -> None:
        """Replace the journal by a snapshot; what it was stays beside it. The caller holds `queue.lock`."""
        state = self.state
        journal.archive(self.path, state.seq)
        failpoint.here("archived")
        journal.replace_shared(self.path, journal.Entry(state.seq, state.epoch, self.token, self.clock.utc(),
                                                        "snapshot", snapshot.saved(state)))
        failpoint.here("compacted")
        self._follower.refresh()

    def enqueue(self, run: str, node: str, attempt: int, branch: str, *, recipient: str = "",
                oid: str | None = None, options: commands.EntryOptions = commands.NO_OPTIONS) -> MergeEntry:
        """Enqueue the commit at `branch`'s tip (or `oid`); durable when this returns, and no test is waited for.

        The same run, node, attempt and commit is the same entry, of which only the options may differ. Another commit
        or attempt of the node supersedes one that has not begun to land, and stays held if that was held.
        Refused if the branch is missing.
        """
        names.check_node(node)
        options.check()
        tip = self.git.rev(oid) if oid else self.git.branch_tip(branch)
        if tip is None:
            raise Refused(f"{self.repo} has no branch {branch}; commit the work on it first")
        name = entry_id(str(self.folder), run, node, attempt, tip)
        known = self._relevant(run, node, options).entries.get(name)
        if known is None and not self.git.make_ref(pin_ref(name, "head"), tip):
            raise Refused(f"could not pin {tip} under {pin_ref(name, 'head')} in {self.repo}; try again")
        failpoint.here("enq_pinned")
        if known is None or options != commands.NO_OPTIONS:
            data = {"entry": name, "run": run, "node": node, "attempt": attempt, "branch": branch, "oid": tip,
                    "target": self.target, "repo": str(self.repo), "recipient": recipient}
            known = self._enqueue(data, options)
        # After the lock: many at once wait for the disk together, not one after the other. Who was first with the same
        # may have died, or not have come so far.
        journal.sync(self.path)
        failpoint.here("enq")
        return known

    def _relevant(self, run: str, node: str, options: commands.EntryOptions) -> QueueState:
        """The state as it is now in all that a node's next entry hangs on.

        Many enqueue at once: each would fold what all the others wrote, one after the other under the lock. What says
        nothing of a node that was never here need not be folded for it.
        """
        follower = self._follower
        if options.depends_on or follower.state.entries_of(run, node) or follower.concerns(node):
            follower.refresh()
        return follower.state

    def _enqueue(self, data: dict[str, Any], options: commands.EntryOptions) -> MergeEntry:
        """Record it, if it is not there; not on the disk yet when this returns."""
        key = (data["run"], data["node"])
        with self._lock():
            state = self._relevant(*key, options)
            known = state.entries.get(data["entry"])
            if known:
                return known if known.final else commands.amend(self, known, options)
            waiting = [entry for entry in state.entries_of(*key) if not entry.final and entry.status != "landing"]
            default = state.config.strategy if state.config else STRATEGIES[0]
            treatment = commands.resolve_options(state, options, *key, default)
            status = "held" if any(entry.status == "held" for entry in waiting) else "queued"
            record = self._write("enq", {**data, **treatment.record(), "status": status,
                                         "supersedes": [entry.id for entry in waiting]})
        failpoint.here("enq_written")
        return enqueued(record)

    def enqueue_by_hand(self, node: str, branch: str, *, run: str = "",
                        options: commands.EntryOptions = commands.NO_OPTIONS) -> MergeEntry:
        """As `enqueue`, in the attempt after the last failed one of the node, so that a failed branch may try again."""
        tries = self.state.entries_of(run, node)
        attempt = 1
        if tries:
            attempt = tries[-1].attempt + (tries[-1].status in FAILED)
        return self.enqueue(run, node, attempt, branch, options=options)

    def cancel(self, entry: str, reason: str) -> MergeEntry:
        """Withdraw an entry; its branch stays. NotFound, or Refused if it is landing or over."""
        with self.locked() as state:
            found = state.entry(entry)
            if found.status not in WITHDRAWABLE:
                raise Refused(f"{entry} is {found.status}; only an entry that still waits can be withdrawn")
            self.append("cancel", {"entry": entry, "reason": reason}, sync=True)
            return self.state.entry(entry)

    def configure(self, config: QueueConfig) -> None:
        """Record what the queue runs. Refused, showing both, if it has another gate and is in use."""
        with self.locked() as state:
            config = state.config.brought(config) if state.config else config
            if state.config == config:
                return
            why = verdicts.explain_gate_mismatch(state.config, config, unfinished=len(state.unfinished()),
                                 processor=self.processor_alive())
            if why:
                raise Refused(why)
            self.record(config)

    def record(self, config: QueueConfig) -> None:
        """Record what the queue runs; the caller holds `queue.lock` and has judged it."""
        self.append("config", config.record(), sync=True)

    def resume(self, why: str) -> None:
        """Let a paused queue judge again, unless a person paused it: then only a person's `resume` lifts that."""
        with self.locked() as state:
            if state.pause and not state.pause.is_manual:
                self.append("resume", {"reason": why}, sync=True)

    def record_green(self, tree: str, key: str) -> None:
        """Record that a tree passed outside the queue (pre-flight), so that the identical tree is not tested again.

        `key`: see `decide.judge_key`.
        """
        with self.locked() as state:
            if (tree, key) not in state.green:
                self.append("verdict", {"entry": "", "of": "preflight", "tree": tree, "command": key,
                                        "result": "green", "reason": "", "log": ""}, sync=True)


def list_queues(home: Path, say: Callable[[str], None] | None = None) -> list[QueueReader]:
    """A reader for every queue of a home, by repository and target; state already read.

    With `say`, a queue whose journal is damaged is told there and passed over.
    """
    found = []
    for path in sorted((home / "merge-queue").glob("*/*/journal.jsonl")):
        follower = QueueReader(path.parent)
        try:
            follower.refresh()
        except RecordError as error:
            if say is None:
                raise
            say(str(error))
            continue
        found.append(follower)
    return found


def target_of_folder(folder: Path) -> str:
    """The target branch of a queue's folder."""
    return unquote(folder.name)


class QueueWriter:
    """Reads and writes one queue for the processor that holds its lock; `epoch` is 0 until it does."""

    def __init__(self, queue: MergeQueue) -> None:
        self.queue, self.git, self.clock, self.branch = queue, queue.git, queue.clock, queue.branch
        self.epoch = 0

    @property
    def target(self) -> str:
        """The branch that entries land on."""
        return self.queue.target

    @property
    def ref(self) -> str:
        """The target as a full ref."""
        return self.branch.ref

    def tip(self) -> str | None:
        """The target's commit now; None if there is no such branch."""
        return self.branch.tip()

    def state(self) -> QueueState:
        """The queue as its journal tells it now; Fenced if another processor has taken over."""
        state = self.queue.state
        if state.epoch != self.epoch:
            raise Fenced(f"another processor took the queue of {self.queue.target} over; stopping without writing")
        return state

    def append(self, kind: str, data: dict[str, Any], *, sync: bool = False) -> None:
        """Append one record; Fenced as `state`."""
        with self.queue.locked():
            self.queue.append(kind, data, epoch=self.epoch, sync=sync)

    def compact(self) -> None:
        """Replace the journal by a snapshot of what it says; Fenced as `state`."""
        with self.queue.locked():
            self.state()
            self.queue.compact()

    def move(self, entries: Sequence[str], status: str, reason: str, *, sync: bool = False, **data: Any) -> None:
        """Append one `state` record that moves all these entries."""
        self.append("state", {"entry": entries[0], "entries": list(entries), "status": status, "reason": reason,
                              **data}, sync=sync)

    def drop_pins(self, entries: list[MergeEntry]) -> None:
        """Delete the pins of final entries; the head of one that did not land stays."""
        refs = {pin_ref(entry.id, "candidate") for entry in entries if entry.final}
        refs |= {pin_ref(entry.id, "head") for entry in entries if entry.status == "landed"}
        with suppress(GarrisonError):  # only room in the repository is at stake; `recover` tries again
            self.git.drop_refs(sorted(refs))


RETRY_SECONDS = 1.0
"""How often what is blocked is looked at again."""


@dataclass(frozen=True)
class Progress:
    """Something was done; step again at once."""

    what: str
    entry: str = ""


@dataclass(frozen=True)
class Wait:
    """Nothing to do now. `kind`: empty, gate, paused, no_gate, no_room, blocked, no_target, ref_locked.

    Step again when `fd` (a pidfd, -1: none) is readable, when the journal grew, or after `seconds`.
    """

    kind: str
    reason: str = ""
    fd: int = -1
    seconds: float = RETRY_SECONDS
