"""Merge processor: work a queue, one batch at a time, in small steps that never wait for a test.

`acquire` the lock, `recover` once, then call `step` repeatedly. Each step reads the journal and the refs, does one
thing and returns it (`Progress`), or returns what it waits for (`Wait`). In order of precedence, a step

1. finishes a landing that was recorded (`landing.Lander.finish`),
2. records the verdict of a gate run that ended (`gate.GateRuns.record_verdict`),
3. retries a landing that an open checkout blocked (`landing.Lander.retry_blocked`),
4. waits if the queue is paused or has no gate (`_check_pause`),
5. stacks waiting entries on the target's tip as a batch (`candidates.CandidateBuilder.start_batch`),
6. does what `batch.decide_next` decides about the batch: run gates, land, reject an entry, or pause the queue.

The journal is its only memory: the handles of running gates are found again by `recover`. A step raises Fenced when
another processor has taken over. Where git fails at entries, the step is tried again; an entry at which it fails
lastingly (`setback`), and not at the target alone, is set aside, so that it holds up no other.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import ForbiddenTransition, GarrisonError
from garrison.merge import batch, checkouts, order
from garrison.merge.candidates import CandidateBuilder
from garrison.merge.conflicts import ConflictCheck, PairConflicts
from garrison.merge.gate import GateRuns, require_config
from garrison.merge.landing import Lander
from garrison.merge.queue import PINS, RETRY_SECONDS, Progress, QueueWriter, Wait
from garrison.merge.records import LeaseTaken, QueueHindered, QueuePaused, QueueResumed, StatusChanged, VerdictGiven
from garrison.merge.setback import Setback
from garrison.merge.touched import TouchedFiles
from garrison.merge.track_record import TrackRecord, plain_beliefs
from garrison.records import atomic
from garrison.records.life_lock import LifeLock
from garrison.system import disk_space, failpoint, shortage
from garrison.system.git.repository import GitError, is_gc_running

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from garrison.merge.candidates import CandidateChain
    from garrison.merge.decision import Beliefs
    from garrison.merge.entry import MergeEntry
    from garrison.merge.outcome_signals import Outcome
    from garrison.merge.queue import MergeQueue
    from garrison.merge.state import QueueState

__all__ = ["MergeProcessor", "Progress", "Wait"]

MIN_ARRANGED, MAX_ARRANGED = 3, 32
"""Waiting entries from which, and up to which, an order is chosen: of two, either costs the other its place."""
SNAPSHOT_EVERY = 1000
"""Records between two snapshots: every command reads the records since the last one."""
TEMPORARY_SECONDS = 60.0
"""Age in seconds from which a temporary file was left by a killed writer."""
GC_SECONDS = 0.2
"""Seconds between two checks whether git's gc has ended."""
FAILPOINTS = ("lease", "pinned", "candidate", "test_recorded", "test_started", "verdict_before", "verdict", "landing",
              "swapped", "moving", "moved", "landed_first", "landed", "cleaned", "recover", "archived", "compacted")
"""Points of a processor at which the tests kill it (see `system.failpoint`): before and after each durable step."""


class MergeProcessor:
    """Processor of a queue; the processor lock admits one at a time.

    Args:
        trees: folder of the gate slots.
        environment: environment of the gates, without the variables named in `held_back`.
        max_batch: entries to test together at most; 1 for one verdict at a time.
    """

    def __init__(self, queue: MergeQueue, *, trees: Path, environment: Mapping[str, str],
                 held_back: Sequence[str] = (), max_batch: int = batch.MAX_BATCH) -> None:
        self.queue, self.git, self.clock, self.max_batch = queue, queue.git, queue.clock, max_batch
        self.writer = QueueWriter(queue)
        self.builder, self.lander = CandidateBuilder(self.writer), Lander(self.writer)
        touched = TouchedFiles(self.git)
        self.gates = GateRuns(self.writer, trees / self.git.key, environment, held_back, touched)
        self.history = TrackRecord(queue.folder, touched)
        self.pairs = PairConflicts(self.git, touched)
        self._first = ""
        """Entry with which the next batch begins, if that is not the first that waits."""
        self.conflict_check = ConflictCheck(self.writer, self.builder)
        self._lock: LifeLock | None = None
        self._setback = Setback()
        self._one_by_one = False
        """Set while entries are judged alone, to find the one at which git fails."""
        self._worked = False
        """Set if a step has changed something since the queue was last idle."""
        self._unpinned: set[str] = set()
        """Withdrawn entries whose candidates are no longer pinned."""

    @property
    def epoch(self) -> int:
        """Return the fencing token of this hold of the lock, 0 before `acquire`."""
        return self.writer.epoch

    @property
    def gate_folders(self) -> list[Path]:
        """Return the folders in which the running gates will write their verdicts."""
        return self.gates.folders

    def outcomes_since(self, seq: int) -> list[Outcome]:
        """Return the outcomes of journal records after number `seq`; every call returns the same."""
        return [outcome for outcome in self.queue.state.outcomes if outcome.seq > seq]

    # --- the lock ---------------------------------------------------------------------------------------------------

    def acquire(self) -> bool:
        """Take the processor's lock and begin a new epoch; return False if another process holds it."""
        if self._lock is None:
            atomic.make_directory(self.queue.locks)
            lock = LifeLock.try_acquire(self.queue.processor_lock)
            if lock is None:
                return False
            try:
                with self.queue.locked():
                    self.writer.epoch = self.queue.append(LeaseTaken(), take=True, sync=True).epoch
            except BaseException:  # without an epoch it may write nothing: the next call tries again
                lock.release()
                raise
            self._lock = lock
            failpoint.here("lease")
        return True

    def heartbeat(self) -> None:
        """Touch the lock's file; LockLost if it was removed or replaced."""
        if self._lock:
            self._lock.beat(int(self.clock.monotonic() * 1e9), int(self.clock.time() * 1e9))

    def close(self, *, end_gate: bool = False) -> None:
        """Release locks and slots; the next processor adopts running gates, unless they are ended now (`end_gate`)."""
        self.gates.close(end=end_gate)
        if self._lock:
            self._lock.release()
            self._lock = None

    def recover(self) -> None:
        """Take over from a dead processor after `acquire`: unlock its checkouts, adopt its gates, drop old pins."""
        state = self.writer.state()
        self.git.clear_scratch()
        atomic.clear_temporaries(self.queue.folder, self.clock.time() - TEMPORARY_SECONDS)
        for path in checkouts.find_checkouts(self.git, self.queue.target)[0]:
            checkouts.Checkout(self.git, path).recover()
        failpoint.here("recover")
        self.gates.adopt(state)
        self._drop_pins(state)

    def _drop_pins(self, state: QueueState) -> None:
        """Drop the pins of entries that a command ended, or a processor that then crashed."""
        pins = (ref.removeprefix(f"{PINS}/").split("/") for ref in self.git.refs(f"{PINS}/"))
        entries = [state.entries[parts[0]] for parts in pins if len(parts) == 2 and parts[0] in state.entries]
        self.writer.drop_pins(entries)
        self._unpinned = _withdrawn(state)

    # --- one step ---------------------------------------------------------------------------------------------------

    def step(self) -> Progress | Wait:
        """Do one step. A command that is recorded meanwhile takes effect at the next."""
        state = self.writer.state()
        before = state.seq
        if before - state.snapshot_seq >= SNAPSHOT_EVERY:
            with suppress(OSError):  # the disk is full: the journal grows on
                self.writer.compact()
        if pause := self._setback.tries and self._setback.pause(next(iter(self._at_work(state)), ""),
                                                                self.queue.clock.monotonic()):
            return Wait("hindered", seconds=pause)
        try:
            result = self._step()
        except ForbiddenTransition:
            if self.queue.state.seq == before:
                raise
            result = Progress("overtaken")
        except GitError as error:
            result = self._handle_failure(error)
        else:
            if self._is_over(result):
                self._forget_setback()
        self._worked |= isinstance(result, Progress)
        return result

    def _is_over(self, result: Progress | Wait) -> bool:
        """Return whether what hindered the queue is over; that a gate starts after a stopped one proves nothing."""
        if isinstance(result, Wait):
            return result.kind == "empty"
        return result.what not in _PREPARING and (result.what != "testing" or self._setback.tries > 0)

    # --- failures of git --------------------------------------------------------------------------------------------

    def _handle_failure(self, error: GitError) -> Progress | Wait:
        """Try again what git failed at; if that lasts, and is not the target's fault, set the entry at work aside."""
        state = self.writer.state()
        names = self._at_work(state)
        if not names or disk_space.reports_no_space(error.stderr) or shortage.reports_shortage(error.stderr):
            raise error
        self._setback = self._setback.after(names[0], error.code, self.clock.monotonic(), RETRY_SECONDS)
        why = f"git fails at {names[0]}: {error}"
        if self._setback.is_lasting:
            trouble = self._find_trouble_of_target()
            if not trouble:
                return self._set_aside(names, state, f"git fails at it, and not at {self.queue.target}: {error}")
            why = f"git fails at {self.queue.target} itself, so nothing can land there: {trouble}"
            self._setback = Setback(names[0], self._setback.tries, retry_at=self._setback.retry_at)
        if self._setback.is_told and state.hindrance != why:
            self.writer.append(QueueHindered(why))
        return Wait("hindered", f"{why}; trying again")

    def _at_work(self, state: QueueState) -> tuple[str, ...]:
        """Return the entries that the next step works at: those of a landing, of the batch, or the first that waits."""
        if state.landing:
            return state.landing.entries
        if batched := state.batch():
            return tuple(entry.id for entry in batched)
        waiting = [entry.id for entry in state.waiting()]
        return (self._first,) if self._first in waiting else tuple(waiting[:1])

    def _find_trouble_of_target(self) -> str:
        """Return what git says if it fails at the bare target, too; '' if it does there what an entry needs."""
        state, tip = self.writer.state(), self.writer.tip()
        if tip is None:
            return f"{self.queue.target} does not exist"
        try:
            self.git.merge_tree(tip, tip)
            self.git.commit_tree(self.git.tree_of(tip), [tip], "a trial\n", date=int(self.clock.time()))
            config = require_config(state)
            self.gates.verdict_key(config)
            if state.batch() and not config.no_gate:
                self.gates.keep((), state)
                self.gates.check_preparing(tip)
        except GarrisonError as error:
            return str(error)
        return ""

    def _set_aside(self, names: Sequence[str], state: QueueState, why: str) -> Progress:
        """End the entry at work; of several, judge each alone first."""
        self._forget_setback()
        self._one_by_one = len(names) > 1
        self.gates.keep((), state)
        if state.landing:
            result = self.lander.give_up(state.landing, why)
            if result.what == "landed":
                return result
        elif state.batch():
            self.writer.append(StatusChanged(tuple(names), "queued", why))
        if self._one_by_one:
            return Progress("requeued", names[0])
        return self.builder.record_conflict(self.queue.entry(names[0]), self.writer.tip() or "", (), why)

    def _forget_setback(self) -> None:
        if self.queue.state.hindrance:
            self.writer.append(QueueHindered())
        self._setback = Setback()

    # --- the steps --------------------------------------------------------------------------------------------------

    def _step(self) -> Progress | Wait:
        state = self.writer.state()
        if state.landing:
            return self.lander.finish(state.landing)
        return (self.gates.record_verdict(state) or self.lander.retry_blocked(state) or self._check_pause(state)
                or self._work_batch(state))

    def _check_pause(self, state: QueueState) -> Progress | Wait | None:
        """Resume a pause whose cause is gone; return a wait if nothing may be judged now, else None."""
        if state.pause:
            if not state.pause.is_manual and state.pause.tip != self.writer.tip():
                self.writer.append(QueueResumed(f"{self.queue.target} moved"), sync=True)
                return Progress("resumed")
            return Wait("paused", state.pause.describe())
        if state.unfinished() and (state.config is None or not state.config.is_ready):
            return Wait("no_gate", "no gate is recorded for this queue; name one with --gate 'CMD', or say --no-gate")
        return None

    def _work_batch(self, state: QueueState) -> Progress | Wait:
        """Continue the batch on the target's tip, or start one."""
        entries, waiting = state.batch(), state.waiting()
        if not entries:
            self.gates.keep((), state)
        if not entries and not waiting:
            return self._idle(state)
        if is_gc_running(self.git.common):
            return Wait("ref_locked", f"git gc runs in {self.queue.repo}, which might remove what is built meanwhile",
                        seconds=GC_SECONDS)
        tip = self.writer.tip()
        if tip is None:
            return Wait("no_target", f"branch {self.queue.target} does not exist in {self.queue.repo}; create it")
        if not entries:
            return self.builder.start_batch(tip, self._arrange(state, waiting, tip),
                                            self._batch_size(state, len(waiting)))
        chain = self.builder.chain(tip, entries) if tip == state.tip else None
        if chain is None:
            self.gates.keep((), state)
            reason = f"{self.queue.target} moved" if tip != state.tip else "its batch was changed"
            self.writer.append(StatusChanged(tuple(entry.id for entry in entries), "queued", reason))
            return Progress("requeued", entries[0].id)
        result = self._judge(chain, state)
        return (self.conflict_check.check(tip, waiting) if isinstance(result, Wait) else None) or result

    def _batch_size(self, state: QueueState, backlog: int) -> int:
        if require_config(state).no_gate or self._one_by_one:
            return 1
        return batch.choose_batch_size(state.verdicts.rejections, backlog, state.verdicts.durations,
                                       width=self._gate_width(state), max_batch=self._max_batch(state))

    def _beliefs(self, state: QueueState, entries: Sequence[MergeEntry], tip: str) -> Beliefs:
        """Return what is believed of these entries before they are tested."""
        if not require_config(state).beliefs:
            return plain_beliefs(state, entries)
        return self.history.estimate(state, entries, tip)

    def _arrange(self, state: QueueState, waiting: Sequence[MergeEntry], tip: str) -> list[MergeEntry]:
        """Return the waiting entries in the order that is expected to land most, if some conflict with others."""
        self._first = ""
        head, rest = list(waiting[:MAX_ARRANGED]), waiting[MAX_ARRANGED:]
        conflicts = self.pairs.find(head, tip) if len(head) >= MIN_ARRANGED else set()
        if conflicts:
            bad, names = self._beliefs(state, head, tip).bad, {entry.id for entry in head}
            places = [order.place_of(entry, state, names, bad[entry.id]) for entry in head]
            position = {name: index for index, name in enumerate(order.choose_order(places, conflicts))}
            head.sort(key=lambda entry: position[entry.id])
            self._first = head[0].id
        return [*head, *rest]

    def _max_batch(self, state: QueueState) -> int:
        return min(self.max_batch, require_config(state).max_batch or self.max_batch)

    def _gate_width(self, state: QueueState) -> int:
        return batch.choose_gate_width(len(os.sched_getaffinity(0)), require_config(state).gate_cores)

    def _idle(self, state: QueueState) -> Wait:
        """Return the wait of a queue in which no entry can be judged."""
        if self._worked and not self._unpinned.issuperset(_withdrawn(state)):
            self._drop_pins(state)
        self._worked = self._one_by_one = False
        for entry in state.unfinished():
            if entry.status == "landing_blocked":
                return Wait("blocked", entry.reason)
        for entry in state.unfinished():
            if entry.status == "queued":
                needs = ", ".join(f"{other.id} ({other.status})" for other in state.unmet_dependencies(entry))
                return Wait("blocked", f"{entry.id} waits for {needs}")
        return Wait("empty")

    # --- the batch --------------------------------------------------------------------------------------------------

    def _judge(self, chain: CandidateChain, state: QueueState) -> Progress | Wait:
        """Do what `batch.decide_next` decides about the batch."""
        config = require_config(state)
        if config.no_gate:
            return self._land(chain, len(chain.entries), state)
        evidence = state.verdicts.evidence(self.gates.verdict_key(config), self.gates.running_trees(state))
        names = tuple(entry.id for entry in chain.entries)
        red = batch.shortest_red(chain.trees, evidence)
        if 0 < red < len(names):
            self.writer.append(StatusChanged(names[red:], "queued", f"was behind {red} that are red together"))
            return Progress("split", names[0])
        decision = batch.decide_next(names, chain.trees, evidence, width=self._gate_width(state))
        if isinstance(decision, batch.Reject) and not chain.entries[0].verdict:
            # Its red runs are older than its present candidate: it was held or built again meanwhile.
            decision = batch.RunGates((1,), () if chain.trees[1] in evidence.running else (1,))
        if isinstance(decision, batch.Land):
            return self._land(chain, decision.count, state)
        if isinstance(decision, batch.RunGates):
            return self._run_gates(chain, decision, state)
        self.gates.keep((), state)
        if isinstance(decision, batch.PauseQueue):
            return self._pause(chain, decision.reason, state)
        self.writer.append(StatusChanged(names[:1], "rejected", chain.entries[0].reason), sync=True)
        self.writer.drop_pins([self.queue.entry(names[0])])
        return Progress("rejected", names[0])

    def _land(self, chain: CandidateChain, count: int, state: QueueState) -> Progress | Wait:
        config, entries = require_config(state), chain.entries[:count]
        if not config.no_gate and any(entry.verdict != "green" for entry in entries):
            self.writer.append(VerdictGiven(
                tuple(entry.id for entry in entries), "entry", chain.trees[count], self.gates.verdict_key(config),
                "green", "", entries[0].log, reused=True), sync=True)
            return Progress("verdict", entries[0].id)
        commits = self.builder.pin_landing(chain, count)
        result = self.lander.land(chain, commits)
        if isinstance(result, Progress) and result.what == "landed":
            self.builder.advance(count, commits.new)
        return result

    def _run_gates(self, chain: CandidateChain, decision: batch.RunGates, state: QueueState) -> Progress | Wait:
        self.gates.keep({chain.trees[count] for count in decision.wanted}, state)
        for count in decision.start:
            if count == 0:
                return self.gates.start(chain.entries[:1], chain.base, chain.trees[0], "base")
            commit = self.builder.pin_candidate(chain, count)
            return self.gates.start(chain.entries[:count], commit, chain.trees[count], "entry")
        return self.gates.wait(state)

    def _pause(self, chain: CandidateChain, reason: str, state: QueueState) -> Progress:
        names, base = tuple(entry.id for entry in chain.entries), state.base
        self.writer.append(QueuePaused(
            names, reason, f"on the bare {self.queue.target} {base.reason if base else ''}", chain.base,
            base.log if base else ""), sync=True)
        return Progress("paused", names[0])


_PREPARING = frozenset({"requeued", "candidate", "built again", "split", "overtaken", "resumed", "unblocked", "moved",
                        "stopped"})
"""Progress after which the same failure may follow again."""


def _withdrawn(state: QueueState) -> set[str]:
    """Return the ids of entries that had a candidate and were withdrawn."""
    return {entry.id for entry in state.entries.values()
            if entry.status in ("superseded", "cancelled") and entry.commit}
