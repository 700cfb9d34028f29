"""The launcher: `run/launcher_policy.py` decides; each action is carried out with the writes of `run/launcher.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from tests.simulator.guardian import Guardian
from tests.simulator.supervision import TIMING, SimulatedProcess, existing, guardian_key, sweep
from tests.simulator.world import Effect, Process, World

from garrison.ends import Departure
from garrison.processes.actions import Action, ActionKind, ApplySignal
from garrison.records.events import ChildHealed, GuardianUnparked, LauncherEnded, LauncherSignal, decode
from garrison.records.identity import Identity, mark_ended
from garrison.records.journal import Entry
from garrison.records.signals import ResumeRun, StopRun, resume_id
from garrison.run import launcher_policy as policy
from garrison.run.launcher_policy import LauncherFacts, LauncherView
from garrison.run.state import RUN_TRANSITIONS, RunState, replay_run
from garrison.supervise.incarnation import SpawnRequest
from garrison.supervise.restart import Policy

RESUME, AGAIN = -100, -101
"""`Process.code` of a launcher before its first step: it was started with `--resume`, perhaps with `--again`."""


class Launcher(SimulatedProcess):
    """One incarnation of a run's launcher."""

    def __init__(self, world: World, me: Process) -> None:
        super().__init__(world, me)
        self.guardian_key = guardian_key(self.run.id)
        self.facts = LauncherFacts()
        self.state = RunState()
        self.policy = Policy()
        self.stopping_since: float | None = None
        self.stop_guardians = 0
        self.to_resume, self.resume_sent, self.again = me.code in (RESUME, AGAIN), False, me.code == AGAIN
        me.code = None
        self._read = self._seq = 0
        self._guardian_lives = False
        self._first: Entry | None = None

    def apply(self, entry: Entry) -> None:
        event = decode(entry)
        assert event is not None
        self.facts.apply(event)

    def _read_run(self) -> None:
        """Apply what is new in the guardian's journal; one that was compacted is read from its beginning."""
        entries = self.run.journal.entries
        if len(entries) < self._read or (entries and entries[0] is not self._first):
            self._read = 0
        self._first = entries[0] if entries else None
        for entry in entries[self._read:]:
            if entry.seq > self._seq or (entry.kind == "snapshot" and entry.seq == self._seq):
                self.state.apply(entry)
                self._seq = entry.seq
        self._read = len(entries)

    def turn(self) -> Effect:
        self._read_run()
        if self.world.rng.random() < 0.3:
            yield None
        world, now = self.world, self.world.mono
        if self.stopping and self.stopping_since is None:
            self.stopping_since = now
        is_overdue = self.stopping_since is not None and now - self.stopping_since > TIMING.stop_guardian
        others_living = self.stopping and any(
            world.view(key).living for key in list(world.identities)
            if key.run == self.run.id and key.role in ("runner", "orchestrator", "processor"))
        status, to_resume = policy.resume_status(
            self.state, resume_id(self.run.id, self.me.incarnation), sent=self.resume_sent,
            wanted=self.to_resume and (self.again or not self.state.over))
        view = LauncherView(
            now, world.boot_id, status, self.watch.judge(world.view(self.guardian_key)), self.facts.deaths,
            self.facts.circuit, world.pending(self.key), frozenset(self.facts.applied), self.stopping, is_overdue,
            others_living, self.stop_guardians, to_resume)
        self._guardian_lives = view.guardian.living
        yield None
        self.decision = policy.decide(view, self.policy)
        return (yield from self.perform(self.decision.actions, view))

    def has_fingerprint(self) -> bool:
        return not self.stopping and self.state.status == "running" and self._guardian_lives

    # ---- actions

    def _apply_signal(self, action: Action, view: LauncherView) -> Effect:
        signal = action.expect(ApplySignal).posted.signal
        if signal.id not in self.facts.applied:
            yield from self.record_synced(LauncherSignal(signal.id, signal.signal_type, signal.payload))
        self.acknowledge(action)

    def _refuse_signal(self, action: Action, view: LauncherView) -> Effect:
        self.refuse(action)
        yield None

    def _resume_run(self, action: Action, view: LauncherView) -> Effect:
        identity = view.guardian.identity
        if self.facts.circuit.parked or (identity is not None and identity.status == "parked"):
            self.record(GuardianUnparked(self.guardian_key.full))
            yield None
            if identity is not None:
                self.world.write_identity(self.me, self.guardian_key, self._unparked)
                yield None
        self.send(self.guardian_key, ResumeRun(self.again or None), id_=resume_id(self.run.id, self.me.incarnation))
        self.to_resume, self.resume_sent = False, True
        yield None

    def _unparked(self, old: Identity | None) -> Identity:
        is_parked = existing(old).status == "parked"
        return mark_ended(existing(old), "terminated", self.world.now, "stopped",
                              Departure.STOPPED) if is_parked else existing(old)

    def _request_stop(self, action: Action, view: LauncherView) -> Effect:
        last = view.guardian.identity.incarnation if view.guardian.identity is not None else 0
        self.send(self.guardian_key, StopRun(), id_=f"{self.run.id}-stop-{self.me.incarnation}-{last}")
        yield None

    def _start(self, action: Action, view: LauncherView) -> Effect:
        previous = view.guardian.identity
        if previous is not None and previous.status == "crashed":
            yield from sweep(self.world, self.me, previous)
        request = SpawnRequest(self.guardian_key, self.key, journal_incarnation=self.facts.incarnation)
        if (yield from self.start_child(request, Guardian.body, view.guardian, action)) and self.stopping:
            self.stopping_since = self.world.mono
            self.stop_guardians += 1

    def _replace(self, action: Action, view: LauncherView) -> Effect:
        yield from self.replace_child(view.guardian, action.why)

    def _record_death(self, action: Action, view: LauncherView) -> Effect:
        yield from self.record_death(view.guardian)

    def _park(self, action: Action, view: LauncherView) -> Effect:
        yield from self.park(view.guardian, action.why, self.policy.cool_down(self.facts.circuit.parks + 1))

    def _terminate(self, action: Action, view: LauncherView) -> Effect:
        self.terminate(view.guardian)
        yield None

    def _heal(self, action: Action, view: LauncherView) -> Effect:
        self.record(ChildHealed(self.guardian_key.full, self.facts.circuit.probe))
        yield None

    def _write_stopped(self, action: Action, view: LauncherView) -> Effect:
        yield from self._write_status("stopped", "without a guardian")

    def _write_parked(self, action: Action, view: LauncherView) -> Effect:
        yield from self._write_status("parked", action.why)

    def _write_status(self, status: str, reason: str) -> Effect:
        """Write the run's status in the place of a guardian, under the guardian's life lock."""
        locks, journal = self.world.life_locks, self.run.journal
        if self.guardian_key in locks:
            return
        locks[self.guardian_key] = self.me
        yield None
        if status in RUN_TRANSITIONS[replay_run(journal.entries).status]:
            epoch = (journal.entries[-1].epoch if journal.entries else 0) + 1
            self.world.append(self.me, journal, "run", {"status": status, "reason": reason}, epoch)
            yield None
            journal.synced = len(journal.entries)
        del locks[self.guardian_key]
        yield None

    def _end(self, action: Action, view: LauncherView) -> Effect:
        self.record(LauncherEnded(action.target, action.why))
        yield None
        yield from self.end(action.target)

    HANDLERS: ClassVar[Mapping[ActionKind, Callable[..., Effect]]] = {
        ActionKind.APPLY_SIGNAL: _apply_signal,
        ActionKind.REFUSE_SIGNAL: _refuse_signal,
        ActionKind.RESUME_RUN: _resume_run,
        ActionKind.REQUEST_STOP: _request_stop,
        ActionKind.START: _start,
        ActionKind.PROBE: _start,
        ActionKind.HEAL: _heal,
        ActionKind.REPLACE: _replace,
        ActionKind.RECORD_DEATH: _record_death,
        ActionKind.PARK: _park,
        ActionKind.TERMINATE: _terminate,
        ActionKind.WRITE_STOPPED: _write_stopped,
        ActionKind.WRITE_PARKED: _write_parked,
        ActionKind.END: _end,
    }
