"""Details of one node for the page: attempts, incarnations, decisions, log and transcript.

Files are named by records, never by a request; long ones are read in pieces. A transcript becomes blocks:

    {"role": "assistant" | "tool" | "session", "kind": "text" | "thinking" | "tool_use" | "tool_result" | "result"
     | "note", "name", "text", "at", "life", "error"}
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from garrison.agents.claude.attempt_files import AttemptFiles
from garrison.errors import GarrisonError, NotFound
from garrison.pipeline.node_status import shown
from garrison.processes.runtime import Runtime
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.names import Key
from garrison.records.run import Result, RunFiles, Task
from garrison.records.store import Store
from garrison.views.event_log import GUARDIAN, NODE_ROLES, Event, EventLog
from garrison.views.explain import Line, explain
from garrison.views.review import choose_shown, find_entries

LOG_BYTES = 256 << 10
"""Bytes of a log in one response."""
LOG = "output.log"
LONGEST_LINE = 16 << 20
"""Longest line of a transcript that is read, in bytes."""
MAY_BE_TORN = 3
"""Bytes at the end of a log that may be an incomplete character."""
LINES = 200
"""Latest lines of a node's explanation that are sent."""
BLOCKS = 200
"""Blocks of a transcript in one response."""
BLOCK_CHARACTERS = 20_000
"""Longest block, in characters."""


# ---- detail


def node_detail(home: Path, run: str, node: str) -> dict[str, Any]:
    """Return everything about one node; NotFound if the run has no node of that name."""
    files = RunFiles(home, run)
    log = EventLog(home, run)
    events = log.read()
    names = {Key(role, node, run).full for role in NODE_ROLES}
    own = [event for event in events if event.node == node or event.about in names]
    last = files.latest_attempt(node)
    if not own and not last:
        raise NotFound(f"run {run} has no node {node}, or it has not been reached yet")
    task = _read(Task, files.attempt(node, last or 1) / "task.json")
    lines = explain(events, frozenset(names), [node])
    return {"node": node, "label": task.label if task else "", "prompt": task.prompt if task else "",
            "command": (task.command or "") if task else "", "acceptance": (task.acceptance or "") if task else "",
            "agent": task.agent if task else "",
            "attempts": [_attempt(files, node, own, number) for number in range(1, last + 1)],
            "hook": _hook(Store(home), Key("runner", node, run)),
            "why": [_line_json(line) for line in lines[-LINES:]],
            "transcripts": [{"attempt": number, "name": "session"} for number in range(1, last + 1)
                            if AttemptFiles(files.attempt(node, number)).stream.exists()],
            "review": _review(home, run, node) if last else None,
            "problems": sorted(log.problems)}


def _review(home: Path, run: str, node: str) -> dict[str, Any] | None:
    """Return which work of a node waits for approval; None if none does. The `changes` route shows it."""
    try:
        _, entries = find_entries(Runtime.real(home), run, node)
        entry = choose_shown(entries)
    except (GarrisonError, OSError):
        return None
    return {"attempt": entry.attempt, "commit": entry.oid, "entry": entry.id} if entry.awaits_approval else None


def _attempt(files: RunFiles, node: str, events: list[Event], number: int) -> dict[str, Any]:
    folder = files.attempt(node, number)
    result = _read(Result, folder / "result.json")
    task = _read(Task, folder / "task.json")
    changes = [change for change in map(_status_change, events) if change and change["attempt"] == number]
    started = next((change["at"] for change in changes if change["status"] == "active"), "")
    ended = next((change["at"] for change in changes if change["status"] in ("validated", "failed")), "")
    return {"attempt": number, "status": shown(changes[-1]["status"], changes[-1]["landing"]) if changes else "",
            "reason": changes[-1]["reason"] if changes else "", "why_again": task.rework_reason if task else "",
            "branch": f"garrison/{files.run}/{node}", "commit": (result.head or "") if result else "",
            "result": result.status if result else "", "tail": result.tail if result else "",
            "exit_code": result.exit_code if result else None, "started": started, "ended": ended,
            "log_bytes": _size(folder / "output.log"), "lives": incarnations(events, number)}


def _status_change(event: Event) -> dict[str, Any] | None:
    """Return a change of the node's status, from a guardian's record."""
    data = event.data if event.kind == "node" else event.data.get("effect") if event.kind == "signal" else None
    if event.journal != GUARDIAN or not data:
        return None
    return {"at": event.at, "status": data["status"], "attempt": data.get("attempt", 1),
            "reason": data.get("reason", ""), "landing": data.get("landing", "")}


def incarnations(events: list[Event], attempt: int) -> list[dict[str, Any]]:
    """Return the incarnations of a node's runner and agent in one attempt, in starting order. Pure."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for event in events:
        data = event.data
        if event.kind not in ("spawn", "death") or data.get("attempt", 1) != attempt or "full" not in data:
            continue
        key = (str(data["full"]), int(data["incarnation"]))
        row = rows.setdefault(key, {"who": key[0].partition("@")[0], "incarnation": key[1], "started": "",
                                    "ended": "", "how": "", "began": ""})
        if event.kind == "spawn":
            row.update(started=event.at, began=data.get("why", ""))
        else:
            row.update(ended=event.at, how=data.get("why", ""))
    return list(rows.values())


def _line_json(line: Line) -> dict[str, Any]:
    return {"at": line.at, "about": line.about.partition("@")[0], "kind": line.kind, "text": line.text,
            "observed": line.observed, "rule": line.rule, "same": line.same}


def _hook(store: Store, key: Key) -> dict[str, Any] | None:
    try:
        hook = store.read(Hook, key)
    except GarrisonError as error:
        return {"problem": str(error)}
    return None if hook is None else {"phase": hook.phase, "incarnation": hook.incarnation, "updated": hook.updated_at}


# ---- log and transcript


def read_log(home: Path, run: str, node: str, attempt: int | None, begin: int, stop: int = -1) -> dict[str, Any]:
    """Return a piece of an agent's output; `begin` is in bytes, negative from the end, `stop` where it ends (-1: none).

    A piece that begins in the middle of the file begins with a line.
    """
    folder, number = attempt_folder(home, run, node, attempt), attempt or RunFiles(home, run).latest_attempt(node)
    start, data, size = _read_piece(folder / LOG, begin, stop)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    end = start + len(data) - len(decoder.getstate()[0])  # an incomplete character is read again with the next piece
    return {"attempt": number, "text": text, "from": start, "next": end, "size": size,
            "more": end < size - MAY_BE_TORN, "ended": end >= size and _ended(folder)}


def read_transcript(home: Path, run: str, node: str, attempt: int | None, begin: int, stop: int = -1,
                    ) -> dict[str, Any]:
    """Return a piece of an attempt's Claude session as blocks; `begin` and `stop` are in bytes, as of a log.

    A last line that is still being written is left for the next call.
    """
    folder, number = attempt_folder(home, run, node, attempt), attempt or RunFiles(home, run).latest_attempt(node)
    start, data, size = _read_piece(AttemptFiles(folder).stream, begin, stop, whole_lines=True)
    lines = data.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    found = every = [(len(line), blocks_of(_parse(line))) for line in lines]
    if stop < 0:
        found = _bounded(every)
    else:  # a piece further back: its end joins what is known
        kept = _bounded(found[::-1])[::-1]
        start += sum(length for length, _ in found[:len(found) - len(kept)])
        found = kept
    end = start + sum(length for length, _ in found)
    more = end < size and (len(found) < len(every) or len(data) >= LOG_BYTES)
    return {"attempt": number, "blocks": [block for _, blocks in found for block in blocks], "from": start,
            "next": end, "more": more, "ended": not more and _ended(folder)}


def _bounded(lines: list[tuple[int, list[dict[str, Any]]]]) -> list[tuple[int, list[dict[str, Any]]]]:
    """Return the first lines of a transcript, up to `BLOCKS` blocks."""
    count, kept = 0, []
    for line in lines:
        if count >= BLOCKS:
            break
        count += len(line[1])
        kept.append(line)
    return kept


def _read_piece(path: Path, begin: int, stop: int, *, whole_lines: bool = False) -> tuple[int, bytes, int]:
    """Return (start, data, size of the file) of a piece of at most `LOG_BYTES`, if possible of `whole_lines`."""
    size = _size(path)
    start = max(0, size + begin) if begin < 0 else begin
    if start > size:  # the file was replaced
        start = 0
    end = size if stop < 0 else min(stop, size)
    if end <= start:
        return start, b"", size
    with path.open("rb") as file:
        if start and (begin < 0 or stop >= 0):
            file.seek(start - 1)
            aligned = start + len(file.readline(LOG_BYTES)) - 1
            start = aligned if aligned < end else start
        file.seek(start)
        data = file.read(max(0, min(LOG_BYTES, end - start)))
        if whole_lines and data and b"\n" not in data:
            data += file.readline(LONGEST_LINE)
    return start, data, size


def attempt_folder(home: Path, run: str, node: str, attempt: int | None) -> Path:
    """Return the folder of an attempt, by default the latest."""
    files = RunFiles(home, run)
    return files.attempt(node, attempt or files.latest_attempt(node))


def _ended(folder: Path) -> bool:
    return (folder / "result.json").exists()


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _read(kind: type[Any], path: Path) -> Any:
    try:
        return run_records.load(kind, path)
    except GarrisonError:
        return None


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116  # a size only
    except OSError:
        return 0


_BLOCKS: Mapping[str, tuple[str, str]] = {
    "text": ("assistant", "text"), "thinking": ("assistant", "thinking"), "tool": ("assistant", "tool_use"),
    "tool_result": ("tool", "tool_result"), "result": ("session", "result"), "begin": ("session", "note"),
    "retry": ("session", "note"), "limit": ("session", "note"), "note": ("session", "note"),
}
"""Kind of a stream's event → role and kind of its block; other kinds have none."""


def blocks_of(event: Any) -> list[dict[str, Any]]:
    """Return the block of one event of a session's stream, [] for none. Pure."""
    kind = str(event.get("kind", "")) if isinstance(event, dict) else ""
    if kind not in _BLOCKS:
        return []
    role, shown = _BLOCKS[kind]
    return [{"role": role, "kind": shown, "name": str(event.get("name", "")).removeprefix("mcp__garrison__"),
             "text": _block_text(kind, event)[:BLOCK_CHARACTERS], "at": str(event.get("at", "")),
             "life": event.get("life"), "error": bool(event.get("error"))}]


def _block_text(kind: str, event: Mapping[str, Any]) -> str:
    if kind == "tool":
        return json.dumps(event.get("input"), ensure_ascii=False, indent=1)
    if kind == "begin":
        how = "resumed" if event.get("resumed") else "started"
        return f"session {str(event.get('session', ''))[:8]} {how}, {event.get('model') or 'default model'}"
    if kind == "retry":
        return f"the API answered {event.get('status') or event.get('error') or 'nothing'}; retrying"
    if kind == "result":
        usd = event.get("usd")
        cost = f", ${usd:.4f} in all" if isinstance(usd, int | float) else ""
        how = f"failed: {event.get('said') or event.get('subtype', '')}" if event.get("error") else "ended its turn"
        return f"{how}{cost}"
    return str(event.get("text", ""))
