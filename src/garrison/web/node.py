"""Details of one node for the page: attempts, incarnations, decisions, log and transcript.

Files are named by records, never by a request; long ones are read in pieces. A transcript becomes blocks. A search
finds the next place of a text, forwards or back, however long the file is: a request scans a bounded part; `next` is
where the following one continues. Case is ignored for ASCII letters.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from garrison.agents.conversation.files import AttemptFiles
from garrison.errors import GarrisonError, NotFound, UsageError
from garrison.pipeline.node_status import shown
from garrison.pipeline.plan import PlannedTask
from garrison.processes.runtime import Runtime
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.names import Key, branch_name
from garrison.records.run import Result, RunFiles, Task
from garrison.records.store import Store
from garrison.run.plan import read_plan
from garrison.values import Value, replace
from garrison.views.changes import choose_shown, find_entries
from garrison.views.event_log import NODE_ROLES, EventLog, LoggedEvent
from garrison.views.explain import change_of, explain, plain_words

T = TypeVar("T")
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
SCAN_BYTES = 64 << 20
"""Bytes that one request of a search scans."""
CHUNK = 1 << 20
LINE_BYTES = 64 << 10
"""Bytes before a place that are searched for the start of its line."""


# ---- detail


class ShownIncarnation(Value):
    """One incarnation of a node's runner or agent."""

    who: str
    incarnation: int
    started: str = ""
    ended: str = ""
    how: str = ""
    """Why it ended, `began` why it was started."""
    began: str = ""


class ShownAttempt(Value):
    """One attempt at a node."""

    attempt: int
    status: str
    reason: str
    why_again: str
    branch: str
    commit: str
    result: str
    tail: str
    exit_code: int | None
    started: str
    ended: str
    log_bytes: int
    incarnations: list[ShownIncarnation] = msgspec.field(name="lives")


class ShownHook(Value):
    """The hook of a node's runner."""

    phase: str
    incarnation: int
    updated: str


class UnreadableHook(Value):
    """Why a hook cannot be read."""

    problem: str


class ShownLine(Value):
    """A line of a node's explanation."""

    at: str
    about: str
    kind: str
    text: str
    observed: str
    rule: str
    same: bool | None
    plain: str | None = None
    """Text for the user: None if only its supervisor needs it, '' if `text` serves."""


class Transcript(Value):
    """An attempt that has a transcript."""

    attempt: int
    name: str = "session"


class Approval(Value):
    """Work that waits for approval; the `changes` route shows it."""

    attempt: int
    commit: str
    entry: str


class NodeDetail(Value):
    """Everything about one node."""

    node: str
    label: str
    prompt: str
    command: str
    acceptance: str
    agent: str
    attempts: list[ShownAttempt]
    hook: ShownHook | UnreadableHook | None
    why: list[ShownLine]
    transcripts: list[Transcript]
    review: Approval | None
    problems: list[str]


def node_detail(home: Path, run: str, node: str) -> NodeDetail:
    """Read everything about one node; NotFound if the run has no node of that name."""
    files = RunFiles(home, run)
    log = EventLog(home, run)
    events = log.read()
    names = {Key(role, node, run).full for role in NODE_ROLES}
    own = [event for event in events if event.node == node or event.about in names]
    last = files.latest_attempt(node)
    task = _read(Task, files.attempt(node, last or 1) / "task.json") or _planned(files, node)
    if not own and not last and task is None:
        raise NotFound(f"run {run} has no node {node}, or it has not been reached yet")
    plain = plain_words(own)
    lines = [ShownLine(line.at, line.about.partition("@")[0], line.kind, line.text, line.observed, line.rule, line.same,
                       plain.get((line.at, line.by, line.kind)))
             for line in explain(events, frozenset(names), [node])[-LINES:]]
    return NodeDetail(
        node, task.label if task else "", task.prompt if task else "", (task.command or "") if task else "",
        (task.acceptance or "") if task else "", (task.agent or "") if task else "",
        [read_attempt(files, node, own, number) for number in range(1, last + 1)],
        _hook(Store(home), Key("runner", node, run)), lines,
        [Transcript(number) for number in range(1, last + 1)
         if AttemptFiles(files.attempt(node, number)).stream.exists()],
        _review(home, run, node) if last else None, sorted(log.problems))


def _planned(files: RunFiles, node: str) -> PlannedTask | None:
    """Return a task that has not started, as the current graph has it; None without one, or if unreadable."""
    with suppress(GarrisonError, OSError):
        return read_plan(files).tasks.get(node)
    return None


def _review(home: Path, run: str, node: str) -> Approval | None:
    """Return the work of a node that waits for approval; None if there is none."""
    try:
        _, entries = find_entries(Runtime.real(home), run, node)
        entry = choose_shown(entries)
    except (GarrisonError, OSError):
        return None
    return Approval(entry.attempt, entry.oid, entry.id) if entry.awaits_approval else None


def read_attempt(files: RunFiles, node: str, events: list[LoggedEvent], number: int) -> ShownAttempt:
    """Return an attempt as the page shows it."""
    folder = files.attempt(node, number)
    result = _read(Result, folder / "result.json")
    task = _read(Task, folder / "task.json")
    changes = [(event.at, change) for event in events
               if (change := change_of(event, node)) is not None and change.attempt == number]
    started = next((at for at, change in changes if change.status == "active"), "")
    ended = next((at for at, change in changes if change.status in ("validated", "failed")), "")
    last = changes[-1][1] if changes else None
    return ShownAttempt(
        number, shown(last.status, last.landing) if last else "", last.reason if last else "",
        task.rework_reason if task else "", branch_name(files.run, node), (result.head or "") if result else "",
        result.status if result else "", result.tail if result else "", result.exit_code if result else None, started,
        ended, _size(folder / LOG), incarnations(events, number))


def incarnations(events: list[LoggedEvent], attempt: int) -> list[ShownIncarnation]:
    """Return the incarnations of a node's runner and agent in one attempt, in starting order. Pure."""
    rows: dict[tuple[str, int], ShownIncarnation] = {}
    for event in events:
        data = event.data
        if event.kind not in ("spawn", "death") or data.get("attempt", 1) != attempt or "full" not in data:
            continue
        key = (str(data["full"]), int(data["incarnation"]))
        row, why = rows.get(key, ShownIncarnation(key[0].partition("@")[0], key[1])), data.get("why", "")
        rows[key] = replace(row, started=event.at, began=why) if event.kind == "spawn" else \
            replace(row, ended=event.at, how=why)
    return list(rows.values())


def _hook(store: Store, key: Key) -> ShownHook | UnreadableHook | None:
    try:
        hook = store.read(Hook, key)
    except GarrisonError as error:
        return UnreadableHook(str(error))
    return None if hook is None else ShownHook(hook.phase, hook.incarnation, hook.updated_at)


# ---- log and transcript


class Piece(Value, kw_only=True):
    """Piece of a file in bytes: it starts at `begin`, the following one at `next`."""

    attempt: int
    begin: int = msgspec.field(name="from")
    next: int
    more: bool
    """True if more of it can be read at once."""
    ended: bool
    """True if the file is complete."""


class LogPiece(Piece, kw_only=True):
    """Piece of an agent's output."""

    text: str
    size: int


class SessionBlock(Value):
    """Something that was said or done in a session."""

    role: str
    kind: str
    name: str
    text: str
    at: str
    incarnation: int | None = msgspec.field(name="life")
    error: bool


class TranscriptPiece(Piece, kw_only=True):
    """Piece of a session."""

    blocks: list[SessionBlock]


def read_log(home: Path, run: str, node: str, attempt: int | None, begin: int, stop: int = -1) -> LogPiece:
    """Return a piece of an agent's output; `begin` is in bytes, negative from the end, `stop` where it ends (-1: none).

    A piece from the middle of the file starts with a whole line.
    """
    folder, number = attempt_folder(home, run, node, attempt), attempt or RunFiles(home, run).latest_attempt(node)
    start, data, size = _read_piece(folder / LOG, begin, stop)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    end = start + len(data) - len(decoder.getstate()[0])  # an incomplete character is read again with the next piece
    return LogPiece(attempt=number, text=text, begin=start, next=end, size=size, more=end < size - MAY_BE_TORN,
                    ended=end >= size and _ended(folder))


def read_transcript(home: Path, run: str, node: str, attempt: int | None, begin: int, stop: int = -1,
                    ) -> TranscriptPiece:
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
    return TranscriptPiece(attempt=number, blocks=[block for _, blocks in found for block in blocks], begin=start,
                           next=end, more=more, ended=not more and _ended(folder))


def _bounded(lines: list[tuple[int, list[SessionBlock]]]) -> list[tuple[int, list[SessionBlock]]]:
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
            file.seek(start - 1)  # the byte before: a piece right after a line break already starts with a line
            aligned = start + len(file.readline(LOG_BYTES)) - 1
            start = aligned if aligned < end else start  # a line that is longer than the piece
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


def _parse(line: bytes) -> Mapping[str, Any]:
    """Return the event of a line; an empty one if it is none."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _read(kind: type[T], path: Path) -> T | None:
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


def blocks_of(event: Mapping[str, Any]) -> list[SessionBlock]:
    """Return the block of one event of a session's stream, [] for none. Pure."""
    kind = str(event.get("kind", ""))
    if kind not in _BLOCKS:
        return []
    role, shown = _BLOCKS[kind]
    return [SessionBlock(role, shown, str(event.get("name", "")).removeprefix("mcp__garrison__"),
                         _block_text(kind, event)[:BLOCK_CHARACTERS], str(event.get("at", "")), event.get("life"),
                         bool(event.get("error")))]


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


# ---- search


class TextMatch(Value):
    """Place of a text in a file of `size` bytes; None where nothing was found in the part that was scanned."""

    found: int | None
    line: int | None
    """Where its line starts."""
    next: int | None
    """Where to continue if nothing was found, None at the end."""
    size: int


def find_text(home: Path, run: str, node: str, attempt: int | None, file: str, text: str, begin: int, *,
              backwards: bool = False) -> TextMatch:
    """Return the first place of `text` at or after the byte `begin`, or the last before it.

    NotFound for a file that cannot be searched, UsageError for an empty text.
    """
    folder = attempt_folder(home, run, node, attempt)
    paths = {"log": folder / LOG, "transcript": AttemptFiles(folder).stream}
    if file not in paths:
        raise NotFound(f"there is no {file!r:.40} to search; there are {', '.join(paths)}")
    if not text:
        raise UsageError("pass q, the text to search for")
    if file == "transcript":  # its lines are JSON
        text = json.dumps(text, ensure_ascii=False)[1:-1]
    return search_file(paths[file], text.encode(errors="replace").lower(), begin, backwards=backwards)


def search_file(path: Path, wanted: bytes, begin: int, *, backwards: bool = False, chunk: int = CHUNK,
                scan: int = SCAN_BYTES) -> TextMatch:
    """Find bytes in lower case as `find_text` does: search at most `scan` bytes, `chunk` at a time."""
    try:
        file = path.open("rb")
    except OSError:
        return TextMatch(None, None, None, 0)
    with file:
        size = file.seek(0, 2)
        place = max(0, min(size, begin if begin >= 0 else size))
        last = max(0, place - scan) if backwards else min(size, place + scan)
        overlap = len(wanted) - 1  # a match may cross the border of two chunks
        while place > last if backwards else place < last:
            start = max(last, place - chunk) if backwards else place
            length = place - start if backwards else min(chunk, last - place)
            file.seek(start)
            data = file.read(length + overlap).lower()
            at = data.rfind(wanted) if backwards else data.find(wanted)
            if at >= 0:
                found = start + at
                return TextMatch(found, _line_start(path, found), None, size)
            place = start if backwards else start + length
        is_done = last == (0 if backwards else size)
        return TextMatch(None, None, None if is_done else last, size)


def _line_start(path: Path, place: int) -> int:
    with path.open("rb") as file:
        begin = max(0, place - LINE_BYTES)
        file.seek(begin)
        return begin + file.read(place - begin).rfind(b"\n") + 1
