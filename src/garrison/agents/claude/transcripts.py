"""Transcripts of Claude sessions: the CLI's own files, and a copy in the attempt's folder that outlives them.

Before a session is resumed the two are reconciled. The CLI's files win while they exist, and the copy catches up with
them (a kill may have cost it the last lines). Missing files are restored from the copy: subagents first, the session
itself last and atomically, so that a kill in between leaves nothing that appears complete. Only the holder of the
session's lock does this.

`TranscriptStore` implements the SDK's session store: one JSON-lines file a transcript, laid out as by the CLI:
`<project key>/<session>.jsonl`, `<project key>/<session>/<subpath>.jsonl`. Lines are only appended; readers skip torn
lines and duplicates.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from garrison.agents.claude.attempt_files import append_lines, encode, read_lines
from garrison.errors import Refused
from garrison.records import atomic

SAID = frozenset({"user", "assistant"})
"""The kinds of entries without which there is nothing to resume."""
SYSTEM_PROMPT = "prompt_snapshot"
"""What the CLI calls an attachment that holds the system prompt; while there is one, it takes no other."""
SIDECAR = "agent_metadata"
"""What the SDK calls an entry that holds what the CLI keeps beside a subagent's transcript."""


def prepare(config: Path, copy: Path, session: str) -> str:
    """Make ready to resume: `own` (the CLI has it), `restored` (from the copy) or `unknown` (nobody has it)."""
    store = TranscriptStore(copy)
    own = own_transcript(config, session)
    if own is not None:
        torn = _headless(read_lines(own), store.read(_key(own)) or [])
        for path, key in _transcripts(own):
            _catch_up(store, key, path)
        if not torn:
            return "own"
    kept = copy / own.parent.name / own.name if own else next(iter(sorted(copy.glob(f"*/{session}.jsonl"))), None)
    if kept is None or not _worth(kept):
        return "unknown"
    _restore(store, kept, config / "projects" / kept.parent.name)
    return "restored"


def fork(config: Path, attempts: Path, past: str, session: str, project: str) -> bool:
    """Let `session` begin with the transcript of `past`, in the CLI's folder `project`; False if nobody has that.

    The session of an earlier node is left as it is: it may be gone on from again, in another attempt or branch. Its
    subagents' transcripts and its system prompt stay behind: the new one has a node, an attempt and ways of its own.
    """
    own = own_transcript(config, past)
    kept = [path for path in attempts.rglob(f"transcripts/*/{past}.jsonl") if _worth(path)] if own is None else []
    source = own or next(iter(sorted(kept)), None)
    if source is None:
        return False
    told = [entry for entry in once(read_lines(source)) if isinstance(entry, dict) and entry.get("uuid")]
    entries = [{**entry, "sessionId": session} for entry in _relinked(told)]
    target = atomic.make_directory(config / "projects" / project) / f"{session}.jsonl"
    atomic.write(target, b"".join(encode(entry) + b"\n" for entry in entries))
    return True


def _relinked(entries: list[Entry]) -> Iterator[Entry]:
    """The entries without those in which the CLI keeps a system prompt; what followed one follows what it followed."""
    left_out: dict[Any, Any] = {}
    for entry in entries:
        parent = entry.get("parentUuid")
        parent = left_out.get(parent, parent)
        if (entry.get("attachment") or {}).get("type") == SYSTEM_PROMPT:
            left_out[entry["uuid"]] = parent
        else:
            yield {**entry, "parentUuid": parent}


def _headless(own: list[Any], kept: list[Entry]) -> bool:
    """Whether the CLI's transcript goes on from an entry that only the copy has: it was removed while a CLI wrote."""
    parents = {entry.get("parentUuid") for entry in own if isinstance(entry, dict)} - {None}
    lacking = parents - {entry.get("uuid") for entry in own if isinstance(entry, dict)}
    return any(entry.get("uuid") in lacking for entry in kept)


def _key(main: Path) -> dict[str, str]:
    return {"project_key": main.parent.name, "session_id": main.stem}


def own_transcript(config: Path, session: str) -> Path | None:
    """The CLI's transcript of a session, whatever project it lies under; None if nothing in it can be resumed."""
    found = [path for path in config.glob(f"projects/*/{session}.jsonl") if _worth(path)]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _worth(path: Path) -> bool:
    return any(isinstance(entry, dict) and entry.get("type") in SAID for entry in read_lines(path))


def _transcripts(main: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """(file, key) of a session's transcript and those of its subagents, as the CLI or the copy lays them out."""
    key = _key(main)
    folder = main.with_suffix("")
    for path in sorted(folder.rglob("*.jsonl")):
        yield path, {**key, "subpath": path.relative_to(folder).with_suffix("").as_posix()}
    yield main, key


def _catch_up(store: TranscriptStore, key: dict[str, str], path: Path) -> None:
    known = {same(entry) for entry in store.read(key) or []}
    missing = [entry for entry in _entries(path) if same(entry) not in known]
    if missing:
        store.add(key, missing)


def _entries(path: Path) -> list[Entry]:
    """A transcript of the CLI's, and what it keeps beside it."""
    try:
        beside = [{"type": SIDECAR, **json.loads(_sidecar(path).read_bytes())}]
    except (OSError, ValueError, TypeError):
        beside = []
    return [*read_lines(path), *beside]


def _restore(store: TranscriptStore, kept: Path, project: Path) -> None:
    root = atomic.make_directory(project)
    for path, key in _transcripts(kept):
        target = root / path.relative_to(kept.parent)
        atomic.make_directory(target.parent)
        for left in target.parent.glob(f".{target.name}.*.tmp"):
            left.unlink(missing_ok=True)
        entries = store.read(key) or []
        beside = [entry for entry in entries if _is_sidecar(entry)]
        if beside:
            told = {name: value for name, value in beside[-1].items() if name != "type"}
            atomic.write(_sidecar(target), encode(told))
        atomic.write(target, b"".join(encode(entry) + b"\n" for entry in entries if not _is_sidecar(entry)))


def _is_sidecar(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("type") == SIDECAR


def _sidecar(path: Path) -> Path:
    return path.with_suffix(".meta.json")


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
