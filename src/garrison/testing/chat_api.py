"""OpenAI's Chat Completions API: its requests as the Messages API has them, and answers. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from garrison.testing import wire
from garrison.testing.turn import Turn, Usage

_FINISH = {"tool_use": "tool_calls", "max_tokens": "length"}
"""Stop reason → finish reason; any other is `stop`."""
DONE = b"data: [DONE]\n\n"


def to_messages(_path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return a request in the form of the Messages API."""
    messages: list[dict[str, Any]] = []
    for given in body.get("messages") or []:
        if not isinstance(given, dict):
            continue
        role = {"developer": "system", "tool": "user"}.get(str(given.get("role")), str(given.get("role")))
        for block in _blocks(given):
            wire.add_block(messages, role, block)
    tools = [tool.get("function") or {} for tool in body.get("tools") or [] if isinstance(tool, dict)]
    return {"model": body.get("model", ""), "stream": bool(body.get("stream")), "system": "",
            "tools": [{"name": tool.get("name")} for tool in tools], "messages": messages}


def message(turn: Turn, asked_model: str, token: str) -> dict[str, Any]:
    """Return the whole completion."""
    said: dict[str, Any] = {"role": "assistant", "content": _said(turn) or None}
    if calls := _calls(turn, token):
        said["tool_calls"] = calls
    return {"id": f"chatcmpl-{token}", "object": "chat.completion", "created": 1, "model": turn.model or asked_model,
            "choices": [{"index": 0, "message": said, "finish_reason": _finish(turn)}], "usage": usage(turn.usage)}


def events(turn: Turn, asked_model: str, token: str) -> Iterator[bytes]:
    """Yield the chunks of a stream, encoded; the last one has the counts, whether they were asked for or not."""
    head = {"id": f"chatcmpl-{token}", "object": "chat.completion.chunk", "created": 1,
            "model": turn.model or asked_model}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return wire.encode_data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": ""})
    for part in wire.parts(_said(turn), turn.piece):
        yield chunk({"content": part})
    for index, call in enumerate(_calls(turn, token)):
        arguments = call["function"]["arguments"]
        yield chunk({"tool_calls": [{**call, "index": index, "function": {**call["function"], "arguments": ""}}]})
        for part in wire.parts(arguments, turn.piece):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield chunk({}, _finish(turn))
    yield wire.encode_data({**head, "choices": [], "usage": usage(turn.usage)})
    yield DONE


def usage(given: Usage) -> dict[str, Any]:
    read = given.input + given.cache_read + given.cache_write
    return {"prompt_tokens": read, "prompt_tokens_details": {"cached_tokens": given.cache_read},
            "completion_tokens": given.output, "total_tokens": read + given.output}


def error(fault: dict[str, str], _status: int, _token: str) -> dict[str, Any]:
    return {"error": {"message": fault["message"], "type": fault["type"], "param": None, "code": fault["type"]}}


def stream_error(fault: dict[str, str], token: str) -> bytes:
    return wire.encode_data(error(fault, 500, token))


def _finish(turn: Turn) -> str:
    return _FINISH.get(turn.stop_reason, "stop")


def _said(turn: Turn) -> str:
    return "\n".join(str(block["text"]) for block in turn.blocks if block["type"] == "text")


def _calls(turn: Turn, token: str) -> list[dict[str, Any]]:
    return [{"id": block["id"], "type": "function",
             "function": {"name": block["name"], "arguments": json.dumps(block["input"])}}
            for block in wire.blocks(turn, token) if block["type"] == "tool_use"]


def _blocks(given: dict[str, Any]) -> list[dict[str, Any]]:
    content = given.get("content")
    if given.get("role") == "tool":
        return [{"type": "tool_result", "tool_use_id": given.get("tool_call_id"), "content": content}]
    blocks: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) and content else \
        [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    for call in given.get("tool_calls") or []:
        function = call.get("function") or {}
        blocks.append({"type": "tool_use", "id": call.get("id"), "name": function.get("name"),
                       "input": wire.read_json(function.get("arguments"))})
    return blocks
