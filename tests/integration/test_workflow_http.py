"""MCP over HTTP: a real server on loopback that works, hangs and dies in mid-call, and others that speak no MCP."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from garrison.workflow import AgentConfig, ResearchAgent, Workflow, WorkflowStep
from garrison.workflow.mcp_tools import McpError, McpTools, ServerSpec
from support import DEADLINE

SERVER = """
import asyncio, os, socket, sys, threading, time
from mcp.server import MCPServer

server = MCPServer("notes", log_level="CRITICAL")
kept = []

@server.tool()
def add(text: str) -> dict:
    kept.append(text)
    return {"count": len(kept), "text": text}

@server.tool()
def crash() -> str:
    os._exit(3)

@server.tool()
async def hang() -> str:
    await asyncio.sleep(1000)
    return "never"

@server.tool()
def fail() -> str:
    raise ValueError("no such note")

server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[ServerSpec, subprocess.Popen[bytes]]]:
    """A server in a process of its own, once it answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as probe:
        port = probe.server_port
    (tmp_path / "server.py").write_text(SERVER)
    child = subprocess.Popen([sys.executable, tmp_path / "server.py", str(port)], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    spec = ServerSpec("notes", url=f"http://127.0.0.1:{port}/mcp")
    try:
        until = time.monotonic() + DEADLINE
        while not answers(spec):
            assert child.poll() is None, "the server did not start"
            assert time.monotonic() < until, "the server does not answer"
        yield spec, child
    finally:
        child.kill()
        child.wait()


def answers(spec: ServerSpec) -> bool:
    async def once() -> bool:
        with contextlib.suppress(McpError):
            async with McpTools({"notes": spec}):
                return True
        return False
    return asyncio.run(once())


async def test_ac_002_tools_over_http_work_fail_hang_and_die(server: Any, tmp_path: Path) -> None:
    spec, child = server
    async with McpTools({"notes": spec}) as tools:
        agent = ResearchAgent(tools, AgentConfig(state_dir=str(tmp_path / "state")))
        flow = Workflow("w", "", [
            WorkflowStep("one", "notes.add", {"text": "x"}),
            WorkflowStep("two", "notes.add", {"text": "${one.text}y"}),
            WorkflowStep("no", "notes.fail", critical=False, depends_on=["two"]),
            WorkflowStep("mute", "notes.hang", critical=False, timeout=0.5, depends_on=["two"]),
            WorkflowStep("on", "notes.add", {"text": "z"}, depends_on=["no", "mute"])])
        result = await agent.execute_workflow(flow)
        assert (result.results["two"], result.results["on"]["count"]) == ({"count": 2, "text": "xy"}, 3)
        assert "McpError: notes.fail: " in result.results["no"]["error"]
        assert result.results["mute"]["error"] == "TimeoutError: no answer within 0.5 s"
        with pytest.raises(McpError, match=r"server notes ended during crash|notes\.crash: "):
            await asyncio.wait_for(tools["notes.crash"](), DEADLINE)
        child.wait(DEADLINE)
        with pytest.raises(McpError, match=r"server notes \(http://127.0.0.1:\d+/mcp\) did not start: "):
            await asyncio.wait_for(tools["notes.add"](text="again"), DEADLINE)


ODD = {"html": (200, "text/html", b"<html>"), "refuses": (500, "text/plain", b"no"), "lost": (404, "text/plain", b"no"),
       "json": (200, "application/json", b"{not json"), "events": (200, "text/event-stream", b"data: garbage\n\n"),
       "silence": (0, "", b"")}


@pytest.mark.parametrize("kind", ODD)
def test_a_server_that_speaks_no_mcp_is_refused_in_a_line(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    over = threading.Event()

    class Odd(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            code, what, body = ODD[kind]
            if not code:
                over.wait(DEADLINE)
                return
            self.send_response(code)
            self.send_header("content-type", what)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    async def scene(port: int) -> None:
        async with McpTools({"odd": ServerSpec("odd", url=f"http://127.0.0.1:{port}/mcp")},
                            start_seconds=0.3 if kind == "silence" else 30.0):
            pass
    with ThreadingHTTPServer(("127.0.0.1", 0), Odd) as odd:
        threading.Thread(target=odd.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        with pytest.raises(McpError, match=r"server odd \(http://.*\) did not start: ") as caught:
            asyncio.run(scene(odd.server_port))
        over.set()
        odd.shutdown()
    assert "\n" not in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err
    if kind == "silence":
        assert str(caught.value).endswith("no answer within 0.3 s")
