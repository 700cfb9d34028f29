"""A copy of each transcript in the attempt's folder, so that a session outlives the CLI's own files.

`TranscriptStore` is a session store as the SDK knows them: one file of JSON lines a transcript, laid out as the CLI
does it: `<project key>/<session>.jsonl`, `<project key>/<session>/<subpath>.jsonl`. Lines are only ever added, by the
one process that holds the session's lock. Whoever reads leaves out torn lines and what was written twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from garrison.agents.claude.files import append_lines, read_lines
from garrison.errors import Refused
from garrison.records import atomic

Entry = dict[str, Any]
Key = Mapping[str, Any]


class TranscriptStore:
    """The transcripts below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def append(self, key: Key, entries: list[Entry]) -> None:
        """Add entries, durably."""
        if entries:
            await asyncio.to_thread(self.add, key, entries)

    async def load(self, key: Key) -> list[Entry] | None:
        """All entries of a transcript; None if there is none."""
        return self.read(key)

    async def list_sessions(self, project_key: str) -> list[dict[str, Any]]:
        """Each session of a project, with its last change in milliseconds since 1970."""
        files = (self.root / _part(project_key)).glob("*.jsonl")
        return [{"session_id": path.stem, "mtime": int(path.stat().st_mtime * 1000)} for path in files]

    async def list_subkeys(self, key: Key) -> list[str]:
        """The subpaths of a session's transcripts beside its main one."""
        folder = self.path(key).with_suffix("")
        return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.jsonl"))

    async def delete(self, key: Key) -> None:
        """Remove a transcript; a session's main one takes the others with it."""
        path = self.path(key)
        path.unlink(missing_ok=True)
        if not key.get("subpath"):
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)

    def path(self, key: Key) -> Path:
        """The file of a key; Refused if a part of it would lead out of the folder."""
        folder = self.root / _part(key["project_key"])
        if not key.get("subpath"):
            return folder / f"{_part(key['session_id'])}.jsonl"
        parts = PurePosixPath(key["subpath"]).parts
        return folder.joinpath(_part(key["session_id"]), *map(_part, parts[:-1]), f"{_part(parts[-1])}.jsonl")

    def add(self, key: Key, entries: Iterable[Entry]) -> None:
        """`append`, for callers without a loop."""
        path = self.path(key)
        atomic.make_directory(path.parent)
        append_lines(path, entries, durable=True)

    def read(self, key: Key) -> list[Entry] | None:
        """`load`, for callers without a loop."""
        path = self.path(key)
        return once(read_lines(path)) if path.exists() else None


class Mirror(TranscriptStore):
    """The same for the SDK, which is told nothing of what is kept.

    What it is told of, it would lay out in a temporary folder at each resume, with a copy of the log-in, and a kill
    would leave that there. `transcripts.prepare` puts back what is missing, before the SDK is asked to resume.
    """

    async def load(self, key: Key) -> list[Entry] | None:
        """Nothing."""
        return None


def same(entry: Entry) -> str:
    """What two copies of one entry have in common: its uuid, else all of it."""
    name = entry.get("uuid") if isinstance(entry, dict) else None
    return str(name) if name else json.dumps(entry, sort_keys=True)


def once(entries: Iterable[Entry]) -> list[Entry]:
    """Those with a uuid only the first time; the others as often as they are there (a title may be set twice)."""
    seen: set[str] = set()
    kept = []
    for entry in entries:
        name = str(entry.get("uuid") or "") if isinstance(entry, dict) else ""
        if not name or name not in seen:
            kept.append(entry)
        seen.add(name)
    return kept


def _part(name: Any) -> str:
    """A part of a key as the name of a file or folder."""
    text = str(name)
    if not text or text in (".", "..") or os.sep in text or "\0" in text:
        raise Refused(f"{text!r} cannot be a part of a transcript's name")
    return text
