"""Signals on disk: written once each, obeyed once each, refused with a reason."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import NewerSchema, RecordCorrupt
from garrison.records import record, signals
from garrison.records.journal import Reader, Writer, read_all
from garrison.records.names import Key
from garrison.records.signals import Signal, acknowledge, inbox_path, list_pending, post, refuse
from garrison.values import replace

AT = "2026-01-31T12:00:00.000000Z"
TARGET = Key("guardian", "p", "r1")


def signal(id_: str = "i", **changes: Any) -> Signal:
    return replace(Signal(id_, {"role": "runner", "name": "a", "incarnation": 1}, {"role": "guardian", "name": "p"},
                          "NODE_COMPLETE", "r1", AT, "a", 1, {"text": "größer"}), **changes)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_the_format_on_disk(tmp_path: Path) -> None:
    path = post(tmp_path, signal())
    assert path.parent == tmp_path / "signals/guardian-p@r1" == inbox_path(tmp_path, TARGET)
    assert path.name.startswith("20260131T120000000000-")
    assert path.name.endswith("Z-runner-guardian-NODE_COMPLETE-i.json")
    body = json.loads(path.read_text())
    assert list(body) == ["schema", "id", "source", "target", "signal_type", "run_id", "timestamp", "node_id",
                          "attempt",
                          "payload"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert signals.read(path) == signal()


@pytest.mark.usefixtures("unsynced")
def test_hundreds_of_signals_within_microseconds_are_all_there_in_order(tmp_path: Path) -> None:
    for number in range(300):
        post(tmp_path, signal(str(number), timestamp=f"2026-01-31T12:00:00.{number // 100:06d}Z"))
    waiting = list_pending(tmp_path, TARGET)
    assert [posted.signal.id for posted in waiting if posted.signal] == [str(number) for number in range(300)]
    for posted in waiting:
        acknowledge(posted.path)
    assert list_pending(tmp_path, TARGET) == []
    assert len(names(inbox_path(tmp_path, TARGET) / "taken")) == 300


def test_a_crash_between_applying_and_taking_obeys_once(tmp_path: Path) -> None:
    """Apply (with the id in the journal), then take: a successor sees the id and only takes."""
    path = tmp_path / "journal.jsonl"
    post(tmp_path, signal("one"))
    post(tmp_path, signal("two"))
    obeyed: list[str] = []

    def live(die_after: int | None) -> None:
        journal = Writer(path, "guardian-p@r1")
        applied = {entry.data["id"] for entry in journal.entries}
        for posted in list_pending(tmp_path, TARGET):
            if posted.signal.id not in applied:
                journal.append("signal", {"id": posted.signal.id}, AT)
                obeyed.append(posted.signal.id)
            if die_after is not None and len(obeyed) == die_after:
                return
            acknowledge(posted.path)

    live(1)
    assert len(list_pending(tmp_path, TARGET)) == 2
    live(2)
    live(None)
    live(None)
    assert obeyed == ["one", "two"] == [entry.data["id"] for entry in read_all(path)]
    assert list_pending(tmp_path, TARGET) == [] and len(names(inbox_path(tmp_path, TARGET) / "taken")) == 2
    assert len(Reader(path).read()) == 2


def test_refused_signals_keep_their_reason_and_taking_or_refusing_a_missing_one_does_nothing(tmp_path: Path) -> None:
    gone = post(tmp_path, signal())
    acknowledge(gone)
    acknowledge(gone)
    refuse(gone, "again")
    assert names(gone.parent / "taken") == [gone.name] and not (gone.parent / "refused" / gone.name).exists()
    (gone.parent / "refused" / f"{gone.name}.reason").unlink()
    path = post(tmp_path, signal())
    refuse(path, "it is of attempt 1 of a, the current one is 2")
    assert list_pending(tmp_path, TARGET) == []
    folder = path.parent / "refused"
    assert names(folder) == [path.name, f"{path.name}.reason"]
    assert (folder / f"{path.name}.reason").read_text() == "it is of attempt 1 of a, the current one is 2\n"
    assert signals.read(folder / path.name) == signal()


UNREADABLE = {
    "empty": b"", "half": record.encode(signal())[:60], "list": b"[]", "binary": b"\xff\xfe",
    "type": record.encode(signal()).replace(b"NODE_COMPLETE", b"HELLO"),
    "no source name": record.encode(signal(source={"role": "runner"})),
    "no target role": record.encode(signal(target={"name": "p"})),
    "foreign role": record.encode(signal(source={"role": "boss", "name": "a"})),
    "foreign name": record.encode(signal(target={"role": "guardian", "name": "../p"})),
    "names of other types": record.encode(signal(source={"role": ["runner"], "name": 7})),
    "foreign run": record.encode(signal(run_id="R/1")),
    "life in words": record.encode(signal(source={"role": "runner", "name": "a", "incarnation": "two"})),
    "life in a list": record.encode(signal(source={"role": "runner", "name": "a", "incarnation": [1]})),
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_signal_is_reported_and_the_others_are_read(tmp_path: Path, data: bytes) -> None:
    post(tmp_path, signal("before"))
    bad = inbox_path(tmp_path, TARGET) / "20260131T120000000000-000000Z-bad.json"
    bad.write_bytes(data)
    post(tmp_path, signal("after", timestamp="2026-01-31T12:00:01.000000Z"))
    with pytest.raises(RecordCorrupt, match=bad.name):
        signals.read(bad)
    found = {posted.path.name: posted for posted in list_pending(tmp_path, TARGET)}
    assert len(found) == 3
    told = found[bad.name]
    assert told.signal is None and bad.name in told.error and "\n" not in told.error
    refuse(bad, told.error)
    assert [posted.signal.id for posted in list_pending(tmp_path, TARGET) if posted.signal] == ["before", "after"]
    assert (bad.parent / "refused" / bad.name).read_bytes() == data


def test_a_signal_of_a_newer_version_is_reported_as_such(tmp_path: Path) -> None:
    path = post(tmp_path, signal())
    path.write_bytes(path.read_bytes().replace(b'"schema": 1', b'"schema": 9'))
    with pytest.raises(NewerSchema):
        signals.read(path)
    (told,) = list_pending(tmp_path, TARGET)
    assert told.signal is None and "schema 9" in told.error


def test_files_that_are_no_signals_are_skipped_and_reading_makes_no_inbox(tmp_path: Path) -> None:
    assert list_pending(tmp_path, TARGET) == []
    assert not inbox_path(tmp_path, TARGET).exists()
    path = post(tmp_path, signal())
    (path.parent / f".{path.name}.7-0.tmp").write_text('{"half')
    (path.parent / "README").write_text("x")
    (path.parent / ".hidden.json").write_text("x")
    acknowledge(path)
    assert list_pending(tmp_path, TARGET) == []


def test_a_numbered_signal_posted_again_is_the_same_file(tmp_path: Path) -> None:
    first = post(tmp_path, signal(), number=12)
    assert post(tmp_path, signal(), number=12) == first
    assert first.name == "20260131T120000000000-000012Z-runner-guardian-NODE_COMPLETE-i.json"
    assert len(list_pending(tmp_path, TARGET)) == 1
    assert post(tmp_path, signal(), number=13) != first
    acknowledge(first)
    assert post(tmp_path, signal(), number=12) == first.parent / "taken" / first.name
    assert [posted.path.name[22:28] for posted in list_pending(tmp_path, TARGET)] == ["000013"]
    assert len({post(tmp_path, signal()) for _ in range(5)}) == 5, "without a number each saying is a file"
