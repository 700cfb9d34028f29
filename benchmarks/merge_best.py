"""Least average time to drain a merge queue: the best of all plans for few entries, the best nested plan for more.

`least_time` searches all plans. A plan starts runs on all gates at once, waits for all, and may use all that they told.
Each run is on a tree that holds what has landed. A green one lands, if its tree still holds what has landed. At the end
every good entry has landed, and each bad one had a red run of its own; that another red run has to repeat it, as the
queue demands, is left out. So this is a bound that the queue cannot always reach.

`NestedPlan` is for one gate and keeps all of the queue's rules. It tests the first entries of the queue; those of a red
set are told apart before anything else is tested: the first ones of it pass, and the rest is known to contain a bad
entry, or are red, and of the rest nothing is known. The last suspect of a red run is rejected after one more red run,
its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import combinations

State = tuple[int, int, frozenset[int], int]
"""Landed, known to be good, red sets without those (the smallest ones), red alone; sets of entries as bits."""

LEAST_RATE = 1e-6
"""Of bad entries, for which the runs after a red one can still be weighed."""


def least_time(entries: int, rate: float, gates: int) -> float:
    """Return the expected number of rounds of runs on `gates` gates, for entries each bad with probability `rate`."""
    whole = (1 << entries) - 1
    weights = [rate ** bad.bit_count() * (1 - rate) ** (entries - bad.bit_count()) for bad in range(whole + 1)]

    @cache
    def rounds(state: State) -> float:
        landed, good, reds, alone = state
        worlds = [bad for bad in range(whole + 1) if not bad & good and all(bad & red for red in reds)]
        if len(worlds) == 1 and landed == whole & ~worlds[0] and not worlds[0] & ~alone:
            return 0.0
        trees = [tree for tree in range(whole + 1) if tree & landed == landed and tree != landed]
        trees = [tree for tree in trees if _tells(tree, worlds) or not tree & ~good
                 or ((tree & ~landed).bit_count() == 1 and not tree & ~landed & alone)]
        total, best = sum(weights[bad] for bad in worlds), float("inf")
        for chosen in combinations(trees, min(gates, len(trees))):
            after: dict[State, float] = defaultdict(float)
            for bad in worlds:
                after[_follow(state, chosen, bad)] += weights[bad] / total
            if state not in after:
                best = min(best, 1 + sum(weight * rounds(each) for each, weight in sorted(
                    after.items(), key=lambda item: -item[1])))
        return best

    return rounds((0, 0, frozenset(), 0))


def _tells(tree: int, worlds: Iterable[int]) -> bool:
    return len({not tree & bad for bad in worlds}) > 1


def _follow(state: State, trees: Iterable[int], bad: int) -> State:
    """Return the knowledge after runs on these trees, if these entries are bad."""
    landed, good, reds, alone = state
    green = [tree for tree in trees if not tree & bad]
    for tree in green:
        good |= tree
    red = [tree for tree in trees if tree & bad]
    for tree in red:
        own = tree & ~landed
        alone |= own if own.bit_count() == 1 else 0
    left = {each & ~good for each in (*reds, *red)}
    smallest = frozenset(each for each in left if not any(other & each == other != each for other in left))
    return max(green, default=landed, key=int.bit_count), good, smallest, alone


class NestedPlan:
    """Plan of fewest expected runs for `entries`, each bad with probability `rate`, by dynamic programming."""

    def __init__(self, entries: int, rate: float) -> None:
        self.entries = entries
        self._good = good = [(1 - max(rate, LEAST_RATE)) ** length for length in range(entries + 1)]
        self._sets: list[tuple[float, int]] = [(0.0, 0)]
        """Number of entries of which nothing is known → runs to come, and how many to test together next."""
        self._groups: dict[tuple[int, int], tuple[float, int]] = {}
        """Suspects of a red set, and entries of which nothing is known → the same."""
        for count in range(1, entries + 1):
            for size in range(1, count + 1):
                self._groups[size, count - size] = self._cut(size, count - size)
            self._sets.append(min(
                (1 + good[size] * self._sets[count - size][0] + (1 - good[size]) * self._groups[size, count - size][0],
                 size) for size in range(1, count + 1)))

    def _cut(self, size: int, others: int) -> tuple[float, int]:
        """Return the runs to come after a red run of `size` entries, and how many of these to test next."""
        if size == 1:
            return 1 + self._sets[others][0], 1
        red = 1 - self._good[size]
        return min((1 + (self._good[cut] - self._good[size]) / red * self._groups[size - cut, others][0]
                    + (1 - self._good[cut]) / red * self._groups[cut, others + size - cut][0], cut)
                   for cut in range(1, size))

    @property
    def mean(self) -> float:
        """Return the expected number of runs."""
        return self._sets[self.entries][0]

    def count_runs(self, bad: frozenset[int]) -> int:
        """Return the runs that it takes if these are the bad entries."""
        first = suspects = runs = 0
        while first < self.entries:
            left = self.entries - first
            _, size = self._groups[suspects, left - suspects] if suspects else self._sets[left]
            runs += 1
            if suspects == 1:
                first, suspects = first + 1, 0
            elif bad.isdisjoint(range(first, first + size)):
                first, suspects = first + size, max(0, suspects - size)
            else:
                suspects = size
        return runs
