"""Model APIs on 127.0.0.1, played by a script: run real agents without a key and without a network.

It speaks the Messages, Responses, Chat Completions and Gemini APIs (`model_apis`). In a test: `with
ModelServer(script) as server:`, with `ANTHROPIC_BASE_URL=server.url` or another of `server.variables` for the client;
`server.requests` contains the requests that it sent, in order. By hand: `python -m garrison.testing.model_server SCRIPT
[--port 0] [--log FILE]` prints the URL and serves until SIGTERM or SIGINT. `POST /release`, like `server.release()`,
ends all hangs.

The server never guesses: a request that the script does not answer, and every mistake in the script, is HTTP 400 with
the reason; a dropped connection would be retried for minutes. Clients' keys are not stored.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from garrison.testing.model_apis import MESSAGES, Body, ModelApi, find_api
from garrison.testing.request import Request
from garrison.testing.script import Answer, Player, Script, load_script, parse_script
from garrison.testing.turn import MANY_BYTES, Fault, ScriptError, Turn, Usage, text
from garrison.values import Value, asdict, field_names, replace

_SECRET = {"x-api-key", "x-goog-api-key", "authorization", "cookie", "proxy-authorization"}
_COUNT, _RELEASE = re.compile(r"/v1/messages/count_tokens|/v1beta/models/[^/]+:countTokens"), "/release"
_MODELS = "/v1/models"


@dataclass
class RecordedRequest:
    """One request as it arrived, and how it was answered."""

    number: int
    at: float
    """CLOCK_MONOTONIC, seconds."""
    method: str
    path: str
    headers: dict[str, str]
    body: object = None
    """The body as it was sent."""
    api: str = ""
    """Name of the API, for a call of the model."""
    usage: dict[str, int] | None = None
    """Token counts of the answer."""
    conversation: str = ""
    step: int | None = None
    fault: str = ""
    problem: str = ""
    """Why the script had no answer; returned as HTTP 400."""
    outcome: str = ""
    """In memory only: "sent", "cut" by a fault, or "gone" if the client left first; empty until then."""

    @property
    def asked(self) -> Request:
        api = find_api(_route(self.path)) or MESSAGES
        return replace(api.read(self.path, self.body), number=self.number)


@dataclass
class ModelServer:
    """Server that plays `script`: a `Script`, a callable, a mapping as in a file, or the path of a file."""

    script: Script | Player | Mapping[str, object] | Path | str
    port: int = 0
    log: Path | None = None
    """File to which each request is appended as one JSON line before it is answered."""
    requests: list[RecordedRequest] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._script = _as_script(self.script)
        self._lock = threading.Lock()
        self._release = threading.Event()
        self._closed = False
        self._token = secrets.token_hex(4)
        self._http = _Http(self, self.port)
        self.port = self._http.server_address[1]
        # It polls for its end: at the default of 0.5 s, closing a server would take that long.
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True, name="model-server").start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        return {"ANTHROPIC_BASE_URL": self.url, "OPENAI_BASE_URL": f"{self.url}/v1", "GOOGLE_GEMINI_BASE_URL": self.url}

    @property
    def messages(self) -> list[RecordedRequest]:
        with self._lock:
            return [request for request in self.requests if request.api]

    def tokens(self) -> Usage:
        """Return the sum of the tokens of complete answers."""
        counted = [record.usage for record in self.messages if record.usage and record.outcome == "sent"]
        return Usage(*(sum(usage[name] for usage in counted) for name in field_names(Usage)))

    def wait_for(self, calls: int, seconds: float = 30.0) -> list[RecordedRequest]:
        """Wait until the model has been called `calls` times, and return the calls; TimeoutError after `seconds`."""
        deadline = time.monotonic() + seconds
        while len(records := self.messages) < calls:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(records)} calls of the model within {seconds:g} s, not {calls}")
            time.sleep(0.01)
        return records

    def release(self) -> None:
        """End all current hangs: the rest of each answer is sent."""
        with self._lock:
            self._release.set()
            self._release = threading.Event()  # a new one: hangs that start from now on wait for the next release

    def close(self) -> None:
        """Stop serving; release all hangs."""
        self._closed = True
        self._http.shutdown()
        self._http.server_close()
        self.release()

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -------------------------------------------------------------------------------------------- one request

    def receive(self, method: str, path: str, headers: dict[str, str], raw: bytes) -> tuple[RecordedRequest, Plan]:
        """Record a request and plan its answer."""
        kept = {name.lower(): value for name, value in headers.items() if name.lower() not in _SECRET}
        with self._lock:
            record = RecordedRequest(len(self.requests) + 1, time.monotonic(), method, path, kept, _parse_body(raw))
            self.requests.append(record)
        plan = self._plan(record, len(raw))
        self._write(record)
        return record, plan

    def released(self) -> threading.Event:
        """Return an event that ends the hangs that start now."""
        with self._lock:
            return self._release

    def _plan(self, record: RecordedRequest, size: int) -> Plan:
        token, route = f"{self._token}_{record.number}", _route(record.path)
        if route == _RELEASE and record.method == "POST":
            self.release()
            return reply(200, {"released": True}, token)
        if route == "/" and record.method in {"GET", "HEAD"}:
            return reply(200, {}, token)
        if route == _MODELS and record.method == "GET":
            return reply(200, {"object": "list", "data": [], "models": []}, token)
        if _COUNT.fullmatch(route) and record.method == "POST":
            name = "input_tokens" if "messages" in route else "totalTokens"
            return reply(200, {name: max(1, size // 4)}, token)
        api = find_api(route) if record.method == "POST" else None
        if api is None:
            return refusal(404, {"type": "not_found_error", "message": f"no route {route}"}, token)
        record.api = api.name
        return self._answer(record, token, api)

    def _answer(self, record: RecordedRequest, token: str, api: ModelApi) -> Plan:
        try:
            if not isinstance(record.body, dict):
                raise ScriptError("the body is not a JSON object")
            asked = record.asked
            answer = self._script.answer(asked)
            _record_answer(record, answer)
            return plan(answer, asked, token, api)
        except ScriptError as error:
            record.problem = str(error)
        except Exception as error:  # a bug in the script: a traceback for its author, one line for the client
            traceback.print_exc()
            record.problem = f"the script failed: {type(error).__name__}: {error}"
        return refusal(400, {"type": "invalid_request_error", "message": record.problem}, token, api=api)

    def _write(self, record: RecordedRequest) -> None:
        if self.log is None:
            return
        line = {name: value for name, value in asdict(record).items() if name != "outcome"}
        with self._lock, self.log.open("ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")


def _record_answer(record: RecordedRequest, answer: Answer) -> None:
    record.conversation, record.step = answer.conversation, answer.step
    if answer.fault is None or answer.fault.status is None:
        record.usage = asdict(answer.turn.usage)
    if answer.fault is not None:
        record.fault = f"{answer.fault.kind}: {answer.fault.value}"


def _as_script(script: Script | Player | Mapping[str, object] | Path | str) -> Script:
    if isinstance(script, Script):
        return script
    if isinstance(script, str | Path):
        return load_script(Path(script))
    return parse_script(script) if isinstance(script, Mapping) else Script(script)


def _route(path: str) -> str:
    return path.partition("?")[0].rstrip("/") or "/"


def _parse_body(raw: bytes) -> object:
    if not raw:
        return None
    try:
        return json.loads(raw)
    except ValueError:
        return raw[:1000].decode(errors="replace")


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, owner: ModelServer, port: int) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", port), _Handler)

    def server_bind(self) -> None:
        """Bind without the base class's look-up of the host name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Print an error, unless the client has just disconnected."""
        if not isinstance(sys.exc_info()[1], OSError | ValueError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def do_POST(self) -> None:
        self._serve()

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST

    def _serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        record, plan = self.server.owner.receive(self.command, self.path, dict(self.headers.items()), raw)
        if self.command == "HEAD":
            plan = Plan(plan.parts[:2])
        record.outcome = deliver(plan, self.connection, self.server.owner.released().wait)
        self.close_connection = self.close_connection or record.outcome != "sent"

    def log_message(self, *_: object) -> None:
        """Print nothing: requests are recorded."""


# ---- an answer: the first half of its head, its second half, then the body piece by piece; so `before`, `headers` and
# `stream` are positions in one list, for both streams and plain JSON


_POSITION = {"before": 0, "headers": 1, "stream": 5}
_END = b"0\r\n\r\n"


class Plan(Value):
    """Parts to send, and where sending pauses (a hang) or ends with a reset."""

    parts: tuple[bytes, ...]
    pause_at: int | None = None
    cut_at: int | None = None
    seconds: float | None = None
    """Length of the pause; None = until released."""
    delay: float = 0.0


def plan(answer: Answer, asked: Request, token: str, api: ModelApi = MESSAGES) -> Plan:
    """Return the plan for an answer."""
    fault = answer.fault
    if fault is not None and fault.status is not None:
        wait = {} if fault.retry_after is None else {"retry-after": f"{fault.retry_after:g}"}
        return refusal(fault.status, fault.error, token, {**wait, **fault.headers}, api)
    turn = _oversize(answer.turn, fault)
    parts = _stream_parts(turn, asked, token, fault, api) if asked.stream else \
        _json(200, api.message(turn, asked.model, token), token, {})
    planned = Plan(tuple(parts), delay=turn.delay)
    if fault is None or fault.kind not in {"drop", "hang"}:
        return planned
    position = min(_POSITION[str(fault.value)], len(parts) - 1)
    if fault.kind == "drop":
        return replace(planned, cut_at=position)
    return replace(planned, pause_at=position, seconds=fault.seconds)


def refusal(status: int, error: Mapping[str, str], token: str, headers: dict[str, str] | None = None,
            api: ModelApi = MESSAGES) -> Plan:
    return reply(status, api.error(error, status, token), token, headers)


def reply(status: int, body: Body, token: str, headers: dict[str, str] | None = None) -> Plan:
    return Plan(tuple(_json(status, body, token, headers or {})))


def _oversize(turn: Turn, fault: Fault | None) -> Turn:
    if fault is None or fault.kind != "oversize":
        return turn
    size = MANY_BYTES if fault.value is True else int(fault.value)
    return replace(turn, blocks=(text("x" * size), *turn.blocks), piece=max(size, turn.piece))


def _head(status: int, token: str, headers: dict[str, str]) -> list[bytes]:
    """Return the head in two halves."""
    reason = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Scripted"
    lines = [f"HTTP/1.1 {status} {reason}", f"request-id: req_{token}", *(f"{a}: {b}" for a, b in headers.items())]
    whole = ("\r\n".join(lines) + "\r\n\r\n").encode()
    return [whole[:len(whole) // 2], whole[len(whole) // 2:]]


def _json(status: int, body: Body, token: str, headers: dict[str, str]) -> list[bytes]:
    data = json.dumps(body).encode()
    head = {"content-type": "application/json", "content-length": str(len(data)), **headers}
    size = max(1, len(data) // 6)  # in pieces, so that a fault `stream` can occur within the body
    return [*_head(status, token, head), *(data[at:at + size] for at in range(0, len(data), size))]


def _stream_parts(turn: Turn, asked: Request, token: str, fault: Fault | None, api: ModelApi) -> list[bytes]:
    head = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache",
            "transfer-encoding": "chunked"}
    lines = list(api.events(turn, asked.model, token))
    return [*_head(200, token, head), *map(_chunk, _distort(lines, fault, token, api)), _END]


def _distort(lines: list[bytes], fault: Fault | None, token: str, api: ModelApi) -> Iterable[bytes]:
    if fault is not None and fault.kind == "malformed":
        return [*lines[:3], api.malformed[str(fault.value)], *lines[3:]]
    if fault is not None and fault.kind == "stream_error":
        return [*lines[:3], api.stream_error(fault.error, token)]
    return lines


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


# ---- sending


def deliver(plan: Plan, connection: socket.socket, released: Callable[[float], bool]) -> str:
    """Send a plan; return how it ended: "sent", "cut" (by a fault) or "gone" (the client left).

    `released(seconds)` waits that long and returns whether hangs must end.
    """
    try:
        for index, part in enumerate(plan.parts):
            if index == plan.cut_at:
                reset(connection)
                return "cut"
            if index == plan.pause_at and not _pause(plan, connection, released):
                return "gone"
            connection.sendall(part)
            if plan.delay and index > 1:
                time.sleep(plan.delay)
    except OSError:
        return "gone"
    return "sent"


def reset(connection: socket.socket) -> None:
    """Drop the connection so that the peer gets a reset."""
    with contextlib.suppress(OSError):
        # A linger time of 0 turns the close into a reset: a normal close would look like the end of the body.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def _pause(plan: Plan, connection: socket.socket, released: Callable[[float], bool]) -> bool:
    """Wait in silence; return False if the client left meanwhile."""
    deadline = None if plan.seconds is None else time.monotonic() + plan.seconds
    while deadline is None or time.monotonic() < deadline:
        if released(0.05):
            return True
        # Readable, and nothing to read: the client has closed. Peeked, since it may also have sent its next request.
        if select.select([connection], [], [], 0)[0] and not connection.recv(1, socket.MSG_PEEK):
            return False
    return True


# ------------------------------------------------------------------------------------------------ the program


def main(arguments: list[str] | None = None) -> int:
    """Run the program; return 0 after a signal to stop, 1 if the port is not available, 2 for an invalid script."""
    parser = argparse.ArgumentParser(prog="python -m garrison.testing.model_server",
                                     description="Play model APIs on 127.0.0.1 from a script.")
    parser.add_argument("script", type=Path, help="a .yaml, .json or .py file; see docs/testing-without-a-key.md")
    parser.add_argument("--port", type=int, default=0, help="0 = a free one")
    parser.add_argument("--log", type=Path, help="append every request as one JSON line")
    given = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        server = ModelServer(given.script, given.port, given.log)
    except ScriptError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"port {given.port}: {os.strerror(error.errno or 0)}; use another port, or --port 0", file=sys.stderr)
        return 1
    with server:
        print(server.url, flush=True)
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
