"""Supervise child processes: observe them, replace them, record their deaths, park them. Shared by all supervisors.

Journal first: a death is in the supervisor's journal before a successor starts, so that a new supervisor counts it.

A death, followed through the code (a runner and its orchestrator; guardian and launcher do the same one level up):

 1. the kernel          the child's pidfd becomes readable: `watch` registered it with the event loop, which wakes
                        `loop.run`. A lost event costs a second: the slow timer rescans.
 2. observe             `node/runner.py observe` → `observe_child` here: the identity record and the process table
                        give a verdict (`supervise/verdict.py`); a living process that does nothing is `hung`
                        (`supervise/hang_detector.py`).
 3. decide (pure)       `node/policy.py` → `supervise/decisions.py decide_restart`: REPLACE, then RECORD_DEATH, then
                        START, PROBE, PARK or wait, by `supervise/restart.py`. One decision per turn; each is
                        journaled with all its inputs (`record_decision`), which `garrison why` replays.
 4. REPLACE             `replace_child`: fence (the record says `crashed`, so it can no longer write), then
                        kill the rest of the incarnation (`supervise/incarnation.py`).
 5. RECORD_DEATH        notify the parent, then `record_death`: from here on it is counted.
 6. START               `processes/spawn.py` → `supervise/incarnation.py start_incarnation`: a lease of the next
                        incarnation, the process, the hook. The start is journaled.
 7. the successor       `processes/main.py` registers it; `node/orchestrator.py _begin` reads the hook and writes the
                        prompt with its predecessor's progress.

If a supervisor dies between any two steps, its successor observes the same state and continues from there.

`Parent` is the process to which a runner reports.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

from garrison.ends import Departure, End
from garrison.errors import AlreadyAlive, Fenced, RecordCorrupt, RecordError, Refused
from garrison.processes.actions import ActionKind
from garrison.processes.loop import check_interval, log_line
from garrison.records import atomic, shared_cause, signals
from garrison.records.events import (
    ChildDied,
    ChildFenced,
    ChildParked,
    ChildSpawned,
    ChildSwept,
    DecisionMade,
    encode,
)
from garrison.records.hook import Hook
from garrison.records.identity import Identity, change_status, mark_ended
from garrison.records.life_lock import is_held
from garrison.records.names import Key, launcher_key
from garrison.records.signals import Signal
from garrison.records.store import new_id
from garrison.supervise.death_classes import CRASH, HUNG, MEMORY, SHORTAGE, TERMINAL
from garrison.supervise.decisions import ChildState, encode_inputs, what_it_follows
from garrison.supervise.incarnation import fence, kill_incarnation, rebuild_identity
from garrison.supervise.observer import HangWatcher
from garrison.supervise.verdict import Verdict, judge
from garrison.system import failpoint
from garrison.system.clock import iso
from garrison.system.exit_info import (
    ExitMonitor,
    describe_death,
    describe_hangup,
    is_tmux_server_gone,
)
from garrison.system.machine import MODULE_MISSING, find_lack
from garrison.system.stamps import file_stamp
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from garrison.processes.actions import Action
    from garrison.processes.runtime import Runtime
    from garrison.records.events import Event
    from garrison.records.journal import Entry, Writer
    from garrison.records.run import Task
    from garrison.records.signals import Payload
    from garrison.supervise.incarnation import Incarnation
    from garrison.supervise.observer import AgentEvidence
    from garrison.system.event_loop import EventLoop


_FEW = 16
"""Children whose records are looked for one by one."""
_NEVER = ChildState()
START_RACES = (AlreadyAlive, Refused, Fenced)
"""Errors of a start that lost a race against another supervisor; the next observation shows which one won."""


class Supervisor:
    """Supervising part of a process; `incarnation` and `journal` are the process's own."""

    def __init__(self, runtime: Runtime, incarnation: Incarnation, journal: Writer) -> None:
        self.runtime, self.incarnation, self.journal = runtime, incarnation, journal
        # Longer than any sleep of the loop: after a longer gap this process itself was suspended.
        gap = check_interval(runtime.timing) + 2 * runtime.timing.rescan
        self._hang_watcher = HangWatcher(runtime.observer, runtime.timing.beat_timeout, gap)
        self._exits = ExitMonitor()
        self._swept: set[tuple[Key, int]] = set()
        self._known: dict[Key, Identity] = {}
        """Name → its last readable identity."""
        self._stamps: dict[Key, tuple[int, ...]] = {}
        """Name → the stamp of the file that this identity was read from."""
        self._unread: dict[Key, str] = {}
        """Name → the last logged error of its record."""
        self._paths: dict[Key, tuple[str, str]] = {}
        """Name → the files of its identity and of its hook."""
        self._resting: dict[Key, tuple[tuple[int, ...] | None, ChildState]] = {}
        """Name that was never started, or is over → the stamp of its record, and its state until that changes."""
        self._still: dict[Key, ChildState] = {}
        """Child that only this process can start or restart → its state at the last look."""
        self._look_at = 0.0
        """When to look at those again."""
        # Only an existing folder can be watched.
        atomic.make_directory(signals.inbox_path(runtime.home, incarnation.key))

    def record(self, event: Event, *, sync: bool = False) -> Entry:
        """Append an event to the process's own journal."""
        return self.journal.append(event.kind, encode(event), self.runtime.clock.utc(), sync=sync)

    # ---- observe

    def child_state(self, key: Key) -> ChildState:
        """Return a name's present record and the verdict on it.

        A record is read again only once its stamp has changed. For a name that was never started, or is over, nothing
        else is checked.
        """
        if (paths := self._paths.get(key)) is None:
            store = self.runtime.store
            paths = self._paths[key] = str(store.path(Identity, key)), str(store.path(Hook, key))
        own = file_stamp(paths[0])  # before it is read, so that no change goes unnoticed
        stamp = own or file_stamp(paths[1])
        if (resting := self._resting.get(key)) is not None and resting[0] == stamp:
            return resting[1]
        state = self._read_state(key, own)
        if not state.leaving and (state.verdict.state == "ended" if state.verdict is not None else stamp is None):
            self._resting[key] = stamp, state
        else:
            self._resting.pop(key, None)
        return state

    def _read_state(self, key: Key, stamp: tuple[int, ...] | None) -> ChildState:
        try:
            identity = self._read_identity(key, stamp)
        except RecordError as error:
            identity = self._repair_identity(key, error)
            if identity is None:
                return self._living_unread(key, error)
        if identity is None:
            # A lease writes the identity before the hook: if there is a hook, the identity was lost.
            is_lost = key in self._known or self.runtime.store.path(Hook, key).exists()
            identity = rebuild_identity(self.runtime.observer, key, self._incarnation_of(key)) if is_lost else None
            if identity is None:
                return ChildState()
        self._known[key] = identity
        observation = self.runtime.observer.observe(identity)
        return ChildState(identity, judge(identity, observation), observation)

    def _read_identity(self, key: Key, stamp: tuple[int, ...] | None) -> Identity | None:
        """Return a name's record, from memory while its file has the stamp with which it was read last."""
        if stamp is not None and self._stamps.get(key) == stamp:
            return self._known[key]
        self._stamps.pop(key, None)
        identity = self.runtime.store.read(Identity, key)
        if identity is not None and stamp is not None:
            self._known[key], self._stamps[key] = identity, stamp
        return identity

    def _repair_identity(self, key: Key, error: RecordError) -> Identity | None:
        """Rebuild the damaged identity of a dead child; None if it is alive, or only the user can repair it."""
        if not isinstance(error, RecordCorrupt):
            return None
        identity = rebuild_identity(self.runtime.observer, key, self._incarnation_of(key))
        if identity is not None:
            log_line(f"{error.path} was damaged ({error.why}) and is rebuilt; the damaged file is in quarantine/")
        return identity

    def _incarnation_of(self, key: Key) -> int:
        known = self._known.get(key)
        return known.incarnation if known is not None else 0

    def _living_unread(self, key: Key, error: RecordError) -> ChildState:
        """Return the state of a child with an unreadable record: its supervisor must assume that it is alive. A living
        process rewrites a damaged record itself; damage that only the user can repair stops this one child, not its
        supervisor."""
        if self._unread.get(key) != str(error):
            log_line(str(error))
            self._unread[key] = str(error)
        identity = self._known.get(key) or Identity("", key.role, key.name, key.run, self.runtime.clock.utc())
        return ChildState(identity, Verdict("alive", f"its record cannot be read: {error}"))

    def observe_children(self, keys: Mapping[str, Key]) -> dict[str, ChildState]:
        """Return the states of children, as `observe_child`.

        A run may have thousands of children. Those never started, or whose work is done, are looked at once per rescan:
        other processes do not start them. One listing finds those never started, if they are many: the folders contain
        the records of all runs.
        """
        now = self.runtime.clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + self.runtime.timing.rescan
            self._still = {}
            present = self._list_present() if sum(key not in self._known for key in keys.values()) > _FEW else None
            if present is not None:
                self._still = {key: _NEVER for key in keys.values()
                               if key not in self._known and f"{key.full}.json" not in present}
        states: dict[str, ChildState] = {}
        for name, key in keys.items():
            if (state := self._still.get(key)) is None:
                state = self.observe_child(key)
                is_over = not (state.living or state.leaving)
                if is_over and state.identity is not None and state.identity.departure is Departure.DONE:
                    self._still[key] = state
            states[name] = state
        return states

    def _list_present(self) -> set[str] | None:
        """Return the names of the files with records; None if they cannot be listed, which each child reports."""
        store, own = self.runtime.store, self.incarnation.key
        try:
            return {*atomic.list_names(store.path(Identity, own).parent),
                    *atomic.list_names(store.path(Hook, own).parent)}
        except RecordError:
            return None

    def expect_start(self, key: Key) -> None:
        """Look at a child in the next turn: it is about to be started."""
        self._still.pop(key, None)

    def observe_child(self, key: Key, agent: AgentEvidence | None = None) -> ChildState:
        """Return the state of a child of this process: as `child_state`, but it also detects a hang."""
        state = self.child_state(key)
        if state.identity is None or state.verdict is None:
            return state
        if state.verdict.state == "ended":  # most children of a long run
            self._hang_watcher.forget(state.identity)
            return state
        inspection = self._hang_watcher.inspect(state.identity, state.verdict, agent)
        return ChildState(state.identity, inspection.verdict, state.observation, inspection.evidence)

    def seconds_to_scan(self, child: ChildState, agent: AgentEvidence) -> float | None:
        """Return the seconds until the silence of an agent, which may be a hang, is to be looked at again; None if it
        is no hang, or nothing is watched."""
        if agent.silence is None or child.identity is None or not child.living:
            return None
        return self._hang_watcher.seconds_to_scan(child.identity, agent)

    def note_watching(self) -> None:
        """Count the time since the last fingerprint as watched, so that hangs are detected across skipped turns."""
        self._hang_watcher.clock.advance(self.runtime.clock.monotonic())

    def is_alive(self, key: Key) -> bool:
        """Return whether an incarnation of that name is alive; if its record is unreadable, whether its life lock is
        held."""
        try:
            return self.child_state(key).living
        except RecordError:
            return is_held(self.runtime.store.life_path(key))

    def watch(self, event_loop: EventLoop, children: list[ChildState], *, records: bool = False) -> None:
        """Wake the loop when one of these processes exits and at any signal; with `records`, when one of their records
        changes."""
        living = self._watch_starting(event_loop, children)
        for child in children:
            identity = child.identity
            if child.living and identity and identity.status == "active" and identity.pid and identity.start_ticks:
                event_loop.watch_process(identity.pid, identity.start_ticks)
                living.append((identity.pid, identity.start_ticks))
            if identity is not None and records:
                event_loop.watch_file(self.runtime.store.path(Identity, identity.key))
        self._exits.watch_all(living)
        inbox = signals.inbox_path(self.runtime.home, self.incarnation.key)
        if inbox.is_dir():
            event_loop.watch_directory(inbox)

    def _watch_starting(self, event_loop: EventLoop, children: list[ChildState]) -> list[tuple[int, int]]:
        """Wake the loop when a process of a starting child exits; return those processes."""
        starting = [child.identity for child in children if child.identity is not None
                    and child.verdict is not None and child.verdict.state == "starting"]
        found = [(each.pid, each.ticks) for each in self.runtime.observer.find_starting(starting)]
        for process in found:
            event_loop.watch_process(*process)
        return found

    # ---- replace

    def record_decision(self, action: Action) -> None:
        """Journal a decision about a child, with all its inputs, before it is carried out."""
        assert action.basis is not None
        self.record(DecisionMade(action.kind, action.why, encode_inputs(action.basis)))

    def replace_child(self, child: ChildState, why: str, death_class: str = CRASH) -> None:
        """Fence a dead or hung incarnation and kill its remaining processes; do nothing if a later one has the name by
        now."""
        assert child.identity is not None
        with contextlib.suppress(Fenced):
            # Fence, journal, kill. Fenced first, it writes nothing during the grace period of the kill; journaled in
            # between, the evidence is kept if this supervisor dies. The kill is repeated before a death is
            # counted.
            cause, death_class = self._cause_of_death(child, why, death_class)
            fenced = fence(self.runtime.observer, child.identity, cause, death_class,
                           child.evidence if child.hung else None, child.observation)
            if fenced.status != "terminated":  # one that lingers after its graceful end did not die
                self.record(ChildFenced(fenced.key.full, fenced.incarnation, fenced.reason, fenced.evidence))
            failpoint.here(":fenced")
            self.sweep(fenced)
            failpoint.here(":swept")

    def _cause_of_death(self, child: ChildState, why: str, death_class: str) -> tuple[str, str]:
        """Return why a process died, as far as the kernel and its terminal know, and the class of that death."""
        identity = child.identity
        if child.verdict is None or identity is None:
            return why, death_class
        process = self._process_of(child)
        if process is None:
            return why, HUNG if child.hung else death_class
        code, memory = self._exits.exit_code(*process), self._exits.out_of_memory(*process)
        self._exits.forget(*process)
        # The counter is a cgroup's: the kernel may have killed a tool in it, while this process exited by itself.
        if death_class == CRASH and memory and (code is None or End(code).killed):
            death_class = MEMORY
        elif death_class == CRASH and code == MODULE_MISSING:
            why, death_class = "a module of garrison was missing when it started; its log names it", SHORTAGE
        elif death_class == CRASH and child.verdict.state == "lapsed" and (lack := find_lack()) is not None:
            why, death_class = f"{why}; {lack.what}", SHORTAGE
        server_died = _lost_tmux_server(identity)
        return (describe_death(why, code=code, memory=memory, server_died=server_died),
                self._class_of(identity, death_class, server_died=server_died))

    def _process_of(self, child: ChildState) -> tuple[int, int] | None:
        """Return the pid and start ticks of a dead process, even one that was never active; None if unknown."""
        identity, state = child.identity, child.verdict.state if child.verdict is not None else ""
        if identity is None or not self.runtime.observer.is_visible(identity):
            return None
        if state == "lapsed":  # its record still names its spawner
            return next(((each.pid, each.ticks) for each in self.runtime.observer.known_processes(identity)), None)
        if state != "dead" or not identity.pid or not identity.start_ticks:
            return None
        return identity.pid, identity.start_ticks

    def sweep(self, identity: Identity) -> None:
        """Kill the rest of a fenced incarnation; once, since no process that could fork is left afterwards."""
        if (identity.key, identity.incarnation) in self._swept:
            return
        killed = kill_incarnation(self.runtime.observer, identity, self.runtime.timing.sweep_grace)
        if killed:
            self.record(ChildSwept(identity.key.full, identity.incarnation, [process.pid for process in killed]))
        self._swept.add((identity.key, identity.incarnation))

    # ---- deaths and starts

    def death_record(self, child: ChildState, attempt: int = 1) -> ChildDied:
        """Return the record of a fenced incarnation's death, after a sweep: its supervisor may have died before its
        own."""
        assert child.identity is not None
        identity = child.identity
        self.sweep(identity)
        why, death_class = identity.reason, str(identity.metadata.get("class", CRASH))
        if identity.departure is Departure.HANGUP:
            server_died = _lost_tmux_server(identity)
            why = describe_hangup(server_died=server_died, has_session=bool(identity.tmux))
            death_class = self._class_of(identity, death_class, server_died=server_died)
        return ChildDied(identity.key.full, identity.incarnation, self.runtime.clock.monotonic(),
                         self.runtime.observer.machine.boot_id, attempt, why, death_class)

    def _class_of(self, identity: Identity, death_class: str, *, server_died: bool) -> str:
        """Return the class of a death: a terminal server's death counts against only one of its sessions."""
        if death_class != CRASH or not server_died:
            return death_class
        server = str((identity.tmux or {}).get("server", ""))
        name = f"{identity.key.full}#{identity.incarnation}"
        return CRASH if shared_cause.claim(self.runtime.home, f"tmux-{server}", name) else TERMINAL

    def record_death(self, death: ChildDied) -> ChildDied:
        """Journal a death; from here on it is counted."""
        self.record(death, sync=True)
        failpoint.here(":death-recorded")
        return death

    def start_record(self, started: Identity, previous: ChildState, why: str, attempt: int = 1, *,
                     probe: bool = False) -> ChildSpawned:
        """Return the record of an incarnation's start after `previous`; a probe is timed from here."""
        spawned = ChildSpawned(started.key.full, started.incarnation, attempt, why,
                               follows=what_it_follows(previous, attempt, started.incarnation))
        if not probe:
            return spawned
        return replace(spawned, probe=True, monotonic=self.runtime.clock.monotonic(),
                       boot_id=self.runtime.observer.machine.boot_id)

    def park(self, child: ChildState, why: str, cool_down: float, attempt: int = 1) -> ChildParked:
        """Park a name until its probe is due in `cool_down` seconds, or the user unparks it.

        The identity is written first: a successor that finds it parked, but not journaled, writes the record.
        """
        assert child.identity is not None
        clock = self.runtime.clock
        now, probe_at = clock.utc(), iso(clock.time() + cool_down)

        def parked(old: Identity | None) -> Identity:
            assert old is not None
            if old.status not in ("crashed", "terminated"):  # it ended gracefully after its agent was killed
                return old
            return change_status(old, "parked", metadata={
                **old.metadata, "reason": why, "parked_at": now, "probe_at": probe_at})

        self.runtime.store.update(Identity, child.identity.key, parked)
        failpoint.here(":parked")
        event = ChildParked(child.identity.key.full, child.identity.incarnation, why, clock.monotonic(),
                            self.runtime.observer.machine.boot_id, attempt, probe_at)
        self.record(event, sync=True)
        return event

    def unpark(self, key: Key) -> None:
        """Let a parked name start again, at the user's request."""
        now = self.runtime.clock.utc()

        def unparked(old: Identity | None) -> Identity:
            assert old is not None
            return mark_ended(old, "terminated", now, "stopped", Departure.STOPPED) if old.status == "parked" else old

        self.runtime.store.update(Identity, key, unparked)

    def terminate(self, child: ChildState, number: int = signal.SIGTERM) -> None:
        """Send a living process a Unix signal, SIGTERM to end gracefully, through a verified pidfd."""
        identity = child.identity
        # A lease has no process yet.
        if identity and identity.status in ("active", "held") and identity.pid and identity.start_ticks:
            self.runtime.processes.send(identity.pid, identity.start_ticks, number)

    # ---- signals

    def send(self, recipient: Key, payload: Payload, *, node: str | None = None, attempt: int = 0,
             id_: str | None = None) -> None:
        """Send a signal to `recipient`, which recognises repetitions by `id_`."""
        self._post(recipient, payload.type, payload.to_data(), node, attempt, id_ or new_id()[:12])

    def forward(self, recipient: Key, received: Signal) -> None:
        """Pass a signal on to another process, under the same id."""
        self._post(recipient, received.signal_type, received.payload, received.node_id, received.attempt, received.id)

    def _post(self, recipient: Key, type_: str, data: dict[str, object], node: str | None, attempt: int,
              id_: str) -> None:
        key = self.incarnation.key
        source = {"role": key.role, "name": key.name, "incarnation": self.incarnation.number}
        signals.post(self.runtime.home, Signal(
            id_, source, {"role": recipient.role, "name": recipient.name}, type_, recipient.run,
            self.runtime.clock.utc(), node, attempt, data))
        failpoint.here(f":told-{type_}")


def perform(process: Any, action: Action, view: object) -> None:
    """Carry out one action by the process's table `HANDLERS`, between two failpoints."""
    point = failpoint_name(action)
    failpoint.here(f"{point}.before")
    if action.basis is not None:
        process.supervisor.record_decision(action)
    process.HANDLERS[action.kind](process, action, view)
    failpoint.here(f"{point}.after")


_NAMED_BY_TARGET = frozenset({ActionKind.MOVE_HOOK, ActionKind.SEND, ActionKind.START_JOB, ActionKind.CHANGE_RUN,
                              ActionKind.RECORD_FACT})


def failpoint_name(action: Action) -> str:
    """Return the failpoint of an action: its kind, and its target if that is a fixed word."""
    word = action.target if action.kind in _NAMED_BY_TARGET else ""
    if action.kind is ActionKind.CHANGE_NODE:
        word = getattr(action.payload, "status", "")
    return f":{action.kind}-{word}" if word else f":{action.kind}"


def _lost_tmux_server(identity: Identity) -> bool:
    session = identity.tmux or {}
    return session.get("kind") == "tmux" and is_tmux_server_gone(str(session.get("server", "")))


# ---- the parent process ----------------------------------------------------------------------------------------------


class Parent:
    """Process to which a runner reports, and the launcher above it.

    It is identified by name, not by incarnation: a replaced guardian is the same parent. A runner started by hand
    has none: it sends nothing, and it is never orphaned.
    """

    def __init__(self, incarnation: Incarnation, supervisor: Supervisor, task: Task) -> None:
        self.supervisor, self.task = supervisor, task
        parent = incarnation.identity.parent
        self.key = Key(parent["role"], parent["name"], incarnation.key.run) if parent else None
        self._orphaned_since: float | None = None

    @property
    def is_gone(self) -> bool:
        return self._orphaned_since is not None

    @property
    def record_paths(self) -> list[Path]:
        return [self.supervisor.runtime.store.path(Identity, self.key)] if self.key else []

    def orphaned_for(self, now: float) -> float | None:
        """Return the seconds for which both have been dead; None while one is alive. `now` is monotonic."""
        if self.key is None:
            return None
        if any(self.supervisor.is_alive(key) for key in (self.key, launcher_key(self.key.run))):
            self._orphaned_since = None
            return None
        if self._orphaned_since is None:
            # Not `now`: it was read before the check, and the machine may have been suspended in between.
            self._orphaned_since = self.supervisor.runtime.clock.monotonic()
            log_line("neither guardian nor launcher is alive: finishing this attempt; after the grace period nothing "
                     "new is started")
        return max(0.0, now - self._orphaned_since)

    def send(self, payload: Payload, id_: str) -> None:
        """Send the parent a signal about the node; it recognises repetitions by the id."""
        if self.key is not None:
            self.supervisor.send(self.key, payload, node=self.task.node, attempt=self.task.attempt, id_=id_)

    def forward(self, received: Signal) -> None:
        """Pass a signal from a child on to the parent."""
        if self.key is not None:
            self.supervisor.forward(self.key, received)
