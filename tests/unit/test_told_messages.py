"""Messages of the user to a session: delivered once, through lost sessions, other agents and old records."""

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


def test_each_message_is_delivered_once_to_a_session_unless_unconfirmed(files: AttemptFiles) -> None:
    assert messages.pending(files) is None and messages.take(files) == ""
    tell(files, "One.")
    tell(files, "Two.")
    assert messages.take(files) == f"{messages.HEADING}\n\nOne.\n\nTwo."
    assert messages.take(files) == ""
    tell(files, "Three.")
    third = messages.pending(files)
    assert third is not None and messages.pending(files) == third
    tell(files, "Four.")
    messages.confirm(files, third)
    assert messages.take(files) == f"{messages.HEADING}\n\nFour."


def test_a_new_session_gets_all_messages_even_after_a_failover(files: AttemptFiles) -> None:
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


def test_a_count_without_a_session_applies_to_the_current_one(files: AttemptFiles) -> None:
    tell(files, "One.")
    write_json(files.delivered, {"count": 1})
    assert messages.pending(files) is None, "as the previous version recorded it"
