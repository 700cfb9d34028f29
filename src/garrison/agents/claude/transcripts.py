"""Before a session is resumed: the CLI's transcript and the copy in the attempt's folder are brought together.

The CLI's own files are the truth while they exist, and the copy catches up with them (a kill may have cost it the last
lines). Where they are gone, they are written again from the copy: subagents first, the session's own last and at once,
so that a kill in between leaves nothing that looks whole. Only the holder of the session's lock calls this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from garrison.agents.claude.files import encode, read_lines
from garrison.agents.claude.store import Entry, TranscriptStore, once, same
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
