"""An ACP agent in a real, confined run: it asks, dies, is resumed in its session and reports with garrison's tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandbox_support import missing
from support import DEADLINE, PYTHON, Node, Place, git, load, processes, wait_for

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def test_a_confined_agent_asks_dies_is_resumed_in_its_session_and_reports(place: Place) -> None:
    """Node b's agent makes no report: `status` says that its work alone was judged."""
    commit = "cat /proc/self/status | grep -c NSpid; echo one > one.txt; git add one.txt; git commit -qm one"
    place.use_agents(double=place.acp_agent(
        "script", [{"run": commit}, {"tool": "ask_guardian", "with": {"question": "Which colour?"}}],
        [{"run": "echo two > two.txt"}, {"tool": "save_notes", "with": {"text": "the colour is blue"}}, {"die": 9}],
        [{"run": f"cat one.txt two.txt; test -e {place.home}/config.toml || echo confined"},
         {"tool": "report_result", "with": {"status": "success", "summary": "both are there",
                                            "context_updates": {"colour": "blue"}}}]),
        silent={**place.acp_agent("silent", [{"write": {"made.txt": "made"}}, {"say": "Done."}], [{"say": "Yes."}]),
                "mcp": False})
    child = place.launch(place.graph(Node("a", command="", attributes='agent=double, prompt="Make both."'),
                                     Node("b", command="", attributes='agent=silent, prompt="Make it."')),
                         gate="test -f calc.py")
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
    told = place.command("status", "r1").stdout
    assert "b: its agent made no report: judged by its commits and acceptance alone" in told, told


@pytest.mark.slow
def test_a_confined_validator_is_resumed_after_its_death_and_refuses_and_the_next_one_accepts(place: Place) -> None:
    """An ACP agent sees the work, cannot write there, and the next attempt gets its verdict."""
    wrong, right = ({"verdict": verdict, "reason": f"made.txt says {word}", "criteria": [
        {"criterion": "says good", "met": verdict == "pass", "evidence": f"it says {word}"}]}
        for verdict, word in (("fail", "bad"), ("pass", "good")))
    refuses = place.acp_agent(
        "refuses", [{"run": "cat made.txt; echo bad > made.txt || echo read-only; git log -1 --format=%s"}, {"die": 9}],
        [{"tool": "report_result", "with": {"status": "success", "summary": "me too"}},
         {"tool": "report_verdict", "with": wrong}])
    place.acp_agent("accepts", [{"tool": "report_verdict", "with": right}])
    shell = f'grep -q good made.txt && n=accepts || n=refuses; exec "$0" "$@" {place.root}/$n.json'
    place.use_agents(judge={**refuses, "argv": ["/bin/sh", "-c", shell, PYTHON, "-P", "-m",
                                                "garrison.testing.acp_agent"], "read": [str(place.root)]})
    work = "test $GARRISON_ATTEMPT = 1 && echo bad > made.txt || echo good > made.txt"
    place.run(place.graph(Node("a", command=work, attributes="validator=judge")), gate="test -f calc.py")
    assert git(place.repo, "show", "main:made.txt") == "good"
    judged = place.home / "runs/r1/nodes/a/1/validator"
    shown = (judged / "output.log").read_text()
    assert shown.count("begun,") == 1 and shown.count("resumed,") == 1, shown
    assert "read-only" in shown and load(judged / "claude/report.json")["criteria"] == wrong["criteria"]
    assert "report_result: " in shown and "unknown tool" in shown, "a worker's tools are not a validator's"
    assert "the validator judge refused it: made.txt says bad" in place.logs()


OPENER = """
test "$(tty)" != "not a tty" || exit 3
echo opened $1 $(test -e $HOME/acp-double/$1.json && echo known) >> seen.txt
until test -e leave; do sleep 0.05; done
"""


@pytest.mark.parametrize("mode", ["bubblewrap", pytest.param("none", marks=pytest.mark.slow)])
def test_the_user_messages_the_agent_takes_over_and_leaves_and_the_session_continues(place: Place, mode: str) -> None:
    """`tell` reaches the session; a takeover suspends it and runs the profile's program where the agent works."""
    double = place.acp_agent(
        "script", [{"write": {"one.txt": "one"}}, {"run": "touch here; sleep 987"}],
        [{"run": "rm -f here leave seen.txt.gone; git add -A; git commit -qm all"},
         {"tool": "report_result", "with": {"status": "success", "summary": "done"}}])
    place.use_agents(double={**double, "takeover": ["/bin/sh", "-c", OPENER, "opener", "{session}"]})
    place.use_mode(mode)
    child = place.launch(place.graph(Node("a", command="", attributes='agent=double, prompt="Make both."')),
                         gate="test -f calc.py")
    place.pid("orchestrator-a")
    tree = Path(place.identity("orchestrator-a")["worktree"])
    wait_for("the turn runs", (tree / "here").exists)
    told = place.command("tell", "a", "Leave the API alone.")
    assert (told.returncode, told.stderr) == (0, "a gets it at its next turn\n"), told
    without = place.command("takeover", "a")
    assert without.returncode == 1 and "needs a terminal" in without.stderr
    session = load(place.home / "runs/r1/nodes/a/1/claude/session.json")["id"]
    takeover = place.in_terminal("takeover", "a")
    wait_for("the program runs", (tree / "seen.txt").exists)
    assert (tree / "seen.txt").read_text() == f"opened {session} known\n"
    assert not [one for one in processes() if "sleep 987" in one.argv and str(place.home) in str(one.environ)]
    wait_for("status names the takeover", lambda: "while it is taken over" in place.command("status", "r1").stdout)
    (tree / "leave").touch()
    assert takeover.wait(DEADLINE) == 0
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:seen.txt") == f"opened {session} known"
    prompt = load(place.home / "runs/r1/nodes/a/1/claude/order.json")["prompt"]
    assert "The user has taken this session over by hand" in prompt
    assert load(place.home / "runs/r1/nodes/a/1/claude/delivered.json") == {"count": 1, "session": session}
    endings = (place.home / "runs/r1/nodes/a/1/claude/endings.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in endings] == ["stopped", "person", "reported"]
    late = place.command("tell", "a", "Too late.")
    assert late.returncode == 1 and "no run is at work on a" in late.stderr
    place.check_nothing_left()
