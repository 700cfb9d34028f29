"""Details of a node: its attempts in the words of every view, and the evidence for its work."""

from __future__ import annotations

from pathlib import Path

from garrison.records.run import RunFiles, Task, save
from garrison.views.changes import read_evidence
from garrison.views.event_log import GUARDIAN, LoggedEvent
from garrison.web.node import read_attempt


def test_an_attempt_without_a_change_did_not_land(tmp_path: Path) -> None:
    def status_of(**data: str) -> str:
        event = LoggedEvent("2026-01-01T00:00:00Z", "r1", GUARDIAN, "", 1, "node", "a", "",
                            {"node": "a", "status": "validated", "attempt": 1, **data})
        return read_attempt(RunFiles(tmp_path, "r1"), "a", [event], 1).status

    assert (status_of(), status_of(landing="no change")) == ("landed", "no change")


def test_a_blank_reason_for_rework_is_no_evidence(tmp_path: Path) -> None:
    save(tmp_path / "task.json", Task("r1", "a", 2, rework_reason=" \n"))
    assert read_evidence(tmp_path, "r1", "a", 2) == []
