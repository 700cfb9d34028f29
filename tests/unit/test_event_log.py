"""Events of a run: its records in a merge queue that several runs share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from garrison.records import journal, run
from garrison.records.journal import Entry, encode_line
from garrison.records.run import Launch, RunFiles
from garrison.system.clock import from_iso, iso
from garrison.views.event_log import CLOCK_MARGIN, EventLog

RECORDS = (
    ("enq", {"entry": "x", "run": "other", "node": "n"}),
    ("enq", {"entry": "a", "run": "mine", "node": "first"}),
    ("verdict", {"entry": "x", "entries": ["x"], "result": "green"}),
    ("verdict", {"entry": "x", "entries": ["x", "a"], "result": "green"}),
    ("landing", {"entry": "x", "entries": ["x", "a"], "new": "1"}),
    ("landed", {"entry": "x"}),
    ("landed", {"entry": "a"}),
)


def write_records(home: Path, seconds: Sequence[int]) -> None:
    """Write the records into the journal of a merge queue, at these seconds of a minute."""
    folder = home / "merge-queue/repo/main"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_bytes(b"".join(
        encode_line(Entry(seq, 1, "p@r#1", f"2026-01-01T00:00:{second:02}Z", kind, data))
        for seq, (second, (kind, data)) in enumerate(zip(seconds, RECORDS, strict=True), 1)))


@pytest.mark.parametrize(("run", "kinds"), [
    ("mine", ["enq", "verdict", "landing", "landed"]),
    ("other", ["enq", "verdict", "verdict", "landing", "landed"]),
])
def test_a_record_about_a_batch_belongs_to_each_run_that_has_an_entry_in_it(tmp_path: Path, run: str,
                                                                            kinds: list[str]) -> None:
    write_records(tmp_path, range(1, 8))
    events = EventLog(tmp_path, run).read()
    assert [event.kind for event in events] == kinds
    assert {event.node for event in events} == {"first" if run == "mine" else "n"}


def test_each_journal_keeps_its_order_although_the_clock_was_set_back(tmp_path: Path) -> None:
    """Seen: a landing came before its entry, and `verify` reported a sound run."""
    write_records(tmp_path, [20, 21, 22, 12, 13, 14, 15])
    events = EventLog(tmp_path, "other").read()
    assert [event.seq for event in events] == sorted(event.seq for event in events) and len(events) == 5


START = "2026-01-01T00:00:00.000000Z"


class SharedQueue:
    """Merge queue whose journal a test writes, as its processors do."""

    def __init__(self, home: Path) -> None:
        self.path = home / "merge-queue/repo/main/journal.jsonl"
        self.path.parent.mkdir(parents=True)
        self.seq = 0

    def append(self, kind: str = "enq", run: str = "mine") -> None:
        self.seq += 1
        data = {"entry": f"e{self.seq}", "run": run, "node": f"n{self.seq}"}
        journal.append_shared(self.path, "p@r#1", kind, data, iso(from_iso(START) + self.seq))

    def fill(self, parts: int) -> None:
        """Write two records and archive them, several times."""
        for _ in range(parts):
            self.append()
            self.append()
            self.compact()

    def compact(self) -> None:
        journal.archive(self.path, self.seq)
        journal.replace_shared(self.path, Entry(self.seq, 1, "p@r#1", iso(from_iso(START) + self.seq), "snapshot", {}))

    def part(self, number: int) -> Path:
        return self.path.with_name(f"journal-{number}.jsonl")


@pytest.fixture
def queue(tmp_path: Path) -> SharedQueue:
    return SharedQueue(tmp_path)


def launch(home: Path, after: float) -> None:
    """Record that the run was launched `after` seconds after START."""
    files = RunFiles(home, "mine")
    files.root.mkdir(parents=True)
    run.save(files.launch, Launch("mine", "", "", "", iso(from_iso(START) + after), ""))


def numbers(log: EventLog) -> list[int]:
    return [event.seq for event in log.read()]


def test_archived_records_are_read(tmp_path: Path, queue: SharedQueue) -> None:
    queue.fill(3)
    queue.append()
    log = EventLog(tmp_path, "mine")
    assert numbers(log) == [1, 2, 3, 4, 5, 6, 7]
    assert not log.gaps
    assert not log.problems


def test_a_follower_misses_nothing_that_was_archived_between_two_reads(tmp_path: Path, queue: SharedQueue) -> None:
    log = EventLog(tmp_path, "mine")
    queue.append()
    assert numbers(log) == [1]
    queue.append()
    queue.compact()
    queue.append()
    queue.compact()
    assert numbers(log) == [2, 3]
    queue.append()
    assert numbers(log) == [4]
    journal.archive(queue.path, queue.seq)  # its archiver died: the part is not read twice
    queue.append()
    assert numbers(log) == [5] and not log.gaps
    again = EventLog(tmp_path, "mine")
    assert numbers(again) == [1, 2, 3, 4, 5] and not again.gaps


@pytest.mark.parametrize(("removed", "launched_after", "gap"), [
    ([2], 0, "records 1 to 2 of "), ([4], 0, "records 3 to 4 of "), ([2, 4], 0, "records 1 to 4 of "),
    ([2], 10, None), ([4], 3, "records 3 to 4 of "), ([2], 3.5, None),
])
def test_missing_records_are_reported_if_the_run_may_have_had_them(tmp_path: Path, queue: SharedQueue,
                                                                   removed: list[int], launched_after: float,
                                                                   gap: str | None) -> None:
    launch(tmp_path, launched_after)
    queue.fill(2)
    queue.append()
    for number in removed:
        queue.part(number).unlink()
    log = EventLog(tmp_path, "mine")
    assert numbers(log) == [seq for seq in range(1, 6) if not any(number - 1 <= seq <= number for number in removed)]
    assert len(log.gaps) == (gap is not None)
    assert gap is None or log.gaps[0].startswith(gap), log.gaps


def test_parts_that_are_older_than_the_run_are_not_read(tmp_path: Path, queue: SharedQueue) -> None:
    launch(tmp_path, 10 * CLOCK_MARGIN)
    for days in (1, 9.5):
        queue.append("enq", "other")
        queue.compact()
        written = from_iso(START) + days * CLOCK_MARGIN
        if days == 1:
            queue.part(queue.seq).write_bytes(b"a reader would report damage\n")
        os.utime(queue.part(queue.seq), (written, written))
    queue.append()
    log = EventLog(tmp_path, "mine")
    assert numbers(log) == [3]
    assert not log.problems


@pytest.mark.parametrize(("missing", "snapshots"), [("", [6]), ("removed", [2, 6]), ("older than the run", [2, 6])])
def test_a_snapshot_replaces_what_is_not_read_before_it(tmp_path: Path, queue: SharedQueue, missing: str,
                                                        snapshots: list[int]) -> None:
    """Seen: `record 1002 of merge-queue cannot be shown: no merge entry …`, for an entry of another run."""
    launch(tmp_path, 10 * CLOCK_MARGIN)
    queue.fill(3)
    for number in (2, 4):
        written = from_iso(START) + (1 if missing == "older than the run" and number == 2 else 10) * CLOCK_MARGIN
        os.utime(queue.part(number), (written, written))
    if missing == "removed":
        queue.part(2).unlink()
    read = [record.entry for record in EventLog(tmp_path, "mine").records()]
    assert [entry.seq for entry in read if entry.kind == "snapshot"] == snapshots
    assert [entry.seq for entry in read if entry.kind != "snapshot"] == list(range(3 if missing else 1, 7))


def test_a_damaged_part_is_reported_and_hides_nothing_else(tmp_path: Path, queue: SharedQueue) -> None:
    launch(tmp_path, 0)
    for _ in range(2):
        queue.append()
        queue.compact()
    queue.part(1).write_bytes(b"no record\n")
    log = EventLog(tmp_path, "mine")
    assert numbers(log) == [2]
    assert any("journal-1.jsonl" in problem for problem in log.problems)
    assert log.gaps == [f"records 1 to 1 of {queue.path} are gone"]
