"""Event stream of a session (`stream.jsonl`): the events, their terminal rendering, the tool call in flight.

Each kind of agent translates its program's messages into events (`claude.client`, `acp.client`, `program_stream`), so
readers of a stream need no SDK.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict

from garrison.system import untrusted

if TYPE_CHECKING:
    from pathlib import Path

MAX_TEXT = 2_000
"""Characters of a tool's output that the stream keeps; the CLI's own transcript has the rest."""
_MAX_SHOWN = 240
_TAIL_BYTES = 256 * 1024
"""Bytes at the end of the stream that are read; results are cut, so a pending tool call is nearly always among them."""
TOOL_TIMEOUT = 900.0
"""Seconds that an observer lets a tool call be silent; slightly more than the session itself (`client`)."""


class Begin(TypedDict):
    """Start of the CLI: the session was started or resumed."""

    kind: Literal["begin"]
    session: str
    model: str
    resumed: bool
    version: str
    servers: Mapping[str, str]
    """MCP server → its status."""


class Text(TypedDict):
    """Text or thinking of the model."""

    kind: Literal["text", "thinking"]
    text: str


class Partial(TypedDict):
    """Piece of a text that is still being written, if the client requests pieces; the whole text follows as `Text`."""

    kind: Literal["partial"]
    text: str


class ModelToolCall(TypedDict):
    """Call of a tool by the model."""

    kind: Literal["tool"]
    id: str
    name: str
    input: object


class ToolResult(TypedDict):
    """Result of a tool call, cut to `MAX_TEXT`."""

    kind: Literal["tool_result"]
    id: str
    text: str
    error: bool


class Retry(TypedDict):
    """Refusal by the API, which the CLI retries after `delay` seconds."""

    kind: Literal["retry"]
    status: int | None
    error: str
    delay: float
    attempt: int | None


class RateLimit(TypedDict):
    """State of a rate limit; `resets_at` in seconds since 1970."""

    kind: Literal["limit"]
    status: str
    resets_at: float | None
    type: str | None
    """Window of a subscription, such as `five_hour`."""
    used: float | None
    """Used fraction, if known."""


class TokenUsage(TypedDict):
    """Token counts of one model response; not in `stream.jsonl` but in `usage.jsonl`."""

    kind: Literal["usage"]
    message: str
    model: str
    usage: Mapping[str, object]
    final: bool
    """All tokens of a streamed response are known; its tools run next."""
    last: bool
    """True if it calls no tool, so that it ends its turn."""
    is_full: bool
    """True if it was cut because the context is full: the CLI would repeat the request."""


class TurnSummary(TypedDict):
    """End of a turn; the last four fields are not in `stream.jsonl`."""

    kind: Literal["result"]
    subtype: str
    error: bool
    said: str
    usd: float | None
    """Cost since the start of the session."""
    turns: int
    status: int | None
    terminal_reason: str | None
    usage: Mapping[str, object] | None
    session: str
    refused: bool
    """True if the model refused to answer."""
    structured: object
    """The answer as JSON data, if a schema was required and the model kept to it."""


class Note(TypedDict):
    """Something that garrison did."""

    kind: Literal["note"]
    text: str


Event: TypeAlias = ("Begin | Text | Partial | ModelToolCall | ToolResult | Retry | RateLimit | TokenUsage | "
                    "TurnSummary | Note")


def render(event: Mapping[str, Any]) -> str:
    """Return the line or lines for the terminal; '' for an event that is not shown."""
    renderer = _RENDERERS.get(event["kind"])
    return renderer(event) if renderer else ""


def cut(text: str) -> str:
    """Leave out the middle of a long text."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT // 2]}\n… {len(text) - MAX_TEXT} characters …\n{text[-MAX_TEXT // 2:]}"


class CallInFlight(NamedTuple):
    """Tool call without a result: the tool, and its main argument."""

    name: str
    argument: str


def tool_in_flight(attempt: Path) -> tuple[str, float] | None:
    """Return (name, seconds it may be silent) of this attempt's last tool call without a result."""
    calls = _calls(attempt, resumed_end_calls=True)
    return (calls[-1].name, TOOL_TIMEOUT) if calls else None


def calls_in_flight(attempt: Path) -> list[CallInFlight]:
    """Return the tool calls that the last interruption of this attempt's session cut off.

    A session that was interrupted again before its model answered still has the earlier ones.
    """
    return _calls(attempt, resumed_end_calls=False)


def _calls(attempt: Path, *, resumed_end_calls: bool) -> list[CallInFlight]:
    calls: dict[str, CallInFlight] = {}
    has_begun = False
    for line in untrusted.read_end(attempt / "claude", "stream.jsonl", _TAIL_BYTES).encode().splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # the first line of the tail is cut, the last may be torn
            continue
        kind = event.get("kind") if isinstance(event, dict) else None
        # Once the model of a resumed session answers, it has seen the results of the interrupted calls.
        if kind == "result" or (has_begun and kind in _SPOKEN) or (kind == "begin" and resumed_end_calls):
            calls.clear()
        has_begun = kind == "begin" or (has_begun and kind not in _SPOKEN)
        if kind == "tool":
            calls[str(event.get("id"))] = CallInFlight(str(event.get("name", "")), _main_argument(event.get("input")))
        elif kind == "tool_result":
            calls.pop(str(event.get("id")), None)
    return list(calls.values())


_SPOKEN = frozenset({"text", "thinking", "tool"})
"""Kinds of events with output of the model."""


def _render_begin(event: Mapping[str, Any]) -> str:
    how = "resumed" if event.get("resumed") else "begun"
    return f"── session {event['session'][:8]} {how}, {event.get('model') or 'default model'}"


def _render_text(event: Mapping[str, object]) -> str:
    return str(event["text"]).strip()


def _render_thinking(event: Mapping[str, Any]) -> str:
    return "  (thinks) " + _one_line(event["text"]) if event["text"].strip() else ""


def describe_call(event: Mapping[str, Any]) -> str:
    """Return a tool call in one line: the tool and its main argument."""
    return f"{event['name'].removeprefix('mcp__garrison__')} {_one_line(_main_argument(event['input']))}"


def _render_tool(event: Mapping[str, object]) -> str:
    return f"  → {describe_call(event)}"


def _main_argument(arguments: object) -> str:
    if isinstance(arguments, dict):
        for name in ("command", "file_path", "path", "pattern", "question", "summary", "text", "phase"):
            if isinstance(arguments.get(name), str):
                return str(arguments[name])
    return json.dumps(arguments, ensure_ascii=False)


def _render_tool_result(event: Mapping[str, Any]) -> str:
    mark = "✗" if event.get("error") else "←"
    return f"  {mark} {_one_line(event['text'])}" if event["text"].strip() else f"  {mark} (nothing)"


def _render_retry(event: Mapping[str, object]) -> str:
    return f"  … the API answered {event.get('status') or event.get('error') or 'nothing'}; trying again in " \
           f"{event.get('delay', 0):.0f} s"


def _render_note(event: Mapping[str, object]) -> str:
    return f"── {event['text']}"


def _render_result(event: Mapping[str, Any]) -> str:
    cost = f", ${event['usd']:.4f} in all" if event.get("usd") is not None else ""
    failure = _one_line(event.get("said") or event.get("subtype", ""))
    how = f"failed: {failure}" if event.get("error") else "ended its turn"
    return f"── session {how}{cost}"


def _one_line(text: str) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _MAX_SHOWN else line[: _MAX_SHOWN - 1] + "…"


_RENDERERS: Mapping[str, Callable[[Mapping[str, object]], str]] = {
    "begin": _render_begin, "text": _render_text, "thinking": _render_thinking, "tool": _render_tool,
    "tool_result": _render_tool_result, "retry": _render_retry, "note": _render_note, "result": _render_result}
