"""Transcripts of Claude sessions: the CLI's own files, and a copy in the attempt's folder that outlives them.

Before a session is resumed the two are reconciled. The CLI's files take precedence while they exist, and the copy
catches up with them (a kill may have lost its last lines). Missing files are restored from the copy: subagents first,
the session itself last and atomically, so that a kill in between leaves nothing that looks complete. Only the holder of
the session's lock does this.

`TranscriptStore` implements the SDK's session store: one JSON-lines file per transcript, in the CLI's layout:
`<project key>/<session>.jsonl`, `<project key>/<session>/<subpath>.jsonl`. Lines are only appended; readers skip torn
lines and duplicates.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from garrison.errors import Refused
from garrison.records import atomic
from garrison.records.json_io import append_lines, encode, read_lines

MESSAGES = frozenset({"user", "assistant"})
"""Kinds of entries without which there is nothing to resume."""
SYSTEM_PROMPT = "prompt_snapshot"
"""Type of the CLI's attachment with the system prompt; if there is one, the CLI accepts no other."""
SIDECAR = "agent_metadata"
"""Type of the SDK's entry for the file that the CLI keeps next to a subagent's transcript."""

_LONG_PATH = 200
"""Length from which the CLI shortens the name of a project's folder."""

Entry = dict[str, Any]
Key = Mapping[str, Any]


# ---- the copy


class TranscriptStore:
    """Transcripts below one folder, with the methods of the SDK's session store."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def append(self, key: Key, entries: list[Entry]) -> None:
        """Append entries durably."""
        if entries:
            import asyncio  # the orchestrator, which only reads transcripts, needs no event loop

            await asyncio.to_thread(self.add, key, entries)

    async def load(self, key: Key) -> list[Entry] | None:
        """Return all entries of a transcript; None if there is none."""
        return self.read(key)

    async def list_sessions(self, project_key: str) -> list[dict[str, object]]:
        """Return each session of a project with its last change in milliseconds since 1970."""
        files = (self.root / _file_name(project_key)).glob("*.jsonl")
        return [{"session_id": path.stem, "mtime": int(path.stat().st_mtime * 1000)} for path in files]

    async def list_subkeys(self, key: Key) -> list[str]:
        folder = self.path(key).with_suffix("")
        return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.jsonl"))

    async def delete(self, key: Key) -> None:
        """Remove a transcript; with a session's main one, all others of the session."""
        path = self.path(key)
        path.unlink(missing_ok=True)
        if not key.get("subpath"):
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)

    def path(self, key: Key) -> Path:
        """Return the file of a key; Refused if a part of the key would leave the folder."""
        folder = self.root / _file_name(key["project_key"])
        if not key.get("subpath"):
            return folder / f"{_file_name(key['session_id'])}.jsonl"
        parts = PurePosixPath(key["subpath"]).parts
        return folder.joinpath(_file_name(key["session_id"]), *map(_file_name, parts[:-1]),
                               f"{_file_name(parts[-1])}.jsonl")

    def add(self, key: Key, entries: Iterable[Entry]) -> None:
        """Append entries durably, without an event loop."""
        path = self.path(key)
        atomic.make_directory(path.parent)
        append_lines(path, entries, durable=True)

    def read(self, key: Key) -> list[Entry] | None:
        """Return all entries of a transcript, without an event loop; None if there is none."""
        path = self.path(key)
        return deduplicate(read_lines(path)) if path.exists() else None


class Mirror(TranscriptStore):
    """Store for the SDK that is written to but never read.

    The SDK would unpack what it loads in a temporary folder at each resume, with a copy of the log-in, and a kill would
    leave that behind. `prepare` restores what is missing before the SDK resumes.
    """

    async def load(self, key: Key) -> list[Entry] | None:
        return None


def identity_of(entry: Entry) -> str:
    """Return the identity of an entry: its uuid, else the whole entry."""
    name = entry.get("uuid") if isinstance(entry, dict) else None
    return str(name) if name else json.dumps(entry, sort_keys=True)


def deduplicate(entries: Iterable[Entry]) -> list[Entry]:
    """Drop repeated entries with a uuid; others stay as often as they are there (a title may be set twice)."""
    seen: set[str] = set()
    kept = []
    for entry in entries:
        name = str(entry.get("uuid") or "") if isinstance(entry, dict) else ""
        if not name or name not in seen:
            kept.append(entry)
        seen.add(name)
    return kept


# ---- resuming and forking


def project_of(folder: Path) -> str:
    """Return the name of the CLI's folder for the transcripts of sessions that run in `folder`."""
    # As the CLI itself names it, since it searches for a session only there.
    path = unicodedata.normalize("NFC", os.path.realpath(folder))
    if len(path) > _LONG_PATH:
        from claude_agent_sdk import project_key_for_directory  # half a second, which a takeover must not wait for

        return project_key_for_directory(path)
    return re.sub(r"[^a-zA-Z0-9]", "-", path)


def prepare(config: Path, copy: Path, session: str, project: str) -> str:
    """Reconcile transcript and copy; return `own` (the CLI has it), `restored` (from the copy) or `unknown`.

    Args:
        project: name of the CLI's folder for its working directory: it finds a session only there. The copy of a
            session that ran elsewhere, in an earlier version or in the user's terminal, is moved there.
    """
    store = TranscriptStore(copy)
    _move_copies(copy, session, project)
    own = own_transcript(config, session)
    if own is not None:
        headless = _is_headless(read_lines(own), store.read(_key(own)) or [])
        for path, key in _transcripts(own):
            _catch_up(store, key, path)
        if not headless:
            return "own"
    kept = copy / own.parent.name / own.name if own else copy / project / f"{session}.jsonl"
    if not _has_messages(kept):
        return "unknown"
    _restore(store, kept, config / "projects" / kept.parent.name)
    return "restored"


def _move_copies(copy: Path, session: str, project: str) -> None:
    """Move the copy of a session from another project, unless this one also has a copy."""
    for path in sorted(copy.glob(f"*/{session}.jsonl")):
        target = copy / project / path.name
        if path.parent.name == project or target.exists():
            continue
        atomic.make_directory(target.parent)
        if path.with_suffix("").is_dir():  # of its subagents; first: the transcript marks the copy as complete
            path.with_suffix("").rename(target.with_suffix(""))
        path.rename(target)


def save(config: Path, copy: Path, session: str) -> None:
    """Complete the copy with the new entries of the CLI's own transcript of a session."""
    own = own_transcript(config, session) if session else None
    for path, key in _transcripts(own) if own is not None else ():
        _catch_up(TranscriptStore(copy), key, path)


def fork(config: Path, attempts: Path, parent: str, session: str, project: str) -> bool:
    """Start `session` with the transcript of `parent`, in the CLI's folder `project`; False if there is none.

    The parent, a session of an earlier node, is not changed: other attempts or branches may also continue it. Its
    subagents' transcripts and its system prompt are left out, since the new session has its own node and attempt.
    """
    own = own_transcript(config, parent)
    copies = [path for path in attempts.rglob(f"transcripts/*/{parent}.jsonl") if _has_messages(path)] \
        if own is None else []
    source = own or next(iter(sorted(copies)), None)
    if source is None:
        return False
    # Entries without a uuid, such as a title or a mode, are about the parent's session and not part of the
    # conversation.
    messages = [entry for entry in deduplicate(read_lines(source)) if isinstance(entry, dict) and entry.get("uuid")]
    entries = [{**entry, "sessionId": session} for entry in _without_system_prompt(messages)]
    target = atomic.make_directory(config / "projects" / project) / f"{session}.jsonl"
    atomic.write(target, b"".join(encode(entry) + b"\n" for entry in entries))
    return True


def own_transcript(config: Path, session: str) -> Path | None:
    """Return the CLI's transcript of a session in any project; None if nothing in it can be resumed."""
    paths = [path for path in config.glob(f"projects/*/{session}.jsonl") if _has_messages(path)]
    # There may be several: an earlier version, or the user's terminal, ran the CLI in another directory.
    return max(paths, key=lambda path: path.stat().st_mtime, default=None)


def remove_own(config: Path, session: str) -> None:
    """Remove the CLI's transcripts of a session, so that the next `prepare` restores them from the copy."""
    for path in config.glob(f"projects/*/{session}.jsonl"):
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
        path.unlink(missing_ok=True)


def _without_system_prompt(entries: list[Entry]) -> Iterator[Entry]:
    """Drop the CLI's system prompts; an entry after one is linked to that one's parent."""
    dropped: dict[object, object] = {}
    for entry in entries:
        parent = entry.get("parentUuid")
        parent = dropped.get(parent, parent)
        if (entry.get("attachment") or {}).get("type") == SYSTEM_PROMPT:
            dropped[entry["uuid"]] = parent
        else:
            yield {**entry, "parentUuid": parent}


def _is_headless(own: list[object], kept: list[Entry]) -> bool:
    """Return whether the CLI's transcript continues an entry that only the copy still has."""
    parents = {entry.get("parentUuid") for entry in own if isinstance(entry, dict)} - {None}
    missing = parents - {entry.get("uuid") for entry in own if isinstance(entry, dict)}
    return any(entry.get("uuid") in missing for entry in kept)


def _key(main: Path) -> dict[str, str]:
    return {"project_key": main.parent.name, "session_id": main.stem}


def _has_messages(path: Path) -> bool:
    return any(isinstance(entry, dict) and entry.get("type") in MESSAGES for entry in read_lines(path))


def _transcripts(main: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield (file, key) of a session's subagents' transcripts, then of its own, in the CLI's or the copy's layout."""
    key = _key(main)
    folder = main.with_suffix("")
    for path in sorted(folder.rglob("*.jsonl")):
        yield path, {**key, "subpath": path.relative_to(folder).with_suffix("").as_posix()}
    yield main, key


def _catch_up(store: TranscriptStore, key: dict[str, str], path: Path) -> None:
    existing = {identity_of(entry) for entry in store.read(key) or []}
    missing = [entry for entry in _entries(path) if identity_of(entry) not in existing]
    if missing:
        store.add(key, missing)


def _entries(path: Path) -> list[Entry]:
    """Return the entries of a CLI's transcript, and its sidecar as the SDK's entry."""
    try:
        sidecar = [{"type": SIDECAR, **json.loads(_sidecar(path).read_bytes())}]
    except (OSError, ValueError, TypeError):
        sidecar = []
    return [*read_lines(path), *sidecar]


def _restore(store: TranscriptStore, kept: Path, project: Path) -> None:
    root = atomic.make_directory(project)
    for path, key in _transcripts(kept):
        target = root / path.relative_to(kept.parent)
        atomic.make_directory(target.parent)
        # Left by a killed restore: only the session's holder writes here, so no other is running.
        for leftover in target.parent.glob(f".{target.name}.*.tmp"):
            leftover.unlink(missing_ok=True)
        entries = store.read(key) or []
        sidecars = [entry for entry in entries if _is_sidecar(entry)]
        if sidecars:
            atomic.write(_sidecar(target), encode({key: value for key, value in sidecars[-1].items() if key != "type"}))
        atomic.write(target, b"".join(encode(entry) + b"\n" for entry in entries if not _is_sidecar(entry)))


def _is_sidecar(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("type") == SIDECAR


def _sidecar(path: Path) -> Path:
    return path.with_suffix(".meta.json")


def _file_name(part: object) -> str:
    """Return a part of a key as the name of a file or folder."""
    text = str(part)
    if not text or text in (".", "..") or os.sep in text or "\0" in text:
        raise Refused(f"{text!r} cannot be a part of a transcript's name")
    return text
