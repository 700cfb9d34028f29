"""The scripted Messages API over real sockets: what it answers, each mishap as a client sees it, what it records."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from garrison.testing.model_apis import MESSAGES
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request, RequestMessage
from garrison.testing.script import Player, load_script, parse_script
from garrison.testing.turn import Fault, ScriptError, Turn, Usage, result, say, thinking, use
from garrison.testing.turn import text as words_of
from garrison.values import replace
from support import DEADLINE, wait_for

MORE = "a turn that is long enough to be in several pieces"


def body(prompt: str = "go", *more: dict[str, Any], stream: bool = True, **fields: Any) -> dict[str, Any]:
    return {"model": "claude-test", "max_tokens": 100, "stream": stream,
            "messages": [{"role": "user", "content": prompt}, *more], **fields}


def call(server: ModelServer, given: dict[str, Any], path: str = "/v1/messages?beta=true", method: str = "POST",
         timeout: float = 10) -> tuple[http.client.HTTPResponse, bytes]:
    """Make one request; return the response and its whole body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout)
    try:
        connection.request(method, path, json.dumps(given), {"content-type": "application/json", "x-api-key": "secret",
                                                             "X-Goog-Api-Key": "secret",
                                                             "Authorization": "Bearer secret", "x-app": "test"})
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def events(data: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream; each must be named as its data says."""
    found = []
    for block in data.decode().strip().split("\n\n"):
        name, line = block.split("\n")
        found.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def said(data: bytes) -> str:
    """Return the text of a stream's deltas."""
    return "".join(event["delta"].get("text", "") for event in events(data) if event["type"] == "content_block_delta")


@pytest.fixture
def playing() -> Iterator[Any]:
    made: list[ModelServer] = []

    def play(script: Any, **options: Any) -> ModelServer:
        made.append(ModelServer(script, **options))
        return made[-1]

    yield play
    for server in made:
        server.close()


def faulty(kind: str, value: Any = True, **options: Any) -> Player:
    """Return a script whose turn goes wrong once."""
    return lambda asked: say(MORE, faults=(Fault(kind, value, **options),))


@pytest.mark.smoke
def test_a_stream_has_every_block_its_usage_and_its_stop_reason(playing: Any) -> None:
    turn = say(thinking("hm"), "I look.", use("Bash", command="ls -l /somewhere/far"), usage=Usage(7, 8, 9, 10))
    response, data = call(playing(lambda asked: turn), body())
    got = events(data)
    assert (response.status, response.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
    assert got[0]["message"]["usage"] == {"input_tokens": 7, "cache_creation_input_tokens": 10, "output_tokens": 1,
                                          "cache_read_input_tokens": 9, "service_tier": "standard"}
    starts = [event["content_block"]["type"] for event in got if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use"]
    pieces = [event["delta"]["partial_json"] for event in got if event.get("delta", {}).get("partial_json")]
    assert len(pieces) > 1
    assert json.loads("".join(pieces)) == {"command": "ls -l /somewhere/far"}
    assert got[-2]["delta"]["stop_reason"] == "tool_use"
    assert got[-2]["usage"]["output_tokens"] == 8
    assert got[-1] == {"type": "message_stop"}


def test_plain_json_where_no_stream_was_asked_and_ids_that_never_repeat(playing: Any) -> None:
    script: Player = lambda asked: say("hi", use("Read", file_path="a"))  # noqa: E731
    first, second = playing(script), playing(script)
    answers = [json.loads(call(server, body(stream=False))[1]) for server in (first, first, second)]
    assert answers[0]["content"][0] == {"type": "text", "text": "hi"}
    assert {answer["stop_reason"] for answer in answers} == {"tool_use"}
    assert len({answer["id"] for answer in answers} | {answer["content"][1]["id"] for answer in answers}) == 6


def test_the_other_routes(playing: Any) -> None:
    server = playing(lambda asked: "hi")
    assert [call(server, {}, "/", method)[0].status for method in ("HEAD", "GET")] == [200, 200]
    assert json.loads(call(server, body(), "/v1/messages/count_tokens")[1])["input_tokens"] > 10
    assert call(server, {}, "/elsewhere")[0].status == 404
    assert server.messages == []
    assert [record.path for record in server.requests] == ["/", "/", "/v1/messages/count_tokens", "/elsewhere"]


def test_requests_are_recorded_in_order_without_keys_in_memory_and_on_disk(playing: Any, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    server = playing({"conversations": [{"name": "greeting", "turns": ["hello", "bye"]}]}, log=log)
    call(server, body("one"))
    call(server, body("one", {"role": "assistant", "content": "hello"}))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["number"], line["conversation"], line["step"]) for line in lines] == [(1, "greeting", 0),
                                                                                       (2, "greeting", 1)]
    assert lines[0]["at"] <= lines[1]["at"] <= time.monotonic()
    assert lines[0]["headers"]["x-app"] == "test"
    assert "secret" not in log.read_text() + repr(server.requests)
    assert server.messages[1].body == body("one", {"role": "assistant", "content": "hello"})


# ------------------------------------------------------------------------------------------------ mishaps


@pytest.mark.parametrize(("status", "kind"), [
    (429, "rate_limit_error"), (529, "overloaded_error"), (401, "authentication_error"), (403, "permission_error"),
    (404, "not_found_error"), (413, "request_too_large"), (500, "api_error"), (418, "api_error")])
def test_a_status_comes_once_and_then_the_turn(playing: Any, status: int, kind: str) -> None:
    server = playing(faulty("status", status, retry_after=3, headers={"x-more": "1"}))
    response, data = call(server, body())
    assert (response.status, json.loads(data)["error"]["type"]) == (status, kind)
    assert (response.getheader("retry-after"), response.getheader("x-more")) == ("3", "1")
    assert said(call(server, body())[1]) == MORE
    assert [record.fault for record in server.messages] == [f"status: {status}", ""]


def test_a_context_that_is_too_long(playing: Any) -> None:
    response, data = call(playing(faulty("too_long")), body())
    error = json.loads(data)["error"]
    assert (response.status, error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith("prompt is too long")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("place", ["before", "headers", "stream"])
def test_a_dropped_connection(playing: Any, place: str, stream: bool) -> None:
    server = playing(faulty("drop", place))
    seen = b""
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        data = json.dumps(body(stream=stream)).encode()
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
        with pytest.raises(ConnectionResetError):
            while part := connection.recv(65536):
                seen += part
    # what had arrived when the reset came may be lost, but nothing of a later place may have been sent
    assert not (place == "before" and seen)
    assert not (place == "headers" and b"\r\n\r\n" in seen)
    assert b"message_stop" not in seen
    wait_for("the outcome", lambda: server.messages[0].outcome == "cut")
    assert call(server, body(stream=stream))[0].status == 200


@pytest.mark.parametrize("place", ["before", "headers", "stream"])
def test_a_hang_lasts_until_it_is_released_and_then_the_turn_is_answered(playing: Any, place: str) -> None:
    server = playing(faulty("hang", place))
    got: list[bytes] = []
    caller = threading.Thread(target=lambda: got.append(call(server, body(), timeout=DEADLINE)[1]))
    caller.start()
    server.wait_for(1)
    caller.join(0.3)
    assert caller.is_alive()
    call(server, {}, "/release")
    caller.join(DEADLINE)
    assert said(got[0]) == MORE


def test_a_hang_for_a_time_and_a_client_that_gives_up(playing: Any) -> None:
    server = playing(faulty("hang", "headers", seconds=0.3))
    began = time.monotonic()
    assert said(call(server, body())[1]) == MORE
    assert time.monotonic() - began >= 0.3
    server = playing(faulty("hang", "headers"))
    with pytest.raises(TimeoutError):
        call(server, body(), timeout=0.1)
    call(server, {}, "/release")
    wait_for("the server sees it", lambda: server.messages[0].outcome == "gone")


def test_slow_streaming(playing: Any) -> None:
    server = playing(lambda asked: say("abc", piece=1, delay=0.05))
    began = time.monotonic()
    assert said(call(server, body())[1]) == "abc"
    assert time.monotonic() - began >= 0.4  # eight events


def test_a_line_of_more_than_a_mebibyte(playing: Any) -> None:
    data = call(playing(faulty("oversize")), body())[1]
    assert max(map(len, data.split(b"\n"))) > 1 << 20
    assert said(data).endswith(MORE)


@pytest.mark.parametrize(("value", "mark"), [("json", b'"content_block_del\n'), ("event", b"surprise"),
                                             ("order", b'"index": 7')])
def test_a_stream_that_breaks_the_protocol(playing: Any, value: str, mark: bytes) -> None:
    data = call(playing(faulty("malformed", value)), body())[1]
    assert mark in data
    assert data.index(mark) > data.index(b"content_block_delta")


def test_an_error_in_the_stream(playing: Any) -> None:
    got = events(call(playing(faulty("stream_error", "overloaded_error")), body())[1])
    assert got[-1]["error"]["type"] == "overloaded_error"
    assert [event["type"] for event in got[:2]] == ["message_start", "content_block_start"]


def test_an_empty_answer_and_an_unknown_stop_reason(playing: Any) -> None:
    got = events(call(playing(lambda asked: Turn(stop="banana")), body())[1])
    assert [event["type"] for event in got] == ["message_start", "message_delta", "message_stop"]
    assert got[1]["delta"]["stop_reason"] == "banana"


# ------------------------------------------------------------------------------------------------ scripts

SCRIPT = """
key: 'node (\\w+)'
conversations:
  - name: judge
    when: {system: 'you judge', model: claude-test}
    turns: [{text: guilty}]
  - name: second
    when: {prompt: 'once more', tool: Bash}
    turns: [{text: 'again {key}'}]
  - name: work
    when: {key: '.'}
    turns:
      - faults: [{status: 529}, {drop: before}]
        thinking: hm
        tool: {name: Write, input: {file_path: '{key}.txt', content: [x, '{key}']}}
      - text: done
        usage: {input: 1, output: 2}
  - when: {result: 'file not found'}
    repeat: true
    turns: [{fault: {status: 401}}]
"""


def test_a_script_file_chooses_by_the_content_of_the_request(playing: Any, tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(SCRIPT)
    server = playing(path)
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "file not found"}]}
    spoke = {"role": "assistant", "content": [{"type": "text", "text": "x"}]}

    def answer(*given: Any, **fields: Any) -> str:
        data = json.loads(call(server, body(*given, stream=False, **fields))[1])
        return str(data["content"][0]["text"])

    assert answer("go", system=[{"type": "text", "text": "you judge"}]) == "guilty"
    assert answer("node a", spoke, {"role": "user", "content": "once more"}, tools=[{"name": "Bash"}]) == "again a"
    assert answer("node a", spoke, result) == "done"
    assert call(server, body("nothing", spoke, result))[0].status == 401
    assert call(server, body("nothing", spoke, result))[0].status == 401, "a fault without a turn comes every time"


def test_faults_come_in_order_for_each_key_by_itself(playing: Any) -> None:
    server = playing(parse_script(yaml.safe_load(SCRIPT)))
    for key in ("a", "b"):
        assert call(server, body(f"node {key}"))[0].status == 529
        with pytest.raises(ConnectionError):
            call(server, body(f"node {key}"))
        message = json.loads(call(server, body(f"node {key}", stream=False))[1])
        assert message["content"][1]["input"] == {"file_path": f"{key}.txt", "content": ["x", key]}


def test_faults_of_a_callable_are_counted_for_each_prompt(playing: Any) -> None:
    server = playing(faulty("status", 500))
    assert [call(server, body(prompt))[0].status for prompt in ("a", "b", "a", "b")] == [500, 500, 200, 200]


def test_a_script_without_an_answer_gives_status_400(playing: Any) -> None:
    def answer(asked: Request) -> str:
        raise KeyError("whoops")

    short = parse_script({"conversations": [{"name": "short", "when": {"prompt": "^go"}, "turns": ["one"]}]})
    spoke = {"role": "assistant", "content": "one"}
    for script, given, words in (
            (answer, body(), "the script failed: KeyError: 'whoops'"),
            (short, body("else"), "no conversation matches; prompt: 'else'"),
            (short, body("go", spoke), "conversation 'short' has 1 turns, but turn 2 was requested"),
            (lambda asked: None, body(), "the script returned None")):
        server = playing(script)
        response, data = call(server, given)
        assert (response.status, json.loads(data)["error"]["type"]) == (400, "invalid_request_error")
        assert words in json.loads(data)["error"]["message"]
        assert words in server.messages[0].problem


@pytest.mark.parametrize(("given", "words"), [
    ([], "[] is not a mapping with the keys conversations, key"),
    ({"key": "x"}, "a list of `conversations`"),
    ({"conversations": [{"turns": []}]}, "conversation 1: a conversation is a mapping with a list of `turns`"),
    ({"conversations": [{"turns": ["x", {}]}]}, "conversation 1, turn 2: a turn needs content"),
    ({"conversations": [{"turns": [{"txt": "x"}]}]}, "unknown txt; known: delay, empty"),
    ({"conversations": [{"turns": [{"fault": {"status": 1, "drop": "before"}}]}]}, "exactly one of"),
    ({"conversations": [{"turns": [{"fault": {"drop": "nowhere"}}]}]}, "drop: 'nowhere' is invalid: the"),
    ({"conversations": [{"turns": [{"fault": {"status": "many"}}]}]}, "status: 'many' is invalid"),
    ({"conversations": [{"turns": [{"text": "x", "usage": {"input": "many"}}]}]}, "whole numbers"),
    ({"conversations": [{"turns": [{"text": "x", "delay": "long"}]}]}, "turn 1: a turn's delay must be a number"),
    ({"conversations": [{"when": {"promt": "x"}, "turns": ["x"]}]}, "unknown promt"),
    ({"conversations": [{"when": {"prompt": "("}, "turns": ["x"]}]}, "is not a regular expression"),
    ({"conversations": [{"when": "x", "turns": ["x"]}]}, "when: 'x' is not a mapping"),
])
def test_a_script_that_makes_no_sense_is_refused_with_its_place(given: Any, words: str) -> None:
    with pytest.raises(ScriptError) as raised:
        parse_script(given)
    assert words in str(raised.value)


def test_a_script_in_python_or_json_is_loaded(tmp_path: Path) -> None:
    python, other = tmp_path / "s.py", tmp_path / "s.json"
    python.write_text("def answer(asked):\n    return asked.prompt.upper()\n")
    other.write_text('{"conversations": [{"turns": ["hi"]}]}')
    assert load_script(python).answer(MESSAGES.read("", body("loud"))).turn == say("LOUD")
    assert load_script(other).answer(MESSAGES.read("", body())).turn == say("hi")
    for text, words in (("x = 1", "defines answer"), ("def answer(:", "SyntaxError")):
        python.write_text(text)
        with pytest.raises(ScriptError, match=words):
            load_script(python)


def test_a_request_is_read_as_the_cli_sends_it() -> None:
    reminder = {"type": "text", "text": "<system-reminder>today</system-reminder>"}
    system, tools = [{"type": "text", "text": "be kind"}], [{"name": "Bash"}]
    asked = MESSAGES.read("", {"model": "m", "system": system, "tools": tools, "messages": [
        {"role": "user", "content": [reminder, {"type": "text", "text": "first"}]},
        {"role": "system", "content": "and brief"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Bash", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": [
            {"type": "text", "text": "no such file"}]}, reminder]},
        {"role": "assistant", "content": "hm"},
        {"role": "user", "content": [{"type": "text", "text": "[Request interrupted by user]"}]},
    ]})
    assert (asked.system, asked.prompts, asked.step, asked.results) == ("be kind\nand brief", ("first",), 2, ())
    earlier = replace(asked, messages=asked.messages[:4])
    assert earlier.results == (result("t", "no such file", is_error=True),)
    assert replace(asked, messages=(RequestMessage("user", (words_of("a"),)),)).step == 0


@pytest.mark.traced
def test_the_program_prints_its_url_and_ends_by_sigterm(tmp_path: Path) -> None:
    script = tmp_path / "s.yaml"
    script.write_text("conversations: [{turns: [hi]}]")
    program = [sys.executable, "-P", "-m", "garrison.testing.model_server"]
    with subprocess.Popen([*program, script, "--log", tmp_path / "log"], stdout=subprocess.PIPE, text=True) as child:
        port = int(child.stdout.readline().rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
        connection.request("POST", "/v1/messages", json.dumps(body()))
        assert said(connection.getresponse().read()) == "hi"
        busy = subprocess.run([*program, script, "--port", str(port)], capture_output=True, text=True, check=False)
        told = f"port {port}: Address already in use; use another port, or --port 0\n"
        assert (busy.returncode, busy.stderr) == (1, told)
        child.send_signal(signal.SIGTERM)
        assert child.wait(DEADLINE) == 0
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    missing = subprocess.run([*program, tmp_path / "none"], capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stderr) == (2, f"{tmp_path}/none: no such script\n")
