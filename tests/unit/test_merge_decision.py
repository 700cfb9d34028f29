"""The decision over k gates: properties for any bad entries, red pairs, flaky gates, orders, and ends of runs."""

from __future__ import annotations

import itertools
import math
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from garrison.merge.decision import (
    KILLED_WEIGHT,
    MAX_BATCH,
    MAX_WEIGHT,
    STEADY_RUNS,
    WEIGHT,
    Beliefs,
    FinishedRun,
    QueueDecision,
    RunningSet,
    Setback,
    Trial,
    WaitingTree,
    convicts,
    decide,
    entropy,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import merge_best
import merge_odds


@dataclass(eq=False)
class Gate:
    """Gate run: ends at `end`, on the entries of `base` (what had landed) and `entries`."""

    end: float
    base: tuple[str, ...]
    entries: tuple[str, ...]
    green: bool = False

    @property
    def tree(self) -> frozenset[str]:
        return frozenset((*self.base, *self.entries))


@dataclass
class Drain:
    """A drain of entries by the decision alone; a tree is the set of its entries."""

    count: int
    bad: frozenset[str] = frozenset()
    pairs: tuple[tuple[str, str], ...] = ()
    flake: float = 0.0
    gates: int = 1
    needs: dict[str, frozenset[str]] = field(default_factory=dict)
    rate: float = 0.1
    seed: int = 0
    max_set: int = MAX_BATCH
    landed: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    tips: list[frozenset[str]] = field(default_factory=list)
    runs: list[Gate] = field(default_factory=list)
    now: float = 0.0

    def run(self) -> Drain:
        self.dice, self.running = random.Random(self.seed), list[Gate]()
        self.waiting = [f"e{number:02}" for number in range(self.count)]
        for _ in range(60 * self.count + 60):
            if not self.waiting:
                return self
            self.step()
        raise AssertionError("it does not terminate")

    def step(self) -> None:
        free = list[str]()
        for name in self.waiting:
            if self.needs.get(name, frozenset()) <= {*self.landed, *free}:
                free.append(name)
        if not free:  # all the others wait for a rejected one
            self.waiting = []
            return
        waiting = [WaitingTree(name, self.needs.get(name, frozenset()) & set(free)) for name in free]
        known = {each: RunningSet(tuple(name for name in each.entries if name not in self.landed), self.lands(each))
                 for each in self.running}
        beliefs, runs = Beliefs(dict.fromkeys(free, self.rate), {}, self.flake), list(self.known_runs(set(free)))

        def ask(running: list[RunningSet]) -> QueueDecision:
            return decide(waiting, beliefs, runs, running, self.gates, max_set=self.max_set, is_steady=self.is_steady())

        decision = ask(list(known.values()))
        kept = [run for run in known.values() if run not in decision.cancel]
        assert not ask(kept + [RunningSet(start.entries) for start in decision.start]).cancel, "what has just started"
        if decision.land:
            self.land(decision.land)
        elif decision.reject:
            self.waiting.remove(decision.reject)
            self.rejected.append(decision.reject)
        else:
            self.running = [gate for gate, run in known.items() if run not in decision.cancel]
            self.start(decision)

    def lands(self, gate: Gate) -> bool:
        return set(self.landed) == set(gate.base) | set(gate.entries).intersection(self.landed)

    def known_runs(self, free: set[str]):
        green = {gate.tree for gate in self.runs if gate.green}
        flaky = any(gate.tree in green and not gate.green for gate in self.runs)
        earlier: list[Trial] = []
        for gate in self.runs:
            trial = Trial(gate.entries, gate.tree, gate.green)
            left = tuple(name for name in gate.entries if name in free)
            is_whole = all(name in free or name in self.landed for name in gate.entries)
            if left and (gate.green or (is_whole and gate.tree not in green)):
                is_own = not gate.green and len(gate.entries) == 1
                yield FinishedRun(left, gate.green, {}, is_whole and self.lands(gate), is_own,
                                  is_own and convicts(trial, earlier, flaky=flaky))
            if gate.green or is_whole:
                earlier.append(trial)

    def is_steady(self) -> bool:
        green = {gate.tree for gate in self.runs if gate.green}
        landed = frozenset(self.landed)
        if any(not gate.green and (gate.tree in green or gate.tree <= landed) for gate in self.runs):
            return False
        return len(green) >= STEADY_RUNS

    def land(self, names: tuple[str, ...]) -> None:
        tree = frozenset((*self.landed, *names))
        assert any(gate.green and gate.tree == tree for gate in self.runs), "it lands untested"
        for place, name in enumerate(names):
            assert self.needs.get(name, frozenset()) <= set(self.landed).union(names[:place]), "before what it needs"
        self.landed += names
        self.tips.append(tree)
        self.waiting = [name for name in self.waiting if name not in names]

    def start(self, decision: QueueDecision) -> None:
        for start in decision.start:
            assert 0 < len(start.entries) == len(set(start.entries)) <= self.max_set
            assert set(start.entries) <= set(self.waiting)
            base = tuple(self.landed)
            if start.repeats:
                base = [gate.base for gate in self.runs if gate.entries == start.entries and not gate.green][-1]
            self.running.append(Gate(self.now + 1 + self.dice.random(), base, start.entries))
        assert self.running, "nothing runs, and nothing is started"
        assert len(self.running) <= self.gates
        gate = min(self.running, key=lambda each: each.end)
        self.running.remove(gate)
        self.now = gate.end
        gate.green = not self.bad & gate.tree and not any(set(pair) <= gate.tree for pair in self.pairs) and \
            self.dice.random() >= self.flake
        self.runs.append(gate)


def names(count: int):
    return st.integers(0, count - 1).map(lambda number: f"e{number:02}")


worlds = st.integers(1, 40).flatmap(lambda count: st.tuples(
    st.just(count), st.frozensets(names(count), max_size=count),
    st.lists(st.tuples(names(count), names(count)).filter(lambda pair: pair[0] < pair[1]), max_size=5).map(tuple)))
gates = st.sampled_from((1, 2, 3, 4, 8, 16))


@settings(max_examples=80, deadline=None)
@given(worlds, gates, st.integers(0, 99))
@example((2, frozenset(), (("e00", "e01"),)), 1, 0)
@example((2, frozenset(), (("e00", "e01"),)), 2, 0)
def test_all_are_judged_none_lands_untested_and_none_is_rejected_without_red_runs_of_its_own(world, width, seed):
    """An entry is bad alone, or red together with another; of such a pair one is rejected."""
    count, bad, pairs = world
    drain = Drain(count, bad, pairs, gates=width, seed=seed).run()
    assert sorted(drain.landed + drain.rejected) == [f"e{number:02}" for number in range(count)]
    assert bad <= set(drain.rejected)
    for name in set(drain.rejected) - bad:
        assert any(name in pair and set(pair) - {name} <= set(drain.landed) for pair in pairs), "it was good"
    for name in drain.rejected:
        assert any(not gate.green and gate.entries == (name,) for gate in drain.runs)
        assert sum(not gate.green and name in gate.entries for gate in drain.runs) >= 2


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 25), gates, st.integers(0, 999))
def test_a_flaky_gate_ends_too_and_rejects_only_what_was_red_alone(count, width, seed):
    drain = Drain(count, frozenset({"e00"}), flake=0.1, gates=width, seed=seed).run()
    assert len(drain.landed) + len(drain.rejected) == count
    for name in drain.rejected:
        assert any(not gate.green and gate.entries == (name,) for gate in drain.runs)


def test_at_a_twentieth_of_false_reds_at_most_one_in_a_thousand_good_entries_is_rejected():
    rejected = sum(len(Drain(40, flake=0.05, gates=2, seed=seed).run().rejected) for seed in range(60))
    assert rejected <= 0.001 * 40 * 60


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 20), st.data(), gates)
def test_dependencies_land_first_and_what_needs_a_rejected_one_does_not_land(count, data, width):
    order = [f"e{number:02}" for number in range(count)]
    needs = {name: data.draw(st.frozensets(st.sampled_from(order[:place]), max_size=2))
             for place, name in enumerate(order) if place}
    bad = data.draw(st.frozensets(st.sampled_from(order), max_size=4))
    drain = Drain(count, bad, gates=width, needs=needs).run()
    for name in drain.landed:
        assert needs.get(name, frozenset()) <= set(drain.landed)
    for name in order:
        if name not in bad and needs.get(name, frozenset()) <= set(drain.landed):
            assert name in drain.landed


@settings(max_examples=30, deadline=None)
@given(worlds)
def test_with_sets_of_one_entry_each_is_judged_alone_in_its_order(world):
    count, bad, pairs = world
    drain = Drain(count, bad, pairs, gates=4, max_set=1).run()
    assert all(len(gate.entries) == 1 for gate in drain.runs)
    expected = list[str]()
    for name in (f"e{number:02}" for number in range(count)):
        if name not in bad and not any(set(pair) <= {*expected, name} for pair in pairs):
            expected.append(name)
    assert drain.landed == expected


@pytest.mark.parametrize(("rate", "width", "least"), [
    (0.05, 1, 0.85), (0.1, 1, 0.85), (0.2, 1, 0.85), (0.05, 2, 0.70), (0.1, 2, 0.75), (0.2, 2, 0.75), (0.2, 4, 0.65)])
def test_a_drain_is_near_the_limit_of_information(rate, width, least):
    """The limit: each entry costs its entropy, and each bad one a red run that is repeated, in runs on all gates."""
    needed, taken = 0.0, 0.0
    for seed in range(25):
        dice = random.Random(seed)
        bad = frozenset(f"e{number:02}" for number in range(40) if dice.random() < rate)
        needed += 1.5 * 40 * (entropy(rate) + rate) / width  # a run takes one and a half on the average
        taken += Drain(40, bad, gates=width, rate=rate, seed=seed).run().now
    assert needed / taken >= least


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.1, 0.2, 0.3, 0.5])
def test_one_gate_takes_hardly_more_runs_than_the_best_nested_plan(rate):
    """The plan repeats red runs before it rejects, as the queue does; both know the rate, and test the same draws."""
    plan, best, taken = merge_best.NestedPlan(12, rate), 0, 0
    for seed in range(40):
        dice = random.Random(f"{rate} {seed}")
        bad = frozenset(number for number in range(12) if dice.random() < rate)
        best += plan.count_runs(bad)
        taken += len(Drain(12, frozenset(f"e{number:02}" for number in bad), rate=rate).run().runs)
    assert best / taken >= 0.97


def test_the_best_nested_plan_takes_the_runs_that_it_expects_and_no_fewer_than_the_best_of_all():
    for rate in (0.05, 0.2, 0.5):
        plan, mean = merge_best.NestedPlan(4, rate), 0.0
        for bad in itertools.product((False, True), repeat=4):
            numbers = frozenset(number for number, is_bad in enumerate(bad) if is_bad)
            mean += rate ** len(numbers) * (1 - rate) ** (4 - len(numbers)) * plan.count_runs(numbers)
        assert plan.mean == pytest.approx(mean)
        assert plan.mean >= merge_best.least_time(4, rate, 1)
    assert [merge_best.NestedPlan(12, rate).mean for rate in (0.0, 1.0)] == pytest.approx([1, 24], abs=1e-4)


def test_a_simulated_drain_rejects_the_last_suspect_of_a_red_run_by_one_more():
    """The other suspect has landed by then; its run still says that nothing else was red."""
    drain = merge_odds.Drain(merge_odds.World(3, frozenset({2})), beliefs=[0.01, 0.3, 0.3]).drain()
    assert (drain.rejected, drain.runs) == ({2}, 3)


def test_a_decision_on_64_entries_and_4_gates_takes_milliseconds():
    """It takes 4 ms; the bound leaves room for a machine that is busy with other things."""
    waiting = [WaitingTree(f"e{number:02}") for number in range(64)]
    runs = [FinishedRun(tuple(f"e{number:02}" for number in range(start, start + 8)), False) for start in (0, 8, 16)]
    beliefs = Beliefs({each.id: 0.05 for each in waiting})
    took = []
    for _ in range(7):
        began = time.process_time()
        assert len(decide(waiting, beliefs, runs, (), 4).start) == 4
        took.append(time.process_time() - began)
    assert min(took) < 0.025


# ------------------------------------------------------------------------------------------------------- single steps


def ask(runs=(), running=(), width=1, rate=0.2, flake=0.0, bad=None, is_steady=False, among="abcdef", **options):
    waiting = [WaitingTree(name, **options.get(name, {})) for name in among]
    beliefs = Beliefs(dict.fromkeys("abcdef", rate) | (bad or {}), {}, flake)
    return decide(waiting, beliefs, runs, running, width, is_steady=is_steady)


def started(decision: QueueDecision) -> list[str]:
    return ["".join(start.entries) for start in decision.start]


def red(entries: str, **facts) -> FinishedRun:
    return FinishedRun(tuple(entries), False, lands=True, **facts)


def test_the_largest_green_set_lands_and_one_of_another_tip_is_tested_with_the_next_set():
    assert ask([FinishedRun(("a",), True, lands=True), FinishedRun(("a", "b"), True, lands=True),
                FinishedRun(tuple("abc"), True)]).land == ("a", "b")
    assert ask([FinishedRun(tuple("abc"), True)]).land == ()
    decision = ask([FinishedRun(("b",), True)])
    assert set(decision.start[0].entries) > {"b"}


def test_two_gates_test_disjoint_sets_or_parts_of_a_red_group_and_leave_out_a_suspect_of_the_log():
    first, second = ask(width=2).start
    assert not set(first.entries) & set(second.entries)
    both = [set(names) for names in started(ask([red("abcd")], width=2))]
    assert any(names < set("abcd") for names in both)
    assert both[0] != both[1]
    [start] = ask([red("abc", suspicion={"a": 6.0, "b": 0.5, "c": 0.5})], rate=0.05).start
    assert "a" not in start.entries


def test_a_run_that_a_verdict_made_useless_is_cancelled():
    outer, inner = RunningSet(tuple("abc")), RunningSet(("d", "e"))
    assert ask([red("ab")], [outer, inner], width=2).cancel == (outer,)
    assert ask([], [RunningSet(("a", "z"))]).cancel == (RunningSet(("a", "z")),), "z was rejected"
    assert ask([FinishedRun(("a",), True)],
               [RunningSet(("a",), lands=False)]).cancel == (RunningSet(("a",), lands=False),)


sets = st.sets(st.sampled_from("abcd"), min_size=1, max_size=4).map(lambda each: "".join(sorted(each)))


@settings(max_examples=200, deadline=None)
@given(st.lists(sets, max_size=3), st.lists(sets, max_size=2), sets, st.floats(0.02, 0.9), st.floats(0, 0.2))
@example(["ab"], ["a"], "ab", 0.35, 0.02)
def test_what_is_started_is_not_cancelled_by_the_next_look(reds, under_test, among, rate, flake):
    def look(running):
        return ask([red(each) for each in reds], running, 4, rate, flake, among=among)

    running = [RunningSet(tuple(each), lands=False) for each in under_test]
    chosen = look(running)
    kept = [each for each in running if each not in chosen.cancel]
    assert not look(kept + [RunningSet(start.entries) for start in chosen.start]).cancel


def test_an_entry_is_rejected_by_its_own_repeated_run_or_with_a_steady_gate_once_the_others_passed():
    own = red("a", is_own=True)
    assert started(ask([own])) == ["a"]
    assert ask([own]).start[0].repeats
    assert ask([red("a")]).reject == ""
    assert ask([red("ab"), own, FinishedRun(("b",), True)]).reject == "", "the gate may have failed for a while"
    assert ask([own, red("a", is_own=True, convicts=True)]).reject == "a"
    own, passed = red("a", is_own=True), FinishedRun(("b", "c"), True)
    assert ask([red("ab"), own], is_steady=True).reject == ""
    assert ask([red("a"), red("a")], is_steady=True).reject == "", "none is its own"
    assert ask([red("ab"), own, passed], is_steady=True).reject == "a"


def test_a_red_run_convicts_only_an_entry_that_was_suspect_alone_before():
    alone, with_b = Trial(("a",), "tip a", False), Trial(("a", "b"), "tip a b", False)
    assert not convicts(alone, [])
    assert not convicts(alone, [with_b])
    assert convicts(alone, [with_b, Trial(("b",), "tip b", True)])
    assert convicts(alone, [alone])
    assert not convicts(with_b, [with_b, with_b])
    assert not convicts(alone, [with_b, Trial(("b",), "tip b", True), alone], flaky=True)
    assert convicts(alone, [alone, alone], flaky=True)


def test_what_was_red_alone_is_run_again_only_if_others_that_pass_cannot_confirm_it():
    own = red("a", is_own=True)
    told = [red("ab"), own]
    assert started(ask(told)) == ["a"]
    assert started(ask(told, is_steady=True)) != ["a"], "b may pass"
    assert started(ask([*told, red("b", is_own=True)], is_steady=True))[0] in "ab", "b is as suspect itself"
    assert started(ask(told, is_steady=True, a={"is_due": True})) == ["a"]


def test_an_entry_that_shares_no_set_is_tested_alone_in_its_turn_and_something_is_always_tested():
    assert started(ask(width=4, a={"is_alone": True})) == ["a"]
    assert all("c" not in names for names in started(ask(width=4, c={"is_alone": True})))
    assert started(decide([WaitingTree("a", frozenset("a"))], Beliefs({}), (), (), 2)) == ["a"]


def test_a_group_with_an_overtaken_entry_goes_first_and_its_parts_with_what_they_need():
    reds = [red("ab"), red("cdef")]
    assert set(started(ask(reds, rate=0.3, a={"is_due": True}))[0]) < set("ab")
    assert set(started(ask(reds, rate=0.3, f={"is_due": True}))[0]) < set("cdef")
    for names in started(ask([red("ab"), red("cd")], width=4, c={"needs": frozenset("a")})):
        assert "c" not in names or "a" in names[:names.index("c")]


def test_the_worse_the_entries_the_smaller_the_set():
    waiting = [WaitingTree(f"e{number:02}") for number in range(64)]
    sizes = [len(decide(waiting, Beliefs({each.id: rate for each in waiting}), (), (), 1).start[0].entries)
             for rate in (0.002, 0.02, 0.05, 0.1, 0.2, 0.5)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1
    assert sizes[2] == pytest.approx(math.log(0.5) / math.log(0.95), abs=3)


# ---- setback


def fail(setback, first="a", code=128, times=1, now=0.0):
    for _ in range(times):
        setback = setback.after(first, code, now, 1.0)
    return setback


def test_a_failure_lasts_after_a_few_tries_at_one_entry_and_is_reported_before():
    tries = MAX_WEIGHT // WEIGHT
    before = fail(Setback(), times=tries - 1)
    assert not before.is_lasting and before.is_told
    assert fail(before).is_lasting
    assert not fail(Setback()).is_told
    assert fail(fail(Setback(), times=4), "b").tries == 1


def test_a_killed_git_counts_less_than_an_aborted_one_and_one_that_lacks_resources_blames_no_entry():
    killed = fail(Setback(), code=-signal.SIGKILL, times=MAX_WEIGHT // KILLED_WEIGHT - 1)
    assert not killed.is_lasting
    assert fail(killed, code=-signal.SIGKILL).is_lasting
    assert fail(Setback(), code=-signal.SIGABRT, times=MAX_WEIGHT // WEIGHT).is_lasting
    setback = Setback()
    for _ in range(1000):
        setback = setback.after("a", 128, 0.0, 1.0, lacks_room=True)
    assert setback.is_told and not setback.is_lasting


def test_the_next_try_waits_unless_another_entry_is_at_work():
    setback = fail(Setback(), now=10.0)
    assert setback.pause("a", 10.5) == 0.5
    assert setback.pause("a", 11.5) == 0.0
    assert setback.pause("b", 10.4) == 0.0
