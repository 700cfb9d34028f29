"""Incarnations: one life of a named process, from its lease to its end.

Start, the only way an incarnation begins. `start_incarnation` is the spawner's half, `register` the child's:

1. Lease (`grant_lease`), under the record's lock: no incarnation is alive → incarnation + 1, `starting`, the spawner's
   pid, a deadline; the name's first hook.
2. Spawn: the child gets run, name and incarnation as arguments and its marker (GARRISON_LIFE) in the environment. Then
   its predecessor's hook is linked to it (`link_hook`), by whichever of the two gets there first.
3. Register: the child takes the life lock, then reads its record under the record's lock. If the record belongs to
   another incarnation, it exits with 75 and writes nothing; else it writes its own pid and `active` (`activate`).
4. The child recovers and calls `Incarnation.ready`.
5. The spawner observes it; not `active` by the deadline is a death.
6. Every later write of the child is fenced by its incarnation (`Incarnation.update`).

Replace, the only way an incarnation is ended by force; also used for dead ones (`replace_incarnation`):

1. Fence (`fence`): the record says `crashed`, with verdict and evidence; a process that is still alive stops writing.
2. Kill (`kill_incarnation`): TERM, then KILL, for the process, its descendants without another incarnation's marker,
   and every process with its own marker, until none is left. One that hangs gets KILL at once. Only then may a
   successor start: shells and tools of a dead process may still run and write.

The child's `active` is synced, with its directory, before the child does anything. So the lease need not survive a
power cut: a process that acted as incarnation n + 1 has n + 1 on disk. Nor need the link of the hook: its next writer
writes it again.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from garrison.ends import Departure
from garrison.errors import AlreadyAlive, Fenced, GarrisonError, LockLost, RecordCorrupt, RecordError, Refused
from garrison.records.hook import Hook, advance_phase, next_hook
from garrison.records.identity import ALIVE, Identity, change_status, mark_ended
from garrison.records.life_lock import LifeLock
from garrison.records.names import format_marker
from garrison.records.store import new_id
from garrison.supervise.death_classes import CRASH, DAMAGE, HUNG, REBOOT, SHORTAGE
from garrison.system import failpoint
from garrison.system.clock import from_iso, iso
from garrison.system.machine import is_shortage, retry_until_space
from garrison.system.processes import ProcessId
from garrison.system.stamps import file_stamp
from garrison.values import Value, asdict, replace

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from garrison.records.names import Key
    from garrison.records.store import Store
    from garrison.supervise.hang_detector import RecordedEvidence
    from garrison.supervise.observer import Observer, ProcessOrigin
    from garrison.supervise.verdict import Observation, Verdict
    from garrison.system.clock import Clock

    R = TypeVar("R")

RECORD_LOCK_SECONDS = 1.0
"""Seconds that a process to be killed may keep the lock of its record; it is normally held for milliseconds."""
REFUSED = 75
"""Exit code of a child whose record belongs to another incarnation (EX_TEMPFAIL)."""


class StartRefused(GarrisonError):
    """A child is not, or no longer, the incarnation that its lease was granted for."""

    exit_code = REFUSED


# ---- lease (pure) ----------------------------------------------------------------------------------------------------


class SpawnRequest(Value):
    """A process to start: its name, its parent and where it works."""

    key: Key
    parent: Key | None = None
    worktree: str | None = None
    branch: str | None = None
    session_id: str = ""
    metadata: dict[str, object] = msgspec.field(default_factory=dict)
    journal_incarnation: int = 0
    """Highest incarnation in the spawner's journal, so that a lost record does not start one twice."""


def grant_lease(old: Identity | None, verdict: Verdict | None, request: SpawnRequest, spawner: ProcessOrigin, *,
                now: str, deadline: str, fresh_id: str) -> Identity:
    """Return the identity of the next incarnation: `starting`, with the spawner's pid and a deadline.

    Raises:
        AlreadyAlive: an incarnation is alive.
        Refused: the old one was not replaced first; its children may still run.
    """
    if old is not None and verdict is not None:
        if verdict.living:
            raise AlreadyAlive(f"{old.key.full} is alive ({verdict.why}); nothing was started")
        if verdict.state != "ended":
            raise Refused(f"{old.key.full} is {verdict.state} and must be replaced first ({verdict.why})")
    incarnation = max(old.incarnation if old else 0, request.journal_incarnation) + 1
    fresh = Identity(
        fresh_id, request.key.role, request.key.name, request.key.run, now, request.session_id, incarnation,
        spawner.pid, spawner.start_ticks, spawner.pid_ns, spawner.boot_id, spawner.host,
        {"role": request.parent.role, "name": request.parent.name} if request.parent else None,
        request.worktree, request.branch, status="starting", last_heartbeat=now, spawn_deadline=deadline,
        metadata=dict(request.metadata))
    if old is None:
        return fresh
    change_status(old, "starting")  # which is refused while it is alive
    return replace(fresh, predecessor_id=old.agent_id, respawns=old.respawns + 1)


def activate(leased: Identity, process: ProcessOrigin, now: str) -> Identity:
    """Return the leased identity as the started process writes it: its own pid, `active`."""
    return replace(change_status(leased, "active"), pid=process.pid, start_ticks=process.start_ticks,
                   pid_ns=process.pid_ns, boot_id=process.boot_id, host=process.host, last_heartbeat=now,
                   spawn_deadline=None)


# ---- start: the spawner's half ---------------------------------------------------------------------------------------


def start_incarnation(observer: Observer, request: SpawnRequest, deadline_s: float,
                      spawn: Callable[[Identity, str], ProcessId | None]) -> Identity:
    """Lease the next incarnation, then start its process with `spawn(identity, marker)`; return the leased identity.

    `spawn` returns the process if it knows it: its death is then noticed before it is active. If `spawn` fails, the
    lease is returned as a crash, so that the restart policy counts it; if the machine lacks memory or disk, as one that
    waits.
    """
    leased, has_hook = _lease(observer, request, deadline_s)
    # A new name needs its first hook before the process reads it. A predecessor's hook is linked while the process
    # starts, which saves the time of a write; the child does it if it is quicker.
    if not has_hook:
        link_hook(observer, leased)
        failpoint.here(":hooked")
    try:
        process = spawn(leased, format_marker(str(observer.store.home), request.key, leased.incarnation))
        if process is not None:
            observer.note_started(leased, process)
    except (OSError, ImportError, GarrisonError) as error:  # an upgrade may have removed a module
        now, why, death_class = observer.clock.utc(), str(error), SHORTAGE if is_shortage(error) else CRASH
        observer.store.update(Identity, request.key, lambda old: _return_lease(old, leased, now, why, death_class))
    failpoint.here(":spawned")
    if has_hook:
        link_hook(observer, leased)
    return leased


def acquire_lease(observer: Observer, request: SpawnRequest, deadline_s: float) -> Identity:
    """Take the lease for a process that becomes the incarnation itself; return the `starting` identity.

    AlreadyAlive if an incarnation is alive.
    """
    leased, _ = _lease(observer, request, deadline_s)
    link_hook(observer, leased)
    return leased


def _lease(observer: Observer, request: SpawnRequest, deadline_s: float) -> tuple[Identity, bool]:
    """Return the lease, and whether the name has a hook to continue."""
    store, clock = observer.store, observer.clock
    now, deadline = clock.utc(), iso(clock.time() + deadline_s)
    spawner = observer.origin(os.getpid())

    def next_identity(old: Identity | None) -> Identity:
        return grant_lease(old, observer.judge(old) if old else None, request, spawner, now=now, deadline=deadline,
                           fresh_id=new_id())

    hook = _drop_damaged_hook(observer, request.key)
    if hook is not None:  # a lost identity file must not start the same incarnation twice
        request = replace(request, journal_incarnation=max(request.journal_incarnation, hook.incarnation))
    leased = store.update(Identity, request.key, next_identity, named=False)
    failpoint.here(":leased")
    return leased, hook is not None


def link_hook(observer: Observer, identity: Identity) -> Hook:
    """Continue the predecessor's hook for this incarnation; idempotent. Fenced if a later incarnation has it."""
    key, now = identity.key, observer.clock.utc()
    _drop_damaged_hook(observer, key)
    return observer.store.update(Hook, key, lambda old: next_hook(old, key, identity.incarnation, now, new_id()),
                                 named=False)


def _drop_damaged_hook(observer: Observer, key: Key) -> Hook | None:
    """Return a name's hook; move one that cannot be read to quarantine, as if there were none.

    Its phase is lost, and is derived again from what exists: result, acceptance, merge entry.
    """
    try:
        return observer.store.read(Hook, key)
    except RecordCorrupt:
        observer.store.rebuild(Hook, key, lambda: None, observer.clock.utc())
        return None


def _return_lease(old: Identity | None, leased: Identity, now: str, why: str, death_class: str) -> Identity:
    if old is None or old.incarnation != leased.incarnation or old.status != "starting":
        raise Fenced(f"the lease of {leased.key.full} was granted to another spawner")
    ended = mark_ended(old, "crashed", now, f"could not be started: {why}")
    return replace(ended, metadata={**ended.metadata, "class": death_class})


# ---- start: the child's half -----------------------------------------------------------------------------------------


def register(observer: Observer, key: Key, incarnation: int, wait: Callable[[float], None]) -> Incarnation:
    """Become the incarnation that the lease was granted for.

    Args:
        wait: sleeps for that many seconds between two tries for the life lock, and for space on a full disk; both are
            tried until the lease's deadline.

    Raises:
        StartRefused: the lease belongs to another incarnation, or the lock is held past the deadline; nothing is
            written.
    """
    store, clock = observer.store, observer.clock
    leased = store.read(Identity, key)
    _check_lease(leased, key, incarnation)
    limit = from_iso(leased.spawn_deadline) if leased and leased.spawn_deadline else clock.time()

    def is_over() -> bool:
        return clock.time() > limit

    def try_lock() -> LifeLock | None:
        return LifeLock.try_acquire(store.life_path(key))

    # The lock before the record: while a predecessor holds it, the record may still belong to that one.
    while (lock := retry_until_space(try_lock, wait, is_over)) is None:
        if is_over():
            raise StartRefused(f"the life lock of {key.full} is still held at the start deadline of incarnation "
                               f"{incarnation}; it exits")
        wait(0.01)
    failpoint.here(":life-locked")
    process, now = observer.origin(os.getpid()), clock.utc()

    def active(old: Identity | None) -> Identity:
        return activate(_check_lease(old, key, incarnation), process, now)

    try:
        identity = retry_until_space(lambda: store.update(Identity, key, active), wait, is_over)
        hook = retry_until_space(lambda: link_hook(observer, identity), wait, is_over)
    except BaseException:
        lock.release()
        raise
    failpoint.here(":active")
    registered = Incarnation(store, clock, identity, lock, hook)
    registered.beat()
    return registered


def _check_lease(identity: Identity | None, key: Key, incarnation: int) -> Identity:
    if identity is None or identity.incarnation != incarnation or identity.status != "starting":
        state = "gone" if identity is None else f"at incarnation {identity.incarnation}, {identity.status}"
        raise StartRefused(f"the lease of {key.full} for incarnation {incarnation} is void: its record is {state}")
    return identity


class Incarnation:
    """A registered incarnation: holds its life lock and writes its own records, fenced."""

    def __init__(self, store: Store, clock: Clock, identity: Identity, lock: LifeLock,
                 hook: Hook | None = None) -> None:
        self.store, self.clock, self.lock = store, clock, lock
        self.key, self.number = identity.key, identity.incarnation
        self.identity = identity
        self._last_identity, self._last_hook = identity, hook
        """The records as last read: damaged ones are rebuilt from these."""
        self._path = str(store.path(Identity, self.key))
        self._stamp: tuple[int, ...] | None = None
        self.token = f"{self.key.full}#{self.number}"
        self.phase = "planning"
        """Phase to which `advance_hook` has brought its hook."""

    @property
    def marker(self) -> str:
        return format_marker(str(self.store.home), self.key, self.number)

    def beat(self) -> None:
        """Write a heartbeat, and rewrite a damaged identity; LockLost if the life file was removed or replaced."""
        self.lock.beat(int(self.clock.monotonic() * 1e9), int(self.clock.time() * 1e9))
        self._check_identity()

    def _check_identity(self) -> None:
        """Read its own identity if the file has changed; rewrite a damaged one: its supervisor waits for that.

        LockLost if it was removed: this process cannot tell whether its home was removed, and its supervisor starts a
        successor.
        """
        stamp = file_stamp(self._path)  # before it is read, so that no change goes unnoticed
        if self._stamp is not None and stamp == self._stamp:
            return
        with suppress(RecordError):  # not damaged, but unreadable: the user must act
            try:
                current = self.store.read(Identity, self.key)
            except RecordCorrupt:
                current = self._rewrite_identity()
            if current is None:
                raise LockLost(f"{self._path} was removed or replaced; stopping gracefully")
            if current.incarnation == self.number:
                self._last_identity = current
        self._stamp = stamp

    def _rewrite_identity(self) -> Identity | None:
        self.store.rebuild(Identity, self.key, lambda: self._last_identity, self.clock.utc())
        return self.store.read(Identity, self.key)

    def update(self, change: Callable[[Identity], Identity], *, named: bool = True) -> Identity:
        """Change its own identity; Fenced if a later incarnation has the name. `named` as in `Store.update`."""
        def unfenced(old: Identity | None) -> Identity:
            return change(require_unfenced(old, self.key))

        try:
            updated = self.store.update(Identity, self.key, unfenced, incarnation=self.number, named=named)
        except RecordCorrupt:
            self._rewrite_identity()
            updated = self.store.update(Identity, self.key, unfenced, incarnation=self.number, named=named)
        self.identity = self._last_identity = updated
        return updated

    def hook(self, change: Callable[[Hook], Hook]) -> Hook:
        """Change its own hook; Fenced if a later incarnation has the name."""
        def existing(old: Hook | None) -> Hook:
            return change(_require(old, self.key))

        try:
            self._last_hook = self.store.update(Hook, self.key, existing, incarnation=self.number)
        except RecordCorrupt:
            self.store.rebuild(Hook, self.key, self._known_hook, self.clock.utc())
            self._last_hook = self.store.update(Hook, self.key, existing, incarnation=self.number)
        return self._last_hook

    def advance_hook(self, phase: str) -> None:
        """Move its own hook forward to `phase`, unless this incarnation has done so."""
        if phase != self.phase:
            now = self.clock.utc()
            self.hook(lambda old: advance_phase(old, phase, now))
            self.phase = phase

    def read_hook(self) -> Hook:
        return self.hook(lambda old: old)

    def _known_hook(self) -> Hook:
        return self._last_hook or next_hook(None, self.key, self.number, self.clock.utc(), new_id())

    def ready(self) -> None:
        """Record that recovery is over and work starts."""
        now = self.clock.utc()
        # The directory is not synced: after a power cut this incarnation is gone, and so is everything that waited for
        # it.
        self.update(lambda old: replace(old, metadata={**old.metadata, "ready_at": now}), named=False)
        failpoint.here(":ready")

    def end(self, reason: str, departure: Departure, exit_code: int = 0, death_class: str = "") -> None:
        """End gracefully: `terminated` with a reason, then release the life lock.

        `death_class` is the class to use if its supervisor sees this end as a death.
        """
        now = self.clock.utc()

        def ended(old: Identity) -> Identity:
            over = mark_ended(old, "terminated", now, reason, departure, exit=exit_code)
            return replace(over, metadata={**over.metadata, "class": death_class}) if death_class else over

        # The record before the lock: seen from another pid namespace, a free lock under an `active` record is a death.
        self.update(ended)
        failpoint.here(":terminated")
        self.lock.release()

    def crash(self, reason: str, exit_code: int = 1, death_class: str = CRASH) -> None:
        """Record its own death, so that the supervisor can name the reason; then release the life lock."""
        now = self.clock.utc()
        stated = {} if death_class == CRASH else {"class": death_class}
        self.update(lambda old: replace(ended := mark_ended(old, "crashed", now, reason, exit=exit_code),
                                        metadata={**ended.metadata, **stated}))
        self.lock.release()


def require_unfenced(identity: Identity | None, key: Key) -> Identity:
    """Return the record of an incarnation that may still write; Fenced if it is gone or says `crashed` or `parked`.

    A fenced process is about to be killed, perhaps after its tools: anything it wrote about them would be wrong.
    """
    identity = _require(identity, key)
    if identity.status in ("crashed", "parked"):
        raise Fenced(f"{key.full} was declared {identity.status}; stopping without writing")
    return identity


def _require(old: R | None, key: Key) -> R:
    if old is None:
        raise Fenced(f"the record of {key.full} is gone; stopping without writing")
    return old


# ---- a damaged or lost record ----------------------------------------------------------------------------------------


def rebuild_identity(observer: Observer, key: Key, journaled: int = 0, *, locked: bool = False) -> Identity | None:
    """Rebuild the damaged or lost identity of a name that has no living process: its last incarnation died.

    How it ended is not known, so it is replaced like any dead one: its leftovers are killed, and a successor continues.
    Return the current identity; None if the name has no record, or a living process, which rewrites it.

    Args:
        journaled: the highest incarnation in its supervisor's journal.
        locked: the caller holds its life lock.
    """
    store, now = observer.store, observer.clock.utc()
    lock = None if locked else LifeLock.try_acquire(store.life_path(key))
    if lock is None and not locked:
        return None
    try:
        hook = _drop_damaged_hook(observer, key)
        incarnation = max(journaled, hook.incarnation if hook is not None else 0)
        here = observer.machine
        rebuilt = Identity(
            new_id(), key.role, key.name, key.run, now, incarnation=max(1, incarnation), status="crashed",
            pid_ns=here.pid_ns, boot_id=here.boot_id, host=here.host, last_heartbeat=now, crashed_at=now,
            metadata={"reason": "its record was damaged; rebuilt", "class": DAMAGE, "rebuilt": True})
        if not store.rebuild(Identity, key, lambda: rebuilt, now) and incarnation:
            store.update(Identity, key, lambda old: rebuilt if old is None else old)
        return store.read(Identity, key)
    finally:
        if lock is not None:
            lock.release()


# ---- replace ---------------------------------------------------------------------------------------------------------


def replace_incarnation(observer: Observer, identity: Identity, reason: str, grace: float,
                        evidence: RecordedEvidence | None = None) -> Identity:
    """Fence and kill an incarnation; afterwards its name is free for `start_incarnation`.

    Args:
        grace: seconds between TERM and KILL.
        evidence: the basis of a verdict `hung`.
    """
    is_hung = evidence is not None and bool(evidence.rule)
    fenced = fence(observer, identity, reason, HUNG if is_hung else CRASH, evidence)
    kill_incarnation(observer, fenced, grace)
    return fenced


def fence(observer: Observer, identity: Identity, reason: str, death_class: str = CRASH,
          evidence: RecordedEvidence | None = None, observation: Observation | None = None) -> Identity:
    """Write `crashed` over an incarnation, with the evidence and the class of its death (`death_classes.CLASSES`).

    Fenced if a later incarnation has the name by now.

    Args:
        evidence: the basis of a verdict `hung`.
        observation: the basis of the verdict; None: the incarnation is observed now.
    """
    now, observation = observer.clock.utc(), observation or observer.observe(identity)
    _free_record(observer, identity)
    recorded = {"verdict": reason, "pid_ticks": observation.pid_ticks, "beat_age": observation.beat_age,
                "seen_at": now, **(asdict(evidence) if evidence else {})}
    if identity.host == observer.machine.host and identity.boot_id != observer.machine.boot_id:
        death_class = REBOOT

    def crashed(old: Identity | None) -> Identity:
        if old is None or old.incarnation != identity.incarnation:
            raise Fenced(f"{identity.key.full} changed after incarnation {identity.incarnation} was judged; "
                         "nothing was replaced")
        if old.status not in ALIVE:
            return old
        fenced = mark_ended(old, "crashed", now, reason)
        return replace(fenced, metadata={**fenced.metadata, "evidence": recorded, "class": death_class})

    # The directory is not synced: a living process reads the new record at once, and a power cut leaves no process.
    # After one, the incarnation belongs to another boot and is fenced again.
    return observer.store.update(Identity, identity.key, crashed, named=False)


def _free_record(observer: Observer, identity: Identity) -> None:
    """Kill an incarnation that is stopped while it holds its own record's lock: its fence would wait forever."""
    if not (identity.pid and identity.start_ticks and observer.is_visible(identity)
            and identity.spawn_deadline is None):
        return
    process = observer.processes.probe(identity.pid)
    is_alive = process is not None and process.ticks == identity.start_ticks and not process.zombie
    if is_alive and observer.store.is_locked(Identity, identity.key, RECORD_LOCK_SECONDS):
        observer.processes.send(identity.pid, identity.start_ticks, signal.SIGKILL)


def kill_incarnation(observer: Observer, fenced: Identity, grace: float, *, at_once: bool = False) -> list[ProcessId]:
    """Kill the remaining processes of a fenced incarnation and return them. Safe to repeat.

    The process of one that hangs or lingers, or any if `at_once`, gets no TERM: it would first stop its own children,
    which are healthy.
    """
    root = None
    # A lease contains its spawner's pid, which must not be killed.
    if fenced.pid and fenced.start_ticks and observer.is_visible(fenced) and fenced.spawn_deadline is None:
        root = ProcessId(fenced.pid, fenced.start_ticks)
        if at_once or fenced.status == "terminated" or fenced.evidence.get("rule"):
            observer.processes.send(root.pid, root.ticks, signal.SIGKILL)
    killed = observer.processes.kill_tree(root, observer.marker(fenced), grace=grace)
    if fenced.spawn_deadline is not None:  # never active: its predecessor may still hold the life lock of the name
        killed += observer.processes.kill_tree(None, observer.marker(fenced, before=1), grace=grace)
    return killed
