"""Journals: torn tails are cut, damage is refused, nothing is lost at kill -9 or on a full disk."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
import zlib
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from garrison.errors import Fenced, NewerSchema, RecordCorrupt, RecordUnreadable
from garrison.records import atomic
from garrison.records.journal import (
    BLOB_BYTES,
    Entry,
    Reader,
    Verifier,
    Writer,
    append_shared,
    encode_line,
    read_all,
    read_last,
)
from support import DEADLINE, exit_codes, fork

AT = "2026-01-31T12:00:00.000000Z"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs/r1/journal.jsonl"


def filled(path: Path, count: int) -> bytes:
    """Write and close a journal of that many records; return its bytes."""
    writer = Writer(path, "t#1")
    for number in range(count):
        writer.append("note", {"number": number, "t": "ü"}, "at")
    writer.close()
    return path.read_bytes()


def numbers(entries: list[Entry]) -> list[int]:
    return [entry.data["number"] for entry in entries]


def test_entries_are_read_back_as_written(path: Path) -> None:
    writer = Writer(path, "guardian-p@r1#1")
    first = writer.append("run", {"status": "running"}, AT, sync=True)
    second = writer.append("node", {"node": "a", "list": [1, {"x": None}]}, AT)
    assert (first.seq, second.seq, first.epoch, first.token) == (1, 2, 1, "guardian-p@r1#1")
    assert read_all(path) == [first, second]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(path.read_text().splitlines()) == 2


def test_an_absent_journal_is_empty_and_stays_absent(path: Path) -> None:
    assert read_all(path) == [] == Reader(path).read()
    assert not path.parent.exists()


def test_the_epoch_grows_with_each_writer_and_the_numbers_continue(path: Path) -> None:
    for expected in (1, 2, 3):
        writer = Writer(path, f"t#{expected}")
        assert writer.epoch == expected and len(writer.entries) == writer.seq == (expected - 1) * 2
        writer.append("note", {}, AT)
        assert writer.append("note", {}, AT).epoch == expected
        writer.close()
    assert [(entry.seq, entry.epoch) for entry in read_all(path)] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3)]


@pytest.mark.usefixtures("unsynced")
def test_every_prefix_of_a_journal_is_a_torn_tail(path: Path) -> None:
    """A crash may stop a write at any byte: readers pass the torn part over, the next writer, of its own journal or of
    a shared one, cuts it and continues."""
    whole = filled(path, 2)
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        lines = whole[:length].count(b"\n")
        assert numbers(read_all(path)) == list(range(lines))
        assert path.read_bytes() == whole[:length], "a reader repaired"
        writer = Writer(path, "t#2")
        assert numbers(writer.entries) == list(range(lines))
        assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:lines])
        assert writer.append("note", {"number": 9}, AT).seq == lines + 1
        writer.close()
        assert numbers(read_all(path)) == [*range(lines), 9]
        path.write_bytes(whole[:length])
        assert append_shared(path, "t", "note", {"number": 7}, AT).seq == lines + 1
        assert numbers(read_all(path)) == [*range(lines), 7]


def test_a_torn_tail_longer_than_a_block_is_cut(path: Path) -> None:
    whole = filled(path, 2)
    torn = b'{"seq":3,"epoch":' + b"x" * 200_000
    for tail in (torn, b"\0" * 200_000):
        path.write_bytes(whole + tail)
        Writer(path, "t#2").close()
        assert path.read_bytes() == whole
    path.write_bytes(torn)
    Writer(path, "t#3").close()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("tail", [b"x", b"\0\1\2\3", b"[1]", b"[" * 200_000, b'{"schema": 1}'])
def test_a_tail_that_holds_no_records_is_kept_and_named(path: Path, tail: bytes) -> None:
    """A foreign file without a newline must not pass for the torn first record of an empty journal."""
    for before in (filled(path, 2), b""):
        path.write_bytes(before + tail)
        for use in (lambda: read_all(path), lambda: Writer(path, "t#2"),
                    lambda: append_shared(path, "t", "note", {}, AT)):
            with pytest.raises(RecordCorrupt, match=f"bytes at {len(before)} are not records") as refused:
                use()
            assert str(path) in str(refused.value)
        assert path.read_bytes() == before + tail


def test_the_last_record_is_read_by_itself_or_not_at_all(path: Path) -> None:
    assert read_last(path) is None
    whole = filled(path, 3)
    assert read_last(path) == read_all(path)[-1]
    last = len(whole.splitlines(keepends=True)[-1])
    for size in range(len(whole) - last + 1, len(whole)):
        path.write_bytes(whole[:size])
        assert read_last(path) is None
    for damaged in (whole[:-20] + b"x" + whole[-19:], whole + b"\0" * 64, whole + b"{}\n"):
        path.write_bytes(damaged)
        assert read_last(path) is None


def test_a_newer_garrisons_journal_and_a_path_that_is_no_file_are_named_and_kept(path: Path) -> None:
    uses = (lambda: read_all(path), lambda: Writer(path, "t#2"), lambda: append_shared(path, "t", "note", {}, AT))
    whole = filled(path, 2)
    body = b'{"seq":3,"epoch":1,"schema":2,"token":"t#1","at":"' + AT.encode() + b'","kind":"note","data":{}}'
    path.write_bytes(whole + body[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(body))
    for use in uses:
        with pytest.raises(NewerSchema, match=r"schema 2.*use the newer garrison"):
            use()
    path.unlink()
    path.mkdir()
    for use in uses:
        with pytest.raises(RecordUnreadable, match=r"journal\.jsonl: is a directory; it was left in place"):
            use()
    assert path.is_dir()


def test_damage_before_the_tail_is_refused_with_its_place(path: Path) -> None:
    whole = filled(path, 4)
    starts = [0]
    for line in whole.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    chosen = random.Random(1)
    for place in sorted(chosen.sample(range(starts[3] - 1), 60)):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        line = max(start for start in starts if start <= place)
        for attempt in (lambda: read_all(path), lambda: Writer(path, "t#2")):
            with pytest.raises(RecordCorrupt, match=rf"journal\.jsonl: damaged at byte {line} "):
                attempt()
        assert path.read_bytes() == damaged


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_missing_record_is_noticed(path: Path, gone: int) -> None:
    lines = filled(path, 4).splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:gone] + lines[gone + 1:]))
    with pytest.raises(RecordCorrupt, match=f"record {gone + 1} is missing"):
        read_all(path)


def test_a_repeated_record_counts_once(path: Path) -> None:
    lines = filled(path, 3).splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[1], lines[2]]))
    assert numbers(read_all(path)) == [0, 1, 2]


@pytest.mark.parametrize("how", ["replaced", "removed", "moved"])
def test_a_replaced_journal_stops_its_writer(path: Path, how: str) -> None:
    filled(path, 2)
    writer = Writer(path, "t#2")
    if how == "replaced":
        atomic.write(path, b"")
    elif how == "removed":
        path.unlink()
    else:
        path.rename(path.with_name("elsewhere"))
    with pytest.raises(Fenced, match="was removed or replaced"):
        writer.append("note", {}, AT)
    writer.close()
    assert not path.exists() or path.read_bytes() == b""


def test_a_second_writer_stops_the_first(path: Path) -> None:
    """A life that was stopped (SIGSTOP) and comes back must not append below its successor's epoch."""
    zombie = Writer(path, "t#1")
    zombie.append("note", {"number": 0}, AT)
    successor = Writer(path, "t#2")
    successor.append("note", {"number": 1}, AT)
    with pytest.raises(Fenced, match="was written by another"):
        zombie.append("note", {"number": 2}, AT)
    successor.append("note", {"number": 3}, AT)
    assert numbers(read_all(path)) == [0, 1, 3]
    assert [entry.epoch for entry in read_all(path)] == [1, 2, 2]


# ---------------------------------------------------------------------------------------------------- following


def test_a_reader_follows(path: Path) -> None:
    reader = Reader(path)
    assert reader.read() == []
    writer = Writer(path, "t#1")
    assert reader.read() == []
    for number in range(3):
        writer.append("note", {"number": number}, AT)
        assert numbers(reader.read()) == [number]
        assert reader.read() == []
    whole = path.read_bytes()
    half = encode_line(Entry(4, 1, "t#1", AT, "note", {"number": 3}))
    with path.open("ab") as file:
        file.write(half[:20])
    assert reader.read() == []
    path.write_bytes(whole + half)
    assert numbers(reader.read()) == [3]


def test_a_reader_notices_a_rebuilt_journal_of_the_same_inode_number(path: Path) -> None:
    reader, writer = Reader(path), Writer(path, "t#1")
    writer.append("note", {"number": 0}, AT)
    assert numbers(reader.read()) == [0]
    # Rewritten in place, as if the file system had given a new file the number of the deleted one.
    path.write_bytes(b"".join(encode_line(Entry(seq, 2, "t#2", AT, "note", {"number": number, "text": "x" * 50}))
                              for seq, number in ((1, 0), (2, 5))))
    assert numbers(reader.read()) == [5]


def test_a_reader_follows_across_a_cut_tail(path: Path) -> None:
    whole = filled(path, 2)
    path.write_bytes(whole + b'{"seq":3,"torn')
    reader = Reader(path)
    assert numbers(reader.read()) == [0, 1]
    writer = Writer(path, "t#2")
    writer.append("note", {"number": 2}, AT)
    assert numbers(reader.read()) == [2]
    writer.close()
    with path.open("ab") as file:
        file.write(b'{"seq":4,"torn')
    append_shared(path, "t", "note", {"number": 3, "text": "x" * 9000}, AT)
    assert [(entry.data["number"], entry.data["text"]) for entry in reader.read()] == [(3, "x" * 9000)]


def test_compaction_keeps_the_old_file_and_readers_continue(path: Path) -> None:
    fast, slow = Reader(path), Reader(path)
    writer = Writer(path, "t#1")
    writer.append("note", {"number": 0}, AT)
    assert numbers(slow.read()) == [0]
    writer.append("note", {"number": 1}, AT)
    assert numbers(fast.read()) == [0, 1]
    before = path.read_bytes()
    writer.compact({"folded": 2, "text": "x" * 9000}, AT)
    assert (path.parent / "journal-2.jsonl").read_bytes() == before
    for reader in (fast, slow, Reader(path)):
        (snapshot,) = reader.read()
        assert (snapshot.kind, snapshot.seq, snapshot.data["folded"], len(snapshot.data["text"])) == ("snapshot", 2, 2,
                                                                                                      9000)
    after = writer.append("note", {"number": 2}, AT)
    assert after.seq == 3
    for reader in (fast, slow):
        assert numbers(reader.read()) == [2]
    writer.compact({"folded": 3}, AT)
    writer.append("note", {"number": 3}, AT)
    assert [entry.kind for entry in fast.read()] == ["snapshot", "note"]
    writer.close()
    again = Writer(path, "t#2")
    assert (again.seq, again.epoch, [entry.seq for entry in again.entries]) == (4, 2, [3, 4])
    assert sorted(one.name for one in path.parent.glob("*.jsonl")) == ["journal-2.jsonl", "journal-3.jsonl",
                                                                       "journal.jsonl"]


def test_a_crash_between_keeping_and_replacing_is_compacted_again(path: Path) -> None:
    filled(path, 2)
    os.link(path, path.with_name("journal-2.jsonl"))
    writer = Writer(path, "t#2")
    writer.compact({"folded": 2}, AT)
    assert [entry.kind for entry in read_all(path)] == ["snapshot"]
    assert numbers(read_all(path.with_name("journal-2.jsonl"))) == [0, 1]


# ---------------------------------------------------------------------------------------------------- blobs


def test_long_values_are_stored_next_to_the_journal(path: Path) -> None:
    writer = Writer(path, "t#1")
    long, wide = "x" * (BLOB_BYTES + 1), "🦀" * (BLOB_BYTES // 4 + 1)
    data = {"long": long, "wide": wide, "same": long, "short": "x" * BLOB_BYTES, "odd": "\udce9" * 9000}
    given = writer.append("note", data, AT)
    assert given.data == data and read_all(path)[0].data == data
    stored = json.loads(path.read_text())["data"]
    assert set(stored["long"]) == {"blob"} and stored["long"] == stored["same"] and stored["short"] == "x" * BLOB_BYTES
    assert len(list((path.parent / "blobs").iterdir())) == 3
    assert (path.parent / "blobs" / stored["wide"]["blob"]).read_text() == wide
    assert Writer(path, "t#2").entries[0].data == data


@pytest.mark.parametrize("how", ["gone", "changed"])
def test_a_blob_that_is_gone_or_changed_is_named(path: Path, how: str) -> None:
    Writer(path, "t#1").append("note", {"text": "x" * 9000}, AT)
    (blob,) = (path.parent / "blobs").iterdir()
    if how == "gone":
        blob.unlink()
    else:
        blob.write_text("y")
    with pytest.raises(RecordCorrupt, match=f"{blob.name}: its content is gone or differs"):
        read_all(path)


@pytest.mark.parametrize("value", [{"blob": "x"}, {"blob": ""}, {"blob": None}, {"blob": "a" * 64}, {"blob": 1, "x": 2},
                                   {"blob": {"blob": ""}}, {"blob": "../../etc/passwd"}])
def test_a_foreign_value_does_not_pass_for_a_blob(path: Path, value: dict[str, object]) -> None:
    """Payloads of signals are journaled: one that looks like our reference must not make the journal unreadable."""
    Writer(path, "t#1").append("signal", {"payload": value}, AT)
    assert read_all(path)[0].data == {"payload": value}


# --------------------------------------------------------------------------------------------------- kill and full disk

def lines(path: Path) -> int:
    """Count the lines faster than the writer adds any."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_writer_killed_at_any_moment_loses_nothing_it_had_written(path: Path) -> None:
    def write_on() -> None:
        writer = Writer(path, "t")
        for number in count(len(writer.entries)):
            writer.append("note", {"number": number, "text": "x" * (number * 37 % 4000)}, AT)

    known = 0
    for _ in range(4):
        child = fork(write_on)
        deadline = time.monotonic() + DEADLINE
        while lines(path) < known + 20 and time.monotonic() < deadline:
            pass
        os.kill(child, signal.SIGKILL)
        assert exit_codes(child) == [-signal.SIGKILL]
        found = numbers(read_all(path))
        assert found == list(range(len(found))) and len(found) >= known + 20
        known = len(found)


FULL = """
import resource, sys
from pathlib import Path
from garrison.records.journal import Writer, append_shared, read_all
path, shared = Path(sys.argv[1]), Path(sys.argv[2])
writer = Writer(path, "t")
writer.append("note", {"number": 0}, "at")
append_shared(shared, "t", "note", {"number": 0}, "at")
def full(data):
    failed = 0
    for append in (lambda: writer.append("note", data, "at", sync=True),
                   lambda: append_shared(shared, "t", "note", data, "at")):
        try:
            append()
        except OSError as error:
            failed += 1
    return failed
size = path.stat().st_size
for limit in range(size, size + 60, 7):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    assert full({"number": 1, "text": "x" * 100}) == 2, limit
    assert full({"text": "x" * 9000}) == 2, "a blob does not fit either"
    assert path.stat().st_size == shared.stat().st_size == size
    assert [entry.data["number"] for entry in read_all(path) + read_all(shared)] == [0, 0]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert writer.append("note", {"number": 1}, "at").seq == 2
assert append_shared(shared, "t", "note", {"number": 1}, "at").seq == 2
assert [entry.data["number"] for entry in read_all(path)] == [0, 1]
assert not list(path.parent.rglob("*.tmp"))
"""


@pytest.mark.traced
def test_a_full_disk_tears_nothing_and_the_writer_continues_later(path: Path) -> None:
    shared = path.with_name("shared.jsonl")
    done = subprocess.run([sys.executable, "-c", FULL, str(path), str(shared)], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert numbers(read_all(path)) == numbers(read_all(shared)) == [0, 1]


# ---------------------------------------------------------------------------------------------------- many writers


def test_many_writers_share_one_journal(path: Path) -> None:
    lock = path.with_name("queue.lock")
    atomic.make_directory(path.parent)

    def append(who: int) -> None:
        for number in range(20):
            with atomic.locked(lock):
                append_shared(path, f"w#{who}", "note", {"number": number}, AT)

    assert exit_codes(*(fork(partial(append, who)) for who in range(8))) == [0] * 8
    entries = read_all(path)
    assert [entry.seq for entry in entries] == list(range(1, 161))
    for who in range(8):
        assert numbers([entry for entry in entries if entry.token == f"w#{who}"]) == list(range(20))


def test_the_shared_epoch_fences_a_superseded_writer(path: Path) -> None:
    assert append_shared(path, "enqueuer", "enqueue", {}, AT).epoch == 0
    mine = append_shared(path, "p#1", "taken", {}, AT, take=True).epoch
    assert mine == 1 and append_shared(path, "enqueuer", "enqueue", {}, AT).epoch == 1
    assert append_shared(path, "p#1", "merge", {}, AT, epoch=mine).epoch == 1
    assert append_shared(path, "p#2", "taken", {}, AT, take=True).epoch == 2
    before = path.read_bytes()
    with pytest.raises(Fenced, match="its epoch is 2, ours 1"):
        append_shared(path, "p#1", "merge", {}, AT, epoch=mine)
    assert path.read_bytes() == before
    path.unlink()
    with pytest.raises(Fenced, match="its epoch is 0, ours 2"):
        append_shared(path, "p#2", "merge", {}, AT, epoch=2)


def test_a_reader_in_a_hurry_learns_whether_it_must_read(path: Path) -> None:
    reader = Reader(path)
    assert reader.mentions(b"anything")  # it has read nothing yet
    append_shared(path, "a", "enq", {"n": 1}, AT)
    reader.read()
    assert not reader.mentions(b'"n":2')
    append_shared(path, "a", "enq", {"n": 2}, AT)
    assert reader.mentions(b'"n":2', b"else")
    assert not reader.mentions(b'"n":1')
    append_shared(path, "a", "enq", {"long": ["y" * 100] * 1000}, AT)
    assert reader.mentions(b'"n":1')
    assert [entry.seq for entry in reader.read()] == [2, 3]
    assert not reader.mentions(b'"n":2')
    for number in (4, 5):
        append_shared(path, "a", "enq", {"n": number}, AT)
    whole = path.read_bytes()
    assert not reader.mentions(b"nothing of the kind")
    path.write_bytes(whole.replace(b'"n":4', b'"n":7'))
    assert reader.mentions(b"nothing of the kind")  # damaged: to read it tells where
    path.write_bytes(whole.replace(b'{"seq":4', b'{"seq":5').replace(b'{"seq":5,"epoch":0', b'{"seq":9,"epoch":0', 1))
    assert reader.mentions(b"nothing of the kind")
    path.write_bytes(whole.partition(b"\n")[0] + b"\n")
    assert reader.mentions(b"nothing of the kind")
    path.unlink()
    assert reader.mentions(b"nothing of the kind")


def test_a_shared_journal_with_a_damaged_end_accepts_no_more_records(path: Path) -> None:
    for seq in (1, 3):  # a record longer than what is looked at first is found all the same
        append_shared(path, "t", "note", {"list": ["x" * 1000] * 30}, AT)
        assert append_shared(path, "t", "note", {"number": 0}, AT).seq == seq + 1
    damaged = path.read_bytes()[::-1].replace(b'0:"rebmun"', b'1:"rebmun"', 1)[::-1]
    path.write_bytes(damaged)
    with pytest.raises(RecordCorrupt, match="its last record is damaged"):
        append_shared(path, "t", "note", {}, AT)
    assert path.read_bytes() == damaged


def test_damage_to_what_a_follower_has_read_is_noticed_once_the_file_has_changed(path: Path) -> None:
    """A follower reads on from where it is; only a process that starts would see the damage."""
    filled(path, 1)
    follower, verifier, seldom = Reader(path), Verifier(path), Verifier(path, 5.0)
    verifier.check(0.0)
    seldom.check(0.0)
    assert numbers(follower.read()) == [0]
    path.write_bytes(b"[" + path.read_bytes()[1:])
    assert follower.read() == []
    with pytest.raises(RecordCorrupt):
        verifier.check(0.0)
    seldom.check(4.9)
    with pytest.raises(RecordCorrupt):
        seldom.check(5.0)
    path.unlink()
    verifier.check(0.0)
