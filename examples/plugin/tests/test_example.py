"""Tests of the example, as the author of a package would write them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from garrison_example.agents import make_recipe
from garrison_example.handlers import count_words


def test_a_recipe_needs_steps() -> None:
    """The profile is checked."""
    assert make_recipe("cook", {"steps": ["make"]}).name == "cook"
    for wrong in ({}, {"steps": []}, {"steps": ["make"], "heat": 3}):
        with pytest.raises(ValueError, match="steps"):
            make_recipe("cook", wrong)


def test_words_are_counted(tmp_path: Path) -> None:
    """The handler writes what it counts."""
    (tmp_path / "a.md").write_text("one two three")
    call = SimpleNamespace(attrs={"file": "a.md"}, run=SimpleNamespace(tree=tmp_path))
    assert count_words(call)["context_updates"] == {"example.words": 3}
    assert (tmp_path / "a.words").read_text() == "3\n"
