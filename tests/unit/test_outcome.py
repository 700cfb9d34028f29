"""Outcomes: status words, their JSON, and status files of agents."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.errors import UsageError
from garrison.pipeline.outcome import (
    FAIL,
    PARTIAL,
    RETRY,
    SKIPPED,
    STATUSES,
    SUCCESS,
    Outcome,
    check_json,
    normalize_status,
)
from garrison.records.record import from_data
from garrison.values import asdict


@pytest.mark.parametrize(("word", "status"), [
    ("ok", SUCCESS), ("Passed", SUCCESS), ("succeeded", SUCCESS), (" done ", SUCCESS), ("completed", SUCCESS),
    ("failed", FAIL), ("ERROR", FAIL), ("partial", PARTIAL), ("Partial-Success", PARTIAL), ("partial success", PARTIAL),
    ("retry", RETRY), ("skip", SKIPPED), ("yes", None), ("", None), (None, None), (3, None),
])
def test_words_are_normalized(word: object, status: str | None) -> None:
    assert normalize_status(word) == status


def test_an_outcome_normalizes_what_it_is_given() -> None:
    assert Outcome("Passed") == Outcome(SUCCESS)
    with pytest.raises(UsageError, match="'perhaps' is not a status; write success, partial_success, retry, fail"):
        Outcome("perhaps")
    assert Outcome("ok", suggested_next_ids=["a", "b"]).suggested_next_ids == ("a", "b")  # type: ignore[arg-type]
    assert Outcome("ok", suggested_next_ids="a").suggested_next_ids == ("a",)  # type: ignore[arg-type]
    assert [Outcome(word).good for word in STATUSES] == [True, True, False, False, True]
    assert [Outcome(word).failed for word in STATUSES] == [False, False, False, True, False]


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
                    max_leaves=5)


@given(st.builds(Outcome, st.sampled_from(STATUSES), st.text(max_size=5), st.lists(st.text(max_size=3)).map(tuple),
                 st.dictionaries(st.text(max_size=4), JSON, max_size=3), st.text(max_size=3), st.text(max_size=3),
                 st.text(max_size=3), st.text(max_size=3)))
def test_json_loses_nothing(outcome: Outcome) -> None:
    assert from_data(Outcome, json.loads(json.dumps(asdict(outcome)))) == outcome


@pytest.mark.parametrize("value", [{1, 2}, object(), b"x", float("nan"), {1: "x"}, (1, 2)])
def test_a_value_that_is_not_json_is_refused_with_its_key(value: object) -> None:
    with pytest.raises(UsageError, match=r"'result' .* cannot be stored as JSON"):
        check_json({"fine": {"a": [1, None, "x", 1.5]}, "result": value})
