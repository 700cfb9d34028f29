"""Encode a turn in the Messages API's form: one JSON message, or the events of a stream. Pure; ids are arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from garrison.testing.turn import Block, Turn, Usage

Event = dict[str, Any]
_EMPTY: dict[str, Block] = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}


def message(turn: Turn, asked_model: str, token: str) -> dict[str, Any]:
    """Return the whole message, for a request that does not stream; `token` makes its ids unique."""
    return {"id": f"msg_{token}", "type": "message", "role": "assistant", "model": turn.model or asked_model,
            "content": blocks(turn, token), "stop_reason": turn.stop_reason, "stop_sequence": None,
            "usage": usage(turn.usage)}


def events(turn: Turn, asked_model: str, token: str) -> Iterator[Event]:
    """Yield the events of a stream in order; `type` is also the event's name."""
    start = message(turn, asked_model, token) | {"content": [], "stop_reason": None}
    start["usage"] = usage(turn.usage) | {"output_tokens": 1}
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(blocks(turn, token)):
        yield {"type": "content_block_start", "index": index, "content_block": _empty_block(block)}
        for delta in _deltas(block, max(1, turn.piece)):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": turn.stop_reason, "stop_sequence": None},
           "usage": usage(turn.usage)}
    yield {"type": "message_stop"}


def encoded_events(turn: Turn, asked_model: str, token: str) -> Iterator[bytes]:
    """Yield the events of a stream as they are sent."""
    return (encode_event(event) for event in events(turn, asked_model, token))


def encode_event(event: Event) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def encode_data(body: Event) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


def blocks(turn: Turn, token: str) -> list[Block]:
    return [{**block, "id": block.get("id", f"toolu_{token}_{index}")} if block["type"] == "tool_use" else block
            for index, block in enumerate(turn.blocks)]


def usage(given: Usage) -> dict[str, Any]:
    return {"input_tokens": given.input, "cache_creation_input_tokens": given.cache_write,
            "cache_read_input_tokens": given.cache_read, "output_tokens": given.output, "service_tier": "standard"}


def error(fault_error: dict[str, str], _status: int, token: str) -> dict[str, Any]:
    return {"type": "error", "error": fault_error, "request_id": f"req_{token}"}


def _empty_block(block: Block) -> Block:
    return {**block, "input": {}} if block["type"] == "tool_use" else {**block, **_EMPTY.get(block["type"], {})}


def _deltas(block: Block, piece: int) -> Iterator[Block]:
    kind = block["type"]
    if kind == "thinking":
        yield from ({"type": "thinking_delta", "thinking": part} for part in parts(block["thinking"], piece))
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif kind == "text":
        yield from ({"type": "text_delta", "text": part} for part in parts(block["text"], piece))
    elif kind == "tool_use":
        yield from ({"type": "input_json_delta", "partial_json": part}
                    for part in parts(json.dumps(block["input"]), piece))


def parts(words: str, piece: int) -> Iterator[str]:
    """Yield a text in pieces."""
    piece = max(1, piece)
    return (words[at:at + piece] for at in range(0, len(words), piece))


# ---- for APIs whose requests are read in this form


def add_block(messages: list[dict[str, Any]], role: str, block: Block) -> None:
    """Add a content block: to the last message if both are the model's, or both results of its tools.

    What the model answers at once is one message here, also in an API that has an item for each part.
    """
    last: dict[str, Any] = messages[-1] if messages else {"role": "", "content": []}
    results = role == "user" and {block["type"], *(each["type"] for each in last["content"])} == {"tool_result"}
    if role == last["role"] and (role == "assistant" or results):
        last["content"].append(block)
    else:
        messages.append({"role": role, "content": [block]})


def read_json(text: Any) -> Any:
    """Return the value that a JSON text is; any other text as the value of `text`."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return {"text": text}
