"""Start: the only way a process begins. `start_incarnation` is the spawner's half, `register` the child's.

1. Under the record's lock: no living incarnation → incarnation + 1, `starting`, the spawner's pid, a deadline; the
   first hook.
2. The child is started with run, name and incarnation in argv and the life marker in its environment; then its
   predecessor's hook is linked to it, which the child does itself if it is faster.
3. The child takes the life lock, reads the record under its lock: another incarnation → exit 75, nothing written; else
   it writes its own pid and `active`.
4. It recovers.
5. The spawner watches; no `active` by the deadline is a death.
6. Each later write of the child is fenced by its incarnation.

The child's `active` is synced, name and all, before it does anything. So the lease need not survive a power cut: a
process that acted as incarnation n + 1 has n + 1 on the disk, and without that none acted. The link of the hook says
nothing that its next writer would not write again.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from garrison.errors import Fenced, GarrisonError
from garrison.records.hook import Hook
from garrison.records.identity import Identity, mark_ended
from garrison.records.life_lock import LifeLock
from garrison.supervise.lease import activate, grant_lease, next_hook
from garrison.records.names import format_marker
from garrison.system import failpoint
from garrison.system.clock import from_iso, iso
from garrison.system.disk_space import retry_until_space

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from garrison.records.names import Key
    from garrison.records.store import Store
    from garrison.supervise.lease import SpawnRequest
    from garrison.supervise.observer import Observer
    from garrison.system.clock import Clock

    R = TypeVar("R")

REFUSED = 75
"""Exit code of a child that finds another incarnation in its place (EX_TEMPFAIL)."""


class StartRefused(GarrisonError):
    """The child is not, or no longer, the incarnation that its lease was granted for."""

    exit_code = REFUSED


def new_id() -> str:
    """Return a random id for a record."""
    return os.urandom(8).hex()


def acquire_lease(observer: Observer, wish: SpawnRequest, deadline_s: float) -> Identity:
    """Do step 1 for a process that becomes the incarnation itself; return the `starting` identity.

    AlreadyAlive if one is alive.
    """
    leased, _ = _lease(observer, wish, deadline_s)
    link_hook(observer, leased)
    return leased


def _lease(observer: Observer, wish: SpawnRequest, deadline_s: float) -> tuple[Identity, bool]:
    """Return the lease, and whether there is a hook to continue."""
    store, clock = observer.store, observer.clock
    now, deadline = clock.utc(), iso(clock.time() + deadline_s)
    spawner = observer.me(os.getpid())

    def next_life(old: Identity | None) -> Identity:
        return grant_lease(old, observer.judge(old) if old else None, wish, spawner, now=now, deadline=deadline,
                     fresh_id=new_id())

    hook = store.read(Hook, wish.key)
    if hook is not None:  # an identity file that was lost must not make a life twice
        wish = replace(wish, journal_incarnation=max(wish.journal_incarnation, hook.incarnation))
    leased = store.update(Identity, wish.key, next_life, named=False)
    failpoint.here(":leased")
    return leased, hook is not None


def link_hook(observer: Observer, life: Identity) -> None:
    """Continue the predecessor's hook for this incarnation; idempotent. Fenced if a later incarnation has it."""
    now = observer.clock.utc()
    observer.store.update(Hook, life.key, lambda old: next_hook(old, life.key, life.incarnation, now, new_id()),
                          named=False)


def start_incarnation(observer: Observer, wish: SpawnRequest, deadline_s: float,
                      spawn: Callable[[Identity, str], None]) -> Identity:
    """Start an incarnation: lease, then `spawn(identity, marker)` starts the process. Return the leased identity.

    If `spawn` fails the lease is returned as a crash, so that the restart policy counts it.
    """
    leased, continued = _lease(observer, wish, deadline_s)
    if not continued:
        link_hook(observer, leased)
        failpoint.here(":hooked")
    try:
        spawn(leased, format_marker(str(observer.store.home), wish.key, leased.incarnation))
    except (OSError, GarrisonError) as error:
        now, why = observer.clock.utc(), str(error)
        observer.store.update(Identity, wish.key, lambda old: _give_back(old, leased, now, why))
    failpoint.here(":spawned")
    if continued:
        link_hook(observer, leased)
    return leased


def _give_back(old: Identity | None, leased: Identity, now: str, why: str) -> Identity:
    if old is None or old.incarnation != leased.incarnation or old.status != "starting":
        raise Fenced(f"the lease of {leased.key.full} is no longer ours")
    return mark_ended(old, "crashed", now, f"could not be started: {why}")


class Incarnation:
    """A registered incarnation: it holds its life lock and writes its own records, fenced."""

    def __init__(self, store: Store, clock: Clock, identity: Identity, lock: LifeLock) -> None:
        self.store, self.clock, self.lock = store, clock, lock
        self.key, self.incarnation = identity.key, identity.incarnation
        self.identity = identity
        self.token = f"{self.key.full}#{self.incarnation}"

    @property
    def marker(self) -> str:
        """Return the GARRISON_LIFE of this incarnation's processes."""
        return format_marker(str(self.store.home), self.key, self.incarnation)

    def beat(self) -> None:
        """Send a heartbeat; LockLost if the life file is no longer ours."""
        self.lock.beat(int(self.clock.monotonic() * 1e9), int(self.clock.time() * 1e9))

    def update(self, change: Callable[[Identity], Identity], *, named: bool = True) -> Identity:
        """Change the own identity; Fenced if a later incarnation has the name. `named` as in `Store.update`."""
        def present(old: Identity | None) -> Identity:
            return change(require_unfenced(old, self.key))

        self.identity = self.store.update(Identity, self.key, present, incarnation=self.incarnation, named=named)
        return self.identity

    def hook(self, change: Callable[[Hook], Hook]) -> Hook:
        """Change the own hook; Fenced if a later incarnation has the name."""
        def present(old: Hook | None) -> Hook:
            return change(_there(old, self.key))

        return self.store.update(Hook, self.key, present, incarnation=self.incarnation)

    def ready(self) -> None:
        """Record that recovery is over and work begins."""
        now = self.clock.utc()
        # After a power cut nobody waits for this life any more.
        self.update(lambda old: replace(old, metadata={**old.metadata, "ready_at": now}), named=False)
        failpoint.here(":ready")

    def end(self, reason: str, exit_code: int = 0) -> None:
        """End gracefully: `terminated` with a reason, then release the life lock."""
        now = self.clock.utc()
        self.update(lambda old: mark_ended(old, "terminated", now, reason, exit=exit_code))
        failpoint.here(":terminated")
        self.lock.release()

    def crash(self, reason: str, exit_code: int = 1) -> None:
        """Record the own death, so that the supervisor can name its reason; then release the life lock."""
        now = self.clock.utc()
        self.update(lambda old: mark_ended(old, "crashed", now, reason, exit=exit_code))
        self.lock.release()


def require_unfenced(found: Identity | None, key: Key) -> Identity:
    """Return the record of an incarnation that may still write; Fenced if it is gone or was declared over.

    A fenced process is about to be killed, its tools perhaps before itself: what it would write about them now is
    wrong.
    """
    identity = _there(found, key)
    if identity.status in ("crashed", "parked"):
        raise Fenced(f"{key.full} was declared {identity.status}; stopping without writing")
    return identity


def _there(old: R | None, key: Key) -> R:
    if old is None:
        raise Fenced(f"the record of {key.full} is gone; stopping without writing")
    return old


def register(observer: Observer, key: Key, incarnation: int, wait: Callable[[float], None]) -> Incarnation:
    """Do step 3, the child's half: become the incarnation that the lease was granted for.

    `wait(seconds)` passes time between tries for the life lock, and for space on a full disk, both until the deadline.
    StartRefused (exit 75) if the lease is not ours or the lock stays held past it; nothing is written then.
    """
    store, clock = observer.store, observer.clock
    leased = store.read(Identity, key)
    _check_lease(leased, key, incarnation)
    limit = from_iso(leased.spawn_deadline) if leased and leased.spawn_deadline else clock.time()

    def over() -> bool:
        return clock.time() > limit

    def take() -> LifeLock | None:
        return LifeLock.try_acquire(store.life_path(key))

    while (lock := retry_until_space(take, wait, over)) is None:
        if over():
            raise StartRefused(f"the life lock of {key.full} stays held; life {incarnation} gives up")
        wait(0.01)
    failpoint.here(":life-locked")
    me, now = observer.me(os.getpid()), clock.utc()

    def become(old: Identity | None) -> Identity:
        return activate(_check_lease(old, key, incarnation), me, now)

    try:
        identity = retry_until_space(lambda: store.update(Identity, key, become), wait, over)
        retry_until_space(lambda: link_hook(observer, identity), wait, over)
    except BaseException:
        lock.release()
        raise
    failpoint.here(":active")
    life = Incarnation(store, clock, identity, lock)
    life.beat()
    return life


def _check_lease(found: Identity | None, key: Key, incarnation: int) -> Identity:
    if found is None or found.incarnation != incarnation or found.status != "starting":
        state = "gone" if found is None else f"at life {found.incarnation}, {found.status}"
        raise StartRefused(f"{key.full} is {state}; life {incarnation} was not started for it")
    return found
