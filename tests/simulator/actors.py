"""The layers as generators: observe, decide with the real pure functions, act in atomic steps.

Each follows its thin counterpart in `garrison.processes` act by act; what is decided is called there (always through
its module, so that a test may break a rule). A `yield` stands wherever the real layer could be killed or overtaken.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from tests.simulator.world import Process, Run, Steps, World, key_of, marker_of

from garrison.config import Timing
from garrison.errors import AlreadyAlive, Fenced, ForbiddenTransition, Refused
from garrison.merge import batch
from garrison.merge.entry import MergeEntry, entry_id
from garrison.merge.outcome_signals import to_signal
from garrison.processes import run_state
from garrison.processes.actions import Action, ApplySignal, Decision, ReplaceChild, SendSignal
from garrison.processes.guardian import flow_policy
from garrison.processes.guardian import policy as guardian_policy
from garrison.processes.guardian.policy import advance_hook, implied_phase
from garrison.processes.guardian.view import GuardianView
from garrison.processes.launcher import policy as launcher_policy
from garrison.processes.launcher.policy import LauncherFacts, LauncherView
from garrison.processes.merge_client import SIGNAL_GRACE, MergeStatus
from garrison.processes.run_flow import RunFlow
from garrison.processes.run_state import RUN_TRANSITIONS, RunState
from garrison.processes.runner import policy as runner_policy
from garrison.processes.runner.policy import RunnerFacts, RunnerView
from garrison.records import hook as hooks
from garrison.records.events import (
    ChildDied,
    ChildParked,
    ChildSpawned,
    FactRecorded,
    FlowAdvanced,
    GateChanged,
    GuardianSignal,
    GuardianUnparked,
    JobStarted,
    LauncherEnded,
    LauncherSignal,
    NodeCancelled,
    NodeChanged,
    ProbeHealthy,
    ProcessOpened,
    RunChanged,
    RunnerSignal,
    SignalRefused,
    decode,
    encode,
)
from garrison.records.identity import ALIVE, Identity, change_status, mark_ended
from garrison.records.journal import Entry
from garrison.records.names import Key, launcher_key
from garrison.records.run import Result
from garrison.records.signals import Payload, RunnerExited, Signal, find_objection
from garrison.supervise import hang_detector, restart
from garrison.supervise import incarnation as lease
from garrison.supervise.decisions import ChildState
from garrison.supervise.incarnation import SpawnRequest
from garrison.supervise.restart import Policy
from garrison.supervise.verdict import Verdict
from garrison.system.clock import from_iso, iso

TIMING = Timing(beat_timeout=30.0)
GUARDIAN = "pipe"
PHASES = list(hooks.PHASES)
Does = Generator[float | None, None, Any]


# ---- start and replace, as supervise.start and supervise.replace do them


def start_life(w: World, me: Process, wish: SpawnRequest, body: Callable[[World, Process], Steps],
               said: Callable[[Identity], None] | None = None) -> Does:
    """Lease, process, hook (the first one before the process); returns the leased identity. `said`: what is told with
    the lease."""
    key, judged = wish.key, w.view(wish.key).verdict

    def next_life(old: Identity | None) -> Identity:
        return lease.grant_lease(old, judged, wish, w.me(me), now=w.now, fresh_id=w.fresh(),
                           deadline=iso(w.wall + TIMING.spawn_deadline))

    leased = w.write_identity(me, key, next_life)
    yield None
    if said is not None:
        said(leased)
        yield None
    if key not in w.hooks:
        link_hook(w, me, key, leased.incarnation)
        yield None
    w.spawn("layer", key, leased.incarnation, body, attempt=int(wish.metadata.get("attempt", 1)))
    yield None
    link_hook(w, me, key, leased.incarnation)
    yield None
    return leased


def link_hook(w: World, me: Process, key: Key, incarnation: int) -> None:
    """The spawner and the child both do it, whoever is first."""
    w.write_hook(me, key, lambda old: lease.next_hook(old, key, incarnation, w.now, w.fresh()))


def replace_life(w: World, me: Process, judged: Identity, why: str, kind: str = restart.CRASH) -> Does:
    """Fence, then sweep; nothing if the record has moved on."""
    def crash(old: Identity | None) -> Identity:
        if old is None or old.incarnation != judged.incarnation:
            raise Fenced("it has moved on")
        if old.status not in ALIVE:
            return old
        fenced = mark_ended(old, "crashed", w.now, why)
        marked = restart.REBOOT if judged.boot_id != w.boot_id else kind
        return replace(fenced, metadata={**fenced.metadata, "class": marked})

    try:
        fenced = w.write_identity(me, judged.key, crash)
    except Fenced:
        return
    yield None
    yield from sweep(w, me, fenced)


def sweep(w: World, me: Process, fenced: Identity) -> Does:
    """Kill what is left of a fenced life, until none is, or what is left is blocked in the kernel."""
    root = w.find(fenced.pid, fenced.start_ticks) if fenced.boot_id == w.boot_id and not fenced.spawn_deadline else None
    marker = marker_of(fenced.key, fenced.incarnation)
    while left := [proc for proc in [*w.bearers(marker), *([root] if root and root.alive else [])]
                   if proc is not me and not proc.doomed and not proc.revenant]:
        w.kill(w.rng.choice(left), f"swept by {me.name}", blocked=True)
        yield None


class Watch:
    """A supervisor's eye, as `supervise.watch` has it, over the real rules of evidence."""

    def __init__(self, w: World, me: Process) -> None:
        self.w, self.me, self.last, self.holds = w, me, w.mono, 0
        self.cap = TIMING.beat_timeout / 4
        self.time = w.mono
        self.clock = hang_detector.WatchClock(self.cap)
        self.clock.advance(self.time)
        self.lives: dict[tuple[str, str], tuple[int, hang_detector.EvidenceTimes, list[float]]] = {}
        self.late = False

    def now(self) -> float:
        """Watched seconds: a planned sleep is watched, being held up oneself is not."""
        held = sum(to - since for since, to in self.me.holds[self.holds:])
        watched = max(0.0, self.w.mono - self.last - held)
        while watched > 0:
            self.time += min(watched, self.cap)
            watched -= self.cap
            self.clock.advance(self.time)
        if held:
            self.time += held
            self.clock.advance(self.time)
        self.last, self.holds = self.w.mono, len(self.me.holds)
        return self.clock.watched

    def look(self, view: ChildState, agent: Process | None = None) -> ChildState:
        """The same view, `hung` if the evidence says so."""
        identity, judged = view.identity, view.verdict
        if identity is None or judged is None or judged.state != "alive" or identity.status != "active":
            return view
        at, proc = self.now(), self.w.find(identity.pid, identity.start_ticks)
        who = identity.role, identity.name
        known = self.lives.get(who)
        if known is None or known[0] != identity.incarnation:
            known = self.lives[who] = (identity.incarnation, hang_detector.EvidenceTimes(at),
                                       [0.0, at, self.clock.missed])
        _, signs, looks = known
        if proc is None:
            return view
        quiet = 0.0 if proc.quiet_since is None else self.w.t - proc.quiet_since
        unwatched = self.clock.missed - looks[2]
        signs.note("beat", self.w.t - quiet, at - min(max(0.0, quiet - unwatched), at - looks[1]))
        looks[1:] = [at, self.clock.missed]
        busy = agent is not None and agent.alive
        late = at - signs.latest["beat"] > TIMING.beat_timeout / 4
        self.late |= late or (busy and agent is not None and agent.quiet_since is not None)
        if not late and not busy:
            return view
        looks[0] += 1
        state = proc.state if quiet and proc.stopped_until > self.w.t else "S"
        signs.note("cpu", self.w.t - quiet, at)
        signs.hold_while("running", state != "T", at, signs.latest["beat"])
        stopped = int(busy and agent is not None and agent.state == "T" and agent.stopped_until > self.w.t)
        if agent is not None:
            signs.note("work", agent.quiet_since or (self.w.t, agent.alive), at)
            signs.hold_until_missed("unstopped", not stopped, at)
        seen = hang_detector.Evidence(identity.incarnation, signs.ages(at), state, int(busy), stopped,
                                 int(state == "D"), watched=at - signs.began)
        hang = hang_detector.find_hang(seen, TIMING.beat_timeout) if looks[0] > 1 else None
        if hang is None:
            return view
        self.w.check.hung(self.me, agent if hang.rule.startswith("agent") and agent else proc)
        return ChildState(identity, Verdict("hung", hang.why), None,
                          hang_detector.encode_evidence(seen, hang, TIMING.beat_timeout))


class Layer:
    """What all layers share: becoming the life, the loop, and the hands of a supervisor (`layers.crew`)."""

    def __init__(self, w: World, proc: Process) -> None:
        self.w, self.me, self.key = w, proc, proc.key
        self.run: Run = w.runs[proc.key.run]
        self.journal = w.journal_of(self.key)
        self.epoch = 0
        self.stopping = False
        self.exiting = False
        self.decision = Decision([])
        self.idle = TIMING.rescan
        self.watch = Watch(w, proc)

    @classmethod
    def body(cls, w: World, proc: Process) -> Steps:
        """The process."""
        return cls(w, proc).main()

    def main(self) -> Steps:
        """The process: live, and abandon what is one's own when fenced."""
        try:
            yield from self.live()
        except Fenced:
            yield from self.abandon()
            raise

    def abandon(self) -> Does:
        """Fenced: what one started oneself and nobody else may use is ended."""
        yield from ()

    def live(self) -> Steps:
        """Become the life, recover, then turn until the end."""
        yield from self.register()
        yield from self.recover()
        yield None
        while True:
            again = yield from self.turn()
            if self.exiting:
                return
            if self.w.life.get(self.key) is not self.me:
                raise Fenced("the life lock was removed or replaced")
            yield 0.0 if again else self._sleep()
            if self.me.terms:
                self.stopping, self.me.terms = True, 0

    def _sleep(self) -> float:
        """Until something is due, at the latest the timer; an idle timer slows down to spare the simulation."""
        self.idle = min(self.idle * 2, TIMING.beat_timeout / 5 if self.watch.late else 60.0)
        self.watch.late = False
        wake_at = self.decision.wake_at
        return self.idle if wake_at is None else max(0.0, min(self.idle, wake_at - self.w.mono))

    def register(self) -> Does:
        """The child's half of a start."""
        w, me, key = self.w, self.me, self.key
        limit = from_iso(self._leased(w.identities.get(key)).spawn_deadline or w.now)
        yield None
        while key in w.life:
            if w.wall > limit:
                raise Refused("the life lock stays held")
            yield 0.5
        w.life[key] = me
        yield None
        w.write_identity(me, key, lambda old: lease.activate(self._leased(old), w.me(me), w.now))
        me.registered = True
        yield None
        link_hook(w, me, key, me.incarnation)
        yield None

    def _leased(self, found: Identity | None) -> Identity:
        if found is None or found.incarnation != self.me.incarnation or found.status != "starting":
            raise Refused("this life was not started for the record")
        return found

    def recover(self) -> Does:
        """Read what earlier lives left."""
        self.open()
        yield None
        self.log(ProcessOpened(self.me.incarnation))

    def open(self) -> list[Entry]:
        """Open the own journal as its writer."""
        entries = list(self.journal.entries)
        self.epoch = (entries[-1].epoch if entries else 0) + 1
        self.journal.synced = len(entries)
        return entries

    def turn(self) -> Does:
        """Observe, decide, act; whether to turn again at once."""
        raise NotImplementedError

    def fold(self, entry: Entry) -> None:
        """Fold an own record."""

    def log(self, event: Any) -> None:
        """Append a record without waiting for the disk."""
        self.fold(self.w.append(self.me, self.journal, event.kind, encode(event), self.epoch))

    def log_sync(self, event: Any) -> Does:
        """Append a record and wait until it is on the disk."""
        entry = self.w.append(self.me, self.journal, event.kind, encode(event), self.epoch)
        yield None
        self.journal.synced = len(self.journal.entries)
        self.fold(entry)
        yield None

    def perform(self, actions: list[Action], view: Any) -> Does:
        """Do the acts of a turn, as far as the end allows; whether anything was done."""
        for act in actions:
            yield from getattr(self, f"do_{act.kind}")(act, view)
            yield None
            if self.exiting:
                break
        if any(act.kind not in ("term", "stop_job") for act in actions):
            self.idle = TIMING.rescan
            return True
        return False

    def replace(self, view: ChildState, why: str, kind: str = restart.CRASH) -> Does:
        """Fence and sweep."""
        assert view.identity is not None
        yield from replace_life(self.w, self.me, view.identity, why, restart.HUNG if view.hung else kind)

    def attempt_of(self, who: str) -> int:
        """The current attempt of a node."""
        return self.me.attempt

    def death(self, view: ChildState) -> Does:
        """Journal the death of a fenced life."""
        assert view.identity is not None
        identity = view.identity
        yield from sweep(self.w, self.me, identity)
        death = ChildDied(identity.key.full, identity.incarnation, self.w.mono, self.w.boot_id,
                          self.attempt_of(identity.name), identity.reason, identity.metadata.get("class", "crash"))
        yield from self.tell_of_death(death)
        yield from self.log_sync(death)

    def tell_of_death(self, death: ChildDied) -> Does:
        """Say it upward, before it is recorded: once it is, nobody would."""
        yield from ()

    def park(self, view: ChildState, why: str) -> Does:
        """Give a name up; returns the record's data."""
        assert view.identity is not None

        def parked(old: Identity | None) -> Identity:
            assert old is not None
            return old if old.status not in ("crashed", "terminated") else change_status(old, "parked",
                                                                                         metadata={"reason": why})

        self.w.write_identity(self.me, view.identity.key, parked)
        yield None
        yield from self.log_sync(ChildParked(view.identity.key.full, view.identity.incarnation, why, self.w.mono,
                                             self.w.boot_id, self.attempt_of(view.identity.name)))

    def begun(self, leased: Identity, act: Action) -> ChildSpawned:
        """What is journaled of a start."""
        attempt = self.attempt_of(leased.name)
        if act.kind != "probe":
            return ChildSpawned(leased.key.full, leased.incarnation, attempt, act.why)
        return ChildSpawned(leased.key.full, leased.incarnation, attempt, act.why, True, self.w.mono, self.w.boot_id)

    def term(self, view: ChildState) -> None:
        """SIGTERM through a verified pidfd."""
        identity = view.identity
        if identity and identity.status in ("active", "held") and \
                (proc := self.w.find(identity.pid, identity.start_ticks)):
            proc.terms += 1
            if proc.registered:
                self.w.wake(proc.key)

    def tell(self, recipient: Key, kind: str, payload: dict[str, Any], *, node: str | None = None, attempt: int = 0,
             id_: str = "") -> None:
        """Write a signal."""
        source = {"role": self.key.role, "name": self.key.name, "incarnation": self.me.incarnation}
        self.w.post(Signal(id_ or self.w.fresh(), source, {"role": recipient.role, "name": recipient.name}, kind,
                           recipient.run, self.w.now, node, attempt, payload))

    def pass_on(self, recipient: Key, signal: Signal) -> None:
        """Say a signal that came to us again, under its own id."""
        self.tell(recipient, signal.signal_type, signal.payload, node=signal.node_id, attempt=signal.attempt,
                  id_=signal.id)

    def refuse(self, act: Action) -> None:
        """Out of the inbox, with a reason."""
        self.w.take(self.key, str(act.expect(ApplySignal).posted.path), refused=True)

    def end(self, reason: str) -> Does:
        """`terminated`, then the lock goes with the process."""
        self.w.write_identity(self.me, self.key, lambda old: mark_ended(_there(old), "terminated", self.w.now, reason),
                              incarnation=self.me.incarnation)
        self.exiting = True
        yield None


def _there(old: Any) -> Any:
    if old is None:
        raise Fenced("the record is gone")
    return old


# ---- launcher


class Launcher(Layer):
    """`layers.launcher`."""

    def __init__(self, w: World, proc: Process) -> None:
        super().__init__(w, proc)
        self.guardian = key_of("guardian", GUARDIAN, self.run.id)
        self.facts = LauncherFacts()
        self.state = RunState()
        self.read = self.seq = 0
        self.first: Entry | None = None
        self.policy = Policy()
        self.stopping_since: float | None = None
        self.to_resume, self.lifts = proc.code == RESUME, False
        proc.code = None

    def recover(self) -> Does:
        for entry in self.open():
            self.fold(entry)
        yield None
        self.log(ProcessOpened(self.me.incarnation))

    def fold(self, entry: Entry) -> None:
        event = decode(entry)
        assert event is not None
        self.facts.apply(event)

    def turn(self) -> Does:
        entries = self.run.journal.entries
        if len(entries) < self.read or (entries and entries[0] is not self.first):
            self.read = 0  # another file, as `journal.Reader` sees it
        self.first = entries[0] if entries else None
        for entry in entries[self.read:]:
            if entry.seq > self.seq or (entry.kind == "snapshot" and entry.seq == self.seq):
                self.state.apply(entry)
                self.seq = entry.seq
        self.read = len(entries)
        if self.w.rng.random() < 0.3:
            yield None
        w, now = self.w, self.w.mono
        if self.stopping and self.stopping_since is None:
            self.stopping_since = now
        overdue = self.stopping_since is not None and now - self.stopping_since > TIMING.stop_guardian
        others = self.stopping and any(
            w.view(key).living for key in list(w.identities)
            if key.run == self.run.id and key.role in ("runner", "orchestrator", "processor"))
        status, to_resume = launcher_policy.resume_status(
            self.state, launcher_policy.resume_id(self.run.id, self.me.incarnation), sent=self.lifts,
            wanted=self.to_resume and not self.state.over)
        view = LauncherView(
            now, w.boot_id, run_status=status, guardian=self.watch.look(w.view(self.guardian)),
            deaths=self.facts.deaths,
            inbox=w.pending(self.key), applied=frozenset(self.facts.applied), stopping=self.stopping, overdue=overdue,
            others_living=others, to_resume=to_resume)
        yield None
        self.decision = launcher_policy.decide(view, self.policy)
        return (yield from self.perform(self.decision.actions, view))

    def do_take(self, act: Action, view: LauncherView) -> Does:
        posted = act.expect(ApplySignal).posted
        assert posted.signal is not None
        if posted.signal.id not in self.facts.applied:
            yield from self.log_sync(LauncherSignal(posted.signal.id, posted.signal.signal_type,
                                                    posted.signal.payload))
        self.w.take(self.key, str(posted.path))

    def do_refuse(self, act: Action, view: LauncherView) -> Does:
        self.refuse(act)
        yield None

    def do_resume(self, act: Action, view: LauncherView) -> Does:
        if view.guardian.identity is not None and view.guardian.identity.status == "parked":
            self.log(GuardianUnparked(self.guardian.full))
            yield None
            self.w.write_identity(self.me, self.guardian, lambda old: mark_ended(_there(old), "terminated", self.w.now,
                                                                           "stopped")
                                  if _there(old).status == "parked" else _there(old))
            yield None
        self.tell(self.guardian, "GUIDANCE", {"action": "resume"},
                  id_=launcher_policy.resume_id(self.run.id, self.me.incarnation))
        self.to_resume, self.lifts = False, True
        yield None

    def do_say_stop(self, act: Action, view: LauncherView) -> Does:
        last = view.guardian.identity.incarnation if view.guardian.identity is not None else 0
        self.tell(self.guardian, "GUIDANCE", {"action": "stop"},
                  id_=f"{self.run.id}-stop-{self.me.incarnation}-{last}")
        yield None

    def do_start(self, act: Action, view: LauncherView) -> Does:
        previous = view.guardian.identity
        if previous is not None and previous.status == "crashed":
            yield from sweep(self.w, self.me, previous)
        wish = SpawnRequest(self.guardian, self.key, journal_incarnation=self.facts.incarnation)
        try:
            leased = yield from start_life(self.w, self.me, wish, Guardian.body)
        except (AlreadyAlive, Refused, Fenced):
            return
        self.log(ChildSpawned(leased.key.full, leased.incarnation))

    def do_replace(self, act: Action, view: LauncherView) -> Does:
        yield from self.replace(view.guardian, act.why)

    def do_record(self, act: Action, view: LauncherView) -> Does:
        yield from self.death(view.guardian)

    def do_park(self, act: Action, view: LauncherView) -> Does:
        yield from self.park(view.guardian, act.why)

    def do_term(self, act: Action, view: LauncherView) -> Does:
        self.term(view.guardian)
        yield None

    def do_write_stopped(self, act: Action, view: LauncherView) -> Does:
        if self.guardian in self.w.life:
            return
        self.w.life[self.guardian] = self.me
        yield None
        if run_state.replay_run(self.run.journal.entries).status == "running":
            journal = self.run.journal
            epoch = (journal.entries[-1].epoch if journal.entries else 0) + 1
            self.w.append(self.me, journal, "run", {"status": "stopped", "reason": "without a guardian"}, epoch)
            yield None
            journal.synced = len(journal.entries)
        del self.w.life[self.guardian]
        yield None

    def do_end(self, act: Action, view: LauncherView) -> Does:
        self.log(LauncherEnded(act.target, act.why))
        yield None
        yield from self.end(act.target)


def _death_class(act: Action) -> str:
    return act.payload.death_class if isinstance(act.payload, ReplaceChild) else restart.CRASH


RESUME = -100
"""Laid in a launcher process's `code` before its first step: `--resume`."""


# ---- guardian


class Guardian(Layer):
    """`layers.guardian`."""

    def __init__(self, w: World, proc: Process) -> None:
        super().__init__(w, proc)
        self.processor = key_of("processor", self.key.name, self.run.id)
        self.state = RunState(flow=RunFlow(self.run.plan.program, self.run.id))
        self.policy = Policy(total=10)
        self.leaving_since: float | None = None
        self.phase = "planning"

    def recover(self) -> Does:
        for entry in self.open():
            self.state.apply(entry)
        yield None
        self.log(ProcessOpened(self.me.incarnation))

    def fold(self, entry: Entry) -> None:
        self.state.apply(entry)

    def _runner(self, node: str) -> Key:
        return key_of("runner", node, self.run.id)

    def observe(self) -> Does:
        """In the order of the real one; each part may be older than the next."""
        w = self.w
        runners = {name: self.watch.look(w.view(self._runner(name))) for name in self.state.nodes}
        leaving = self.stopping or self.state.status in ("done", "failed")
        strays = {}
        if leaving or self.state.held:
            for name in self.state.nodes if leaving else set(self.state.held) & set(self.state.nodes):
                life = w.view(key_of("orchestrator", name, self.run.id))
                if not runners[name].living and life.identity and life.identity.status in ALIVE:
                    strays[name] = life
        if w.rng.random() < 0.3:
            yield None
        inbox, processor = w.pending(self.key), self.watch.look(w.view(self.processor))
        if w.rng.random() < 0.3:
            yield None
        merges = {entry.node: MergeStatus(entry.attempt, entry.status, entry.reason, entry.commit)
                  for entry in w.queue.entries.values() if entry.run == self.run.id}
        overdue = False
        if leaving:
            self.leaving_since = w.mono if self.leaving_since is None else self.leaving_since
            overdue = w.mono - self.leaving_since > TIMING.stop_runner
        return GuardianView(
            self.run.id, w.mono, w.boot_id, inbox=inbox, runners=runners, processor=processor, merges=merges,
            strays=strays, stopping=self.stopping, overdue=overdue, wall=w.wall, results=self._results())

    def _results(self) -> dict[str, Result | None]:
        results = {}
        for place in self.state.flow.places.values():
            node = self.state.nodes.get(place.node)
            if node is not None and node.status in ("validated", "failed") and flow_policy.is_at(node, place):
                results[place.node] = self.w.results.get((self.run.id, place.node, node.attempt))
        return results

    def turn(self) -> Does:
        view = yield from self.observe()
        yield None
        self.decision = guardian_policy.decide(self.run.plan, self.state, view, self.run.max_agents, self.policy,
                                               self.run.max_rework)
        if not self.decision.actions and self.state.status == "running" and not self.stopping:
            for full, circuit in self.state.circuits.items():
                self.w.check.probed(self.me, full, circuit, view.now, awaited=self._awaited(full))
        again = yield from self.perform(self.decision.actions, view)
        if not self.exiting and self.w.rng.random() < 0.02:
            self.w.compact(self.me, self.journal, run_state.to_snapshot(self.state), self.epoch)
            yield None
        if not self.exiting:
            yield from self.move_hook()
        return again

    def attempt_of(self, who: str) -> int:
        return self.state.nodes[who].attempt if who in self.state.nodes else 1

    def _awaited(self, full: str) -> bool:
        """Whether somebody waits for that parked name to go on."""
        key = Key.parse(full)
        if key.role == "processor":
            return "processor" not in self.state.held and "impl_complete" in self.state.statuses.values()
        return self.state.nodes[key.name].status in ("active", "impl_complete") and key.name not in self.state.held

    def do_take(self, act: Action, view: GuardianView) -> Does:
        posted, event = act.expect(ApplySignal).posted, act.expect(ApplySignal).event
        signal = posted.signal
        if signal is not None and isinstance(event, GuardianSignal):
            if event.stuck is not None:
                self._escalate(f"orchestrator-{signal.node_id}", event.stuck.why, signal.node_id, f"{signal.id}-up")
                yield None
            if event.answer and signal.node_id:
                self.pass_on(self._runner(signal.node_id), signal)
                yield None
            for node in [*event.unparked, event.unhold or ""]:
                if node in self.state.nodes:
                    self.tell(self._runner(node), "GUIDANCE", {"action": "unpark"}, node=node,
                              id_=f"{signal.id}-{node}")
                    yield None
            yield from self.log_sync(event)
            if event.resume is not None:
                self.stopping, self.leaving_since = False, None
            if event.stop:
                self.stopping = True
        self.w.take(self.key, str(posted.path))

    def do_refuse(self, act: Action, view: GuardianView) -> Does:
        self.log(SignalRefused(str(act.expect(ApplySignal).posted.path), act.why))
        yield None
        self.refuse(act)

    def do_node(self, act: Action, view: GuardianView) -> Does:
        yield from self.log_sync(act.expect(NodeChanged))

    def do_flow(self, act: Action, view: GuardianView) -> Does:
        yield from self.log_sync(act.expect(FlowAdvanced))

    def do_gate(self, act: Action, view: GuardianView) -> Does:
        yield from self.log_sync(act.expect(GateChanged))

    def do_cancel(self, act: Action, view: GuardianView) -> Does:
        attempt = self.attempt_of(act.target)
        self.tell(self._runner(act.target), "GUIDANCE", {"action": "cancel", "text": act.why}, node=act.target,
                  attempt=attempt, id_=f"{self.run.id}-{act.target}-{attempt}-cancel")
        yield None
        yield from self.log_sync(NodeCancelled(act.target, attempt, act.why))

    def do_start(self, act: Action, view: GuardianView) -> Does:
        key, body = (self.processor, Processor.body) if act.target == "processor" else (self._runner(act.target),
                                                                                        Runner.body)
        previous = self._lives(act.target, view).identity
        if previous is not None and previous.status == "crashed":
            yield from sweep(self.w, self.me, previous)
        wish = SpawnRequest(key, self.key, metadata={"attempt": self.attempt_of(act.target)},
                    journal_incarnation=self.state.incarnations.get(key.full, 0))
        try:
            leased = yield from start_life(self.w, self.me, wish, body)
        except (AlreadyAlive, Refused, Fenced):
            return
        self.log(self.begun(leased, act))

    do_probe = do_start

    def do_heal(self, act: Action, view: GuardianView) -> Does:
        full = (self.processor if act.target == "processor" else self._runner(act.target)).full
        self.log(ProbeHealthy(full, self.state.circuit(full).probe))
        yield None

    def _lives(self, who: str, view: GuardianView) -> ChildState:
        return view.processor if who == "processor" else view.runners.get(who, ChildState())

    def do_replace(self, act: Action, view: GuardianView) -> Does:
        yield from self.replace(self._lives(act.target, view), act.why, _death_class(act))

    def do_record(self, act: Action, view: GuardianView) -> Does:
        yield from self.death(self._lives(act.target, view))

    def do_park(self, act: Action, view: GuardianView) -> Does:
        life = self._lives(act.target, view)
        assert life.identity is not None
        full = life.identity.key.full
        self._escalate(full, act.why, act.target, f"{full}-parked-{life.identity.incarnation}")
        yield None
        yield from self.park(life, act.why)

    def _escalate(self, who: str, why: str, node: str | None, id_: str) -> None:
        self.tell(key_of("launch", "launch", self.run.id), "ESCALATE", {"who": who, "why": why}, node=node, id_=id_)

    def do_term(self, act: Action, view: GuardianView) -> Does:
        self.term(self._lives(act.target, view))
        yield None

    def do_stray(self, act: Action, view: GuardianView) -> Does:
        yield from self.replace(view.strays[act.target], act.why, restart.STOP)

    def do_run(self, act: Action, view: GuardianView) -> Does:
        if act.target not in RUN_TRANSITIONS[self.state.status]:
            raise AssertionError(f"run {self.state.status} -> {act.target}")
        if act.target in ("done", "failed"):
            self.tell(key_of("launch", "launch", self.run.id), "PIPELINE_COMPLETE",
                      {"status": act.target, "reason": act.why}, id_=f"{self.run.id}-complete")
            yield None
        yield from self.log_sync(RunChanged(act.target, act.why))

    def do_end(self, act: Action, view: GuardianView) -> Does:
        yield from self.move_hook()
        yield from self.end(self.state.status)

    def move_hook(self) -> Does:
        """Bring the own hook to the phase the nodes imply."""
        wanted = implied_phase(self.state)
        if wanted == self.phase:
            return

        self.w.write_hook(self.me, self.key, lambda old: advance_hook(_there(old), wanted, self.w.now),
                          incarnation=self.me.incarnation)
        self.phase = wanted
        yield None


# ---- runner


class Runner(Layer):
    """`layers.runner`."""

    def __init__(self, w: World, proc: Process) -> None:
        super().__init__(w, proc)
        self.node = self.key.name
        self.task = replace(self.run.tasks[self.node], attempt=proc.attempt)
        self.fate = self.run.fates[self.node]
        self.orchestrator = key_of("orchestrator", self.node, self.run.id)
        self.guardian = key_of("guardian", GUARDIAN, self.run.id)
        self.facts = RunnerFacts()
        self.policy = Policy(total=10)
        self.phase = "planning"
        self.job: Process | None = None
        self.job_name = ""
        self.tree_ready = False
        self.orphaned_since: float | None = None
        self.stopping_since: float | None = None
        self.landed_since: float | None = None

    def recover(self) -> Does:
        for entry in self.open():
            self.fold(entry)
        self.phase = self.w.hooks[self.key].phase
        yield None
        self.log(ProcessOpened(self.me.incarnation))

    def fold(self, entry: Entry) -> None:
        self.facts.apply(entry, self.task.attempt)

    def turn(self) -> Does:
        w = self.w
        yield from self._poll_job()
        now, inbox, merge = w.mono, w.pending(self.key), self._merge()
        if w.rng.random() < 0.3:
            yield None
        life = w.view(self.orchestrator)
        if life.identity is not None:
            working = [proc for proc in w.procs.values() if proc.kind == "agent" and proc.key == self.orchestrator
                       and proc.incarnation == life.identity.incarnation]
            life = self.watch.look(life, working[0] if working else None)
        if w.rng.random() < 0.3:
            yield None
        result = w.results.get((self.run.id, self.node, self.task.attempt))
        if self.stopping and self.stopping_since is None:
            self.stopping_since = now
        overdue = self.stopping_since is not None and now - self.stopping_since > TIMING.stop_orchestrator
        view = RunnerView(
            self.task, self.phase, now, w.boot_id, inbox=inbox, orchestrator=life, result=result, merge=merge,
            merge_reported=self._merge_told(merge, now), worktree_ready=self.tree_ready,
            job=self.job_name if self.job else "",
            stopping=self.stopping, overdue=overdue, orphaned_for=self._alone(now), orphan_grace=TIMING.orphan_grace)
        yield None
        self.decision = runner_policy.decide(self.facts, view, self.policy)
        if not self.decision.actions and not self.stopping and not self.facts.failed and view.phase == "executing" \
                and result is None and not self.job and not life.living:
            w.check.probed(self.me, self.orchestrator.full, self.facts.circuit, now)
        return (yield from self.perform(self.decision.actions, view))

    def _merge(self) -> MergeStatus | None:
        if self.phase not in ("validating", "impl_complete"):
            return None
        found = [entry for entry in self.w.queue.entries_of(self.run.id, self.node)
                 if entry.attempt == self.task.attempt]
        return MergeStatus(found[-1].attempt, found[-1].status, found[-1].reason, found[-1].commit) if found else None

    def _merge_told(self, merge: MergeStatus | None, now: float) -> bool:
        if self.facts.merge_reported or merge is None or merge.status != "landed":
            return self.facts.merge_reported
        if self.landed_since is None:
            self.landed_since = now
        return now - self.landed_since > SIGNAL_GRACE

    def _alone(self, now: float) -> float | None:
        if any(self.w.view(key).living for key in (self.guardian, key_of("launch", "launch", self.run.id))):
            self.orphaned_since = None
            return None
        if self.orphaned_since is None:
            self.orphaned_since = now
        return now - self.orphaned_since

    def _poll_job(self) -> Does:
        if self.job is None or self.job.alive:
            return
        name, code, self.job, self.job_name = self.job_name, self.job.code, None, ""
        if self.stopping:
            return
        good = code == 0 and self.fate.at(self.task.attempt) != name
        value = "ok" if good else f"{name} ended with exit code {code or 1}"
        if (name, value) == ("setup", "ok"):
            yield from self._fact("setup_key", "key")
        yield from self._fact(name, value)

    def _fact(self, name: str, value: str | int, kind: str = "") -> Does:
        yield from self.log_sync(FactRecorded(name, value, self.task.attempt, kind))

    def do_take(self, act: Action, view: RunnerView) -> Does:
        posted, event = act.expect(ApplySignal).posted, act.expect(ApplySignal).event
        signal = posted.signal
        if signal is not None and isinstance(event, RunnerSignal) and signal.id not in self.facts.applied:
            if event.forward:
                self.pass_on(self.guardian if event.forward == "up" else self.orchestrator, signal)
                yield None
            yield from self.log_sync(event)
        self.w.take(self.key, str(posted.path))

    def do_again(self, act: Action, view: RunnerView) -> Does:
        self.phase = self.w.write_hook(self.me, self.key, lambda old: hooks.reopen(_there(old), self.w.now),
                                       incarnation=self.me.incarnation).phase
        yield None

    def do_refuse(self, act: Action, view: RunnerView) -> Does:
        self.log(SignalRefused(str(act.expect(ApplySignal).posted.path), act.why))
        yield None
        self.refuse(act)

    def do_tree(self, act: Action, view: RunnerView) -> Does:
        w, key = self.w, (self.run.id, self.node)
        if self.task.attempt > 1 and self.task.rework == "fresh" and not self.facts.has_worktree and key in w.trees:
            w.check.left_over(self.me, key)
            w.rescued.setdefault(key, set()).update(w.branches.get(key, []))
            w.trees.discard(key)
            yield None
        if self.task.attempt > 1 and self.task.rework == "fresh" and key not in w.trees:
            w.rescued.setdefault(key, set()).update(w.branches.get(key, []))
            w.branches[key] = []
        w.branches.setdefault(key, [])
        w.trees.add(key)
        w.made_for[key] = self.task.attempt
        yield None
        if self.task.attempt > 1 and not self.facts.has_worktree:
            yield from self._fact("tree", "made")
        self.tree_ready = True
        yield None

    def do_job(self, act: Action, view: RunnerView) -> Does:
        self.log(JobStarted(act.target, "", self.task.attempt))
        yield None
        self.job_name = act.target
        self.job = self.w.spawn("job", self.key, self.me.incarnation, job)

    def do_fact(self, act: Action, view: RunnerView) -> Does:
        yield from self.log_sync(act.expect(FactRecorded))

    def abandon(self) -> Does:
        if self.job is not None:
            self.w.kill(self.job, "abandoned")
        yield None

    def do_stop_job(self, act: Action, view: RunnerView) -> Does:
        if self.job is not None:
            self.w.kill(self.job, "stopped")
        yield None

    def do_move(self, act: Action, view: RunnerView) -> Does:
        self.phase = self.w.write_hook(self.me, self.key,
                                       lambda old: hooks.change_phase(_there(old), act.target, self.w.now),
                                       incarnation=self.me.incarnation).phase
        yield None

    def do_start(self, act: Action, view: RunnerView) -> Does:
        previous = view.orchestrator.identity
        if previous is not None:
            if previous.status == "crashed":
                yield from sweep(self.w, self.me, previous)
            self._close_session()
        wish = SpawnRequest(self.orchestrator, self.key, metadata={"attempt": self.task.attempt},
                    journal_incarnation=self.facts.incarnation)
        try:
            leased = yield from start_life(self.w, self.me, wish, Orchestrator.body)
        except (AlreadyAlive, Refused, Fenced):
            return
        self.log(self.begun(leased, act))

    do_probe = do_start

    def do_heal(self, act: Action, view: RunnerView) -> Does:
        self.log(ProbeHealthy(self.orchestrator.full, self.facts.circuit.probe, act.why, self.task.attempt))
        yield None

    def do_keep(self, act: Action, view: RunnerView) -> Does:
        yield None

    def _close_session(self) -> None:
        """The terminal's session of that name goes, with the orchestrator in it; what it started may live on."""
        for proc in [proc for proc in self.w.procs.values() if proc.key == self.orchestrator and proc.kind == "layer"
                     and not proc.revenant]:
            self.w.kill(proc, f"session closed by {self.me.name}", blocked=True)

    def do_replace(self, act: Action, view: RunnerView) -> Does:
        identity = view.orchestrator.identity
        if view.orchestrator.hung and identity is not None:
            self.tell(self.guardian, "ORCHESTRATOR_STUCK", {"incarnation": identity.incarnation, "why": act.why},
                      node=self.node, attempt=self.task.attempt,
                      id_=f"{self.orchestrator.full}-{identity.incarnation}-stuck")
            yield None
        yield from self.replace(view.orchestrator, act.why, _death_class(act))

    def do_record(self, act: Action, view: RunnerView) -> Does:
        yield from self.death(view.orchestrator)

    def tell_of_death(self, death: ChildDied) -> Does:
        self.tell(self.guardian, "ORCHESTRATOR_CRASHED", {"incarnation": death.incarnation}, node=self.node,
                  attempt=self.task.attempt, id_=f"{self.orchestrator.full}-{death.incarnation}-crashed")
        yield None

    def do_park(self, act: Action, view: RunnerView) -> Does:
        yield from self.park(view.orchestrator, act.why)

    def do_term(self, act: Action, view: RunnerView) -> Does:
        self.term(view.orchestrator)
        yield None

    def do_enqueue(self, act: Action, view: RunnerView) -> Does:
        w, run = self.w, self.run.id
        head = w.head(run, self.node)
        if head is None:
            raise Refused(f"there is no branch {self.node}; commit the work on it first")
        name = entry_id("queue", run, self.node, self.task.attempt, head)
        yield None
        while w.queue_lock is not None:
            yield 0.5
        if name not in w.queue.entries:
            waiting = [entry.id for entry in w.queue.entries_of(run, self.node)
                       if not entry.is_final and entry.status != "landing"]
            w.append_merge(self.me, "enq", {
                "entry": name, "run": run, "node": self.node, "attempt": self.task.attempt, "branch": self.node,
                "oid": head, "target": "main", "repo": "", "recipient": self.key.full, "supersedes": waiting})
            w.queue_lock = self.me
            yield None
            w.sync_merge()
            w.queue_lock = None
        yield None

    def do_say(self, act: Action, view: RunnerView) -> Does:
        message = act.expect(SendSignal)
        yield from self._report(message.payload, message.suffix)

    def _report(self, payload: Payload, suffix: str = "") -> Does:
        stem = f"{self.run.id}-{self.node}-{self.task.attempt}-{payload.type}-{suffix}"
        self.tell(self.guardian, payload.type, payload.to_data(), node=self.node, attempt=self.task.attempt, id_=stem)
        yield None

    def do_give_up(self, act: Action, view: RunnerView) -> Does:
        self._close_session()
        yield None
        key = (self.run.id, self.node)
        self.w.rescued.setdefault(key, set()).update(self.w.branches.get(key, []))
        self.w.trees.discard(key)
        yield None
        yield from self._report(RunnerExited(self.node, self.node, "failed", act.target, act.why))

    def do_tidy(self, act: Action, view: RunnerView) -> Does:
        self._close_session()
        yield None
        self.w.trees.discard((self.run.id, self.node))
        yield None
        units = self.w.branches.get((self.run.id, self.node))
        if units is not None:
            kept = self.w.archived.setdefault((self.run.id, self.node), [])  # an earlier visit's tip is kept beside it
            kept += [unit for unit in units if unit not in kept]
            yield None
            self.w.branches.pop((self.run.id, self.node), None)

    def do_end(self, act: Action, view: RunnerView) -> Does:
        if act.why == "stopped" and view.orchestrator.identity is not None:
            self._close_session()
            yield None
        yield from self.end(act.why)


def job(w: World, proc: Process) -> Steps:
    """Set-up or acceptance: takes a while."""
    for other in w.procs.values():
        if other is not proc and other.kind == "job" and other.key == proc.key and not other.doomed:
            raise AssertionError(f"{proc.name} runs beside {other.name}")
    yield 0.5 + 2 * w.rng.random()
    yield None


# ---- orchestrator


class Orchestrator(Layer):
    """`layers.orchestrator`, with an agent in a process of its own."""

    def __init__(self, w: World, proc: Process) -> None:
        super().__init__(w, proc)
        self.node = self.key.name
        self.fate = self.run.fates[self.node]
        self.agent: Process | None = None
        self.hook = w.hooks.get(self.key)
        self.asked = ""

    def recover(self) -> Does:
        self.hook = self.w.hooks[self.key]
        yield None

    def turn(self) -> Does:
        if self.agent is None:
            yield from self._begin()
            return True
        if (yield from self._read_mail()):
            return True
        yield from self._note_progress()
        self._ask()
        if self.agent.alive:
            if self.stopping:
                self.w.kill(self.agent, "stopped")
            return False
        if self.stopping:
            yield from self.end("stopped")
        else:
            yield from self._finish()
        return True

    def _begin(self) -> Does:
        if (self.run.id, self.node, self.me.attempt) in self.w.results:
            yield from self.end("done")
            return
        if self.stopping:
            yield from self.end("stopped")
            return
        yield from self._move("executing")
        if self.me.incarnation <= self.fate.crashes:
            yield 0.2
            self.exiting = True
            return  # crashed without a word
        self.agent = self.w.spawn("agent", self.key, self.me.incarnation, agent, attempt=self.me.attempt)
        self.agent.revenant = self.me.revenant
        yield None

    def abandon(self) -> Does:
        if self.agent is not None:
            self.w.kill(self.agent, "abandoned")
        yield None

    def _read_mail(self) -> Does:
        """Hand answers to the work, whose files keep them, before they are taken; whether there was one."""
        found = False
        for posted in self.w.pending(self.key):
            signal = posted.signal
            if signal is None or find_objection(signal, self.run.id, {}, {self.key.full: self.me.incarnation}) or \
                    signal.signal_type != "INPUT_RESPONSE":
                self.w.take(self.key, str(posted.path), refused=True)
                continue
            self.w.answers.add(str(signal.payload["question_id"]))
            yield None
            self.w.take(self.key, str(posted.path))
            found = True
        return found

    def _ask(self) -> None:
        """Tell the runner the open question, once a life."""
        question = self.w.questions.get((self.run.id, self.node, self.me.attempt), "")
        if question in ("", self.asked) or question in self.w.answers:
            return
        self.tell(key_of("runner", self.node, self.run.id), "NEEDS_INPUT", {"question": "?", "question_id": question},
                  node=self.node, attempt=self.me.attempt,
                  id_=f"{self.run.id}-{self.node}-{self.me.attempt}-{question}-asked")
        self.asked = question

    def _note_progress(self) -> Does:
        units = self.w.branches.get((self.run.id, self.node), [])
        if not units or self.hook is None or self.hook.last_committed_node == units[-1]:
            return
        last = units[-1]
        self.hook = self.w.write_hook(
            self.me, self.key, lambda old: hooks.update_notes(_there(old), self.w.now, text=f"after {last}",
                                                      last_committed=last), incarnation=self.me.incarnation)
        yield None

    def _finish(self) -> Does:
        yield from self._note_progress()
        assert self.agent is not None
        code = self.agent.code or (1 if self.fate.at(self.me.attempt) == "fail" else 0)
        ok = code == 0
        self.w.write_result(self.me, Result(self.run.id, self.node, self.me.attempt, self.me.incarnation,
                                            "success" if ok else "fail", self.w.now,
                                                "" if ok else f"the agent ended with exit code {code}"))
        yield None
        if ok:
            yield from self._move("impl_complete")
        yield from self.end("done" if ok else "failed")

    def _move(self, phase: str) -> Does:
        assert self.hook is not None
        rework = (self.hook.phase, phase) == ("impl_complete", "executing")
        if rework or PHASES.index(self.hook.phase) < PHASES.index(phase):
            self.hook = self.w.write_hook(self.me, self.key,
                                          lambda old: hooks.change_phase(_there(old), phase, self.w.now),
                                          incarnation=self.me.incarnation)
            yield None


def agent(w: World, proc: Process) -> Steps:
    """The work: one commit a unit, taken up where an earlier life left it. It lives on if its orchestrator dies."""
    run, node = proc.key.run, proc.key.name
    fate = w.runs[run].fates[node]
    for number in range(fate.units):
        yield fate.pace * w.rng.random()
        if (run, node) not in w.trees:
            return  # its tree was removed
        unit = f"{proc.attempt:02d}u{number}"
        if unit not in w.branches[(run, node)]:
            w.commit(proc, run, node, unit)
            w.wake(proc.key)
            yield None
    if fate.asks:
        question = w.questions.setdefault((run, node, proc.attempt), f"q-{run}-{node}-{proc.attempt}")
        w.wake(proc.key)
        while question not in w.answers:
            yield 20.0


# ---- merge processor


class Processor(Layer):
    """`layers.processor` over the steps of `merge.processor`."""

    def __init__(self, w: World, proc: Process) -> None:
        super().__init__(w, proc)
        self.working = False
        self.merge_epoch = 0
        self.told = 0
        self.gate: str | None = None
        self.waits = ""

    def turn(self) -> Does:
        w = self.w
        for posted in w.pending(self.key):
            w.take(self.key, str(posted.path), refused=True)
        if self.stopping or self._left_alone():
            yield from self._leave("stopped" if self.stopping else "orphaned")
            return False
        if not self.working:
            if w.processor_lock is not None:
                self.idle = 0.25
                return False
            w.processor_lock = self.me
            yield None
            yield from self._queue_free()
            self.merge_epoch = w.append_merge(self.me, "lease", {}, take=True).epoch
            w.queue_lock = self.me
            yield None
            w.sync_merge()
            w.queue_lock = None
            yield None
            if w.queue.gate is not None and w.queue.gate.job in w.gates:
                self.gate = w.queue.gate.job
            self.working = True
        again = True
        self.waits = ""
        for _ in range(50):
            try:
                again = yield from self._step()
            except ForbiddenTransition:  # a person's word about that entry was faster: the loop says so and looks again
                again = True
            yield None
            if not again:
                break
        yield from self._tell()
        if not again:
            self.idle = TIMING.rescan / 2
        return again

    def _left_alone(self) -> bool:
        if self.working and self.waits != "empty":
            return False
        above = (key_of("guardian", GUARDIAN, self.run.id), key_of("launch", "launch", self.run.id))
        return not any(self.w.view(key).living for key in above)

    def _leave(self, reason: str) -> Does:
        if self.gate is not None:
            for proc in self.w.bearers(gate_marker(self.gate)):
                self.w.kill(proc, "gate ended")
            self.w.gates.pop(self.gate, None)
        if self.w.processor_lock is self.me:
            self.w.processor_lock = None
        yield None
        yield from self.end(reason)

    def _queue_free(self) -> Does:
        while self.w.queue_lock is not None:
            yield 0.5

    def _append(self, kind: str, data: dict[str, Any], *, sync: bool = True) -> Does:
        w = self.w
        yield from self._queue_free()
        w.append_merge(self.me, kind, data, epoch=self.merge_epoch)
        w.queue_lock = self.me
        yield None
        if sync:
            w.sync_merge()
        w.queue_lock = None
        yield None

    def _step(self) -> Does:
        state, w = self.w.queue, self.w
        if state.epoch != self.merge_epoch:
            raise Fenced("another processor took the queue over")
        if state.landing:
            return (yield from self._settle_landing())
        if self.gate is not None:
            return (yield from self._watch())
        if state.pause:
            if state.pause.tip == w.history[-1]:
                self.waits = "paused"
                return False
            yield from self._append("resume", {"reason": "the target moved"})
            return True
        line, waiting = state.batch(), state.waiting()
        if not line and not waiting:
            self.waits = "empty"
            return False
        if not line:
            yield from self._build(waiting[0])
        elif state.tip != w.history[-1]:
            yield from self._append("state", {"entry": line[0].id, "status": "queued", "reason": "the target moved"},
                                    sync=False)
        else:
            yield from self._judge(line[0])
        return True

    def _build(self, entry: MergeEntry) -> Does:
        w, tip = self.w, self.w.history[-1]
        if any((run, node, head) == (entry.run, entry.node, entry.oid) for run, node, head in w.merges.values()):
            yield from self._append("landed", {"entry": entry.id, "commit": tip, "old": tip, "reason": "already in"})
            return
        if w.runs[entry.run].fates[entry.node].at(entry.attempt) == "conflict":
            yield from self._append("state", {"entry": entry.id, "status": "conflict", "files": ["f"], "base": tip,
                                              "reason": "conflict"})
            return
        commit = f"merge({entry.id} onto {tip[-40:]})"
        yield from self._append("state", {"entry": entry.id, "status": "candidate", "base": tip,
                                          "tree": f"tree of {commit}", "commit": commit}, sync=False)

    def _judge(self, entry: MergeEntry) -> Does:
        state = self.w.queue
        config = state.config
        assert config is not None
        trees = (f"tree of {entry.base}", entry.tree)
        step = batch.decide_next([entry.id], trees, state.verdicts.evidence(config.command_key, ()))
        if isinstance(step, batch.Land) and entry.verdict == "green":
            yield from self._land(entry)
        elif isinstance(step, batch.Land):
            yield from self._verdict(entry.id, "entry", entry.tree, "green")
        elif isinstance(step, batch.RunGates):
            yield from self._test(entry, "entry" if step.wanted[0] else "base")
        elif isinstance(step, batch.Reject):
            yield from self._append("state", {"entry": entry.id, "status": "rejected", "reason": entry.reason or "red"})
        else:
            yield from self._append("pause", {"entry": entry.id, "reason": step.reason, "detail": "on the bare target",
                                              "tip": entry.base, "log": ""})

    def _verdict(self, entry: str, of: str, tree: str, result: str) -> Does:
        config = self.w.queue.config
        assert config is not None
        yield from self._append("verdict", {"entry": entry, "of": of, "tree": tree, "command": config.command_key,
                                            "result": result, "reason": result, "log": ""})

    def _test(self, entry: MergeEntry, of: str) -> Does:
        config = self.w.queue.config
        assert config is not None
        number = entry.tests + 1
        name = f"{entry.id}.{number}"
        commit = entry.commit if of == "entry" else entry.base
        yield from self._append("test", {"entry": entry.id, "of": of, "number": number, "job": name, "commit": commit,
                                         "tree": entry.tree if of == "entry" else f"tree of {commit}", "slot": 0,
                                         "command": config.command_key, "log": ""}, sync=False)
        own = of == "entry" and self.w.runs[entry.run].fates[entry.node].at(entry.attempt) == "gate"
        red = own or entry.base in self.w.broken
        self.w.gates[name] = ""
        self.w.spawn("gate", self.key, self.me.incarnation, gate(name, "red" if red else "green"), gate_marker(name))
        self.gate = name
        yield None

    def _watch(self) -> Does:
        w, state, name = self.w, self.w.queue, self.gate
        assert name is not None
        test = state.gates.get(name)
        if test is None:
            for proc in w.bearers(gate_marker(name)):
                w.kill(proc, "gate abandoned")
            self.gate = None
            return True
        result = w.gates.get(name, "")
        if not result and w.bearers(gate_marker(name)):
            self.waits = "gate"
            return False
        result, self.gate = result or "lost", None
        yield from self._verdict(test.first, test.subject, test.tree, result)
        w.gates.pop(name, None)
        return True

    def _land(self, entry: MergeEntry) -> Does:
        w = self.w
        if w.history[-1] != entry.base:
            yield from self._append("state", {"entry": entry.id, "status": "queued", "reason": "the target moved"},
                                    sync=False)
            return
        yield from self._queue_free()
        w.queue_lock = self.me
        w.append_merge(self.me, "landing", {"entry": entry.id, "old": entry.base, "new": entry.commit},
                       epoch=self.merge_epoch)
        yield None
        w.sync_merge()
        yield None
        swapped = w.swap(self.me, entry.base, entry.commit, (entry.run, entry.node, entry.oid))
        w.queue_lock = None
        yield None
        if swapped:
            yield from self._append("landed", {"entry": entry.id, "commit": entry.commit, "old": entry.base,
                                               "owed": []})

    def _settle_landing(self) -> Does:
        w, landing = self.w, self.w.queue.landing
        assert landing is not None
        entry = w.queue.entry(landing.first)
        if landing.new in w.history:
            yield from self._append("landed", {"entry": entry.id, "commit": landing.new, "old": landing.old,
                                               "owed": []})
            return True
        if w.history[-1] != landing.old:
            yield from self._append("foreign", {"entry": entry.id, "expected": landing.old, "found": w.history[-1],
                                                "old": landing.old, "commit": "", "reason": "moved by somebody else"})
            return True
        yield from self._queue_free()
        w.queue_lock = self.me
        yield None
        swapped = w.swap(self.me, landing.old, landing.new, (entry.run, entry.node, entry.oid))
        w.queue_lock = None
        yield None
        if not swapped:
            return False
        yield from self._append("landed", {"entry": entry.id, "commit": landing.new, "old": landing.old, "owed": []})
        return True

    def _tell(self) -> Does:
        w = self.w
        for outcome in [one for one in w.queue.outcomes if one.seq > self.told]:
            recipient = Key.parse(outcome.entry.recipient)
            runner = w.identities.get(recipient)
            if runner is not None and runner.status != "terminated" and \
                    (signal := to_signal(outcome, self.key.name, self.me.incarnation)):
                w.post(signal, f"mq-{outcome.seq}-{outcome.type}")
                yield None
            self.told = outcome.seq


def gate_marker(name: str) -> str:
    """The marker that a gate run bears."""
    return f"gate:{name}"


def gate(name: str, result: str) -> Callable[[World, Process], Steps]:
    """A gate run: takes a while, then leaves its verdict."""
    def body(w: World, proc: Process) -> Steps:
        yield 0.5 + 4 * w.rng.random()
        if name in w.gates:
            w.gates[name] = result
        yield None

    return body


# ---- doors


def up(*, resume: bool) -> Callable[[World, Process], Steps]:
    """`launch`, `--resume` and `garrison up`: a launcher for a run that has none; harmless twice at once."""
    def body(w: World, proc: Process) -> Steps:
        key = proc.key
        view = w.view(key)
        yield None
        if view.verdict is not None and view.identity is not None:
            if view.living:
                if not (yield from _hangs(w, proc, view)):
                    return
                yield from replace_life(w, proc, view.identity, "it hangs", restart.HUNG)
                view = w.view(key)
                if view.living or view.verdict is None or view.identity is None:
                    return
            if view.verdict.state != "ended" or view.identity.status == "crashed":
                yield from replace_life(w, proc, view.identity, view.verdict.why)
        def launch(w: World, child: Process) -> Steps:
            child.code = RESUME if resume else None
            return Launcher.body(w, child)

        def word(leased: Identity) -> None:
            if resume and not w.check.shadows[key.run].over:
                w.post(Signal(launcher_policy.resume_id(key.run, leased.incarnation),
                              {"role": "launch", "name": "launch", "incarnation": 0},
                              {"role": "guardian", "name": GUARDIAN}, "GUIDANCE", key.run, w.now, None, 0,
                              {"action": "resume"}))

        yield from start_life(w, proc, SpawnRequest(key), launch, word)

    return body


def doctor(w: World, proc: Process) -> Steps:
    """`doctor --fix`: fence and sweep whoever is found dead; to journal the death is its supervisor's matter."""
    for key in list(w.identities):
        view = w.view(key)
        yield None
        if view.identity is not None and view.verdict is not None and view.verdict.state in ("dead", "lapsed"):
            yield from replace_life(w, proc, view.identity, "found over by doctor")


def _hangs(w: World, me: Process, view: ChildState) -> Does:
    """Whether a launcher does nothing, as `watch.judge_now` sees it: two looks at it, with a pause between."""
    identity = view.identity
    assert identity is not None
    other = w.find(identity.pid, identity.start_ticks)
    if identity.status != "active" or other is None or other.quiet_since is None:
        return False
    first, began = other.quiet_since, w.t
    if w.t - first <= TIMING.beat_timeout:
        return False
    yield 1.0
    since = 0.0 if other.quiet_since is None else w.t - other.quiet_since
    still = other.quiet_since == first and w.t - began < TIMING.beat_timeout
    state = other.state if other.stopped_until > w.t else "S"
    ages = {"beat": since, "cpu": since if still else 0.0, "running": since if state == "T" and still else 0.0}
    hang = hang_detector.find_hang(hang_detector.Evidence(identity.incarnation, ages, state, blocked=int(state == "D")),
                         TIMING.beat_timeout)
    if hang is None or not other.alive:
        return False
    w.check.hung(me, other)
    return True


def successor_needed(w: World, run: str) -> bool:
    """Whether `garrison up` would start a launcher (`bringing_up.wants_launcher`)."""
    if w.ended(run) in ("done", "failed", "stopped"):
        return False
    view = w.view(launcher_key(run))
    return not view.living and (view.identity is None or view.identity.status not in ("held", "parked"))


