"""Merge queue of one repository and target: its files, enqueueing, reading, and fenced writing.

State is in `<home>/merge-queue/<repository key>/<target>/`, both locks in `<git common dir>/garrison/`, so that two
homes exclude each other. Every append locks `queue.lock` for milliseconds and keeps no file open. Every record of a
processor has the epoch of its lock, and is refused once another processor has taken over.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

from garrison.ends import Effect, with_effect
from garrison.errors import Fenced, GarrisonError, NotFound, RecordError, Refused
from garrison.merge import records
from garrison.merge.config import QueueConfig, explain_gate_mismatch
from garrison.merge.entry import (
    FAILED,
    HAS_LANDED,
    NO_OPTIONS,
    STRATEGIES,
    TRAILER,
    TRANSITIONS,
    EntryOptions,
    MergeEntry,
    ResolvedOptions,
    entry_id,
)
from garrison.merge.state import QueueState, new_entry, snapshot
from garrison.merge.target import Target, check_target_name, open_target
from garrison.records import atomic, journal, names
from garrison.records.life_lock import is_held
from garrison.system import failpoint
from garrison.system.clock import Clock, SystemClock, from_iso
from garrison.system.git import Git
from garrison.system.git.repository import explain_rights
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager


PINS = "refs/garrison/mq"
"""Refs that keep heads and candidates alive: `<PINS>/<entry>/head` and `…/candidate`."""
LOCK_TIMEOUT = 10.0
"""Seconds to wait for `queue.lock`, normally locked for milliseconds; a processor stopped for longer is killed."""
WANTED_SECONDS = 5.0
"""Seconds for which a request by another home's processor counts; it is repeated every second."""
STARTED = ("candidate", "testing", "landing_blocked")
"""Statuses of an entry with a candidate, which is rebuilt if its options change."""
_STEPS = (records.LeaseTaken, records.EntryEnqueued, records.StatusChanged, records.GateStarted, records.VerdictGiven,
          records.LandingStarted, records.CheckoutUpdated)
"""Records after which no entry has ended or waits for the user, unless they name such a status."""
_MORE_THAN_STEPS = tuple(word.encode() for word in (
    '"supersedes":["',
    *(f'"status":"{status}"' for status in TRANSITIONS if status not in ("queued", "candidate", "testing", "landing")),
    *(f'"kind":"{kind}"' for kind, record in records.RECORDS.items() if record not in _STEPS)))
FAILPOINTS = ("enq_pinned", "enq_written", "enq")
"""Points at which tests kill an enqueue (see `system.failpoint`)."""


def pin_ref(entry: str, what: str) -> str:
    return f"{PINS}/{entry}/{what}"


class QueueReader:
    """Replays a queue's journal as it grows; never writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "journal.jsonl"
        self._reader = journal.Reader(self.path)
        self.state = QueueState()
        self.pid = os.getpid()
        """Process that uses it."""

    def refresh(self) -> QueueState:
        """Replay new records, and return the state."""
        for stored in self._reader.read():
            self.state.apply(stored)
        return self.state

    def poll(self) -> list[MergeEntry]:
        """Replay new records, and return the entries that changed."""
        before = dict(self.state.entries)
        self.refresh()
        return [entry for entry in self.state.entries.values() if before.get(entry.id) != entry]

    def may_mention(self, node: str) -> bool:
        """Return whether new records may be about that node, or about the queue as a whole."""
        quoted = json.dumps(node).encode()
        return self._reader.mentions(b'"node":' + quoted, b'"kind":"config"')  # a snapshot has its own file

    def has_more_than_steps(self) -> bool:
        """Return whether new records may do more than bring entries a step forward: end one, hold it, pause …"""
        return self._reader.mentions(*_MORE_THAN_STEPS)


_readers: WeakValueDictionary[Path, QueueReader] = WeakValueDictionary()
"""Folder → the reader of a handle that is in use, here or in the process that this one is a copy of."""


def _open_reader(folder: Path) -> QueueReader:
    """Return a new reader of a queue, or in a copy of a process (`system.forks`) its parent's, which continues there:
    each runner would replay the records of all nodes before it."""
    known = _readers.get(folder)
    if known is not None and known.pid != os.getpid():
        known.pid = os.getpid()
        return known
    reader = QueueReader(folder)
    if known is None:
        _readers[folder] = reader
    return reader


def list_queues(home: Path, report: Callable[[str], None] | None = None,
                unrecorded: Mapping[Path, Sequence[journal.Entry]] | None = None) -> list[QueueReader]:
    """Return a reader, with its state, for every queue of a home, sorted by repository and target.

    A queue with a damaged journal is passed to `report`, if given, and left out. Records in `unrecorded`
    (`find_unrecorded`) are replayed as if the journal had them.
    """
    readers = []
    for path in sorted((home / "merge-queue").glob("*/*/journal.jsonl")):
        reader = QueueReader(path.parent)
        try:
            reader.refresh()
        except RecordError as error:
            if report is None:
                raise
            report(str(error))
            continue
        for entry in (unrecorded or {}).get(path, ()):
            reader.state.apply(entry)
        readers.append(reader)
    return readers


def find_undone(git: Git, state: QueueState, tip: str) -> list[records.LandingsUndone]:
    """Return records of landings that the target, now at `tip`, has lost or regained.

    Rewritten commits count as present: they have the entry's trailer.
    """
    landed = [entry for entry in state.entries.values() if entry.status in HAS_LANDED and entry.commit]
    if not landed:
        return []
    gone = git.find_unreached({oid for entry in landed for oid in (entry.commit, entry.oid)}, tip)
    lost = [entry for entry in landed if entry.commit in gone]
    named: Sequence[str] = ()
    if lost:
        since = git.merge_base(lost[-1].commit, tip) if git.has_object(lost[-1].commit) else None
        form = f"--format=%(trailers:key={TRAILER},valueonly)"
        named = git.run("log", form, f"{since}..{tip}" if since else tip, "--").out.split()
    # if the target has the branch's own commit, nothing was undone: it was merged another way
    undone = [entry.id for entry in lost if entry.status == "landed" and entry.oid in gone and entry.id not in named]
    again = [entry.id for entry in landed if entry.status == "undone" and (entry not in lost or entry.id in named)]
    why = f"somebody moved the target to {tip[:10]}, which does not contain it"
    return [records.LandingsUndone(tuple(names), tip, "" if back else why, again=back)
            for names, back in ((undone, False), (again, True)) if names]


def find_unrecorded(home: Path) -> dict[Path, list[journal.Entry]]:
    """Return undone landings that the processes of a home's queues have not recorded yet, for display only.

    Unreadable queues are skipped.
    """
    found: dict[Path, list[journal.Entry]] = {}
    for path in sorted((home / "merge-queue").glob("*/*/journal.jsonl")):
        with suppress(GarrisonError, OSError, LookupError, TypeError, ValueError):
            state = QueueReader(path.parent).refresh()
            last = next((entry for entry in state.entries.values() if entry.status in HAS_LANDED), None)
            queue = MergeQueue(home, Path(last.repo), target_of_folder(path.parent), token="look") if last else None
            if queue and queue.folder == path.parent and queue.branch.is_local and (tip := queue.branch.tip()):
                found[path] = [journal.Entry(number, state.epoch, queue.token, queue.clock.utc(), record.kind,
                                             records.encode(record))
                               for number, record in enumerate(find_undone(queue.git, state, tip), state.seq + 1)]
    return found


def target_of_folder(folder: Path) -> str:
    return unquote(folder.name)


class MergeQueue:
    """Handle on one queue, for enqueueing, configuring, reading and processing."""

    def __init__(self, home: Path, repo: Path, target: str = "main", *, clock: Clock | None = None,
                 token: str = "hand", git: Git | None = None) -> None:
        self.home, self.repo, self.target, self.token = home, repo, target, token
        self.git = git or Git(repo, home=home)
        self.clock: Clock = clock or SystemClock()
        check_target_name(target)
        directory = quote(target, safe="")  # `release/1.0` → `release%2F1.0`
        self.folder = home / "merge-queue" / self.git.key / directory
        self.locks = self.git.common / "garrison" / directory
        self._reader = _open_reader(self.folder)
        self._seen: tuple[str | None, str] = None, ""
        """Target's commit for which `notice_undone` recorded undone landings, and the one after the last landing."""

    @cached_property
    def branch(self) -> Target:
        return open_target(self.git, self.target)

    @property
    def path(self) -> Path:
        return self._reader.path

    @property
    def processor_lock(self) -> Path:
        return self.locks / "processor.lock"

    def is_processor_running(self) -> bool:
        """Return whether a process has the processor's lock now; Refused if only another user may read that."""
        try:
            return is_held(self.processor_lock)
        except PermissionError as error:
            raise explain_rights(self.processor_lock) or error from error

    def want(self) -> None:
        """Ask another home's processor on the same target to release it once it has no work."""
        self.git.make_lock(self.locks / "wanted").write_text(str(self.home), encoding="utf-8")

    def is_wanted(self) -> bool:
        """Return whether another home has asked for the target within the last seconds."""
        with suppress(OSError):
            path = self.locks / "wanted"
            # abs: a request from before the clock was set back must lapse as well
            return abs(self.clock.time() - path.stat().st_mtime) < WANTED_SECONDS \
                and path.read_text(encoding="utf-8", errors="replace") not in ("", str(self.home))
        return False

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> QueueState:
        return self._reader.refresh()

    def has_more_than_steps(self) -> bool:
        """Return whether records that `state` has not replayed may do more than bring entries a step forward."""
        return self._reader.has_more_than_steps()

    def entries(self) -> list[MergeEntry]:
        return list(self.state.entries.values())

    def entry(self, entry: str) -> MergeEntry:
        """Return the entry of that id; NotFound."""
        return self.state.entry(entry)

    # --- writing ----------------------------------------------------------------------------------------------------

    def lock(self, timeout: float | None = LOCK_TIMEOUT) -> AbstractContextManager[None]:
        """Lock `queue.lock`; Refused if it stays locked for `timeout` seconds (None: wait in the kernel, in order)."""
        return atomic.locked(self.git.make_lock(self.locks / "queue.lock"), timeout)

    @contextmanager
    def locked(self) -> Iterator[QueueState]:
        """Lock `queue.lock`, and yield the state under the lock."""
        with self.lock():
            yield self._reader.refresh()

    def append(self, record: records.QueueRecord, *, epoch: int | None = None, take: bool = False, sync: bool = False,
               ) -> journal.Entry:
        """Check and append one record; the caller holds `queue.lock`. Fenced if the journal is past `epoch`.

        Args:
            take: begin a new epoch with it.
            sync: the record is durable when this returns.
        """
        self.state.check(record)
        stored = self._write(record, epoch=epoch, take=take, sync=sync)
        self._reader.refresh()
        return stored

    def _write(self, record: records.QueueRecord, *, epoch: int | None = None, take: bool = False, sync: bool = False,
               ) -> journal.Entry:
        return journal.append_shared(self.path, self.token, record.kind, records.encode(record), self.clock.utc(),
                                     epoch=epoch, take=take, sync=sync)

    def compact(self) -> None:
        """Archive the journal and start a new one with a snapshot. The caller holds `queue.lock`."""
        state = self.state
        # link a second name before replacing the first: wherever this is killed, every record is in some journal
        journal.archive(self.path, state.seq)
        failpoint.here("archived")
        record = snapshot(state)
        journal.replace_shared(self.path, journal.Entry(state.seq, state.epoch, self.token, self.clock.utc(),
                                                        record.kind, records.encode(record)))
        failpoint.here("compacted")
        self._reader.refresh()

    # --- enqueueing -------------------------------------------------------------------------------------------------

    def enqueue(self, run: str, node: str, attempt: int, branch: str, *, recipient: str = "",
                oid: str | None = None, options: EntryOptions = NO_OPTIONS, agent: str = "",
                title: str = "") -> MergeEntry:
        """Enqueue the commit at `branch`'s tip (or `oid`), durably, without waiting for a test.

        The same run, node, attempt and commit is the same entry, of which only the options may differ. Another commit
        or attempt of the node supersedes an entry that has not started to land, and inherits its hold. Refused if the
        branch is missing, or the target itself.
        """
        names.check_node(node)
        options.check()
        if branch == self.target:
            raise Refused(f"{branch} is the branch to land on; name the branch that should land there")
        tip = self.git.rev(oid) if oid else self.git.branch_tip(branch)
        if tip is None:
            raise Refused(f"{self.repo} has no branch {branch}; commit the work on it first")
        name = entry_id(str(self.folder), run, node, attempt, tip)
        entry = self._state_for(run, node, options).entries.get(name)
        # The pin before the record: an unpinned commit may be removed by gc. A pin without a record only keeps a commit
        # alive until the enqueue is repeated.
        if entry is None and not self.git.make_ref(pin_ref(name, "head"), tip):
            raise Refused(f"could not pin {tip} under {pin_ref(name, 'head')} in {self.repo}; try again")
        failpoint.here("enq_pinned")
        if entry is None or options != NO_OPTIONS:
            entry = self._enqueue(name, run, node, attempt, branch, tip, recipient, options, agent, title)
        # Outside the lock, so that concurrent enqueues share one sync. Also for an existing entry: its writer may have
        # died, or not have synced it yet.
        journal.sync(self.path)
        failpoint.here("enq")
        return entry

    def _state_for(self, run: str, node: str, options: EntryOptions) -> QueueState:
        """Return the state, current in all that a node's next entry depends on.

        Each of 50 concurrent enqueues would replay the records of all others under the lock; records that do not
        mention the node need no replay.
        """
        reader = self._reader
        if options.depends_on or reader.state.entries_of(run, node) or reader.may_mention(node):
            reader.refresh()
        return reader.state

    def _enqueue(self, name: str, run: str, node: str, attempt: int, branch: str, oid: str, recipient: str,
                 options: EntryOptions, agent: str, title: str) -> MergeEntry:
        """Record the entry unless it exists, without syncing."""
        # a lock with a timeout is polled for, which takes 50 concurrent enqueues six times as long
        with self.lock(timeout=None):
            state = self._state_for(run, node, options)
            existing = state.entries.get(name)
            if existing:
                return existing if existing.is_final else self._amend(existing, options)
            waiting = [entry for entry in state.entries_of(run, node)
                       if not entry.is_final and entry.status != "landing"]
            default = state.config.strategy if state.config else STRATEGIES[0]
            resolved = resolve_options(state, options, run, node, default)
            approval = options.approval or needs_approval(state, run, node)
            record = records.EntryEnqueued(
                name, run, node, attempt, branch, oid, self.target, str(self.repo), recipient, resolved.priority,
                resolved.depends_on, resolved.strategy,
                "held" if approval or any(entry.status == "held" for entry in waiting) else "queued",
                tuple(entry.id for entry in waiting), approval, agent, title, options.changes)
            # not `append`, which would replay the records of all concurrent enqueues under the lock
            stored = self._write(record)
        failpoint.here("enq_written")
        return new_entry(record, stored)

    def _amend(self, entry: MergeEntry, options: EntryOptions) -> MergeEntry:
        """Change the options of an unfinished entry; the caller holds `queue.lock`. Refused for one that is landing.

        A candidate that was built with another strategy or other dependencies is built again.
        """
        before = ResolvedOptions(entry.priority, entry.depends_on, entry.strategy)
        after = apply_options(self.state, options, before, *entry.key)
        if after == before:
            return entry
        if entry.status == "landing":
            raise Refused(f"{entry.id} is landing; it is too late to change its options")
        if entry.status in STARTED and (after.strategy, after.depends_on) != (before.strategy, before.depends_on):
            self.append(records.StatusChanged((entry.id,), "queued", "its options were changed"))
        self.append(records.EntryAmended(entry.id, after.priority, after.depends_on, after.strategy), sync=True)
        return self.entry(entry.id)

    def enqueue_by_hand(self, node: str, branch: str, *, run: str = "", recipient: str = "",
                        oid: str | None = None, title: str = "", options: EntryOptions = NO_OPTIONS) -> MergeEntry:
        """Enqueue as the attempt after the node's last failed one, so that a failed branch can be retried."""
        self.notice_undone()
        earlier = self.state.entries_of(run, node)
        attempt = earlier[-1].attempt + (earlier[-1].status in FAILED) if earlier else 1
        return self.enqueue(run, node, attempt, branch, recipient=recipient, oid=oid, options=options, title=title)

    # --- records of launchers and pre-flights -----------------------------------------------------------------------

    def configure(self, config: QueueConfig) -> None:
        """Record a launcher's gate. Refused, showing both, if the queue has another gate and is in use."""
        with self.locked() as state:
            config = state.config.with_gate_of(config) if state.config else config
            if state.config == config:
                return
            why = explain_gate_mismatch(state.config, config, unfinished=len(state.unfinished()),
                                        processor=self.is_processor_running())
            if why:
                raise Refused(why)
            self.append(records.Configured(config), sync=True)

    def resume_own_pause(self, reason: str) -> None:
        """Resume a queue that paused itself; the user's pause stays."""
        with self.locked() as state:
            if state.pause and not state.pause.is_manual:
                self.append(records.QueueResumed(reason), sync=True)

    def record_green(self, tree: str, key: str, note: str = "") -> None:
        """Record that a tree passed a pre-flight, so that it is not tested again (`key`: `QueueConfig.verdict_key`)."""
        with self.locked():
            self.append(records.VerdictGiven((), "preflight", tree, key, "green", note, ""), sync=True)

    def seconds_since_passed(self, tree: str, key: str) -> float | None:
        """Return how long ago a tree passed a pre-flight, or the whole gate when it landed; None if its last verdict
        differs, or if launches must not rely on the last pre-flight with this key."""
        if (tree, key) not in self.state.green:
            return None
        of_key = [entry for entry in journal.read_all(self.path)
                  if entry.kind == records.VerdictGiven.kind and entry.data.get("command") == key]
        before = next((entry for entry in reversed(of_key) if entry.data.get("of") == "preflight"), None)
        last = next((entry for entry in reversed(of_key) if entry.data.get("tree") == tree), None)
        if last is None or before is None or before.data.get("reason"):
            return None
        is_green = last.data.get("result") == "green" and not last.data.get("gates")
        return self.clock.time() - from_iso(last.at) if is_green else None

    def notice_undone(self) -> None:
        """Record landings that a target moved by somebody has lost, and those that it has regained.

        Rewritten commits count as present: they have the entry's trailer. GitError if git fails.
        """
        tip = self.branch.tip() if self.branch.is_local else None
        seen = (tip, self.state.tip)  # the user may move the target back to just before a landing
        if tip is None or seen == self._seen:
            return
        with self.locked() as state:
            for record in find_undone(self.git, state, tip):
                # the landing dropped these pins: restore them before the record allows a retry of the entries
                for name in () if record.again else record.entries:
                    self.git.make_ref(pin_ref(name, "head"), state.entries[name].oid)
                self.append(record, sync=True)
        self._seen = seen

    def note_own_landing(self, landing: records.LandingStarted) -> None:
        """Note that this landing moved the target: all that had landed on the old tip is on the new one."""
        if self._seen[0] == landing.old and \
                not any(entry.status == "undone" for entry in self.state.entries.values()):
            self._seen = (landing.new, landing.new)

    def remove_idle_slots(self, trees: Path) -> None:
        """Remove the gate slots of this repository, unless a processor or an entry of this queue may need one soon."""
        from garrison.merge import slots  # imported late: enqueueing starts faster

        if not self.is_processor_running() and not self.state.unfinished():
            slots.remove_idle_slots(self.git, trees / self.git.key)


# ----------------------------------------------------------------------------------------------------- options (pure)


def resolve_options(state: QueueState, options: EntryOptions, run: str, node: str, default: str = STRATEGIES[0],
                    ) -> ResolvedOptions:
    """Return the options of a new entry of (run, node): those given, else those of its unlanded predecessor.

    Refused if it would wait for itself, NotFound for an unknown dependency.
    """
    earlier = state.entries_of(run, node)
    old = earlier[-1] if earlier and earlier[-1].status != "landed" else None
    before = ResolvedOptions(old.priority, old.depends_on, old.strategy) if old else ResolvedOptions(strategy=default)
    return apply_options(state, options, before, run, node)


def needs_approval(state: QueueState, run: str, node: str) -> bool:
    """Return whether a new entry of (run, node) needs approval because its unlanded predecessor did."""
    earlier = state.entries_of(run, node)
    return bool(earlier) and earlier[-1].approval and earlier[-1].status != "landed" and \
        not with_effect(earlier[-1].changes, Effect.ASK)  # approval was needed for the changes of that one


def apply_options(state: QueueState, options: EntryOptions, before: ResolvedOptions, run: str, node: str,
                  ) -> ResolvedOptions:
    """Return `before` with the given options applied; errors as for `resolve_options`."""
    depends_on = before.depends_on
    if options.depends_on is not None:
        depends_on = tuple(dict.fromkeys(_find_dependency(state, name, run).id for name in options.depends_on))
    after = ResolvedOptions(before.priority if options.priority is None else options.priority, depends_on,
                            options.strategy or before.strategy)
    _refuse_cycle(state, after.depends_on, (run, node))
    return after


def _find_dependency(state: QueueState, name: str, run: str) -> MergeEntry:
    if name in state.entries:
        return state.entries[name]
    entries = state.entries_of(run, name)
    if not entries:
        raise NotFound(f"nothing to depend on: no merge entry and no node {name} in this queue; "
                       "`garrison merge-queue list` shows them")
    return entries[-1]


def _refuse_cycle(state: QueueState, depends_on: Sequence[str], key: tuple[str, str]) -> None:
    """Refused if a dependency waits, directly or through others, for the node itself."""
    todo, visited = list(depends_on), set()
    while todo:
        name = todo.pop()
        entry = state.entries.get(name)
        if entry is None or name in visited or entry.status == "landed":
            continue
        visited.add(name)
        if entry.key == key:
            raise Refused(f"{key[1]} would wait for itself through {name}; leave that dependency out")
        todo += [name for other in state.unmet_dependencies(entry) for name in (other.id, *other.depends_on)]
        todo += entry.depends_on


# ----------------------------------------------------------------------------------------------------- processor's side


class StepResult(Value):
    """Result of a step that changed something; step again at once."""

    what: str
    entry: str = ""


class QueueWriter:
    """Reads and writes a queue for the processor that owns its lock, fenced by `epoch` (0 before that)."""

    def __init__(self, queue: MergeQueue) -> None:
        self.queue, self.git, self.clock, self.branch = queue, queue.git, queue.clock, queue.branch
        self.epoch = 0

    def tip(self) -> str | None:
        """Return the target's commit now, None if there is no such branch."""
        return self.branch.tip()

    def state(self) -> QueueState:
        """Return the state as the journal has it now; Fenced if another processor has taken over."""
        state = self.queue.state
        if state.epoch != self.epoch:
            raise Fenced(f"another processor took over the queue of {self.queue.target}; stopping without writing")
        return state

    def append(self, record: records.QueueRecord, *, sync: bool = False) -> None:
        """Append one record; Fenced like `state`."""
        with self.queue.locked():
            self.queue.append(record, epoch=self.epoch, sync=sync)

    def compact(self) -> None:
        """Replace the journal by a snapshot; Fenced like `state`."""
        with self.queue.locked():
            self.state()
            self.queue.compact()

    def drop_pins(self, entries: list[MergeEntry]) -> None:
        """Delete the pins of final entries, except for the heads of those that did not land."""
        refs = {pin_ref(entry.id, "candidate") for entry in entries if entry.is_final}
        refs |= {pin_ref(entry.id, "head") for entry in entries if entry.status == "landed"}
        with suppress(GarrisonError):  # a leftover ref is harmless; `recover` retries
            self.git.drop_refs(sorted(refs))
