"""Models that lie or misbehave: the run ends, nothing of theirs is lost or left running, facts decide, and one line
names the result. A node for each kind; where it ends well, `work` was done and its file must land."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from claude_scripts import TOOL, again, report, steps, work
from garrison.testing import misbehaviour, model_apis
from garrison.testing.request import Request
from garrison.testing.turn import Turn, Usage, say, use
from support import git, processes, wait_for

HOSTILE = "\x1b[31mred\x1b[0m\r\nsecond\x07 line\u202e \x00\ud800 größer 🦀"
"""Escapes, control characters and half a character, which must not control a terminal or end a process."""
NONSENSE = {"input": -10 ** 9, "output": None, "cache_read": "many", "cache_write": [1]}
NO_MODEL = "no-model"
"""A turn of this model has neither its name nor its usage."""


def bash(command: str) -> Turn:
    return say(use("Bash", command=command))


def result(status: Any = "success", summary: Any = "written", **more: Any) -> dict[str, Any]:
    return use(f"{TOOL}report_result", status=status, summary=summary, **more)


def told(values: dict[str, Any]) -> Usage:
    """Return impossible token counts."""
    made = Usage()
    for name, value in values.items():
        msgspec.structs.force_setattr(made, name, value)
    return made


@pytest.fixture
def nonsense(monkeypatch):
    """Let the server send messages without model and usage."""
    whole = model_apis.say_message

    def message(turn: Turn, model: str, token: str) -> dict[str, Any]:
        said = whole(turn, model, token)
        return {**said, "model": None, "usage": {}} if turn.model == NO_MODEL else said

    monkeypatch.setattr(model_apis, "say_message", message)


def landed(scene) -> set[str]:
    """Return the nodes that count as merged, and check that each has its file on main."""
    names = {name for name, node in scene.place.nodes().items() if node["status"] == "validated"}
    files = git(scene.place.repo, "ls-tree", "--name-only", "main").splitlines()
    assert names == {name.removesuffix("-r1.txt") for name in files if name.endswith("-r1.txt")}, scene.place.logs()
    return names


def reasons(scene) -> dict[str, str]:
    """Return the reasons of the failed nodes."""
    return {name: node["reason"] for name, node in scene.place.nodes().items() if node["status"] == "failed"}


@pytest.mark.slow
def test_a_model_may_answer_anything(scene, place, nonsense):
    """Reports twice, of wrong types, huge, hostile; unknown tools; many questions at once; impossible token counts."""
    heap = [use(f"{TOOL}ask_guardian", question=f"Number {number}?") for number in range(3)]

    def asks(asked: Request) -> Turn | str:
        if "The answer: " not in asked.prompt:
            return say(*heap) if asked.step == 0 else say("I wait.")
        return (work("heap"), report(), say("Done."))[min(asked.step, 2)]

    scene.players = {
        "heap": asks,
        "backs_out": steps(work("backs_out"), say(result()), say(result("failure", "broken after all")), "Done."),
        "odd": steps(say(result(True, ["a"])), say(result(summary=" ")),
                     say(use("NoSuchTool", x=1), *work("odd").blocks, result()), "Done."),
        "huge": steps(say(result("failure", "x" * 1_000_000)), "Done."),
        "hostile": steps(say(HOSTILE, *work("hostile").blocks), say(use(f"{TOOL}save_notes", text=HOSTILE)),
                         say(result("failure", HOSTILE, evidence=[HOSTILE])), "Done."),
        "counts": steps(Turn(work("counts").blocks, usage=told(NONSENSE)), Turn(report().blocks, model=NO_MODEL),
                        "Done."),
        "refused": steps(Turn(stop="refusal")),
        "endless": steps(bash("echo again")),
    }
    child = scene.launch_nodes("--max-agents", "3", endless="rework=none, max_turns=3")
    wait_for("the first question is shown", lambda: "heap asks: Number 0?" in place.logs())
    assert place.command("answer", "heap", "seven").returncode == 0
    place.finish(child)
    assert landed(scene) == {"odd", "heap", "counts", "backs_out"}, "the first report counts"
    why = reasons(scene)
    assert re.fullmatch(r"red\nsecond line . größer 🦀", why["hostile"]), why
    assert why["refused"].startswith("refused: ")
    assert why["endless"].startswith("max_turns: ")
    assert len(scene.calls("refused")) <= 4, "a refusal is not retried for ever"
    shown = (place.root / "out").read_text() + place.command("status", "r1").stdout
    assert max(map(len, shown.splitlines())) < 1500, "a line for each, however long the report"
    assert not any(place.deaths().values())
    rows = {row["of"]: row for row in json.loads(place.command("cost", "--json").stdout)}
    assert rows["r1/counts"]["usd"] >= 0
    place.check_failed_nodes_kept(*why)


@pytest.mark.slow
def test_a_models_actions_are_contained(scene, place):
    """It leaves its branch, rewrites history, removes its tree or its .git, kills its CLI, leaves programs behind."""
    programs = ("sleep 6541 & setsid nohup sleep 6542 >/dev/null 2>&1 & (setsid sleep 6543 >/dev/null 2>&1 &)")
    gitless = "echo left > left.txt; find . -maxdepth 1 -type f -name '.gi?' -delete"
    unrelated = "git checkout -q --orphan fresh && git commit -qm new && git branch -f garrison/r1/unrelated HEAD"
    scene.players = {
        "switched": steps(bash("git checkout -qb elsewhere"), work("switched"), report(), "Done."),
        "detached": steps(bash("git checkout -q --detach"), work("detached"), report(), "Done."),
        "backwards": steps(work("backwards"), bash("git checkout -q --orphan none && git commit -qm alone"), report(),
                           "Done."),
        "unrelated": steps(work("unrelated"), bash(unrelated), report(), "Done."),
        "treeless": steps(bash('rm -rf "$PWD"'), report(), "Done."),
        "gitless": steps(bash(gitless), report(), "Done."),
        "killer": again(bash("kill -9 $PPID; sleep 5"), after=(work("killer"), report(), "Done.")),
        "programs": steps(bash(programs), work("programs"), report(), "Done."),
    }
    place.finish(scene.launch_nodes("--max-agents", "3"))
    running = [one.argv for one in processes() if "sleep 654" in one.argv]
    assert landed(scene) == {"switched", "detached", "killer", "programs"}
    why = reasons(scene)
    assert "it left its branch garrison/r1/backwards" in why["backwards"]
    assert "no commit in common" in why["unrelated"]
    assert "was removed while it worked" in why["treeless"]
    assert "not a git repository" in why["gitless"]
    assert [path.read_text() for path in place.trees.glob("*/r1/gitless/left.txt")] == ["left\n"], "it stays"
    assert place.deaths()["orchestrator-killer"] == [1]
    assert not running, "what an agent leaves behind ends with it"


TEST = "import calc, unittest\n\nclass T(unittest.TestCase):\n    def test_sub(self):\n        calc.sub(2, 1)\n"
CLAIM = "All done, all tests pass."


def commit(shell: str) -> Turn:
    """Return the turn that does something in the shell and commits it."""
    return say(use("Bash", command=f"{shell}; git add -A && git commit -qm Work"))


def mends(refused: Turn, mended: Turn):
    """Return a player that lies about the first work and, once the prompt names the lie, does the other."""
    liar, honest = misbehaviour.lies(refused), (mended, report(), "Done.")
    return lambda asked: honest[min(asked.step, 2)] if "## REWORK" in asked.prompt else liar(asked)


@pytest.mark.slow
def test_a_false_report_is_detected_and_the_next_attempt_gets_the_facts(scene, place):
    """A success that acceptance, gate or an empty branch contradicts lands nothing; the rework prompt has the command,
    the failing test, its output, the claim and the refused work. A model that never stops lying fails with the reason,
    and so does one that never reports, after a bounded number of requests."""
    place.commit("Test what there is", {"test_calc.py": TEST.replace("sub", "add")})
    broken, whole = "def sub(a, b):\n    return a + c", "def sub(a, b):\n    return a - b"
    append = "printf '\\n\\n%s\\n' '{}' >> calc.py; printf '%s' '{}' > test_sub.py".format
    scene.players = {
        "accepted": mends(commit(append(broken, TEST)), commit(append(whole, TEST))),
        "gated": mends(commit("echo 'def add(a): return a' > calc.py"), commit("git checkout -q main -- calc.py; "
                                                                                   "echo two > two.txt")),
        "idle": lambda asked: (report(summary=CLAIM), "Done.")[min(asked.step, 1)],
        "mute": misbehaviour.never_reports(work("mute")),
    }
    graph = scene.graph(accepted='acceptance="python3 -B -m unittest test_sub"', gated="", idle="allow_empty=false",
                        mute="")
    child = place.launch(graph, "r1", "--max-agents", "4", gate="python3 -B -m unittest")
    assert place.finish(child) == 1, place.logs()
    prompts = {name: (scene.folder(name, 2).parent / "prompt.md").read_text() for name in ("accepted", "gated", "idle")}
    for name, test in (("accepted", "test_sub"), ("gated", "test_add")):
        _, _, rework = prompts[name].partition("## REWORK: attempt 2")
        assert test in rework.partition("Failing tests:")[2].partition("The end of its output")[0], rework
        assert "python3 -B -m unittest" in rework and CLAIM in rework
        assert f"refs/garrison/rescue/r1/{name}/1" in rework and "calc.py" in rework
    assert "reported success, but had changed nothing" in prompts["idle"]
    nodes = place.nodes()
    assert {name: node["status"] for name, node in nodes.items()} == {
        "accepted": "validated", "gated": "validated", "idle": "failed", "mute": "failed"}
    assert nodes["idle"]["reason"].startswith("it ended as a success, but changed nothing"), nodes["idle"]
    assert nodes["idle"]["attempt"] <= 5
    assert git(place.repo, "show", "main:calc.py").endswith("return a - b")
    assert nodes["mute"]["attempt"] == 1
    assert nodes["mute"]["reason"] == (
        "it was asked for its report and ended again without one; its last words: It is done.")
    assert scene.endings("mute") == ["silent", "silent"]
    assert len(scene.calls("mute")) == 3, "its work, its last words, and once more when it is asked"
    place.check_failed_nodes_kept("idle", "mute")
