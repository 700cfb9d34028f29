"""A run is changed while it works: tasks are added, edited and retried, over the deaths of its guardian."""

from __future__ import annotations

from support import Node, git, wait_for

POINTS = ["guardian:take.before", "guardian:graph-journaled", "guardian:signal-applied", "guardian:take.after"]
"""Steps between a request, its record and its effect."""


def changes(place):
    """Return the records of the user's changes of the graph."""
    return [record["data"] for record in place.journal() if record["kind"] == "signal" and record["data"].get("graph")]


def test_a_task_is_added_and_one_is_edited_once_though_the_guardian_dies_at_each_step(place):
    place.use_agents(writer={"argv": ["sh", "-c", 'cp "$1" $GARRISON_NODE.md', "sh", "{prompt_file}"]})
    graph = place.graph(Node("one", command=f"echo 1 > one.txt; {place.hold('one')}"),
                        Node("two", command=None, after=("one",)))
    graph.write_text(graph.read_text().replace("two [shape=box, command=", "two [shape=box, agent=writer, x_command="))
    place.kill_at(*POINTS)
    child = place.launch_until("one", graph)
    added = place.command("add", "write the notes", "--agent", "writer", "--after", "two")
    edited = place.command("edit", "two", "write another thing")
    for done, said in ((added, "write_the_notes is added to run r1"), (edited, "two is changed in run r1")):
        assert done.returncode == 0 and (done.stdout + done.stderr).startswith(said), done
    wait_for("both are taken", lambda: len(changes(place)) == 2)
    wait_for("each step had its death", lambda: place.failpoint_kills() == dict.fromkeys(POINTS, 1))
    wait_for("the new node is shown", lambda: "waiting for two" in place.command("status").stdout)

    started, same = place.command("edit", "one", "write"), place.command("add", "Write  the notes")
    assert (started.returncode, started.stdout, started.stderr.count("\n")) == (1, "", 1), started
    assert "one has started" in started.stderr
    assert same.returncode == 1 and "already has this task, as write_the_notes" in same.stderr
    assert place.command("stop", "r1").returncode == 0
    assert place.finish(child) == 130
    late = place.command("add", "write the end", "--agent", "writer")
    assert (late.returncode, late.stderr) == (
        0, "write_the_end is added to run r1 when the run is resumed: `garrison resume r1`\n")
    place.release("one")
    assert place.finish(place.resume()) == 0, place.logs()
    assert [bool(change.get("effect")) for change in changes(place)] == [True, False, True]
    assert "write the end" in git(place.repo, "show", "main:write_the_end.md")
    assert "write another thing" in git(place.repo, "show", "main:two.md")
    assert "write the notes" in git(place.repo, "show", "main:write_the_notes.md")
    assert "added by the user" in place.command("why", "write_the_notes", "--all").stdout
    verified = place.command("verify", "r1")
    assert verified.returncode == 0 and "\n0 findings" in verified.stdout, verified.stdout
    git(place.root, "init", "-q", str(elsewhere := place.root / "elsewhere"))
    stray = place.command("add", "write more", cwd=elsewhere)
    assert stray.returncode == 1 and "the repository you are in has no run; --run r1 is the latest" in stray.stderr
    late = place.command("add", "write more", "--run", "r1")
    assert (late.returncode, late.stderr) == (1, "garrison: run r1 is over; `garrison run TASK` starts another\n")


def test_a_failed_node_is_retried_while_its_run_works_and_another_one_afterwards(place):
    def command(name: str) -> str:
        return f'test -f {place.root}/fixed-{name} || {{ echo red; exit 3; }}; echo $GARRISON_ATTEMPT > {name}.txt'

    graph = place.graph(Node("one", command=command("one")), Node("two", command="echo 2 > two.txt", after=("one",)),
                        Node("three", command=command("three")), Node("four", command=command("four")),
                        Node("slow", command=f"echo slow > slow.txt; {place.hold('slow')}"))
    child = place.launch_until("slow", graph, "r1", "--max-agents", "5", "--max-rework", "0")
    wait_for("they fail", lambda: all(place.nodes()[name]["status"] == "failed" for name in ("one", "three", "four")))
    refused = place.command("agents", "retry", "slow")
    assert refused.returncode == 1 and "it has not failed: it is active" in refused.stderr
    (place.root / "fixed-one").touch()
    retried = place.command("agents", "retry", "one")
    place.kill("guardian-crew")
    assert (retried.returncode, retried.stderr) == (0, "one is retried\n")
    wait_for("the node after it lands", lambda: place.has_landed("two"))
    assert (place.nodes()["three"]["status"], place.nodes()["slow"]["status"]) == ("failed", "active")
    assert git(place.repo, "show", "main:one.txt") == "2"
    place.release("slow")
    assert place.finish(child) == 1, "three and four are still failed"

    late = place.command("agents", "retry", "three")
    assert late.returncode == 1 and "`garrison resume r1 --retry three`" in late.stderr, late.stderr
    refused = place.command("resume", "r1", "--retry", "one")
    assert refused.returncode == 1 and "failed: four, three" in refused.stderr, refused.stderr
    (place.root / "fixed-three").touch()
    assert place.command("resume", "r1", "--retry", "three").returncode == 1, "four is still failed"
    assert (place.nodes()["three"]["status"], place.nodes()["four"]["status"]) == ("validated", "failed")
    (place.root / "fixed-four").touch()
    assert place.command("resume", "r1", "--retry-failed").returncode == 0
    assert git(place.repo, "show", "main:four.txt") == "2"
