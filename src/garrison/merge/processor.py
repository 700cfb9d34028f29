"""The processor: works the queue, one entry at a time, in small steps that never wait for a test.

`take` the lock, `recover` once, then `step` again and again: each step looks at the journal and the refs, does one
thing and says what (`Progress`) or what it waits for (`Wait`). All it remembers is in the journal; only the handle of a
running gate is held, and found again by `recover`. A step raises Fenced when another processor has taken over, GitError
when git cannot do its part now (the next step tries again).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from garrison.merge import decide, failpoint, publish
from garrison.merge.building import Builder
from garrison.merge.landing import Lander
from garrison.merge.pen import Pen
from garrison.merge.publish import Checkout
from garrison.merge.queue import PINS
from garrison.merge.steps import Progress, Wait
from garrison.merge.trying import Trials, ready
from garrison.records import atomic
from garrison.records.life import LifeLock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from garrison.merge.entry import Entry
    from garrison.merge.queue import MergeQueue
    from garrison.merge.state import Outcome, QueueState

__all__ = ["MergeProcessor", "Progress", "Wait"]


class MergeProcessor:
    """The one processor of a queue. `environment` is what gates get (and `held_back` not), `trees` has the slots."""

    def __init__(self, queue: MergeQueue, *, trees: Path, environment: Mapping[str, str],
                 held_back: Sequence[str] = ()) -> None:
        self.queue, self.git, self.clock = queue, queue.git, queue.clock
        self.pen = Pen(queue)
        self.builder, self.lander = Builder(self.pen), Lander(self.pen)
        self.trials = Trials(self.pen, trees / self.git.key, environment, held_back)
        self._lock: LifeLock | None = None

    @property
    def epoch(self) -> int:
        """The fencing token of this hold of the lock; 0 before `take`."""
        return self.pen.epoch

    # --- life -------------------------------------------------------------------------------------------------------

    def take(self) -> bool:
        """Take the processor's lock if nobody holds it; the epoch grows. False if somebody does."""
        if self._lock is None:
            atomic.make_directory(self.queue.locks)
            self._lock = LifeLock.try_take(self.queue.processor_lock)
            if self._lock is None:
                return False
            with self.queue.locked():
                self.pen.epoch = self.queue.append("lease", {}, take=True, sync=True).epoch
            failpoint.here("lease")
        return True

    def beat(self) -> None:
        """A life sign; LockLost if the lock's file was removed or replaced."""
        if self._lock:
            self._lock.beat(int(self.clock.monotonic() * 1e9), int(self.clock.time() * 1e9))

    @property
    def gate_folder(self) -> Path | None:
        """Where the running gate will write its verdict; None if none runs."""
        return self.trials.run.folder if self.trials.run else None

    def close(self, *, end_gate: bool = False) -> None:
        """Let go of everything; a running gate goes on and is adopted by the next processor, unless it is to end."""
        self.trials.close(end=end_gate)
        if self._lock:
            self._lock.release()
            self._lock = None

    def recover(self) -> None:
        """After `take`: free checkouts a dead processor held, adopt its running gate, drop pins nobody needs."""
        state = self.pen.state()
        for path in publish.holders(self.git, self.queue.target)[0]:
            Checkout(self.git, path).recover()
        failpoint.here("recover")
        self.trials.adopt(state)
        self.trials.clear_jobs(state)
        pins = (ref.removeprefix(f"{PINS}/").split("/") for ref in self.git.refs(f"{PINS}/"))
        entries = [state.entries[parts[0]] for parts in pins if len(parts) == 2 and parts[0] in state.entries]
        self.pen.drop_pins(entries)

    def outcomes_since(self, seq: int) -> list[Outcome]:
        """What is to be signalled from journal records after number `seq`; the same facts every time it is asked."""
        return [outcome for outcome in self.queue.state.outcomes if outcome.seq > seq]

    # --- one step ---------------------------------------------------------------------------------------------------

    def step(self) -> Progress | Wait:
        """Do one small thing."""
        state = self.pen.state()
        if state.landing:
            return self.lander.finish(state.landing)
        if self.trials.run:
            return self.trials.watch(self.trials.run, state)
        looked = self.lander.look_again(state)
        if looked:
            return looked
        held = self._held_up(state)
        if held:
            return held
        entry = decide.chosen(state)
        if entry is None:
            return self._nothing(state)
        if entry.status == "queued":
            return self.builder.build(entry)
        if entry.status == "candidate":
            return self._candidate(entry, state)
        return self._tested(entry, state)

    def _held_up(self, state: QueueState) -> Progress | Wait | None:
        """Why nobody can be judged now; None if nothing keeps the queue."""
        if state.pause:
            if state.pause.tip != self.pen.tip():
                self.pen.append("resume", {"reason": f"{self.queue.target} moved"}, sync=True)
                return Progress("resumed")
            return Wait("paused", f"{state.pause.reason}: {state.pause.detail}")
        if state.unfinished() and (state.config is None or not state.config.ready):
            return Wait("no_gate", "no gate is recorded for this queue; name one with --gate 'CMD', or say --no-gate")
        return None

    def _nothing(self, state: QueueState) -> Wait:
        blocked = [entry for entry in state.unfinished() if entry.status == "landing_blocked"]
        if blocked:
            return Wait("blocked", blocked[0].reason)
        return Wait("empty")

    def _candidate(self, entry: Entry, state: QueueState) -> Progress | Wait:
        config = ready(state)
        if config.no_gate or entry.verdict == "green":
            return self.lander.land(entry)
        if (entry.tree, config.command_key) in state.green:
            self.pen.append("verdict", {"entry": entry.id, "of": "entry", "tree": entry.tree, "reused": True,
                                     "command": config.command_key, "result": "green", "reason": "", "log": entry.log},
                         sync=True)
            return Progress("verdict", entry.id)
        return self.trials.test(entry, config, "entry")

    def _tested(self, entry: Entry, state: QueueState) -> Progress | Wait:
        """testing, and no run of ours is on its way: land, judge, ask the base, or test again."""
        config = ready(state)
        if not entry.verdict:
            return self.trials.test(entry, config, "entry")
        if entry.verdict == "green":
            return self.lander.land(entry)
        base_verdict = state.base if state.base and state.base.entry == entry.id else None
        if base_verdict is None:
            if decide.needs_base(entry.verdict, self.git.tree_of(entry.base), state):
                return self.trials.test(entry, config, "base")
            who, why = "entry", ""
        else:
            who, why = decide.blame(base_verdict.result)
        if who == "entry":
            self.pen.append("state", {"entry": entry.id, "status": "rejected", "reason": entry.reason}, sync=True)
            self.pen.drop_pins([self.queue.entry(entry.id)])
            return Progress("rejected", entry.id)
        assert base_verdict is not None
        self.pen.append("pause", {"entry": entry.id, "reason": why, "detail": f"on the bare {self.queue.target} "
                               + base_verdict.reason, "tip": entry.base, "log": base_verdict.log}, sync=True)
        return Progress("paused", entry.id)
