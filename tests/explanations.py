"""Check that a run explains itself: a recorded decision behind every restart, the same decision when replayed, and
promises that the independent checker finds kept."""

from __future__ import annotations

import json
from pathlib import Path

from garrison.merge.gate import attestations_of
from garrison.testing.checker import CheckedRepository, check, read_attestations, read_events
from garrison.values import asdict
from garrison.views.event_log import EventLog
from garrison.views.explain import explain

ORDERED = ("attempt ", "to stop what is still alive")
"""Reasons of starts that no death caused."""


def check_explanations(home: Path, run: str) -> None:
    """Fail if a restart has no rule and observation, or a replayed decision differs."""
    lines = explain(EventLog(home, run).read(), frozenset())
    different = [line for line in lines if line.same is False]
    assert not different, different
    for line in lines:
        if line.kind == "spawn" and line.text != "started" and not any(
                word in line.text for word in ORDERED):
            assert line.rule, line
            assert line.observed or line.rule == "first start", line  # a lost record has no observation
    deaths = [line for line in lines if line.kind == "death"]
    assert all(line.rule and line.observed for line in deaths), deaths


def check_promises(home: Path, run: str, repository: Path) -> None:
    """Fail if the checker finds a broken promise, or if the gate runs attested nothing though there were some."""
    history = read_events(json.dumps(asdict(event)) for event in EventLog(home, run).read())
    attestations = read_attestations(map(attestations_of, (home / "merge-queue").glob("*/*")))
    assert attestations.runs or not list(history.of("test")), "no gate run attested what it tested"
    found = check(history, CheckedRepository(repository), attestations)
    assert not found, "\n".join(map(str, found))
