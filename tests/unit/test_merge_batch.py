"""Bounds of what is tested together, the check of the bare target, and order, without git or disk."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.merge import decision
from garrison.merge import entry as order
from garrison.merge.decision import check_base, choose_retry
from garrison.merge.entry import PRIORITIES, MergeEntry
from garrison.merge.state import Pause
from garrison.merge.verdicts import BROKEN, BaseRun, TreeEvidence, VerdictCache
from garrison.system.clock import from_iso
from garrison.values import replace

KEY = "k"


@given(st.integers(1, 600), st.floats(0.3, 1e4), st.integers(1, decision.MAX_BATCH))
def test_a_set_is_no_larger_than_queue_and_limit_allow(backlog, seconds, most):
    size = decision.choose_max_set(backlog, [seconds], max_batch=most)
    assert size == (most if backlog > decision.SHORT_QUEUE else 1)
    assert decision.choose_max_set(backlog, [0.01, seconds], max_batch=most) == min(size, decision.QUICK_SET)
    assert decision.choose_max_set(backlog, []) == 1


@pytest.mark.parametrize(("cores", "gate_cores", "gates"), [
    (8, 0, 1), (8, 8, 1), (8, 5, 1), (8, 4, 2), (8, 1, 8), (64, 1, 16), (2, 1, 2), (1, 1, 1), (1, 4, 1)])
def test_gates_run_in_parallel_only_on_idle_cores(cores, gate_cores, gates):
    assert decision.choose_gate_width(cores, gate_cores) == gates


# --------------------------------------------------------------------------------------------------- the bare target


def test_a_target_not_known_to_pass_is_tested_before_an_entry_is_blamed():
    assert check_base("t0", ["red"], TreeEvidence()) == "test"
    assert check_base("t0", ["red"], TreeEvidence(green={"t0"})) == "passes"
    assert check_base("t0", ["red"], TreeEvidence(base=BaseRun("green", 6, 0))) == "passes"
    assert check_base("t0", ["red"], TreeEvidence(base=BaseRun("red", 6, 1))) == "test"
    assert check_base("t0", ["red"], TreeEvidence(base=BaseRun("red", 7, 2))) == "base_red"
    assert check_base("t0", ["red"], TreeEvidence(base=BaseRun("missing", 6, 1))) == "gate_broken"


@pytest.mark.parametrize(("result", "pauses", "seconds"), [
    ("lost", 0, 30.0), ("lost", 1, 60.0), ("lost", 5, 960.0), ("lost", 6, 1800.0), ("lost", 5000, 1800.0),
    ("red", 3, 240.0), ("setup", 0, 30.0), ("missing", 0, 0.0), ("timeout", 0, 0.0), ("empty", 3, 0.0)])
def test_a_pause_ends_by_itself_if_its_cause_may_pass(result, pauses, seconds):
    assert choose_retry(result, pauses) == seconds


def test_a_retry_is_due_after_its_time_and_when_the_clock_was_set_back():
    pause = Pause("gate_broken", "killed", "t", at="2026-01-01T12:00:00.000000Z", retry_after=30.0)
    began = from_iso(pause.at)
    assert [pause.is_retry_due(began + after) for after in (0, 29, 30, 3600, -60)] == [False, False, True, True, True]
    assert pause.describe() == ("the queue is paused: gate_broken: killed; "
                                "the queue tries again at 2026-01-01T12:00:30Z")
    assert not replace(pause, retry_after=0.0).is_retry_due(began + 3600)
    # the only line that `merge-queue list` and `status` show; the last output of the gate follows it
    pause = Pause("gate_broken", "killed\nthe end of its log", "t", at="2026-01-01T12:00:00.000000Z", retry_after=30.0)
    assert pause.explain().splitlines() == [
        "killed; the queue tries again at 2026-01-01T12:00:30Z", "the end of its log"]
    assert replace(pause, retry_after=0.0).explain() == pause.detail


@pytest.mark.parametrize("result", sorted(BROKEN))
def test_a_broken_gate_may_have_broken_since_the_target_passed(result):
    known = {"green": {"t0"}, "broken": 5}
    assert check_base("t0", ["red", result], TreeEvidence(**known)) == "test"
    assert check_base("t0", [result], TreeEvidence(**known, base=BaseRun("green", 4, 0))) == "test"
    assert check_base("t0", [result], TreeEvidence(**known, base=BaseRun("green", 6, 0))) == "passes"


# ------------------------------------------------------------------------------------------------------------- order


def entries(priorities, needs=()):
    made = [MergeEntry(str(number), "r", str(number), 1, "b", "o", "main", priority=priority)
            for number, priority in enumerate(priorities)]
    return made, {one.id: place for place, one in enumerate(made)}


def max_overtakes(priority):
    return max(0, order.PLACES * (PRIORITIES[-1] - priority) - 1)


priorities = st.lists(st.integers(PRIORITIES[0], PRIORITIES[-1]), max_size=80)


@settings(deadline=None)
@given(priorities)
def test_no_entry_is_overtaken_more_often_than_its_priority_allows(given_priorities):
    """The bound on waiting applies however many come later, with whatever priority."""
    made, places = entries(given_priorities)
    ranked = order.rank_entries(made, places)
    assert sorted(one.id for one in ranked) == sorted(places)
    for rank, one in enumerate(ranked):
        passed_by = [other for other in ranked[:rank] if places[other.id] > places[one.id]]
        assert len(passed_by) <= max_overtakes(one.priority)


def test_equal_priorities_keep_their_order_and_the_highest_starve_no_entry():
    made, places = entries([0] + [PRIORITIES[-1]] * (max_overtakes(0) + 5))
    assert order.rank_entries(made, places).index(made[0]) == max_overtakes(0)
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
        assert not verdicts.evidence(KEY).flaky
        verdicts.record("t", KEY, second, ("a",), 2)
        assert verdicts.evidence(KEY).flaky
        for number in range(300):
            verdicts.record(f"t{number}", KEY, "green", ("b",), 3 + number)
        assert not verdicts.evidence(KEY).flaky


def test_a_vanished_run_counts_only_after_it_vanished_again_under_one_processor():
    verdicts = VerdictCache()
    assert [verdicts.record("t", KEY, "lost", ("a",), seq) for seq in (1, 2)] == [False, False]
    verdicts.forget_lost()
    assert [verdicts.record("t", KEY, "lost", ("a",), seq) for seq in (3, 4, 5)] == [False, False, True]
    assert [one.result for one in verdicts.red[KEY]["t"]] == ["lost"]
    assert verdicts.evidence(KEY).broken == 5
