"""Sessions under kill -9: of the CLI, of each layer, in mid-turn and in mid-tool; what they had begun ends too."""

from __future__ import annotations

import json
import os
import signal

import pytest

from claude_scripts import again, report, work
from garrison.testing.turn import Fault, Turn
from support import DEADLINE, git, processes, wait_for


def sleepers(place) -> list[int]:
    """The shells that agents of this place started and that wait."""
    return [one.pid for one in processes() if "sleep 987" in one.argv and str(place.home) in
            one.environ.get("GARRISON_HOME", "")]


def past_of(record) -> str:
    """What a request holds before its last prompt."""
    return json.dumps(record.body["messages"][:-1])


@pytest.mark.parametrize("who", ["orchestrator", *(pytest.param(who, marks=pytest.mark.slow)
                                                   for who in ("cli", "stretch"))])
def test_a_death_during_a_tool_call_is_resumed_with_its_history(scene, who):
    """The tool's orphans are gone, the transcript is really sent, and the work is done once. That of the CLI is seen
    in test_transcripts too, where its files are lost besides."""
    place = scene.place
    scene.players["a"] = again(work("a", before="sleep 987;"), after=(work("a"), report(), "Done."))
    (place.repo / "docs").mkdir()
    (place.repo / "docs/kept").touch()
    git(place.repo, "add", ".")
    git(place.repo, "commit", "-qm", "docs")
    child = scene.launch(scene.graph(a='path="docs"'))  # where its session is found again
    wait_for("the tool runs", lambda: sleepers(place))
    wait_for("its call is in the transcript, which the CLI writes in its own time", lambda: any(
        "I write a." in path.read_text() for path in place.folder.rglob("projects/**/*.jsonl")))
    wait_for("it is in the stream, which the connection writes once the CLI has told it", lambda: any(
        "sleep 987" in path.read_text() for path in place.home.rglob("claude/stream.jsonl")))
    old = sleepers(place)
    if who == "orchestrator":
        place.kill("orchestrator-a")
    else:
        pid = scene.cli("a") if who == "cli" else stretch_of(place)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    place.pid("orchestrator-a", incarnation=2)
    wait_for("the orphans are gone", lambda: not set(old) & set(sleepers(place)))
    assert place.finish(child) == 0, place.logs()
    resumed = next(one for one in scene.calls("a") if "RESUMPTION CONTEXT" in one.asked.prompt)
    assert "I write a." in past_of(resumed), "the transcript was sent"
    told = resumed.asked.prompt
    assert "This session was interrupted because its process died" in told
    assert "Bash sleep 987; echo a" in told.partition("In progress at that moment")[2], "what was cut off"
    assert "Nothing is committed on the branch yet" in told
    assert "Nobody refused anything" in told, "the CLI's notice of a refused tool is not a person's word"
    messages = json.loads(place.command("prompt", "a", "--json").stdout)["parts"]
    assert messages[-1]["text"].strip() == told.strip(), "it is printed as it was sent"
    assert place.finished_work() == [("a", 1, 2)]
    assert "docs/a" in git(place.repo, "ls-tree", "-r", "--name-only", "main")
    assert len(place.deaths()["orchestrator-a"]) == 1
    place.check_nothing_left()


def stretch_of(place) -> int | None:
    """The process that holds the SDK."""
    return next((one.pid for one in place.living_processes() if "garrison.agents.claude.connection" in one.argv), None)


def in_mid_turn(scene):
    """A run of one node whose model has begun to speak, and hangs; its launcher."""
    first = work("a")
    scene.players["a"] = again(Turn(first.blocks, faults=(Fault("hang", "stream", seconds=60),)),
                               after=(first, report(), "Done."))
    child = scene.launch(scene.graph(a=""))
    scene.server.wait_for(1)
    return child


@pytest.mark.slow
def test_deaths_above_do_not_disturb_a_session(scene):
    """Runner and guardian die in mid-turn: the session goes on, and no call is made twice."""
    place = scene.place
    child = in_mid_turn(scene)
    place.kill("runner-a", "guardian-crew")
    place.pid("runner-a", incarnation=2)
    place.pid("guardian-crew", incarnation=2)
    scene.server.release()
    assert place.finish(child) == 0, place.logs()
    assert place.identity("orchestrator-a")["incarnation"] == 1
    assert len(scene.calls("a")) == 2


@pytest.mark.slow
def test_a_death_in_mid_turn_and_a_lost_transcript(scene):
    """The orchestrator dies while the model speaks; where the CLI's files and the copy are gone, a session is begun."""
    place = scene.place
    child = in_mid_turn(scene)
    cli = scene.cli("a")
    for folder in (place.home / "claude", scene.folder("a") / "transcripts"):
        for path in folder.rglob("*.jsonl"):
            path.unlink()
    place.kill("orchestrator-a")
    place.pid("orchestrator-a", incarnation=2)
    assert place.finish(child) == 0, place.logs()
    assert cli is not None
    assert not [one for one in processes() if one.pid == cli]
    assert scene.endings("a")[-1] == "reported"


def test_a_stop_suspends_the_session_and_resume_continues_it(scene):
    """`stop` in mid-turn: nothing runs on; `--resume` sends the past."""
    place = scene.place
    scene.players["a"] = again(work("a", before="sleep 987;"), after=(work("a"), report(), "Done."))
    child = scene.launch(scene.graph(a=""))
    wait_for("the tool runs", lambda: sleepers(place))
    assert place.command("stop", "r1").returncode == 0
    assert child.wait(DEADLINE) == 130
    assert not [one for one in place.living_processes() if "sandbox.proxy" not in one.argv], "but its idle proxy"
    assert place.finish(place.resume()) == 0, place.logs()
    resumed = next(one for one in scene.calls("a") if "RESUMPTION CONTEXT" in one.asked.prompt)
    assert "I write a." in past_of(resumed)
