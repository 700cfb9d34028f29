"""What came before a journal's last snapshot, and what is left of a damaged one. Reads, never writes."""

from __future__ import annotations

from garrison.errors import RecordCorrupt
from garrison.light import replace
from garrison.records import atomic
from garrison.records.blobs import load_blobs
from garrison.records.journal import Entry, decode_line, parts, read_all, whole_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def read_whole(path: Path) -> list[Entry]:
    """Every record there ever was, what was put aside first; a snapshot only for what is there no more."""
    found: list[Entry] = []
    for part in [*parts(path), path]:
        last = found[-1].seq if found else 0
        found += [entry for entry in read_all(part) if entry.seq > last]
    return found


def salvage(path: Path) -> tuple[list[Entry], list[str]]:
    """The whole records since the last readable snapshot, in their order, and where damaged ones stood.

    A record that was torn at the end, while it was written, is none. The journal itself may be gone, or have been begun
    anew, with numbers that were given before.
    """
    found, wrong = _whole(path)
    older = past(path)
    while older and not (found and found[0].kind == "snapshot"):
        before, damaged = _whole(older.pop())
        found, wrong = [*before, *found], [*damaged, *wrong]
    return found, wrong


def past(path: Path) -> list[Path]:
    """As `parts`, without one that is still the journal itself: whoever put it aside died before the snapshot."""
    return [part for part in parts(path) if not (path.exists() and part.samefile(path))]


def _whole(path: Path) -> tuple[list[Entry], list[str]]:
    found: list[Entry] = []
    wrong: list[str] = []
    data, at = atomic.read(path) or b"", 0
    end = whole_end(data)
    for line in data.splitlines(keepends=True):
        try:
            entry = decode_line(line, path)
            entry = replace(entry, data=load_blobs(path.parent, entry.data))
            found += [entry] if not found or entry.seq > found[-1].seq else []
        except (ValueError, RecordCorrupt):
            if at < end or not (line.startswith(b'{"') or b"\0" in line):
                wrong.append(f"byte {at} of {path.name}")
        at += len(line)
    return found, wrong
