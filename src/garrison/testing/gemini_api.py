"""The Gemini API: its requests as the Messages API has them, and answers. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from garrison.testing import wire
from garrison.testing.turn import Turn, Usage

_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
           429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}
STREAM = ":streamGenerateContent"


def to_messages(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return a request in the form of the Messages API; the path names the model, and whether to stream."""
    messages: list[dict[str, Any]] = []
    for content in body.get("contents") or []:
        for part in content.get("parts") or [] if isinstance(content, dict) else []:
            if isinstance(part, dict) and (block := _block(part)) is not None:
                role = "assistant" if content.get("role") == "model" else "user"
                wire.add_block(messages, role, block)
    system = body.get("systemInstruction") or body.get("system_instruction") or {}
    said = [str(part.get("text", "")) for part in system.get("parts") or []] if isinstance(system, dict) else [system]
    tools = [each for tool in body.get("tools") or [] for each in tool.get("functionDeclarations") or []]
    route = path.partition("?")[0]
    return {"model": route.rpartition("/")[2].partition(":")[0], "stream": route.endswith(STREAM),
            "system": "\n".join(said), "tools": [{"name": tool.get("name")} for tool in tools], "messages": messages}


def message(turn: Turn, asked_model: str, token: str) -> dict[str, Any]:
    return {**_part(turn, asked_model, token, _parts(turn, token), "STOP"), "usageMetadata": usage(turn.usage)}


def events(turn: Turn, asked_model: str, token: str) -> Iterator[bytes]:
    """Yield the parts of a stream, encoded; the last one has the counts."""
    for part in _parts(turn, token):
        for words in wire.parts(part.get("text", "?"), turn.piece if "text" in part else 1):
            piece = {**part, "text": words} if "text" in part else part
            yield wire.encode_data(_part(turn, asked_model, token, [piece], None))
    yield wire.encode_data({**_part(turn, asked_model, token, [{"text": ""}], "STOP"),
                            "usageMetadata": usage(turn.usage)})


def usage(given: Usage) -> dict[str, Any]:
    read = given.input + given.cache_read + given.cache_write
    return {"promptTokenCount": read, "cachedContentTokenCount": given.cache_read, "candidatesTokenCount": given.output,
            "totalTokenCount": read + given.output}


def error(fault: dict[str, str], status: int, _token: str) -> dict[str, Any]:
    return {"error": {"code": status, "message": fault["message"], "status": _STATUS.get(status, "UNKNOWN")}}


def stream_error(fault: dict[str, str], token: str) -> bytes:
    return wire.encode_data(error(fault, 500, token))


def _part(turn: Turn, asked_model: str, token: str, parts: list[dict[str, Any]],
          finish: str | None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    if finish:
        candidate["finishReason"] = finish
    return {"responseId": f"r_{token}", "modelVersion": turn.model or asked_model, "candidates": [candidate]}


def _parts(turn: Turn, token: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for block in wire.blocks(turn, token):
        if block["type"] == "text":
            found.append({"text": block["text"]})
        elif block["type"] == "thinking":
            found.append({"text": block["thinking"], "thought": True})
        elif block["type"] == "tool_use":
            found.append({"functionCall": {"id": block["id"], "name": block["name"], "args": block["input"]}})
    return found


def _block(part: dict[str, Any]) -> dict[str, Any] | None:
    if isinstance(call := part.get("functionCall"), dict):
        return {"type": "tool_use", "id": call.get("id"), "name": call.get("name"), "input": call.get("args") or {}}
    if isinstance(result := part.get("functionResponse"), dict):
        told = result.get("response") or {}
        return {"type": "tool_result", "tool_use_id": result.get("id"),
                "content": str(told.get("output") or told.get("error") or told)}
    return {"type": "text", "text": str(part["text"])} if part.get("text") and not part.get("thought") else None
