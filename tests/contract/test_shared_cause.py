"""A shared cause counts against the first of those that it ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from garrison.records import shared_cause


def test_the_first_claimant_counts_however_often_it_asks(tmp_path: Path) -> None:
    asked = ["orchestrator-a@r1#1", "orchestrator-b@r1#1", "orchestrator-a@r1#1", "orchestrator-a@r1#2"]
    assert [shared_cause.claim(tmp_path, "tmux-77:123", one) for one in asked] == [True, False, True, False]
    assert shared_cause.claim(tmp_path, "tmux-78:123", asked[1]), "another server's death"


def test_a_claimant_that_is_killed_while_it_claims_leaves_no_empty_claim(tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty claim, as an earlier version left it, counts for the next that asks."""
    def killed(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shared_cause.atomic, "write_all", killed)
        shared_cause.claim(tmp_path, "tmux-1:1", "a")
    assert shared_cause.claim(tmp_path, "tmux-1:1", "b")
    (tmp_path / "run/causes/tmux-2-2").touch()
    assert [shared_cause.claim(tmp_path, "tmux-2:2", one) for one in "aba"] == [True, False, True]


def test_old_claims_are_removed(tmp_path: Path) -> None:
    shared_cause.claim(tmp_path, "tmux-1:1", "a")
    old = next((tmp_path / "run/causes").iterdir())
    os.utime(old, (1.0, 1.0))
    shared_cause.claim(tmp_path, "tmux-2:2", "a")
    assert not old.exists()
