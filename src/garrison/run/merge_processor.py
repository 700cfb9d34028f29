"""Merge processor process: drives `merge.processor` from the loop, and reports the outcomes of entries to their
runners.

Every run has one, for the queue of its nodes and, if the run lands as a whole, for the target's; if several runs
share a queue, one has its lock and the others stand by. A signal's file name follows from the number of a journal
record, so a successor that sends it again writes the same file.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.config import MergeConfig, read_config
from garrison.ends import Departure, Wait, WaitKind
from garrison.errors import GarrisonError, RecordCorrupt, RecordError
from garrison.merge.entry import to_signal
from garrison.merge.processor import MergeProcessor
from garrison.merge.records import QueueHindered
from garrison.processes.loop import RepeatedErrors, exit_gracefully, log_line
from garrison.processes.supervisor import Supervisor
from garrison.records import signals
from garrison.records.events import ProcessOpened, QueueStepDone, QueueTaken
from garrison.records.identity import Identity
from garrison.records.journal import Verifier, Writer
from garrison.records.names import Key, launcher_key
from garrison.run import branch as run_branch
from garrison.run.status import Status, read_run_state
from garrison.system.git import Git, GitError

if TYPE_CHECKING:
    from garrison.merge.entry import EntryFact
    from garrison.merge.queue import MergeQueue
    from garrison.processes.loop import Fingerprint
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch
    from garrison.supervise.incarnation import Incarnation
    from garrison.system.event_loop import EventLoop

STEPS_PER_TURN = 50
"""Steps of the queue between two heartbeats, at most."""

VERIFY_SECONDS = 5.0
"""Seconds between two checks of the part of a queue's journal that was already read."""

STANDBY_POLL = 0.25
"""Seconds between two tries for the queue's lock."""
WANT_SECONDS = 1.0
"""Seconds between two requests for a target that another home's processor has locked."""
TELL_SECONDS = 3.0
"""Seconds after which another home's lock on the target is reported."""
YIELD_SECONDS = 2.0
"""Seconds for which a target is left to another home, at least."""
_WITHOUT_WORK = frozenset({WaitKind.EMPTY, WaitKind.PAUSED, WaitKind.NO_GATE, WaitKind.BLOCKED})
"""Waits in which a target may be left to another home."""


class QueueWorker:
    """One queue that the processor works while it can lock it."""

    def __init__(self, processor: Processor, queue: MergeQueue) -> None:
        runtime, launch = processor.runtime, processor.launch
        self.processor, self.queue = processor, queue
        self.merge = MergeProcessor(queue, trees=Path(launch.trees), environment=runtime.environment(launch, {}),
                                    held_back=launch.held_back, turn=_read_turn(runtime.home))
        self.verifier = Verifier(queue.path, VERIFY_SECONDS)
        self.has_queue = False
        self.wait: Wait | None = None
        self._taken = 0
        """Epoch that is recorded as taken, 0 for none."""
        self._last_sent = 0
        """Number of the last journal record that was reported."""
        self._logged = ""
        self._errors = RepeatedErrors()
        self._stands_by = self._next_wish = self._left_until = 0.0
        """Since when another home has the target (0: it does not), when to request it again, how long to leave it."""

    @property
    def is_idle(self) -> bool:
        return not self.has_queue or (self.wait is not None and self.wait.kind is WaitKind.EMPTY)

    def turn(self) -> bool:
        """Take the queue if it is free, work on it until it must wait, report the outcomes; return whether to continue
        at once. A damaged journal is rebuilt first."""
        try:
            return self._take_turn()
        except RecordCorrupt as error:
            self._rebuild(error)
            return True

    def _take_turn(self) -> bool:
        now = self.processor.runtime.clock.monotonic()
        if not self.has_queue:
            if now < self._left_until:
                return False
            # Polled, since the kernel does not report that a lock is free.
            if not self.merge.acquire():
                self._stand_by(now)
                return False
            self._stands_by = 0.0
            if self._taken != self.merge.epoch:
                self._taken = self.merge.epoch
                self.processor.supervisor.record(QueueTaken(self._taken))
            self.merge.recover()
            self.has_queue = True
        self.merge.heartbeat()
        if self._is_lost():
            self._rebuild(RecordCorrupt(self.queue.path, "it is gone, or was restarted"))
            return True
        self.verifier.check(now)
        has_more = self._work()
        self._report()
        if self.wait is not None and self.wait.kind in _WITHOUT_WORK and not has_more and self.queue.is_wanted():
            self.merge.close()
            self.has_queue, self._left_until = False, now + YIELD_SECONDS
        return has_more

    def _stand_by(self, now: float) -> None:
        """Request a target that another home's processor has locked, and report that to the user; do nothing if a
        processor of this home has it, which does the work of all its runs."""
        state = self.queue.state
        if not state.unfinished() or self.processor.is_at_work(state.holder):
            self._stands_by = 0.0
            return
        self._stands_by = self._stands_by or now
        if now >= self._next_wish:
            self._next_wish = now + WANT_SECONDS
            self.queue.want()
        why = (f"runs of another home are landing on {self.queue.target}; this home's turn comes once they have "
               "nothing to test")
        if now - self._stands_by >= TELL_SECONDS and state.hindrance != why:
            with self.queue.locked():
                self.queue.append(QueueHindered(why))

    def _is_lost(self) -> bool:
        """Return whether the journal is gone, or was restarted: the launch had recorded a gate in it."""
        launch = self.processor.launch
        has_gate = bool(launch.gate or launch.no_gate) or self.queue.target != launch.base
        return has_gate and (not self.queue.path.exists() or self.queue.state.config is None)

    def _rebuild(self, error: RecordCorrupt) -> None:
        """Rebuild the queue's damaged journal, and take the queue again: interrupted gate runs are repeated."""
        if error.path != str(self.queue.path):
            raise error
        self.merge.close()
        self.has_queue = False
        processor = self.processor
        run_branch.rebuild_queue(self.queue, processor.launch, processor.runtime.timing.gate_timeout)
        log_line(f"{error.path} was damaged ({error.why}) and is rebuilt")

    def _work(self) -> bool:
        """Take up to `STEPS_PER_TURN` steps; return whether to continue at once."""
        for _ in range(STEPS_PER_TURN):
            try:
                step = self.merge.step()
            except GitError as error:
                self._errors.add(str(error), self.processor.runtime.clock.monotonic())
                return False
            self._errors.clear()
            if isinstance(step, Wait):
                self.wait = step
                if step.text and step.text != self._logged:
                    log_line(f"{step.kind}: {step.text}")
                    self._logged = step.text
                return False
            self._logged = ""
            self.processor.supervisor.record(QueueStepDone(step.what, step.entry))
            self._report()
        return True

    def _report(self) -> None:
        for outcome in self.merge.outcomes_since(self._last_sent):
            if outcome.entry.recipient:
                self.processor.send(outcome)
            self._last_sent = outcome.seq

    def watch(self, event_loop: EventLoop) -> None:
        """Wake when the queue's journal or a gate's verdict changes."""
        for folder in (*self.merge.gates.folders, self.queue.path.parent):
            if folder.is_dir():
                event_loop.watch_directory(folder)

    def next_wake(self) -> float | None:
        """Return the seconds that the queue is to wait, or until the next try for its lock."""
        if not self.has_queue:
            return STANDBY_POLL
        return self.wait.seconds if self.wait else None


def _read_turn(home: Path) -> float:
    """Return `[merge] turn`; the default if config.toml became unreadable since the launch checked it."""
    try:
        return read_config(home).merge().turn
    except GarrisonError as error:
        log_line(str(error))
        return MergeConfig().turn


class Processor:
    """One incarnation of a run's merge processor."""

    is_event_driven = False

    def __init__(self, runtime: Runtime, incarnation: Incarnation, launch: Launch) -> None:
        self.runtime, self.incarnation, self.launch = runtime, incarnation, launch
        git = Git(Path(launch.repo), home=runtime.home)
        queues = (run_branch.node_queue(runtime, launch, incarnation.token, git),
                  run_branch.landing_queue(runtime, launch, incarnation.token, git))
        self.workers = [QueueWorker(self, queue) for queue in queues if queue is not None]
        journal = runtime.files(launch.run_id).process_journal(f"processor-{incarnation.key.name}")
        self.supervisor = Supervisor(runtime, incarnation, Writer(journal, incarnation.token))
        self.supervisor.record(ProcessOpened(incarnation.number, incarnation.identity.pid))
        self.exit_code: int | None = None
        self.stopping = False

    def turn(self) -> bool:
        """Take each queue if it is free, work on it until it must wait, report the outcomes."""
        for posted in signals.list_pending(self.runtime.home, self.incarnation.key):
            signals.refuse(posted.path, "the merge processor takes its commands from the queue's journal")
        if self.stopping or self._is_orphaned():
            self._end(Departure.STOPPED if self.stopping else Departure.ORPHANED)
            return False
        if self.incarnation.phase == "planning" and self._has_entries():
            self.incarnation.advance_hook("executing")
        has_more = False
        for worker in self.workers:
            has_more |= worker.turn()
        return has_more

    def _has_entries(self) -> bool:
        with contextlib.suppress(RecordCorrupt):  # its worker rebuilds it
            return any(entry.run == self.launch.run_id
                       for worker in self.workers for entry in worker.queue.state.entries.values())
        return False

    def _is_orphaned(self) -> bool:
        """Return whether it is idle, and neither guardian nor launcher is alive to end it when the run is over."""
        if not all(worker.is_idle for worker in self.workers):
            return False
        parent = self.incarnation.identity.parent
        parents = [Key(parent["role"], parent["name"], self.launch.run_id)] if parent else []
        return not any(self.supervisor.is_alive(key) for key in [*parents, launcher_key(self.launch.run_id)])

    def is_at_work(self, holder: str) -> bool:
        """Return whether the last owner of a queue, by its token, is another living processor of this home."""
        with contextlib.suppress(GarrisonError, ValueError):
            key = Key.parse(holder.partition("#")[0])
            return key != self.incarnation.key and self.supervisor.is_alive(key)
        return False

    def send(self, outcome: EntryFact) -> None:
        """Report an entry's outcome to its runner."""
        with contextlib.suppress(RecordError):  # a damaged record may be a living runner's
            runner = self.runtime.store.read(Identity, Key.parse(outcome.entry.recipient))
            if runner is None or runner.status == "terminated":
                return  # a later incarnation reads the queue's journal
        signal = to_signal(outcome, self.incarnation.key.name, self.incarnation.number)
        if signal is not None:
            signals.post(self.runtime.home, signal, outcome.seq)

    # ---- what else the loop calls

    def fingerprint(self) -> Fingerprint | None:
        """Return None: a run has only one processor, which always takes whole turns."""

    def watch(self, event_loop: EventLoop) -> None:
        """Wake when a queue's journal or a gate's verdict changes."""
        for worker in self.workers:
            worker.watch(event_loop)

    def next_wake(self) -> float | None:
        """Return the seconds that all queues are to wait, or until the next try for a lock."""
        return min((wake for worker in self.workers if (wake := worker.next_wake()) is not None), default=None)

    def stop(self, _signum: int) -> None:
        """Stop gracefully: running gates are ended, and repeated by the next processor."""
        self.stopping = True

    def abandon(self, why: str) -> None:
        """Release the queues when fenced; the successor adopts running gates, unless the home is gone."""
        is_gone = not (self.runtime.home / "identities").is_dir()
        for worker in self.workers:
            worker.merge.close(end_gate=is_gone)

    def handle_persistent_error(self, why: str) -> None:
        """Keep trying: the loop has logged the error, and no entry fails because of a transient one."""

    def _end(self, departure: Departure) -> None:
        for worker in self.workers:
            worker.merge.close(end_gate=True)
        with contextlib.suppress(GarrisonError):  # an unreadable journal does not show the end
            if read_run_state(self.runtime, self.launch.run_id).status == Status.DONE:
                self.incarnation.advance_hook("merged")
        self.exit_code = exit_gracefully(self.incarnation, departure.value, departure)
        self.supervisor.journal.close()
