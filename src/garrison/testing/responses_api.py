"""OpenAI's Responses API, as Codex speaks it: its requests as the Messages API has them, and answers. Pure.

A tool that takes plain text instead of JSON has it as `text`, its only input: `use("exec", text="…")`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from garrison.testing import wire
from garrison.testing.turn import Turn, Usage
from garrison.testing.wire import Event

_CALLS = ("function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")


def to_messages(_path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return a request in the form of the Messages API."""
    given = body.get("input")
    items = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given
    messages: list[dict[str, Any]] = []
    for item in items if isinstance(items, list) else []:
        if isinstance(item, dict) and (block := _block(item)) is not None:
            wire.add_block(messages, _role(item), block)
    return {"model": body.get("model", ""), "stream": bool(body.get("stream")),
            "system": body.get("instructions") or "",
            "tools": [{"name": name} for name in _tool_names([body, *(items if isinstance(items, list) else [])])],
            "messages": messages}


def message(turn: Turn, asked_model: str, token: str) -> dict[str, Any]:
    return {"id": f"resp_{token}", "object": "response", "status": "completed", "model": turn.model or asked_model,
            "output": _items(turn, token), "usage": usage(turn.usage)}


def events(turn: Turn, asked_model: str, token: str) -> Iterator[bytes]:
    """Yield the events of a stream, encoded."""
    whole = message(turn, asked_model, token)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield _encode({"type": "response.created", "response": begun})
    for index, item in enumerate(whole["output"]):
        empty = {**item, "content": []} if item["type"] == "message" else item
        yield _encode({"type": "response.output_item.added", "output_index": index, "item": empty})
        if item["type"] == "message":
            for part in wire.parts(item["content"][0]["text"], turn.piece):
                yield _encode({"type": "response.output_text.delta", "item_id": item["id"], "output_index": index,
                               "content_index": 0, "delta": part})
        yield _encode({"type": "response.output_item.done", "output_index": index, "item": item})
    yield _encode({"type": "response.completed", "response": whole})


def usage(given: Usage) -> dict[str, Any]:
    """Return token counts under the API's names."""
    read = given.input + given.cache_read + given.cache_write
    return {"input_tokens": read, "input_tokens_details": {"cached_tokens": given.cache_read},
            "output_tokens": given.output, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + given.output}


def stream_error(fault: dict[str, str], token: str) -> bytes:
    return _encode({"type": "response.failed", "response": {
        "id": f"resp_{token}", "status": "failed", "error": {"code": fault["type"], "message": fault["message"]}}})


def _encode(event: Event) -> bytes:
    return wire.encode_event(event)


def _items(turn: Turn, token: str) -> list[dict[str, Any]]:
    found = []
    for index, block in enumerate(wire.blocks(turn, token)):
        name = f"{token}_{index}"
        if block["type"] == "text":
            found.append({"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed",
                          "content": [{"type": "output_text", "text": block["text"], "annotations": []}]})
        elif block["type"] == "thinking":
            found.append({"type": "reasoning", "id": f"rs_{name}",
                          "summary": [{"type": "summary_text", "text": block["thinking"]}]})
        elif block["type"] == "tool_use" and list(block["input"]) == ["text"]:
            found.append({"type": "custom_tool_call", "id": f"ctc_{name}", "call_id": block["id"],
                          "name": block["name"], "input": block["input"]["text"], "status": "completed"})
        elif block["type"] == "tool_use":
            found.append({"type": "function_call", "id": f"fc_{name}", "call_id": block["id"], "name": block["name"],
                          "arguments": json.dumps(block["input"]), "status": "completed"})
    return found


def _role(item: dict[str, Any]) -> str:
    if item.get("type") in _CALLS:
        return "assistant"
    if item.get("type") in _RESULTS:
        return "user"
    return "system" if item.get("role") == "developer" else str(item.get("role", "user"))


def _block(item: dict[str, Any]) -> dict[str, Any] | None:
    """Return an item as a content block; None for one that is neither said nor done."""
    kind = item.get("type", "message")
    if kind == "message":
        return {"type": "text", "text": _text(item.get("content"))}
    if kind in _CALLS:
        given = item.get("arguments", item.get("input"))
        return {"type": "tool_use", "id": item.get("call_id"), "name": item.get("name"), "input": wire.read_json(given)}
    if kind in _RESULTS:
        return {"type": "tool_result", "tool_use_id": item.get("call_id"), "content": _text(item.get("output"))}
    return None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _tool_names(holders: Sequence[Any]) -> list[str]:
    """Return the names of the tools in a request and its items, those in namespaces included."""
    found: list[str] = []
    for holder in holders:
        for tool in holder.get("tools") or [] if isinstance(holder, dict) else []:
            found += _tool_names([tool]) if tool.get("type") == "namespace" else [str(tool.get("name") or tool["type"])]
    return found
