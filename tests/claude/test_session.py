"""Sessions with the real CLI as their model: two turns, tools through the graph, an orchestrator that is a session."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from claude_scripts import environment
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.turn import say, use
from support import Place, git, wait_for

DESK = "mcp__desk__"
REPORT = say(use(f"{DESK}report_result", status="success", summary="written", evidence=[]))


def speaker(place: Place, server: ModelServer) -> Callable[..., str]:
    """Return a function that runs `garrison session ...` with a model and returns its output."""
    place.env = environment(place, server)

    def garrison(*words: str) -> str:
        done = place.command("session", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout
    return garrison


def test_two_turns_of_a_session_and_its_tools_go_through_the_graph_and_its_tier(place: Place) -> None:
    """One call of a tool: two calls of the model and one dispatch; tools that the tier does not allow do not exist."""
    (place.root / "note.txt").write_text("the moon is far")

    def script(asked: Request) -> Any:
        if "assistant: I am well." not in asked.prompt:
            return say("I am well.")
        return (say("I look.", use(f"{DESK}read", path="note.txt")), say("It is far."))[min(asked.step, 1)]

    with ModelServer(script) as server:
        garrison = speaker(place, server)
        garrison("start", "s1", "--tier", "probationary")
        assert garrison("send", "s1", "How are you?") == "I am well.\n"
        told = json.loads(garrison("send", "s1", "What does the note say?", "--json"))
        assert (told["response"], told["tool_calls_made"], len(server.messages)) == ("It is far.", 1, 3)
        assert "user: How are you?\nassistant: I am well.\nuser: What does" in server.messages[-1].asked.prompt
        assert "the moon is far" in server.messages[-1].asked.result
        own = {name for name in server.messages[0].asked.tools if name.startswith("mcp__")}
        assert own == {f"{DESK}{name}" for name in ("read", "list", "search")}
        assert json.loads(garrison("show", "s1", "--json"))["turn_count"] == 2
    events = [json.loads(line) for line in (place.home / "sessions/s1/events.jsonl").read_text().splitlines()]
    assert [(one["tool"], one["allowed"]) for one in events if one["event"] == "tool_dispatched"] == [("read", True)]


@pytest.mark.slow
def test_goals_and_notes_reach_the_model(place: Place) -> None:
    thought = {"new_goals": [{"id": "moon", "description": "reach the moon"}], "memory_notes": ["it is far away"]}

    def script(asked: Request) -> Any:
        return say("{}" if "reach the moon" in asked.prompt else json.dumps(thought))

    with ModelServer(script) as server:
        garrison = speaker(place, server)
        garrison("start", "s1")
        garrison("heartbeat", "s1", "--initiative")
        garrison("heartbeat", "s1", "--initiative")
        garrison("send", "s1", "What is next?")
        reflecting, pursuing, sent = (one.asked.prompt for one in server.messages)
    assert "<mode>reflection</mode>" in reflecting and '"new_goals"' in reflecting
    assert "<mode>goal_pursuit</mode>" in pursuing and "take the next step towards it" in pursuing
    for prompt in (pursuing, sent):
        assert "moon: reach the moon" in prompt
        assert "- it is far away" in prompt
    assert "user: What is next?" in sent


@pytest.mark.slow
def test_a_session_agent_resumes_where_it_was_killed(scene: Any, place: Place) -> None:
    """Killed within its second tool: the first is not called again, the model gets the history, and it lands."""

    def play(asked: Request) -> Any:
        if "called run(" in asked.prompt:  # the conversation of the predecessor
            return (REPORT, say("Done."))[min(asked.step, 1)]
        return (say("I write.", use(f"{DESK}write", path="a.txt", text="a")),
                say(use(f"{DESK}run", command="echo ran >> $LEDGER; test -e go || { touch go; sleep 30; }")),
                )[min(asked.step, 1)]

    scene.players["a"] = play
    child = scene.launch(scene.graph(a="session=true"))
    wait_for("the second tool is at work", place.ledger.exists)
    place.kill("orchestrator-a")
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:a.txt") == "a"
    assert place.ledger.read_text() == "ran\nran\n", "only the interrupted call is repeated"
    shown = place.command("logs", "a").stdout
    assert shown.count("→ write") == 1 and "→ report_result" in shown
    assert json.loads(place.command("cost", "--json").stdout)[0]["usd"] > 0
    place.check_nothing_left()


@pytest.mark.slow
def test_a_session_agent_waits_for_an_answer_and_within_its_budget(scene: Any, place: Place) -> None:
    """The question remains one call over a limit that is reached before its answer, and over a killed orchestrator."""
    scene.configure("budget = 0.0001")

    def play(asked: Request) -> Any:
        if "The answer: blue" in asked.prompt or asked.step > 0:
            return (say(use(f"{DESK}write", path="a.txt", text="blue")), REPORT, say("Done."))[min(asked.step, 2)]
        return say("I ask.", use(f"{DESK}ask_guardian", question="Which colour?"))

    scene.players["a"] = play
    child = scene.launch(scene.graph(a="session=true"))
    wait_for("the question is shown", lambda: "asks: Which colour?" in place.logs())
    wait_for("no CLI is left", lambda: scene.cli("a") is None)
    assert place.command("answer", "a", "blue").returncode == 0
    wait_for("the limit is shown", lambda: "budget is used up" in place.logs())
    assert len(scene.calls("a")) == 1
    scene.configure("budget = 5")
    place.kill("orchestrator-a")
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:a.txt") == "blue"
    assert place.command("logs", "a").stdout.count("→ ask_guardian") <= 1
    place.check_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", ["none", "auto"])
def test_a_session_agent_gets_messages_and_has_its_own_folder(scene: Any, place: Place, sandbox: str) -> None:
    """A message of `garrison tell` arrives with the next tool result, also in a sandbox; the CLI leaves nothing in the
    home's folder, which every other session would find."""

    def play(asked: Request) -> Any:
        if "Call it b." in str(asked.messages):
            return (say(use(f"{DESK}write", path="b.txt", text="b")), REPORT, say("Done."))[min(asked.step - 1, 2)]
        return say(use(f"{DESK}run", command="touch $GARRISON_NOTES_FILE.begun; sleep 4"))

    scene.players["a"] = play
    place.use_mode(sandbox)
    child = scene.launch(scene.graph(a="session=true"))
    wait_for("the tool is at work", (scene.folder("a").parent / "agent/notes.txt.begun").exists)
    told = place.command("tell", "a", "Call it b.")
    assert told.returncode == 0, told.stderr
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:b.txt") == "b"
    assert "The person in charge of this run tells you:" in scene.calls("a")[1].asked.result
    assert not (place.home / "claude/projects").exists()
    assert place.command("tell", "a", "Too late.").returncode == 1
