"""Models that say what is not so, or say nothing: facts decide, and the next attempt is told them."""

from __future__ import annotations

import pytest

from claude_scripts import report, work
from garrison.testing import misbehaviour
from garrison.testing.turn import Turn, say, use
from support import git

TEST = "import calc, unittest\n\nclass T(unittest.TestCase):\n    def test_sub(self):\n        calc.sub(2, 1)\n"
CLAIM = "All done, all tests pass."


def commit(shell: str) -> Turn:
    """Return the turn that does something in the shell and commits it."""
    return say(use("Bash", command=f"{shell}; git add -A && git commit -qm Work"))


def mends(refused: Turn, mended: Turn):
    """Return a player that lies about the first work; told of it, in the same session, it does the other."""
    liar, honest = misbehaviour.lies(refused), (mended, report(), "Done.")
    return lambda asked: honest[min(asked.step, 2)] if "## REWORK" in asked.prompt else liar(asked)


@pytest.mark.slow
def test_a_lie_is_caught_by_the_facts_and_told_to_the_next_attempt(scene):
    """A success that acceptance, gate or an empty branch contradicts lands nothing; the rework prompt has the command,
    the failing test, its output, the claim and the refused work. One that never stops lying fails with the reason, and
    so does one that never reports: it is asked for it a bounded number of times."""
    place = scene.place
    (place.repo / "test_calc.py").write_text(TEST.replace("sub", "add"))
    git(place.repo, "add", "-A")
    git(place.repo, "commit", "-qm", "Test what there is")
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
