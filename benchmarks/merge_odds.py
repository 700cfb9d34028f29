"""Drains of a merge queue in simulated time: draws of bad entries, judged by the real decision.

No git and no clock. A gate run takes `run` seconds whatever else runs, a landing `land`; which sets are tested, what
lands and what is rejected is decided by the queue's own pure functions. One draw of a few bad entries says little about
their rate: with 1 % of 40, two thirds of the draws have none and the others 2.5 % or more. A tree is a number with one
bit for each entry that it holds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from garrison.merge import decision
from garrison.merge.beliefs import FLAKE_WINDOW, failure_rate, flake_rate
from garrison.merge.decision import (
    STEADY_RUNS,
    Beliefs,
    FinishedRun,
    QueueDecision,
    RunningSet,
    Trial,
    WaitingTree,
    convicts,
    decide,
)
from garrison.merge.verdicts import JUDGED_WINDOW

REMEMBERED = 300
"""Finished runs that are looked at, as the queue's journal remembers so many."""


@dataclass(frozen=True)
class World:
    """What a gate would find: entries that are bad alone, and pairs that are red together."""

    entries: int
    bad: frozenset[int] = frozenset()
    pairs: tuple[tuple[int, int], ...] = ()
    flake: float = 0.0
    """Probability that a run on a good tree is red."""

    def is_good(self, tree: int) -> bool:
        """Return whether a gate that does not err is green on that tree."""
        return not self._bad & tree and not any(tree >> one & tree >> other & 1 for one, other in self.pairs)

    @property
    def _bad(self) -> int:
        return reduce(or_, (1 << number for number in self.bad), 0)


@dataclass
class GateRun:
    """Gate run until `end` on the tip that contained `base`, with `entries` on it."""

    end: float
    base: int
    entries: tuple[str, ...]
    tree: int
    green: bool = False


@dataclass
class Drain:
    """Drain of the entries of a world on `gates` gates."""

    world: World
    gates: int = 1
    run: float = 1.0
    land: float = 0.06
    dice: random.Random = field(default_factory=random.Random)
    window: int = 128
    """Waiting entries that the decision sees."""
    beliefs: Sequence[float] | None = None
    """What is believed of each entry; the share of those judged lately, if None."""
    has_history: bool = False
    """Set if the queue has known its gate for long: whether it is flaky."""
    judged: list[bool] = field(default_factory=list)
    """For each entry judged before, and then in this drain, whether it was rejected."""
    landed: list[int] = field(default_factory=list)
    rejected: set[int] = field(default_factory=set)
    runs: int = 0
    now: float = 0.0

    def drain(self) -> Drain:
        """Judge all entries."""
        self.waiting = {str(number): number for number in range(self.world.entries)}
        self.facts = {name: WaitingTree(name) for name in self.waiting}
        self.tip, self.finished = 0, list[GateRun]()
        self.running, self.reds, self.greens = list[GateRun](), Counter[int](), list[int]()
        while self.waiting:
            self._step()
        return self

    def _step(self) -> None:
        free = list(self.waiting)[:self.window]
        waiting = sum(1 << self.waiting[name] for name in free)
        sets = [RunningSet(tuple(name for name in each.entries if not self.tip >> int(name) & 1), self._lands(each))
                for each in self.running]
        # until a run has ended, its duration is unknown, and short queues are tested one by one
        backlog = len(self.waiting) if not self.runs else decision.MAX_BATCH
        most = decision.choose_max_set(backlog, [self.run])
        chosen = decide([self.facts[name] for name in free], self._believe(free), list(self._tell(waiting)), sets,
                        self.gates, max_set=most, is_steady=self._is_steady())
        if chosen.land:
            self.now += self.land
            for name in chosen.land:
                number = self.waiting.pop(name)
                self.landed.append(number)
                self.tip |= 1 << number
                self.judged.append(False)
        elif chosen.reject:
            self.rejected.add(self.waiting.pop(chosen.reject))
            self.judged.append(True)
        else:
            self.running = [each for each, seen in zip(self.running, sets, strict=True) if seen not in chosen.cancel]
            self._test(chosen)

    def _believe(self, names: Sequence[str]) -> Beliefs:
        flakes, good = self._count_flakes(), len(self.greens[-FLAKE_WINDOW:])
        flake = self.world.flake if self.has_history else flake_rate(flakes, flakes + good)
        if self.beliefs is None:
            return Beliefs(dict.fromkeys(names, failure_rate(self.judged[-JUDGED_WINDOW:])), {}, flake)
        return Beliefs({name: self.beliefs[int(name)] for name in names}, {}, flake)

    def _is_steady(self) -> bool:
        is_found = self._count_flakes() > 0 or any(not tree & ~self.tip for tree in self.reds)
        if is_found or (self.has_history and self.world.flake):
            return False
        return self.has_history or len(self.greens) >= STEADY_RUNS

    def _count_flakes(self) -> int:
        """Return how many runs on the last good trees were red."""
        return sum(self.reds[tree] for tree in self.greens[-FLAKE_WINDOW:])

    def _lands(self, gate: GateRun) -> bool:
        return not self.tip & ~gate.tree

    def _tell(self, waiting: int) -> Iterator[FinishedRun]:
        """Yield the evidence of finished runs about the waiting entries."""
        # a green run of landed entries still proves that others, red with it, had no other suspect
        self.finished = [each for each in self.finished[-REMEMBERED:] if each.green or each.tree & waiting]
        green = {each.tree for each in self.finished if each.green}
        is_flaky = self._count_flakes() > 0 or (self.has_history and self.world.flake > 0)
        earlier: list[Trial] = []
        for each in self.finished:
            is_whole = not each.tree & ~(waiting | self.tip)
            if each.green or (is_whole and each.tree not in green):
                left = tuple(name for name in each.entries if waiting >> int(name) & 1)
                trial = Trial(each.entries, each.tree, each.green)
                is_own = not each.green and len(each.entries) == 1
                if left:
                    yield FinishedRun(left, each.green, {}, is_whole and self._lands(each), is_own,
                                      is_own and convicts(trial, earlier, flaky=is_flaky))
                earlier.append(trial)

    def _test(self, chosen: QueueDecision) -> None:
        for start in chosen.start:
            base = self.tip
            if start.repeats:
                base = [each.base for each in self.finished if each.entries == start.entries and not each.green][-1]
            tree = reduce(or_, (1 << int(name) for name in start.entries), base)
            self.running.append(GateRun(self.now + self.run, base, start.entries, tree))
            self.runs += 1
        gate = min(self.running, key=lambda each: each.end)
        self.running.remove(gate)
        self.now = max(self.now, gate.end)
        gate.green = self.world.is_good(gate.tree) and self.dice.random() >= self.world.flake
        self.finished.append(gate)
        if gate.green:
            self.greens.append(gate.tree)
        else:
            self.reds[gate.tree] += 1


def draw(entries: int, rate: float, seed: object, flake: float = 0.0) -> World:
    """Return a world in which each entry is bad with that probability."""
    dice = random.Random(f"{rate} {seed}")
    return World(entries, frozenset(number for number in range(entries) if dice.random() < rate), (), flake)


def drained(world: World, gates: int, run: float = 1.0, land: float = 0.06) -> float:
    """Return the seconds until the last entry is judged; exactly the bad ones are rejected."""
    drain = Drain(world, gates, run, land).drain()
    assert drain.rejected == world.bad, "judged wrongly"
    return drain.now


def ratio(entries: int, rate: float, gates: int, draws: int, run: float = 1.0, merge: float = 0.03, *,
          confirms: bool = False) -> float:
    """Return how many times as long the one-by-one loop takes for the same draws.

    Args:
        merge: seconds of an entry in the loop beside its gate run.
        confirms: the loop repeats each red run before it rejects, as the queue does.
    """
    worlds = [draw(entries, rate, number) for number in range(draws)]
    loop = sum(entries + confirms * len(world.bad) for world in worlds) * (run + merge)
    return loop / sum(drained(world, gates, run) for world in worlds)
