"""What every supervising layer does to the names below it: look, replace, count, start, park, tell. Thin.

Journal first: a death is in the supervisor's journal before a successor begins, so that a new supervisor counts it.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

from garrison.errors import AlreadyAlive, Fenced, RecordError, Refused
from garrison.processes.fingerprint import check_interval
from garrison.records import atomic, signals
from garrison.records.identity import Identity, change_status, mark_ended
from garrison.records.life_lock import is_held
from garrison.records.signals import Signal
from garrison.supervise.decisions import ChildState
from garrison.supervise.explain import encode_inputs
from garrison.supervise.observer import HangWatcher
from garrison.supervise.replace import fence, kill_incarnation
from garrison.supervise.restart import CRASH, HUNG
from garrison.supervise.start import Incarnation, new_id
from garrison.supervise.verdict import judge
from garrison.system import failpoint
from garrison.system.clock import iso
from garrison.system.exit_info import ExitMonitor, describe_death, describe_hangup, is_tmux_server_gone

if TYPE_CHECKING:
    from garrison.processes.actions import Action
    from garrison.processes.runtime import Runtime
    from garrison.records.journal import Entry, Writer
    from garrison.records.names import Key
    from garrison.supervise.observer import AgentEvidence
    from garrison.system.event_loop import EventLoop


class Supervisor:
    """A supervisor's hands: its life, its journal, and the world."""

    def __init__(self, world: Runtime, life: Incarnation, journal: Writer) -> None:
        self.world, self.life, self.journal = world, life, journal
        # longer than any sleep of the loop: then we were held up
        gap = check_interval(world.timing) + 2 * world.timing.rescan
        self._watcher = HangWatcher(world.observer, world.timing.beat_timeout, gap)
        self.autopsy = ExitMonitor()
        self._swept: set[tuple[Key, int]] = set()
        atomic.make_directory(signals.inbox_path(world.home, life.key))  # what is absent cannot be watched

    def record(self, kind: str, data: dict[str, Any], *, sync: bool = False) -> Entry:
        """Append to the own journal."""
        return self.journal.append(kind, data, self.world.clock.utc(), sync=sync)

    def view(self, key: Key) -> ChildState:
        """One name as it is now."""
        identity = self.world.store.read(Identity, key)
        if identity is None:
            return ChildState()
        seen = self.world.observer.see(identity)
        return ChildState(identity, judge(identity, seen), seen)

    def guard(self, key: Key, agent: AgentEvidence | None = None) -> ChildState:
        """The same of a name this layer is responsible for: one that lives but does nothing is `hung`."""
        view = self.view(key)
        if view.identity is None or view.verdict is None:
            return view
        looked = self._watcher.look(view.identity, view.verdict, agent)
        return ChildState(view.identity, looked.verdict, view.seen, looked.evidence)

    def awake(self) -> None:
        """A glance was taken: the time since the last one was watched, too."""
        self._watcher.clock.look(self.world.clock.monotonic())

    def lives(self, key: Key) -> bool:
        """Whether a life of that name is there; where its record cannot be read, the life lock says so."""
        try:
            return self.view(key).living
        except RecordError:
            return is_held(self.world.store.life_path(key))

    def decided(self, act: Action) -> None:
        """Journal what is about to be done to a life, and all that it was decided on: `garrison why` replays it."""
        assert act.basis is not None
        self.record("decision", {"act": act.kind, "why": act.why, "basis": encode_inputs(act.basis)})

    def replace(self, view: ChildState, why: str, kind: str = CRASH) -> None:
        """Fence and sweep a dead or hung life, its death of class `kind`; nothing happens if it moved on meanwhile."""
        assert view.identity is not None
        with contextlib.suppress(Fenced):
            fenced = fence(self.world.observer, view.identity, self._died_of(view, why),
                           HUNG if view.hung else kind, view.evidence if view.hung else None, view.seen)
            if fenced.status != "terminated":  # who lingers after its end died no death
                self.record("fenced", {"full": fenced.key.full, "incarnation": fenced.incarnation,
                                       "why": fenced.reason, "evidence": fenced.metadata.get("evidence", {})})
            failpoint.here(":fenced")
            self.sweep(fenced)
            failpoint.here(":swept")

    def _died_of(self, view: ChildState, why: str) -> str:
        """Why a process that was found dead died, as far as the kernel and its terminal tell."""
        identity = view.identity
        if view.verdict is None or view.verdict.state != "dead" or identity is None:
            return why
        if not identity.pid or not identity.start_ticks or not self._seen_here(identity):
            return why
        one = identity.pid, identity.start_ticks
        told = describe_death(why, code=self.autopsy.exit_code(*one), memory=self.autopsy.out_of_memory(*one),
                     server_died=_lost_server(identity))
        self.autopsy.forget(*one)
        return told

    def _seen_here(self, identity: Identity) -> bool:
        here = self.world.observer.where
        return (identity.host, identity.boot_id, identity.pid_ns) == (here.host, here.boot_id, here.pid_ns)

    def sweep(self, identity: Identity) -> None:
        """Kill what is left of a fenced life, and journal whom. Once is enough: nobody of it was left then."""
        if (identity.key, identity.incarnation) in self._swept:
            return
        killed = kill_incarnation(self.world.observer, identity, self.world.timing.sweep_grace)
        if killed:
            self.record("swept", {"full": identity.key.full, "incarnation": identity.incarnation,
                                  "pids": [process.pid for process in killed]})
        self._swept.add((identity.key, identity.incarnation))

    def death(self, view: ChildState, attempt: int = 1) -> dict[str, Any]:
        """Journal the death of a fenced life; returns the record's data."""
        return self.record_death(self.buried(view, attempt))

    def buried(self, view: ChildState, attempt: int = 1) -> dict[str, Any]:
        """What there is to record of the death of a fenced life, of which nothing is left then."""
        assert view.identity is not None
        identity = view.identity
        self.sweep(identity)  # the fencing supervisor may have died between fence and sweep
        return {"full": identity.key.full, "incarnation": identity.incarnation, "attempt": attempt,
                "monotonic": self.world.clock.monotonic(), "boot_id": self.world.observer.where.boot_id,
                "why": describe_hangup(identity.reason, server_died=_lost_server(identity)),
                "class": identity.metadata.get("class", CRASH)}

    def record_death(self, data: dict[str, Any]) -> dict[str, Any]:
        """Journal it; from here on it is counted."""
        self.record("death", data, sync=True)
        failpoint.here(":death-recorded")
        return data

    def park(self, view: ChildState, why: str, cool_down: float, attempt: int = 1) -> dict[str, Any]:
        """Give a name up until its probe is due in `cool_down` seconds, or a person says otherwise; returns the
        record's data. The identity first: a successor that finds it parked and no record writes the record."""
        assert view.identity is not None
        clock = self.world.clock
        now = clock.utc()

        def parked(old: Identity | None) -> Identity:
            assert old is not None
            if old.status not in ("crashed", "terminated"):  # an agent that was killed lets its layer end in order
                return old
            return change_status(old, "parked", metadata={**old.metadata, "reason": why, "parked_at": now})

        self.world.store.update(Identity, view.identity.key, parked)
        failpoint.here(":parked")
        data = {"full": view.identity.key.full, "why": why, "attempt": attempt, "monotonic": clock.monotonic(),
                "boot_id": self.world.observer.where.boot_id, "incarnation": view.identity.incarnation,
                "probe_at": iso(clock.time() + cool_down)}
        self.record("park", data, sync=True)
        return data

    def begun(self, identity: Identity, why: str, attempt: int = 1, *, probe: bool = False) -> dict[str, Any]:
        """What is journaled of a life that was started; a probe is timed from here."""
        data: dict[str, Any] = {"full": identity.key.full, "incarnation": identity.incarnation, "attempt": attempt,
                                "why": why}
        if probe:
            data |= {"probe": True, "monotonic": self.world.clock.monotonic(),
                     "boot_id": self.world.observer.where.boot_id}
        return data

    def lift(self, key: Key) -> None:
        """Let a name that was given up begin again: a person asks for it."""
        now = self.world.clock.utc()

        def lifted(old: Identity | None) -> Identity:
            assert old is not None
            return mark_ended(old, "terminated", now, "stopped") if old.status == "parked" else old

        self.world.store.update(Identity, key, lifted)

    def term(self, view: ChildState, number: int = signal.SIGTERM) -> None:
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
            id_ or new_id()[:12], source, {"role": recipient.role, "name": recipient.name}, kind, recipient.run,
            clock.utc(), node, attempt, payload))
        failpoint.here(f":told-{kind}")

    def pass_on(self, recipient: Key, signal: Signal) -> None:
        """Say a signal that came to us again to whom it is for, under its own id."""
        self.tell(recipient, signal.signal_type, signal.payload, node=signal.node_id, attempt=signal.attempt,
                  id_=signal.id)

    def watch(self, waker: EventLoop, views: list[ChildState], *, records: bool = False) -> None:
        """Wake at the end of any of these processes and at any signal to us; `records`: if theirs are changed, too."""
        living: list[tuple[int, int]] = []
        for view in views:
            identity = view.identity
            if view.living and identity and identity.status == "active" and identity.pid and identity.start_ticks:
                waker.watch_process(identity.pid, identity.start_ticks)
                living.append((identity.pid, identity.start_ticks))
            if identity is not None and records:
                waker.watch_file(self.world.store.path(Identity, identity.key))
        self.autopsy.watch_all(living)
        folder = signals.inbox_path(self.world.home, self.life.key)
        if folder.is_dir():
            waker.watch_directory(folder)


def _lost_server(identity: Identity) -> bool:
    """Whether the life ran in a tmux session whose server is gone."""
    session = identity.tmux or {}
    return session.get("kind") == "tmux" and is_tmux_server_gone(str(session.get("server", "")))


def failpoint_name(act: Action) -> str:
    """An act as failpoints call it: its kind, and what it is about where that is a fixed word."""
    word = act.data.get("status", "") if act.kind == "node" else act.who if act.kind in _WORDED else ""
    return f":{act.kind}-{word}" if word else f":{act.kind}"


_WORDED = frozenset({"move", "say", "job", "run", "fact"})


def perform(layer: Any, act: Action, view: object) -> None:
    """Do one act: the layer's method `_do_<kind>`, between two points where the tests kill."""
    failpoint.here(f"{failpoint_name(act)}.before")
    if act.basis is not None:
        layer.supervisor.decided(act)
    getattr(layer, f"_do_{act.kind}")(act, view)
    failpoint.here(f"{failpoint_name(act)}.after")


START_RACES = (AlreadyAlive, Refused, Fenced)
"""What a start may meet when another supervisor was faster; the next look settles it."""


