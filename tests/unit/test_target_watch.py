"""Moves of a run's target that no merge queue made."""

from __future__ import annotations

import pytest

from garrison.merge.records import LandingStarted
from garrison.merge.state import QueueState, restore, snapshot
from garrison.records.events import ForeignMove
from garrison.records.journal import Entry
from garrison.run.state import RunState, from_snapshot, to_snapshot
from garrison.run.target_watch import find_foreign_move
from garrison.views.page_view import PageModel
from garrison.views.run_model import RunModel

LANDED = {"b": "a", "c": "b", "e": "d"}
"""Landings a → b → c and d → e."""


@pytest.mark.parametrize(("known", "tip", "foreign"), [
    ("a", "a", ""), ("a", "b", ""), ("a", "c", ""), ("b", "c", ""),
    ("a", "x", "x"),
    ("c", "d", "d"), ("c", "e", "d"),  # a landing on top does not hide it
    ("c", "b", "a"),  # moved back: `b` is explained by `a`, which is not the last known
])
def test_a_commit_that_no_landing_names_was_put_there_by_somebody_else(known: str, tip: str, foreign: str) -> None:
    assert find_foreign_move(known, tip, LANDED) == foreign


def test_landings_that_name_each_other_end_the_search() -> None:
    assert find_foreign_move("z", "a", {"a": "b", "b": "a"}) in ("a", "b")


def test_a_queue_knows_its_landings_before_they_are_done_and_after_a_snapshot() -> None:
    state = QueueState()
    state.apply_record(LandingStarted((), "a", "b", ("b",)), Entry(1, 1, "t", "2026-01-01T00:00:00Z", "landing", {}))
    state.landing = None
    again = QueueState()
    restore(again, snapshot(state).state)
    assert again.moves == state.moves == {"b": "a"}
    restore(again, {name: value for name, value in snapshot(state).state.items() if name != "moves"})
    assert again.moves == {}, "a snapshot of an earlier version"


def test_a_foreign_move_is_told_in_words_on_the_page_and_kept_by_a_snapshot() -> None:
    move = ForeignMove("main", "a" * 40, "b" * 40, ["x", "y"], "fix (Ann)")
    assert move.describe() == ("main was moved outside the merge queue, aaaaaaaaaa → bbbbbbbbbb while x, y were at "
                               "work: fix (Ann)")
    rewritten = ForeignMove("main", "a", "b", rewritten=True)
    assert rewritten.describe() == "main was rewritten outside the merge queue, a → b"
    state = RunState()
    state.apply_event(move, "")
    assert from_snapshot(to_snapshot(state)).foreign_moves == [move]
    model = RunModel("r1", state)
    assert PageModel(model, {}).snapshot().problems == [f"warning: {move.describe()}"]
