"""Model APIs of the scripted server: one script for all, and the proxy counts the tokens that they report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from garrison.sandbox.proxy.apis import ApiName
from garrison.sandbox.proxy.token_counts import ResponseReader
from garrison.testing.model_apis import APIS, ModelApi, find_api
from garrison.testing.model_server import plan
from garrison.testing.request import Request
from garrison.testing.script import Answer
from garrison.testing.turn import Fault, Usage, result, say, use

USAGE = Usage(100, 20, 30, 0)
TURN = say("I run it.", use("run", command="ls", why="to see"), usage=USAGE)
OF_PROXY = {"messages": ApiName.ANTHROPIC, "responses": ApiName.OPENAI, "chat": ApiName.OPENAI,
            "gemini": ApiName.GOOGLE}
REQUESTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "messages": ("/v1/messages", {
        "model": "m", "system": "Be good.", "tools": [{"name": "run"}], "messages": [
            {"role": "user", "content": "Do it."},
            {"role": "assistant", "content": [{"type": "text", "text": "Yes."}, {
                "type": "tool_use", "id": "c1", "name": "run", "input": {"command": "ls"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "a.txt"}]}]}),
    "responses": ("/v1/responses", {
        "model": "m", "instructions": "Be good.", "tools": [{"type": "function", "name": "run"}], "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Do it."}]},
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
            {"type": "function_call", "call_id": "c1", "name": "run", "arguments": '{"command": "ls"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "a.txt"}]}),
    "chat": ("/v1/chat/completions", {
        "model": "m", "tools": [{"type": "function", "function": {"name": "run"}}], "messages": [
            {"role": "system", "content": "Be good."}, {"role": "user", "content": "Do it."},
            {"role": "assistant", "content": "Yes.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"command": "ls"}'}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "a.txt"}]}),
    "gemini": ("/v1beta/models/m:generateContent", {
        "systemInstruction": {"parts": [{"text": "Be good."}]}, "tools": [{"functionDeclarations": [{"name": "run"}]}],
        "contents": [
            {"role": "user", "parts": [{"text": "Do it."}]},
            {"role": "model", "parts": [{"text": "Yes."}, {"functionCall": {
                "id": "c1", "name": "run", "args": {"command": "ls"}}}]},
            {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "run",
                                                             "response": {"output": "a.txt"}}}]}]})}


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_a_script_sees_the_same_in_every_api(api: ModelApi) -> None:
    path, body = REQUESTS[api.name]
    assert find_api(path) is api
    asked = api.read(path, body)
    assert (asked.model, asked.system, asked.prompt, asked.step, asked.tools, asked.stream) == (
        "m", "Be good.", "Do it.", 1, ("run",), False)
    assert asked.results == (result("c1", "a.txt"),) and asked.body == body


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
@pytest.mark.parametrize("stream", [True, False])
def test_the_proxy_counts_the_reported_tokens(api: ModelApi, stream: bool) -> None:
    asked = Request("m", stream)
    parts = plan(Answer(TURN), asked, "t_1", api).parts
    reader = ResponseReader(OF_PROXY[api.name], "text/event-stream" if stream else "application/json")
    body = b"".join(part.partition(b"\r\n")[2][:-2] for part in parts[2:]) if stream else b"".join(parts[2:])
    reader.feed(body)
    counts = reader.finish(1)
    assert not counts.estimated and counts.model == "m"
    assert {name: counts.usage.get(name, 0) for name in ("input_tokens", "output_tokens", "cache_read_input_tokens")} \
        == {"input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 30}
    if not stream:
        read_back = json.dumps(json.loads(body))
        assert "I run it." in read_back and "ls" in read_back


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
@pytest.mark.parametrize("fault", [Fault("status", 429, message="slow down"), Fault("stream_error", "overloaded_error"),
                                   *(Fault("malformed", value) for value in ("json", "event", "order"))],
                         ids=lambda fault: f"{fault.kind}-{fault.value}")
def test_every_fault_has_a_form_in_every_api(api: ModelApi, fault: Fault) -> None:
    whole = b"".join(plan(Answer(TURN, fault), Request(stream=True), "t", api).parts)
    if fault.kind == "status":
        assert whole.startswith(b"HTTP/1.1 429") and b"slow down" in whole
    else:
        assert whole != b"".join(plan(Answer(TURN), Request(stream=True), "t", api).parts)


def test_a_tool_that_takes_text_gets_it_as_it_is() -> None:
    responses = find_api("/v1/responses")
    [item] = responses.message(say(use("exec", text="text(1)")), "m", "t")["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "exec", "text(1)")
    [back] = responses.read("", {"input": [item]}).messages[0].content
    assert back.input == {"text": "text(1)"}
