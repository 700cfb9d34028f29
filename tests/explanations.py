"""Check that a run explains itself: a recorded decision behind every restart, and the same decision when replayed."""

from __future__ import annotations

from pathlib import Path

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
