"""Random texts: the parser returns a graph or raises one DialectError, in linear time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialect_fuzzer import FRAGMENTS, LONG, check, cost, damaged, fuzz, soup
from garrison.pipeline.grammar import explain_dot

TEXTS = st.text(max_size=30) | st.text(alphabet='digraph {}[]="\\->;,+ab\n/*#', max_size=40)
SOUPS = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(" ".join)


@settings(database=None, deadline=None, max_examples=60)
@given(TEXTS | SOUPS | SOUPS.map("digraph {{ {} }}".format) | SOUPS.map("digraph {{ a [{}] }}".format))
def test_any_text(text: str) -> None:
    check(text)


def test_soups_and_damaged_graphs() -> None:
    random_ = random.Random(6)
    graphs = [check(make(random_)) for make in (soup, damaged) for _ in range(100)]
    assert 5 < sum(graphs) < 195


@pytest.mark.parametrize("fragment", LONG)
def test_the_cost_grows_with_the_text(fragment: str) -> None:
    assert cost(fragment, 2_000) < 20 * 10 * max(cost(fragment, 200), 0.001)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_minute_of_texts() -> None:
    texts, graphs = fuzz(60, seed=random.SystemRandom().randrange(2**32))
    assert texts > 50
    assert graphs > 5


def test_an_unexplained_error_still_has_its_position() -> None:
    from lark import UnexpectedCharacters

    error = UnexpectedCharacters("ab\ncd", 4, 2, 2)
    assert explain_dot("ab\ncd", error)[0] == 4
