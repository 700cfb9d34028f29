"""Damage to a home in mid-run: a few seeds of `tests.damage`, and what each kind of damage was seen to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from damage import Landing, Trial

DAMAGES = {
    "journal": [("runs/r1/journal.jsonl", "empty"), ("runs/r1/launch.json", "deleted")],
    "lost journal": [("runs/r1/journal.jsonl", "deleted"), ("identities/guardian-crew@r1.json", "zeros")],
    "graph": [("runs/r1/graph.dot", "deleted"), ("runs/r1/launch.json", "truncated")],
    "queue": [("merge-queue/*/*/journal.jsonl", "empty"), ("identities/launch@r1.json", "empty")],
    "lost queue": [("merge-queue/*/*/journal.jsonl", "deleted")],
    "identities": [("identities/*@r1.json", "zeros")],
    "hooks": [("hooks/*@r1.json", "empty")],
    "lost hooks": [("hooks/*@r1.json", "deleted"), ("identities/runner-*@r1.json", "deleted")],
    "inboxes": [("signals/*/*.json", "zeros")],
    "process journals": [("runs/r1/layers/*.jsonl", "flipped")],
    "sessions": [("run/plain/*.json", "empty")],
    "tasks": [("runs/r1/nodes/*/*/task.json", "truncated"), ("runs/r1/nodes/*/*/result.json", "empty")],
}
QUICK = ("journal",)
LANDINGS = {
    "whole": Landing(is_whole=True),
    "approved": Landing(is_reviewed=True),
    "whole, approved late": Landing(is_whole=True, is_reviewed=True, is_late=True),
}
LOST = [("runs/r1/journal.jsonl", "empty"), ("merge-queue/*/*/journal.jsonl", "deleted")]


@pytest.mark.parametrize("what", [pytest.param(what, marks=() if what in QUICK else pytest.mark.slow)
                                  for what in DAMAGES])
def test_a_damaged_home_is_repaired_by_a_resume(tmp_path: Path, what: str) -> None:
    Trial(tmp_path, 1, DAMAGES[what]).play()


@pytest.mark.slow
@pytest.mark.parametrize("landing", LANDINGS)
def test_the_journals_of_a_run_that_lands_otherwise_are_rebuilt(tmp_path: Path, landing: str) -> None:
    """What has to be approved is asked for again; nothing lands twice, or unseen."""
    Trial(tmp_path, 1, LOST, LANDINGS[landing]).play()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 5, 7, 10, 22])
def test_a_seed(tmp_path: Path, seed: int) -> None:
    Trial(tmp_path, seed).play()
