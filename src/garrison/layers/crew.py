"""What every supervising layer does to the names below it: look, replace, count, start, park, tell. Thin.

Journal first: a death is in the supervisor's journal before a successor begins, so that a new supervisor counts it.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

from garrison.errors import AlreadyAlive, Fenced, RecordError, Refused
from garrison.records import atomic, signals
from garrison.records.identity import Identity, ended, step
from garrison.records.life import is_held
from garrison.records.signals import Signal
from garrison.supervise.replace import fence, sweep_life
from garrison.supervise.start import fresh_id
from garrison.supervise.step import LifeView
from garrison.system import failpoint

if TYPE_CHECKING:
    from garrison.layers.guardian_policy import Act
    from garrison.layers.world import World
    from garrison.records.journal import Entry, Writer
    from garrison.records.names import Key
    from garrison.supervise.start import Life
    from garrison.system.waker import Waker


class Crew:
    """A supervisor's hands: its life, its journal, and the world."""

    def __init__(self, world: World, life: Life, journal: Writer) -> None:
        self.world, self.life, self.journal = world, life, journal
        self._swept: set[tuple[Key, int]] = set()
        atomic.make_directory(signals.inbox(world.home, life.key))  # what is absent cannot be watched

    def record(self, kind: str, data: dict[str, Any], *, sync: bool = False) -> Entry:
        """Append to the own journal."""
        return self.journal.append(kind, data, self.world.clock.utc(), sync=sync)

    def view(self, key: Key) -> LifeView:
        """One name as it is now."""
        identity = self.world.store.read(Identity, key)
        return LifeView(identity, self.world.observer.judge(identity) if identity else None)

    def lives(self, key: Key) -> bool:
        """Whether a life of that name is there; where its record cannot be read, the life lock says so."""
        try:
            return self.view(key).living
        except RecordError:
            return is_held(self.world.store.life_path(key))

    def replace(self, view: LifeView, why: str) -> None:
        """Fence and sweep a dead life; nothing happens if it has moved on since it was judged."""
        assert view.identity is not None
        with contextlib.suppress(Fenced):
            fenced = fence(self.world.observer, view.identity, why)
            failpoint.here(":fenced")
            self.sweep(fenced)
            failpoint.here(":swept")

    def sweep(self, identity: Identity) -> None:
        """Kill what is left of a fenced life, and journal whom. Once is enough: nobody of it was left then."""
        if (identity.key, identity.incarnation) in self._swept:
            return
        killed = sweep_life(self.world.observer, identity, self.world.timing.sweep_grace)
        if killed:
            self.record("swept", {"full": identity.key.full, "incarnation": identity.incarnation,
                                  "pids": [process.pid for process in killed]})
        self._swept.add((identity.key, identity.incarnation))

    def death(self, view: LifeView, attempt: int = 1) -> dict[str, Any]:
        """Journal the death of a fenced life; returns the record's data."""
        assert view.identity is not None
        identity = view.identity
        self.sweep(identity)  # the fencing supervisor may have died between fence and sweep
        data = {"full": identity.key.full, "incarnation": identity.incarnation, "attempt": attempt,
                "monotonic": self.world.clock.monotonic(), "boot_id": self.world.observer.where.boot_id,
                "why": identity.reason}
        self.record("death", data, sync=True)
        failpoint.here(":death-recorded")
        return data

    def park(self, view: LifeView, why: str) -> None:
        """Give a name up until a person or a later rule says otherwise."""
        assert view.identity is not None
        now = self.world.clock.utc()

        def parked(old: Identity | None) -> Identity:
            assert old is not None
            if old.status != "crashed":
                return old
            return step(old, "parked", metadata={**old.metadata, "reason": why, "parked_at": now})

        self.world.store.update(Identity, view.identity.key, parked)
        self.record("park", {"full": view.identity.key.full, "why": why})

    def lift(self, key: Key) -> None:
        """Let a name that was given up begin again: a person asks for it."""
        now = self.world.clock.utc()

        def lifted(old: Identity | None) -> Identity:
            assert old is not None
            return ended(old, "terminated", now, "stopped") if old.status == "parked" else old

        self.world.store.update(Identity, key, lifted)

    def term(self, view: LifeView, number: int = signal.SIGTERM) -> None:
        """Ask a living process to end in order, through a verified pidfd; a lease has no process to ask yet."""
        identity = view.identity
        if identity and identity.status in ("active", "held") and identity.pid and identity.start_ticks:
            self.world.processes.send(identity.pid, identity.start_ticks, number)

    def tell(self, recipient: Key, kind: str, payload: dict[str, Any], *, node: str | None = None, attempt: int = 0,
             id_: str | None = None) -> None:
        """Write a signal to `recipient`; with `id_` saying it again is recognised as the same."""
        clock = self.world.clock
        source = {"role": self.life.key.role, "name": self.life.key.name, "incarnation": self.life.incarnation}
        signals.post(self.world.home, Signal(
            id_ or fresh_id()[:12], source, {"role": recipient.role, "name": recipient.name}, kind, recipient.run,
            clock.utc(), node, attempt, payload))
        failpoint.here(f":told-{kind}")

    def pass_on(self, recipient: Key, signal: Signal) -> None:
        """Say a signal that came to us again to whom it is for, under its own id."""
        self.tell(recipient, signal.signal_type, signal.payload, node=signal.node_id, attempt=signal.attempt,
                  id_=signal.id)

    def watch(self, waker: Waker, views: list[LifeView], *, records: bool = False) -> None:
        """Wake at the end of any of these processes and at any signal to us; `records`: if theirs are changed, too."""
        for view in views:
            identity = view.identity
            if view.living and identity and identity.status == "active" and identity.pid and identity.start_ticks:
                waker.watch_process(identity.pid, identity.start_ticks)
            if identity is not None and records:
                waker.watch_file(self.world.store.path(Identity, identity.key))
        folder = signals.inbox(self.world.home, self.life.key)
        if folder.is_dir():
            waker.watch_directory(folder)


def name_of(act: Act) -> str:
    """An act as failpoints call it: its kind, and what it is about where that is a fixed word."""
    word = act.data.get("status", "") if act.kind == "node" else act.who if act.kind in _WORDED else ""
    return f":{act.kind}-{word}" if word else f":{act.kind}"


_WORDED = frozenset({"move", "say", "job", "run", "fact"})


def perform(layer: object, act: Act, view: object) -> None:
    """Do one act: the layer's method `_do_<kind>`, between two points where the tests kill."""
    failpoint.here(f"{name_of(act)}.before")
    getattr(layer, f"_do_{act.kind}")(act, view)
    failpoint.here(f"{name_of(act)}.after")


START_RACES = (AlreadyAlive, Refused, Fenced)
"""What a start may meet when another supervisor was faster; the next look settles it."""


