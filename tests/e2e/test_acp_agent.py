"""An ACP agent in a real run, confined: its question, its death, its session, its report by garrison's tools."""

from __future__ import annotations

import json
import sys

import pytest

from sandbox_support import missing
from support import Node, Place, git, load, wait_for

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
INSIDE = {"GARRISON_SANDBOX": "bubblewrap"}


def test_a_confined_agent_asks_dies_is_resumed_in_its_session_and_reports(place: Place) -> None:
    script = place.root / "script.json"
    commit = "cat /proc/self/status | grep -c NSpid; echo one > one.txt; git add one.txt; git commit -qm one"
    script.write_text(json.dumps({"turns": [
        [{"run": commit}, {"tool": "ask_guardian", "with": {"question": "Which colour?"}}],
        [{"run": "echo two > two.txt"}, {"tool": "save_notes", "with": {"text": "the colour is blue"}}, {"die": 9}],
        [{"run": f"cat one.txt two.txt; test -e {place.home}/config.toml || echo confined"},
         {"tool": "report_result", "with": {"status": "success", "summary": "both are there",
                                            "context_updates": {"colour": "blue"}}}]]}))
    place.home.mkdir(exist_ok=True, mode=0o700)
    argv = json.dumps([sys.executable, "-P", "-m", "garrison.testing.acp_agent", str(script)])
    (place.home / "config.toml").write_text(f'[agents.double]\nkind = "acp"\nargv = {argv}\nread = ["{script}"]\n')
    child = place.launch(place.graph(Node("a", command="", attributes='agent=double, prompt="Make both."')),
                         gate="test -f calc.py", **INSIDE)
    wait_for("it asks", lambda: "Which colour?" in place.command("status", "r1").stdout)
    first = place.hook("orchestrator-a")["claude_session_id"]
    wait_for("the answer is taken", lambda: place.command("answer", "a", "blue").returncode == 0)
    assert place.finish(child) == 0, place.logs()
    result = load(place.home / "runs/r1/nodes/a/1/result.json")
    assert (result["status"], result["said"]["context_updates"]) == ("success", {"colour": "blue"})
    assert result["incarnation"] == 2 and result["session"] == first
    assert place.hook("orchestrator-a")["resumption_instructions"] == "the colour is blue"
    assert git(place.repo, "show", "main:one.txt") == "one" and git(place.repo, "show", "main:two.txt") == "two"
    shown = (place.home / "runs/r1/nodes/a/1/output.log").read_text()
    assert shown.count("begun,") == 1 and shown.count("resumed,") == 2, shown
    assert "← one two confined" in shown


def test_an_acp_agent_that_makes_no_report_is_judged_by_its_work_and_status_says_so(place: Place) -> None:
    script = place.root / "script.json"
    script.write_text(json.dumps({"turns": [[{"write": {"made.txt": "made"}}, {"say": "Done."}], [{"say": "Yes."}]]}))
    place.home.mkdir(exist_ok=True, mode=0o700)
    argv = json.dumps([sys.executable, "-P", "-m", "garrison.testing.acp_agent", str(script)])
    (place.home / "config.toml").write_text(f'[agents.double]\nkind = "acp"\nargv = {argv}\nmcp = false\n')
    child = place.launch(place.graph(Node("a", command="", attributes='agent=double, prompt="Make it."')),
                         gate="test -f calc.py")
    assert place.finish(child) == 0, place.logs()
    told = place.command("status", "r1").stdout
    assert "a: its agent made no report: judged by its commits and acceptance alone" in told, told


def test_a_confined_validator_dies_judges_on_and_refuses_and_the_next_one_accepts(place: Place) -> None:
    """It is an ACP agent, by garrison's tools: it sees the work, cannot write there, and its verdict is reworked by."""
    script = place.root / "judge.json"
    wrong = {"verdict": "fail", "reason": "made.txt says bad", "criteria": [
        {"criterion": "says good", "met": False, "evidence": "it says bad"}]}
    right = {"verdict": "pass", "reason": "fine", "criteria": [
        {"criterion": "says good", "met": True, "evidence": "made.txt"}]}
    script.write_text(json.dumps({"turns": [
        [{"run": "cat made.txt; echo bad > made.txt || echo read-only; git log -1 --format=%s"}, {"die": 9}],
        [{"tool": "report_result", "with": {"status": "success", "summary": "me too"}},
         {"tool": "report_verdict", "with": wrong}]]}))
    other = place.root / "other.json"
    other.write_text(json.dumps({"turns": [[{"tool": "report_verdict", "with": right}]]}))
    place.home.mkdir(exist_ok=True, mode=0o700)
    argv = json.dumps(["/bin/sh", "-c", f'grep -q good made.txt && exec "$0" "$@" {other} || exec "$0" "$@" {script}',
                       sys.executable, "-P", "-m", "garrison.testing.acp_agent"])
    (place.home / "config.toml").write_text(
        f'[agents.judge]\nkind = "acp"\nargv = {argv}\nread = ["{script}", "{other}"]\n')
    work = "test $GARRISON_ATTEMPT = 1 && echo bad > made.txt || echo good > made.txt"
    child = place.launch(place.graph(Node("a", command=work, attributes="validator=judge")),
                         gate="test -f calc.py", **INSIDE)
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:made.txt") == "good"
    judged = place.home / "runs/r1/nodes/a/1/validator"
    shown = (judged / "output.log").read_text()
    assert shown.count("begun,") == 1 and shown.count("resumed,") == 1, shown
    assert "read-only" in shown and load(judged / "claude/report.json")["criteria"] == wrong["criteria"]
    assert "report_result: " in shown and "unknown tool" in shown, "a worker's tools are not a validator's"
    assert "the validator judge refused it: made.txt says bad" in place.logs()
