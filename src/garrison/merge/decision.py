"""Decision of the merge queue: which sets of entries to test next on k gates, what to land and what to reject. Pure.

A gate run tests an ordered set of waiting entries, merged onto the target's tip. What is known of them is

- **proven** entries, which were in a set that passed, maybe on an earlier tip: they travel along with every set that is
  tested next, so that they land without a run of their own;
- **red groups**, of which at least one entry is bad (or the gate is flaky): what remains of a set that failed, without
  the entries that are proven;
- the **pool**: all others, each bad with its own probability.

Groups and sets under test are chains. A run on the first i entries of a chain tells whether the first bad one is among
them; several runs on a chain divide it into segments. The run that is started next is the one with the greatest value:
the bits that it tells, given the runs in progress, plus the chance that it lands. There are three ways to find one:
cut a segment of a chain, begin a chain with entries of the pool, or extend a chain under test, whose success is then
taken for granted. So one gate bisects, and k gates search in k groups at a time. A set lands only by its own green run
on the tip. An entry is rejected only after a red run of its own and another one.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING

from garrison.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

MAX_SET = 64
"""Entries of the largest set."""
RED_RUNS_NEEDED = 2
"""Red runs of an entry before it is rejected, one of them its own."""
LANDING_VALUE = 0.3
"""Bits that a certain landing is worth: it makes room for the sets that are built on it."""
CONFIRMATION_VALUE = 0.6
"""Bits that the next run of its own is worth for an entry that has to be confirmed as bad."""
DUE_VALUE = 1.0
"""Bits added for a chain with an entry that others have overtaken."""
LEAST_VALUE = 0.02
"""Bits below which a run is not started, and below which one in progress is cancelled."""
LEAST_BAD, MOST_BAD = 0.002, 0.95
"""Bounds of the probability that an entry is bad."""


@frozen
class Beliefs:
    """Probabilities before any gate run on these entries."""

    bad: Mapping[str, float]
    """Entry → that it is bad by itself."""
    clashes: Mapping[frozenset[str], float] = field(default_factory=dict)
    """Pair of entries → that they are red together, though each is good."""
    flake: float = 0.0
    """That a run on a good tree is red."""


@frozen
class Waiting:
    """Unjudged entry that may be tested now."""

    id: str
    needs: frozenset[str] = frozenset()
    """Waiting entries that must be before it in every set."""
    is_alone: bool = False
    """Set if it shares no set."""
    is_due: bool = False
    """Set if enough others have overtaken it."""


@frozen
class Run:
    """Finished gate run. Its `entries` are the members that still wait, in the order in which they were merged."""

    entries: tuple[str, ...]
    green: bool
    suspicion: Mapping[str, float] = field(default_factory=dict)
    """Entry → likelihood ratio of the log if that entry is bad; 1 for one that is not named."""
    lands: bool = False
    """Set if the tested tree is the tip's with just these entries: then it may land."""
    is_own: bool = False
    """Set if it tested one entry and nothing else."""


@frozen
class RunningSet:
    """Gate run in progress; `entries` and `lands` as in `Run`, but members that were rejected meanwhile stay."""

    entries: tuple[str, ...]
    lands: bool = True


@frozen
class Start:
    """Set to test next, the probability that it passes, and why it was chosen, for people."""

    entries: tuple[str, ...]
    green: float = 1.0
    value: float = 0.0
    why: str = ""


@frozen
class Decision:
    """What to do now: land a set, or reject an entry, or else cancel runs and start others."""

    land: tuple[str, ...] = ()
    reject: str = ""
    cancel: tuple[RunningSet, ...] = ()
    start: tuple[Start, ...] = ()


def decide(waiting: Sequence[Waiting], beliefs: Beliefs, runs: Sequence[Run], running: Sequence[RunningSet],
           gates: int, *, max_set: int = MAX_SET, red_runs_needed: int = RED_RUNS_NEEDED) -> Decision:
    """Decide what to land, reject, cancel or test next.

    Args:
        waiting: unjudged entries in the queue's order, each behind what it needs.
        runs: finished runs, oldest first; a red one only if each member waits or has landed.
        running: runs in progress.
        gates: runs that may go on at a time.
        max_set: entries that may be tested together at most; with 1, one entry is tested at a time.
        red_runs_needed: red runs of an entry before it is rejected, at least one of them its own.
    """
    passed = [run.entries for run in runs if run.green and run.lands and run.entries]
    if passed:
        return Decision(land=max(passed, key=len))
    known = _Knowledge(waiting, beliefs, runs)
    for name, reds, own in known.leaves:
        if own and reds >= red_runs_needed:
            return Decision(reject=name)
    cancel = [each for each in running if known.is_useless(each)]
    plan = _Plan(known, [each for each in running if each not in cancel], max_set)
    start: list[Start] = []
    while len(plan.running) < gates:
        best = max(plan.candidates(), key=lambda each: each.value, default=None)
        if best is None or best.value < LEAST_VALUE:
            break
        start.append(best)
        plan.add(RunningSet(best.entries))
    return Decision(cancel=tuple(cancel), start=tuple(start))


# ------------------------------------------------------------------------------------------------- what the runs tell


@frozen
class _Chain:
    """Entries of which prefixes are tested: a red group, or a set under test that began with entries of the pool."""

    entries: tuple[str, ...]
    good: tuple[float, ...]
    """`good[i]`: probability that the first i entries are good; of a red group, given that it was red."""
    is_red: bool = False
    cuts: tuple[int, ...] = ()
    """Lengths of the prefixes under test."""

    def split(self, length: int) -> float:
        """Return the bits that a run on the first `length` entries tells, given those in progress."""
        low = max((cut for cut in self.cuts if cut <= length), default=0)
        high = min((cut for cut in self.cuts if cut >= length), default=None)
        if length in (low, high) and length:
            return 0.0
        end = self.good[high] if high is not None else 0.0
        mass = self.good[low] - end
        return mass * entropy((self.good[length] - end) / mass) if mass > 0 else 0.0


class _Knowledge:
    """Proven entries, red groups and pool, from the finished runs."""

    def __init__(self, waiting: Sequence[Waiting], beliefs: Beliefs, runs: Sequence[Run]) -> None:
        self.waiting, self.beliefs = {each.id: each for each in waiting}, beliefs
        self.place = {name: index for index, name in enumerate(self.waiting)}
        red = [run for run in runs if not run.green and run.entries]
        proven = {name for run in runs if run.green for name in run.entries}
        # A red run without a suspect: what was proven on different tips is red together, or the gate is flaky.
        withdrawn = {name for run in red if proven.issuperset(run.entries) for name in run.entries}
        self.proven = (proven - withdrawn) & self.waiting.keys()
        self.bad = self._suspect(red)
        remaining = [(tuple(name for name in run.entries if name not in self.proven), run) for run in red]
        self.reds: dict[frozenset[str], list[Run]] = {}
        for names, run in remaining:
            self.reds.setdefault(frozenset(names), []).append(run)
        self.groups: list[_Chain] = []
        grouped: set[str] = set()
        for group in sorted(self.reds, key=lambda each: (len(each), min(self.place.get(name, 0) for name in each))):
            if group <= self.waiting.keys() and not group & grouped:
                self.groups.append(self._red_chain(group))
                grouped |= group
        self.pool = [name for name in self.waiting if name not in self.proven and name not in grouped]

    def _suspect(self, red: Sequence[Run]) -> dict[str, float]:
        """Return the probability that each waiting entry is bad, given the logs of the red runs."""
        bad = {}
        for name in self.waiting:
            prior = min(MOST_BAD, max(LEAST_BAD, self.beliefs.bad.get(name, 0.05)))
            odds = prior / (1 - prior) * math.prod(run.suspicion.get(name, 1.0) for run in red)
            bad[name] = min(MOST_BAD, max(LEAST_BAD, odds / (1 + odds)))
        return bad

    def _red_chain(self, group: frozenset[str]) -> _Chain:
        """Return a red group with the least suspicious entries first, each behind what it needs."""
        left, names = sorted(group, key=lambda name: (self.bad[name], self.place[name])), list[str]()
        while left:
            free = next((name for name in left if not self.waiting[name].needs.intersection(left)), left[0])
            left.remove(free)
            names.append(free)
        before = self.goods(names)
        flaked = before[-1] * self.beliefs.flake ** len(self.reds[group])
        total = 1 - before[-1] + flaked
        return _Chain(tuple(names), tuple((each - before[-1] + flaked) / total for each in before), is_red=True)

    def goods(self, names: Sequence[str]) -> list[float]:
        """Return the probability that the first i of `names` are good together, for each i."""
        goods = [1.0]
        for index, name in enumerate(names):
            clash = math.prod(1 - self.beliefs.clashes.get(frozenset((name, other)), 0.0) for other in names[:index]) \
                if self.beliefs.clashes else 1.0
            goods.append(goods[-1] * (1 - self.bad[name]) * clash)
        return goods

    @property
    def leaves(self) -> Iterator[tuple[str, int, bool]]:
        """Yield each entry that is a red group alone, its red runs, and whether one of these was its own."""
        for chain in self.groups:
            if len(chain.entries) == 1:
                reds = self.reds[frozenset(chain.entries)]
                yield chain.entries[0], len(reds), any(run.is_own for run in reds)

    def is_useless(self, run: RunningSet) -> bool:
        """Return whether the verdict of a run in progress is known, and lands nothing."""
        if not self.waiting.keys() >= set(run.entries):
            return True
        unknown = set(run.entries) - self.proven
        if not unknown:
            return not run.lands
        return len(run.entries) > 1 and any(unknown.issuperset(chain.entries) and chain.good[-1] < LEAST_VALUE
                                            for chain in self.groups)


# ---------------------------------------------------------------------------------------------------- what to test next


class _Plan:
    """Runs in progress, and the sets that could be tested beside them."""

    def __init__(self, known: _Knowledge, running: Sequence[RunningSet], max_set: int) -> None:
        self.known, self.running, self.max_set = known, list(running), max_set
        self._arrange()

    def add(self, run: RunningSet) -> None:
        """Add a run."""
        self.running.append(run)
        self._arrange()

    def _arrange(self) -> None:
        """Divide the runs in progress among the red groups and the chains of the pool."""
        known = self.known
        self.chains = [_Chain(each.entries, each.good, is_red=True, cuts=self._cuts(each)) for each in known.groups]
        pool, taken = set(known.pool), set[str]()
        fresh = [tuple(name for name in run.entries if name not in known.proven) for run in self.running]
        for names in sorted(fresh, key=len, reverse=True):
            if names and pool.issuperset(names) and not taken.intersection(names):
                # the shorter runs in it give the order of its entries
                inner = sorted({each for each in fresh if set(each) <= set(names)}, key=len)
                order = tuple(dict.fromkeys(name for each in inner for name in each))
                chain = _Chain(order, tuple(known.goods(order)))
                self.chains.append(_Chain(chain.entries, chain.good, cuts=self._cuts(chain)))
            taken.update(names)
        self.free = [name for name in known.pool if name not in taken]
        self.under_test = {frozenset(run.entries) for run in self.running}

    def _cuts(self, chain: _Chain) -> tuple[int, ...]:
        """Return the lengths of the prefixes of a chain that are under test."""
        cuts = set()
        for run in self.running:
            names = set(run.entries) - self.known.proven
            if names and names.issuperset(chain.entries[:len(names)]):
                cuts.add(len(names))
        return tuple(sorted(cuts))

    def candidates(self) -> list[Start]:
        """Return sets that could be tested next, each with its value."""
        known = self.known
        first = next(iter(known.waiting.values()), None)
        if first is None:
            return []
        if self.max_set == 1 or first.is_alone:
            return [] if self.running else [Start((first.id,), 1 - known.bad[first.id], 1.0, "it is tested alone")]
        found: list[Start] = []
        for chain in self.chains:
            found += self._cut(chain)
        found += self._begin((), 1.0, "")
        for run in self.running:
            if run.lands:
                found += self._begin(run.entries, self._passes(run), f"if {_list(run.entries)} passes")
        found += self._land_proven()
        if not found and not self.running:  # beliefs that say nothing must not stop the queue
            found = [Start((first.id,), 1 - known.bad[first.id], 1.0, "nothing else can be tested")]
        return found

    def _cut(self, chain: _Chain) -> list[Start]:
        """Return the best prefix of a chain to test next."""
        known, found = self.known, list[Start]()
        if chain.is_red and len(chain.entries) == 1:
            name = chain.entries[0]
            if not chain.cuts and not known.waiting[name].needs & known.waiting.keys():
                found.append(Start((name,), chain.good[1], CONFIRMATION_VALUE + self._due(chain),
                                   "a red run has to be repeated by itself"))
            return found
        last = len(chain.entries) if chain.is_red else len(chain.entries) - 1
        for length in range(1, last + 1):
            bits, names = chain.split(length), chain.entries[:length]
            if bits >= LEAST_VALUE and (test := self._compose((), names)) is not None:
                value = bits + self._landing(test, chain.good[length]) + self._due(chain)
                what = "are red together" if chain.is_red else "are under test together"
                found.append(Start(test, chain.good[length], value,
                                   f"{length} of {len(chain.entries)} that {what}"))
        return [max(found, key=lambda each: each.value)] if found else []

    def _begin(self, base: tuple[str, ...], passes: float, why: str) -> list[Start]:
        """Return the best set of free entries of the pool, on the tip or on a set under test."""
        known, chosen, found = self.known, list[str](), list[Start]()
        around = known.proven.union(base)
        for name in self.free:
            entry = known.waiting[name]
            if entry.is_alone or len(chosen) + len(base) >= self.max_set:
                break
            if not entry.needs & known.waiting.keys() <= around.union(chosen):
                continue
            chosen.append(name)
        goods = known.goods(chosen)
        for length in range(1, len(chosen) + 1):
            test = self._compose(base, chosen[:length])
            if test is not None:
                value = passes * entropy(goods[length]) + self._landing(test, passes * goods[length])
                found.append(Start(test, passes * goods[length], value,
                                   why or f"{length} of {len(known.pool)} not yet tested"))
        return [max(found, key=lambda each: each.value)] if found else []

    def _land_proven(self) -> list[Start]:
        """Return sets that land what is proven, alone or on a set under test."""
        proven = self.known.proven
        if not proven or any(run.lands and proven.issubset(run.entries) for run in self.running):
            return []
        bases = [(), *(run.entries for run in self.running if run.lands)]
        tests = [(self._compose(base, ()), math.prod(self._passes(run) for run in self.running if run.entries == base))
                 for base in bases]
        return [Start(test, passes, self._landing(test, passes), "each passed, on another tip")
                for test, passes in tests if test]

    def _compose(self, base: tuple[str, ...], names: Sequence[str]) -> tuple[str, ...] | None:
        """Return the set of `names` and the proven entries, on those of `base`; None if it cannot be tested now."""
        known = self.known
        room = self.max_set - len(base) - len(names)
        around = set(base).union(names)
        carried = [name for name in known.waiting if name in known.proven and name not in around and
                   not known.waiting[name].is_alone][:max(0, room)]
        added = sorted({*names, *carried} - set(base), key=lambda name: known.place[name])
        test, before = (*base, *added), set(base)
        for name in added:
            if not known.waiting[name].needs & known.waiting.keys() <= before:
                return None
            before.add(name)
        return test if test and frozenset(test) not in self.under_test else None

    def _passes(self, run: RunningSet) -> float:
        """Return the probability that a run in progress passes."""
        names = set(run.entries) - self.known.proven
        for chain in self.chains:
            if names.issubset(chain.entries) and len(names) in chain.cuts:
                return chain.good[len(names)]
        return self.known.goods(sorted(names, key=lambda name: self.known.place[name]))[-1]

    def _landing(self, test: tuple[str, ...], passes: float) -> float:
        """Return what the chance to land is worth: the set passes, and none that it is not built on lands before."""
        others = math.prod(1 - self._passes(run) for run in self.running
                           if run.lands and not set(run.entries).issubset(test))
        return LANDING_VALUE * passes * others

    def _due(self, chain: _Chain) -> float:
        is_due = not chain.cuts and any(self.known.waiting[name].is_due for name in chain.entries)
        return DUE_VALUE if is_due else 0.0


def entropy(probability: float) -> float:
    """Return the bits that an outcome of that probability tells."""
    if not 0 < probability < 1:
        return 0.0
    return -probability * math.log2(probability) - (1 - probability) * math.log2(1 - probability)


def _list(names: Collection[str]) -> str:
    shown = list(names)[:3]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")
