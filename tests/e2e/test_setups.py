"""What a set-up left, through whole runs: made once, everybody's own, and nothing of one branch in another."""

from __future__ import annotations

import json

from support import Node, Place, git


def commit(name: str, script: str) -> Node:
    """Return a node whose command needs nothing outside of its sandbox."""
    return Node(name, command=f'set -e; {script}; echo {name} > {name}-"$GARRISON_RUN".txt')


def confine_wholly(place: Place) -> None:
    """Let commands write nothing of the test's own folders, in which their home is, too."""
    (place.home / "config.toml").write_text('[sandbox]\nnetwork = "open"\n')


def stamps(place: Place, run: str) -> set[str]:
    return {path.read_text().splitlines()[0] for path in place.home.glob(f"runs/{run}/**/output.log")}


def test_a_set_up_runs_once_for_all_worktrees_and_again_when_asked(place: Place) -> None:
    confine_wholly(place)
    setup = ("mkdir -p node_modules .venv ~/.cache/foo; date +%s%N > node_modules/stamp; touch ~/.cache/foo/f; "
             "echo '*' > .venv/.gitignore")
    take = ("cat node_modules/stamp; mkdir ~/.cache/bar; rm -r node_modules ~/.cache/foo; echo x > .venv/installed; "
            "git status --porcelain | grep venv && exit 1")
    (place.repo / ".gitignore").write_text("node_modules/\n")
    git(place.repo, "add", "-A")
    git(place.repo, "commit", "-qm", "ignore")
    place.start = git(place.repo, "rev-parse", "main")
    both, one = place.graph(commit("a", take), commit("b", take)), place.graph(commit("a", take), name="one")
    gate = "test -s node_modules/stamp && rm -r node_modules && mkdir ~/.cache/baz"
    for run, graph, more in (("r1", both, ()), ("r2", one, ()), ("r3", one, ("--fresh-setup",))):
        (place.repo / "of-the-user").write_text(run)  # the gate has not passed on this tree yet
        git(place.repo, "add", "of-the-user")
        git(place.repo, "commit", "-qm", "of the user")
        child = place.launch(graph, run, "--setup", setup, *more, gate=gate)
        assert place.finish(child, run) == 0, place.logs()
    assert len(stamps(place, "r1")) == 1
    assert stamps(place, "r2") == stamps(place, "r1")
    assert len(stamps(place, "r3") | stamps(place, "r1")) == 2
    assert "set-up: kept from" in (place.root / "out").read_text()
    assert ".venv" not in git(place.repo, "ls-tree", "--name-only", "main")
    shown = json.loads(place.command("cost", "--disk", "--json").stdout)
    assert {(each["what"], each["removable"]) for each in shown if each["bytes"]} == {
        ("set-up", True), ("records", False), ("gate slots and other", False)}
    (place.home / "config.toml").write_text('[limits]\ndisk = "1 kB"\n')
    said = place.command("up").stderr
    assert "disk: removed 2 kept set-ups, " in said and "more than [limits] disk (1 kB)" in said
    assert not [each for each in json.loads(place.command("cost", "--disk", "--json").stdout) if each["removable"]]


def test_what_a_branch_makes_its_set_up_do_reaches_no_other_node_and_no_gate(place: Place) -> None:
    """The branch changes only the script that set-up runs; its lock files are the target's."""
    confine_wholly(place)
    (place.repo / "setup.sh").write_text("mkdir -p node_modules; echo good > node_modules/x\n")
    (place.repo / ".gitignore").write_text("node_modules/\n")
    git(place.repo, "add", "-A")
    git(place.repo, "commit", "-qm", "set-up")
    place.start = git(place.repo, "rev-parse", "main")
    evil = "echo 'mkdir -p node_modules; echo evil > node_modules/x' > setup.sh; sh setup.sh; touch reject"
    is_good = 'test "$(cat node_modules/x)" = good'
    graph = place.graph(commit("evil", evil), commit("good", is_good), commit("later", f"sleep 2; {is_good}"))
    gate = 'test ! -e reject && test "$(cat node_modules/x)" = good'
    child = place.launch(graph, "r1", "--setup", "sh ./setup.sh", "--max-rework", "1", gate=gate)
    assert place.finish(child) == 1
    assert {node["status"] for node in place.nodes().values()} == {"validated", "failed"}
    assert git(place.repo, "ls-tree", "--name-only", "main", "--", "good-r1.txt", "later-r1.txt").split() \
        == ["good-r1.txt", "later-r1.txt"]
    assert git(place.repo, "ls-tree", "--name-only", "main", "--", "reject") == ""
    left = place.folder.glob("**/setups/*/tree/node_modules/x")
    assert [path.read_text() for path in left] == ["good\n"]


def test_kills_while_a_layer_is_made_and_used_leave_no_half_of_one(place: Place) -> None:
    """Nodes set their worktrees up themselves, since no pre-flight has; one makes the layer, the other waits for it."""
    confine_wholly(place)
    (place.repo / ".gitignore").write_text("node_modules/\n")
    git(place.repo, "add", "-A")
    git(place.repo, "commit", "-qm", "ignore")
    place.start = git(place.repo, "rev-parse", "main")
    files = "for n in $(seq 300); do echo $n > node_modules/$n; done"
    setup = f"mkdir -p node_modules; {files}; sleep 1; echo whole > node_modules/whole"
    check = 'test "$(cat node_modules/whole)" = whole; test "$(ls node_modules | wc -l)" = 301; rm -r node_modules'
    graph = place.graph(commit("a", f"{check}; sleep 1"), commit("b", check))
    child = place.launch(graph, "r1", "--land", "none", "--setup", setup, gate="true")
    for incarnation in (1, 2):
        place.kill("runner-a", incarnation=incarnation)
        place.kill("runner-b", incarnation=incarnation)
    place.kill("orchestrator-a")
    assert place.finish(child) == 0, place.logs()
    kept = list(place.folder.glob("**/setups/*/setup.json"))
    assert len(kept) == 1
    assert (kept[0].parent / "tree/node_modules/whole").read_text() == "whole\n"
    assert not list(place.folder.glob("**/setups/.new-*"))
