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


def encode_event(event: Event) -> bytes:
    """Return one event as it is sent."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def blocks(turn: Turn, token: str) -> list[Block]:
    """Return the turn's blocks, with an id for every tool use."""
    return [{**block, "id": block.get("id", f"toolu_{token}_{index}")} if block["type"] == "tool_use" else block
            for index, block in enumerate(turn.blocks)]


def usage(given: Usage) -> dict[str, Any]:
    """Return token counts under the API's names."""
    return {"input_tokens": given.input, "cache_creation_input_tokens": given.cache_write,
            "cache_read_input_tokens": given.cache_read, "output_tokens": given.output, "service_tier": "standard"}


def error(fault_error: dict[str, str], token: str) -> dict[str, Any]:
    """Return the body of an HTTP error, or of an error event."""
    return {"type": "error", "error": fault_error, "request_id": f"req_{token}"}


def _empty_block(block: Block) -> Block:
    return {**block, "input": {}} if block["type"] == "tool_use" else {**block, **_EMPTY.get(block["type"], {})}


def _deltas(block: Block, piece: int) -> Iterator[Block]:
    kind = block["type"]
    if kind == "thinking":
        yield from ({"type": "thinking_delta", "thinking": part} for part in _parts(block["thinking"], piece))
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif kind == "text":
        yield from ({"type": "text_delta", "text": part} for part in _parts(block["text"], piece))
    elif kind == "tool_use":
        yield from ({"type": "input_json_delta", "partial_json": part}
                    for part in _parts(json.dumps(block["input"]), piece))


def _parts(words: str, piece: int) -> Iterator[str]:
    return (words[at:at + piece] for at in range(0, len(words), piece))
