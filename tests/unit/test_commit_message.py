"""The commit message for what an agent left uncommitted."""

from __future__ import annotations

import pytest

from garrison.node.orchestrator import MAX_SUBJECT, commit_message
from garrison.records.run import Task


@pytest.mark.parametrize(("label", "subject"), [
    ("Say hello", "Say hello"), ("", "greet"), (" \n\n Say hello \nand more", "Say hello"),
    ("x" * 72, "x" * 72), ("y" * 73, "y" * 71 + "…"), ("# no comment", "# no comment")])
def test_the_subject_is_the_nodes_label(label: str, subject: str) -> None:
    first, blank, body = commit_message(Task("r1", "greet", 2, label=label)).split("\n")
    assert (first, blank) == (subject, "")
    assert len(first) <= MAX_SUBJECT
    assert body == "What greet left uncommitted (run r1, attempt 2)."
