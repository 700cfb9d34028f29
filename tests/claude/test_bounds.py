"""Bounds of a Claude session: what reaches it, when its turn ends, what it may spend, and that it does not loop."""

from __future__ import annotations

import json

import pytest

from claude_scripts import again, report, work
from garrison.testing import misbehaviour
from garrison.testing.request import Request
from garrison.testing.turn import Turn, say
from support import DEADLINE, git, wait_for


def test_nothing_follows_a_report_or_a_question(scene, place):
    """An agent that continues after its report or question, or reports twice, makes no further request and does not do
    what it asked about; a question is shown at once, and the first report counts."""
    scene.players |= {name: getattr(misbehaviour, name)(work(name)) for name in (
        "reports_and_goes_on", "reports_twice", "asks_and_goes_on", "asks_in_plain_text")}
    child = scene.launch_nodes("--max-agents", "4")
    asking = ("asks_and_goes_on", "asks_in_plain_text")
    for name in asking:
        wait_for(f"{name} is shown", lambda name=name: f"{name} asks: May I remove the old interface?" in place.logs())
        assert len(scene.calls(name)) == 1
        assert place.command("answer", name, "no").returncode == 0
    assert place.finish(child) == 0, place.logs()
    for name in scene.players:
        assert "went-on.txt" not in git(place.repo, "ls-tree", "-r", "--name-only", "main").splitlines(), name
        assert scene.endings(name) == (["question", "reported"] if name in asking else ["reported"])
    assert {name: len(scene.calls(name)) for name in scene.players} == {
        "reports_and_goes_on": 2, "reports_twice": 2, "asks_and_goes_on": 3, "asks_in_plain_text": 3}
    assert "the first report stands" in (scene.folder("reports_twice") / "stream.jsonl").read_text().lower()
    answered = scene.calls("asks_and_goes_on")[1].asked
    assert "refused: you have asked" in json.dumps(answered.body)
    assert "user doesn't want to proceed" not in json.dumps(answered.body)


def test_a_session_that_loops_is_warned_once_and_then_asks_the_user(scene, place):
    """It repeats one call, or makes other calls that change nothing. One that heeds the warning lands. An endless
    response is interrupted. Status, why and events show it."""
    place.env["API_TIMEOUT_MS"] = "60000"  # the CLI's own limit: on a loaded machine it would interrupt first
    scene.configure("max_repeats = 5\nmax_idle = 9\nmax_response = 12")

    def heeds(asked: Request) -> Turn:
        return (work("heeds"), report())[min(asked.step, 1)] if "going round" in asked.prompt else loops(asked)

    def stops(asked: Request) -> Turn:
        return report("failure", "nothing to do") if "leave it" in asked.prompt else wanders(asked)

    loops, wanders = misbehaviour.loops(), misbehaviour.wanders()
    trickle = Turn(say("I am nearly there. " * 1000).blocks, piece=1, delay=0.5)
    scene.players |= {"wanders": stops, "heeds": heeds, "trickles": again(trickle, after=(work("trickles"), report()))}
    child = scene.launch_nodes("--max-agents", "4")
    wait_for("it is interrupted", lambda: scene.endings("trickles")[:1] == ["hang"])
    assert "response took longer than 12 s" in place.command("status", "r1").stdout
    wait_for("the user is asked", lambda: "wanders asks: it repeats itself despite a warning" in place.logs())
    assert len(scene.calls("wanders")) <= 25
    assert place.command("answer", "wanders", "leave it").returncode == 0
    assert place.finish(child) == 1, place.logs()
    failed = {name: node["reason"] for name, node in place.nodes().items() if node["status"] == "failed"}
    assert failed == {"wanders": "nothing to do"}
    assert scene.endings("wanders") == ["loop", "question", "reported"]
    assert scene.endings("trickles")[0] == "hang"
    assert "interrupted, it goes round: its last" in place.command("why", "heeds", "--all").stdout
    assert "a response took longer than 12 s" in place.command("events", "r1").stdout


@pytest.mark.slow
def test_parallel_nodes_keep_to_a_budget_together(scene, place):
    """Four endless sessions with the launch's budget, which is below that of their profile, stay within it, since calls
    in progress are reserved. The limits are printed at the launch and with the cost; after a resume with a higher one
    they continue."""
    scene.configure("budget_run = 0.9\nmax_idle = 'none'\nstarts = 4")
    scene.players |= {name: misbehaviour.wanders() for name in "abcd"}
    child = scene.launch(scene.graph(**dict.fromkeys("abcd", "")), "--max-agents", "4", "--budget-run", "0.5")
    wait_for("all wait for the budget", lambda: all(scene.endings(name)[-1:] == ["budget"] for name in "abcd"), 200)
    assert place.command("stop", "r1").returncode == 0
    child.wait(DEADLINE)
    rows = json.loads(place.command("cost", "--by", "run", "--json").stdout)
    assert [row["limit"] for row in rows] == [0.5]
    assert 0.2 < rows[0]["usd"] <= 0.5 + 1e-6, rows
    print("spent", rows[0]["usd"], "of 0.5 in", rows[0]["calls"], "calls")
    told = (place.root / "out").read_text()
    assert "limits of a, b, c, d: $10.00 a node, $0.90 the run, 300 responses an attempt" in told
    assert "the run may cost $0.5; then its agents wait for you" in told
    calls = len(scene.server.messages)
    assert place.command("resume", "r1", "--budget-run", "0.8", "--detach").returncode == 0
    wait_for("they continue", lambda: len(scene.server.messages) > calls)
    assert place.command("stop", "r1").returncode == 0
