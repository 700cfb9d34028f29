"""Order of conflicting entries: most land, priorities and dependencies stay, and none is passed over for ever."""

from __future__ import annotations

import itertools
import random
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.merge.entry import MergeEntry
from garrison.merge.order import MAX_EXACT, MAX_PASSED, WaitingEntry, choose_order, find_due, find_places
from garrison.merge.state import QueueState
from garrison.values import replace


def pairs(*names: str) -> set[frozenset[str]]:
    return {frozenset(name) for name in names}


def lands(order: list[str], conflicts: set[frozenset[str]]) -> list[str]:
    """Return what lands of entries that are good, in this order."""
    landed: list[str] = []
    for name in order:
        if not any(frozenset((name, other)) in conflicts for other in landed):
            landed.append(name)
    return landed


def test_one_entry_does_not_cost_two_and_without_a_gain_the_order_of_arrival_stays() -> None:
    places, conflicts = [WaitingEntry(name) for name in "abc"], pairs("ab", "ac")
    assert lands(list("abc"), conflicts) == ["a"]
    assert choose_order(places, conflicts) == ["b", "c", "a"]
    assert choose_order([WaitingEntry(name) for name in "abcd"], pairs("ab", "cd")) == ["a", "c", "b", "d"]
    assert choose_order([WaitingEntry(name) for name in "abc"], set()) == ["a", "b", "c"]
    assert choose_order([WaitingEntry(name) for name in "ab"], pairs("ab", "ax")) == ["a", "b"]


def test_a_likely_good_entry_goes_before_a_likely_bad_one() -> None:
    assert choose_order([WaitingEntry("a", 0.3), WaitingEntry("b", 0.9)], pairs("ab")) == ["b", "a"]
    assert choose_order([WaitingEntry("a", 0.9), WaitingEntry("b", 0.4), WaitingEntry("c", 0.4)],
                        pairs("ab", "ac")) == ["a", "b", "c"]


def test_neither_a_priority_nor_an_entry_that_is_due_is_passed_over() -> None:
    places = [WaitingEntry("a", priority=1), WaitingEntry("b"), WaitingEntry("c")]
    assert choose_order(places, pairs("ab", "ac")) == ["a", "b", "c"]
    later = [WaitingEntry("a"), WaitingEntry("b", priority=1), WaitingEntry("c", priority=1)]
    assert choose_order(later, pairs("ab", "ac")) == ["a", "b", "c"]
    places = [WaitingEntry("a", is_due=True), WaitingEntry("b"), WaitingEntry("c")]
    assert choose_order(places, pairs("ab", "ac")) == ["a", "b", "c"]
    two = [WaitingEntry("a"), WaitingEntry("b", is_due=True), WaitingEntry("c", is_due=True)]
    assert choose_order(two, pairs("ab", "ac", "bc")) == ["b", "a", "c"]


def test_an_entry_counts_with_those_that_depend_on_it_and_goes_first() -> None:
    places = [WaitingEntry("a"), WaitingEntry("b"), WaitingEntry("c"), WaitingEntry("d", needs=frozenset("a")),
              WaitingEntry("e", needs=frozenset("d"))]
    assert choose_order(places, pairs("ab", "ac")) == ["a", "d", "e", "b", "c"]
    one = [WaitingEntry("a"), WaitingEntry("b"), WaitingEntry("c"), WaitingEntry("d", needs=frozenset("c"))]
    assert choose_order(one, pairs("ab", "ac")) == ["b", "c", "d", "a"]


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 8), st.data())
def test_no_other_order_lands_more(count: int, data: st.DataObject) -> None:
    names = "abcdefgh"[:count]
    all_pairs = [frozenset(pair) for pair in itertools.combinations(names, 2)]
    conflicts = set(data.draw(st.lists(st.sampled_from(all_pairs), unique=True)) if all_pairs else [])
    order = choose_order([WaitingEntry(name) for name in names], conflicts)
    assert sorted(order) == sorted(names)
    best = max(len(lands([names[i] for i in which], conflicts)) for size in range(count + 1)
               for which in itertools.combinations(range(count), size))
    assert len(lands(order, conflicts)) == best


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_dependencies_always_go_first(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"e{number}" for number in range(rng.randint(2, 30))]
    places = [WaitingEntry(name, rng.random(),
                           needs=frozenset(rng.sample(names[:index], rng.randint(0, min(2, index)))),
                           is_due=rng.random() < 0.2)
              for index, name in enumerate(names)]
    conflicts = {frozenset(pair) for pair in itertools.combinations(names, 2) if rng.random() < 0.2}
    order = choose_order(places, conflicts)
    assert sorted(order) == sorted(names)
    for place in places:
        assert all(order.index(need) < order.index(place.id) for need in place.needs)


def test_large_groups_are_ordered_at_once_and_never_worse_than_by_arrival() -> None:
    rng = random.Random(1)
    names = [f"e{number}" for number in range(64)]
    for density in (0.05, 0.3, 0.9):
        conflicts = {frozenset(pair) for pair in itertools.combinations(names, 2) if rng.random() < density}
        began = time.process_time()
        order = choose_order([WaitingEntry(name) for name in names], conflicts)
        assert time.process_time() - began < 1.0
        assert len(lands(order, conflicts)) >= len(lands(names, conflicts))
    star = {frozenset(("e0", name)) for name in names[1:]}
    assert choose_order([WaitingEntry(name) for name in names], star)[-1] == "e0"
    dense = names[:MAX_EXACT]
    began = time.process_time()
    choose_order([WaitingEntry(name, rng.random()) for name in dense],
                 {frozenset(pair) for pair in itertools.combinations(dense, 2) if rng.random() < 0.1})
    assert time.process_time() - began < 1.0


def test_being_passed_over_is_bounded() -> None:
    state = QueueState()

    def add(node: str, attempt: int = 1, status: str = "queued") -> MergeEntry:
        made = MergeEntry(f"{node}-{attempt}", "r", node, attempt, node, "o", "main", status=status)
        state.positions[made.id] = len(state.positions)
        state.entries[made.id] = made
        return made

    add("before", status="landed")
    waiting = add("a")
    for number in range(MAX_PASSED):
        assert not find_due([waiting], state)
        add(f"n{number}", status="landed")
    assert find_due([waiting], state) == {waiting.id}
    loser = add("b", status="conflict")
    assert find_due([add("b", 2)], state) == {"b-2"}
    state.entries[loser.id] = replace(loser, status="rejected")
    assert not find_due([state.entries["b-2"]], state)
    assert find_places([waiting], state, {"a-1": 0.25}) == [WaitingEntry("a-1", 0.75, is_due=True)]
