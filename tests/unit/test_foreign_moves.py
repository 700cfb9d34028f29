"""Foreign moves: of the branch of a worktree, and of the target of a run."""

from __future__ import annotations

import pytest

from garrison.merge.records import LandingStarted
from garrison.merge.state import QueueState, restore, snapshot
from garrison.records.events import ForeignMove
from garrison.records.journal import Entry
from garrison.run.state import RunState, from_snapshot, to_snapshot
from garrison.run.target_watch import find_foreign_move
from garrison.system.git.worktrees import ReflogLine, find_last_own_commit
from garrison.views.page_view import PageModel
from garrison.views.run_model import RunModel


def log(*commits: str) -> list[ReflogLine]:
    names = [name * 40 for name in commits]
    return [ReflogLine(old, new) for old, new in zip(["0" * 40, *names], names, strict=False)]


@pytest.mark.parametrize(("head", "branch", "own"), [
    ("ab", "ab", None),
    ("abc", "abc", None),
    ("ab", "abf", "b"),  # moved to f, after the last own commit
    ("a", "af", "a"),
    ("abc", "ab", None),  # detached, on a commit that the branch does not have
    ("abde", "abe", None),  # a rebase: its steps are in the log of HEAD alone
    ("xab", "qwexab", None),  # the branch before this worktree
    ("a", "", None),
    ("", "ab", None)])
def test_the_last_own_commit_before_a_move_from_elsewhere(head: str, branch: str, own: str | None) -> None:
    assert find_last_own_commit(log(*head), log(*branch)) == (own and own * 40)


def test_a_commit_on_top_of_a_foreign_one_is_foreign() -> None:
    head = [*log("a", "b"), ReflogLine("f" * 40, "c" * 40)]
    assert find_last_own_commit(head, log("a", "b", "f", "c")) == "b" * 40


# ---- moves of a run's target that no merge queue made


LANDED = {"b": "a", "c": "b", "e": "d"}
"""Landings a → b → c and d → e."""


@pytest.mark.parametrize(("known", "tip", "foreign"), [
    ("a", "a", ""), ("a", "b", ""), ("a", "c", ""), ("b", "c", ""),
    ("a", "x", "x"),
    ("c", "d", "d"), ("c", "e", "d"),  # a landing on top does not hide it
    ("c", "b", "a"),  # moved back: `b` is explained by `a`, which is not the last known
])
def test_a_tip_that_no_landing_explains_is_a_foreign_move(known: str, tip: str, foreign: str) -> None:
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


def test_a_foreign_move_is_described_on_the_page_and_kept_by_a_snapshot() -> None:
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
