"""Which entry of the queue a review shows and judges: never an attempt that the person has not seen."""

from __future__ import annotations

import pytest

from garrison.errors import NotFound, Refused
from garrison.merge.entry import MergeEntry
from garrison.views.changes import choose_judged, choose_shown
from garrison.views.waits import show_review


def entry(attempt: int, oid: str, status: str = "held", *, approval: bool = True) -> MergeEntry:
    """An entry of node `a`."""
    return MergeEntry(f"a-{attempt}-{oid[:8]}", "r1", "a", attempt, "garrison/r1/a", oid * 8, "main", status=status,
                      approval=approval)


FIRST, SECOND = entry(1, "aaaaa", "superseded"), entry(2, "bbbbb")


def test_the_latest_attempt_is_shown_or_the_one_asked_for() -> None:
    assert choose_shown([FIRST, SECOND]) == SECOND
    assert choose_shown([FIRST, SECOND], 1) == FIRST
    assert choose_shown([FIRST, SECOND], 1, "AAAAA") == FIRST
    there = r"there are attempt 1 \(aaaaaaaaaa, withdrawn\), attempt 2 \(bbbbbbbbbb, waiting for approval\)"
    with pytest.raises(NotFound, match=f"attempt 3 of a has no work in the merge queue; {there}"):
        choose_shown([FIRST, SECOND], 3)
    with pytest.raises(NotFound, match="attempt 1 of a has no work at commit bbb in the merge queue"):
        choose_shown([FIRST, SECOND], 1, "bbb")


def test_an_attempt_is_judged_without_its_number_only_if_no_other_ever_waited() -> None:
    assert choose_judged([SECOND]) == SECOND
    assert choose_judged([entry(1, "aaaaa", "conflict", approval=False), SECOND]) == SECOND
    assert choose_judged([FIRST, SECOND], 2) == SECOND
    assert choose_judged([FIRST, SECOND], 1) == FIRST, "the queue refuses it, since it is final"
    with pytest.raises(Refused, match=r"say which attempt of a you have seen: --attempt N; there are attempt 1 \("):
        choose_judged([FIRST, SECOND])


def test_another_commit_of_the_same_attempt_is_not_judged_for_the_one_that_was_seen() -> None:
    again = entry(2, "ccccc")
    with pytest.raises(NotFound, match="attempt 2 of a has no work at commit ddddd"):
        choose_judged([SECOND, again], 2, "ddddd")
    with pytest.raises(Refused, match="say which attempt"):
        choose_judged([SECOND, again])
    assert choose_judged([SECOND, again], 2, "bbbbb") == SECOND


def test_the_page_names_the_attempt_and_commit_that_its_buttons_judge() -> None:
    shown = show_review(SECOND)
    assert shown.gate == "review:a-2-bbbbb" and "attempt 2 (bbbbbbbbbb)" in shown.question
