"""Pipelines that real sessions steer: what an agent reports chooses the way, and a session goes on in the next node."""

from __future__ import annotations

import json

from claude_scripts import TOOL, report, steps, work
from garrison.testing.turn import say, use
from support import load

WALK = """digraph walk { start [shape=Mdiamond]; exit [shape=Msquare]
    node [agent=claude, fidelity=full, thread_id=talk]
    plan [prompt="Choose."]; build [prompt="Build it."]; halt [prompt="Stop."]
    start -> plan; plan -> halt [label=halt]; plan -> build [label=go]; halt -> exit; build -> exit }"""


def test_a_word_of_an_agent_chooses_the_way_and_its_session_goes_on_there(scene):
    """Each node has a worktree and a session of its own; the one in the same thread knows what was said before it."""
    place = scene.place
    path = place.root / "walk.dot"
    path.write_text(WALK)
    chosen = say(use(f"{TOOL}report_result", status="success", summary="chosen", preferred_label="Go",
                     context_updates={"colour": "teal"}))
    scene.players |= {"plan": steps(work("plan"), chosen, "Done."),
                      "build": steps("?", "?", "?", work("build"), report(), "Done.")}
    assert place.finish(scene.launch(path)) == 0, place.told()
    assert [node for node, _, _ in place.worked()] == ["plan", "build"], "not halt"
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
    assert usd["r1/build"] == usd["r1/plan"], "what the past has cost is not paid again"
