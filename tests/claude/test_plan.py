"""`garrison workflow plan` and `garrison plan` with the real CLI: an unsound plan is sent back with the reason, a sound
one runs."""

from __future__ import annotations

import json
from typing import Any

from claude_scripts import TOOL, environment, report
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.script import Script
from garrison.testing.turn import say, use
from support import Place, git


def plan(**arguments: Any) -> str:
    return json.dumps({"name": "count", "steps": [
        {"name": "files", "tool": "files.list", "arguments": arguments},
        {"name": "say", "tool": "text.join", "arguments": {"parts": ["${files.count}", "files"], "separator": " "}}]})


def test_ac_001_a_command_becomes_a_workflow_that_runs(place: Place) -> None:
    folder = place.root / "tree"
    folder.mkdir()
    (folder / "a.txt").write_text("a")

    def script(asked: Request) -> Any:
        if "<command>\ncount the files\n</command>" in asked.prompt:
            assert "- files.list(pattern: 'str' = '**/*')" in asked.prompt
            return say(plan(patern="*.txt"))
        assert "has no parameter patern; did you mean pattern?" in asked.prompt
        return say("Here it is:\n" + plan(pattern="*.txt"))

    with ModelServer(script) as server:
        place.env = environment(place, server)
        planned = place.command("workflow", "plan", "count the files", "-o", "plan.yaml", cwd=folder)
        assert "2 steps; to run it: garrison workflow run plan.yaml" in planned.stderr
        assert len(server.messages) == 2
        assert place.command("workflow", "run", "plan.yaml", cwd=folder).stdout == "1 files\n"


def test_a_claude_planner_corrects_its_plan_in_its_session_and_its_tasks_land(place: Place) -> None:
    """`garrison plan`: a plan that the schema refuses, then one with an error, go back; the planner's cost is kept."""
    place.configure('\n[agents.claude]\nbudget = 4\n[agents.claude.set]\nCLAUDE_CODE_MAX_RETRIES = "1"\n')
    tools: list[str] = []

    def tasks(*more: dict[str, object]) -> dict[str, object]:
        return {"tasks": [{"name": "sub", "title": "Subtract", "prompt": "Write sub.txt", "files": ["sub.txt"]}, *more],
                "check": "sub.txt is there"}

    def work(asked: Request) -> Any:
        steps = (say(use("Bash", command="echo sub > sub.txt && git add -A && git commit -qm sub")),
                 report("success", "written"))
        return steps[min(asked.spoken, 1)] if asked.key == "sub" else report("nothing_to_do", "sub.txt is there")

    def script(asked: Request) -> Any:
        if asked.key != "planner":
            return work(asked)
        tools.extend(asked.tools)
        hand_in = {"status": "success", "summary": "planned"}
        if "cannot be used" in asked.prompt:
            assert "needs 'mul', which is not another task" in asked.prompt, asked.prompt
            return say(use(f"{TOOL}report_result", **hand_in, output=tasks())) if asked.step == 0 else "Done."
        tree = next((place.home / "plans").glob("*/tree"))
        turns = (say(use("Read", file_path=f"{tree}/calc.py")), say(use("Bash", command="touch x")),
                 say(use(f"{TOOL}report_result", **hand_in, output={"tasks": [{"name": "sub"}]})),
                 say(use(f"{TOOL}report_result", **hand_in, output=tasks(
                     {"name": "div", "title": "Divide", "prompt": "Divide", "needs": [{"task": "mul", "what": "x"}]}))),
                 "Done.")
        seen.append(asked.result)
        return turns[min(asked.step, len(turns) - 1)]

    seen: list[str] = []
    with ModelServer(Script(script, key=r"agent of node (\w+)")) as server:
        place.env = environment(place, server)
        done = place.command("plan", "subtract as well", "--agent", "claude", "--no-gate", "--yes", "--terminal",
                             "process", cwd=place.repo)
    assert done.returncode == 0, done.stdout + done.stderr + "\n".join(seen)
    assert "def add" in "\n".join(seen) and "'title' is a required property" in "\n".join(seen)
    assert {"Read", "Glob", "Grep"} <= set(tools) and not {"Bash", "Write", "Edit"} & set(tools), sorted(set(tools))
    assert "the plan goes back (1 of 3): div: it needs 'mul'" in done.stderr
    assert "it may spend $8 at most; planning has cost $0." in done.stderr
    assert "run done: 1 of 2 landed, 1 no change" in done.stdout
    assert git(place.repo, "show", "main:sub.txt") == "sub" and git(place.repo, "status", "--porcelain") == ""
