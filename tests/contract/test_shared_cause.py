"""A shared cause counts against the first of those that it ended."""

from __future__ import annotations

import os
from pathlib import Path

from garrison.records import shared_cause


def test_the_first_claimant_counts_however_often_it_asks(tmp_path: Path) -> None:
    asked = ["orchestrator-a@r1#1", "orchestrator-b@r1#1", "orchestrator-a@r1#1", "orchestrator-a@r1#2"]
    assert [shared_cause.claim(tmp_path, "tmux-77:123", one) for one in asked] == [True, False, True, False]
    assert shared_cause.claim(tmp_path, "tmux-78:123", asked[1]), "another server's death"


def test_old_claims_are_removed(tmp_path: Path) -> None:
    shared_cause.claim(tmp_path, "tmux-1:1", "a")
    old = next((tmp_path / "run/causes").iterdir())
    os.utime(old, (1.0, 1.0))
    shared_cause.claim(tmp_path, "tmux-2:2", "a")
    assert not old.exists()
