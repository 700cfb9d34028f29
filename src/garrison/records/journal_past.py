"""What came before a journal's last snapshot, and what is left of a damaged one. Reads, never writes."""

from __future__ import annotations

from garrison.errors import RecordCorrupt
from garrison.light import replace
from garrison.records import atomic
from garrison.records.journal import Entry, decode_line, load_blobs, parts, read_all

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

    A record that was torn at the end, while it was written, is none. The journal itself may be gone.
    """
    found: list[Entry] = []
    wrong: list[str] = []
    for part in [path, *reversed(parts(path))]:
        before, damaged = _whole(part)
        found = [*before, *(entry for entry in found if not before or entry.seq > before[-1].seq)]
        wrong = [*damaged, *wrong]
        if before and (before[0].seq == 1 or before[0].kind == "snapshot"):
            break
    return found, wrong


def _whole(path: Path) -> tuple[list[Entry], list[str]]:
    found: list[Entry] = []
    wrong: list[str] = []
    data, at = atomic.read(path) or b"", 0
    for line in data.splitlines(keepends=True):
        try:
            entry = decode_line(line, path)
            entry = replace(entry, data=load_blobs(path.parent, entry.data))
            found += [entry] if not found or entry.seq > found[-1].seq else []
        except (ValueError, RecordCorrupt):
            if line.endswith(b"\n") or not line.startswith(b'{"'):
                wrong.append(f"byte {at} of {path.name}")
        at += len(line)
    return found, wrong
