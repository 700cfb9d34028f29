"""Messages of a person to a session: which of them it has got, through lost sessions, other agents and old records."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.agents.conversation import messages
from garrison.agents.conversation.files import AttemptFiles
from garrison.records.failover import Failover, add_failover, keep_earlier_sessions, read_failovers
from garrison.records.json_io import write_json


@pytest.fixture
def files(tmp_path: Path) -> AttemptFiles:
    one = AttemptFiles(tmp_path)
    one.make()
    write_json(one.session, {"id": "s1"})
    return one


def tell(files: AttemptFiles, text: str) -> None:
    messages.post(files, text, "2026-11-23T10:00:00Z")


def test_each_message_is_delivered_once_to_a_session(files: AttemptFiles) -> None:
    assert messages.pending(files) is None and messages.take(files) == ""
    tell(files, "One.")
    tell(files, "Two.")
    assert messages.take(files) == f"{messages.HEADING}\n\nOne.\n\nTwo."
    assert messages.take(files) == ""
    tell(files, "Three.")
    assert messages.take(files) == f"{messages.HEADING}\n\nThree."


def test_what_was_not_confirmed_is_pending_still(files: AttemptFiles) -> None:
    tell(files, "One.")
    first = messages.pending(files)
    assert first is not None and messages.pending(files) == first
    tell(files, "Two.")
    messages.confirm(files, first)
    assert messages.take(files) == f"{messages.HEADING}\n\nTwo."


def test_a_new_session_is_told_everything_also_that_of_another_agent(files: AttemptFiles) -> None:
    tell(files, "One.")
    messages.take(files)
    write_json(files.session, {"id": "s3"})
    assert "One." in messages.take(files) and messages.take(files) == ""
    add_failover(files.attempt, Failover(1.0, "a", "b"))
    keep_earlier_sessions(files.attempt, read_failovers(files.attempt))
    files.make()
    write_json(files.session, {"id": "s2"})
    tell(files, "Two.")
    assert messages.take(files) == f"{messages.HEADING}\n\nOne.\n\nTwo."


def test_a_count_without_a_session_is_of_the_present_one(files: AttemptFiles) -> None:
    tell(files, "One.")
    write_json(files.delivered, {"count": 1})
    assert messages.pending(files) is None, "as the edition before recorded it"
