"""ACP agents: profiles, answers to permission requests, reports in messages, classes of errors; the MCP server."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from acp.helpers import embedded_text_resource, resource_block, resource_link_block, text_block

from garrison.acp import commands, rail
from garrison.acp.server import text_of
from garrison.agents import mcp_server
from garrison.agents.acp import connection, permissions
from garrison.agents.acp.attempt import AcpAgent
from garrison.agents.acp.connection import AcpConnection
from garrison.agents.acp.permissions import LeaveRuling, OfferedAnswer, choose, read_answer, rule
from garrison.agents.acp.profile import AcpProfile
from garrison.agents.acp.settings import AcpJob, AcpSettings
from garrison.agents.conversation import holder, policy
from garrison.agents.conversation.policy import ConnectionEnd, NextStepKind
from garrison.agents.registry import agent, check_node, find_profile, limits_of, variables_of
from garrison.agents.report_block import find_report, find_verdict
from garrison.agents.reports import AgentReports, ValidatorReports
from garrison.agents.requests import Reply, parse_request
from garrison.cli.takeover import fill_session, opener_of
from garrison.errors import Refused, UsageError
from garrison.mcp.crew import SeenNode, SeenRun
from garrison.records import atomic
from garrison.records.json_io import read_json
from garrison.records.record import from_data
from garrison.values import asdict

OPTIONS = (OfferedAnswer("y", "Yes", "allow_once"), OfferedAnswer("a", "Always", "allow_always"),
           OfferedAnswer("n", "No", "reject_once"))


def write(home: Path, lines: str) -> Path:
    (home / "config.toml").write_text(f"[agents.x]\nkind = \"acp\"\n{lines}\n")
    return home


def test_a_profile_is_read_and_a_node_may_choose_the_model(tmp_path: Path) -> None:
    home = write(tmp_path, 'argv = ["prog", "--acp"]\nallow = ["read", "edit"]\nbudget = 2\n'
                 'set = { A = "b" }\nenv = ["K"]')
    profile = find_profile("x", home)
    assert isinstance(profile, AcpProfile)
    assert profile.settings == AcpSettings(("prog", "--acp"), allow=("read", "edit"), set={"A": "b"})
    assert profile.env == ("K",) and limits_of("x", "n", {}, home).node == 2.0
    assert variables_of("x", home, {}) == {"A": "b"}
    made = agent("x", home, attributes={})
    assert isinstance(made, AcpAgent)
    check_node("x", "n", {"model": "large"}, home)
    validator = agent("x", home, "validator")
    assert isinstance(validator, AcpAgent) and validator.role == "validator"
    job = AcpJob("h", 2, "t", "f", "s", "p", begun=1, prompt_anew="q", lost=2, program=("sh", "x"),
                 mcp_environment={"A": "b"}, words=("ship",), settings=profile.settings)
    assert from_data(AcpJob, json.loads(json.dumps(asdict(job)))) == job, "it survives its file"


def test_a_validator_reads_whatever_its_profile_allows(tmp_path: Path) -> None:
    own = AcpSettings(("p",), allow=("*",), deny=("fetch",), mode="m")
    ruled = own.read_only()
    def rules(settings: AcpSettings, *kinds: str) -> list[LeaveRuling]:
        return [rule(settings, kind, "x") for kind in kinds]

    assert rules(ruled, "read", "search", "think") == [LeaveRuling.ALLOW] * 3
    assert rules(ruled, "edit", "delete", "move", "execute", "switch_mode", "fetch") == [LeaveRuling.REFUSE] * 6
    assert rules(own.read_only(can_run=True), "execute", "edit") == [LeaveRuling.ALLOW, LeaveRuling.REFUSE]
    assert rule(ruled, "other", "mcp garrison report_verdict") is LeaveRuling.ALLOW
    assert (ruled.argv, ruled.mode) == (own.argv, own.mode)


def test_without_a_program_a_takeover_is_refused_in_one_line(tmp_path: Path) -> None:
    gemini = find_profile("gemini", tmp_path).settings
    assert not isinstance(find_profile("claude", tmp_path), AcpProfile)
    with pytest.raises(Refused, match=r"^agent gemini of work has no program that opens its session: \[agents"):
        opener_of("work", "gemini", gemini)
    for name in ("codex", "opencode", "claude-acp"):
        settings = find_profile(name, tmp_path).settings
        assert settings is not None and "{session}" in opener_of("work", name, settings), name
    words = fill_session(("p", "resume", "{session}", "url=${URL:-none} {other}"), "s-1", {"URL": "http://x"}, "here")
    assert words == ("p", "resume", "s-1", "url=http://x {other}")


@pytest.mark.parametrize(("message", "why"), [
    ("```garrison-result\n[]\n```", "should be an object"), ("```garrison-result\n{\n```", "is invalid"),
    ('```garrison-result\n{"status": "success", "summary": "ok"}\n```', "is not a verdict"),
    ('```garrison-result\n{"verdict": "pass", "reason": "r", "criteria": []}\n```', "at least one criterion"),
    ('```garrison-result\n{"verdict": "pass"}\n```\n```garrison-result\n{"verdict": "fail"}\n```', "several")])
def test_a_block_that_is_no_verdict_is_named(message: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        find_verdict(message)


def test_a_worker_gives_no_verdict_and_a_validator_nothing_else(tmp_path: Path) -> None:
    verdict = {"type": "verdict", "verdict": "pass", "reason": "r",
               "criteria": [{"criterion": "c", "met": True, "evidence": "e"}]}
    request = parse_request(json.dumps(verdict).encode())
    refused = AgentReports(tmp_path).handle(request)
    assert isinstance(refused, Reply) and "only a validator" in refused.error
    validator = ValidatorReports(tmp_path)
    assert "nothing else" in validator.handle(parse_request(b'{"type": "note", "text": "x"}')).error
    assert validator.handle(request) == Reply()
    assert "the first one stands" in validator.handle(request).error
    assert read_json(tmp_path / "socket-result.json")["status"] == "success"


@pytest.mark.parametrize(("lines", "why"), [
    ("", "argv is missing"), ('argv = []', "argv=.* should be a list of strings that starts with the program"),
    ('argv = ["p"]\nallow = ["exec"]', "allow=.*a list of kinds of tool calls: read, edit"),
    ('argv = ["p"]\nmcp_servers.garrison.command = "x"', "further servers: garrison is garrison's own"),
    ('argv = ["p"]\nmcp_servers.a.args = ["x"]',
     r"config.toml:4: \[agents.x.mcp_servers.a\] should have either a command or a url"),
    ('argv = ["p"]\nmcp = "yes"', "mcp='yes' should be true or false"),
    ('argv = ["p"]\ntakeover = ["p"]', 'takeover=.*with "{session}" in one of them'),
    ('argv = ["p"]\ntools = []', "tools is not a")])
def test_an_invalid_profile_is_refused_in_one_line(tmp_path: Path, lines: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        find_profile("x", write(tmp_path, lines))
    assert "\n" not in str(caught.value)


def connection_to(program: str, folder: Path) -> AcpConnection:
    place = str(folder)
    connection = AcpConnection(AcpJob(place, 1, place, place, "", "p", begun=1, prompt_anew="", lost=0,
                                      program=(program,), settings=AcpSettings((program,))))
    connection.files.make()
    return connection


def test_a_missing_program_is_waited_for_and_one_that_cannot_run_is_invalid(tmp_path: Path) -> None:
    ending = asyncio.run(connection_to("/no/such/program", tmp_path).run())
    assert (ending.kind, ending.reason) == (
        "vanished", "/no/such/program is missing; waiting until it is back")
    assert policy.decide([ending]).step is NextStepKind.WAIT
    odd = tmp_path / "odd"
    odd.write_text("#!/no/such/shell\n")
    odd.chmod(0o755)
    ending = asyncio.run(connection_to(str(odd), atomic.make_directory(tmp_path / "other")).run())
    assert (ending.kind, ending.reason) == ("invalid", f"{odd} cannot be started: No such file or directory")
    back = connection_to(str(odd), atomic.make_directory(tmp_path / "back"))
    back.files.add_ending(ConnectionEnd("vanished", 1.0))
    ending = asyncio.run(back.run())
    assert (ending.kind, ending.reason) == ("vanished", f"{odd} cannot be run yet; waiting until it can")


def test_a_full_disk_while_the_program_starts_is_not_the_programs_failure(tmp_path: Path,
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    script = tmp_path / "script.json"
    script.write_text('{"turns": [[]]}')
    agent = tmp_path / "agent"
    agent.write_text(f"#!/bin/sh\nexec {sys.executable} -P -m garrison.testing.acp_agent {script}\n")
    agent.chmod(0o755)
    monkeypatch.setattr(holder, "record_process", full)
    with pytest.raises(OSError, match="No space"):
        asyncio.run(connection_to(str(agent), tmp_path).run())


@pytest.mark.parametrize(("settings", "kind", "title", "ruling"), [
    (AcpSettings(), "execute", "rm", LeaveRuling.ALLOW), (AcpSettings(allow=()), "execute", "rm", LeaveRuling.ASK),
    (AcpSettings(deny=("fetch",)), "fetch", "url", LeaveRuling.REFUSE),
    (AcpSettings(allow=("read",)), "other", "garrison: report_result", LeaveRuling.ALLOW),
    (AcpSettings(allow=("read",)), "other", "other: report_result", LeaveRuling.ASK)])
def test_a_profile_rules_each_kind_of_tool_call(settings: AcpSettings, kind: str, title: str,
                                                ruling: LeaveRuling) -> None:
    assert rule(settings, kind, title) is ruling


@pytest.mark.parametrize(("answer", "chosen"), [
    ("yes", "y"), ("Yes!", "y"), ("ok, do it", "y"), ("always", "a"), ("yes, always", "a"), ("allow_once", "y"),
    ("no", "n"), ("n", "n"), ("what for?", "n"), ("", "n")])
def test_an_answer_in_words_chooses_an_option(answer: str, chosen: str) -> None:
    found = read_answer(OPTIONS, answer)
    assert found is not None and found.id == chosen
    assert choose(OPTIONS[:2], LeaveRuling.REFUSE) is None and read_answer((), answer) is None
    assert choose(OPTIONS[1:], LeaveRuling.ALLOW) == OPTIONS[1]
    assert len(permissions.question_of("x" * 9000, OPTIONS)) < 700


@pytest.mark.parametrize(("message", "report"), [
    ("done", None), ("```json\n{}\n```", None),
    ('so:\n```garrison-result\n{"status": "success", "summary": "did"}\n```\n', ("success", "did")),
    ('```garrison-result\n{"status": "fail", "reason": "red"}\n```', ("fail", "red")),
    ('```garrison-result\n{"status": "fail"}\n```\n```garrison-result\n{"status": "success"}\n```',
     ("success", "success")),
    ('no:\r\n```garrison-result\r\n{"status": "failure",\r\n "reason": "red"}\r\n```\r\n', ("fail", "red")),
    ('~~~garrison-result\n{"status": "failure", "reason": "red"}\n~~~', ("fail", "red")),
    ('```garrison-result\n{"status": "failure", "reason": "a,}b",}\n```', ("fail", "a,}b"))])
def test_a_result_block(message: str, report: tuple[str, str] | None) -> None:
    found = find_report(message)
    assert (found and (found["status"], found["summary"])) == report


@pytest.mark.parametrize("block", ["{", "[]", "{}", '{"status": 3}'])
def test_an_invalid_result_block_is_named(block: str) -> None:
    with pytest.raises(ValueError, match="its result block"):
        find_report(f"```garrison-result\n{block}\n```")


@pytest.mark.parametrize(("code", "text", "kind"), [
    (-32603, "exceeded retry limit, last status: 429 Too Many Requests", "rate_limit"),
    (-32603, "unexpected status 401 Unauthorized", "authentication"), (-32000, "log in", "authentication"),
    (-32603, "HTTP 529", "overloaded"), (-32603, "status 503", "server"), (-32602, "Invalid params", "invalid"),
    (-32603, "stream disconnected", "server"), (-32603, "maximum context length is 8192 tokens", "context"),
    (-32603, "402 garrison: budget used up: node", "budget")])
def test_classes_of_errors(code: int, text: str, kind: str) -> None:
    assert connection.classify_error(code, text)[0] == kind
    assert connection.classify_error(-32603, "Internal error", {"details": text})[0] == kind or code != -32603


# ---- the MCP server


def serve(*lines: Any, refuse: str = "") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the answers to some lines, and the requests that went to the socket."""
    sent: list[dict[str, Any]] = []

    def send(request: Any) -> Any:
        if refuse:
            raise Refused(refuse)
        sent.append(dict(request))
        return {"ok": True}

    out = io.StringIO()
    text = "".join(line if isinstance(line, str) else json.dumps({"jsonrpc": "2.0", **line}) + "\n" for line in lines)
    mcp_server.serve(mcp_server.ToolServer(send), io.StringIO(text), out)
    return [json.loads(line) for line in out.getvalue().splitlines()], sent


def call(tool: Any, **arguments: Any) -> dict[str, Any]:
    return {"id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def test_the_mcp_server_lists_its_tools_and_turns_calls_into_requests_to_the_socket() -> None:
    answers, _ = serve({"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-03-26"}},
                       {"method": "notifications/initialized"}, {"id": 2, "method": "tools/list"},
                       {"id": 3, "method": "ping"}, {"id": 4, "method": "resources/list"}, "garbage\n", "[]\n")
    assert answers[0]["result"]["protocolVersion"] == "2025-03-26"
    assert [tool["name"] for tool in answers[1]["result"]["tools"]] == [
        "report_result", "save_notes", "ask_guardian"]
    assert all(tool["inputSchema"]["type"] == "object" for tool in answers[1]["result"]["tools"])
    assert [answer.get("error", {}).get("code") for answer in answers] == [None, None, None, -32601, -32700]
    _, sent = serve(call("report_result", status="failure", summary="red", context_updates={"a": 1}),
                    call("update_phase", phase="executing"), call("save_notes", text="half"),
                    call("ask_guardian", question="Which?"))
    assert sent == [
        {"type": "report", "status": "failure", "notes": "red", "failure_reason": "red", "context_updates": {"a": 1}},
        {"type": "phase", "phase": "executing"}, {"type": "note", "text": "half"},
        {"type": "question", "text": "Which?", "wait": False}]
    answers, _ = serve(call("save_notes", text="half"), refuse="too many")
    assert answers[0]["result"] == {"content": [{"type": "text", "text": "too many"}], "isError": True}
    answers, sent = serve(call("report_result", status="great"), call("rm"), call(7))
    assert "isError" in answers[0]["result"] and not sent
    assert [answer["error"]["code"] for answer in answers[1:]] == [-32602, -32602]


def test_a_connection_on_a_full_disk_ends_in_one_line(tmp_path: Path) -> None:
    program = (
        "import errno, pathlib, sys\n"
        "from garrison.agents.conversation.connection import run_to_ending\n"
        "from garrison.agents.conversation.files import AttemptFiles\n"
        "async def full(): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "sys.exit(run_to_ending(AttemptFiles(pathlib.Path('attempt')), full))\n")
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False,
                         cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert ran.stdout == "the connection ends: [Errno 28] No space left on device\n"


# ---- commands in an editor's panel, and how it shows a run


@pytest.mark.parametrize(("text", "given"), [
    ("/run fix it", {"task": "fix it"}), ("/run\nfix it\n\nall of it", {"task": "fix it\n\nall of it"}),
    ("/run --agent codex --budget=2 fix it", {"task": "fix it", "agent": "codex", "budget": "2"}),
    ('/run --gate "make test" fix --it', {"task": "fix --it", "gate": "make test"})])
def test_a_run_has_options_before_its_task(text: str, given: dict[str, str]) -> None:
    typed = commands.read(text)
    assert typed is not None and commands.read_run(typed.rest) == given


def test_text_that_is_no_command_is_a_message_and_a_typo_is_corrected() -> None:
    assert [commands.read(text) for text in ("fix /run", "/etc/hosts is wrong", "/x.py fails", "")] == [None] * 4
    for text, words in (("/stpo", "did you mean /stop"), ("/", "there is no command /;"), ("/frobnicate", "are /run")):
        with pytest.raises(UsageError, match=words):
            commands.read(text)
    for text in ("/tell", "/tell node", "/diff", "/diff a b"):
        typed = commands.read(text)
        assert typed is not None
        with pytest.raises(UsageError, match=f"type /{typed.name} NODE"):
            typed.two() if typed.name == "tell" else typed.one()
    with pytest.raises(UsageError, match="has no --colour"):
        commands.read_run("--colour red fix it")


def test_a_node_gets_a_call_once_it_works_and_each_change_updates_it() -> None:
    def seen(first: str, second: str) -> SeenRun:
        nodes = [SeenNode("a", first, first), SeenNode("b", second, "for a")]
        return SeenRun("r1", "running", "", "", is_over=False, nodes=nodes)

    old, new = seen("working", "waiting"), seen("landed", "working")
    [call] = rail.to_calls(None, old, set())
    assert (call.session_update, call.tool_call_id, call.status) == ("tool_call", "r1/a", "in_progress")
    assert rail.to_calls(old, old, {"r1/a"}) == []
    assert [(call.session_update, call.tool_call_id, call.status) for call in rail.to_calls(old, new, {"r1/a"})] == [
        ("tool_call_update", "r1/a", "completed"), ("tool_call", "r1/b", "in_progress")]
    assert [call.status for call in rail.to_calls(new, seen("failed", "working"), {"r1/a", "r1/b"})] == ["failed"]
    assert [(entry.content, entry.status) for entry in rail.to_plan([old]).entries] == [
        ("a: working", "in_progress"), ("b: waiting, for a", "pending")]
    assert rail.to_plan([old, new]).entries[0].content == "r1: a: working"


def test_files_of_a_prompt_are_quoted_or_named() -> None:
    quoted = resource_block(embedded_text_resource("file:///p/a.md", "a ``` in it"))
    assert text_of([text_block("mend"), quoted, resource_link_block("b", "file:///p/b.py")]) == (
        "mend\n\n/p/a.md:\n````\na ``` in it\n````\n /p/b.py")
