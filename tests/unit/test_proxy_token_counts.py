"""Token counts of the three APIs, streamed and not, in any pieces."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest

from garrison.sandbox.proxy.apis import ApiName
from garrison.sandbox.proxy.token_counts import MAX_BODY, CallCounts, ResponseReader

WHOLE: Mapping[str, tuple[ApiName, Any, CallCounts]] = {
    "messages": (ApiName.ANTHROPIC, {
        "type": "message", "id": "msg_1", "model": "claude-x", "content": [{"type": "text", "text": "hi"}],
        "usage": {"input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": 2,
                  "cache_creation_input_tokens": 4}},
        CallCounts("claude-x", "msg_1", {"input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": 2,
                                         "cache_creation_input_tokens": 4})),
    "chat completions": (ApiName.OPENAI, {
        "id": "chatcmpl-1", "model": "gpt-x", "choices": [{"message": {"content": "hi"}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}},
        CallCounts("gpt-x", "chatcmpl-1", {"input_tokens": 4, "cache_read_input_tokens": 6, "output_tokens": 4})),
    "responses": (ApiName.OPENAI, {
        "id": "resp_1", "object": "response", "model": "gpt-x", "output": [],
        "usage": {"input_tokens": 10, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 6}}},
        CallCounts("gpt-x", "resp_1", {"input_tokens": 4, "cache_read_input_tokens": 6, "output_tokens": 4})),
    "embeddings": (ApiName.OPENAI, {"model": "embed-x", "data": [], "usage": {"prompt_tokens": 9, "total_tokens": 9}},
                   CallCounts("embed-x", "", {"input_tokens": 9, "cache_read_input_tokens": 0, "output_tokens": 0})),
    "gemini": (ApiName.GOOGLE, {
        "candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}], "modelVersion": "gemini-x",
        "responseId": "r1", "usageMetadata": {"promptTokenCount": 8, "candidatesTokenCount": 2, "thoughtsTokenCount": 5,
                                              "cachedContentTokenCount": 3}},
        CallCounts("gemini-x", "r1", {"input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": 7})),
    "gemini as an array": (ApiName.GOOGLE, [
        {"candidates": [{}], "modelVersion": "gemini-x", "usageMetadata": {"promptTokenCount": 8}},
        {"candidates": [{"finishReason": "STOP"}], "responseId": "r1",
         "usageMetadata": {"promptTokenCount": 8, "candidatesTokenCount": 9}}],
        CallCounts("gemini-x", "r1", {"input_tokens": 8, "cache_read_input_tokens": 0, "output_tokens": 9})),
}
STREAMS: Mapping[str, tuple[ApiName, list[Any], CallCounts]] = {
    "messages": (ApiName.ANTHROPIC, [
        {"type": "message_start", "message": {"id": "msg_1", "model": "claude-x",
                                              "usage": {"input_tokens": 7, "output_tokens": 1}}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hello"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 30}},
        {"type": "message_stop"}],
        CallCounts("claude-x", "msg_1", {"input_tokens": 7, "output_tokens": 30, "cache_read_input_tokens": 0,
                                         "cache_creation_input_tokens": 0})),
    "chat completions": (ApiName.OPENAI, [
        {"id": "c1", "model": "gpt-x", "choices": [{"delta": {"content": "hel"}}], "usage": None},
        {"id": "c1", "model": "gpt-x", "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 4}}],
        CallCounts("gpt-x", "c1", {"input_tokens": 10, "cache_read_input_tokens": 0, "output_tokens": 4})),
    "responses": (ApiName.OPENAI, [
        {"type": "response.created", "response": {"id": "resp_1", "model": "gpt-x", "usage": None}},
        {"type": "response.output_text.delta", "delta": "hello"},
        {"type": "response.completed", "response": {"id": "resp_1", "model": "gpt-x", "usage": {
            "input_tokens": 10, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 6}}}}],
        CallCounts("gpt-x", "resp_1", {"input_tokens": 4, "cache_read_input_tokens": 6, "output_tokens": 4})),
    "gemini": (ApiName.GOOGLE, [
        {"candidates": [{"content": {"parts": [{"text": "a"}]}}], "modelVersion": "gemini-x", "responseId": "r1",
         "usageMetadata": {"promptTokenCount": 8, "candidatesTokenCount": 1}},
        {"candidates": [{"finishReason": "STOP"}], "modelVersion": "gemini-x", "responseId": "r1",
         "usageMetadata": {"promptTokenCount": 8, "candidatesTokenCount": 12}}],
        CallCounts("gemini-x", "r1", {"input_tokens": 8, "cache_read_input_tokens": 0, "output_tokens": 12})),
}


def read(api: ApiName, data: bytes, kind: str, piece: int, encoding: str = "", *, complete: bool = True) -> CallCounts:
    reader = ResponseReader(api, kind, encoding)
    for at in range(0, len(data), piece):
        reader.feed(data[at:at + piece])
    return reader.finish(400, complete=complete)


def encode(events: list[Any], end: bytes = b"\n\n") -> bytes:
    return b"".join(b"event: x\ndata: " + json.dumps(event).encode() + end for event in events) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("piece", [1, 7, 100_000])
@pytest.mark.parametrize("name", WHOLE)
def test_reads_the_counts_of_a_whole_response(name: str, piece: int) -> None:
    api, body, counts = WHOLE[name]
    data = json.dumps(body).encode()
    assert read(api, data, "application/json; charset=utf-8", piece) == counts
    assert read(api, gzip.compress(data), "application/json", piece, "gzip") == counts


@pytest.mark.parametrize("piece", [1, 7, 100_000])
@pytest.mark.parametrize("name", STREAMS)
def test_reads_the_counts_of_a_stream(name: str, piece: int) -> None:
    api, events, counts = STREAMS[name]
    assert read(api, encode(events), "text/event-stream; charset=utf-8", piece) == counts
    assert read(api, encode(events, b"\r\n\r\n"), "text/event-stream", piece) == counts


def test_estimates_a_stream_without_counts() -> None:
    events = [{"id": "c1", "model": "gpt-x", "choices": [{"delta": {"content": "x" * 400}}]}] * 3
    counts = read(ApiName.OPENAI, encode(events), "text/event-stream", 50)
    assert counts == CallCounts("gpt-x", "c1", {"input_tokens": 100, "output_tokens": 300}, estimated=True)


def test_estimates_a_stream_that_broke_off() -> None:
    api, events, _ = STREAMS["messages"]
    counts = read(api, encode(events[:2]), "text/event-stream", 50, complete=False)
    assert counts.estimated
    assert counts.usage["input_tokens"] == 7
    assert counts.usage["output_tokens"] == 1


def test_estimates_what_a_model_of_google_s_wrote_before_its_stream_was_cut() -> None:
    call = {"name": "write", "args": {"path": "a", "lines": ["x" * 4000]}}
    events = [{"candidates": [{"content": {"parts": [{"text": "y" * 400}, {"functionCall": call}]}}],
               "modelVersion": "gemini-x", "usageMetadata": {"promptTokenCount": 8, "candidatesTokenCount": 1}}]
    counts = read(ApiName.GOOGLE, encode(events), "text/event-stream", 50, complete=False)
    assert counts.estimated
    assert counts.usage["input_tokens"] == 8
    assert 1100 <= counts.usage["output_tokens"] < 1120


@pytest.mark.parametrize("data", [b"", b"nonsense", b"[" * 100_000, b'{"usage": {"input_tokens": -5}}', b"[1, null]",
                                  b'{"usage": {"input_tokens": 1e400, "output_tokens": "many"}, "type": "message"}'])
@pytest.mark.parametrize("api", list(ApiName))
def test_nonsense_ends_nothing(api: ApiName, data: bytes) -> None:
    for kind in ("application/json", "text/event-stream"):
        counts = read(api, data if kind == "application/json" else b"data: " + data + b"\n\n", kind, 1 << 20)
        assert all(count >= 0 for count in counts.usage.values())


def test_a_response_too_long_to_read_is_estimated() -> None:
    reader = ResponseReader(ApiName.ANTHROPIC, "application/json")
    for _ in range(5):
        reader.feed(b"x" * (1 << 20))
    assert reader.finish(4).usage["output_tokens"] > MAX_BODY // 8
    bomb = ResponseReader(ApiName.ANTHROPIC, "application/json", "gzip")
    bomb.feed(gzip.compress(b"0" * (64 << 20)))
    assert bomb.finish(4).estimated


def test_a_stream_whose_event_does_not_end_is_held_up_to_a_limit() -> None:
    reader = ResponseReader(ApiName.ANTHROPIC, "text/event-stream")
    tracemalloc.start()
    try:
        for _ in range(400):
            reader.feed(b"data: x\n" * 8000)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert reader.finish(4).estimated
