"""What a scripted model says, and what goes wrong before it does. Values only; `wire` puts them on the line.

A `Turn` is one assistant message. A `Fault` is one mishap; it happens `times` times and then the turn is said. What no
client could be sent raises `ScriptError` where it is made. `script_file` reads both from YAML or JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from garrison.errors import UsageError

Block = dict[str, Any]
"""One content block of an assistant message, as the Messages API has it; a tool's `id` is given when it is sent."""
ALWAYS = 1 << 30
MANY_BYTES = (1 << 20) + 4096
"""A little more than the line that an unprepared reader accepts."""

PLACES = ("before", "headers", "stream")
KINDS = {
    "status": "an HTTP status (429, 529, 401 …), with retry_after, type, message, headers",
    "too_long": "400 'prompt is too long'",
    "drop": "the connection is reset: before | headers | stream (before, in mid of, after the headers)",
    "hang": "silence: before | headers | stream, for `seconds` or until released; then the turn is said",
    "malformed": "the stream breaks the protocol: json | event | order",
    "stream_error": "an error event in mid-stream, with this type (overloaded_error …)",
    "oversize": "one line of the stream has this many bytes (true: a little over 1 MiB)",
}


def _whole(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _length(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value >= 0)


_SENSIBLE: dict[str, Callable[[Any], bool]] = {
    "status": lambda value: _whole(value, 200) and value < 600, "too_long": lambda value: value is True,
    "drop": PLACES.__contains__, "hang": PLACES.__contains__, "malformed": ("json", "event", "order").__contains__,
    "stream_error": lambda value: isinstance(value, str), "oversize": lambda value: value is True or _whole(value, 1),
}
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
          413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 529: "overloaded_error"}


class ScriptError(UsageError):
    """The script cannot be played; the message names the place and what would do."""


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer."""

    input: int = 1000
    output: int = 50
    cache_read: int = 0
    cache_write: int = 0

    def __post_init__(self) -> None:
        if not all(map(_whole, (self.input, self.output, self.cache_read, self.cache_write))):
            raise ScriptError(f"usage is in whole numbers, not {self}")


@dataclass(frozen=True)
class Fault:
    """One mishap: a kind of `KINDS` and its value."""

    kind: str
    value: Any = True
    times: int = 1
    seconds: float | None = None
    """How long a hang lasts; None = until the server is told to release it."""
    retry_after: float | None = None
    type: str = ""
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ScriptError(f"no fault {self.kind!r}; there are: {', '.join(KINDS)}")
        if not _SENSIBLE[self.kind](self.value):
            raise ScriptError(f"{self.kind}: {self.value!r} is not what it takes: {KINDS[self.kind]}")
        if not (_whole(self.times) and _length(self.seconds) and _length(self.retry_after)):
            raise ScriptError(f"{self.kind}: times is a whole number, seconds and retry_after are numbers from 0")

    @property
    def status(self) -> int | None:
        """The HTTP status that is answered instead of a message; None for every other mishap."""
        return 400 if self.kind == "too_long" else int(self.value) if self.kind == "status" else None

    @property
    def error(self) -> dict[str, str]:
        """The `error` object of the API that goes with it."""
        if self.kind == "too_long":
            message = self.message or "prompt is too long: 210000 tokens > 200000 maximum"
            return {"type": "invalid_request_error", "message": message}
        default = str(self.value) if self.kind == "stream_error" else _TYPES.get(self.status or 500, "api_error")
        return {"type": self.type or default, "message": self.message or f"a scripted {self.kind} ({self.value})"}


@dataclass(frozen=True)
class Turn:
    """One assistant message."""

    blocks: tuple[Block, ...] = ()
    stop: str | None = None
    """The stop reason; None = tool_use where a tool is used, else end_turn."""
    usage: Usage = Usage()
    model: str | None = None
    """The model that says it has answered; None = the one that was asked."""
    piece: int = 24
    """Characters in one delta."""
    delay: float = 0.0
    """Seconds between two events: slow streaming."""
    faults: tuple[Fault, ...] = ()
    """Happen in this order before the turn is said, one a request."""

    def __post_init__(self) -> None:
        if not _length(self.delay) or not _whole(self.piece, 1):
            raise ScriptError("a turn's delay is a number of seconds, its piece a whole number from 1")

    @property
    def stop_reason(self) -> str:
        """What the message says about why it ended."""
        uses = any(block["type"] == "tool_use" for block in self.blocks)
        return self.stop or ("tool_use" if uses else "end_turn")


def text(words: str) -> Block:
    """A text block."""
    return {"type": "text", "text": words}


def thinking(words: str) -> Block:
    """A thinking block."""
    return {"type": "thinking", "thinking": words, "signature": "c2NyaXB0ZWQ="}


def use(name: str, **given: Any) -> Block:
    """A tool_use block: the tool's name and its input."""
    return {"type": "tool_use", "name": name, "input": given}


def say(*blocks: Block | str, **options: Any) -> Turn:
    """A turn of these blocks, plain strings as text; `options` are fields of `Turn`."""
    return Turn(tuple(text(block) if isinstance(block, str) else block for block in blocks), **options)
