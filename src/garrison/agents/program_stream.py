"""Stream of a program that prints one JSON object per line: `claude -p --output-format stream-json`, `codex exec
--json`.

The program's standard output is `stream/lines.jsonl` of its attempt. Each line becomes events (`conversation.stream`),
which are shown in the output; the session's id, the usage, the last message and the result are kept. The read position
and the session are in `stream/session.json`, so that a successor continues where a killed orchestrator stopped.

The lines come from an agent and count as hostile: lines longer than `MAX_LINE`, and anything that is not an object, are
skipped.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from garrison.agents.conversation.stream import cut, render
from garrison.records import atomic
from garrison.records.costs import STREAM, UsageRecord, append_usage, call_record, now, token_count
from garrison.records.json_io import encode, read_json
from garrison.records.log_retention import find_data
from garrison.sandbox.place import NETWORK_FOLDER
from garrison.system.terminal_text import clean_lines

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.agents.conversation.loop_detector import LoopDetector

MAX_LINE = 1 << 20
_STEP = 4 << 20
"""Bytes per read: the caller has more to do."""
_MAX_TEXT = 20_000
"""Characters at the end of the last message that are kept."""
_MAX_ID = 200
_MAX_BLOCKS = 200
_MAX_MESSAGES = 10_000
"""Most messages of a turn whose tokens are compared with the turn's."""
_MAX_USD, _MAX_TIME = 1e6, 4e9
_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")

_SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,199}")
"""Id of a session that is safe as a word of a command line."""

Event = dict[str, Any]


@dataclass
class ProgramState:
    """What a program has reported in the lines so far."""

    session: str = ""
    model: str = ""
    has_begun: bool = False
    """Its session was started or resumed."""
    message: str = ""
    """Its last message."""
    result: dict[str, object] | None = None
    """The object that ended its last turn."""
    failure: str = ""
    """Why its last turn failed, '' if it did not."""
    status: int | None = None
    """HTTP status of the answer that failed its last turn, None if it names none."""
    error: str = ""
    """Its own name for that failure, '' for none."""
    resets_at: float | None = None
    """When the limit that refused it is reset, in seconds since 1970, if reported."""
    response: str = ""
    """Id of the message whose tokens are reported piece by piece."""
    usage: dict[str, object] = field(default_factory=dict)
    """Tokens of that message so far."""


class StreamFormat:
    """One program's lines: `read` yields the events of an object and updates what was reported."""

    reporter = ""
    """Prefix of the User-Agent of a program that reports the tokens of each response, '' for one that does not."""

    def read(self, told: ProgramState, body: Mapping[str, object]) -> Iterator[Event]:
        """Yield the events of one object."""
        raise NotImplementedError


class ClaudeStream(StreamFormat):
    """Lines of `claude -p --output-format stream-json --verbose`, with or without `--include-partial-messages`."""

    reporter = "claude-cli/"

    def read(self, told: ProgramState, body: Mapping[str, object]) -> Iterator[Event]:
        """Yield the events of one object."""
        kind, message = body.get("type"), _object(body.get("message"))
        if kind == "system" and body.get("subtype") == "init":
            yield _begin(told, body.get("session_id"), body.get("model"))
        elif kind == "assistant":
            message_id = _text(message.get("id"))[:_MAX_ID]
            # The pieces of a streamed response have reported its tokens; here the output counts only the first token.
            if (usage := _object(message.get("usage"))) and message_id != told.response:
                yield {"kind": "usage", "message": message_id, "usage": usage,
                       "model": _text(message.get("model"))[:_MAX_ID]}
            told.error = _text(body.get("error"))[:_MAX_ID]
            yield from self._blocks(told, message)
        elif kind == "stream_event":
            yield from self._piece(told, _object(body.get("event")))
        elif kind == "user":
            for block in _blocks(message):
                if block.get("type") == "tool_result":
                    yield {"kind": "tool_result", "id": _text(block.get("tool_use_id"))[:_MAX_ID],
                           "text": cut(_content(block.get("content"))),
                           "error": block.get("is_error") is True}
        elif kind == "rate_limit_event":
            info = _object(body.get("rate_limit_info"))
            told.resets_at = _amount(info.get("resetsAt"), _MAX_TIME) if info.get("status") == "rejected" else None
        elif kind == "result":
            status = body.get("api_error_status")
            told.status = status if type(status) is int and 400 <= status < 600 else None
            told.result, told.message = dict(body), _text(body.get("result"))[-_MAX_TEXT:] or told.message
            failed = body.get("is_error") is True
            told.failure = (told.message or _text(body.get("subtype")) or "no reason") if failed else ""
            yield {"kind": "result", "error": failed, "said": told.failure,
                   "usd": _amount(body.get("total_cost_usd")), "turn": _object(body.get("usage"))}

    def _piece(self, told: ProgramState, event: Mapping[str, object]) -> Iterator[Event]:
        """Yield the tokens of a message at its start, and all of them at its end, before its tools run."""
        kind, message = event.get("type"), _object(event.get("message"))
        if kind == "message_start":
            told.response, told.usage = _text(message.get("id"))[:_MAX_ID], {}
        if kind in ("message_start", "message_delta"):
            new = _object(message.get("usage") if kind == "message_start" else event.get("usage"))
            told.usage.update({name: new[name] for name in _COUNTS if new.get(name) is not None})
            yield {"kind": "usage", "message": told.response, "model": _text(message.get("model"))[:_MAX_ID],
                   "usage": dict(told.usage)}

    def _blocks(self, told: ProgramState, message: Mapping[str, object]) -> Iterator[Event]:
        for block in _blocks(message):
            if block.get("type") == "text":
                told.message = _text(block.get("text"))[-_MAX_TEXT:]
                yield {"kind": "text", "text": told.message}
            elif block.get("type") == "thinking":
                yield {"kind": "thinking", "text": cut(_text(block.get("thinking")))}
            elif block.get("type") == "tool_use":
                yield {"kind": "tool", "id": _text(block.get("id"))[:_MAX_ID],
                       "name": _text(block.get("name"))[:_MAX_ID], "input": block.get("input")}


class CodexStream(StreamFormat):
    """Lines of `codex exec --json`, which report only the tokens of finished turns: the proxy's counts are better."""

    _TOOLS: Mapping[str, tuple[str, ...]] = {
        "command_execution": ("command",), "mcp_tool_call": ("server", "tool"), "web_search": ("query",),
        "file_change": ("changes",)}
    """Kind of a tool call's item → its description."""

    def read(self, told: ProgramState, body: Mapping[str, object]) -> Iterator[Event]:
        """Yield the events of one object."""
        kind, item = body.get("type"), _object(body.get("item"))
        if kind == "thread.started":
            yield _begin(told, body.get("thread_id"), "")
        elif kind in ("item.started", "item.completed"):
            yield from self._item(told, item, is_over=kind == "item.completed")
        elif kind == "turn.completed":
            told.result, told.failure = dict(body), ""
            yield {"kind": "result", "error": False, "said": "", "usd": None, "turn": {}}
            yield {"kind": "usage", "message": "", "model": told.model, "usage": _codex_usage(body.get("usage"))}
        elif kind in ("turn.failed", "error"):
            said = _text(_object(body.get("error")).get("message")) or _text(body.get("message")) or "no reason"
            if kind == "turn.failed":
                told.result, told.failure = dict(body), said[:_MAX_TEXT]
                yield {"kind": "result", "error": True, "said": said[:_MAX_TEXT], "usd": None, "turn": {}}
            else:
                yield {"kind": "note", "text": cut(said)}

    def _item(self, told: ProgramState, item: Mapping[str, object], *, is_over: bool) -> Iterator[Event]:
        kind, call = _text(item.get("type")), _text(item.get("id"))[:_MAX_ID]
        if kind == "agent_message" and is_over:
            told.message = _text(item.get("text"))[-_MAX_TEXT:]
            yield {"kind": "text", "text": told.message}
        elif kind == "reasoning" and is_over:
            yield {"kind": "thinking", "text": cut(_text(item.get("text")))}
        elif kind == "error" and is_over:
            yield {"kind": "note", "text": cut(_text(item.get("message")))}
        elif kind in self._TOOLS and not is_over:
            about = " ".join(_content(item.get(name)) for name in self._TOOLS[kind])
            yield {"kind": "tool", "id": call, "name": kind, "input": {"command": cut(about)}}
        elif kind in self._TOOLS:
            yield {"kind": "tool_result", "id": call, "text": cut(_content(item.get("aggregated_output"))),
                   "error": item.get("status") == "failed"}


FORMATS: Mapping[str, StreamFormat] = {"claude": ClaudeStream(), "codex": CodexStream()}
"""Value of the setting `stream` → its format."""


@dataclass
class StreamFiles:
    """Files of an attempt's stream."""

    attempt: Path
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.attempt / STREAM
        self.lines = self.folder / "lines.jsonl"
        self.session = self.folder / "session.json"
        self.usage = self.folder / "usage.jsonl"


def find_mender(attempt: Path) -> str:
    """Return the session id of a refused attempt that can continue; '' if it was already resumed that way."""
    kept = read_json(StreamFiles(attempt).session)
    return str(kept.get("id", "")) if isinstance(kept, dict) and not kept.get("mends") else ""


class ProgramStream:
    """Reader of an attempt's stream; a new one continues where the previous one stopped."""

    def __init__(self, format: StreamFormat, attempt: Path, output: Path) -> None:
        self.files, self.told = StreamFiles(attempt), ProgramState()
        self._format, self._output = format, output
        atomic.make_directory(self.files.folder)
        kept = read_json(self.files.session)
        kept = kept if isinstance(kept, dict) else {}
        self.offset = token_count(kept, "offset")
        """Bytes that have been read."""
        self.told.session = str(kept.get("id", ""))
        self.mends = bool(kept.get("mends"))
        """True if its session is the previous refused attempt's, which continues."""
        self._connection = now()
        self._counted: dict[str, Mapping[str, object]] = {}
        """Message of this turn → its usage so far."""
        self._late: list[UsageRecord] = []
        """Records of a program that does not report each response, until it is known whether the proxy has counted."""
        self._is_too_long = False
        self.loops: LoopDetector | None = None
        """Watches the calls that are read from now on."""
        self.goes_round = ""
        """Why the session is looping; '' if it is not."""

    def take_refused(self, refused: Path | None) -> None:
        """Continue the previous refused attempt's session, unless there already is one."""
        if refused is not None and not self.told.session and not self.offset:
            self.told.session = find_mender(refused)
            self.mends = bool(self.told.session)

    def catch_up(self) -> None:
        """Read the rest of a predecessor's output, and forget everything except the session."""
        self.finish()
        self.told = ProgramState(self.told.session, self.told.model)
        self._counted, self._is_too_long = {}, False
        with self.files.lines.open("ab") as file:
            if file.tell() > 0:  # a kill may have torn the last line; the next one must start after it
                file.write(b"\n")

    def finish(self) -> None:
        """Read the rest of the output of a program that has ended."""
        while self.read():
            pass
        self.read(is_whole=True)
        by_proxy = self.files.attempt / NETWORK_FOLDER / self.files.usage.name
        if self._late and not (by_proxy.exists() and by_proxy.stat().st_size):
            for record in self._late:
                append_usage(self.files.usage, record)
        self._late = []

    def read(self, *, is_whole: bool = False) -> bool:
        """Read new output, at most `_STEP` bytes; return whether there is more.

        `is_whole`: text after the last line break is a complete line.
        """
        try:
            with self.files.lines.open("rb") as file:
                begin, _ = find_data(file.fileno(), self.offset, os.fstat(file.fileno()).st_size)
                if begin - self.offset > MAX_LINE:  # a sparse terabyte, which takes no room, would be read for an hour
                    self.offset, self._is_too_long = begin, True
                file.seek(self.offset)
                block = file.read(_STEP)
        except FileNotFoundError:
            return False
        end = len(block) if is_whole else block.rfind(b"\n") + 1
        shown: list[str] = []
        for line in block[:end].removesuffix(b"\n").split(b"\n") if end else ():
            shown += self._read_line(line)
            self.offset += len(line) + 1
        if not end and len(block) > MAX_LINE:
            self.offset, self._is_too_long = self.offset + len(block), True
        elif not end:
            return False
        # The offset before the output: after a kill in between, lines are not shown; the other order would show them
        # twice.
        kept = encode({"id": self.told.session, "offset": self.offset, **({"mends": True} if self.mends else {})})
        atomic.write(self.files.session, kept, durable=False)  # the hook keeps the session through a power cut
        if shown:
            with self._output.open("ab") as output:
                output.write("".join(f"{text}\n" for text in shown).encode(errors="replace"))
        return len(block) == _STEP

    def _read_line(self, line: bytes) -> list[str]:
        """Process one line; return what to show."""
        if self._is_too_long or len(line) > MAX_LINE:
            self._is_too_long = False
            return [f"── a line of more than {MAX_LINE >> 20} MiB is left out"]
        if not line.strip():
            return []
        try:
            body = json.loads(line)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            return ["\n".join(clean_lines(cut(line.decode(errors="replace"))))]
        shown = []
        for event in self._format.read(self.told, body):
            self._count(event)
            if self.loops is not None and event["kind"] in ("tool", "tool_result"):
                self.goes_round = self.goes_round or self.loops.observe(event)
            if text := render(event):
                shown.append("\n".join(clean_lines(text)))
        return shown

    # ---- usage

    def _count(self, event: Event) -> None:
        """Record the tokens and the cost of an event; repeated by a successor, it has the same message id."""
        if event["kind"] == "usage":
            self._record(event["message"] or f"at {self.offset}", event["model"] or self.told.model, event["usage"])
        elif event["kind"] == "result":
            self._record_rest(event["turn"])
            if event["usd"]:
                append_usage(self.files.usage, UsageRecord("result", self.told.session, now(), event["usd"],
                                                           connection=self._connection))

    def _record(self, message: str, model: str, usage: Mapping[str, object]) -> None:
        record = call_record(self.told.session, now(), message, model, usage, self._connection)
        if self._format.reporter:
            append_usage(self.files.usage, record)
        else:
            self._late.append(record)
        if len(self._counted) < _MAX_MESSAGES:
            self._counted[message] = usage

    def _record_rest(self, turn: Mapping[str, object]) -> None:
        """Record the tokens of a turn that its messages did not report: each message is printed when it starts."""
        counted = self._counted.values()
        rest = {name: max(0, token_count(turn, name) - sum(token_count(usage, name) for usage in counted))
                for name in _COUNTS}
        if any(rest.values()):
            self._record(f"rest at {self.offset}", self.told.model, rest)
        self._counted = {}


def _begin(told: ProgramState, session: object, model: object) -> Event:
    resumed = told.session != "" and told.session == session
    if _SESSION.fullmatch(_text(session)):
        told.session = _text(session)
    told.model, told.has_begun = _text(model)[:_MAX_ID], True
    return {"kind": "begin", "session": told.session, "model": told.model, "resumed": resumed}


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _amount(value: object, limit: float = _MAX_USD) -> float | None:
    """Return a number from 0 up to a limit, of US dollars or of seconds since 1970; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < limit else None


def _content(value: object) -> str:
    """Return the text of a content: a text, or blocks of it."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        parts = [_text(_object(each).get("text")) or _text(_object(each).get("path")) for each in value[:_MAX_BLOCKS]]
        return "\n".join(part for part in parts if part)
    return ""


def _blocks(message: Mapping[str, object]) -> list[Mapping[str, object]]:
    content = message.get("content")
    return [_object(block) for block in content[:_MAX_BLOCKS]] if isinstance(content, list) else []


def _codex_usage(value: object) -> Mapping[str, object]:
    """Convert Codex's counts to those of the Messages API, where cached tokens are not part of the input."""
    usage = _object(value)
    cached = token_count(usage, "cached_input_tokens")
    return {"input_tokens": max(0, token_count(usage, "input_tokens") - cached), "cache_read_input_tokens": cached,
            "output_tokens": token_count(usage, "output_tokens")}
