"""Journals that end in zeros: version 0.1 preallocated space, which a killed writer or a power cut leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.errors import RecordCorrupt
from garrison.records.journal import Reader, Writer, read_all, salvage

AT = "2026-01-31T12:00:00.000000Z"
SECTOR = 512
ROOM = 1 << 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "journal.jsonl"


def numbers(path: Path) -> list[int]:
    return [entry.data["number"] for entry in read_all(path)]


def killed(path: Path, count: int, text: str = "") -> int:
    """Write a journal of `count` records as a killed writer of version 0.1 leaves it; return where the records end."""
    writer = Writer(path, "t#1")
    for number in range(count):
        writer.append("note", {"number": number, "text": text}, AT, sync=True)
    writer.close()
    end = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(ROOM))
    return end


@pytest.mark.parametrize("count", [0, 3])
def test_after_a_kill_nothing_is_lost_and_the_next_writer_continues_without_zeros(path: Path, count: int) -> None:
    killed(path, count)
    reader = Reader(path)
    assert [entry.data["number"] for entry in reader.read()] == [*range(count)] and salvage(path)[1] == []
    writer = Writer(path, "t#2")
    assert [entry.seq for entry in writer.entries] == [*range(1, count + 1)]
    writer.append("note", {"number": count}, AT, sync=True)
    writer.close()
    assert numbers(path) == [*range(count + 1)] and not path.read_bytes().count(b"\0")
    assert [entry.data["number"] for entry in reader.read()] == [count]


@pytest.mark.parametrize("arrived", range(7))
def test_any_sectors_of_a_torn_record_may_have_been_written(path: Path, arrived: int) -> None:
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
    writer = Writer(path, "t#2")
    assert [entry.seq for entry in writer.entries] == [1]
    writer.append("note", {"number": 9}, AT, sync=True)
    writer.close()
    assert numbers(path) == [0, 9]


@pytest.mark.parametrize("where", ["before the last", "no zeros", "no room"])
def test_bytes_that_no_torn_write_leaves_are_damage(path: Path, where: str) -> None:
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
    for use in (lambda: read_all(path), lambda: Writer(path, "t#2")):
        with pytest.raises(RecordCorrupt):
            use()
    assert path.read_bytes() == image


def test_a_late_write_of_the_old_writer_reaches_a_file_that_nothing_reads(path: Path) -> None:
    end = killed(path, 1)
    with path.open("r+b") as zombie:
        successor = Writer(path, "t#2")
        successor.append("note", {"number": 1}, AT, sync=True)
        zombie.seek(end)
        zombie.write(b"late\n")
        zombie.flush()
        successor.append("note", {"number": 2}, AT, sync=True)
    assert numbers(path) == [0, 1, 2]
