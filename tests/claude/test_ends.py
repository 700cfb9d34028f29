"""Ends of a turn that are not success: each is told in its own words, and none is tried again for ever."""

from __future__ import annotations

import pytest

from claude_scripts import again, report, steps, work
from garrison.testing.turn import ALWAYS, Fault, Turn, say
from garrison.values import replace
from support import wait_for


@pytest.mark.slow
def test_hopeless_sessions_end_and_reported_results_count(scene):
    """A refusal, an endless answer and an image too large end the attempt; a hang after the report does not. 400
    "credit balance is too low" is no bad request: it is parked, and what the person says of it is not lost."""
    place = scene.place
    scene.configure("stale = 8")
    hanging = replace(say("Done."), faults=(Fault("hang", "stream", seconds=60),))
    poor = Fault("status", 400, times=ALWAYS, message="Your credit balance is too low to access the API.")
    scene.players = {
        "refused": steps(replace(say("I will not."), stop="refusal")),
        "endless": steps(replace(say("And on."), stop="max_tokens")),
        "late": again(work("late"), after=(report(), report(), hanging)),
        "poor": again(Turn(faults=(poor,)), after=(work("poor"), report(), "Done.")),
    }
    child = scene.launch(scene.graph(**dict.fromkeys(scene.players, "rework=none")))
    wait_for("it is told", lambda: "the account cannot pay" in place.logs())
    wait_for("it is asked", lambda: "asks you" in place.command("status", "r1").stdout)
    assert place.command("answer", "poor", "paid").returncode == 0
    assert place.finish(child) == 1, place.logs()
    nodes = place.nodes()
    assert scene.endings("refused") == ["refused"], nodes["refused"]
    assert scene.endings("endless") == ["too_long"] * 4, nodes["endless"]
    assert "too_long 4 times" in nodes["endless"]["reason"]
    assert nodes["late"]["status"] == nodes["poor"]["status"] == "validated"
    assert scene.endings("late") == ["reported"], (scene.folder("late") / "stream.jsonl").read_text()
    assert scene.endings("poor") == ["billing", "reported"]
