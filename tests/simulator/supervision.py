"""Base of the simulated processes: starting and replacing others, watching for hangs, the loop, journal and signals.

A simulated process observes the world, lets the real policy decide, and carries out each action by its table, with the
writes of the real process in the real order. It is a generator: a `yield` stands wherever the real process could be
killed or overtaken, and a number that it yields is seconds of sleep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from tests.simulator.violation import Violation
from tests.simulator.world import PIPELINE, Effect, Process, Run, Steps, World, key_of, marker_of

from garrison.config import Timing
from garrison.ends import Departure
from garrison.errors import Fenced, Refused
from garrison.processes.actions import Action, ActionKind, ApplySignal, Decision, ReplaceChild
from garrison.processes.supervisor import START_RACES
from garrison.records.events import (
    ChildDied,
    ChildParked,
    ChildSpawned,
    Event,
    ProcessOpened,
    SignalRefused,
    encode,
)
from garrison.records.hook import Hook, next_hook
from garrison.records.identity import ALIVE, Identity, change_status, mark_ended
from garrison.records.journal import Entry
from garrison.records.names import Key
from garrison.records.signals import Payload, Signal
from garrison.supervise import death_classes, incarnation
from garrison.supervise.decisions import ChildState, what_it_follows
from garrison.supervise.incarnation import SpawnRequest
from garrison.supervise.observer import HangWatcher, Observer
from garrison.system.clock import from_iso, iso
from garrison.values import replace

R = TypeVar("R", Identity, Hook)

TIMING = Timing(beat_timeout=30.0)
AT_ONCE, MAX_IDLE_TURNS = 0.01, 50
"""Seconds of a sleep that is none; turns in a row that may do nothing before such a sleep."""
LONGEST_SLEEP = 60.0
"""Seconds; longer than a real process's, to spare the simulation."""


def existing(record: R | None) -> R:
    """Return a record that has to be there; Fenced without one."""
    if record is None:
        raise Fenced("the record is gone")
    return record


# ---- start and replace, as `processes.supervisor` does --------------------------------------------------------------


def start_incarnation(world: World, me: Process, request: SpawnRequest, body: Callable[[World, Process], Steps],
                      announce: Callable[[Identity], None] | None = None) -> Effect:
    """Lease, hook (the first one before the process), process; return the leased identity.

    `announce` is called with the lease, before anything else is written.
    """
    key, verdict = request.key, world.view(request.key).verdict
    if (hook := world.hooks.get(key)) is not None:  # a lost identity must not start the same incarnation twice
        request = replace(request, journal_incarnation=max(request.journal_incarnation, hook.incarnation))
    leased = world.write_identity(me, key, lambda old: incarnation.grant_lease(
        old, verdict, request, world.origin(me), now=world.now, fresh_id=world.fresh(),
        deadline=iso(world.wall + TIMING.spawn_deadline)))
    yield None
    if announce is not None:
        announce(leased)
        yield None
    if key not in world.hooks:
        link_hook(world, me, key, leased.incarnation)
        yield None
    world.spawn("supervised", key, leased.incarnation, body, attempt=int(request.metadata.get("attempt", 1)))
    yield None
    link_hook(world, me, key, leased.incarnation)
    yield None
    return leased


def link_hook(world: World, me: Process, key: Key, number: int) -> None:
    """Continue the hook for an incarnation; spawner and child both do, in either order."""
    world.write_hook(me, key, lambda old: next_hook(old, key, number, world.now, world.fresh()))


def replace_incarnation(world: World, me: Process, judged: Identity, why: str,
                        death_class: str = death_classes.CRASH) -> Effect:
    """Fence, then sweep; do nothing if the record has moved on."""
    def fence(old: Identity | None) -> Identity:
        if old is None or old.incarnation != judged.incarnation:
            raise Fenced("it has moved on")
        if old.status not in ALIVE:
            return old
        fenced = mark_ended(old, "crashed", world.now, why)
        class_ = death_classes.REBOOT if judged.boot_id != world.boot_id else death_class
        if class_ == death_classes.CRASH:
            class_ = world.death_classes.get((judged.key, judged.incarnation), class_)
        return replace(fenced, metadata={**fenced.metadata, "class": class_})

    try:
        fenced = world.write_identity(me, judged.key, fence)
    except Fenced:
        return
    yield None
    yield from sweep(world, me, fenced)


def sweep(world: World, me: Process, fenced: Identity) -> Effect:
    """Kill what is left of a fenced incarnation, until nothing is, or what is left is blocked in the kernel."""
    is_of_this_boot = fenced.boot_id == world.boot_id and not fenced.spawn_deadline
    root = world.find(fenced.pid, fenced.start_ticks) if is_of_this_boot else None
    marker = marker_of(fenced.key, fenced.incarnation)
    while left := [proc for proc in [*world.bearers(marker), *([root] if root and root.alive else [])]
                   if proc is not me and not proc.doomed and not proc.revenant]:
        world.kill(world.rng.choice(left), f"swept by {me.name}", blocked=True)
        yield None


# ---- watching for hangs ----------------------------------------------------------------------------------------------


class ProcessSeen(NamedTuple):
    """One row of the process table."""

    pid: int
    cpu: float
    state: str


class SimulatedObserver:
    """What the real `HangWatcher` reads: heartbeats, process table and clock, as one process observes them."""

    def __init__(self, world: World) -> None:
        self.world, self.time = world, world.mono
        self.clock = self.store = self.processes = self

    def monotonic(self) -> float:
        """Return the time up to which the watcher has watched."""
        return self.time

    def life_path(self, key: Key) -> Key:
        """Return what stands for the life file of a name."""
        return key

    def marker(self, identity: Identity) -> str:
        return marker_of(identity.key, identity.incarnation)

    def read_heartbeat(self, key: Key) -> tuple[float, float] | None:
        """Return when a process beat last: it beats as long as it does anything, its own sleep included."""
        identity = self.world.identities[key]
        proc = self.world.find(identity.pid, identity.start_ticks)
        return None if proc is None else (self._last_active(proc), 0.0)

    def probe(self, pid: int) -> ProcessSeen | None:
        """Return a process; its CPU time grows as long as it does anything."""
        proc = self.world.procs.get(pid)
        if proc is None:
            return None
        held = proc.quiet_since is not None and proc.stopped_until > self.world.t
        return ProcessSeen(pid, self._last_active(proc), proc.state if held else "S")

    def descendants(self, pid: int, marker: str) -> list[ProcessSeen]:
        """Return the other processes that bear a marker."""
        found = [self.probe(proc.pid) for proc in self.world.bearers(marker) if proc.pid != pid]
        return [seen for seen in found if seen is not None]

    def _last_active(self, proc: Process) -> float:
        since = proc.waiting_since if proc.quiet_since is None else proc.quiet_since
        return self.time if since is None else since - self.world.booted_at


class BusyAgent:
    """Evidence of an agent that leaves none but its CPU time."""

    silence: float | None = None

    def stamps(self, *, deep: bool) -> Mapping[str, str]:
        """Return no stamps."""
        return {}

    def tool(self) -> tuple[str, float] | None:
        """Return None: no tool is under way."""
        return None

    def waiting(self) -> str:
        """Return that it waits for nothing."""
        return ""


class Watch:
    """The real `HangWatcher` of one process, told how long that was held up itself."""

    def __init__(self, world: World, me: Process) -> None:
        self.world, self.me = world, me
        self.observer = SimulatedObserver(world)
        self.watcher = HangWatcher(cast("Observer", self.observer), TIMING.beat_timeout, TIMING.beat_timeout / 4)
        self.watcher.clock.advance(self.observer.time)
        self.is_late = False
        """Set once something watched is late; what resets it sleeps for a shorter time."""
        self._holds = 0

    def catch_up(self) -> None:
        """Count the time since the last call: a planned sleep as watched, being held up as one gap."""
        observer, clock = self.observer, self.watcher.clock
        held = sum(to - since for since, to in self.me.holds[self._holds:])
        watched = max(0.0, self.world.mono - observer.time - held)
        while watched > 0:
            observer.time += min(watched, clock.cap)
            watched -= clock.cap
            clock.advance(observer.time)
        if held:
            observer.time += held
            clock.advance(observer.time)
        self._holds = len(self.me.holds)

    def judge(self, child: ChildState, agent: Process | None = None) -> ChildState:
        """Return a child's state, `hung` if the evidence says so; `agent` is the process below an orchestrator."""
        identity, verdict = child.identity, child.verdict
        if identity is None or verdict is None or verdict.state != "alive" or identity.status != "active":
            return child
        self.catch_up()
        is_working = agent is not None and agent.alive
        inspection = self.watcher.inspect(identity, verdict, BusyAgent() if is_working else None)
        if inspection.evidence is None:
            return child
        proc = self.world.find(identity.pid, identity.start_ticks)
        self.is_late |= any(each is not None and each.quiet_since is not None for each in (proc, agent))
        if inspection.verdict.state == "hung":
            rule = inspection.evidence.rule
            hung = agent if rule.startswith("agent") and agent else proc
            if hung is not None:
                self.world.check.hung(self.me, hung, inspection.evidence.timeout)
        return ChildState(identity, inspection.verdict, child.observation, inspection.evidence)


# ---- a process -------------------------------------------------------------------------------------------------------


class SimulatedProcess:
    """What all processes share: registering, the loop, and the effects of a supervisor (`processes.supervisor`)."""

    HANDLERS: ClassVar[Mapping[ActionKind, Callable[..., Effect]]] = {}
    rarest_turn: ClassVar[float] = 4.0
    """Seconds between two turns without a fingerprint, at most; more than a rescan, to spare the simulation."""

    def __init__(self, world: World, me: Process) -> None:
        self.world, self.me, self.key = world, me, me.key
        self.run: Run = world.runs[me.key.run]
        self.journal = world.journal_of(self.key)
        self.epoch = 0
        self.stopping = self.has_ended = False
        self.decision = Decision([])
        self._idle_turns = 0
        self.idle = TIMING.rescan
        self.watch = Watch(world, me)

    @classmethod
    def body(cls, world: World, me: Process) -> Steps:
        """Return the process as the world runs it."""
        return cls(world, me).main()

    @property
    def stopping(self) -> bool:
        """Return whether it was told to stop."""
        return self.me.is_stopping

    @stopping.setter
    def stopping(self, is_stopping: bool) -> None:
        self.me.is_stopping = is_stopping

    # ---- the loop

    def main(self) -> Steps:
        """Register, recover, then turn until the end; abandon what is its own when fenced."""
        try:
            yield from self.register()
            yield from self.recover()
            yield None
            while not self.has_ended:
                self.me.is_touched = False
                again = yield from self.turn()
                if self.has_ended:
                    return
                if self.world.life_locks.get(self.key) is not self.me:
                    raise Fenced("the life lock was removed or replaced")
                seconds = 0.0 if again else self._sleep()
                if not again:
                    self.check_sleep(self.world.mono + seconds)
                    self._check_idle(seconds)
                yield seconds
                if self.me.terms and not self.me.stubborn:
                    self.stopping, self.me.terms = True, 0
        except Fenced:
            yield from self.abandon()
            raise

    def _sleep(self) -> float:
        """Return the seconds until the next turn.

        A rescan only compares fingerprints: what time alone changes is found at a planned wake-up, or very late.
        Without a fingerprint each rescan brings a turn; a simulated one comes a little later each time.
        """
        longest = TIMING.beat_timeout / 5 if self.watch.is_late else LONGEST_SLEEP
        self.watch.is_late = False
        self.idle = longest if self.has_fingerprint() else min(2 * self.idle, self.rarest_turn, longest)
        if self.me.is_touched:  # since the turn started: the fingerprint has changed
            return TIMING.rescan
        wake_at = self.decision.wake_at
        return self.idle if wake_at is None else max(0.0, min(self.idle, wake_at - self.world.mono))

    def _check_idle(self, seconds: float) -> None:
        """Check that it is not busy waiting."""
        self._idle_turns = self._idle_turns + 1 if seconds < AT_ONCE and not self.me.is_touched else 0
        if self._idle_turns > MAX_IDLE_TURNS:
            raise Violation(f"{self.me.name} is busy waiting")

    def check_sleep(self, until: float) -> None:
        """Check that nothing is overslept until this monotonic time."""

    def has_fingerprint(self) -> bool:
        """Return whether the real process would have a fingerprint now (`loop.Process.fingerprint`)."""
        return not self.stopping

    def register(self) -> Effect:
        """Do the child's half of a start."""
        world, me, key = self.world, self.me, self.key
        limit = from_iso(self._check_lease(world.identities.get(key)).spawn_deadline or world.now)
        yield None
        while key in world.life_locks:
            if world.wall > limit:
                raise Refused("the life lock stays held")
            yield 0.5
        world.life_locks[key] = me
        yield None
        world.write_identity(
            me, key, lambda old: incarnation.activate(self._check_lease(old), world.origin(me), world.now))
        me.registered = True
        yield None
        link_hook(world, me, key, me.incarnation)
        yield None

    def _check_lease(self, found: Identity | None) -> Identity:
        if found is None or found.incarnation != self.me.incarnation or found.status != "starting":
            raise Refused("this incarnation was not started for the record")
        return found

    def recover(self) -> Effect:
        """Open the journal as its writer, and apply what earlier incarnations left."""
        for entry in self.open_journal():
            self.apply(entry)
        yield None
        self.record(ProcessOpened(self.me.incarnation))

    def open_journal(self) -> list[Entry]:
        """Return the entries of the own journal, which is synced from here on."""
        entries = list(self.journal.entries)
        self.epoch = (entries[-1].epoch if entries else 0) + 1
        self.journal.synced = len(entries)
        return entries

    def turn(self) -> Effect:
        """Observe, decide, act; return whether to turn again at once."""
        raise NotImplementedError

    def abandon(self) -> Effect:
        """End what this process started and no successor can use, when fenced."""
        yield from ()

    def perform(self, actions: list[Action], view: Any) -> Effect:
        """Carry out the actions of a turn; return whether anything was done that a new turn should follow at once."""
        for action in actions:
            yield from self.HANDLERS[action.kind](self, action, view)
            yield None
            if self.has_ended:
                break
        if any(action.kind not in (ActionKind.TERMINATE, ActionKind.STOP_JOB) for action in actions):
            self.idle = TIMING.rescan
            return True
        return False

    def end(self, reason: str) -> Effect:  # of a departure, or of a run's status
        """Record the own end; the lock goes with the process."""
        self.world.write_identity(self.me, self.key, lambda old: mark_ended(existing(old), "terminated",
                                                                            self.world.now, reason, Departure(reason)),
                                  incarnation=self.me.incarnation)
        self.has_ended = True
        yield None

    # ---- journal

    def apply(self, entry: Entry) -> None:
        """Apply an own record to the state."""

    def record(self, event: Event) -> None:
        """Append a record without waiting for the disk."""
        self.apply(self.world.append(self.me, self.journal, event.kind, encode(event), self.epoch))

    def record_synced(self, event: Event) -> Effect:
        """Append a record and wait until it is on the disk."""
        entry = self.world.append(self.me, self.journal, event.kind, encode(event), self.epoch)
        yield None
        self.journal.synced = len(self.journal.entries)
        self.apply(entry)
        yield None

    def record_payload(self, action: Action, _view: object) -> Effect:
        """Record what an action only journals."""
        yield from self.record_synced(cast("Event", action.payload))

    # ---- children

    def attempt_of(self, _name: str) -> int:
        """Return the current attempt of a node."""
        return self.me.attempt

    def replace_child(self, child: ChildState, why: str, death_class: str = death_classes.CRASH) -> Effect:
        """Fence and sweep a child."""
        assert child.identity is not None
        yield from replace_incarnation(self.world, self.me, child.identity, why,
                                       death_classes.HUNG if child.hung else death_class)

    def record_death(self, child: ChildState) -> Effect:
        """Journal the death of a fenced child, after its parent was told."""
        assert child.identity is not None
        identity = child.identity
        yield from sweep(self.world, self.me, identity)
        death = ChildDied(identity.key.full, identity.incarnation, self.world.mono, self.world.boot_id,
                          self.attempt_of(identity.name), identity.reason, identity.metadata.get("class", "crash"))
        yield from self.report_death(death)
        yield from self.record_synced(death)

    def report_death(self, death: ChildDied) -> Effect:
        """Report a death to the parent before it is recorded: afterwards no successor would."""
        yield from ()

    def park(self, child: ChildState, why: str, cool_down: float = 600.0) -> Effect:
        """Park a child: its identity, then the record."""
        assert child.identity is not None
        metadata = {"reason": why, "probe_at": iso(self.world.wall + cool_down)}

        def parked(old: Identity | None) -> Identity:
            is_over = old.status in ("crashed", "terminated")
            return change_status(old, "parked", metadata={**old.metadata, **metadata}) if is_over else old

        self.world.write_identity(self.me, child.identity.key, parked)
        yield None
        yield from self.record_synced(ChildParked(
            child.identity.key.full, child.identity.incarnation, why, self.world.mono, self.world.boot_id,
            self.attempt_of(child.identity.name)))

    def start_record(self, started: Identity, previous: ChildState, action: Action) -> ChildSpawned:
        attempt = self.attempt_of(started.name)
        spawned = ChildSpawned(started.key.full, started.incarnation, attempt, action.why,
                               follows=what_it_follows(previous, attempt, started.incarnation))
        if action.kind is not ActionKind.PROBE:
            return spawned
        return replace(spawned, probe=True, monotonic=self.world.mono, boot_id=self.world.boot_id)

    def start_child(self, request: SpawnRequest, body: Callable[[World, Process], Steps], previous: ChildState,
                    action: Action) -> Effect:
        """Start a child and record that; return whether no other was faster."""
        try:
            started = yield from start_incarnation(self.world, self.me, request, body)
        except START_RACES:
            return False
        self.record(self.start_record(started, previous, action))
        return True

    def terminate(self, child: ChildState) -> None:
        """Send SIGTERM through a verified pidfd."""
        identity = child.identity
        if identity and identity.status in ("active", "held") and \
                (proc := self.world.find(identity.pid, identity.start_ticks)):
            proc.terms += 1
            if proc.registered:
                self.world.wake(proc.key)

    # ---- signals

    def send(self, recipient: Key, payload: Payload, *, node: str | None = None, attempt: int = 0,
             id_: str = "") -> None:
        """Write a signal."""
        self._post(recipient, payload.type, payload.to_data(), node, attempt, id_ or self.world.fresh())

    def forward(self, recipient: Key, signal: Signal) -> None:
        """Pass a signal on under its own id."""
        self._post(recipient, signal.signal_type, signal.payload, signal.node_id, signal.attempt, signal.id)

    def _post(self, recipient: Key, type_: str, data: dict[str, Any], node: str | None, attempt: int,
              id_: str) -> None:
        source = {"role": self.key.role, "name": self.key.name, "incarnation": self.me.incarnation}
        self.world.post(Signal(id_, source, {"role": recipient.role, "name": recipient.name}, type_, recipient.run,
                               self.world.now, node, attempt, data))

    def acknowledge(self, action: Action) -> None:
        """Take a signal that was applied out of the inbox."""
        self.world.acknowledge(self.key, str(action.expect(ApplySignal).posted.path))

    def refuse_signal(self, action: Action, _view: object) -> Effect:
        """Record that a signal is void, and take it out of the inbox."""
        self.record(SignalRefused(str(action.expect(ApplySignal).posted.path), action.why))
        yield None
        self.refuse(action)

    def refuse(self, action: Action) -> None:
        """Take a signal that is void out of the inbox."""
        self.world.refuse(self.key, str(action.expect(ApplySignal).posted.path))


def death_class_of(action: Action) -> str:
    """Return how the restart policy classes the end that a REPLACE brings."""
    return action.payload.death_class if isinstance(action.payload, ReplaceChild) else death_classes.CRASH


def guardian_key(run: str) -> Key:
    return key_of("guardian", PIPELINE, run)


def launcher_key_of(run: str) -> Key:
    return key_of("launch", "launch", run)
