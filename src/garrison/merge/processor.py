"""Merge processor: work a queue in small steps that never wait for a test.

Theory of operation. `acquire` the lock, `recover` once, then call `step` repeatedly. Each step reads the journal and
the refs, does one thing and returns it (`StepResult`), or returns what it waits for (`Wait`). It does the first
applicable item of this list; the code has the same numbers:

     1. finish a landing that was recorded (`landing.Lander.finish`): the ref may have moved already
     2. record the verdict of a gate run that ended, before anything acts on it (`gate_runs.GateRuns.record_verdict`)
     3. retry a landing that an open checkout blocked (`landing.Lander.retry_blocked`)
     4. wait if the queue is paused or has no gate (`_check_pause`)
     5. record elapsed turn times and which entries wait for which turns (`_follow_turns`)
     6. idle if no entry can be judged; wait for git's gc, or for a missing target
     7. requeue entries under test on an old tip, or now waiting for another entry (`_send_back`)
     8. land the set of entries whose tree on the tip has passed (`_land`)
     9. test the bare target before an entry is blamed for the target's fault (`_check_target`)
    10. reject an entry, start the next gate run, or wait for those in progress (`_do`)

Steps 8 to 10 follow `decision.decide` (`_judge`). Candidates are built on the tip, so 1 to 7 ensure that the tip, the
entries under test and the journal agree before anything is judged.

The journal is its only memory: `recover` finds running gates again. A step raises Fenced when another processor has
    taken over. A step at which git fails is retried; an entry at which git keeps failing (`decision.Setback`), while it
    works at the bare target, is set aside so that it does not block others.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.ends import RETRY_SECONDS, Wait, WaitKind
from garrison.errors import ForbiddenTransition, GarrisonError, Hindered
from garrison.merge import checkouts, decision, order, records, turns
from garrison.merge.beliefs import TrackRecord, plain_beliefs
from garrison.merge.candidates import CandidateBuilder, CandidateChain
from garrison.merge.conflicts import ConflictCheck, PairConflicts
from garrison.merge.entry import order_by_dependencies
from garrison.merge.gate import PROXY_AFTER
from garrison.merge.gate_runs import GateRuns, require_config
from garrison.merge.gates_by_path import describe_since_whole, landed_since_whole
from garrison.merge.landing import Lander
from garrison.merge.queue import PINS, QueueWriter, StepResult
from garrison.merge.target import describe_gone
from garrison.merge.touched import TouchedFiles
from garrison.records import atomic
from garrison.records.life_lock import LifeLock
from garrison.system import failpoint, machine
from garrison.system.git.damage import hold_gc, is_gc_running
from garrison.system.git.repository import GitError
from garrison.system.git.signing import SigningFailed
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from garrison.backoff import Backoff
    from garrison.merge.decision import FinishedRun, QueueDecision, SetStart
    from garrison.merge.entry import EntryFact, MergeEntry
    from garrison.merge.gates_by_path import ChosenGate
    from garrison.merge.queue import MergeQueue
    from garrison.merge.records import QueueRecord
    from garrison.merge.state import QueueState
    from garrison.merge.verdicts import SetRun

__all__ = ["MergeProcessor", "StepResult"]

MIN_ARRANGED, MAX_ARRANGED = 3, decision.MAX_BATCH
"""Waiting entries at which an order is chosen (of two, either costs the other), and the maximum examined."""
SNAPSHOT_EVERY = 1000
"""Records between two snapshots; every command reads the records since the last snapshot."""
TEMPORARY_SECONDS = 60.0
"""Age in seconds after which a temporary file is a killed writer's."""
GC_SECONDS = 0.2
"""Seconds between two checks whether git's gc has ended."""
FAILPOINTS = ("lease", "pinned", "candidate", "test_recorded", "test_started", "verdict_before", "verdict", "landing",
              "swapped", "moving", "moved", "landed_first", "landed", "cleaned", "recover", "archived", "compacted")
"""Points at which tests kill a processor (see `system.failpoint`): before and after each durable step."""
CONFLICT_FAILPOINTS = ("conflict", "turn")
"""Points reached only after a conflict."""


class MergeProcessor:
    """Processor of a queue; the processor lock admits one at a time.

    Args:
        trees: folder of the gate slots.
        environment: environment of the gates, without the variables named in `held_back`.
        max_batch: maximum number of entries tested together; 1: one at a time.
        turn: duration in seconds of a turn.
        git_retry: seconds between retries after git failed.
        proxy_after: seconds after which a running stage always gets a proxy.
    """

    def __init__(self, queue: MergeQueue, *, trees: Path, environment: Mapping[str, str],
                 held_back: Sequence[str] = (), max_batch: int = decision.MAX_BATCH, turn: float = turns.TURN,
                 short_gate: float = decision.SHORT_GATE, snapshot_every: int = SNAPSHOT_EVERY,
                 retry: Backoff = decision.RETRY, git_retry: float = RETRY_SECONDS,
                 proxy_after: float = PROXY_AFTER) -> None:
        self.queue, self.git, self.clock, self.max_batch = queue, queue.git, queue.clock, max_batch
        self.short_gate, self.snapshot_every, self.retry, self.git_retry = short_gate, snapshot_every, retry, git_retry
        self.writer = QueueWriter(queue)
        self.builder, self.lander = CandidateBuilder(self.writer, turn), Lander(self.writer)
        touched = TouchedFiles(self.git)
        self.touched: TouchedFiles = touched
        self.turn_clock = turns.TurnClock()
        self.gates = GateRuns(self.writer, trees / self.git.key, environment, held_back, touched,
                              proxy_after=proxy_after)
        self.builder.select_gate = self.gates.select
        self.history = TrackRecord(queue.folder, touched)
        self.pairs = PairConflicts(self.git, touched)
        self._outlook = Outlook()
        self._building: tuple[str, ...] = ()
        """Entries of the set that the current step builds."""
        self.conflict_check = ConflictCheck(self.writer, self.builder)
        self._lock: LifeLock | None = None
        self._setback = decision.Setback()
        self._one_by_one = False
        """Set while entries are judged alone, to find the one at which git fails."""
        self._worked = False
        """Set if a step changed something since the queue was last idle."""
        self._lacks_target = False
        """Set while the target does not exist."""
        self._unpinned: set[str] = set()
        """Withdrawn entries whose candidates are no longer pinned."""

    @property
    def epoch(self) -> int:
        """Return the fencing token of the acquired lock, 0 before `acquire`."""
        return self.writer.epoch

    def outcomes_since(self, seq: int) -> list[EntryFact]:
        """Return the outcomes of journal records after number `seq`; deterministic."""
        return [outcome for outcome in self.queue.state.outcomes if outcome.seq > seq]

    # --- the lock ---------------------------------------------------------------------------------------------------

    def acquire(self) -> bool:
        """Take the processor's lock and start a new epoch; return False if another process has it."""
        if self._lock is None:
            lock = LifeLock.try_acquire(self.git.make_lock(self.queue.processor_lock))
            if lock is None:
                return False
            # The lock excludes others while its file exists; the epoch in the journal also fences a processor whose
            # lock file was removed, at its next write.
            try:
                with self.queue.locked():
                    self.writer.epoch = self.queue.append(records.LeaseTaken(), take=True, sync=True).epoch
            except BaseException:  # without an epoch it must not write: the next call tries again
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
        # the slots before the lock: the next processor adopts gates at once, and ends a gate whose slot is still taken
        self.gates.close(end=end_gate)
        self.git.release_scratch()
        if self._lock:
            self._lock.release()
            self._lock = None

    def recover(self) -> None:
        """Take over from a dead processor after `acquire`: unlock its checkouts, adopt its gates, drop old pins.

        GitError if git fails; the queue's state then shows the hindrance.
        """
        try:
            self._recover()
        except GitError as error:
            self._record_hindrance(f"git fails before anything can be tested: {error}")
            raise

    def _recover(self) -> None:
        state = self.writer.state()
        self.git.clear_scratch()
        self.git.release_scratch()
        self.git.hold_scratch()
        atomic.clear_temporaries(self.queue.folder, self.clock.time() - TEMPORARY_SECONDS)
        # before the gates, whose end may take time: until then the user's git cannot commit in these checkouts
        for path in checkouts.find_checkouts(self.git, self.queue.target)[0]:
            checkouts.Checkout(self.git, path).recover()
        failpoint.here("recover")
        self.gates.adopt(state)
        self._drop_pins(state)
        self.queue.notice_undone()

    def _drop_pins(self, state: QueueState) -> None:
        """Drop the pins of entries ended by a command, or by a processor that then crashed."""
        pins = (ref.removeprefix(f"{PINS}/").split("/") for ref in self.git.refs(f"{PINS}/"))
        entries = [state.entries[parts[0]] for parts in pins if len(parts) == 2 and parts[0] in state.entries]
        self.writer.drop_pins(entries)
        self._unpinned = _withdrawn(state)

    # --- one step ---------------------------------------------------------------------------------------------------

    def step(self) -> StepResult | Wait:
        """Do one step. A command recorded during it takes effect at the next step."""
        state = self.writer.state()
        before, self._building = state.seq, ()
        if before - state.snapshot_seq >= self.snapshot_every:
            with suppress(OSError):  # the disk is full: the journal keeps growing
                self.writer.compact()
        # only for the same entry: others do not wait for its failure
        if pause := self._setback.tries and self._setback.pause(next(iter(self._at_work(state)), ""),
                                                                self.queue.clock.monotonic()):
            return Wait(WaitKind.HINDERED, seconds=pause)
        try:
            result = self._step()
        except ForbiddenTransition:
            # a command (hold, cancel) recorded since the read made the step void; otherwise it is our bug
            if self.queue.state.seq == before:
                raise
            result = StepResult("overtaken")
        except GitError as error:
            result = self._handle_failure(error)
        except Hindered as error:
            result = Wait(WaitKind.HINDERED, str(error), seconds=GC_SECONDS)
        else:
            if self._is_over(result):
                self._forget_setback()
        self._worked |= isinstance(result, StepResult)
        return result

    def _is_over(self, result: StepResult | Wait) -> bool:
        """Return whether a hindrance is over; a gate started after a stopped one proves nothing."""
        if isinstance(result, Wait):
            return result.kind is WaitKind.EMPTY
        return result.what not in _PREPARING and (result.what != "testing" or self._setback.tries > 0)

    # --- failures of git --------------------------------------------------------------------------------------------

    def _handle_failure(self, error: GitError) -> StepResult | Wait:
        """Retry after a failure of git; if it persists and is not the target's fault, set aside the current entry."""
        state = self.writer.state()
        names = self._at_work(state)
        if not names:
            raise error
        lacks_room = machine.passes(error)
        self._setback = self._setback.after(names[0], error.code, self.clock.monotonic(), self.git_retry,
                                            lacks_room=lacks_room)
        why = f"git fails at {names[0]}: {error}"
        if self._setback.is_lasting:
            trouble = self._find_trouble_of_target()
            if not trouble:
                return self._set_aside(names, state, f"git fails at it, but not at {self.queue.target}: {error}")
            why = f"git fails at {self.queue.target} itself, so nothing can land there: {trouble}"
            # reset the weight: the bare target is checked again only after as many further failures
            self._setback = decision.Setback(names[0], self._setback.tries, retry_at=self._setback.retry_at)
        if self._setback.is_told:
            self._record_hindrance(why)
        return Wait(WaitKind.HINDERED, f"{why}; trying again")

    def _at_work(self, state: QueueState) -> tuple[str, ...]:
        """Return the entries that the step works on: those of a landing, of the set being built, or the first."""
        if state.landing:
            return state.landing.entries
        if self._building:
            return self._building
        return tuple(entry.id for entry in state.batch() or state.waiting()[:1])

    def _find_trouble_of_target(self) -> str:
        """Return git's error if it fails at the bare target as well; '' if it works there."""
        state, tip = self.writer.state(), self.writer.tip()
        if tip is None:
            return describe_gone(self.queue.target, self.queue.repo)
        try:
            self.git.merge_tree(tip, tip)
            self.git.commit_tree(self.git.tree_of(tip), [tip], "a trial\n", date=int(self.clock.time()))
            config = require_config(state)
            self.gates.book(config)
            if state.batch() and not config.no_gate:
                self.gates.keep(())
                self.gates.check_preparing(tip)
        except GarrisonError as error:
            return str(error)
        return ""

    def _set_aside(self, names: Sequence[str], state: QueueState, why: str) -> StepResult:
        """End the current entry; if there are several, judge each alone first."""
        self._forget_setback()
        self._one_by_one = len(names) > 1
        self.gates.keep(())
        if state.landing:
            result = self.lander.give_up(state.landing, why)
            if result.what == "landed":
                return result
        elif under_test := tuple(entry.id for entry in state.batch()):
            self.writer.append(records.StatusChanged(under_test, "queued", why))
        if self._one_by_one:
            return StepResult("requeued", names[0])
        return self.builder.record_conflict(self.queue.entry(names[0]), self.writer.tip() or "", (), why)

    def _forget_setback(self) -> None:
        self._record_hindrance("")
        self._setback = decision.Setback()

    def _record_hindrance(self, why: str) -> None:
        """Record what hinders the queue, '' for nothing, unless already recorded."""
        if self.queue.state.hindrance != why:
            self.writer.append(records.QueueHindered(why))

    # --- the steps --------------------------------------------------------------------------------------------------

    def _step(self) -> StepResult | Wait:
        state = self.writer.state()
        if state.landing:                                 # 1
            return self.lander.finish(state.landing)
        early = (self.gates.record_verdict(state)         # 2
                 or self.lander.retry_blocked(state)      # 3
                 or self._check_pause(state))             # 4
        if isinstance(early, Wait):
            self.turn_clock.stop()
        if early or not self.builder.robbed:
            return early or self._work(state)
        # a gc removed unpinned objects: they are rebuilt with gc locked out
        with hold_gc(self.git.common, GC_SECONDS):
            result = self._work(state)
        self.builder.robbed = False
        return result

    def _check_pause(self, state: QueueState) -> StepResult | Wait | None:
        """Resume from a pause whose cause is gone; return a wait if nothing may be judged now, else None."""
        if state.pause:
            # a move of the target may have fixed the failure; a pause by the user outlasts any move
            has_moved = not state.pause.is_manual and state.pause.tip != self.writer.tip()
            if has_moved or state.pause.is_retry_due(self.clock.time()):
                why = f"{self.queue.target} moved" if has_moved else "what failed may pass now"
                self.writer.append(records.QueueResumed(why), sync=True)
                return StepResult("resumed")
            return Wait(WaitKind.PAUSED, state.pause.describe())
        if state.unfinished() and (state.config is None or not state.config.is_ready):
            return Wait(WaitKind.NO_GATE,
                        "no gate is recorded for this queue; name one with --gate 'CMD', or say --no-gate")
        return None

    def _work(self, state: QueueState) -> StepResult | Wait:
        """Do steps 5 to 10 on the target's tip."""
        under_test, waiting = state.batch(), state.waiting()
        waits = self._find_waits(state, [*under_test, *waiting]) if state.turns else {}
        if (changed := self._follow_turns(state, waits)) is not None:  # 5
            return changed
        waiting = turns.free_of_turns(state, waiting, waits)
        if not under_test and not waiting:                # 6
            self.gates.keep(())
            return self._idle(state)
        # gc removes what no ref reached when it started; with --prune=now even objects written a moment ago
        if is_gc_running(self.git.common):
            return Wait(WaitKind.REF_LOCKED,
                        f"git gc runs in {self.queue.repo}, which might remove new commits",
                        seconds=GC_SECONDS)
        tip = self._find_tip()
        if isinstance(tip, Wait):
            return tip
        self.queue.notice_undone()
        needs = {entry.id: [other.id for other in state.unmet_dependencies(entry)] for entry in under_test}
        free = order_by_dependencies(under_test, needs)
        if (back := self._send_back(state, tip, under_test, free, waits)) is not None:  # 7
            return back
        result = self._judge(state, tip, free, waiting)   # 8 to 10
        if isinstance(result, Wait):  # meanwhile, find conflicts of waiting entries
            busy = {path for each in self.touched.of_all(under_test, tip).values() for path in each.files}
            return self.conflict_check.check(tip, waiting, busy) or result
        return result

    def _send_back(self, state: QueueState, tip: str, under_test: Sequence[MergeEntry], free: Sequence[MergeEntry],
                   waits: Mapping[str, turns.Waits]) -> StepResult | None:
        """Requeue entries under test whose verdict would no longer count; None if all may continue."""
        if under_test and tip != state.tip:
            return self._requeue(under_test, f"{self.queue.target} moved")
        for entry in under_test:
            if (wait := waits.get(entry.id)) is not None:
                return self._requeue([entry], turns.describe_wait(wait.turn.node, wait.files))
        if len(free) < len(under_test):
            return self._requeue([entry for entry in under_test if entry not in free], "it waits for another entry")
        return None

    def _find_tip(self) -> str | Wait:
        """Return the target's tip; if the target is missing, return a wait that is shown like any other hindrance."""
        tip = self.writer.tip()
        if tip is None:
            self._lacks_target, why = True, describe_gone(self.queue.target, self.queue.repo)
            self._record_hindrance(why)
            return Wait(WaitKind.NO_TARGET, why)
        if self._lacks_target:
            self._lacks_target = False
            self._record_hindrance("")
        return tip

    def _find_waits(self, state: QueueState, entries: Sequence[MergeEntry]) -> dict[str, turns.Waits]:
        tip = self.writer.tip()
        return turns.find_waits(state, entries, self.touched.of_all(entries, tip)) if tip is not None else {}

    def _follow_turns(self, state: QueueState, waits: Mapping[str, turns.Waits]) -> StepResult | None:
        """Record elapsed turn times, and which entries wait for which turns; None if nothing has changed."""
        changed: list[QueueRecord] = []
        for turn, used in self.turn_clock.measure(self.clock.monotonic(), turns.find_running(state, waits)):
            changed.append(records.TurnEnded(*turn.key, turn.number, turns.TurnEnd.TIME) if used >= turn.limit
                           else records.TurnTimed(*turn.key, turn.number, round(used, 3)))
        for entry in state.unfinished():
            wait = waits.get(entry.id)
            told = (entry.waits_for, entry.files if entry.waits_for else ())
            if entry.status == "queued" and told != ((wait.turn.key, wait.files) if wait is not None else ((), ())):
                changed.append(records.TurnAwaited(entry.id, *wait.turn.key, wait.files) if wait is not None
                               else records.TurnAwaited(entry.id))
        for record in changed:
            self.writer.append(record)
            failpoint.here("turn")
        return StepResult("turn") if changed else None

    def _requeue(self, entries: Sequence[MergeEntry], reason: str) -> StepResult:
        names = tuple(entry.id for entry in entries)
        jobs = self.gates.in_progress(self.queue.state)
        self.gates.keep([job for job, gate in jobs.items() if not set(names).intersection(gate.entries)])
        self.writer.append(records.StatusChanged(names, "queued", reason))
        return StepResult("requeued", names[0])

    def _look(self, state: QueueState, tip: str, under_test: Sequence[MergeEntry], waiting: Sequence[MergeEntry],
              ) -> Outlook:
        """Return the entries that may be tested now, in order, with the beliefs about them.

        Entries under test come first. An entry that conflicts with an earlier one waits until that is judged.
        """
        head = [*under_test, *waiting][:max(MAX_ARRANGED, len(under_test))]
        names = tuple(entry.id for entry in head)
        # expensive (merges of all pairs, a replay of the history): skip in steps that only wait for a gate
        known_by = (tip, *((entry.id, entry.depends_on, entry.strategy, entry.priority) for entry in head))
        if known_by == self._outlook.known_by:
            return self._outlook
        # failed merges and different trees are facts about one tip: forget them on the next
        parked = self._outlook.parked if self._outlook.tip == tip else frozenset()
        unfit = self._outlook.unfit if self._outlook.tip == tip else frozenset()
        beliefs = self._beliefs(state, head, tip)
        conflicts = self.pairs.find(head, tip) if len(head) >= MIN_ARRANGED else set()
        places = order.find_places(head, state, beliefs.bad)
        ordered = list(names)
        if conflicts:  # entries under test keep their places: another order would discard the runs in progress
            fixed, first = set(names[:len(under_test)]), list(names[:len(under_test)])
            ordered = first + [name for name in order.choose_order(places[len(under_test):], conflicts)
                               if name not in fixed]
        against: dict[str, set[str]] = {}
        for index, name in enumerate(ordered):
            if index >= len(under_test):
                against[name] = {other for other in ordered[:index] if frozenset((name, other)) in conflicts}
        free = [name for name in ordered if not against.get(name)]
        entries, due = {entry.id: entry for entry in head}, {place.id for place in places if place.is_due}
        unmet = {place.id: place.needs for place in places}
        may_begin = tuple(decision.WaitingTree(name, unmet[name], self.builder.lands_alone(entries[name]), name in due)
                          for name in free)
        self._outlook = Outlook(tip, known_by, may_begin, beliefs, parked, unfit)
        return self._outlook

    def _beliefs(self, state: QueueState, entries: Sequence[MergeEntry], tip: str) -> decision.Beliefs:
        # a single entry is tested next in any case, and beliefs cost ten calls of git
        if not require_config(state).beliefs or len(entries) == 1:
            return plain_beliefs(state, entries)
        return self.history.estimate(state, entries, tip)

    def _max_set(self, state: QueueState, backlog: int) -> int:
        if self._one_by_one:
            return 1
        own = min(self.max_batch, require_config(state).max_batch or self.max_batch)
        return decision.choose_max_set(backlog, state.verdicts.durations, max_batch=own, short_gate=self.short_gate)

    def _gate_width(self, state: QueueState) -> int:
        return decision.choose_gate_width(len(os.sched_getaffinity(0)), require_config(state).gate_cores)

    def _idle(self, state: QueueState) -> Wait:
        """Return the wait of a queue without judgeable entries."""
        if state.config is not None and state.config.beliefs:
            self.history.learn(state)  # now, while no landing is delayed by it
        # commands and enqueues end entries without touching their pins, which only the processor drops
        if self._worked and not self._unpinned.issuperset(_withdrawn(state)):
            self._drop_pins(state)
        self._worked = self._one_by_one = False
        for entry in state.unfinished():
            if entry.status == "landing_blocked":
                return Wait(WaitKind.BLOCKED, entry.reason)
        for entry in state.unfinished():
            if entry.status == "queued" and entry.waits_for:
                return Wait(WaitKind.BLOCKED, f"{entry.id} {turns.describe_wait(entry.waits_for[1], entry.files)}")
        for entry in state.unfinished():
            if entry.status == "queued":
                needs = ", ".join(f"{other.id} ({other.status})" for other in state.unmet_dependencies(entry))
                return Wait(WaitKind.BLOCKED, f"{entry.id} waits for {needs}")
        return Wait(WaitKind.EMPTY)

    # --- the batch --------------------------------------------------------------------------------------------------

    def _judge(self, state: QueueState, tip: str, under_test: Sequence[MergeEntry], waiting: Sequence[MergeEntry],
               ) -> StepResult | Wait:
        """Do steps 8 to 10 as `decision.decide` decides from the evidence."""
        outlook = self._look(state, tip, under_test, waiting)
        if require_config(state).no_gate:
            return self._land(state, tip, outlook.waiting[0].id)
        # if every remaining entry did not merge with others, try the first again: it may merge alone
        candidates = outlook.free or outlook.waiting[:1]
        book, names = self.gates.book(require_config(state)), {each.id for each in candidates}
        found = list(decision.list_runs(state, book, tip, names, outlook.unfit))
        jobs = self.gates.in_progress(state)
        base_jobs = [job for job, gate in jobs.items() if gate.subject == "base"]
        set_jobs = [job for job in jobs if job not in base_jobs]
        sets = decision.list_running(state, book, tip, [jobs[job] for job in set_jobs])
        # a long backlog is tested in larger sets, except while searching the culprit of a red set
        backlog = len(candidates) if all(entry.tests == 0 for entry in (*under_test, *waiting)) else decision.MAX_BATCH
        chosen = decision.decide(
            candidates, outlook.beliefs, [run for run, _ in found], [each for each in sets if each],
            self._gate_width(state) - len(base_jobs), max_set=self._max_set(state, backlog),
            is_steady=decision.is_steady(state, book.whole.key))
        if chosen.land:                                   # 8
            return self._land(state, tip, *chosen.land)
        # after landing: a run in progress may still count once the entries before it have landed
        self.gates.keep([*base_jobs, *(job for job, each in zip(set_jobs, sets, strict=True)
                                       if each is not None and each not in chosen.cancel)])
        blamed = {entry.id for entry in under_test}
        reds = [(run, record) for run, record in found if not run.green and blamed.intersection(run.entries)]
        if reds and (asked := self._check_target(state, tip, blamed, reds, is_tested=bool(base_jobs))) is not None:
            return asked
        return self._do(state, tip, chosen)

    def _check_target(self, state: QueueState, tip: str, blamed: Collection[str],
                      reds: Sequence[tuple[FinishedRun, SetRun]], *,
                      is_tested: bool) -> StepResult | Wait | None:
        """Check whether red runs are the bare target's fault (9): test it, wait, or pause; None if it passes.

        It has to pass the whole gate, since earlier landings may have broken gates that their paths did not select, and
        the gates by path that were red, which may fail on any tree.
        """
        book, tree = self.gates.book(require_config(state)), self.git.tree_of(tip)
        for names in dict.fromkeys([(), *(record.gates for _, record in reds)]):
            gate = book.of(names) or book.whole
            results = [record.result for _, record in reds if gate.is_whole or record.gates == names]
            answer = decision.check_base(tree, results, state.verdicts.evidence(gate.key))
            if answer == "passes":
                continue
            if answer != "test":
                self.gates.keep(())
                return self._pause(state, tip, answer, landed_since_whole(state, book.whole.key))
            if is_tested:
                return self.gates.wait(state)
            blamed_first = next(name for run, _ in reds for name in run.entries if name in blamed)
            self._building = (blamed_first,)
            return self.gates.start([state.entry(blamed_first)], tip, tree, "base", gate, base=tip)
        return None

    def _do(self, state: QueueState, tip: str, chosen: QueueDecision) -> StepResult | Wait:
        """Reject an entry, or start the next run, or wait for those in progress (10)."""
        if chosen.reject:
            entry = state.entry(chosen.reject)
            # record first: `recover` drops a leftover pin, whereas a candidate without a pin would be rebuilt
            self.writer.append(records.StatusChanged((entry.id,), "rejected", entry.reason), sync=True)
            self.writer.drop_pins([self.queue.entry(entry.id)])
            return StepResult("rejected", entry.id)
        for start in chosen.start:
            return self._test(state, tip, start)
        return self.gates.wait(state)

    def _test(self, state: QueueState, tip: str, start: SetStart) -> StepResult | Wait:
        """Build a set on the tip and start its gate run, or reuse the verdict on the same tree."""
        self._building = start.entries
        if start.repeats and (again := self._repeat(state, tip, start)) is not None:
            return again
        entries = [state.entry(name) for name in start.entries]
        is_known = all(entry.status != "queued" for entry in entries)
        # candidates are journaled before their gate runs, each in one step, since a processor may die after any step
        chain = (self.builder.chain(tip, entries) if is_known else None) or self.builder.start_set(tip, entries)
        if not isinstance(chain, CandidateChain):
            return chain
        missing = set(start.entries) - {entry.id for entry in chain.entries}
        if missing:  # they do not merge with earlier ones
            self._outlook = self._outlook.park(missing)
            return StepResult("split", start.entries[0])
        if not is_known:
            return StepResult("candidate", start.entries[0])
        tree = chain.trees[-1]
        if (passed := self.gates.find_passed(state, entries, tip, tree)) is not None:
            self._reuse_verdict(chain, passed)
            return StepResult("verdict", entries[0].id)
        commit = self.builder.pin_candidate(chain)  # a chain in memory may have lost its objects
        gate = self.gates.choose(state, entries, tip, tree)
        return self.gates.start(entries, commit, tree, "entry", gate, base=tip, why=start.why)

    def _repeat(self, state: QueueState, tip: str, start: SetStart) -> StepResult | Wait | None:
        """Repeat the last red run of one entry alone if the target has moved since; else None: it is rebuilt."""
        book = self.gates.book(require_config(state))
        last = next((run for run in reversed(state.verdicts.runs) if run.entries == start.entries
                     and run.result != "green" and book.is_present(run.gates, run.key)), None)
        # On the same tip a rebuild gives the same tree; on another tip it would not, and a red run would not be a
        # repetition. An unpinned candidate may have been removed by gc.
        if last is None or last.base == tip or not last.commit or not self.git.has_object(last.commit):
            return None
        return self.gates.start([state.entry(start.entries[0])], last.commit, last.tree, "entry",
                                book.of(last.gates) or book.whole, base=last.base, why=start.why)

    def _reuse_verdict(self, chain: CandidateChain, gate: ChosenGate) -> None:
        self.writer.append(records.VerdictGiven(
            tuple(entry.id for entry in chain.entries), "entry", chain.trees[-1], gate.key, "green", "",
            chain.entries[0].log, reused=True, base=chain.base, gates=gate.names), sync=True)

    def _land(self, state: QueueState, tip: str, *names: str) -> StepResult | Wait:
        """Land a set whose tree on the tip has passed (8); if the tree differs now, test it again."""
        self._building, config = names, require_config(state)
        chain: CandidateChain | StepResult | None
        entries = [state.entry(name) for name in names]
        is_new = any(entry.status == "queued" for entry in entries)
        chain = self.builder.start_set(tip, entries) if is_new else self.builder.chain(tip, entries)
        if isinstance(chain, StepResult):
            return chain
        passed: ChosenGate | None = None
        if not config.no_gate:
            if chain is not None and len(chain.entries) == len(names):
                passed = self.gates.find_passed(state, chain.entries, tip, chain.trees[-1])
            if chain is None or passed is None:
                self._outlook = self._outlook.refuse(names)  # a different tree on this tip
                return StepResult("built again", names[0])
            if is_new:
                entries = [self.queue.entry(name) for name in names]
                chain = chain.prefix(entries)
            if any(entry.verdict != "green" for entry in chain.entries):
                self._reuse_verdict(chain, passed)
                return StepResult("verdict", names[0])
        if chain is None:
            return self._requeue(entries, "its candidate no longer fits the target")
        try:
            commits = self.builder.pin_landing(chain, len(names))
        except SigningFailed as error:
            return self.lander.wait_for_signature(names, str(error))
        result = self.lander.land(chain, commits, passed.names if passed is not None else ())
        if isinstance(result, StepResult) and result.what == "landed":
            self.builder.advance(chain, len(names), commits.new)
        return result

    def _pause(self, state: QueueState, tip: str, reason: str, landed: Sequence[str]) -> StepResult:
        names, base = tuple(entry.id for entry in state.batch()), state.base
        first, line_end, rest = (base.reason if base else "").partition("\n")
        since = f"; {told}" if (told := describe_since_whole(landed)) else ""
        self.writer.append(records.QueuePaused(
            names, reason, f"on the bare {self.queue.target} {first}{since}{line_end}{rest}", tip,
            base.log if base else "",
            decision.choose_retry(base.result if base else "", state.retried_pauses, self.retry)), sync=True)
        return StepResult("paused", names[0] if names else "")


class Outlook(Value):
    """Entries that may be tested on a tip, cached while its inputs (`known_by`) are unchanged.
    """

    tip: str = ""
    known_by: tuple[object, ...] = ()
    waiting: tuple[decision.WaitingTree, ...] = ()
    beliefs: decision.Beliefs = decision.Beliefs({})
    parked: frozenset[str] = frozenset()
    """Entries that did not merge with others: they wait until the others have landed, or until nothing else is left."""
    unfit: frozenset[tuple[str, ...]] = frozenset()
    """Entries whose tree on this tip differs from the tested one."""

    @property
    def free(self) -> list[decision.WaitingTree]:
        """Return the entries that are neither parked nor depend on a parked one."""
        out = set(self.parked)
        for each in self.waiting:
            if each.needs & out:
                out.add(each.id)
        return [each for each in self.waiting if each.id not in out]

    def park(self, names: Collection[str]) -> Outlook:
        return replace(self, parked=self.parked | set(names))

    def refuse(self, names: tuple[str, ...]) -> Outlook:
        return replace(self, unfit=self.unfit | {names})


_PREPARING = frozenset({"requeued", "candidate", "built again", "split", "overtaken", "resumed", "unblocked", "moved",
                        "stopped", "turn"})
"""Kinds of progress after which the same failure may recur."""


def _withdrawn(state: QueueState) -> set[str]:
    return {entry.id for entry in state.entries.values()
            if entry.status in ("superseded", "cancelled") and entry.commit}
