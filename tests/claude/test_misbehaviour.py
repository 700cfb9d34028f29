"""Models that misbehave: whatever they do, the run ends, nothing of theirs is lost or left running, and one line says
what came of it. Two runs, a node a kind of mischief; where it ends well, `work` was done and its file must land."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import msgspec
import pytest

from claude_scripts import TOOL, Player, again, report, steps, work
from garrison.testing import model_apis
from garrison.testing.request import Request
from garrison.testing.turn import Turn, Usage, say, use
from support import git, processes, wait_for

HOSTILE = "\x1b[31mred\x1b[0m\r\nsecond\x07 line\u202e \x00\ud800 größer 🦀"
"""What must steer no terminal and end no process: escapes, control characters, half a character."""
NONSENSE = {"input": -10 ** 9, "output": None, "cache_read": "many", "cache_write": [1]}
NO_MODEL = "no-model"
"""A turn of this model says neither which model it is nor what it used."""


def bash(command: str) -> Turn:
    return say(use("Bash", command=command))


def result(status: Any = "success", summary: Any = "written", **more: Any) -> dict[str, Any]:
    return use(f"{TOOL}report_result", status=status, summary=summary, **more)


def told(values: dict[str, Any]) -> Usage:
    """Token counts that no API should tell."""
    made = Usage()
    for name, value in values.items():
        msgspec.structs.force_setattr(made, name, value)
    return made


@pytest.fixture
def nonsense(monkeypatch):
    """Lets the server say messages without model and usage."""
    whole = model_apis.say_message

    def message(turn: Turn, model: str, token: str) -> dict[str, Any]:
        said = whole(turn, model, token)
        return {**said, "model": None, "usage": {}} if turn.model == NO_MODEL else said

    monkeypatch.setattr(model_apis, "say_message", message)


def begin(scene, nodes: dict[str, Player], **attributes: str) -> subprocess.Popen[bytes]:
    """Launch these nodes, without rework."""
    scene.players = nodes
    graph = scene.graph(**{name: attributes.get(name, "rework=none") for name in nodes})
    return scene.launch(graph, "--max-agents", "3")


def landed(scene) -> set[str]:
    """The nodes that count as merged; each of them has its file on main."""
    names = {name for name, node in scene.place.nodes().items() if node["status"] == "validated"}
    files = git(scene.place.repo, "ls-tree", "--name-only", "main").splitlines()
    assert names == {name.removesuffix("-r1.txt") for name in files if name.endswith("-r1.txt")}, scene.place.logs()
    return names


def reasons(scene) -> dict[str, str]:
    """Why nodes failed."""
    return {name: node["reason"] for name, node in scene.place.nodes().items() if node["status"] == "failed"}


@pytest.mark.slow
def test_a_model_may_answer_anything(scene, nonsense):
    """Reports twice, of wrong types, huge, hostile; unknown tools; questions in a heap; token counts that are none."""
    place = scene.place
    heap = [use(f"{TOOL}ask_guardian", question=f"Number {number}?") for number in range(3)]

    def asks(asked: Request) -> Turn | str:
        if "The answer: " not in asked.prompt:
            return say(*heap) if asked.step == 0 else say("I wait.")
        return (work("heap"), report(), say("Done."))[min(asked.step, 2)]

    child = begin(scene, {
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
    }, endless="rework=none, max_turns=3")
    wait_for("the first question is told", lambda: "heap asks: Number 0?" in place.logs())
    assert place.command("answer", "heap", "seven").returncode == 0
    place.finish(child)
    assert landed(scene) == {"odd", "heap", "counts", "backs_out"}, "the first report stands"
    why = reasons(scene)
    assert re.fullmatch(r"red\nsecond line . größer 🦀", why["hostile"]), why
    assert why["refused"].startswith("refused: ")
    assert why["endless"].startswith("max_turns: ")
    assert len(scene.calls("refused")) <= 4, "a refusal is not tried again and again"
    shown = (place.root / "out").read_text() + place.command("status", "r1").stdout
    assert max(map(len, shown.splitlines())) < 1500, "a line for each, however much was said"
    assert not any(place.deaths().values())
    rows = {row["of"]: row for row in json.loads(place.command("cost", "--json").stdout)}
    assert rows["r1/counts"]["usd"] >= 0
    place.check_failed_nodes_kept(*why)


@pytest.mark.slow
def test_a_models_actions_are_contained(scene):
    """It leaves its branch, rewrites history, removes its tree or its .git, kills its CLI, leaves programs behind."""
    place = scene.place
    programs = ("sleep 6541 & setsid nohup sleep 6542 >/dev/null 2>&1 & (setsid sleep 6543 >/dev/null 2>&1 &)")
    gitless = "echo left > left.txt; find . -maxdepth 1 -type f -name '.gi?' -delete"
    unrelated = "git checkout -q --orphan fresh && git commit -qm new && git branch -f garrison/r1/unrelated HEAD"
    child = begin(scene, {
        "switched": steps(bash("git checkout -qb elsewhere"), work("switched"), report(), "Done."),
        "detached": steps(bash("git checkout -q --detach"), work("detached"), report(), "Done."),
        "backwards": steps(work("backwards"), bash("git checkout -q --orphan none && git commit -qm alone"), report(),
                           "Done."),
        "unrelated": steps(work("unrelated"), bash(unrelated), report(), "Done."),
        "treeless": steps(bash('rm -rf "$PWD"'), report(), "Done."),
        "gitless": steps(bash(gitless), report(), "Done."),
        "killer": again(bash("kill -9 $PPID; sleep 5"), after=(work("killer"), report(), "Done.")),
        "programs": steps(bash(programs), work("programs"), report(), "Done."),
    })
    place.finish(child)
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
