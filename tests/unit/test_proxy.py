"""Parsers of the proxy: token counts of the three APIs, demands of a call, and a TLS client's first message."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from garrison.sandbox.proxy.apis import ApiName
from garrison.sandbox.proxy.demand import DEFAULT_OUTPUT, OVERHEAD, WINDOW, limited_body, read_demand
from garrison.sandbox.proxy.target import is_complete, is_plain_http, server_name
from garrison.sandbox.proxy.token_counts import MAX_BODY, CallCounts, ResponseReader
from proxy_support import hello

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
def test_a_whole_response_is_counted(name: str, piece: int) -> None:
    api, body, counts = WHOLE[name]
    data = json.dumps(body).encode()
    assert read(api, data, "application/json; charset=utf-8", piece) == counts
    assert read(api, gzip.compress(data), "application/json", piece, "gzip") == counts


@pytest.mark.parametrize("piece", [1, 7, 100_000])
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_counted(name: str, piece: int) -> None:
    api, events, counts = STREAMS[name]
    assert read(api, encode(events), "text/event-stream; charset=utf-8", piece) == counts
    assert read(api, encode(events, b"\r\n\r\n"), "text/event-stream", piece) == counts


def test_a_stream_that_broke_off_or_has_no_counts_is_estimated() -> None:
    events = [{"id": "c1", "model": "gpt-x", "choices": [{"delta": {"content": "x" * 400}}]}] * 3
    counts = read(ApiName.OPENAI, encode(events), "text/event-stream", 50)
    assert counts == CallCounts("gpt-x", "c1", {"input_tokens": 100, "output_tokens": 300}, estimated=True)
    api, events, _ = STREAMS["messages"]
    counts = read(api, encode(events[:2]), "text/event-stream", 50, complete=False)
    assert counts.estimated
    assert (counts.usage["input_tokens"], counts.usage["output_tokens"]) == (7, 1)
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
def test_a_malformed_response_has_no_negative_counts(api: ApiName, data: bytes) -> None:
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


def test_an_event_without_an_end_is_buffered_up_to_a_limit() -> None:
    reader = ResponseReader(ApiName.ANTHROPIC, "text/event-stream")
    tracemalloc.start()
    try:
        for _ in range(200):
            reader.feed((b"data: " + b"x" * 33 + b"\n") * 1600)
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_BODY
    finally:
        tracemalloc.stop()
    assert reader.finish(4).estimated


# ---- what a call may cost at most, and its request with a shorter answer, in every API


MESSAGES, CHAT, RESPONSES = (ApiName.ANTHROPIC, "/v1/messages"), (ApiName.OPENAI, "/chat/completions"), (
    ApiName.OPENAI, "/responses")
GEMINI = (ApiName.GOOGLE, "/v1beta/models/gemini-x:generateContent?alt=sse")
CALLED = {"role": "assistant", "content": [{"type": "tool_use", "name": "read", "input": {"type": "document"}}]}


@pytest.mark.parametrize(("call", "request_", "output", "answers", "limited"), [
    (MESSAGES, {"max_tokens": 9000}, 9000, 1, {"max_tokens": 1024}),
    (MESSAGES, {}, DEFAULT_OUTPUT, 1, {"max_tokens": 1024}),
    (MESSAGES, {"max_tokens": 9000, "thinking": {"type": "enabled", "budget_tokens": 8000}}, 9000, 1,
     {"max_tokens": 1024, "thinking": {"type": "disabled"}}),
    (CHAT, {"n": 3}, DEFAULT_OUTPUT, 3, {"n": 3, "max_completion_tokens": 1024}),
    (CHAT, {"max_tokens": 5000}, 5000, 1, {"max_tokens": 1024}),
    (CHAT, {"max_tokens": 10, "max_completion_tokens": 9000}, 9000, 1, {"max_completion_tokens": 1024}),
    ((ApiName.OPENAI, "/completions"), {"best_of": 5}, DEFAULT_OUTPUT, 5, {"best_of": 5, "max_tokens": 1024}),
    (RESPONSES, {"max_output_tokens": 7000}, 7000, 1, {"max_output_tokens": 1024}),
    (GEMINI, {"generation_config": {"max_output_tokens": "7000", "candidate_count": 2}}, 7000, 2,
     {"generationConfig": {"max_output_tokens": 1024, "candidate_count": 2}}),
    ((ApiName.OPENAI, "/embeddings"), {"input": "x"}, 0, 1, {"input": "x"}),
    (MESSAGES, {"max_tokens": 9, "speed": "fast", "inference_geo": "us"}, 9, 1, {"max_tokens": 1024}),
    (CHAT, {"max_tokens": 9, "service_tier": "priority"}, 9, 1, {"max_tokens": 1024})])
def test_the_limit_of_an_answer_is_read_and_lowered(call: tuple[ApiName, str], request_: dict[str, Any], output: int,
                                                    answers: int, limited: dict[str, Any]) -> None:
    demand = read_demand(*call, json.dumps(request_).encode())
    assert (demand.output, demand.answers) == (output, answers)
    assert json.loads(limited_body(*call, demand, 1024)) == limited


@pytest.mark.parametrize(("call", "request_", "whole"), [
    (MESSAGES, {"messages": [CALLED]}, False),
    (MESSAGES, {"messages": [{"content": [{"type": "document", "source": {"type": "url"}}]}]}, True),
    (MESSAGES, {"tools": [{"name": "web_search", "input_schema": {}}]}, False),
    (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "s"}]}, True),
    (MESSAGES, {"tools": [{"type": "custom", "name": "read"}]}, False),
    (CHAT, {"web_search_options": {"x": 1}}, True), (RESPONSES, {"conversation": "c"}, True),
    (RESPONSES, {"input": [{"content": [{"type": "input_file", "file_id": "f"}]}]}, True),
    (GEMINI, {"tools": [{"googleSearch": {}}]}, True), (GEMINI, {"cachedContent": "c"}, True),
    (GEMINI, {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": ""}}]}]}, False),
    (GEMINI, {"contents": [{"parts": [{"inlineData": {"mimeType": "video/mp4", "data": ""}}]}]}, True)])
def test_content_outside_a_request_may_fill_the_context(call: tuple[ApiName, str], request_: Any, whole: bool) -> None:
    demand = read_demand(*call, json.dumps(request_).encode())
    assert (demand.input >= WINDOW) is whole
    assert whole or demand.input < 20_000


def test_a_request_has_at_most_a_token_a_byte_and_twice_that_for_a_cache() -> None:
    text = json.dumps({"model": "claude-opus-4", "system": "x" * 5000}).encode()
    plain = read_demand(*MESSAGES, text)
    assert plain.input == len(text) + OVERHEAD
    assert read_demand(*MESSAGES, gzip.compress(text), "gzip") == plain
    kept = {"type": "ephemeral", "ttl": "1h"}
    cached = json.dumps({"system": [{"text": "x" * 5000, "cache_control": kept}]}).encode()
    assert read_demand(*MESSAGES, cached).input == 2 * (len(cached) + OVERHEAD)
    escaped = cached.replace(b"cache_control", b"cache\\u005fcontrol").replace(b"1h", b"1\\u0068")
    assert read_demand(*MESSAGES, escaped).input == 2 * (len(escaped) + OVERHEAD)


@pytest.mark.parametrize(("make", "encoding"), [
    (lambda: b"", ""), (lambda: b"[]", ""), (lambda: b'{"max_tokens": -1}', ""), (lambda: b'{"max_tokens": []}', ""),
    (lambda: b'{"n": 1e9}', ""), (lambda: b"{}", "zstd"), (lambda: b"{}", "gzip"),
    (lambda: gzip.compress(b"{}", mtime=0)[:-4], "gzip"), (lambda: b"[" * 100_000, ""),
    (lambda: gzip.compress(b'{"x": [' + b"{}," * 4_000_000 + b"0]}"), "gzip"),
    (lambda: b'{"x": [' + b"[]," * 600_000 + b"0]}", "")])
def test_a_request_without_a_readable_demand_is_refused(make: Callable[[], bytes], encoding: str) -> None:
    body = make()
    began = time.process_time()
    with pytest.raises(ValueError, match="the request"):
        read_demand(*CHAT, body, encoding)
    assert time.process_time() - began < 1.0, "the proxy has other agents to serve"


# ---- the name in a TLS client's first message


@pytest.mark.parametrize(("data", "is_http"), [
    (b"\x16\x03\x01A / HTTP/1.1\r\n", False), (b"\x16GET / HTTP/1.1\r\n", True), (b"\x01GET / HTTP/1.1\r\n", True),
    (b"GET / HTTP/1.1\r\n", True), (b"GET /", None), (b"EHLO x\r\n", False)])
def test_only_tls_is_never_taken_for_plain_http(data: bytes, is_http: bool | None) -> None:
    assert is_plain_http(data) is is_http


def split(data: bytes, size: int) -> bytes:
    """Return the same message in several records."""
    body = data[5:]
    return b"".join(data[:3] + len(part).to_bytes(2, "big") + part
                    for part in (body[at:at + size] for at in range(0, len(body), size)))


@pytest.mark.parametrize(("name", "read"), [("pypi.org", "pypi.org"), *[("a" * 60 + ".example.org",) * 2], (None, "")])
def test_the_name_in_a_hello_is_read(name: str | None, read: str) -> None:
    data = hello(name)
    assert server_name(data) == server_name(split(data, 50)) == server_name(data + b"more") == read


def test_a_hello_with_two_names_is_refused() -> None:
    """A server may take either."""
    data = hello("pypi.org")
    name = b"\0\0\x08pypi.org"
    at = data.index(name) - 6  # kind and length of the extension, length of its list
    extension = data[at:at + 6] + name
    for first, second in ((b"pypi.org", b"evil.org"), (b"pypi.org", b"pypi.org")):
        more = data[:at] + extension.replace(b"pypi.org", first) + extension.replace(b"pypi.org", second) \
            + data[at + len(extension):]
        grown = len(extension)
        extensions = 5 + 4 + 2 + 32
        extensions += 1 + more[extensions]
        extensions += 2 + int.from_bytes(more[extensions:extensions + 2], "big")
        extensions += 1 + more[extensions]
        size = int.from_bytes(more[extensions:extensions + 2], "big") + grown
        more = more[:extensions] + size.to_bytes(2, "big") + more[extensions + 2:]
        more = more[:3] + (len(more) - 5).to_bytes(2, "big") + more[5:6] + (len(more) - 9).to_bytes(3, "big") + more[9:]
        assert server_name(more) == (None if first != second else "pypi.org")


def test_a_hello_has_no_name_until_it_is_complete() -> None:
    data = hello("pypi.org")
    for size in range(len(data)):
        assert not is_complete(data[:size])
        assert server_name(data[:size]) is None
    assert is_complete(data)


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\r\n\r\n",
                                  b"\x16\x02\x00\x00\x05aaaaa", b"\x17\x03\x03\x00\x01a",
                                  b"\x16\x03\x01\x00\x00", b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
                                  b"\x16\x03\x01\x00\x06\x01\x00\x00\x02\x03\x03"])
def test_other_data_is_no_hello(data: bytes) -> None:
    assert is_complete(data)
    assert server_name(data) is None
