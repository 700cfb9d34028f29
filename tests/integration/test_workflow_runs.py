"""Workflows for real: processes, kill -9 in each step, MCP servers over stdio and HTTP that behave and misbehave, the
CLI."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from merge_support import run_in_child

from garrison.cli.main import main
from garrison.directories import find_home
from garrison.node.session_attempt import tools_of
from garrison.sandbox.checkout import CheckoutCommands
from garrison.session.adapters import ToolDispatcher
from garrison.session.state import read_tiers
from garrison.workflow import AgentConfig, ResearchAgent, Workflow, WorkflowStep
from garrison.workflow.mcp_tools import McpError, McpTools, ServerSpec
from garrison.workflow.workflow_file import read_workflow
from support import DEADLINE, processes, wait_for

SERVER = """
import asyncio, os, sys, time
from mcp.server import MCPServer

server = MCPServer("notes", log_level="CRITICAL")
kept = []

@server.tool()
def add(text: str) -> dict:
    "Keep a note."
    kept.append(text)
    return {"count": len(kept), "text": text}

@server.tool()
def crash() -> str:
    "End at once."
    os._exit(3)

@server.tool()
async def hang() -> str:
    "Never answer."
    await asyncio.sleep(1000)
    return "never"

@server.tool()
def fail() -> str:
    "Say no."
    raise ValueError("no such note")

server.run(**({"transport": "streamable-http", "host": "127.0.0.1", "port": int(sys.argv[1])} if sys.argv[1:] else {}))
"""
STEPS = [WorkflowStep("a", "tool", {"name": "a"}), WorkflowStep("b", "tool", {"name": "b", "after": "${a.name}"}),
         WorkflowStep("c", "tool", {"name": "c", "after": "${a.name}"}),
         WorkflowStep("d", "tool", {"name": "d", "after": ["${b}", "${c}"]})]


@pytest.fixture
def server(tmp_path: Path) -> ServerSpec:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return ServerSpec("notes", (sys.executable, "-P", str(path)))


@pytest.mark.parametrize("victim", ["a", "b", "d"])
def test_ac_003_killed_in_a_step_no_completed_step_runs_twice_and_none_is_lost(tmp_path: Path, victim: str) -> None:
    def tool(name: str, after: Any = None) -> dict[str, str]:
        with (tmp_path / "ledger").open("a") as ledger:
            ledger.write(f"{name}\n")
        if name == victim and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"name": name}

    def work() -> None:
        agent = ResearchAgent({"tool": tool}, AgentConfig(state_dir=str(tmp_path / "state")))
        result = asyncio.run(agent.execute_workflow(Workflow("w", "", STEPS), "s1"))
        assert result.success and sorted(result.results) == ["a", "b", "c", "d"]

    assert [run_in_child(work), run_in_child(work)] == [-signal.SIGKILL, 0]
    ran = (tmp_path / "ledger").read_text().split()
    assert ran.count(victim) == 2, "the one in flight runs again"
    finished_before = {"a"} if victim in "bd" else set()
    assert all(ran.count(name) == 1 for name in finished_before | ({"b", "c"} if victim == "d" else set()))
    assert not (tmp_path / "state/s1.json").exists()


async def test_ac_002_tools_of_a_server_that_crashes_or_hangs_in_mid_call_and_is_restarted(server: ServerSpec) -> None:
    async with McpTools({"notes": server}) as tools:
        assert sorted(tools) == ["notes.add", "notes.crash", "notes.fail", "notes.hang"]
        agent = ResearchAgent(tools, AgentConfig(state_dir=str(Path(server.command[2]).parent / "state")))
        result = await agent.execute_workflow(Workflow("w", "", [
            WorkflowStep("one", "notes.add", {"text": "x"}),
            WorkflowStep("two", "notes.add", {"text": "${one.text}y"})]))
        assert result.results["two"] == {"count": 2, "text": "xy"}
        with pytest.raises(McpError, match=r"notes\.fail: .*fail|no such note"):
            await tools["notes.fail"]()
        with pytest.raises(McpError, match=r"notes"):
            await asyncio.wait_for(tools["notes.crash"](), DEADLINE)
        assert (await asyncio.wait_for(tools["notes.add"](text="x"), DEADLINE))["count"] == 1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tools["notes.hang"](), 0.3)
        assert (await asyncio.wait_for(tools["notes.add"](text="y"), DEADLINE))["count"] == 2
    assert not [one for one in processes() if one.ppid == os.getpid() and "server.py" in one.argv]


@pytest.fixture
def over_http(tmp_path: Path, server: ServerSpec) -> Iterator[tuple[ServerSpec, subprocess.Popen[bytes]]]:
    """Yield a server in its own process, once it answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as probe:
        port = probe.server_port
    child = subprocess.Popen([*server.command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    spec = ServerSpec("notes", url=f"http://127.0.0.1:{port}/mcp")
    try:
        wait_for("the server answers", lambda: answers(spec) or child.poll() is not None)
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


async def test_ac_002_tools_over_http_work_fail_hang_and_die(over_http: Any, tmp_path: Path) -> None:
    spec, child = over_http
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


@pytest.mark.parametrize("body", ["print('this is not a protocol', flush=True); import time; time.sleep(0.2)",
                                  "raise SystemExit('no notes here')"])
async def test_a_server_that_sends_garbage_or_exits_is_refused_in_one_line(body: str) -> None:
    said = "; its last output: no notes here" if "no notes" in body else ""
    with pytest.raises(McpError, match=rf"server odd \(.*\) did not start: .*{said}$") as caught:
        async with McpTools({"odd": ServerSpec("odd", (sys.executable, "-c", body))}):
            pass
    assert "\n" not in str(caught.value)


def write(path: Path, **body: Any) -> Path:
    path.write_text(yaml.safe_dump(body))
    return path


@pytest.mark.smoke
def test_the_command_runs_fails_resumes_and_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "w.yaml", name="w", inputs={"who": "nobody"}, steps=[
        {"name": "first", "tool": "files.write", "arguments": {"path": "out/a.txt", "text": "for ${inputs.who}"}},
        {"name": "need", "tool": "files.read", "arguments": {"path": "key.txt"}, "depends_on": ["first"]},
        {"name": "last", "tool": "text.join",
         "arguments": {"parts": ["${need.text}", "${first.path}"], "separator": "+"}}])
    assert main(["workflow", "run", str(file), "--set", "who=me", "--session", "s1"]) == 1
    assert "continue with `garrison resume s1`" in capsys.readouterr().err
    assert (tmp_path / "out/a.txt").read_text() == "for me"
    assert main(["workflow", "list", "--json"]) == 0
    assert [one["status"] for one in json.loads(capsys.readouterr().out)] == ["failed"]
    (tmp_path / "key.txt").write_text("k")
    monkeypatch.chdir("/")
    assert main(["workflow", "show", "s1"]) == 0
    assert "FileNotFoundError" in capsys.readouterr().err
    assert main(["workflow", "resume", "s1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["success"], told["results"]["last"]) == (True, "k+out/a.txt")
    assert main(["workflow", "list"]) == 0
    assert "no workflow sessions" in capsys.readouterr().err


def test_the_output_of_a_tool_is_no_part_of_the_results(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loud.py").write_text("import os\nprint('loaded')\ndef f():\n    print('said')\n"
                                      "    os.system('echo echoed')\n    return 1\n")
    file = write(tmp_path / "w.yaml", name="w", steps=[{"name": "a", "tool": "loud.py:f"}])
    assert main(["workflow", "run", str(file), "--json", "--home", str(find_home())]) == 0
    told = capfd.readouterr()
    assert json.loads(told.out)["results"] == {"a": 1}
    assert all(word in told.err.splitlines() for word in ("loaded", "said", "echoed"))


@pytest.mark.parametrize(("text", "why"), [
    ("name: [", "w.yaml"), ("- 1", "a mapping"), ("name: w", "no steps"),
    ("name: w\nsteps: 3", "steps must be a list, not 3"),
    ("name: w\nsteps: [{name: a, tool: fly}]", "which does not exist"),
    ("name: w\nservers: {n: {}}\nsteps: []", "either"),
    ("name: w\nsteps: [{name: a, tool: files.read, arguments: {path: '${b.c}'}}]", "names no step")])
def test_an_invalid_file_is_refused_in_one_line(tmp_path: Path, text: str, why: str,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(text)
    assert main(["workflow", "validate", str(file), "--home", str(tmp_path)]) == 1
    said = capsys.readouterr().err.strip()
    assert why in said
    assert "\n" not in said


async def test_tools_stay_in_their_directory_and_end_with_their_step(tmp_path: Path) -> None:
    from garrison.errors import UsageError
    from garrison.workflow.tools import CommandFailed, Toolbox

    box = Toolbox(tmp_path)
    with pytest.raises(UsageError, match="outside"):
        box.read("../x")
    (tmp_path / "a.py").write_text("one\ntwo = 2\n")
    assert box.search(r"\d", "*.py")["hits"] == [{"path": "a.py", "line": 2, "text": "two = 2"}]
    assert box.list_files("*.py") == {"files": ["a.py"], "count": 1}
    assert (await box.run(["echo", "x y"]))["stdout"] == "x y\n"
    assert (await box.run("exit 3", check=False))["exit_code"] == 3
    with pytest.raises(CommandFailed, match="exit code 3: oh"):
        await box.run("echo oh >&2; exit 3")
    hangs = asyncio.create_task(box.run("echo $$ > pid; sleep 1000 & wait"))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(hangs, 0.05)
    pid = int((tmp_path / "pid").read_text())
    wait_for("the command's group to be gone", lambda: not any(pid in (one.ppid, one.pid) for one in processes()))


PLANTED = ("response.md", "output.log", "exit", "status.json")
HOSTILE = (f"for n in {' '.join(PLANTED)}; do ln -sfn {{own}}/secret $n; ln -sfn {{own}}/secret {{home}}/$n; done; "
           "cat {own}/secret; echo bad >> {own}/secret; echo bad >> .git/config; echo bad > .git/hooks/post-commit; "
           "mkdir -p n/.git; echo bad > n/.git/config; true")


def test_commands_of_a_workflow_or_session_are_confined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It sees the folder alone; no link that it plants is followed, and no tool writes what git obeys."""
    folder, own, home = tmp_path / "folder", tmp_path / "own", tmp_path / "folder/home"
    own.mkdir()
    subprocess.run(["git", "init", "-q", folder], check=True)
    home.mkdir()
    (own / "secret").write_text("SECRET")
    before = (folder / ".git/config").read_bytes()
    hostile = HOSTILE.format(own=own, home=home)
    writes = [{"name": f"w{number}", "tool": "files.write", "arguments": {"path": path, "text": "bad"},
               "depends_on": ["run"], "critical": False}
              for number, path in enumerate((*PLANTED, ".git/config", "n/.GIT/config"))]
    file = write(tmp_path / "w.yaml", name="w", steps=[
        {"name": "run", "tool": "command.run", "arguments": {"command": hostile}}, *writes])
    assert main(["workflow", "run", str(file), "--json", "--home", str(home), "--workdir", str(folder)]) == 0
    told = capsys.readouterr()
    assert set(json.loads(told.out)["steps"].values()) == {"completed", "failed"}
    assert "SECRET" not in told.out and f"changed the repository in {folder / 'n'}" in told.err

    tools = tools_of(folder, read_tiers()["trusted"], CheckoutCommands(folder, home, home / "sessions/s"))
    said = asyncio.run(ToolDispatcher(tools)([
        {"name": "run", "arguments": {"command": hostile}}, *(
            {"name": "write", "arguments": {"path": path, "text": "bad"}} for path in (*PLANTED, ".git/hooks/x")),
        {"name": "read", "arguments": {"path": "exit"}}], "a"))
    assert "SECRET" not in str(said) and all(line.startswith("error: UsageError") for line in said[1:])
    assert (own / "secret").read_text() == "SECRET" and (folder / ".git/config").read_bytes() == before
    assert not any((folder / ".git/hooks").glob("post-commit")) and [*home.rglob("exit")] == []


def test_a_command_runs_outside_of_the_sandbox_by_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "f"], check=True)
    file = write(tmp_path / "w.yaml", name="w", steps=[
        {"name": "run", "tool": "command.run", "arguments": {"command": "git config a.b c"}}])
    monkeypatch.setenv("GARRISON_SANDBOX", "bubblewrap")  # put back at the end
    words = ["workflow", "run", str(file), "--home", str(tmp_path / "h"), "--workdir", str(tmp_path / "f")]
    assert [main(words), main([*words, "--sandbox", "none"])] == [1, 0]


def test_a_file_with_servers_is_kept_with_its_session(tmp_path: Path, server: ServerSpec) -> None:
    file = write(tmp_path / "w.yaml", name="w", servers={"notes": {"command": list(server.command)}},
                 steps=[{"name": "a", "tool": "notes.add", "arguments": {"text": "x"}}])
    flow, specs = read_workflow(file)
    assert specs == {"notes": server}
    assert flow.metadata["servers"]["notes"]["command"] == list(server.command)
