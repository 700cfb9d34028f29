"""How nodes end: agents and acceptance that fail, conflicts, red gates, and incarnations of the scripted agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import Node, git, wait_for

SEED = Path(__file__).parents[3] / "shared/corpus/_seeds/001_mini_pipeline.dot"
MINI = """\
digraph pipeline {
    graph [prd_ref="PRD-TEST-001"];
    start [shape=circle; label="START"];
    impl_test [shape=box; handler=codergen; label="Test Task";
               status=pending; bead_id="TEST-001"];
    exit_ok [shape=doublecircle; label="EXIT-OK"];
    start -> impl_test [label="begin"];
    impl_test -> exit_ok [label="pass"];
}
"""
"""The pipeline of the seed's own tests, as it stands in SEED where that is present."""


@pytest.mark.smoke
def test_failures_are_named_and_independent_work_lands(place):
    """Nodes b to e fail, each in its own way; a lands, and f never starts since it needs b."""
    rewrite = "sed -i '5s/.*/changed by {}/' notes.txt"
    graph = place.graph(
        Node("a", before=f"{rewrite.format('a')}; {place.hold('a')}"),
        Node("b", command="echo I give up >&2; exit 3"),
        Node("c", attributes='rework=none, acceptance="echo no such feature; false"'),
        Node("d", before=f"{rewrite.format('d')}; {place.hold('d')}", attributes="rework=none"),
        Node("e", before="touch red.flag", attributes="rework=none"),
        Node("f", after=("b",)))
    gate = 'git rev-parse "HEAD^{tree}" >> "$WITNESS"; if test -e red.flag; then echo the flag is red; exit 1; fi'
    child = place.launch(graph, "r1", "--max-agents", "5", gate=gate)
    place.wait_until_held("d")  # its branch starts before a lands
    place.release("a")
    wait_for("a lands", lambda: place.has_landed("a"))
    place.release_to_end(child, "d", code=1)
    nodes = place.nodes()
    assert {name: node["status"] for name, node in nodes.items()} == {
        "a": "validated", "b": "failed", "c": "failed", "d": "failed", "e": "failed", "f": "pending"}
    place.check_landed("a")
    place.check_failed_nodes_kept("b", "c", "d", "e")
    for name, said in {"b": "I give up", "c": "no such feature", "d": "notes.txt", "e": "the flag is red"}.items():
        assert said in nodes[name]["reason"], nodes[name]
    told = place.logs()
    assert "run failed" in told
    assert all(f"{name}: " in told.rpartition("run failed")[2] for name in "bcde")
    over = place.command("resume", "r1")
    assert over.returncode == 1
    assert "run r1 is failed" in over.stderr


def test_the_seeds_mini_pipeline_with_the_scripted_agent(place):
    if SEED.exists():
        assert SEED.read_text().split() == MINI.split()
    graph = place.root / "mini_pipeline.dot"
    graph.write_text(MINI)
    place.run(graph, "r1", "--agent", "scripted", "--setup", "mkdir env && echo made > env/tool")
    assert {name: node["status"] for name, node in place.nodes().items()} == {"impl_test": "validated"}
    assert git(place.repo, "ls-tree", "-r", "--name-only", "main").splitlines() == [
        "calc.py", "notes.txt", "scripted/impl_test.txt"], "what set-up made is not work"
    written = git(place.repo, "show", "main:scripted/impl_test.txt")
    assert written == "written by the scripted agent for impl_test"
    place.check_nothing_left()


def test_one_scripted_incarnation_after_another(place):
    """The agent of a is killed once, which is not a verdict on its work; b's orchestrator is killed twice, and its
    successors get its notes."""
    scripts = place.root / "scripts"
    scripts.mkdir()
    (scripts / "a.yaml").write_text("""\
- {life: 1, crash: me}
- {life: 2, edit: {path: a.txt, text: "by life 2"}}
""")
    (scripts / "b.yaml").write_text("""\
- {life: 1, notes: "begun by one"}
- {life: 1, edit: {path: b.txt, text: "one "}}
- {life: 1, commit: "Begin b"}
- {life: 1, wait: 0.6}
- {life: 1, crash: orchestrator}
- {life: 2, notes: "and two"}
- {life: 2, edit: {path: b.txt, text: "two ", append: true}}
- {life: 2, wait: 0.6}
- {life: 2, crash: orchestrator}
- {life: 3, run: 'cp "$GARRISON_PROMPT_FILE" prompt.txt'}
- {life: 3, edit: {path: b.txt, text: "three", append: true}}
""")
    graph = place.root / "scripted.dot"
    graph.write_text('digraph scripted { flow=dag; start [shape=Mdiamond]; exit [shape=Msquare]; '
                     'a [shape=box, agent=scripted]; b [shape=box, agent=scripted]; '
                     'start -> a -> exit; start -> b -> exit; }')
    place.use_mode("none")  # in a sandbox no agent reaches its orchestrator
    place.run(graph, "r1", "--agent", "scripted", "--max-agents", "2", GARRISON_SCRIPTS=str(scripts))
    assert {name: node["status"] for name, node in place.nodes().items()} == {"a": "validated", "b": "validated"}
    assert git(place.repo, "show", "main:a.txt") == "by life 2"
    assert place.deaths()["orchestrator-a"] == [1]
    assert git(place.repo, "show", "main:b.txt") == "one two three"
    prompt = git(place.repo, "show", "main:prompt.txt")
    told = prompt.partition("RESUMPTION CONTEXT")[2]
    assert "killed by SIGKILL" in told and "second such death" in told
    assert "Begin b" in told.partition("Committed on the branch")[2].partition("Changed in the worktree")[0]
    assert " M b.txt" in told.partition("Changed in the worktree")[2].partition("Resumption notes")[0]
    assert "```quoted\nand two\n```" in told.partition("Resumption notes")[2]
    assert place.deaths()["orchestrator-b"] == [1, 2]
    output = (place.home / "runs/r1/nodes/b/1/output.log").read_text()
    assert "scripted agent (not a real one) for b, incarnation 3" in output


def test_an_attempt_that_changed_nothing_never_lands(place):
    """An agent with a prompt fails if it changes nothing, whatever it prints; with allow_empty it is `no change`."""
    prompt = 'prompt="Add a feature", rework=none'
    graph = place.graph(
        Node("liar", command="echo 'Invalid API key: please log in'", attributes=prompt),
        Node("empty", command="git commit -q --allow-empty -m 'I did it'", attributes=prompt),
        Node("looker", command="cat notes.txt", attributes=f"{prompt}, allow_empty=true"),
        Node("own", command="true"),
        Node("worker"))
    tip = git(place.repo, "rev-parse", "main")
    place.run(graph, "r1", "--max-agents", "5", code=1)
    nodes = place.nodes()
    assert {name: node["status"] for name, node in nodes.items()} == {
        "liar": "failed", "empty": "failed", "looker": "validated", "own": "validated", "worker": "validated"}
    assert nodes["liar"]["reason"].endswith("; its output ends: Invalid API key: please log in")
    assert nodes["empty"]["reason"].startswith("it ended as a success, but changed nothing")
    for name in ("looker", "own"):
        assert (nodes[name]["landing"], nodes[name].get("commit", "")) == ("no change", "")
    assert git(place.repo, "rev-list", "--count", "--first-parent", f"{tip}..main") == "1", "the worker's work alone"
    told = place.logs()
    assert "looker: no change" in told
    assert "1 of 5 landed, 2 no change" in told
    shown = place.command("status", "r1").stdout
    assert "no change: it succeeded, with nothing to land" in shown
    assert "1 of 5 landed, 2 no change" in shown
    queued = place.command("merge-queue", "list", "--json", "--all").stdout
    assert not any(f"/{name}" in queued for name in ("liar", "empty", "looker", "own"))
