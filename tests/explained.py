"""Whether a run explains itself: each later life has a decision that started it, and each decision replays the same."""

from __future__ import annotations

from pathlib import Path

from garrison.cli.why_story import story
from garrison.layers.chronicle import Chronicle


def check_explained(home: Path, run: str) -> None:
    """Every respawn stands in the story with what was seen and the rule; every decision, replayed, is the same."""
    lines = story(Chronicle(home, run).read(), frozenset())
    other = [line for line in lines if line.same is False]
    assert not other, other
    for line in lines:
        if line.kind == "spawn" and not line.text.startswith("life 1 started") and "attempt " not in line.text:
            assert line.rule, line
            assert line.observed, line
    deaths = [line for line in lines if line.kind == "death"]
    assert all(line.rule and line.observed for line in deaths), deaths
