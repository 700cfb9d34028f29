"""Workflows by the seed's acceptance criteria: AC-001 … AC-006 by number, with tools that are plain functions."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from garrison.errors import AlreadyAlive
from garrison.values import asdict
from garrison.workflow import (
    AgentConfig,
    ResearchAgent,
    StateLoadError,
    StateManager,
    StepStatus,
    ToolNotFoundError,
    Workflow,
    WorkflowResult,
    WorkflowState,
    WorkflowStep,
    WorkflowValidationError,
)
from garrison.workflow.executor import MAX_LOGGED_RESULT, Progress
from garrison.workflow.references import references, resolve, split
from garrison.workflow.tool_call import ToolCaller, advice
from garrison.workflow.tools import load_tool
from garrison.workflow.validation import validate
from support import DEADLINE


def step(name: str, tool: str = "echo", **more: Any) -> WorkflowStep:
    arguments = more.pop("arguments", {"value": name})
    return WorkflowStep(name, tool, arguments, **more)


class Bench:
    """An agent with a few tools that record their calls."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.calls: list[Any] = []
        self.broken: dict[str, Exception] = {}
        self.at_once = self.most_at_once = 0
        self.progress: list[Progress] = []
        self.manager = StateManager(folder)
        config = options.pop("config", AgentConfig())
        self.agent = ResearchAgent({"echo": self.echo, "slow": self.slow, "plain": self.plain, "fails": self.fails},
                                   config, self.manager, on_progress=self.progress.append, **options)

    async def echo(self, value: Any = None) -> Any:
        self.calls.append(value)
        if isinstance(value, str) and value in self.broken:
            raise self.broken[value]
        return {"said": value}

    async def slow(self, value: Any = None) -> Any:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        for _ in range(20):
            await asyncio.sleep(0)
        self.at_once -= 1
        self.calls.append(value)
        return value

    def plain(self, value: Any = None) -> Any:
        self.calls.append(value)
        return [value, value]

    async def fails(self, **_: Any) -> Any:
        self.calls.append("fails")
        raise ConnectionError("no route")

    def run(self, *steps: WorkflowStep, session: str | None = None, **more: Any) -> WorkflowResult:
        return asyncio.run(self.agent.execute_workflow(Workflow("w", "d", list(steps), **more), session))

    def resume(self, session: str) -> WorkflowResult:
        return asyncio.run(self.agent.resume_workflow(session))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_ac_004_results_flow_in_dependency_order(bench: Bench) -> None:
    result = bench.run(step("b", arguments={"value": "${a.said}"}), step("a", arguments={"value": {"n": [1, 2]}}),
                       step("c", arguments={"value": "n is ${b.said.n[1]}, whole ${a}"}))
    assert result.success, result
    assert bench.calls == [{"n": [1, 2]}, {"n": [1, 2]}, 'n is 2, whole {"said": {"n": [1, 2]}}']
    assert result.results["b"] == {"said": {"n": [1, 2]}}
    assert result.message == "Workflow 'w' completed successfully"
    assert set(result.step_status.values()) == {StepStatus.COMPLETED}


def test_ac_004_independent_steps_run_at_the_same_time(bench: Bench) -> None:
    assert bench.run(*(step(name, "slow") for name in "abc"), step("d", "slow", depends_on=["a", "b"])).success
    assert bench.most_at_once == 3
    assert bench.calls[3] == "d"


def test_ac_004_plain_functions_do_not_block_others(bench: Bench) -> None:
    meeting = threading.Barrier(2, timeout=DEADLINE)

    def meet() -> str:
        meeting.wait()
        return "met"
    bench.agent.tools = {"meet": meet}
    result = bench.run(step("a", "meet", arguments={}), step("b", "meet", arguments={}))
    assert result.results == {"a": "met", "b": "met"}


def test_ac_005_each_step_reports_progress_and_is_logged_with_a_bounded_result(bench: Bench) -> None:
    bench.run(step("a"), step("b", depends_on=["a"]))
    assert [(one.step, one.status.value, one.done, one.total) for one in bench.progress] == [
        ("a", "running", 0, 2), ("a", "completed", 1, 2), ("b", "running", 1, 2), ("b", "completed", 2, 2)]
    [log] = list((bench.manager.state_dir / "logs").glob("*.log"))
    text = log.read_text()
    assert 'call a: echo({"value": "a"})' in text
    assert '(1 of 2): {"said": "a"}' in text
    assert "step b completed" in text
    bench.run(step("a", arguments={"value": "x" * 100_000}), session="s1")
    lines = [line for line in bench.manager.log("s1").read_text().splitlines() if "step a completed" in line]
    assert len(lines) == 1 and len(lines[0]) < MAX_LOGGED_RESULT + 200
    assert lines[0].endswith("… (100012 characters)")


def test_ac_003_state_is_cleaned_up_after_success_and_kept_when_asked(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert not bench.run(step("a"), step("b", "fails", depends_on=["a"]), session="s1").success
    bench.manager.path("s1").unlink()  # leftovers of a killed clean-up are no session
    assert bench.run(step("a"), session="s1").results == {"a": {"said": "a"}}
    assert bench.calls == ["a", "fails", "a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "runs"]
    assert list((tmp_path / "runs").iterdir()) == []
    kept = Bench(tmp_path, keep=True)
    kept.run(step("a"), session="s1")
    body = json.loads((tmp_path / "s1.json").read_text())
    assert {"session_id": "s1", "workflow_name": "w", "status": "completed", "current_step": 1,
            "completed_steps": ["a"], "step_results": {"a": {"said": "a"}}, "errors": []}.items() <= body.items()


def test_ac_003_a_failed_session_is_resumed_where_it_was(bench: Bench) -> None:
    bench.broken["b"] = ConnectionError("no route")
    result = bench.run(step("a"), step("b", depends_on=["a"]), step("c", depends_on=["b"]), session="s1")
    assert not result.success
    assert result.message == "Critical step failed: b; continue with `resume_workflow('s1')`", "not in the home"
    assert result.errors == ["Step 'b' failed: ConnectionError: no route"]
    assert result.suggestions == ["b: check that the service is up and reachable"]
    assert result.results == {"a": {"said": "a"}}, "partial results are kept"
    [session] = asyncio.run(bench.agent.list_sessions())
    assert (session["session_id"], session["status"], session["current_step"]) == ("s1", "failed", 1)
    bench.broken.clear()
    again = bench.resume("s1")
    assert again.success, again
    assert bench.calls == ["a", "b", "b", "c"], "no completed step runs twice"
    assert again.results == {name: {"said": name} for name in "abc"}
    assert again.errors == []
    assert asyncio.run(bench.agent.list_sessions()) == []


def test_ac_003_a_session_is_not_mixed_with_another_workflow(bench: Bench) -> None:
    """Remaining steps may be corrected; a change of finished steps or of dependencies makes another workflow."""
    first, last = step("a"), step("b", "fails", arguments={"value": "${a.said}"})
    assert bench.run(first, last, session="s1").success is False
    assert bench.run(first, last, session="s1").errors == ["Step 'b' failed: ConnectionError: no route"]
    for others, what in ([[step("a", arguments={"value": "x"}), last], "step 'a'"], [[first], "its steps"],
                         [[first, step("b", "echo", depends_on=["a"], critical=False)], "step 'b'"],
                         [[first, step("b")], "its steps"]):
        with pytest.raises(WorkflowValidationError, match=rf"started with another workflow \({what} changed\)"):
            bench.run(*others, session="s1")
    with pytest.raises(WorkflowValidationError, match="its inputs changed"):
        bench.run(first, last, session="s1", inputs={"q": 1})
    assert bench.run(first, step("b", "echo", arguments={"value": "${a.said}!"}), session="s1").results["b"] == {
        "said": "a!"}
    assert bench.calls == ["a", "fails", "fails", "a!"]


def test_ac_003_after_a_critical_failure_running_steps_end_and_none_starts(bench: Bench) -> None:
    bench.broken["bad"] = ConnectionError("x")
    result = bench.run(step("long", "slow"), step("bad"), step("after", depends_on=["long"]), session="s1")
    assert not result.success
    assert result.results == {"long": "long"}
    bench.broken.clear()
    assert bench.resume("s1").success
    assert sorted(map(str, bench.calls)) == ["after", "bad", "bad", "long"]


def test_ac_003_state_and_workflow_survive_encoding(tmp_path: Path) -> None:
    manager = StateManager(tmp_path)
    state = WorkflowState("s1", Workflow("w", "d", [step("a", timeout=5, critical=False)], {"k": 1}, {"q": "x"}),
                          "failed", 1, ["a"], {"a": [1]}, ["e"], step_status={"a": StepStatus.COMPLETED},
                          attempts={"a": 2}, suggestions=["s"])
    asyncio.run(manager.save_state(state))
    assert asyncio.run(manager.load_state("s1")) == state
    assert asyncio.run(manager.load_state("s2")) is None
    asyncio.run(manager.cleanup_state("s1"))
    assert list(tmp_path.glob("*.json")) == []
    flow = Workflow("w", "d", [step("a", critical=False, description="x"), step("b", depends_on=["a"])], {"m": 1})
    assert Workflow.from_data(json.loads(json.dumps(asdict(flow)))) == flow
    assert validate(flow) == {"a": [], "b": ["a"]}


def test_ac_003_an_unreadable_file_is_reported_and_kept(bench: Bench) -> None:
    bench.manager.state_dir.mkdir(exist_ok=True)
    path = bench.manager.state_dir / "s1.json"
    path.write_text("{")
    with pytest.raises(StateLoadError, match="left in place"):
        bench.resume("s1")
    assert path.read_text() == "{"
    assert asyncio.run(bench.agent.list_sessions())[0]["status"] == "corrupt"
    with pytest.raises(ValueError, match=r"no session s9; `list_sessions\(\)` returns"):
        bench.resume("s9")
    with pytest.raises(StateLoadError, match="not a session id"):
        bench.resume("../s1")


async def test_a_home_can_run_several_workflows_but_each_session_once(bench: Bench) -> None:
    gate = asyncio.Event()
    bench.agent.tools = {"wait": gate.wait, "echo": bench.echo}
    first = Workflow("w", "", [step("a", "wait", arguments={})])
    one = asyncio.create_task(bench.agent.execute_workflow(first, "s1"))
    while not bench.progress:
        await asyncio.sleep(0.001)
    assert (await bench.agent.execute_workflow(Workflow("v", "", [step("a")]), "s2")).success
    with pytest.raises(AlreadyAlive):
        await bench.agent.resume_workflow("s1")
    gate.set()
    assert (await one).success


def test_ac_006_steps_that_refer_to_a_noncritical_failure_are_skipped(bench: Bench) -> None:
    bench.broken["a"] = ValueError("bad")
    result = bench.run(step("a", critical=False), step("b", arguments={"value": "${a.said}"}),
                       step("c", arguments={"value": "${b.said}"}), step("d", depends_on=["a"]))
    assert result.success
    assert result.results == {"a": {"error": "ValueError: bad"}, "d": {"said": "d"}}
    assert {name: one.value for name, one in result.step_status.items()} == {
        "a": "failed", "b": "skipped", "c": "skipped", "d": "completed"}
    assert result.message == "Workflow 'w' completed successfully, with 1 step that failed"
    assert bench.calls == ["a", "d"]


def test_ac_006_only_a_transient_failure_is_retried(bench: Bench) -> None:
    tries = []

    async def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("later")
        return "ok"

    async def wrong(value: int) -> str:
        raise TypeError("wrong")
    bench.agent.tools = {"flaky": flaky, "wrong": wrong}
    assert bench.run(step("a", "flaky", arguments={}, retry_count=2)).results == {"a": "ok"}
    assert len(tries) == 3
    result = bench.run(step("a", "wrong", arguments={"value": 1}, retry_count=2))
    assert "TypeError" in result.errors[0]
    running = [one.error for one in bench.progress if one.status is StepStatus.RUNNING]
    assert (running.count(""), running.count("OSError: later")) == (4, 2), "each failed try is reported"
    bench.agent.tools, bench.agent.config = {"fails": bench.fails}, AgentConfig(max_retries=1)
    assert not bench.run(step("a", "fails", retry_count=5)).success
    assert bench.calls == ["fails", "fails"], "the agent's limit takes precedence"


def test_ac_006_a_step_that_takes_too_long_fails_and_such_a_session_can_be_resumed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.agent.tools = {"wait": asyncio.Event().wait}
    result = bench.run(step("a", "wait", arguments={}, timeout=0.05))
    assert "TimeoutError: no answer within 0.05 s" in result.errors[0]
    assert "raise the step's timeout" in result.suggestions[0]
    bench = Bench(tmp_path, config=AgentConfig(timeout_seconds=0.2))
    bench.agent.tools = {"wait": asyncio.Event().wait, "echo": bench.echo}
    result = bench.run(step("a"), step("b", "wait", arguments={}, depends_on=["a"]), session="s1")
    assert not result.success
    assert "took too long" in result.message
    assert result.results == {"a": {"said": "a"}}
    bench.agent.config.timeout_seconds = 60
    bench.agent.tools = {"wait": bench.slow, "echo": bench.echo}
    assert bench.resume("s1").success
    assert bench.calls == ["a", None]


@pytest.mark.parametrize(("value", "means"), [
    ("${a}", {"x": [{"n": 1}]}), ("${a.x}", [{"n": 1}]), ("${a.x[0].n}", 1), ("${a.x.0.n}", 1), ("${a.x[-1].n}", 1),
    ("n=${a.x[0].n}!", "n=1!"), ("$${a}", "${a}"), ({"k": ["${a.x[0]}", 2]}, {"k": [{"n": 1}, 2]}),
    ("${ my step.v }", "w"), ("${inputs.q}", None), (7, 7),
    ('${k["a.b"]}', 1), ("${k['c[0]'].d[1]}", 2), ('${k["c[0]"]["d"][0]} ${k.e-f}', "1 3")])
def test_references_are_resolved(value: Any, means: Any) -> None:
    results = {"a": {"x": [{"n": 1}]}, "my step": {"v": "w"}, "inputs": {"q": None},
               "k": {"a.b": 1, "c[0]": {"d": [1, 2]}, "e-f": 3}}
    assert resolve(value, results, {}) == means


@pytest.mark.parametrize(("value", "why"), [
    ("${a.y}", "a has no y; it has x"), ("${a.x[3]}", "a.x has no 3; it is a list of 1"),
    ("${a.x[0].n.z}", "which has no parts"), ("${lost.x}", "lost failed: why"), ("${no.x}", "names no step"),
    ("${a[b]}", "cannot be parsed")])
def test_a_missing_reference_is_reported_before_the_tool_is_called(value: str, why: str) -> None:
    with pytest.raises(Exception, match=re.escape(why)):
        resolve(value, {"a": {"x": [{"n": 1}]}}, {"lost": "failed: why"})


def test_a_reference_means_the_longest_matching_name() -> None:
    assert split("a.b.c", {"a", "a.b"}) == ("a.b", ["c"])
    assert list(references({"k": ["${a.b} and ${c}", "$${d}"]})) == ["a.b", "c"]


def test_invalid_workflows_tools_and_levels_are_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch,
                                                        tmp_path: Path) -> None:
    with pytest.raises(WorkflowValidationError, match="not NoneType"):
        asyncio.run(bench.agent.execute_workflow(None))
    with pytest.raises(WorkflowValidationError, match="step 1 must be a WorkflowStep, not dict"):
        bench.run({"name": "a"})
    bench.agent.tools = {"echo": 5}
    with pytest.raises(ToolNotFoundError, match="the tool 'echo' is int, which cannot be called"):
        bench.run(step("a"))
    bench.agent.config.log_level = "LOUD"
    with pytest.raises(WorkflowValidationError, match="log_level='LOUD' is not a log level"):
        bench.run(step("a"))
    monkeypatch.setenv("GARRISON_HOME", str(tmp_path))
    assert StateManager().state_dir == tmp_path / "workflows"

ROUND: list[Any] = []
ROUND.append(ROUND)


@pytest.mark.parametrize(("steps", "why"), [
    ([], "at least one step"), ([step("a"), step("a")], "two steps are named"),
    ([step("inputs")], "cannot name a step"),
    ([step("a", depends_on=["z"])], "depends on 'z'"), ([step("a", arguments={"v": "${z.k}"})], "names no step"),
    ([step("a", depends_on=["b"]), step("b", depends_on=["a"])], "depend on each other"),
    ([step("a", timeout=0)], "above 0"), ([step("a", retry_count=-1)], "from 0 to 100"),
    ([step("a", arguments={"v": "${inputs.q}"})], "--set q=VALUE"),
    ([step("a", arguments={"v": {1, 2}})], "arguments"), ([step("a", arguments={"v": ROUND})], "arguments"),
    ([step("a", arguments=None)], "step 'a' has no arguments"),
    ([step("a", depends_on="b")], "depends_on must be a list, not 'b'"),
    ([step("a", timeout="5")], "timeout must be a number"), ([step("a", retry_count=None)], "has no retry_count"),
    ([step(7)], "name must be a text"),
    ([step("alpha"), step("b", arguments={"value": "${alhpa.said}"})], r"did you mean \$\{alpha\}\?"),
    ([step("a", arguments={"value": ["${b.x"]})], r"'\$\{b.x' is an unclosed reference"),
    ([step("a", "ecko")], "did you mean echo"),
    ([step("a", arguments={"valu": 1})], "has no parameter valu; did you mean value")])
def test_an_impossible_workflow_is_refused_before_anything_runs(bench: Bench, steps: list[Any], why: str) -> None:
    with pytest.raises(Exception, match=why) as caught:
        bench.run(*steps)
    assert "\n" not in str(caught.value)
    assert bench.calls == []
    assert not list(bench.manager.state_dir.glob("*.lock")), "nothing is left of a refused one"


@pytest.mark.parametrize(("body", "why"), [
    ([], "mapping of fields"), ({"name": "w"}, "no steps"), ({"name": "w", "steps": [{}]}, "step 1 has no name"),
    ({"name": "w", "steps": [{"name": "a", "tool": "t", "colour": 1}]}, "step 'a' has the unknown field colour"),
    ({"name": "w", "steps": [{"name": "a", "tool": "t", "timeout": "5"}]}, "timeout must be a number, not '5'"),
    ({"name": "w", "steps": [{"name": "a", "tool": "t", "retry_count": True}]},
     "retry_count must be a whole number, not True"),
    ({"name": "w", "steps": [{"name": "a", "tool": None}]}, "step 'a' has no tool"),
    ({"name": "w", "steps": [{"name": "a", "tool": "t", "depends_on": [["b"]]}]}, "a list of step names")])
def test_a_malformed_workflow_is_refused(body: Any, why: str) -> None:
    with pytest.raises(WorkflowValidationError, match=why):
        Workflow.from_data(body)


TOOLS = '''
def slug(text: str) -> str:
    "Make a slug."
    return text.replace(" ", "-")

class Box:
    @staticmethod
    def size(items: list) -> int:
        return len(items)

def odd():
    return object()

from os.path import basename as not_a_tool_of_this_file
'''


def test_ac_002_a_python_function_is_a_tool_by_its_import_path(tmp_path: Path) -> None:
    (tmp_path / "wf_tools_here.py").write_text(TOOLS)
    slug = load_tool("wf_tools_here:slug", tmp_path)
    assert slug("a b") == "a-b"
    assert load_tool("wf_tools_here.py:Box.size", tmp_path)([1, 2]) == 2
    assert load_tool("os.path:basename", tmp_path)("a/b") == "b"
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(("tool", "why"), [
    ("wf_nobody:slug", "no module wf_nobody, neither in"),
    ("wf_other.py:slug", "no file"), ("wf_tools_there:slgu", "has no function 'slgu'; did you mean slug?"),
    ("wf_tools_there:fly", "has no function 'fly'; it has slug, Box, odd"),
    ("wf_broken:slug", r"wf_broken fails to load \(ZeroDivisionError: "),
    ("wf_ends:slug", r"wf_ends fails to load \(SystemExit: 3\)"),
    ("wf_needs:slug", r"wf_needs fails to load \(ModuleNotFoundError: No module named 'wf_nothing'"),
    (":slug", "is not a module")])
def test_a_python_tool_that_cannot_be_loaded_is_reported_in_one_line(tmp_path: Path, tool: str, why: str) -> None:
    (tmp_path / "wf_tools_there.py").write_text(TOOLS)
    (tmp_path / "wf_ends.py").write_text("from os import getcwd\nraise SystemExit(3)\n")
    (tmp_path / "wf_broken.py").write_text("1 / 0\n")
    (tmp_path / "wf_needs.py").write_text("import wf_nothing\n")
    with pytest.raises(ToolNotFoundError, match=why) as caught:
        load_tool(tool, tmp_path)
    assert str(caught.value).startswith(f"the tool {tool!r}: ")
    assert "\n" not in str(caught.value)


def test_a_variable_of_the_environment_reaches_the_tool_but_not_the_log(
        bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WF_KEY", "s3cret")
    result = bench.run(step("a", arguments={"value": "key ${env.WF_KEY}"}), session="s1")
    assert bench.calls == ["key s3cret"]
    assert result.success
    log = bench.manager.log("s1").read_text()
    assert 'call a: echo({"value": "key ${env.WF_KEY}"})' in log
    assert '(1 of 1): {"said": "key ${env.WF_KEY}"}' in log, "a tool may return what it was given"
    assert "s3cret" not in log
    with pytest.raises(WorkflowValidationError, match=r"\$\{env.WF_NOT_SET\}, which is not set; export it"):
        bench.run(step("a", arguments={"value": "${env.WF_NOT_SET}"}))
    assert bench.run(step("env"), step("b", arguments={"value": "${env.said}"})).results["b"] == {"said": "env"}


class HttpStatus(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.response = SimpleNamespace(status_code=status)


def raising(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(("tool", "words"), [
    (lambda: raising(KeyError("x")), r"correct the step's arguments, or the tool: t failed at test_workflow.py:\d+"),
    (lambda value: None, "compare the step's arguments with the tool's parameters"),
    (lambda: 1 / 0, r"t failed at test_workflow.py:\d+"),
    (lambda: int("x"), r"arguments in the workflow: t does not accept them \(test_workflow.py:\d+\)"),
    (lambda: json.loads("<html>"), "it is not JSON"), (b"\xff".decode, "it is not text"),
    (lambda: Path("/nowhere/x.txt").read_text(), "/nowhere/x.txt does not exist"),
    (lambda: subprocess.run(["no-such-program"], check=True), "install the program no-such-program"),
    (lambda: subprocess.run(["false"], check=True), "run the command by hand"),
    (lambda: Path("/").write_text("x"), "/ is a folder"), (lambda: __import__("wf_nothing"), "module wf_nothing"),
    (lambda: raising(OSError(errno.ENOSPC, "No space left on device")), "free space on the disk"),
    (lambda: raising(HttpStatus(401)), "check the key"), (lambda: raising(HttpStatus(503)), "try again later"),
    (lambda: raising(TimeoutError("timed out")), "check that the service is up"),
    (lambda: raising(TimeoutError("no answer within 7 s")), r"raise the step's timeout \(7 s\)"),
    (lambda: raising(ConnectionRefusedError()), "check that the service is up")])
def test_ac_006_the_advice_fits_the_error(tool: Any, words: str) -> None:
    async def scene() -> str:
        try:
            await ToolCaller().call(tool, {}, 60)
        except Exception as error:
            return advice(error, "t", 7.0)
        raise AssertionError("the tool did not fail")
    assert re.search(words, asyncio.run(scene()))


def test_ac_006_a_failure_that_a_resume_would_repeat_suggests_a_correction(bench: Bench) -> None:
    result = bench.run(step("a"), step("b", arguments={"value": "${a.other}"}, retry_count=3))
    assert result.message == "Critical step failed: b; correct the workflow, then run it again"
    assert "a has no other; it has said" in result.errors[0] and bench.calls == ["a"], "no tool was called"
    bench.agent.tools = {"odd": object}
    result = bench.run(step("a", "odd", arguments={}))
    assert "a value of type object, which cannot be stored" in result.errors[0]
    assert result.suggestions == ["a: let the tool return text, numbers, lists and mappings"]


def test_an_expensive_snapshot_is_written_less_often_and_complete_at_the_end(
        bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = bench.manager.write

    def slow(state: WorkflowState, **how: bool) -> None:
        written.append(len(state.completed_steps))
        time.sleep(0.03)  # what is measured is that this is not paid for each step
        write(state, **how)
    monkeypatch.setattr(bench.manager, "write", slow)
    bench.agent.keep = True
    bench.run(*[step(f"s{number}") for number in range(40)], session="s1")
    assert len(written) < 20, written
    state = bench.manager.read("s1")
    assert len(state.completed_steps) == 40
