"""A run's events: which records of a merge queue that several runs share are about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.records.journal import Entry, encode_line
from garrison.views.event_log import EventLog

RECORDS = (
    ("enq", {"entry": "x", "run": "other", "node": "n"}),
    ("enq", {"entry": "a", "run": "mine", "node": "first"}),
    ("verdict", {"entry": "x", "entries": ["x"], "result": "green"}),
    ("verdict", {"entry": "x", "entries": ["x", "a"], "result": "green"}),
    ("landing", {"entry": "x", "entries": ["x", "a"], "new": "1"}),
    ("landed", {"entry": "x"}),
    ("landed", {"entry": "a"}),
)


@pytest.mark.parametrize(("run", "kinds"), [
    ("mine", ["enq", "verdict", "landing", "landed"]),
    ("other", ["enq", "verdict", "verdict", "landing", "landed"]),
])
def test_a_record_about_a_batch_belongs_to_each_run_that_has_an_entry_in_it(tmp_path: Path, run: str,
                                                                            kinds: list[str]) -> None:
    folder = tmp_path / "merge-queue/repo/main"
    folder.mkdir(parents=True)
    lines = [encode_line(Entry(seq, 1, "p@r#1", f"2026-01-01T00:00:0{seq}Z", kind, data))
             for seq, (kind, data) in enumerate(RECORDS, 1)]
    (folder / "journal.jsonl").write_bytes(b"".join(lines))
    events = EventLog(tmp_path, run).read()
    assert [event.kind for event in events] == kinds
    assert {event.node for event in events} == {"first" if run == "mine" else "n"}
