"""What a call may cost at most, and its request with a shorter answer, in every API."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import pytest

from garrison.sandbox.proxy.apis import ApiName
from garrison.sandbox.proxy.demand import DEFAULT_OUTPUT, OVERHEAD, WINDOW, limited_body, read_demand

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
def test_an_answer_has_a_limit_and_it_can_be_lowered(call: tuple[ApiName, str], request_: dict[str, Any], output: int,
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
def test_what_a_request_names_and_does_not_hold_may_fill_the_context(call: tuple[ApiName, str], request_: Any,
                                                                     whole: bool) -> None:
    demand = read_demand(*call, json.dumps(request_).encode())
    assert (demand.input >= WINDOW) is whole
    assert whole or demand.input < 20_000


def test_a_request_has_at_most_a_token_a_byte_and_its_cache_is_paid_for() -> None:
    text = json.dumps({"model": "claude-opus-4", "system": "x" * 5000}).encode()
    plain = read_demand(*MESSAGES, text)
    assert plain.input == len(text) + OVERHEAD
    assert read_demand(*MESSAGES, gzip.compress(text), "gzip") == plain
    kept = {"type": "ephemeral", "ttl": "1h"}
    cached = json.dumps({"system": [{"text": "x" * 5000, "cache_control": kept}]}).encode()
    assert read_demand(*MESSAGES, cached).input == 2 * (len(cached) + OVERHEAD)
    escaped = cached.replace(b"cache_control", b"cache\\u005fcontrol").replace(b"1h", b"1\\u0068")
    assert read_demand(*MESSAGES, escaped).input == 2 * (len(escaped) + OVERHEAD)


@pytest.mark.parametrize(("body", "encoding"), [
    (b"", ""), (b"[]", ""), (b'{"max_tokens": -1}', ""), (b'{"max_tokens": []}', ""), (b'{"n": 1e9}', ""),
    (b"{}", "zstd"), (b"{}", "gzip"), (gzip.compress(b"{}", mtime=0)[:-4], "gzip"), (b"[" * 100_000, ""),
    (gzip.compress(b'{"x": [' + b"{}," * 4_000_000 + b"0]}"), "gzip"), (b'{"x": [' + b"[]," * 600_000 + b"0]}", "")])
def test_a_request_that_cannot_be_told_is_refused(body: bytes, encoding: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match="the request"):
        read_demand(*CHAT, body, encoding)
    assert time.process_time() - began < 1.0, "the proxy has other agents to serve"
