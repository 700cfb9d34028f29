"""Turns of a scripted model, and the faults that occur before them. Values only; `model_apis` encodes them.

A `Turn` is one assistant message. A `Fault` is one failure; it occurs `times` times, then the turn is sent. Invalid
values raise `ScriptError` when they are created. `script` reads both from YAML or JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeGuard

import msgspec

from garrison.errors import UsageError
from garrison.values import Value, replace

ALWAYS = 1 << 30
MANY_BYTES = (1 << 20) + 4096
"""Slightly more than the longest line that a reader accepts by default."""

PLACES = ("before", "headers", "stream")
KINDS = {
    "status": "an HTTP status (429, 529, 401 …), with retry_after, type, message, headers",
    "too_long": "400 'prompt is too long'",
    "drop": "the connection is reset: before | headers | stream (before, within, after the headers)",
    "hang": "silence: before | headers | stream, for `seconds` or until released; then the turn is sent",
    "malformed": "the stream breaks the protocol: json | event | order",
    "stream_error": "an error event in mid-stream, with this type (overloaded_error …)",
    "oversize": "one line of the stream has this many bytes (true: a little over 1 MiB)",
}


def _is_whole(value: object, least: int = 0) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_length(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value >= 0)


_VALID: dict[str, Callable[[object], bool]] = {
    "status": lambda value: _is_whole(value, 200) and value < 600, "too_long": lambda value: value is True,
    "drop": PLACES.__contains__, "hang": PLACES.__contains__, "malformed": ("json", "event", "order").__contains__,
    "stream_error": lambda value: isinstance(value, str),
    "oversize": lambda value: value is True or _is_whole(value, 1),
}
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
          413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 529: "overloaded_error"}


class Block(Value):
    """A part of a message: `text`, `thinking`, a call of a tool (`tool_use`), or what that returned (`tool_result`)."""

    type: str
    text: str = ""
    name: str = ""
    """The tool."""
    input: Mapping[str, object] = msgspec.field(default_factory=dict)
    id: str = ""
    """The call; in a turn it is added on sending."""
    is_error: bool = False


class ScriptError(UsageError):
    """The script is invalid; the message names the place and what is valid."""


class Usage(Value):
    """Tokens of one answer."""

    input: int = 1000
    output: int = 50
    cache_read: int = 0
    cache_write: int = 0

    def __post_init__(self) -> None:
        if not all(map(_is_whole, (self.input, self.output, self.cache_read, self.cache_write))):
            raise ScriptError(f"usage needs whole numbers, not {self}")


class Fault(Value):
    """One failure: a kind of `KINDS` and its value."""

    kind: str
    value: int | str | bool = True
    times: int = 1
    seconds: float | None = None
    """Length of a hang; None = until the server's `release`."""
    retry_after: float | None = None
    type: str = ""
    message: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ScriptError(f"unknown fault {self.kind!r}; kinds: {', '.join(KINDS)}")
        if not _VALID[self.kind](self.value):
            raise ScriptError(f"{self.kind}: {self.value!r} is invalid: {KINDS[self.kind]}")
        if not (_is_whole(self.times) and _is_length(self.seconds) and _is_length(self.retry_after)):
            raise ScriptError(f"{self.kind}: times is a whole number, seconds and retry_after are numbers from 0")

    @property
    def status(self) -> int | None:
        """Return the HTTP status that is sent instead of a message; None for faults of other kinds."""
        return 400 if self.kind == "too_long" else int(self.value) if self.kind == "status" else None

    @property
    def error(self) -> dict[str, str]:
        """Return the API's `error` object for it."""
        if self.kind == "too_long":
            message = self.message or "prompt is too long: 210000 tokens > 200000 maximum"
            return {"type": "invalid_request_error", "message": message}
        default = str(self.value) if self.kind == "stream_error" else _TYPES.get(self.status or 500, "api_error")
        return {"type": self.type or default, "message": self.message or f"a scripted {self.kind} ({self.value})"}


class Turn(Value):
    """One assistant message."""

    blocks: tuple[Block, ...] = ()
    stop: str | None = None
    """Stop reason; None = tool_use if a tool is used, else end_turn."""
    usage: Usage = Usage()
    model: str | None = None
    """Model named in the answer; None = the requested one."""
    piece: int = 24
    """Characters per delta."""
    delay: float = 0.0
    """Seconds between two events, for slow streaming."""
    faults: tuple[Fault, ...] = ()
    """Occur in this order before the turn is sent, one per request."""

    def __post_init__(self) -> None:
        if not _is_length(self.delay) or not _is_whole(self.piece, 1):
            raise ScriptError("a turn's delay must be a number of seconds, its piece a whole number from 1")

    @property
    def stop_reason(self) -> str:
        uses = any(block.type == "tool_use" for block in self.blocks)
        return self.stop or ("tool_use" if uses else "end_turn")


def text(words: str) -> Block:
    return Block("text", words)


def thinking(words: str) -> Block:
    return Block("thinking", words)


def use(name: str, **given: object) -> Block:
    """Return the call of a tool: its name and its input."""
    return Block("tool_use", name=name, input=given)


def result(call: str, words: str, *, is_error: bool = False) -> Block:
    return Block("tool_result", words, id=call, is_error=is_error)


def say(*blocks: Block | str, **options: object) -> Turn:
    """Return a turn with these blocks, plain strings as text; `options` are fields of `Turn`."""
    return replace(Turn(tuple(text(block) if isinstance(block, str) else block for block in blocks)), **options)
