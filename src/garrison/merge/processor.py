"""The processor: works the queue, a batch at a time, in small steps that never wait for a test.

`take` the lock, `recover` once, then `step` again and again: each step looks at the journal and the refs, does one
thing and says what (`Progress`) or what it waits for (`Wait`). All it remembers is in the journal; only handles of
running gates are held, and found again by `recover`. A step raises Fenced when another processor has taken over,
GitError when git cannot do its part now (the next step tries again).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import ForbiddenTransition
from garrison.merge import batch, checkouts, failpoint
from garrison.merge.candidates import CandidateBuilder
from garrison.merge.checkouts import Checkout
from garrison.merge.conflicts import ConflictCheck
from garrison.merge.gate import GateRuns, ready
from garrison.merge.landing import Lander
from garrison.merge.queue import PINS, Progress, QueueWriter, Wait
from garrison.records import atomic
from garrison.records.life_lock import LifeLock
from garrison.system.git.repository import collecting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from garrison.merge.candidates import CandidateChain
    from garrison.merge.queue import MergeQueue
    from garrison.merge.state import Outcome, QueueState

__all__ = ["MergeProcessor", "Progress", "Wait"]

SNAPSHOT_EVERY = 1000
"""Records of the journal between two snapshots: every command of a queue reads what came after the last one."""
LEFT_SECONDS = 60.0
"""A file that is still to get its name, and was not touched for so long, is of a writer that was killed."""
GC_SECONDS = 0.2
"""How often it is looked whether git's gc is over."""


class MergeProcessor:
    """The one processor of a queue. `environment` is what gates get (and `held_back` not), `trees` has the slots.

    `max_batch`: entries that it tests together at most; 1 for who wants one verdict at a time.
    """

    def __init__(self, queue: MergeQueue, *, trees: Path, environment: Mapping[str, str],
                 held_back: Sequence[str] = (), max_batch: int = batch.MAX_BATCH) -> None:
        self.queue, self.git, self.clock = queue, queue.git, queue.clock
        self.writer = QueueWriter(queue)
        self.builder, self.lander = CandidateBuilder(self.writer), Lander(self.writer)
        self.trials = GateRuns(self.writer, trees / self.git.key, environment, held_back)
        self.early, self.max_batch = ConflictCheck(self.writer, self.builder), max_batch
        self._lock: LifeLock | None = None
        self._untidy = False
        """Whether something was done since it was last idle."""
        self._tidied: set[str] = set()
        """Entries that were withdrawn, and keep no pin of a candidate any more."""

    @property
    def epoch(self) -> int:
        """The fencing token of this hold of the lock; 0 before `take`."""
        return self.writer.epoch

    # --- life -------------------------------------------------------------------------------------------------------

    def acquire(self) -> bool:
        """Take the processor's lock if nobody holds it; the epoch grows. False if somebody does."""
        if self._lock is None:
            atomic.make_directory(self.queue.locks)
            self._lock = LifeLock.try_acquire(self.queue.processor_lock)
            if self._lock is None:
                return False
            with self.queue.locked():
                self.writer.epoch = self.queue.append("lease", {}, take=True, sync=True).epoch
            failpoint.here("lease")
        return True

    def heartbeat(self) -> None:
        """A life sign; LockLost if the lock's file was removed or replaced."""
        if self._lock:
            self._lock.beat(int(self.clock.monotonic() * 1e9), int(self.clock.time() * 1e9))

    @property
    def gate_folders(self) -> list[Path]:
        """Where the running gates will write their verdicts."""
        return self.trials.folders

    def close(self, *, end_gate: bool = False) -> None:
        """Let go of everything; a running gate goes on and is adopted by the next processor, unless it is to end."""
        self.trials.close(end=end_gate)
        if self._lock:
            self._lock.release()
            self._lock = None

    def recover(self) -> None:
        """After `take`: free checkouts a dead processor held, adopt its running gates, drop what nobody needs."""
        state = self.writer.state()
        self.git.clear_scratch()
        atomic.clear_temporaries(self.queue.folder, self.clock.time() - LEFT_SECONDS)
        for path in checkouts.find_checkouts(self.git, self.queue.target)[0]:
            Checkout(self.git, path).recover()
        failpoint.here("recover")
        self.trials.adopt(state)
        self._tidy(state)

    def _tidy(self, state: QueueState) -> None:
        """Drop the pins of entries that came to their end without us: before a crash, or by somebody's word."""
        pins = (ref.removeprefix(f"{PINS}/").split("/") for ref in self.git.refs(f"{PINS}/"))
        entries = [state.entries[parts[0]] for parts in pins if len(parts) == 2 and parts[0] in state.entries]
        self.writer.drop_pins(entries)
        self._tidied = _withdrawn(state)

    def outcomes_since(self, seq: int) -> list[Outcome]:
        """What is to be signalled from journal records after number `seq`; the same facts every time it is asked."""
        return [outcome for outcome in self.queue.state.outcomes if outcome.seq > seq]

    # --- one step ---------------------------------------------------------------------------------------------------

    def step(self) -> Progress | Wait:
        """Do one small thing. What a person asked for meanwhile is met at the next one."""
        state = self.writer.state()
        before = state.seq
        if before - state.since >= SNAPSHOT_EVERY:
            with suppress(OSError):  # no room for it: the journal goes on as it is
                self.writer.compact()
        try:
            done = self._step()
        except ForbiddenTransition:
            if self.queue.state.seq == before:
                raise
            done = Progress("overtaken")
        self._untidy |= isinstance(done, Progress)
        return done

    def _step(self) -> Progress | Wait:
        state = self.writer.state()
        if state.landing:
            done = self.lander.finish(state.landing)
        else:
            done = self.trials.watch(state) or self.lander.look_again(state) or self._held_up(state) or \
                self._with_tip(state)
        return done

    def _held_up(self, state: QueueState) -> Progress | Wait | None:
        """Why nobody can be judged now; None if nothing keeps the queue."""
        if state.pause:
            if not state.pause.is_manual and state.pause.tip != self.writer.tip():
                self.writer.append("resume", {"reason": f"{self.queue.target} moved"}, sync=True)
                return Progress("resumed")
            return Wait("paused", state.pause.describe())
        if state.unfinished() and (state.config is None or not state.config.ready):
            return Wait("no_gate", "no gate is recorded for this queue; name one with --gate 'CMD', or say --no-gate")
        return None

    def _with_tip(self, state: QueueState) -> Progress | Wait:
        """Go on with the line on the target's tip, or begin one."""
        line, waiting = state.line(), state.waiting()
        if not line:
            self.trials.keep((), state)
        if not line and not waiting:
            return self._nothing(state)
        if collecting(self.git.common):
            return Wait("ref_locked", f"git gc runs in {self.queue.repo}, and might remove what is built meanwhile",
                        seconds=GC_SECONDS)
        tip = self.writer.tip()
        if tip is None:
            return Wait("no_target", f"branch {self.queue.target} does not exist in {self.queue.repo}; create it")
        if not line:
            return self.builder.form(tip, waiting, self._size(state, len(waiting)))
        chain = self.builder.chain(tip, line) if tip == state.tip else None
        if chain is None:
            self.trials.keep((), state)
            self.writer.move([entry.id for entry in line], "queued",
                          f"{self.queue.target} moved" if tip != state.tip else "the line was changed")
            return Progress("requeued", line[0].id)
        done = self._judge(chain, state)
        return (self.early.look(tip, waiting) if isinstance(done, Wait) else None) or done

    def _size(self, state: QueueState, backlog: int) -> int:
        if ready(state).no_gate:
            return 1
        return batch.choose_batch_size(state.seen.judged, backlog, state.seen.seconds, width=self._width(state),
                                       max_batch=self.max_batch)

    def _width(self, state: QueueState) -> int:
        return batch.choose_gate_width(len(os.sched_getaffinity(0)), ready(state).gate_cores)

    def _nothing(self, state: QueueState) -> Wait:
        if self._untidy and not self._tidied.issuperset(_withdrawn(state)):
            self._tidy(state)
        self._untidy = False
        for entry in state.unfinished():
            if entry.status == "landing_blocked":
                return Wait("blocked", entry.reason)
        for entry in state.unfinished():
            if entry.status == "queued":
                told = ", ".join(f"{other.id} ({other.status})" for other in state.unmet_dependencies(entry))
                return Wait("blocked", f"{entry.id} waits for {told}")
        return Wait("empty")

    # --- the line ---------------------------------------------------------------------------------------------------

    def _judge(self, chain: CandidateChain, state: QueueState) -> Progress | Wait:
        """Do what `batch` decides about the line."""
        config = ready(state)
        if config.no_gate:
            return self._land(chain, len(chain.entries), state)
        known = state.seen.known(self.trials.key(config), self.trials.running(state))
        names = [entry.id for entry in chain.entries]
        red = batch.shortest_red(chain.trees, known)
        if 0 < red < len(names):
            self.writer.move(names[red:], "queued", f"stood behind {red} that are red together")
            return Progress("split", names[0])
        step = batch.decide_next(names, chain.trees, known, width=self._width(state))
        if isinstance(step, batch.Reject) and not chain.entries[0].verdict:
            # What it would be rejected for was seen before it was held, or before it was built again.
            step = batch.RunGates((1,), () if chain.trees[1] in known.running else (1,))
        if isinstance(step, batch.Land):
            return self._land(chain, step.count, state)
        if isinstance(step, batch.RunGates):
            return self._test(chain, step, state)
        self.trials.keep((), state)
        if isinstance(step, batch.PauseQueue):
            return self._pause(chain, step.reason, state)
        self.writer.append("state", {"entry": names[0], "status": "rejected", "reason": chain.entries[0].reason},
                        sync=True)
        self.writer.drop_pins([self.queue.entry(names[0])])
        return Progress("rejected", names[0])

    def _land(self, chain: CandidateChain, count: int, state: QueueState) -> Progress | Wait:
        config, entries = ready(state), chain.entries[:count]
        if not config.no_gate and any(entry.verdict != "green" for entry in entries):
            self.writer.append("verdict", {
                "entry": entries[0].id, "entries": [entry.id for entry in entries], "of": "entry", "reused": True,
                "tree": chain.trees[count], "command": self.trials.key(config), "result": "green", "reason": "",
                "log": entries[0].log}, sync=True)
            return Progress("verdict", entries[0].id)
        commits = self.builder.to_land(chain, count)
        done = self.lander.land(chain, commits)
        if isinstance(done, Progress) and done.what == "landed":
            self.builder.landed(count, commits[-1])
        return done

    def _test(self, chain: CandidateChain, step: batch.RunGates, state: QueueState) -> Progress | Wait:
        self.trials.keep({chain.trees[count] for count in step.wanted}, state)
        for count in step.start:
            if count == 0:
                return self.trials.begin(chain.entries[:1], chain.base, chain.trees[0], "base")
            commit = self.builder.candidate(chain, count)
            return self.trials.begin(chain.entries[:count], commit, chain.trees[count], "entry")
        return self.trials.wait(state)

    def _pause(self, chain: CandidateChain, reason: str, state: QueueState) -> Progress:
        names = [entry.id for entry in chain.entries]
        told = state.base
        self.writer.append("pause", {
            "entry": names[0], "entries": names, "reason": reason, "tip": chain.base, "log": told.log if told else "",
            "detail": f"on the bare {self.queue.target} {told.reason if told else ''}"}, sync=True)
        return Progress("paused", names[0])


def _withdrawn(state: QueueState) -> set[str]:
    """Ids of entries that had a candidate and were ended by somebody's word."""
    return {entry.id for entry in state.entries.values()
            if entry.status in ("superseded", "cancelled") and entry.commit}
