"""Model APIs that the scripted server plays: one table. Pure.

A script sees every request in the form of the Messages API and answers with a turn, so one script plays a model for
Claude, Codex, OpenCode and Gemini alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from garrison.testing import chat_api, gemini_api, responses_api, wire
from garrison.testing.turn import Turn
from garrison.values import Value


class ModelApi(Value):
    """One API: where it is called, how its requests are read, and how it writes."""

    name: str
    route: str
    """Pattern of the path of a call of the model."""
    to_messages: Callable[[str, dict[str, Any]], dict[str, Any]]
    """(path, body) → the body in the form of the Messages API."""
    message: Callable[[Turn, str, str], dict[str, Any]]
    """(turn, requested model, token) → the whole answer."""
    events: Callable[[Turn, str, str], Iterator[bytes]]
    """The same as the encoded parts of a stream."""
    error: Callable[[dict[str, str], int, str], dict[str, Any]]
    """(error, HTTP status, token) → the body of a refusal."""
    stream_error: Callable[[dict[str, str], str], bytes]
    malformed: Mapping[str, bytes]
    """Value of the fault `malformed` → what then stands in the stream."""


def _broken(event: bytes, order: bytes) -> Mapping[str, bytes]:
    return {"json": b'data: {"type": "content_block_del\n\n', "event": event, "order": order}


_SURPRISE = b'data: {"surprise": 0}\n\n'
MESSAGES = ModelApi(
    "messages", r"/v1/messages", lambda _path, body: body, wire.message, wire.encoded_events, wire.error,
    lambda fault, token: wire.encode_event(wire.error(fault, 500, token)),
    {"json": b'event: content_block_delta\ndata: {"type": "content_block_del\n\n',
     "event": b'event: surprise\ndata: {"type": "surprise", "index": 0}\n\n',
     "order": wire.encode_event({"type": "content_block_delta", "index": 7,
                                 "delta": {"type": "text_delta", "text": "?"}})})
RESPONSES = ModelApi(
    "responses", r"(/v1)?/responses", responses_api.to_messages, responses_api.message, responses_api.events,
    chat_api.error, responses_api.stream_error,
    _broken(b'event: surprise\ndata: {"type": "surprise"}\n\n', wire.encode_event(
        {"type": "response.output_text.delta", "item_id": "msg_unknown", "output_index": 7, "delta": "?"})))
CHAT = ModelApi(
    "chat", r"(/v1)?/chat/completions", chat_api.to_messages, chat_api.message, chat_api.events, chat_api.error,
    chat_api.stream_error,
    _broken(_SURPRISE, wire.encode_data({"choices": [{"index": 7, "delta": {"content": "?"}}]})))
GEMINI = ModelApi(
    "gemini", r"/v1(?:beta|alpha)?/models/[^/]+:(?:streamGenerateContent|generateContent)", gemini_api.to_messages,
    gemini_api.message, gemini_api.events, gemini_api.error, gemini_api.stream_error,
    _broken(_SURPRISE, wire.encode_data({"candidates": [{"index": 7, "content": {"parts": [{"text": "?"}]}}]})))
APIS = (MESSAGES, RESPONSES, CHAT, GEMINI)


def find_api(route: str) -> ModelApi | None:
    """Return the API whose model is called at a path; None if there is none."""
    return next((api for api in APIS if re.fullmatch(api.route, route)), None)
