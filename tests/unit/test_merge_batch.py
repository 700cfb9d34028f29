"""Batches, bisection, sizes and order, without git or disk: properties for any set of bad entries."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.merge import batch
from garrison.merge import entry as order
from garrison.merge.batch import Land, PauseQueue, Reject
from garrison.merge.entry import PRIORITIES, MergeEntry
from garrison.merge.verdicts import BaseRun, Evidence, RedRun, VerdictCache

KEY = "k"


@dataclass
class Drain:
    """A drain of numbered entries by the pure parts alone; a tree is the set of entries that it holds."""

    count: int
    passes: object
    """Set of entries → whether the gate passes on them, each time it runs."""
    width: int = 1
    landed: list[int] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    tips: list[frozenset[int]] = field(default_factory=list)
    runs: list[tuple[tuple[int, ...], bool]] = field(default_factory=list)
    paused: str = ""

    def run(self) -> Drain:
        self.verdicts = VerdictCache()
        self.queue, self.batch = list(range(self.count)), []
        while (self.queue or self.batch) and not self.paused:
            self.step()
            assert len(self.runs) < 50 * self.count + 50, "it does not terminate"
        return self

    def tree(self, prefix: list[int]) -> frozenset[int]:
        return frozenset(self.landed) | frozenset(prefix)

    def step(self) -> None:
        if not self.batch:
            size = batch.choose_batch_size(self.verdicts.rejections, len(self.queue), self.verdicts.durations,
                                           width=self.width)
            self.batch, self.queue = self.queue[:size], self.queue[size:]
            self.verdicts.forget_base()
        trees = [str(sorted(self.tree(self.batch[:i]))) for i in range(len(self.batch) + 1)]
        evidence = self.verdicts.evidence(KEY, ())
        red = batch.shortest_red(trees, evidence)
        if 0 < red < len(self.batch):
            self.batch, self.queue = self.batch[:red], self.batch[red:] + self.queue
        else:
            self.apply(batch.decide_next([str(one) for one in self.batch], trees, evidence, width=self.width), trees)

    def apply(self, step: batch.Decision, trees: list[str]) -> None:
        if isinstance(step, Land):
            self.landed += self.batch[:step.count]
            for _ in range(step.count):
                self.verdicts.record_judgement(rejected=False)
            self.tips.append(self.tree([]))
            self.batch = self.batch[step.count:]
            self.verdicts.forget_base()
        elif isinstance(step, Reject):
            bad, *rest = self.batch
            self.rejected.append(bad)
            self.batch, self.queue = [], rest + self.queue
            self.verdicts.record_judgement(rejected=True)
            self.verdicts.forget_base()
        elif isinstance(step, PauseQueue):
            self.paused = step.reason
        else:
            assert step.start, "nothing runs, and nothing is started"
            for count in step.start:
                self.gate(count, trees[count])

    def gate(self, count: int, tree: str) -> None:
        green = self.passes(self.tree(self.batch[:count]))
        self.runs.append((tuple(self.batch[:count]), green))
        result = "green" if green else "red"
        self.verdicts.record_duration(1.0)
        if count:
            self.verdicts.record(tree, KEY, result, tuple(str(one) for one in self.batch[:count]), len(self.runs))
        else:
            self.verdicts.record_base(tree, KEY, result, len(self.runs))


bad_sets = st.integers(1, 60).flatmap(lambda count: st.tuples(
    st.just(count), st.sets(st.integers(0, count - 1)),
    st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] < pair[1]),
            max_size=6)))


@settings(max_examples=60, deadline=None)
@given(bad_sets, st.integers(1, 4))
def test_every_good_entry_lands_and_none_is_rejected_without_a_red_run_of_its_own(world, width):
    """An entry is bad alone, or red together with another; of such a pair the second is rejected."""
    count, bad, pairs = world

    def passes(tree):
        return not tree & bad and not any(one in tree and two in tree for one, two in pairs)

    drain = Drain(count, passes, width).run()
    assert sorted(drain.landed + drain.rejected) == list(range(count))
    expected: list[int] = []
    for one in range(count):
        if passes({*expected, one}):
            expected.append(one)
    assert drain.landed == expected, "what one by one would have landed, in the same order"
    for tip in drain.tips:
        assert any(green and set(entries) <= tip for entries, green in drain.runs)
        assert passes(tip), "a value that was not tested"
    for one in drain.rejected:
        assert ((one,), False) in drain.runs


@settings(max_examples=50, deadline=None)
@given(bad_sets)
def test_the_number_of_gate_runs_is_bounded(world):
    """Each bad entry costs its halvings, two runs of its own and a base run; all others are green and land."""
    count, bad, _ = world
    drain = Drain(count, lambda tree: not tree & bad).run()
    red = [entries for entries, green in drain.runs if not green]
    halvings = math.ceil(math.log2(min(batch.MAX_BATCH, count))) + 1 if count > 1 else 1
    assert len(red) <= len(bad) * (halvings + batch.RED_RUNS_NEEDED)
    assert len(drain.runs) - len(red) <= len(drain.tips) + 1, "every green run lands something, but one on the base"
    if not bad:
        assert len(drain.runs) <= 4 + count / 8


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_a_flaky_gate_rejects_only_entries_that_were_red_often_enough(seed, count):
    chance = random.Random(seed)
    drain = Drain(count, lambda tree: chance.random() > 0.1).run()
    if not drain.paused:
        assert sorted(drain.landed + drain.rejected) == list(range(count))
    for one in drain.rejected:
        assert ((one,), False) in drain.runs


def test_at_a_twentieth_of_false_reds_at_most_one_in_a_thousand_good_entries_is_rejected():
    chance = random.Random(7)
    drains = [Drain(200, lambda tree: chance.random() > 0.05).run() for _ in range(20)]
    done = [drain for drain in drains if not drain.paused]
    assert len(done) > 15, "a queue pauses only if the bare target is red twice"
    assert sum(len(drain.rejected) for drain in done) <= 0.001 * 200 * len(done)


@pytest.mark.parametrize(("share", "most"), [(0.0, 4), (0.01, 7), (0.05, 16)])
def test_the_number_of_runs_to_drain_forty_entries(share, most):
    runs = []
    for seed in range(60):
        chance = random.Random(seed)
        bad = frozenset(one for one in range(40) if chance.random() < share)
        runs.append(len(Drain(40, lambda tree, bad=bad: not tree & bad).run().runs))
    assert sum(runs) / len(runs) <= most, runs


# ------------------------------------------------------------------------------------------------------- single steps


def evidence(**values):
    return Evidence(**{"green": {"t0"}, **values})


def red(*entries, result="red", seq=5):
    return RedRun(entries, result, seq)


def test_the_longest_green_prefix_lands_at_once():
    assert batch.decide_next("abc", ["t0", "t1", "t2", "t3"], evidence(green={"t1", "t2"})) == Land(2)
    assert batch.decide_next("abc", ["t0", "t1", "t2", "t3"],
                             evidence(green={"t2"}, red={"t3": [red("a", "b", "c")]})) == Land(2)


def test_a_red_batch_is_halved_and_runs_in_progress_are_waited_for():
    trees = ["t0", "t1", "t2", "t3", "t4"]
    four = {"t4": [red(*"abcd")]}
    assert batch.decide_next("abcd", trees, evidence(red=four)) == batch.RunGates((2,), (2,))
    assert batch.decide_next("abcd", trees, evidence(red=four, running={"t2"})) == batch.RunGates((2,), ())
    assert batch.decide_next("abcd", trees, evidence(red=four), width=3) == batch.RunGates((1, 2, 3), (1, 2, 3))
    assert batch.decide_next("abcd", trees, evidence(red=four, running={"t2"}), width=3) == \
        batch.RunGates((1, 2, 3), (1, 3))


def test_a_leaf_is_run_once_more_and_never_rejected_by_the_runs_of_others():
    trees = ["t0", "t1"]
    assert batch.decide_next("a", trees, evidence(red={"t1": [red("a")]})) == batch.RunGates((1,), (1,))
    assert batch.decide_next("a", trees, evidence(red={"t1": [red("z", "a"), red("b", "a")]})) == \
        batch.RunGates((1,), (1,))
    assert batch.decide_next("a", trees, evidence(red={"t1": [red("z", "a"), red("a")]})) == Reject()
    assert batch.decide_next("a", trees, evidence(red={"t1": [red("a"), red("a")]})) == Reject()
    assert batch.decide_next("a", trees, evidence(red={"t1": [red("a"), red("a")]}, flaky=True)) == \
        batch.RunGates((1,), (1,))
    assert batch.decide_next("a", trees, evidence(red={"t1": [red("a")] * 3}, flaky=True)) == Reject()


def test_a_target_not_known_to_pass_is_tested_before_an_entry_is_blamed():
    two = {"t2": [red(*"ab")]}
    trees = ["t0", "t1", "t2"]
    asked = batch.RunGates((0,), (0,))
    assert batch.decide_next("ab", trees, Evidence(red=two)) == asked
    assert batch.decide_next("ab", trees, Evidence(red=two, running={"t0"})) == batch.RunGates((0,), ())
    assert batch.decide_next("ab", trees, evidence(red=two, base=BaseRun("green", 6, 0))) == batch.RunGates((1,), (1,))
    assert batch.decide_next("ab", trees, Evidence(red=two, base=BaseRun("red", 6, 1))) == asked
    assert batch.decide_next("ab", trees, Evidence(red=two, base=BaseRun("red", 7, 2))) == PauseQueue("base_red")
    assert batch.decide_next("ab", trees, Evidence(red=two, base=BaseRun("missing", 6, 1))) == PauseQueue("gate_broken")


@pytest.mark.parametrize("result", sorted(batch.BROKEN))
def test_a_broken_gate_may_have_broken_since_the_target_passed(result):
    trees, broken = ["t0", "t1"], {"t1": [red("a", result=result, seq=5), red("a", result=result, seq=7)]}
    assert batch.decide_next("a", trees, evidence(red=broken, broken=5)) == batch.RunGates((0,), (0,))
    assert batch.decide_next("a", trees, evidence(red=broken, broken=5, base=BaseRun("green", 4, 0))) == \
        batch.RunGates((0,), (0,))
    assert batch.decide_next("a", trees, evidence(red=broken, broken=5, base=BaseRun("green", 6, 0))) == Reject()


@given(st.integers(1, 32), st.integers(1, 4))
def test_prefixes_are_distinct_within_bounds_and_never_more_than_gates(size, width):
    for found, last in ((batch.probe_points(size, width), size), (batch.split_points(size, width), max(1, size - 1))):
        assert list(found) == sorted(set(found))
        assert found[0] >= 1
        assert found[-1] <= last
        assert len(found) <= width
    assert batch.probe_points(size, width)[-1] == size


# -------------------------------------------------------------------------------------------------- sizes and numbers


@given(st.lists(st.booleans(), max_size=200), st.integers(1, 600), st.floats(0.3, 1e4), st.integers(1, 4))
def test_a_batch_is_no_larger_than_queue_and_limit_allow(judged, backlog, seconds, width):
    size = batch.choose_batch_size(judged, backlog, [seconds], width=width)
    assert 1 <= size <= min(batch.MAX_BATCH, backlog)
    assert batch.choose_batch_size(judged, backlog, [seconds], width=width, max_batch=1) == 1
    assert batch.choose_batch_size(judged, backlog, [0.01, seconds], width=width) == 1
    assert batch.choose_batch_size(judged, min(backlog, batch.SHORT_QUEUE), [seconds], width=width) == 1
    assert batch.choose_batch_size(judged, backlog, [], width=width) == 1


def test_the_worse_the_entries_the_smaller_the_batch():
    sizes = [batch.choose_batch_size([True] * bad + [False] * (64 - bad), 500, [60.0])
             for bad in (0, 1, 3, 6, 13, 32, 64)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == batch.MAX_BATCH
    assert sizes[-1] == 1
    assert batch.choose_batch_size([True] * 6 + [False] * 58, 500, [60.0]) == pytest.approx(0.69 / 0.09, abs=1)


@pytest.mark.parametrize(("cores", "gate_cores", "gates"), [
    (8, 0, 1), (8, 8, 1), (8, 5, 1), (8, 4, 2), (8, 1, 4), (2, 1, 2), (1, 1, 1), (1, 4, 1)])
def test_gates_run_in_parallel_only_on_idle_cores(cores, gate_cores, gates):
    assert batch.choose_gate_width(cores, gate_cores) == gates


# ------------------------------------------------------------------------------------------------------------- order


def entries(priorities, needs=()):
    made = [MergeEntry(str(number), "r", str(number), 1, "b", "o", "main", priority=priority)
            for number, priority in enumerate(priorities)]
    return made, {one.id: place for place, one in enumerate(made)}


priorities = st.lists(st.integers(PRIORITIES[0], PRIORITIES[-1]), max_size=80)


@settings(deadline=None)
@given(priorities)
def test_no_entry_is_overtaken_more_often_than_its_priority_allows(given_priorities):
    """The bound on waiting holds however many come later, with whatever priority."""
    made, places = entries(given_priorities)
    ranked = order.rank_entries(made, places)
    assert sorted(one.id for one in ranked) == sorted(places)
    for rank, one in enumerate(ranked):
        passed_by = [other for other in ranked[:rank] if places[other.id] > places[one.id]]
        assert len(passed_by) <= order.max_overtakes(one.priority)


def test_equal_priorities_keep_their_order_and_the_highest_starve_no_entry():
    made, places = entries([0] + [PRIORITIES[-1]] * (order.max_overtakes(0) + 5))
    assert order.rank_entries(made, places).index(made[0]) == order.max_overtakes(0)
    made, places = entries([5] * 10)
    assert order.rank_entries(made, places) == made


@given(st.integers(1, 20).flatmap(lambda count: st.tuples(
    st.just(count), st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count + 2)), max_size=30))))
def test_dependencies_come_before_their_dependents(world):
    count, pairs = world
    made, places = entries([0] * count)
    needs = {one.id: {str(b) for a, b in pairs if str(a) == one.id and b != a} for one in made}
    line = [one.id for one in order.order_by_dependencies(order.rank_entries(made, places), needs)]
    for place, one in enumerate(line):
        assert needs[one] <= set(line[:place])
    for one in set(needs) - set(line):
        assert needs[one] - set(line), "it waits for no entry"


def test_a_gate_is_flaky_for_a_while_after_it_judged_one_tree_both_ways():
    for first, second in (("green", "red"), ("red", "green")):
        verdicts = VerdictCache()
        verdicts.record("t", KEY, first, ("a",), 1)
        assert not verdicts.evidence(KEY, ()).flaky
        verdicts.record("t", KEY, second, ("a",), 2)
        assert verdicts.evidence(KEY, ()).flaky
        for number in range(300):
            verdicts.record(f"t{number}", KEY, "green", ("b",), 3 + number)
        assert not verdicts.evidence(KEY, ()).flaky


def test_a_vanished_run_counts_only_after_it_vanished_again_under_one_processor():
    verdicts = VerdictCache()
    assert [verdicts.record("t", KEY, "lost", ("a",), seq) for seq in (1, 2)] == [False, False]
    verdicts.forget_lost()
    assert [verdicts.record("t", KEY, "lost", ("a",), seq) for seq in (3, 4, 5)] == [False, False, True]
    assert [one.result for one in verdicts.evidence(KEY, ()).red["t"]] == ["lost"]
    assert verdicts.evidence(KEY, ()).broken == 5
