"""Read a merge queue's journal from its bytes, independently of garrison: records, and the status of each entry."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FINAL = frozenset({"landed", "undone", "conflict", "rejected", "cancelled", "superseded"})
AFTER = {"test": "testing", "landing": "landing", "landed": "landed", "unlanded": "landing_blocked",
         "foreign": "queued", "cancel": "cancelled", "undone": "undone"}
"""Record kind → status of the entries it names."""


@dataclass(frozen=True)
class Record:
    """One journal line."""

    seq: int
    epoch: int
    kind: str
    data: Mapping[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the entries it is about."""
        several = self.data.get("entries") or ([self.data["entry"]] if self.data.get("entry") else [])
        return tuple(several)


def read_journal(path: Path) -> tuple[list[Record], list[str]]:
    """Return the whole history of a queue (archived parts first), and what is wrong with its lines."""
    wrong: list[str] = []
    found: dict[int, Record] = {}
    parts = sorted(path.parent.glob(f"{path.stem}-*.jsonl"), key=lambda part: int(part.stem.rpartition("-")[2]))
    for part in [*parts, path]:
        if not part.exists():
            continue
        expected = None
        raw = part.read_bytes()
        for line in raw[:raw.rfind(b"\n") + 1].splitlines(keepends=True):
            record = _record(line, path.parent)
            if record is None:
                wrong.append(f"journal: {part.name} has a line that is not a record: {line[:60]!r}")
                continue
            if record.kind != "snapshot":
                if expected is not None and record.seq != expected:
                    wrong.append(f"journal: {part.name}: record {record.seq} where {expected} belongs")
                found.setdefault(record.seq, record)
            expected = record.seq + 1
    records = [found[seq] for seq in sorted(found)]
    if [record.seq for record in records] != list(range(1, len(records) + 1)):
        wrong.append("journal: records are missing")
    epochs = [record.epoch for record in records]
    if epochs != sorted(epochs):
        wrong.append("journal: an epoch goes back, so a fenced processor wrote")
    return records, wrong


def _record(line: bytes, folder: Path) -> Record | None:
    head, separator, tail = line.rpartition(b',"crc":"')
    try:
        if not separator or zlib.crc32(head + b"}") != int(tail[:8], 16):
            return None
        body = json.loads(head + b"}")
        data = {name: _value(value, folder) for name, value in body["data"].items()}
        return Record(body["seq"], body["epoch"], body["kind"], data)
    except (ValueError, KeyError, TypeError, OSError):
        return None


def _value(value: Any, folder: Path) -> Any:
    if isinstance(value, dict) and set(value) == {"blob"}:
        return (folder / "blobs" / value["blob"]).read_text(errors="replace")
    return value


def fold(records: list[Record]) -> tuple[dict[str, str], list[str]]:
    """Return entry → status by the journal, and forbidden steps."""
    status: dict[str, str] = {}
    wrong: list[str] = []
    for record in records:
        for name, new in _moves(record):
            old = status.get(name)
            if record.kind == "enq" and name in record.names and old is not None:
                wrong.append(f"doubled: {name} is enqueued twice (record {record.seq})")
            elif old is None and record.kind != "enq":
                wrong.append(f"lost: record {record.seq} ({record.kind}) names {name}, which was never enqueued")
            elif old in FINAL and not (record.kind == "undone" and {old, new} == {"landed", "undone"}) \
                    and not (record.kind == "retry" and old != "landed"):
                what = "doubled" if new == "landed" else "told"
                wrong.append(f"{what}: {name} was {old} and then became {new} (record {record.seq})")
            status[name] = new
    return status, wrong


def _moves(record: Record) -> Iterator[tuple[str, str]]:
    data = record.data
    if record.kind == "enq":
        yield from ((name, "superseded") for name in data.get("supersedes", ()))
        yield from ((name, "queued") for name in record.names)
    elif record.kind == "state":
        yield from ((name, data["status"]) for name in record.names)
    elif record.kind == "test" and data.get("of", "entry") == "base":
        return
    elif record.kind == "undone" and data.get("again"):
        yield from ((name, "landed") for name in record.names)
    elif record.kind in AFTER:
        yield from ((name, AFTER[record.kind]) for name in record.names)
