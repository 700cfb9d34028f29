"""Parts of an orchestrator: the pace of retries, and the commit message for uncommitted work."""

from __future__ import annotations

import pytest

from garrison.node.orchestrator import LONGEST_PAUSE, MAX_SUBJECT, SHARE, RetryPace, commit_message
from garrison.records.run import Task


@pytest.mark.parametrize("takes", [0.01, 0.4, 5.0])
def test_a_flood_takes_a_share_of_the_time_and_no_more(takes: float) -> None:
    pace, now, spent = RetryPace(), 100.0, 0.0
    while now < 1100.0:
        if pace.allows(now):
            assert pace.wake_at() is None
            spent += takes
            pace.record(now, now + takes)
            now += takes
        else:
            assert pace.wake_at() is not None
            now += 0.005
    assert SHARE * 0.8 < spent / 1000.0 <= SHARE * 1.1


def test_a_long_retry_is_repeated_after_the_longest_pause() -> None:
    pace = RetryPace()
    assert pace.allows(0.0)
    pace.record(0.0, 300.0)
    assert not pace.allows(300.0 + LONGEST_PAUSE - 0.1)
    assert pace.wake_at() == 300.0 + LONGEST_PAUSE
    assert pace.allows(300.0 + LONGEST_PAUSE)
    assert pace.wake_at() is None


# ---- the commit message for uncommitted work


@pytest.mark.parametrize(("label", "subject"), [
    ("Say hello", "Say hello"), ("", "greet"), (" \n\n Say hello \nand more", "Say hello"),
    ("x" * 72, "x" * 72), ("y" * 73, "y" * 71 + "…"), ("# no comment", "# no comment")])
def test_the_subject_is_the_nodes_label(label: str, subject: str) -> None:
    first, blank, body = commit_message(Task("r1", "greet", 2, label=label)).split("\n")
    assert (first, blank) == (subject, "")
    assert len(first) <= MAX_SUBJECT
    assert body == "What greet left uncommitted (run r1, attempt 2)."
