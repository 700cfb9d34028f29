"""Nodes done by real Claude sessions: what lands, what each failure means, what waits, what it costs."""

from __future__ import annotations

import json
import re
import time

import pytest

from claude_scripts import TOOL, Player, again, report, steps, work
from garrison.records import atomic
from garrison.records.life_lock import LifeLock
from garrison.testing.request import Request
from garrison.testing.turn import ALWAYS, Fault, Turn, say, use
from garrison.values import replace
from support import git, wait_for


@pytest.mark.smoke
@pytest.mark.traced
def test_two_sessions_at_once_land_and_leave_a_readable_folder(scene):
    """Files written and committed by the real tools land; stream, usage, hook and cost tell of it; then no call."""
    place = scene.place
    scene.configure("starts = 1")
    (place.repo / "AGENTS.md").write_text("Read @web/rules.md first.\n")
    for name, text in (("rules", "Run make lint.\n"), ("CLAUDE", "Two spaces.\n")):
        (place.repo / "web").mkdir(exist_ok=True)
        (place.repo / "web" / f"{name}.md").write_text(text)
    git(place.repo, "add", "-A")
    git(place.repo, "commit", "-qm", "Tell agents what to run")
    worked = {name: Turn((*work(name).blocks, use("Read", file_path="web/rules.md"))) for name in ("a", "b")}
    scene.players = {name: steps(worked[name], say(use(f"{TOOL}save_notes", text=f"{name} is written")),
                                 report(), "Done.") for name in ("a", "b")}
    starting = LifeLock.try_acquire(atomic.make_directory(place.home / "run") / "claude-start-1")  # as a third would
    assert starting is not None
    child = scene.launch(scene.graph(a="", b='model="claude-haiku-4-5", max_turns=9, instructions=false'))
    wait_for("both wait for a start", lambda: sum(
        "for a start slot" in log.read_text() for log in place.home.glob("runs/r1/nodes/*/1/claude/stream.jsonl")) == 2)
    assert not scene.server.messages
    assert "waits for a start slot" in place.command("logs", "a").stdout
    starting.release()
    assert place.finish(child) == 0, place.logs()
    assert place.nodes()["a"]["status"] == "validated"
    assert git(place.repo, "show", "main:a-r1.txt") == "a"
    assert scene.calls("b")[0].asked.model.startswith("claude-haiku"), "the node's own model"
    first = scene.calls("a")[0].asked
    assert "You are the agent of node a, attempt 1" in first.system
    assert "Run make lint." in first.system, "the repository's instructions"
    told = [json.dumps(call.body["messages"]).count("Two spaces.") for call in scene.calls("a")]
    assert "Two spaces." not in first.system and told == [0, 1, 1], "those of a folder, once it has read a file there"
    assert "Run make lint." not in json.dumps(scene.calls("b")[0].body), "b wants none"
    assert "Two spaces." not in json.dumps(scene.calls("b")[-1].body)
    assert "GARRISON_NOTES_FILE" not in first.prompt, "there is one way to keep notes"
    assert "runner-a" not in first.system, "it hears of no process that never speaks to it"
    assert "Do a." in first.prompt
    assert "You have left: 300 of 300 responses in this attempt and $10.00 of $10.00 for all attempts." in first.prompt
    stream = [json.loads(line) for line in (scene.folder("a") / "stream.jsonl").read_text().splitlines()]
    assert {"begin", "text", "tool", "tool_result", "result"} <= {event["kind"] for event in stream}
    shown = place.command("logs", "a").stdout
    assert "I write a." in shown
    assert re.search(r"→ Bash echo a", shown)
    hook = place.hook("orchestrator-a")
    # Not the first line: before it begins it says that it waits for a start slot.
    assert [event["session"] for event in stream if event["kind"] == "begin"] == [hook["claude_session_id"]]
    assert hook["resumption_instructions"].strip() == "a is written"
    rows = json.loads(place.command("cost", "--json").stdout)
    assert [row["of"] for row in rows] == ["r1/a", "r1/b"]
    assert all(row["calls"] == 3 and row["usd"] > 0 for row in rows), rows
    assert len(scene.server.messages) == 6, "three calls a node, and not one more"
    place.check_nothing_left()


def troubled(*passing: tuple[str, Fault]) -> dict[str, Player]:
    """Nodes whose first request meets the mishap, and whose work is done after it."""
    return {name: steps(Turn(work(name).blocks, faults=(fault,)), report(), "Done.") for name, fault in passing}


@pytest.mark.slow
def test_transient_failures_are_waited_out(scene):
    """One run, a node for each mishap of the API: it fails, is overloaded or says nothing, a connection is cut, an
    answer is too large to be sent. All land; a stream that falls silent costs a session, not a life."""
    place = scene.place
    scene.configure("stale = 12")  # a session that is only held up by others is not silent for so long
    scene.players = troubled(
        ("broken", Fault("status", 500)), ("overloaded", Fault("status", 529)), ("dropped", Fault("drop", "before")),
        ("oversize", Fault("oversize")), ("mute_before", Fault("hang", "before", seconds=60)))
    scene.players["hanging"] = again(Turn(work("hanging").blocks, faults=(Fault("hang", "stream", seconds=60),)),
                                     after=(work("hanging"), report(), "Done."))
    scene.players["silent"] = steps(work("silent"), "I believe it is done.", report(), "Done.")
    child = scene.launch(scene.graph(**dict.fromkeys(scene.players, "rework=none")))
    assert place.finish(child) == 0, place.logs()
    assert scene.endings("silent") == ["silent", "reported"]
    assert scene.endings("hanging")[0] == "hang"
    assert not place.deaths().get("orchestrator-hanging"), "a hang is no death"


def test_permanent_failures_have_their_own_reasons_and_a_rate_limit_waits_without_a_process(scene):
    """A session that never reports, one that gives up, a model that does not exist: each fails with what was said. 429
    with a long retry-after: the CLI is put down, the session waits, goes on with its past, and nothing is counted."""
    place = scene.place
    limited = Fault("status", 429, retry_after=17, type="rate_limit_error", message="slow down")
    scene.players["limited"] = steps(Turn(work("limited").blocks, faults=(limited,)), report(), "Done.")
    scene.players["mute"] = steps(work("mute"), "Done.", "Still done.", "Done, I say.")
    scene.players["refusing"] = steps(report("failure", "this cannot be done"), "Sorry.")
    scene.players["invalid"] = steps(Turn(faults=(Fault("status", 404, times=ALWAYS, message="no such model"),)))
    child = scene.launch(scene.graph(**dict.fromkeys(scene.players, "rework=none")), "--max-agents", "4")
    waiting = scene.folder("limited") / "waiting"
    wait_for("it waits", lambda: waiting.exists() and "rate_limit" in waiting.read_text())  # first for a start slot
    wait_for("no CLI is left", lambda: scene.cli("limited") is None)
    assert place.finish(child) == 1, place.logs()
    nodes = place.nodes()
    assert {name: node["status"] for name, node in nodes.items()} == {
        "mute": "failed", "refusing": "failed", "invalid": "failed", "limited": "validated"}
    assert "asked for its report" in nodes["mute"]["reason"]
    assert nodes["refusing"]["reason"] == "this cannot be done"
    assert nodes["invalid"]["reason"].startswith("invalid: ")
    assert "model" in nodes["invalid"]["reason"]
    # On a busy machine the CLI may be put down before it has written down its session, which begins anew then.
    assert [each for each in scene.endings("limited") if each != "unknown_session"] == ["rate_limit", "reported"]
    assert not any(place.deaths().values())
    assert place.identity("orchestrator-limited")["incarnation"] == 1


def test_a_question_travels_up_its_answer_comes_back_and_a_refused_key_waits_for_a_person(scene):
    """While it waits there is no CLI; the answer is the session's next message, and its past is sent with it. 401 and
    403 park a session at once, with what to do; an answer lets it try again."""
    place = scene.place
    mended: set[str] = set()

    def player(name: str, status: int) -> Player:
        works = again(work(name), after=(work(name), report(), "Done."))
        return lambda asked: works(asked) if name in mended else Fault("status", status, times=ALWAYS)

    def play(asked: Request) -> Turn | str:
        if "The answer: blue" in asked.prompt:
            return work("a") if asked.step == 0 else report() if asked.step == 1 else say("Done.")
        return say(use(f"{TOOL}ask_guardian", question="Which colour?")) if asked.step == 0 else say("I wait.")

    scene.players = {"a": play, "b": player("b", 401), "c": player("c", 403)}
    child = scene.launch(scene.graph(a="", b="", c=""), "--max-agents", "3")
    wait_for("the question is told", lambda: "a asks: Which colour?" in place.logs())
    wait_for("no CLI is left", lambda: scene.cli("a") is None)
    assert "Which colour?" in place.command("status", "r1").stdout
    assert place.command("answer", "x", "blue").returncode == 1
    place.kill("runner-a")
    place.kill("orchestrator-a")
    answered = place.command("answer", "a", "blue")
    assert answered.returncode == 0, answered.stderr
    for name in "bc":
        wait_for(f"{name} says what to do", lambda name=name: re.search(f"{name} asks: .*garrison login", place.logs()))
        assert scene.endings(name) == ["authentication"]
        mended.add(name)
        assert place.command("answer", name, "the key is mended").returncode == 0
    assert place.finish(child) == 0, place.logs()
    assert place.command("answer", "a", "blue").returncode == 1, "nothing is asked any more"
    told = next(one for one in scene.calls("a") if "The answer: blue" in one.asked.prompt)
    assert any("Which colour?" in json.dumps(message) for message in told.body["messages"][:-1]), "its past"


@pytest.mark.slow
def test_an_idle_minute_costs_no_call(scene):
    """A node waits for an answer, another has landed: nobody asks the model anything meanwhile."""
    place = scene.place
    scene.players["a"] = steps(say(use(f"{TOOL}ask_guardian", question="Which?")), "I wait.")
    scene.players["b"] = steps(work("b"), report(), "Done.")
    scene.launch(scene.graph(a="", b=""))
    wait_for("a waits", lambda: "asks: Which?" in place.logs() and scene.cli("a") is None)
    wait_for("b has landed", lambda: place.nodes().get("b", {}).get("status") == "validated")
    calls = len(scene.server.requests)
    time.sleep(60)  # what must not happen has no event to wait for
    assert len(scene.server.requests) == calls
    assert place.command("stop", "r1").returncode == 0


@pytest.mark.slow
def test_a_budget_covers_all_incarnations_and_attempts(scene):
    """No call is begun beyond the limit; raising it lets the session go on."""
    place = scene.place
    scene.configure("budget = 0.009")
    scene.players["a"] = steps(work("a"), *[say(use("Bash", command=f"echo {n}")) for n in range(3)], report(), "Done.")
    child = scene.launch(scene.graph(a=""), GARRISON_SANDBOX="none")  # no proxy: it would refuse the first call
    wait_for("the limit is told", lambda: "budget is used up" in place.logs())
    assert len(scene.calls("a")) == 1, "a second answer of $0.005 would exceed it"
    scene.configure("budget = 5")
    place.kill("orchestrator-a")
    assert place.finish(child) == 0, place.logs()


@pytest.mark.slow
def test_a_full_context_is_handed_over_with_the_notes(scene):
    """A fresh session gets the task, the notes and the tree as it is; so does one whose transcript is gone."""
    place = scene.place

    def full(asked: Request) -> Turn | Fault | str:
        if "Hand-over" in asked.prompt:
            return steps(report(), "Done.")(asked)
        return steps(work("full"), say(use(f"{TOOL}save_notes", text="half of it is there")),
                     Fault("too_long", times=ALWAYS))(asked)

    def cut(asked: Request) -> Turn | Fault | str:
        if "Hand-over" in asked.prompt:
            return steps(report(), "Done.")(asked)
        return steps(work("cut"), replace(say("And so on."), stop="model_context_window_exceeded"))(asked)

    scene.players.update(full=full, cut=cut)
    child = scene.launch(scene.graph(full="", cut=""))
    assert place.finish(child) == 0, place.logs()
    assert scene.endings("full") == scene.endings("cut") == ["context", "reported"]
    assert sum(one.asked.step == 1 for one in scene.calls("cut")[:-2]) <= 2, "the CLI would ask four times"
    told = scene.calls("full")[-1].asked.prompts[0]
    assert "half of it is there" in told and "Write full" in told.partition("Committed on the branch")[2]


def test_a_validator_refuses_and_then_accepts(scene):
    """Another session, that can only read, judges the finished branch; its reason is in the rework prompt."""
    place = scene.place

    def judge(asked: Request) -> Turn | str:
        if asked.step == 0:
            return say(use("Read", file_path="a-r1.txt"), use("Write", file_path="mine.txt", content="x"))
        good = "better" in asked.result
        verdict = {"verdict": "pass" if good else "fail", "reason": "the word better is missing",
                   "criteria": [{"criterion": "better", "met": good, "evidence": "a-r1.txt"}]}
        return say(use(f"{TOOL}report_verdict", **verdict)) if asked.step == 1 else "Done."

    def play(asked: Request) -> Turn | str:
        again = "the word better is missing" in asked.prompt
        assert again == (len(asked.prompts) > 1), "the refused session goes on with the refusal"
        turns = (say(use("Bash", command=f"echo {'better' if again else 'good'} > a-r1.txt")), report(), "Done.")
        return turns[min(asked.step, 2)]

    scene.players = {"a": play, "a-validator": judge}
    child = scene.launch(scene.graph(a="validator=claude"))
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:a-r1.txt") == "better"
    assert place.nodes()["a"]["attempt"] == 2
    assert "the validator claude refused it" in place.logs()
    judged = [one for one in scene.server.messages if "You validate" in one.asked.system]
    told = judged[0].asked.prompt
    assert "Do a." in told and "+good" in told, "the task, and the whole change"
    assert "written" in told.partition("What the other agent claims")[2]
    assert "runner-a" not in judged[0].asked.system
    again = scene.folder("a", 2).parent / "prompt.md"
    assert "refs/garrison/rescue/r1/a/1" in again.read_text()
    assert {"Read", "Glob", "Grep"} <= set(judged[0].asked.tools)
    assert not {"Write", "Edit"} & set(judged[0].asked.tools), "in its sandbox it may run what it likes"
    assert git(place.repo, "ls-tree", "--name-only", "main").count("mine.txt") == 0
    assert place.command("cost", "--json").stdout.count('"of"') == 1
