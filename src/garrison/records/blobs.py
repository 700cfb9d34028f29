"""Blobs: long values of journal records, stored beside the journal as `blobs/<sha256>`, so that its lines stay short.

A blob is on the disk, whole, before the record that names it; its name is the hash of its content.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from garrison.errors import RecordCorrupt
from garrison.records import atomic

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

BLOB_BYTES = 8192
"""String values longer than this, in bytes, are stored as blobs."""
_UTF8 = ("utf-8", "surrogatepass")
"""Encoding of blobs: a program's undecodable bytes must not lose its record."""


def store_blobs(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Replace top-level strings over 8 kB in `data` by `{"blob": sha256}`; store their bytes under `blobs/`."""
    stored = dict(data)
    for name, value in data.items():
        if isinstance(value, str) and len(value) > BLOB_BYTES // 4 and len(raw := value.encode(*_UTF8)) > BLOB_BYTES:
            digest = hashlib.sha256(raw).hexdigest()
            path = atomic.make_directory(folder / "blobs") / digest
            if not path.exists():
                atomic.write(path, raw)
            stored[name] = {"blob": digest}
        elif isinstance(value, dict) and "blob" in value:  # a foreign payload must not pass for one of ours
            stored[name] = {"blob": "", "value": value}
    return stored


def load_blobs(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Put the stored strings back into `data`; RecordCorrupt if a blob is gone or its bytes differ."""
    for name, value in data.items():
        if not isinstance(value, dict) or "blob" not in value:
            continue
        if value["blob"] == "":
            data = {**data, name: value["value"]}
        else:
            path = folder / "blobs" / value["blob"]
            raw = atomic.read(path) or b""
            if hashlib.sha256(raw).hexdigest() != value["blob"]:
                raise RecordCorrupt(path, "its content is gone or differs from its name")
            data = {**data, name: raw.decode(*_UTF8)}
    return data
