"""MCP server of garrison's tools over standard input and output, for agents that start their own servers.

`python -P -m garrison.agents.mcp_server [ROLE]`, started by the agent in its sandbox. It has no state: each call is a
request to the agent's socket (`channel_client`), and a refusal becomes the error of the call. The role, worker or
validator, selects the tools; the socket decides what is accepted.

The protocol's four messages are implemented here: the library `mcp` takes seconds to load on a busy machine, and 65 MiB
for each agent, compared with 20 here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from garrison.agents import channel_client
from garrison.agents.base import VALIDATOR, WORKER
from garrison.agents.conversation import tools
from garrison.agents.result import KEYS, verdict_problem
from garrison.errors import GarrisonError, UsageError

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18")
"""Supported versions of the protocol, newest last."""
MAX_LINE = 1 << 22
"""Most characters of a request."""
_METHOD_NOT_FOUND, _INVALID_PARAMS, _PARSE_ERROR = -32601, -32602, -32700

Send = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class ToolServer:
    """Answers requests of an MCP client; `send` carries a request to the agent's socket."""

    def __init__(self, send: Send, role: str = WORKER) -> None:
        self._send, self._role = send, role

    def answer(self, line: str) -> dict[str, Any] | None:
        """Return the response to a line, None for a notification."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return _error(None, _PARSE_ERROR, "a message is one line of JSON")
        if not isinstance(message, dict) or "id" not in message or not isinstance(message.get("method"), str):
            return None
        params = message.get("params")
        handler = _METHODS.get(message["method"])
        if handler is None:
            return _error(message["id"], _METHOD_NOT_FOUND, f"unknown method {message['method'][:100]}")
        try:
            result = handler(self, params if isinstance(params, dict) else {})
        except UsageError as error:
            return _error(message["id"], _INVALID_PARAMS, str(error))
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    def _initialize(self, params: Mapping[str, object]) -> dict[str, object]:
        wanted = params.get("protocolVersion")
        return {"protocolVersion": wanted if wanted in VERSIONS else VERSIONS[-1], "capabilities": {"tools": {}},
                "serverInfo": {"name": tools.SERVER, "version": "1"}}

    def _ping(self, _params: Mapping[str, object]) -> dict[str, object]:
        return {}

    def _list(self, _params: Mapping[str, object]) -> dict[str, object]:
        return {"tools": [{"name": each.name, "description": each.description, "inputSchema": dict(each.schema)}
                          for each in tools.descriptions(self._role)]}

    def _call(self, params: Mapping[str, object]) -> dict[str, object]:
        name, arguments = params.get("name"), params.get("arguments") or {}
        to_request = _REQUESTS[self._role].get(name) if isinstance(name, str) else None
        if to_request is None or not isinstance(arguments, dict):
            raise UsageError(f"unknown tool {name!r:.100}")
        try:
            request, accepted = to_request(arguments)
            self._send(request)
        except GarrisonError as error:
            return {"content": [{"type": "text", "text": str(error)}], "isError": True}
        return {"content": [{"type": "text", "text": accepted}]}


_METHODS: Mapping[str, Callable[[ToolServer, Mapping[str, object]], dict[str, object]]] = {
    "initialize": ToolServer._initialize, "ping": ToolServer._ping, "tools/list": ToolServer._list,
    "tools/call": ToolServer._call}
"""Method → its handler."""


# ---- a tool call → the request to the socket, and the reply to the model


def _report(arguments: dict[str, object]) -> tuple[dict[str, object], str]:
    report = tools.check_report(arguments)
    failed = report["status"] in ("failure", "retry")
    more = {name: report[name] for name in tools.FOR_THE_PIPELINE if report.get(name)}
    reason = {"failure_reason": report["summary"]} if failed else {}
    return {"type": "report", "status": report["status"], "notes": report["summary"], **reason, **more}, tools.ACCEPTED


def _phase(arguments: dict[str, object]) -> tuple[dict[str, object], str]:
    return {"type": "phase", "phase": arguments.get("phase")}, f"Your phase is {arguments.get('phase')}."


def _notes(arguments: dict[str, object]) -> tuple[dict[str, object], str]:
    return {"type": "note", "text": arguments.get("text")}, "Kept."


def _question(arguments: dict[str, object]) -> tuple[dict[str, object], str]:
    return {"type": "question", "text": arguments.get("question"), "wait": False}, tools.ASKED


def _verdict(arguments: dict[str, object]) -> tuple[dict[str, object], str]:
    if problem := verdict_problem(arguments):
        raise UsageError(problem)
    return {"type": "verdict", **{key: arguments[key] for key in KEYS}}, tools.ACCEPTED


_REQUESTS: Mapping[str, Mapping[str, Callable[[dict[str, object]], tuple[dict[str, object], str]]]] = {
    WORKER: {"report_result": _report, "update_phase": _phase, "save_notes": _notes, "ask_guardian": _question},
    VALIDATOR: {"report_verdict": _verdict}}
"""Role → tool → its request."""


def _error(id_: object, code: int, text: str) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": text}}


def serve(server: ToolServer, lines: TextIO, out: TextIO) -> None:
    """Answer each line until the end of input, or an endless line."""
    while line := lines.readline(MAX_LINE):
        # The rest of such a line would be read as the next request.
        if not line.endswith("\n") and len(line) >= MAX_LINE:
            return
        response = server.answer(line) if line.strip() else None
        if response is not None:
            out.write(json.dumps(response) + "\n")
            out.flush()


def main() -> int:
    """Serve garrison's tools to the agent that started this."""
    def send(request: Mapping[str, object]) -> Mapping[str, object]:
        return channel_client.send(channel_client.find_socket(os.environ), request)

    serve(ToolServer(send, VALIDATOR if sys.argv[1:] == [VALIDATOR] else WORKER), sys.stdin, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
