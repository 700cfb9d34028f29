"""The many-writer journal that the merge queue appends to."""

from __future__ import annotations

import pytest

from garrison.errors import Fenced, RecordCorrupt
from garrison.records.journal import Reader, append_shared, read_all

AT = "2026-01-01T00:00:00.000000Z"


def test_numbers_and_epochs_grow_across_writers(tmp_path):
    path = tmp_path / "q" / "journal.jsonl"
    assert append_shared(path, "a", "enq", {"n": 1}, AT).epoch == 0
    assert append_shared(path, "p", "lease", {}, AT, take=True, sync=True).epoch == 1
    append_shared(path, "a", "enq", {"n": 2}, AT)
    append_shared(path, "p", "state", {}, AT, epoch=1)
    assert append_shared(path, "p2", "lease", {}, AT, take=True).epoch == 2
    assert [(entry.seq, entry.epoch) for entry in read_all(path)] == [(1, 0), (2, 1), (3, 1), (4, 1), (5, 2)]


def test_a_writer_of_an_older_epoch_or_of_another_journal_is_fenced(tmp_path):
    path = tmp_path / "journal.jsonl"
    append_shared(path, "p", "lease", {}, AT, take=True)
    append_shared(path, "p2", "lease", {}, AT, take=True)
    before = path.read_bytes()
    with pytest.raises(Fenced):
        append_shared(path, "p", "state", {}, AT, epoch=1)
    assert path.read_bytes() == before
    path.unlink()
    with pytest.raises(Fenced):
        append_shared(path, "p2", "state", {}, AT, epoch=2)


def test_a_torn_tail_is_cut_and_readers_lose_nothing(tmp_path):
    path = tmp_path / "journal.jsonl"
    reader = Reader(path)
    append_shared(path, "a", "enq", {"text": "x" * 9000, "list": ["y" * 100] * 200}, AT)
    with path.open("ab") as file:
        file.write(b'{"seq":2,"torn')
    assert len(reader.read()) == 1
    append_shared(path, "a", "enq", {"n": 2}, AT)
    assert [(entry.seq, entry.data) for entry in reader.read()] == [(2, {"n": 2})]
    assert read_all(path)[0].data["text"] == "x" * 9000


def test_a_damaged_last_record_is_named_not_overwritten(tmp_path):
    path = tmp_path / "journal.jsonl"
    append_shared(path, "a", "enq", {"n": 1}, AT)
    path.write_bytes(path.read_bytes().replace(b'"n":1', b'"n":7'))
    with pytest.raises(RecordCorrupt):
        append_shared(path, "a", "enq", {"n": 2}, AT)


def test_a_reader_in_a_hurry_learns_whether_it_must_read(tmp_path):
    path = tmp_path / "journal.jsonl"
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
