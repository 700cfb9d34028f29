"""Average time of a drain: many draws of bad entries, judged by the real decision in simulated time.

No git and no clock. A gate run takes `run` seconds whatever else runs, a landing `land`; which sets
are tested, what lands and what is rejected is decided by the queue's own pure functions. One draw of a few bad entries
says little about their rate: with 1 % of 40, two thirds of the draws have none and the others 2.5 % or more.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from garrison.merge import batch
from garrison.merge.decision import Beliefs, Decision, Run, RunningSet, Trial, Waiting, convicts, decide


@dataclass
class GateRun:
    """Gate run until `end` on `entries`, merged onto a tip that holds `base`."""

    end: float
    base: tuple[str, ...]
    entries: tuple[str, ...]
    green: bool = False

    @property
    def tree(self) -> frozenset[str]:
        return frozenset((*self.base, *self.entries))

    @property
    def trial(self) -> Trial:
        return Trial(self.entries, self.tree, self.green)


@dataclass
class Drain:
    """Drain of entries on `gates` gates, each of which is red on a good tree with probability `flake`."""

    entries: int
    bad: set[int]
    gates: int = 1
    run: float = 1.0
    land: float = 0.06
    flake: float = 0.0
    dice: random.Random = field(default_factory=random.Random)
    window: int = 64
    """Waiting entries that the decision sees."""
    landed: list[str] = field(default_factory=list)
    rejected: set[int] = field(default_factory=set)
    runs: int = 0
    now: float = 0.0

    def drain(self) -> Drain:
        """Judge all entries."""
        self.waiting = [str(number) for number in range(self.entries)]
        self.broken, self.judged = {str(number) for number in self.bad}, list[bool]()
        self.finished, self.running = list[GateRun](), list[GateRun]()
        while self.waiting:
            self._step()
        return self

    def _step(self) -> None:
        free = self.waiting[:self.window]
        sets = [RunningSet(tuple(name for name in each.entries if name not in self._landed), self._lands(each))
                for each in self.running]
        rate = batch.failure_rate(self.judged)
        most = batch.choose_max_set(len(self.waiting) if not self.runs else batch.MAX_BATCH,
                                    [self.run] if self.finished else [])
        chosen = decide([Waiting(name) for name in free], Beliefs(dict.fromkeys(free, rate), {}, self.flake),
                        list(self._tell(set(free))), sets, self.gates, max_set=most)
        if chosen.land:
            self.landed += chosen.land
            self.now += self.land
            self.judged += [False] * len(chosen.land)
            self.waiting = [name for name in self.waiting if name not in chosen.land]
        elif chosen.reject:
            self.rejected.add(int(chosen.reject))
            self.judged.append(True)
            self.waiting.remove(chosen.reject)
        else:
            self.running = [each for each, seen in zip(self.running, sets, strict=True) if seen not in chosen.cancel]
            self._test(chosen)
        names = {*self.waiting, *self.landed[-200:]}
        self.finished = [each for each in self.finished[-300:] if names.intersection(each.entries)]

    @property
    def _landed(self) -> set[str]:
        return set(self.landed)

    def _lands(self, gate: GateRun) -> bool:
        since = self.landed[len(gate.base):]
        return set(since) <= set(gate.entries)

    def _tell(self, free: set[str]) -> Iterator[Run]:
        """Yield what the finished runs say of the waiting entries."""
        green = {each.tree for each in self.finished if each.green}
        flaky = any(each.tree in green and not each.green for each in self.finished)
        earlier: list[Trial] = []
        landed = self._landed
        for each in self.finished:
            left = tuple(name for name in each.entries if name in free)
            is_whole = all(name in free or name in landed for name in each.entries)
            if left and (each.green or (is_whole and each.tree not in green)):
                is_own = not each.green and len(each.entries) == 1
                yield Run(left, each.green, {}, is_whole and self._lands(each), is_own,
                          is_own and convicts(each.trial, earlier, flaky=flaky))
            if each.green or is_whole:
                earlier.append(each.trial)

    def _test(self, chosen: Decision) -> None:
        for start in chosen.start:
            base: Sequence[str] = tuple(self.landed)
            if start.repeats:
                base = [each.base for each in self.finished if each.entries == start.entries and not each.green][-1]
            self.running.append(GateRun(self.now + self.run, tuple(base), start.entries))
            self.runs += 1
        gate = min(self.running, key=lambda each: each.end)
        self.running.remove(gate)
        self.now = max(self.now, gate.end)
        gate.green = not self.broken & gate.tree and self.dice.random() >= self.flake
        self.finished.append(gate)


def drained(entries: int, bad: set[int], width: int, run: float = 1.0, land: float = 0.06) -> float:
    """Seconds until the last entry is judged, `width` gates at a time; exactly the bad ones are rejected."""
    drain = Drain(entries, bad, width, run, land).drain()
    assert drain.rejected == bad, "judged wrongly"
    return drain.now


def ratio(entries: int, rate: float, width: int, draws: int, run: float = 1.0, merge: float = 0.03) -> float:
    """Return how many times as long the one-by-one loop takes for the same draws; `merge`: its own seconds an entry."""
    ours = 0.0
    for draw in range(draws):
        dice = random.Random(f"{rate} {draw}")
        ours += drained(entries, {number for number in range(entries) if dice.random() < rate}, width, run)
    return draws * entries * (run + merge) / ours
