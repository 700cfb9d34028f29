"""Decide which sets of entries to test next on k gates, what to land and what to reject. Pure.

A gate run tests an ordered set of waiting entries, merged onto the target's tip. The finished runs divide them into

- **proven** entries, which were in a set that passed, maybe on an earlier tip: they are added to every set that is
  tested next, so that they land without a run of their own;
- **red groups**, of which at least one entry is bad (or the gate is flaky): a set that failed, without its proven
  entries;
- the **pool**: all others, each bad with its own probability.

Groups and sets under test are chains. A run on the first i entries of a chain tells whether they include the first bad
one; several runs on a chain divide it into segments. The next run is the one with the greatest value: the bits of
information that it yields, given the runs in progress, plus its chance of landing. There are three kinds of candidates:
cut a segment of a chain, start a chain with entries of the pool, or extend a chain under test, assuming that it passes.
So one gate bisects, and k gates search k groups at a time. A set lands only by its own green run on the tip. An entry
is rejected only by its own red run that repeats another one (`convicts`), or, if the gate is known to be steady, if it
is the only remaining suspect of its own run and another one.

The later parts decide when the bare target is tested and when an entry at which git fails is set aside, apply the
journal's runs to the current tip, and bound sets and gates.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from garrison.backoff import Backoff
from garrison.merge.verdicts import BROKEN
from garrison.system.exit_info import ENDING_SIGNALS
from garrison.system.terminal_text import list_some
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

    from garrison.merge.state import QueueState, RunningGate
    from garrison.merge.verdicts import SetRun, TreeEvidence

MAX_BATCH = 128
"""Entries of the largest set; half the sets of this size are red if one entry in 185 is bad."""
RED_RUNS_NEEDED = 2
"""Red runs without another suspect, one of them its own, after which an entry is rejected; one more if the gate was
recently flaky."""
STEADY_RUNS = 40
"""Number of trees that a gate must pass without a flake to count as steady. A gate that fails 5 % of good trees has
shown a flake by then with a probability of 7/8."""
LANDING_VALUE = 0.3
"""Value in bits of a certain landing, since landed entries need no further tests. One or two gates do as well without
it; four take 6 % more time at 2 % bad."""
CONFIRMATION_VALUE = 2.0
"""Value in bits of a run alone for an entry that must be confirmed as bad: it settles the entry either way, so it goes
before all other runs."""
UNFINISHED_VALUE = 0.3
"""Bits added for a red group, so that groups do not pile up; the time to drain a queue is the same within 2 %."""
DUE_VALUE = 1.0
"""Bits added for a chain with an overtaken entry: more than any run without one yields."""
LEAST_VALUE = 0.02
"""Bits below which a run is cancelled, or not started while another is in progress."""
LEAST_BAD, MOST_BAD = 0.002, 0.95
"""Bounds of the probability that an entry is bad: nothing is certain before it is tested."""
PRIOR_BAD, PRIOR_ENTRIES = 0.4, 8.0
"""Prior of the share of bad entries: as if 0.4 of 8 earlier ones had been bad."""


class Beliefs(Value):
    """Prior probabilities."""

    bad: Mapping[str, float]
    """Entry → that it is bad by itself."""
    clashes: Mapping[frozenset[str], float] = msgspec.field(default_factory=dict)
    """Pair of entries → that they are red together, though each is good."""
    flake: float = 0.0
    """That a run on a good tree is red."""


class WaitingTree(Value):
    """Unjudged entry that can be tested now."""

    id: str
    needs: frozenset[str] = frozenset()
    """Waiting entries that must be before it in every set."""
    is_alone: bool = False
    """Set if it must be tested alone."""
    is_due: bool = False
    """Set if enough others have overtaken it."""


class FinishedRun(Value):
    """Finished gate run. Its `entries` are the members that still wait, in the order in which they were merged."""

    entries: tuple[str, ...]
    green: bool
    suspicion: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Entry → likelihood ratio of the log if that entry is bad; default 1."""
    lands: bool = False
    """Set if the tested tree is the tip plus exactly these entries, so that it may land."""
    is_own: bool = False
    """Set if the run was red and tested one entry alone."""
    convicts: bool = False
    """Set if it justifies rejecting its only entry (see `convicts`)."""


class RunningSet(Value):
    """Gate run in progress; `entries` and `lands` as in `FinishedRun`, but rejected members stay."""

    entries: tuple[str, ...]
    lands: bool = True


class SetStart(Value):
    """Set to test next, the probability that it passes, and why it was chosen (for display)."""

    entries: tuple[str, ...]
    green: float = 1.0
    value: float = 0.0
    why: str = ""
    repeats: bool = False
    """Set if it repeats the last red run of one entry alone, on the same tree, even if the target has moved."""


class QueueDecision(Value):
    """Decision: land a set, or reject an entry, or else cancel runs and start others."""

    land: tuple[str, ...] = ()
    reject: str = ""
    cancel: tuple[RunningSet, ...] = ()
    start: tuple[SetStart, ...] = ()


def decide(waiting: Sequence[WaitingTree], beliefs: Beliefs, runs: Sequence[FinishedRun], running: Sequence[RunningSet],
           gates: int, *, max_set: int = MAX_BATCH, is_steady: bool = False) -> QueueDecision:
    """Decide what to land, reject, cancel or test next.

    Args:
        waiting: unjudged entries in the queue's order, each behind what it needs.
        runs: finished runs, oldest first; red ones only if each member waits or has landed.
        running: runs in progress.
        gates: maximum number of runs at a time.
        max_set: maximum number of entries tested together; 1: one at a time.
        is_steady: whether the gate is known not to err (see STEADY_RUNS).
    """
    passed = [run.entries for run in runs if run.green and run.lands and run.entries]
    if passed:
        return QueueDecision(land=max(passed, key=len))
    known = _Knowledge(waiting, beliefs, runs)
    if convicted := known.convict(is_steady=is_steady):
        return QueueDecision(reject=convicted)
    cancel = [each for each in running if known.is_useless(each)]
    plan = _Plan(known, [each for each in running if each not in cancel], max_set, is_steady=is_steady)
    start: list[SetStart] = []
    while len(plan.running) < gates:
        best = max(plan.candidates(), key=lambda each: each.value, default=None)
        if best is None or (best.value < LEAST_VALUE and plan.running):
            break
        start.append(best)
        plan.add(RunningSet(best.entries))
    return QueueDecision(cancel=tuple(cancel), start=tuple(start))


class Trial(Value):
    """Gate run on a tree: the tip with `entries`."""

    entries: tuple[str, ...]
    tree: Hashable
    green: bool


def convicts(run: Trial, earlier: Sequence[Trial], *, flaky: bool = False) -> bool:
    """Return whether a red run justifies rejecting: it tested one entry alone, which had been red before, alone or with
    others that had passed by then. If the gate was recently flaky, it takes one more run, all on the same tree."""
    if len(run.entries) > 1 or run.green:
        return False
    if flaky:
        return sum(each.tree == run.tree and not each.green for each in earlier) >= RED_RUNS_NEEDED
    passed = {name for each in earlier if each.green for name in each.entries} - set(run.entries)
    return any(not each.green and set(each.entries) - passed == set(run.entries) for each in earlier)


# --------------------------------------------------------------------------------------------- knowledge from the runs


class _Chain(Value):
    """Entries whose prefixes are tested: a red group, or a set under test that started with entries of the pool."""

    entries: tuple[str, ...]
    good: tuple[float, ...]
    """`good[i]`: probability that the first i entries are good; for a red group, given that it was red."""
    is_red: bool = False
    cuts: tuple[int, ...] = ()
    """Lengths of the prefixes under test."""

    @property
    def is_refuted(self) -> bool:
        """Return whether it was red, and a flake is unlikely: another run on the whole chain would be useless."""
        return self.is_red and self.good[-1] < LEAST_VALUE

    def split(self, length: int) -> float:
        """Return the bits that a run on the first `length` entries yields, given those in progress."""
        # The runs in progress will tell on which side of each cut the first bad entry is: this one adds information
        # only between its neighbouring cuts.
        low = max((cut for cut in self.cuts if cut <= length), default=0)
        high = min((cut for cut in self.cuts if cut >= length), default=None)
        if length in (low, high) and length:
            return 0.0
        end = self.good[high] if high is not None else 0.0
        mass = self.good[low] - end
        return mass * entropy((self.good[length] - end) / mass) if mass > 0 else 0.0


class _Knowledge:
    """Proven entries, red groups and pool, from the finished runs."""

    def __init__(self, waiting: Sequence[WaitingTree], beliefs: Beliefs, runs: Sequence[FinishedRun]) -> None:
        self.waiting, self.beliefs = {each.id: each for each in waiting}, beliefs
        self.place = {name: index for index, name in enumerate(self.waiting)}
        red = [run for run in runs if not run.green and run.entries]
        proven = {name for run in runs if run.green for name in run.entries}
        # a red run without a suspect: entries proven on different tips fail together, or the gate is flaky
        withdrawn = {name for run in red if proven.issuperset(run.entries) for name in run.entries}
        self.proven = (proven - withdrawn) & self.waiting.keys()
        self.bad = self._suspect(red)
        remaining = [(tuple(name for name in run.entries if name not in self.proven), run) for run in red]
        self.reds: dict[frozenset[str], list[FinishedRun]] = {}
        for names, run in remaining:
            self.reds.setdefault(frozenset(names), []).append(run)
        self.groups: list[_Chain] = []
        grouped: set[str] = set()
        for group in sorted(self.reds, key=lambda each: (len(each), min(self.place.get(name, 0) for name in each))):
            if group <= self.waiting.keys() and not group & grouped:
                self.groups.append(self._red_chain(group))
                grouped |= group
        self.pool = [name for name in self.waiting if name not in self.proven and name not in grouped]

    def _suspect(self, red: Sequence[FinishedRun]) -> dict[str, float]:
        """Return the probability that each waiting entry is bad, given the logs of the red runs."""
        suspicions = [run.suspicion for run in red if run.suspicion]
        bad = {}
        for name in self.waiting:
            prior = min(MOST_BAD, max(LEAST_BAD, self.beliefs.bad.get(name, PRIOR_BAD / PRIOR_ENTRIES)))
            odds = prior / (1 - prior) * math.prod(suspicion.get(name, 1.0) for suspicion in suspicions)
            bad[name] = min(MOST_BAD, max(LEAST_BAD, odds / (1 + odds)))
        return bad

    def _red_chain(self, group: frozenset[str]) -> _Chain:
        """Return a red group, least suspicious entries first, each behind its dependencies."""
        left, names = sorted(group, key=lambda name: (self.bad[name], self.place[name])), list[str]()
        while left:
            free = next((name for name in left if not self.waiting[name].needs.intersection(left)), left[0])
            left.remove(free)
            names.append(free)
        before = self.goods(names)
        # Either one of them is bad, or all are good and each of the group's runs was a flake.
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

    def convict(self, *, is_steady: bool) -> str:
        """Return an entry to reject: the only remaining suspect of enough red runs, one of them its own; '' if none."""
        for group, reds in self.reds.items():
            is_confirmed = is_steady and len(reds) >= RED_RUNS_NEEDED and any(run.is_own for run in reds)
            if len(group) == 1 and (is_confirmed or any(run.convicts for run in reds)):
                return min(group)
        return ""

    def may_be_confirmed(self, name: str) -> bool:
        """Return whether an entry needs no further run alone if others that were red with it pass."""
        return any(run.is_own for run in self.reds.get(frozenset({name}), ())) and any(
            name in group and not any(frozenset({other}) in self.reds for other in group - {name})
            for group in self.reds if len(group) > 1)

    def test_alone(self, name: str, value: float, why: str) -> SetStart:
        """Return the run on one entry alone, which repeats the last such run that was red."""
        reds = self.reds.get(frozenset({name}), ())
        return SetStart((name,), 1 - self.bad[name], value, why, repeats=any(run.is_own for run in reds))

    def is_useless(self, run: RunningSet) -> bool:
        """Return whether the verdict of a run in progress is already known and lands nothing."""
        if not self.waiting.keys() >= set(run.entries):
            return True
        unknown = set(run.entries) - self.proven
        if not unknown:
            return not run.lands
        return len(run.entries) > 1 and any(unknown.issuperset(chain.entries) and chain.is_refuted
                                            for chain in self.groups)


# ---------------------------------------------------------------------------------------------------- what to test next


class _Plan:
    """Runs in progress, and the sets that could be tested in parallel."""

    def __init__(self, known: _Knowledge, running: Sequence[RunningSet], max_set: int, *, is_steady: bool) -> None:
        self.known, self.running, self.max_set, self.is_steady = known, list(running), max_set, is_steady
        self._arrange()

    def add(self, run: RunningSet) -> None:
        """Add a run."""
        self.running.append(run)
        self._arrange()

    def _arrange(self) -> None:
        """Divide the runs in progress among the red groups and the chains of the pool."""
        known = self.known
        self.unknown = [tuple(name for name in run.entries if name not in known.proven) for run in self.running]
        self.chains = [self._with_cuts(chain) for chain in known.groups]
        pool, taken = set(known.pool), set[str]()
        for names in sorted(self.unknown, key=len, reverse=True):
            if names and pool.issuperset(names) and not taken.intersection(names):
                # its shorter runs determine the order of its entries
                inner = sorted({each for each in self.unknown if set(each) <= set(names)}, key=len)
                order = tuple(dict.fromkeys(name for each in inner for name in each))
                self.chains.append(self._with_cuts(_Chain(order, tuple(known.goods(order)))))
            taken.update(names)
        self.free = [name for name in known.pool if name not in taken]
        self.under_test = {frozenset(run.entries) for run in self.running}
        self.passes = [self._probability(names) for names in self.unknown]

    def _with_cuts(self, chain: _Chain) -> _Chain:
        cuts = {len(names) for names in self.unknown
                if 0 < len(names) <= len(chain.entries) and set(chain.entries[:len(names)]) <= set(names)}
        return _Chain(chain.entries, chain.good, chain.is_red, tuple(sorted(cuts)))

    def _probability(self, names: tuple[str, ...]) -> float:
        """Return the probability that a run on these, and proven entries, passes."""
        for chain in self.chains:
            if len(names) in chain.cuts and set(chain.entries[:len(names)]) == set(names):
                return chain.good[len(names)]
        return self.known.goods(names)[-1]

    def candidates(self) -> list[SetStart]:
        """Return sets that could be tested next, each with its value."""
        first = next(iter(self.known.waiting.values()), None)
        if first is None:
            return []
        alone = self.known.test_alone(first.id, 1.0, "it is tested alone")
        if self.max_set == 1 or first.is_alone:
            return [] if self.running else [alone]
        found = [start for chain in self.chains for start in self._cut(chain)]
        found += self._begin((), 1.0, "")
        for run, passes in zip(self.running, self.passes, strict=True):
            if run.lands:
                found += self._begin(run.entries, passes, f"if {list_some(run.entries, 3)} passes")
        found += self._land_proven()
        # uninformative beliefs must not stop the queue
        return found or ([] if self.running else [alone])

    def _cut(self, chain: _Chain) -> list[SetStart]:
        """Return the best prefix of a chain to test next."""
        known, whole = self.known, len(chain.entries)
        is_due = any(known.waiting[name].is_due for name in chain.entries)
        due = 0.0 if chain.cuts else DUE_VALUE * is_due + UNFINISHED_VALUE * chain.is_red
        if chain.is_red and whole == 1:
            name = chain.entries[0]
            if chain.cuts or known.waiting[name].needs & known.waiting.keys():
                return []
            is_urgent = is_due or not (self.is_steady and known.may_be_confirmed(name))
            value = CONFIRMATION_VALUE + due if is_urgent else LEAST_VALUE
            return [known.test_alone(name, value, "it is the only suspect of a red run")]
        what = "are red together" if chain.is_red else "are under test together"
        found = []
        # a whole red group is repeated only if a flake may explain it; other chains are already under test as a whole
        longest = whole if chain.is_red and not chain.is_refuted else whole - 1
        for length in range(1, longest + 1):
            if (bits := chain.split(length)) >= LEAST_VALUE:
                landing = self._landing(chain.entries[:length]) * chain.good[length]
                found.append((bits + landing + due, length))
        return self._first_possible((), chain.entries, [
            (value, length, chain.good[length], f"{length} of {whole} that {what}") for value, length in found])

    def _begin(self, base: tuple[str, ...], passes: float, why: str) -> list[SetStart]:
        """Return the best set of untested entries of the pool, on the tip or on a set under test."""
        known, chosen = self.known, list[str]()
        around = known.proven.union(base)
        for name in self.free:
            entry = known.waiting[name]
            if entry.is_alone or len(chosen) + len(base) >= self.max_set:
                break
            if not entry.needs or entry.needs & known.waiting.keys() <= around.union(chosen):
                chosen.append(name)
        landing = self._landing(base)  # the same for each set, since no run in progress tests a free entry
        found = [(passes * (entropy(good) + landing * good), length, passes * good,
                  why or f"{length} of {len(known.pool)} not yet tested")
                 for length, good in enumerate(known.goods(chosen)) if length]
        return self._first_possible(base, chosen, found)

    def _first_possible(self, base: tuple[str, ...], names: Sequence[str],
                        found: list[tuple[float, int, float, str]]) -> list[SetStart]:
        """Return the testable set of the greatest value, given (value, length, probability to pass, why) tuples."""
        for value, length, passes, why in sorted(found, key=lambda each: -each[0]):
            if (test := self._compose(base, names[:length])) is not None:
                return [SetStart(test, passes, value, why)]
        return []

    def _land_proven(self) -> list[SetStart]:
        """Return sets that land proven entries, alone or on a set under test."""
        proven = self.known.proven
        if not proven or any(run.lands and proven.issubset(run.entries) for run in self.running):
            return []
        bases = [((), 1.0), *((run.entries, passes) for run, passes in zip(self.running, self.passes, strict=True)
                              if run.lands)]
        return [SetStart(test, passes, self._landing(test) * passes, "each passed, on another tip")
                for base, passes in bases if (test := self._compose(base, ()))]

    def _compose(self, base: tuple[str, ...], names: Sequence[str]) -> tuple[str, ...] | None:
        """Return the set of `names` plus proven entries, on the entries of `base`; None if it cannot be tested now."""
        known = self.known
        room = max(0, self.max_set - len({*base, *names}))
        carried = sorted((name for name in known.proven.difference(base, names) if not known.waiting[name].is_alone),
                         key=lambda name: known.place[name])[:room]
        added = sorted({*names, *carried} - set(base), key=lambda name: known.place[name])
        test, before = (*base, *added), set(base)
        for name in added:
            if not known.waiting[name].needs & known.waiting.keys() <= before:
                return None
            before.add(name)
        return test if test and frozenset(test) not in self.under_test else None

    def _landing(self, names: Sequence[str]) -> float:
        """Return the value of these passing: they land unless a set that they are not built on lands first."""
        around = self.known.proven.union(names)
        return LANDING_VALUE * math.prod(1 - passes for run, passes in zip(self.running, self.passes, strict=True)
                                         if run.lands and not around.issuperset(run.entries))


def entropy(probability: float) -> float:
    """Return the bits that an outcome of that probability tells."""
    if not 0 < probability < 1:
        return 0.0
    return -probability * math.log2(probability) - (1 - probability) * math.log2(1 - probability)


# ---- base check ------------------------------------------------------------------------------------------------------

# Check the bare target before blaming an entry for what may be the fault of the gate or the target. Pure.

Answer = Literal["passes", "test", "base_red", "gate_broken"]
_RETRIED = frozenset({"red", "setup"})
"""Results of the bare target that are retried before the queue pauses."""
_TRANSIENT = _RETRIED | {"lost"}
"""Results of the bare target that may change without the user: a flaky test, a killed process, a service or network
that is down, a lack of memory or disk. A gate that is missing, hangs or runs no tests needs the user."""
RETRY = Backoff(30.0, 1800.0)
"""Delays after which a queue that paused for such a result retries automatically."""


def check_base(tree: str, results: Collection[str], evidence: TreeEvidence) -> Answer:
    """Return whether the bare target passes, has to be tested, or is a reason to pause the queue.

    If the target's tree passed, a plain red is the fault of the entries, unless the gate has broken since.

    Args:
        tree: the bare target's.
        results: results of red runs that an entry may be blamed for.
    """
    base = evidence.base
    if base is not None and base.result != "green":
        if base.failures < RED_RUNS_NEEDED and base.result in _RETRIED:
            return "test"
        return "base_red" if base.result == "red" else "gate_broken"
    is_answered = base is not None and base.seq > evidence.broken
    if is_answered or (tree in evidence.green and not evidence.broken and not BROKEN.intersection(results)):
        return "passes"
    return "test"


def choose_retry(result: str, pauses: int, retry: Backoff = RETRY) -> float:
    """Return the seconds after which a paused queue retries automatically; 0: only the user or a new target helps.

    Args:
        result: result of the bare target.
        pauses: number of preceding pauses in a row for such a result.
    """
    return retry.delay(pauses + 1) if result in _TRANSIENT else 0.0


# ---- setback ---------------------------------------------------------------------------------------------------------

# Setbacks: decide when an entry at which git keeps failing is set aside, so that it does not block the others. Pure.
#
# git fails for temporary reasons (a lock, a full disk, low memory) and for reasons that lie in an entry. Tries are
# counted while the same entries are processed. A killed git counts little: memory may have been short. A failure that
# reports a lack of resources does not count.

MAX_WEIGHT = 30
"""Total weight of tries after which the failure is judged."""
WEIGHT = 6
"""Weight of one try."""
KILLED_WEIGHT = 1
"""Weight of a try whose git was killed."""
TOLD_AFTER = 2
"""Tries after which the queue reports that it is hindered."""
_KILLED = frozenset(-number for number in ENDING_SIGNALS)


class Setback(Value):
    """Consecutive failures of git while the entry `first`, alone or with others, is processed."""

    first: str = ""
    tries: int = 0
    weight: int = 0
    retry_at: float = 0.0
    """Monotonic seconds of the next try."""

    @property
    def is_lasting(self) -> bool:
        return self.weight >= MAX_WEIGHT

    @property
    def is_told(self) -> bool:
        return self.tries >= TOLD_AFTER

    def pause(self, first: str, now: float) -> float:
        """Return the seconds until the next try with `first`; 0 if it is due."""
        return max(0.0, self.retry_at - now) if first == self.first else 0.0

    def after(self, first: str, code: int, now: float, pause: float, *, lacks_room: bool = False) -> Setback:
        """Return the setback after another failure of git with that exit code; a different entry starts a new one.

        Args:
            now: monotonic seconds.
            pause: seconds until the next try.
            lacks_room: whether git reported a lack of disk space, processes, memory or descriptors.
        """
        before = self if first == self.first else Setback(first)
        weight = 0 if lacks_room else KILLED_WEIGHT if code in _KILLED else WEIGHT
        return replace(before, tries=before.tries + 1, weight=before.weight + weight, retry_at=now + pause)


# ---- evidence --------------------------------------------------------------------------------------------------------

# Evidence: apply the gate runs of a queue to its waiting entries on the target's current tip. Pure.
#
# The journal stores, with each run, the target's commit on which its entries were merged. The result remains valid
# while only the queue has moved the target: landed entries are good, and a rejected entry explains a red run.


class PresentGates(Protocol):
    """Gates of the current target (`gates_by_path.GateBook`)."""

    def is_present(self, names: tuple[str, ...], key: str, /) -> bool:
        """Return whether a run of these gates by path, () for the whole gate, with that verdict key
        (`QueueConfig.verdict_key`), ran their current commands."""
        ...


def list_runs(state: QueueState, gates: PresentGates, tip: str, waiting: Collection[str],
              unfit: Collection[tuple[str, ...]] = ()) -> Iterator[tuple[FinishedRun, SetRun]]:
    """Yield each finished run that is evidence about the waiting entries, as decision and journal represent it.

    Args:
        gates: gates of the current target.
        unfit: entries whose tree on the tip differs from the tested one, so that they cannot land without a test.
    """
    earlier: list[Trial] = []
    for record in state.verdicts.runs:
        landed = state.landed_since(record.base, tip)
        left = tuple(name for name in record.entries if name in waiting)
        if landed is None or not gates.is_present(record.gates, record.key):
            continue
        evidence = state.verdicts.evidence(record.key)
        trial = Trial(record.entries, record.tree, record.result == "green")
        if not left:
            earlier += [trial] if trial.green else []
            continue
        is_whole = all(name in waiting or _has_landed(state, name) for name in record.entries)
        lands = is_whole and set(landed) <= set(record.entries) and left not in unfit
        if trial.green:
            earlier.append(trial)
            yield FinishedRun(left, green=True, lands=lands), record
        elif is_whole and record.tree not in evidence.green:  # else the gate was flaky
            # an entry's own runs count since it was last queued
            is_own = len(record.entries) == 1 and state.entries[left[0]].verdict not in ("", "green")
            is_lost = record.result == "lost"  # several times
            is_proof = is_own and (is_lost or convicts(trial, earlier, flaky=evidence.flaky))
            earlier.append(trial)
            yield FinishedRun(left, False, dict(zip(record.entries, record.suspicion, strict=False)), lands, is_own,
                              is_proof), record


def is_steady(state: QueueState, key: str) -> bool:
    """Return whether the gate has passed so many trees that flakiness would have shown.

    It is flaky if it judged a tree both ways, or if a set was red and all its entries have landed.
    """
    erred = state.verdicts.evidence(key).flaky or any(
        run.key == key and run.result == "red" and all(_has_landed(state, name) for name in run.entries)
        for run in state.verdicts.runs)
    return not erred and sum(gate == key for _, gate in state.verdicts.green) >= STEADY_RUNS


def list_running(state: QueueState, gates: PresentGates, tip: str, running: Iterable[RunningGate],
                 ) -> list[RunningSet | None]:
    """Return the sets under test, None for each whose verdict would be useless on this tip."""
    found: list[RunningSet | None] = []
    for gate in running:
        landed = state.landed_since(gate.base, tip)
        left = tuple(name for name in gate.entries if not _has_landed(state, name))
        if landed is None or not gates.is_present(gate.gates, gate.key) or not left:
            found.append(None)
        else:
            found.append(RunningSet(left, lands=set(landed) <= set(gate.entries)))
    return found


def _has_landed(state: QueueState, name: str) -> bool:
    entry = state.entries.get(name)
    return entry is not None and entry.status == "landed"


# ---- batch -----------------------------------------------------------------------------------------------------------

# Bounds: how many gates run at a time, and how many entries are tested together. Pure.
#
# Within them, `decide` chooses the sets.

MAX_GATES = 16
"""Maximum number of gates that run at a time."""
SHORT_GATE = 0.25
"""Seconds of a gate run; with a quicker gate, few entries are tested together."""
QUICK_SET = 16
"""Maximum number of entries that a quick gate tests together: enough to share a landing's fixed cost, few enough that
none waits long for the others' merges."""
SHORT_QUEUE = 2
"""Queue length up to which untested entries are tested one by one."""


def choose_max_set(backlog: int, durations: Sequence[float], *, max_batch: int = MAX_BATCH,
                   short_gate: float = SHORT_GATE) -> int:
    """Return how many entries may be tested together, 1 or more.

    Args:
        backlog: number of entries that wait or are under test.
        durations: durations of the last gate runs in seconds.
        max_batch: the configured bound of the queue.
    """
    if backlog <= SHORT_QUEUE or not durations:
        return 1
    return max(1, min(QUICK_SET if min(durations) < short_gate else MAX_BATCH, max_batch))


def choose_gate_width(cores: int, gate_cores: int) -> int:
    """Return how many gates may run at a time on `cores` if each keeps `gate_cores` busy (0: all)."""
    return max(1, min(MAX_GATES, cores // gate_cores)) if gate_cores > 0 else 1
