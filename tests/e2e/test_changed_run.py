"""A run is changed while it is at work: tasks come, and others are edited; over the death of its guardian."""

from __future__ import annotations

import subprocess

from support import PROGRAM, Node, git, wait_for

AGENTS = """
[agents.writer]
argv = ["sh", "-c", "cp \\"$1\\" $GARRISON_NODE.md", "sh", "{prompt_file}"]
"""
POINTS = ["guardian:take.before", "guardian:graph-journaled", "guardian:signal-applied", "guardian:take.after"]
"""Steps between a request, its record and its effect."""


def changes(place):
    """Return the records of what a person has changed in the graph."""
    return [record["data"] for record in place.journal() if record["kind"] == "signal" and record["data"].get("graph")]


def test_a_task_is_added_and_one_is_edited_once_though_the_guardian_dies_at_each_step(place):
    place.configure(AGENTS)
    graph = place.graph(Node("one", command=f"echo 1 > one.txt; {place.hold('one')}"),
                        Node("two", command=None, after=("one",)))
    graph.write_text(graph.read_text().replace("two [shape=box, command=", "two [shape=box, agent=writer, x_command="))
    child = place.launch(graph, "r1", GARRISON_FAILPOINT=",".join(POINTS), GARRISON_FAILPOINT_TIMES="1",
                         GARRISON_RESTART_WINDOW="0.001", GARRISON_HEALTHY_AFTER="0.001")
    place.wait_until_held("one")
    added = place.command("add", "write the notes", "--agent", "writer", "--after", "two")
    edited = place.command("edit", "two", "write another thing")
    for done, said in ((added, "write_the_notes is added to run r1"), (edited, "two is changed in run r1")):
        assert done.returncode == 0 and (done.stdout + done.stderr).startswith(said), done
    wait_for("both are taken", lambda: len(changes(place)) == 2)
    wait_for("each step had its death", lambda: place.failpoint_kills() == dict.fromkeys(POINTS, 1))
    wait_for("the new node is shown", lambda: "waiting for two" in place.command("status").stdout)

    begun, same = place.command("edit", "one", "write"), place.command("add", "Write  the notes")
    assert (begun.returncode, begun.stdout, begun.stderr.count("\n")) == (1, "", 1) and "one has begun" in begun.stderr
    assert same.returncode == 1 and "already has this task, as write_the_notes" in same.stderr
    assert place.command("stop", "r1").returncode == 0
    assert place.finish(child) == 130
    late = place.command("add", "write the end", "--agent", "writer")
    assert (late.returncode, late.stderr) == (
        0, "write_the_end is added to run r1 when that is resumed: `garrison resume r1`\n")
    place.release("one")
    assert place.finish(place.resume()) == 0, place.logs()
    assert [bool(change.get("effect")) for change in changes(place)] == [True, False, True]
    assert "write the end" in git(place.repo, "show", "main:write_the_end.md")
    assert "write another thing" in git(place.repo, "show", "main:two.md")
    assert "write the notes" in git(place.repo, "show", "main:write_the_notes.md")
    assert "added by a person" in place.command("why", "write_the_notes", "--all").stdout
    verified = place.command("verify", "r1")
    assert verified.returncode == 0 and "\n0 findings" in verified.stdout, verified.stdout
    git(place.root, "init", "-q", str(elsewhere := place.root / "elsewhere"))
    stray = subprocess.run([*PROGRAM, "add", "write more"], env=place.env, cwd=elsewhere, capture_output=True,
                           text=True, check=False)
    assert stray.returncode == 1 and "the repository you are in has no run; --run r1 is the latest" in stray.stderr
    late = place.command("add", "write more", "--run", "r1")
    assert (late.returncode, late.stderr) == (1, "garrison: run r1 is over; `garrison run TASK` starts another\n")
