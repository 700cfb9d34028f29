"""What goes first where the home takes more than its limit of disk space."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.launch.disk import Held, What, choose

HELD = [Held(What.RECORDS, "r1", Path("r1"), 50, 1), Held(What.SETUP, "p", Path("new"), 30, 9, removable=True),
        Held(What.SETUP, "p", Path("used"), 30, 1), Held(What.SETUP, "p", Path("old"), 30, 2, removable=True),
        Held(What.WORKTREE, "r1", Path("tree"), 30, 3, removable=True)]
"""170 bytes in all, 90 of which may go."""


@pytest.mark.parametrize(("limit", "gone"), [
    (170, []), (169, ["old"]), (140, ["old"]), (139, ["old", "tree"]), (110, ["old", "tree"]),
    (80, ["old", "tree", "new"]), (0, ["old", "tree", "new"])])
def test_what_was_used_longest_ago_goes_first_and_nothing_that_is_in_use(limit: int, gone: list[str]) -> None:
    assert [each.path.name for each in choose(HELD, limit)] == gone
