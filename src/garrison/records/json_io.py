"""JSON of agents: files that one process writes while others read them, and an object within a model's answer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from garrison.records import atomic


def read_json(path: Path) -> Any:
    """Return a file's JSON; None if it is absent or torn."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Replace a file durably."""
    atomic.write(path, encode(value, indent=1))


def encode(value: Any, indent: int | None = None) -> bytes:
    """Return JSON in UTF-8; lone surrogates, which models produce, are written as escapes."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent).encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent).encode()


def read_lines(path: Path) -> list[Any]:
    """Return the complete lines of a JSON-lines file; lines that a kill tore are skipped."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    values = []
    for line in raw.split(b"\n"):
        try:
            values.append(json.loads(line))
        except ValueError:
            continue
    return values


def append_line(path: Path, value: Any) -> None:
    """Append one line in one write; after a torn line, start a new one."""
    append_lines(path, [value])


def append_lines(path: Path, values: Iterable[Any], *, durable: bool = False) -> None:
    """Append lines in one write; with `durable` they survive a power cut once this returns."""
    created = durable and not path.exists()
    with open(path, "ab", buffering=0, opener=_open_private) as file:
        torn = file.tell() > 0 and not _ends_with_newline(path)
        lines = b"".join(encode(value) + b"\n" for value in values)
        atomic.write_all(file.fileno(), (b"\n" if torn else b"") + lines)
        if durable:
            os.fsync(file.fileno())
    if created:
        atomic.sync_directory(path.parent)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


_MAX_BRACES = 50
"""Opening braces that are tried."""
_decode = json.JSONDecoder().raw_decode


def extract_object(text: str, key: str = "") -> dict[str, Any] | None:
    """Return the first JSON object in `text`, or with `key` the first that has that key; None if there is none."""
    for number, match in enumerate(re.finditer(r"\{", text)):
        if number == _MAX_BRACES:
            break
        try:
            value, _ = _decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        if not key or key in value:
            return dict(value)
    return None
