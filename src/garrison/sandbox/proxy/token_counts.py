"""Token counts: read from the responses of the model APIs while they pass, streamed or not. Pure.

Counts are named as in the Messages API (`input_tokens`, `output_tokens`, `cache_read_input_tokens`,
`cache_creation_input_tokens`), whichever API reports them. A response without counts is estimated from its length, four
bytes per token: a client that disconnects, or does not request them, must not work for free.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from garrison.records.api_answers import read_error
from garrison.records.costs import CACHED_FOR_AN_HOUR
from garrison.sandbox.proxy.apis import ApiName
from garrison.values import Value

MAX_BODY = 4 << 20
"""Largest response, or event of a stream, in bytes that is parsed for its counts; a longer one is estimated."""
_BYTES_A_TOKEN = 4
_CALL = "args"
"""Key of the arguments of a function call by a Google model: a table, not a text."""
_TEXT_KEYS = frozenset({"text", "partial_json", "thinking", "content", "arguments", "delta", _CALL})
"""Keys of texts that a model has written, in all three APIs."""
_DEPTH = 8
_FAILED = frozenset({"error", "response.failed"})
"""Types of the parts that report the failure of a stream."""


class CallCounts(Value):
    """Tokens of one call."""

    model: str
    message: str
    """The API's id of the response, '' if it gave none."""
    usage: Mapping[str, int]
    estimated: bool = False


@dataclass(slots=True)
class _Found:
    """Counts from the parts of a response so far; later ones replace earlier ones."""

    model: str = ""
    message: str = ""
    usage: dict[str, int] | None = None
    is_final: bool = False
    text: int = 0
    """Length of the model's output."""
    error: tuple[str, str] | None = None
    """Name and message of the error that ended a stream that had started well."""


class ResponseReader:
    """Reads one response as it passes."""

    def __init__(self, api: ApiName, content_type: str = "", encoding: str = "") -> None:
        self._read_part = _READERS[api]
        self._is_stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        self._inflate = zlib.decompressobj(47) if encoding.strip().lower() in ("gzip", "deflate", "x-gzip") else None
        self._buffer = bytearray()
        self._data: list[bytes] = []
        self._held = 0
        """Bytes of the lines of an unfinished event."""
        self._size = 0
        self._is_lost = False
        self._found = _Found()

    @property
    def error(self) -> tuple[str, str] | None:
        """Return the name and message of a stream's error; None for none."""
        return self._found.error

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the body."""
        self._size += len(data)
        if self._is_lost:
            return
        try:
            self._buffer += self._inflate.decompress(data, MAX_BODY) if self._inflate is not None else data
        except zlib.error:
            self._is_lost = True
            return
        if self._is_stream:
            self._read_events()
        if len(self._buffer) + self._held > MAX_BODY or (self._inflate is not None and self._inflate.unconsumed_tail):
            self._is_lost = True
            self._buffer.clear()
            self._data.clear()

    def finish(self, request_bytes: int, model: str = "", *, complete: bool = True) -> CallCounts:
        """Return the counts of the response received so far; `request_bytes` is the length of the request."""
        if self._is_stream:
            self._end_event()
        elif not self._is_lost and complete:
            self._read_json(bytes(self._buffer))
        found = self._found
        usage = dict(found.usage or {})
        is_counted = found.usage is not None and (found.is_final or not self._is_stream)
        if not is_counted:
            written = found.text if self._is_stream else self._size
            usage.setdefault("input_tokens", request_bytes // _BYTES_A_TOKEN)
            usage["output_tokens"] = max(usage.get("output_tokens", 0), written // _BYTES_A_TOKEN)
        return CallCounts(found.model or model, found.message, usage, not is_counted)

    def _read_events(self) -> None:
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            text = line.rstrip(b"\r")
            if not text:
                self._end_event()
            elif text.startswith(b"data:"):
                self._data.append(bytes(text[5:]).strip())
                self._held += len(text)

    def _end_event(self) -> None:
        data, self._data, self._held = b"\n".join(self._data), [], 0
        if data and data != b"[DONE]":
            self._read_json(data)

    def _read_json(self, data: bytes) -> None:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return
        for part in value if isinstance(value, list) else [value]:  # Gemini streams an array without `alt=sse`
            if isinstance(part, dict):
                if self._is_stream:
                    self._found.text += _text_length(part)
                    if part.get("error") or part.get("type") in _FAILED:
                        self._found.error = read_error(part)
                self._read_part(self._found, part)


def _text_length(value: object, depth: int = 0) -> int:
    """Return the length of the texts that a part of a stream adds."""
    if depth > _DEPTH:
        return 0
    if isinstance(value, list):
        return sum(_text_length(item, depth + 1) for item in value)
    if not isinstance(value, dict):
        return 0
    return sum(len(str(item)) if key in _TEXT_KEYS and (isinstance(item, str) or key == _CALL) else
               _text_length(item, depth + 1) for key, item in value.items())


# ---- one API each


def _read_anthropic(found: _Found, part: Mapping[str, object]) -> None:
    kind = part.get("type")
    message = _table(part.get("message")) if kind == "message_start" else part
    if kind in ("message", "message_start"):
        found.model, found.message = _text(message.get("model")), _text(message.get("id"))
    if kind in ("message", "message_start", "message_delta"):
        names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        long = _count(message, "usage", "cache_creation", CACHED_FOR_AN_HOUR)
        _merge(found, {**{name: _count(message, "usage", name) for name in names},
                       **({CACHED_FOR_AN_HOUR: long} if long else {})})
        found.is_final = found.is_final or kind != "message_start"


def _read_openai(found: _Found, part: Mapping[str, object]) -> None:
    # The Responses API streams `{"type": "response.completed", "response": {…}}`; the others send the object itself.
    body = _table(part.get("response")) or part
    found.model = _text(body.get("model")) or found.model
    found.message = _text(body.get("id")) or found.message
    usage = _table(body.get("usage"))
    if not usage:
        return
    if "prompt_tokens" in usage:
        whole, cached = _count(usage, "prompt_tokens"), _count(usage, "prompt_tokens_details", "cached_tokens")
        output = _count(usage, "completion_tokens")
    else:
        whole, cached = _count(usage, "input_tokens"), _count(usage, "input_tokens_details", "cached_tokens")
        output = _count(usage, "output_tokens")
    _replace(found, whole, cached, output)


def _read_google(found: _Found, part: Mapping[str, object]) -> None:
    found.model = _text(part.get("modelVersion")) or found.model
    found.message = _text(part.get("responseId")) or found.message
    usage = _table(part.get("usageMetadata"))
    if usage:
        prompt = _count(usage, "promptTokenCount") + _count(usage, "toolUsePromptTokenCount")
        output = _count(usage, "candidatesTokenCount") + _count(usage, "thoughtsTokenCount")
        _replace(found, prompt, _count(usage, "cachedContentTokenCount"), output)
        candidates = part.get("candidates")
        finish = [candidate for candidate in (candidates if isinstance(candidates, list) else ())
                  if _table(candidate).get("finishReason")]
        found.is_final = bool(finish) or "promptFeedback" in part


def _replace(found: _Found, whole: int, cached: int, output: int) -> None:
    """Record counts of an API that includes cached tokens in its input."""
    read = min(cached, whole)
    found.usage = {"input_tokens": whole - read, "cache_read_input_tokens": read, "output_tokens": output}
    found.is_final = True


def _merge(found: _Found, counts: Mapping[str, int]) -> None:
    """Record cumulative counts, ignoring absent or smaller ones."""
    usage = found.usage or {}
    found.usage = {name: max(counts.get(name, 0), usage.get(name, 0)) for name in {**usage, **counts}}


def _count(table: Mapping[str, object], *keys: str) -> int:
    """Return the count below these keys; 0 for anything else."""
    value: object = table
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12 else 0


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value[:200] if isinstance(value, str) else ""


_READERS: Mapping[ApiName, Callable[[_Found, Mapping[str, object]], None]] = {
    ApiName.ANTHROPIC: _read_anthropic, ApiName.OPENAI: _read_openai, ApiName.GOOGLE: _read_google}
"""API → reader of one part of its responses."""
