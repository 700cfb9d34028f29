"""A branch that somebody else moved under a worktree: found from what git logged."""

from __future__ import annotations

import pytest

from garrison.system.git.worktrees import ReflogLine, find_last_own_commit


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
    ("xab", "qwexab", None),  # what the branch was before this worktree began
    ("a", "", None),
    ("", "ab", None)])
def test_the_last_own_commit_before_a_move_from_elsewhere(head: str, branch: str, own: str | None) -> None:
    assert find_last_own_commit(log(*head), log(*branch)) == (own and own * 40)


def test_a_commit_on_top_of_a_foreign_one_is_not_ones_own() -> None:
    head = [*log("a", "b"), ReflogLine("f" * 40, "c" * 40)]
    assert find_last_own_commit(head, log("a", "b", "f", "c")) == "b" * 40
