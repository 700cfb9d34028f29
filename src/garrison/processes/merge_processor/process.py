"""The merge processor as a layer: drives `merge.processor` from the loop and tells runners what became of entries.

One a guardian; where several runs share a queue, the others stand by on the lock. Signals are derived from journal
record numbers, so that a successor says the same thing under the same file name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from garrison.merge.outcome_signals import to_signal
from garrison.merge.processor import MergeProcessor, Wait
from garrison.merge.queue import MergeQueue
from garrison.processes.loop import exit_gracefully, log_line
from garrison.processes.supervisor import Supervisor
from garrison.records import signals
from garrison.records.identity import Identity
from garrison.records.journal import Writer
from garrison.records.names import Key, launcher_key
from garrison.supervise.start import Incarnation
from garrison.system.git import Git, GitError

if TYPE_CHECKING:
    from garrison.merge.outcome_signals import Outcome
    from garrison.processes.fingerprint import Fingerprint
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch
    from garrison.system.event_loop import EventLoop

STEPS = 50
"""Steps before the loop beats again."""


class Processor:
    """One life of a run's merge processor."""

    naps = False

    def __init__(self, world: Runtime, life: Incarnation, launch: Launch) -> None:
        self.world, self.life, self.launch = world, life, launch
        self.queue = MergeQueue(world.home, Path(launch.repo), launch.base, clock=world.clock, token=life.token,
                                git=Git(Path(launch.repo)))
        self.worker = MergeProcessor(self.queue, trees=Path(launch.trees), environment=world.environment(launch, {}),
                                     held_back=launch.held_back)
        stem = f"processor-{life.key.name}"
        self.supervisor = Supervisor(world, life, Writer(world.files(launch.run_id).layer_journal(stem), life.token))
        self.supervisor.record("open", {"incarnation": life.incarnation, "pid": life.identity.pid})
        self.exit_code: int | None = None
        self.stopping = False
        self._working = False
        self._told = 0
        self._wait: Wait | None = None
        self._said = ""

    def turn(self) -> bool:
        """Take the queue if it is free, work it until something must be waited for, tell the outcomes."""
        for posted in signals.list_pending(self.world.home, self.life.key):
            signals.refuse(posted.path, "the processor takes its orders from the queue's journal")
        if self.stopping or self._left_alone():
            self._leave("stopped" if self.stopping else "orphaned")
            return False
        if not self._working:
            if not self.worker.acquire():
                return False
            self.supervisor.record("took", {"epoch": self.worker.epoch})
            self.worker.recover()
            self._working = True
        self.worker.heartbeat()
        again = self._work()
        self._tell()
        return again

    def _work(self) -> bool:
        """Up to STEPS steps; whether to go on at once."""
        for _ in range(STEPS):
            try:
                did = self.worker.step()
            except GitError as error:
                log_line(f"{error}; trying again")
                return False
            if isinstance(did, Wait):
                self._wait = did
                if did.reason and did.reason != self._said:
                    log_line(f"{did.kind}: {did.reason}")
                    self._said = did.reason
                return False
            self._said = ""
            self.supervisor.record("step", {"what": did.what, "entry": did.entry})
            self._tell()
        return True

    def _left_alone(self) -> bool:
        """Idle, and neither guardian nor launcher is alive: nobody would end us when the run is over."""
        if self._working and (self._wait is None or self._wait.kind != "empty"):
            return False
        parent = self.life.identity.parent
        above = [Key(parent["role"], parent["name"], self.launch.run_id)] if parent else []
        return not any(self.supervisor.lives(key) for key in [*above, launcher_key(self.launch.run_id)])

    def _tell(self) -> None:
        for outcome in self.worker.outcomes_since(self._told):
            if outcome.entry.recipient:
                self._signal(outcome)
            self._told = outcome.seq

    def _signal(self, outcome: Outcome) -> None:
        recipient = Key.parse(outcome.entry.recipient)
        runner = self.world.store.read(Identity, recipient)
        if runner is None or runner.status == "terminated":
            return  # it knows, or will look into the journal when it is started again
        signal = to_signal(outcome, self.life.key.name, self.life.incarnation)
        if signal is not None:
            signals.post(self.world.home, signal, outcome.seq)

    def glance(self) -> Fingerprint | None:
        """There is only one: it always looks whole."""

    def watch(self, waker: EventLoop) -> None:
        """Wake when the queue's journal or a gate's verdict changes."""
        for folder in self.worker.gate_folders:
            if folder.is_dir():
                waker.watch_directory(folder)
        if self.queue.path.parent.is_dir():
            waker.watch_directory(self.queue.path.parent)

    def next_wake(self) -> float | None:
        """What the queue said to wait; standing by on the lock, a fraction of the timer."""
        if not self._working:
            return 0.25
        return self._wait.seconds if self._wait else None

    def stop(self, _signum: int) -> None:
        """End in order: a running gate is ended too and run again by the next processor."""
        self.stopping = True

    def abandon(self, why: str) -> None:
        """Fenced: let go; a running gate is adopted by the successor, unless the home and with it all of them went."""
        self.worker.close(end_gate=not (self.world.home / "identities").is_dir())

    def trouble(self, why: str) -> None:
        """Said by the loop, and tried again: nobody is given up for a passing trouble."""

    def _leave(self, reason: str) -> None:
        self.worker.close(end_gate=True)
        self.exit_code = exit_gracefully(self.life, reason)
        self.supervisor.journal.close()


