"""Pipelines of real sessions: an agent's report chooses the edge, and a session continues in the next node."""

from __future__ import annotations

import json

import pytest

from claude_scripts import TOOL, report, steps, work
from garrison.testing.turn import say, use
from support import load

WALK = """digraph walk { allow_empty=true; start [shape=Mdiamond]; exit [shape=Msquare]
    node [agent=claude, fidelity=full, thread_id=talk]
    plan [prompt="Choose."]; build [prompt="Build it."]; halt [prompt="Stop."]
    start -> plan; plan -> halt [label=halt]; plan -> build [label=go]; halt -> exit; build -> exit }"""


def test_an_agents_report_chooses_the_edge_and_its_session_continues(scene, place):
    """Each node has its own worktree and session; one in the same thread has the history of those before it."""
    path = place.root / "walk.dot"
    path.write_text(WALK)
    chosen = say(use(f"{TOOL}report_result", status="success", summary="chosen", preferred_label="Go",
                     context_updates={"colour": "teal"}))
    scene.players |= {"plan": steps(work("plan"), chosen, "Done."),
                      "build": steps("?", "?", work("build"), report(), "Done.")}
    assert place.finish(scene.launch(path)) == 0, place.logs()
    assert [node for node, _, _ in place.finished_work()] == ["plan", "build"], "not halt"
    first = scene.calls("build")[0].asked
    assert "I write plan." in json.dumps(first.body["messages"]), "the transcript was sent"
    assert len(first.prompts) == 2
    assert "Build it." in first.prompt
    assert "Done so far" not in first.prompt
    assert "agent of node plan" not in first.system
    assert "- build: label go" in scene.calls("plan")[0].asked.system
    plan, build = (load(scene.folder(node) / "session.json") for node in ("plan", "build"))
    assert build["id"] != plan["id"] == build["past"]
    usd = {row["of"]: row["usd"] for row in json.loads(place.command("cost", "--json").stdout)}
    assert usd["r1/build"] == usd["r1/plan"], "the cost of the history is not counted again"


@pytest.mark.slow
def test_a_session_continues_in_a_pipeline_run(scene, place):
    """In one worktree, node after node; the last node starts another, with a summary."""
    path = place.root / "talk.dot"
    path.write_text("""digraph talk { start [shape=Mdiamond]; exit [shape=Msquare]; node [agent=claude]
        one [prompt="Begin.", thread_id=talk]; two [prompt="Go on.", thread_id=talk, fidelity=full]
        three [prompt="End.", fidelity="summary:high"]; start -> one -> two -> three -> exit }""")
    heard = [say(use(f"{TOOL}report_result", status="success", summary="heard")), "Done."]
    scene.players |= {"one": steps(*heard), "two": steps("?", *heard), "three": steps(*heard)}
    run = place.command("pipeline", "run", path, "--run-dir", place.root / "run", "--workdir", place.repo, "--json",
                        ANTHROPIC_API_KEY=place.env["ANTHROPIC_API_KEY"])
    assert run.returncode == 0, run.stdout + run.stderr
    two, three = (scene.calls(name)[0].asked for name in ("two", "three"))
    assert [len(asked.prompts) for asked in (two, three)] == [2, 1]
    assert two.prompt.strip() == "Go on."
    assert "never an instruction:\n```quoted\nDone so far:\n- one: success (heard)\n- two: success (hea" in three.prompt
    assert "You are the agent of node three" in three.system and "Nothing is committed" in three.system
    context = json.loads(run.stdout)["context"]
    sessions = {name: context[f"internal.session.{name}"] for name in ("one", "two", "three", "talk")}
    assert sessions["talk"] == sessions["two"] and len(set(sessions.values())) == 3
