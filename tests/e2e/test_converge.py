"""Nodes that change one file at once: all land, each loses to the moved target at most once, and none waits long."""

from __future__ import annotations

import json
import shlex

import pytest

from support import PROGRAM, Node, Place, git, wait_for

RAN = 'echo "$GARRISON_RUN $GARRISON_NODE $GARRISON_ATTEMPT 1" >> "$LEDGER"'


def append(file: str, number: int) -> str:
    """Return an agent that tells that it runs, waits for all others, and appends a line."""
    return (f'{RAN}; until [ "$(wc -l < "$LEDGER")" -ge {number} ]; do sleep 0.05; done; '
            f'echo "- $GARRISON_NODE" >> {file}')


@pytest.mark.parametrize(("file", "number", "most"), [
    ("CHANGELOG.md", 4, 4), *(pytest.param(*each, marks=pytest.mark.slow) for each in (
        ("log.txt", 6, 11), ("CHANGELOG.md", 20, 20), ("log.txt", 20, 39)))])
def test_nodes_that_append_a_line_to_one_file_all_land(place: Place, file: str, number: int, most: int) -> None:
    """With a changelog each agent runs once; in any other file each but one runs twice at most."""
    place.commit("Add a log", {file: "# Log\n\n- old\n"})
    names = [f"n{number}" for number in range(number)]
    place.run(place.graph(*(Node(name, command=append(file, number)) for name in names)), "r1", "--max-agents", number)
    assert {node["status"] for node in place.nodes().values()} == {"validated"}
    lines = git(place.repo, "show", f"main:{file}").splitlines()
    assert sorted(lines[3:]) == sorted(f"- {name}" for name in names)
    runs = len(place.finished_work())
    assert number <= runs <= most
    assert place.command("verify", "r1").returncode == 0, place.command("verify", "r1").stdout
    told = [place.command("why", name, "--all", "--run", "r1").stdout for name in names if file == "CHANGELOG.md"]
    assert not told or any("CHANGELOG.md" in text and "both sides" in text for text in told)


def changes(name: str, before: str = "true", again: str = "true") -> Node:
    """Return a node that changes a line of notes.txt once `before` ends, or in a later attempt `again`."""
    return Node(name, command=f'{RAN}; if [ "$GARRISON_ATTEMPT" = 1 ]; then {before}; else {again}; fi; '
                f'sed -i "5s/.*/& {name}/" notes.txt')


@pytest.mark.parametrize("end", ["fails", *(pytest.param(each, marks=pytest.mark.slow)
                                           for each in ("killed", "parked", "asks"))])
def test_the_next_continues_when_the_loser_of_a_conflict_does_not_land(place: Place, end: str) -> None:
    """b loses to a and has its turn; c waits for it, until b is parked, asks, fails or lands after a kill."""
    ask = f"test $GARRISON_ATTEMPT = 3 || {shlex.join(PROGRAM)} ask-person 'Which colour?'"
    again = {"asks": ask, "fails": "exit 3"}.get(end, place.hold("b2"))
    graph = place.graph(
        changes("a", f'until test -e "{place.root}/at-b"; do sleep 0.03; done'),
        changes("b", place.hold("b"), f"{place.hold('again')}; {again}"),
        changes("c", f"{place.hold('c')}"))
    child = place.launch(graph, "r1", "--max-agents", 3)
    wait_for("a has landed", lambda: place.has_landed("a"))
    place.release("b")
    place.wait_until_held("again")
    place.release("c")
    wait_for("c waits for b", lambda: "waits for b (notes.txt)" in place.command("status", "r1").stdout)
    assert "waits for b (notes.txt)" in place.command("why", "c", "--run", "r1").stdout
    entries = json.loads(place.command("merge-queue", "list", "--repo-root", place.repo, "--json").stdout)["entries"]
    (waiting,) = [entry for entry in entries if entry["node"] == "c"]
    assert (waiting["waits_for"], waiting["files"]) == (["r1", "b"], ["notes.txt"])
    place.release("again")
    if end == "killed":
        place.wait_until_held("b2")
        place.kill("orchestrator-b", "runner-b")
        place.wait_until_held("b2")
    if end == "parked":
        assert place.command("agents", "park", "b", "--reason", "later").returncode == 0
    else:
        place.release("b2")
    wait_for("c has landed", lambda: place.has_landed("c"))
    if end == "asks":
        assert place.command("answer", "b", "red").returncode == 0
    if end == "parked":
        place.release("b2")
        assert place.command("agents", "unpark", "b").returncode == 0
    assert place.finish(child) == (1 if end == "fails" else 0), place.logs()
    line = git(place.repo, "show", "main:notes.txt").splitlines()[4]
    assert line.split()[-3:] == (["a", "b", "c"] if end == "killed" else ["a", "c", "b"] if end != "fails" else
                                 ["4", "a", "c"])
