"""Least average time to drain a small merge queue: the best of all plans, by exhaustive search.

A plan starts runs on all gates at once, waits for all, and may use all that they told. Each run is on a tree that holds
what has landed. A green one lands, if its tree still holds what has landed. At the end every good entry has landed, and
each bad one had a red run of its own; that another red run has to repeat it, as the queue demands, is left out. So this
is a bound that the queue cannot always reach.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import combinations

State = tuple[int, int, frozenset[int], int]
"""Landed, known to be good, red sets without those (the smallest ones), red alone; sets of entries as bits."""


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
    """Return what is known after runs on these trees, if these entries are bad."""
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
