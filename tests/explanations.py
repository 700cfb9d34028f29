"""Whether a run explains itself: each later life has a decision that started it, and each decision replays the same."""

from __future__ import annotations

from pathlib import Path

from garrison.views.event_log import EventLog
from garrison.views.explain import explain

ORDERED = ("attempt ", "to stop what still lives")
"""Starts that follow from no death, but from what is to be done."""


def check_explained(home: Path, run: str) -> None:
    """Every respawn stands in the story with what was seen and the rule; every decision, replayed, is the same."""
    lines = explain(EventLog(home, run).read(), frozenset())
    other = [line for line in lines if line.same is False]
    assert not other, other
    for line in lines:
        if line.kind == "spawn" and line.text != "started" and not any(
                word in line.text for word in ORDERED):
            assert line.rule, line
            assert line.observed or line.rule == "no life yet", line  # its record was lost, and with it what was seen
    deaths = [line for line in lines if line.kind == "death"]
    assert all(line.rule and line.observed for line in deaths), deaths
