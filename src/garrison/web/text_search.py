"""Search in a node's log or transcript: the next place of a text, forwards or back, however long the file is.

A request scans a bounded part; `next` says where the following one goes on. Case is ignored for ASCII letters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from garrison.agents.claude.attempt_files import AttemptFiles
from garrison.errors import NotFound, UsageError
from garrison.web.node import LOG, attempt_folder

SCAN_BYTES = 64 << 20
"""Bytes that one request scans."""
CHUNK = 1 << 20
LINE_BYTES = 64 << 10
"""Bytes before a place in which the beginning of its line is looked for."""


def find_text(home: Path, run: str, node: str, attempt: int | None, file: str, text: str, begin: int, *,
              backwards: bool = False) -> dict[str, Any]:
    """Return {found, line, next, size}: the first place of `text` at or after the byte `begin`, or the last before it.

    `line` is where its line begins; `next` where to go on if nothing was found in the part that was scanned, else None.
    NotFound for a file that cannot be searched, UsageError for an empty text.
    """
    folder = attempt_folder(home, run, node, attempt)
    paths = {"log": folder / LOG, "transcript": AttemptFiles(folder).stream}
    if file not in paths:
        raise NotFound(f"there is no {file!r:.40} to search; there are {', '.join(paths)}")
    if not text:
        raise UsageError("q should be what to search for")
    if file == "transcript":  # its lines are JSON
        text = json.dumps(text, ensure_ascii=False)[1:-1]
    return search_file(paths[file], text.encode(errors="replace").lower(), begin, backwards=backwards)


def search_file(path: Path, wanted: bytes, begin: int, *, backwards: bool = False) -> dict[str, Any]:
    """Return as `find_text` for bytes in lower case."""
    try:
        file = path.open("rb")
    except OSError:
        return {"found": None, "line": None, "next": None, "size": 0}
    with file:
        size = file.seek(0, 2)
        place = max(0, min(size, begin if begin >= 0 else size))
        last = max(0, place - SCAN_BYTES) if backwards else min(size, place + SCAN_BYTES)
        overlap = len(wanted) - 1
        while place > last if backwards else place < last:
            start = max(last, place - CHUNK) if backwards else place
            length = place - start if backwards else min(CHUNK, last - place)
            file.seek(start)
            data = file.read(length + overlap).lower()
            at = data.rfind(wanted) if backwards else data.find(wanted)
            if at >= 0:
                found = start + at
                return {"found": found, "line": _line_start(path, found), "next": None, "size": size}
            place = start if backwards else start + length
        is_done = last == (0 if backwards else size)
        return {"found": None, "line": None, "next": None if is_done else last, "size": size}


def _line_start(path: Path, place: int) -> int:
    with path.open("rb") as file:
        begin = max(0, place - LINE_BYTES)
        file.seek(begin)
        return begin + file.read(place - begin).rfind(b"\n") + 1
