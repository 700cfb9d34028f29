"""Call of a tool: whatever it does, only its step fails, in time; its result is stored if possible."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from garrison.workflow import AgentConfig, ResearchAgent, Workflow, WorkflowResult, WorkflowStep
from garrison.workflow.errors import UnserializableResult, WorkflowValidationError
from garrison.workflow.mcp_tools import ServerSpec
from garrison.workflow.tool_call import ToolCaller, to_json
from garrison.workflow.workflow_file import read_workflow


def run(folder: Path, tools: dict[str, Any], *steps: WorkflowStep) -> WorkflowResult:
    agent = ResearchAgent(tools, AgentConfig(state_dir=str(folder)))
    return asyncio.run(agent.execute_workflow(Workflow("w", "", list(steps))))


def ends(code: int = 3) -> None:
    sys.exit(code)


def interrupted() -> None:
    raise KeyboardInterrupt


async def ends_async() -> None:
    sys.exit(4)


async def cancelled() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(("tool", "why"), [
    (ends, "the tool ended itself (SystemExit: 3)"), (ends_async, "the tool ended itself (SystemExit: 4)"),
    (interrupted, "the tool ended itself (KeyboardInterrupt)"), (cancelled, "the tool cancelled itself")])
def test_a_tool_that_ends_itself_fails_only_its_step(tmp_path: Path, tool: Any, why: str) -> None:
    result = run(tmp_path, {"t": tool, "ok": dict}, WorkflowStep("a", "t", critical=False), WorkflowStep("b", "ok"))
    assert result.success
    assert result.errors == [f"Step 'a' failed: ToolEnded: {why}"]
    assert result.results["b"] == {}


def test_blocking_tools_start_immediately_however_few_cores_there_are(tmp_path: Path) -> None:
    together = threading.Barrier(40)
    result = run(tmp_path, {"meet": lambda: together.wait(60) >= 0},
                 *(WorkflowStep(f"s{number}", "meet") for number in range(40)))
    assert (result.success, len(result.results)) == (True, 40)


async def test_the_timeout_of_a_step_starts_with_its_call() -> None:
    never, caller = threading.Event(), ToolCaller(threads=1)
    ends = await asyncio.gather(*(caller.call(tool, {}, 0.1) for tool in (*[never.wait] * 3, dict)),
                                return_exceptions=True)
    never.set()
    assert list(map(type, ends)) == [TimeoutError] * 3 + [dict], "a tool that never returns frees its place"


def test_a_tool_that_never_returns_does_not_keep_the_program_running(tmp_path: Path) -> None:
    program = """
import asyncio, sys, threading
from garrison.workflow import AgentConfig, ResearchAgent, Workflow, WorkflowStep
agent = ResearchAgent({"t": threading.Event().wait}, AgentConfig(state_dir=sys.argv[1]))
steps = [WorkflowStep("a", "t", timeout=0.05)]
print(asyncio.run(agent.execute_workflow(Workflow("w", "", steps))).errors)
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], check=True, capture_output=True, text=True,
                          timeout=60)
    assert "no answer within 0.05 s" in done.stdout


@dataclasses.dataclass
class Paper:
    title: str
    pages: tuple[int, int]


@pytest.mark.parametrize(("given", "kept"), [
    ((1, (2,)), [1, [2]]), ([Paper("a", (1, 2))], [{"title": "a", "pages": [1, 2]}]),
    (collections.OrderedDict(a=Paper("b", (3, 4))), {"a": {"title": "b", "pages": [3, 4]}}), (None, None)])
def test_nested_models_and_tuples_are_stored(given: Any, kept: Any) -> None:
    assert to_json(given, "t") == kept


@pytest.mark.parametrize("given", [{1: 2}, {1, 2}, float("nan"), object(), [object()], Paper("x", (1, object()))])
def test_values_that_would_change_in_storage_are_refused(given: Any) -> None:
    with pytest.raises(UnserializableResult, match="the tool t returned a value of type"):
        to_json(given, "t")


def test_a_duplicate_key_is_refused_with_its_position_but_no_merged_key(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("name: w\nsteps:\n  - &a {name: a, tool: t}\n  - {<<: *a, name: b}\n")
    assert [step.name for step in read_workflow(file)[0].steps] == ["a", "b"]
    file.write_text("name: w\nsteps:\n  - {name: a, tool: t,\n     tool: u}\n")
    with pytest.raises(Exception, match=r"w.yaml:4:6: 'tool' appears twice"):
        read_workflow(file)


@pytest.mark.parametrize("value", ["$WF_UNSET", "${WF_UNSET}"])
def test_a_server_gets_the_value_of_a_variable_not_its_name(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.delenv("WF_UNSET", raising=False)
    with pytest.raises(WorkflowValidationError, match=r"n uses \$.*WF_UNSET.*, which is not set; export"):
        ServerSpec.from_data("n", {"command": ["x"], "env": {"KEY": value}})
    monkeypatch.setenv("WF_UNSET", "secret")
    spec = ServerSpec.from_data("n", {"command": ["x"], "env": {"KEY": value, "PRICE": "5$ each"}})
    assert dict(spec.env) == {"KEY": "secret", "PRICE": "5$ each"}


def test_a_server_has_the_working_directory_of_the_tools(tmp_path: Path) -> None:
    assert ServerSpec("n", ("x",)).below(tmp_path).cwd == str(tmp_path)
    assert ServerSpec("n", ("x",), cwd="sub").below(tmp_path).cwd == str(tmp_path / "sub")
    assert ServerSpec("n", ("x",), cwd="/srv").below(tmp_path).cwd == "/srv"
    assert ServerSpec("n", url="http://127.0.0.1:1/mcp").below(tmp_path).cwd is None


def test_a_value_for_an_unknown_input_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("name: w\ninputs: {folder: a}\nsteps:\n"
                    "  - {name: a, tool: t, arguments: {x: '${inputs.folder}', y: '${inputs.many[0].k}'}}\n")
    assert read_workflow(file, {"folder": "b", "many": [{"k": 1}]})[0].inputs == {"folder": "b", "many": [{"k": 1}]}
    with pytest.raises(WorkflowValidationError, match="unknown input 'foldr'; did you mean folder"):
        read_workflow(file, {"foldr": "b"})
    with pytest.raises(WorkflowValidationError, match="unknown input 'x'; inputs: folder, many"):
        read_workflow(file, {"x": "b"})


@pytest.mark.parametrize(("text", "place", "message"), [
    ("name: w\nsteps:\n  - {name: a, tool: t}\n  - name: b\n    tool: t\n    retrycount: 2\n", "6:5",
     "step 'b' has the unknown field retrycount; did you mean retry_count?"),
    ("name: w\nstps: []\nsteps: [{name: a, tool: t}]\n", "2:1",
     "the workflow has the unknown field stps; did you mean steps?"),
    ("name: w\nservers:\n  n: {comand: [x]}\nsteps: [{name: a, tool: t}]\n", "3:7",
     "server n has the unknown field comand; did you mean command?"),
    ("name: w\nsteps: [{name: a, tool: t, colour: red}]\n", "2:28",
     "step 'a' has the unknown field colour; known fields: name, tool"),
    ("name: w\nsteps:\n  - {nam: a, tool: t}\n", "3:6", "step 1 has the unknown field nam; did you mean name?"),
    ("name: w\nsteps:\n  - tool: t\n", "3:5", "step 1 has no name"),
    ("name: w\nsteps:\n  - name: a\n    tool: t\n    timeout: soon\n", "5:5",
     "step 'a': timeout must be a number, not 'soon'"),
    ("name: w\nservers:\n  n: {url: 5}\nsteps: [{name: a, tool: t}]\n", "3:7",
     "server n: url must be a text, not 5"),
])
def test_a_wrong_field_is_refused_with_its_line(text: str, place: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(text)
    with pytest.raises(WorkflowValidationError) as caught:
        read_workflow(file)
    assert str(caught.value).startswith(f"{file}:{place}: {message}")


def test_custom_fields_are_allowed_in_a_workflow(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("name: w\nx_team: a\nsteps: [{name: a, tool: t, x_why: b}]\nservers: {n: {url: u, x_who: c}}\n")
    workflow, servers = read_workflow(file)
    assert [step.name for step in workflow.steps] == ["a"]
    assert set(servers) == {"n"}
