"""Growth that a soak reports."""

from __future__ import annotations

import random

import pytest

import soak
from garrison.pipeline.parser import parse
from garrison.values import replace

FIGURES = soak.Figures(5.0, 10, 20, 50, 100, 20_000, 500, 3, 200, 900, 0, 0, 0, 0, 0, 250)


def test_only_figures_of_the_history_may_grow() -> None:
    assert soak.grown(FIGURES, replace(FIGURES, minute=60.0, runs=200)) == []
    later = replace(FIGURES, landed=120, journal_bytes=20_000 + 400_000, git_kilobytes=900 + 2_000)
    assert soak.grown(FIGURES, later) == []
    assert soak.grown(FIGURES, replace(later, landed=20))


@pytest.mark.parametrize("name", ["files", "kilobytes", "refs", "git_files", "trees", "processes", "temporary",
                                  "sockets", "journal_bytes", "git_kilobytes"])
def test_each_figure_that_grows_is_named(name: str) -> None:
    [line] = soak.grown(FIGURES, replace(FIGURES, **{name: getattr(FIGURES, name) + 1_000_000}))
    assert line.startswith(f"{name} grew from ")


def test_the_graphs_of_a_soak_can_be_parsed() -> None:
    dice = random.Random(1)
    for number in range(40):
        assert parse(soak.crew(dice, f"s{number}")).nodes
        assert parse(soak.decides(dice)).nodes
