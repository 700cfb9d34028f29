"""A journal with room: what a killed writer or a power cut leaves of it, and what is read of that."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from garrison.errors import Fenced, RecordCorrupt
from garrison.records import atomic
from garrison.records.journal import Reader, Writer, read_all, salvage
from garrison.records.journal_room import ROOM, RoomyWriter

AT = "2026-01-31T12:00:00.000000Z"
SECTOR = 512


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "journal.jsonl"


def numbers(path: Path) -> list[int]:
    return [entry.data["number"] for entry in read_all(path)]


def killed(path: Path, count: int, text: str = "") -> int:
    """A journal of `count` records as a killed writer leaves it; where they end."""
    writer = RoomyWriter(path, "t#1")
    for number in range(count):
        writer.append("note", {"number": number, "text": text}, AT, sync=True)
    end = writer._end
    os.close(writer._descriptor)
    assert path.stat().st_size > end
    return end


def test_closed_in_order_it_is_as_long_as_what_stands_in_it(path: Path) -> None:
    with_room, without = path, path.with_name("other.jsonl")
    for at, kind in ((with_room, RoomyWriter), (without, Writer)):
        writer = kind(at, "t#1")
        for number in range(700):  # more than one room
            writer.append("note", {"number": number, "text": "x" * 100}, AT, sync=number % 7 == 0)
        writer.close()
        writer.close()
    assert with_room.read_bytes() == without.read_bytes()


def test_readers_follow_a_writer_into_its_room_and_across_a_snapshot(path: Path) -> None:
    reader, writer = Reader(path), RoomyWriter(path, "t#1")
    for number in range(5):
        writer.append("note", {"number": number}, AT, sync=True)
        assert [entry.data["number"] for entry in reader.read()] == [number]
    before = path.read_bytes().rstrip(b"\0")
    writer.compact({"folded": 5}, AT)
    assert path.with_name("journal-5.jsonl").read_bytes() == before
    writer.append("note", {"number": 5}, AT, sync=True)
    assert [entry.kind for entry in reader.read()] == ["snapshot", "note"]
    assert path.stat().st_size > ROOM


def test_after_a_kill_nothing_is_lost_and_the_next_writer_goes_on(path: Path) -> None:
    killed(path, 3)
    assert numbers(path) == [0, 1, 2] and salvage(path)[1] == []
    writer = RoomyWriter(path, "t#2")
    writer.append("note", {"number": 3}, AT, sync=True)
    writer.close()
    assert numbers(path) == [0, 1, 2, 3] and not path.read_bytes().strip(b"\0").count(b"\0")


@pytest.mark.parametrize("arrived", range(7))
def test_of_a_record_that_was_torn_any_sectors_may_have_arrived(path: Path, arrived: int) -> None:
    """A disk writes the sectors of one write in any order; what is missing reads as zeros."""
    whole = killed(path, 1)
    path.unlink()
    end = killed(path, 2, "x" * 900)
    image = bytearray(path.read_bytes())
    start = image.index(b"\n") + 1
    sectors = sorted({at // SECTOR for at in range(start, end)})
    assert len(sectors) == 3 and end > whole
    for number, sector in enumerate(sectors):
        if not arrived >> number & 1:
            low, high = max(start, sector * SECTOR), min(end, (sector + 1) * SECTOR)
            image[low:high] = bytes(high - low)
    path.write_bytes(image)
    assert numbers(path) == [0] and salvage(path)[1] == []
    writer = RoomyWriter(path, "t#2")
    assert [entry.seq for entry in writer.entries] == [1]
    writer.append("note", {"number": 9}, AT, sync=True)
    writer.close()
    assert numbers(path) == [0, 9]


@pytest.mark.parametrize("where", ["before the last", "no zeros", "no room"])
def test_what_no_torn_write_leaves_is_damage(path: Path, where: str) -> None:
    end = killed(path, 3)
    image = bytearray(path.read_bytes())
    if where == "before the last":  # of two records that were synced one after the other, the first cannot be torn
        image[image.index(b"\n") + 9] = 0
    elif where == "no zeros":
        image[end - 9] ^= 1
    else:
        del image[end:]
        image[end - 9] = 0
    path.write_bytes(image)
    for use in (lambda: read_all(path), lambda: RoomyWriter(path, "t#2")):
        with pytest.raises(RecordCorrupt):
            use()
    assert path.read_bytes() == image


def test_a_writer_that_is_not_as_dead_as_its_lock_says_harms_nobody(path: Path) -> None:
    """Even when it was stopped after its look at the file, and writes where its successor has written by then."""
    zombie = RoomyWriter(path, "t#1")
    zombie.append("note", {"number": 0}, AT, sync=True)
    successor = RoomyWriter(path, "t#2")
    successor.append("note", {"number": 1}, AT, sync=True)
    zombie._write(b"late\n", sync=True)
    with pytest.raises(Fenced, match="removed or replaced"):
        zombie.append("note", {"number": 2}, AT, sync=True)
    zombie.close()
    successor.append("note", {"number": 3}, AT, sync=True)
    assert numbers(path) == [0, 1, 3]


@pytest.mark.parametrize("proc", [True, False])
@pytest.mark.parametrize("how", ["replaced", "removed", "moved", "kept under another name"])
def test_a_replaced_journal_stops_its_writer(path: Path, how: str, monkeypatch: pytest.MonkeyPatch, *,
                                             proc: bool) -> None:
    if not proc:
        monkeypatch.setattr(os, "readlink", lambda _: (_ for _ in ()).throw(FileNotFoundError()))
    writer = RoomyWriter(path, "t#1")
    writer.append("note", {"number": 0}, AT, sync=True)
    if how == "removed":
        path.unlink()
    elif how == "moved":
        path.rename(path.with_name("elsewhere"))
    else:
        if how == "kept under another name":
            os.link(path, path.with_name("journal-1.jsonl"))
        atomic.write(path, b"")
    with pytest.raises(Fenced, match="was removed or replaced"):
        writer.append("note", {}, AT, sync=True)
    writer.close()
    assert not path.exists() or path.read_bytes() == b""


def test_a_snapshot_is_followed_by_its_own_writer_alone(path: Path) -> None:
    writer = RoomyWriter(path, "t#1")
    writer.append("note", {"number": 0}, AT, sync=True)
    writer.compact({"folded": 1}, AT)
    writer.append("note", {"number": 1}, AT, sync=True)
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(Fenced):
        writer.append("note", {}, AT, sync=True)


def test_what_another_appended_is_noticed_and_left(path: Path) -> None:
    writer = RoomyWriter(path, "t#1")
    writer.append("note", {"number": 0}, AT, sync=True)
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(Fenced, match="written by another"):
        writer.append("note", {"number": 1}, AT, sync=True)
    before = path.read_bytes()
    writer.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_full_or_failing_disk_leaves_it_whole(path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RoomyWriter(path, "t#1")
    for number in range(2):
        writer.append("note", {"number": number}, AT, sync=True)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as during, pytest.raises(OSError, match="full"):
        during.setattr(os, call, full)
        writer.append("note", {"number": 2}, AT, sync=True)
    assert numbers(path) == [0, 1] and not path.read_bytes().count(b"\0")
    writer.append("note", {"number": 3}, AT, sync=True)
    assert numbers(path) == [0, 1, 3]


def test_a_short_write_is_undone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RoomyWriter(path, "t#1")
    writer.append("note", {"number": 0}, AT, sync=True)
    real = os.pwrite
    with monkeypatch.context() as during, pytest.raises(OSError, match="No space"):
        during.setattr(os, "pwrite", lambda descriptor, line, at: real(descriptor, line[:9], at))
        writer.append("note", {"number": 1}, AT, sync=True)
    writer.append("note", {"number": 2}, AT, sync=True)
    writer.close()
    assert numbers(path) == [0, 2] and not path.read_bytes().count(b"\0")
