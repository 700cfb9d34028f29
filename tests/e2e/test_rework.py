"""A red acceptance, a red gate and a conflict start a new attempt with the reason, within the limit, under kill -9."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support import Node, Place, git, wait_for

CONFLICTS = Node(
    "m", attributes="rework=merge",
    command="""if [ "$GARRISON_ATTEMPT" = 1 ]
    then
        sed -i "5s/.*/changed by m/" notes.txt; touch "$LEDGER.m"
        until test -e "$LEDGER.landed"; do sleep 0.03; done
    else
        cp "$GARRISON_PROMPT_FILE" "$LEDGER.prompt"; grep -c "^<<<<<<<" notes.txt > markers.txt
        git checkout --ours notes.txt
    fi""")


@pytest.mark.smoke
def test_failures_that_an_agent_may_fix_are_retried_with_the_reason(place):
    """c lands a line first; m has a conflict with it, f a red gate; s is never accepted."""
    graph = place.graph(
        Node("c", command="""sed -i "5s/.*/changed by c/" notes.txt; until test -e "$LEDGER.m"; do sleep 0.03; done""",
             attributes='prompt="Let line five say who changed it."'),
        CONFLICTS,
        Node("f", command="""[ "$GARRISON_ATTEMPT" = 2 ] && cp "$GARRISON_PROMPT_FILE" why.txt || touch red.flag"""),
        Node("s", command="echo never > s.txt", attributes='acceptance="echo not like this; false"'),
        Node("w", after=("c",), command='touch "$LEDGER.landed"; echo w > w.txt'))
    gate = 'git rev-parse "HEAD^{tree}" >> "$WITNESS"; if test -e red.flag; then echo the flag is red; exit 1; fi'
    place.run(graph, "r1", "--max-agents", "5", gate=gate, code=1)
    nodes = place.nodes()
    assert {name: (node["status"], node["attempt"]) for name, node in nodes.items()} == {
        "c": ("validated", 1), "m": ("validated", 2), "f": ("validated", 2), "s": ("failed", 3), "w": ("validated", 1)}
    assert git(place.repo, "show", "main:notes.txt").splitlines()[4] == "changed by m"
    assert git(place.repo, "show", "main:markers.txt") == "1"
    told = Path(f"{place.ledger}.prompt").read_text()
    assert "REWORK: attempt 2" in told
    assert "conflict in notes.txt" in told
    assert "- notes.txt" in told
    theirs = git(place.repo, "log", "--format=%h", "--grep=^Garrison-Node: c$", "main").strip()
    assert f"- notes.txt\n  - {theirs}" in told.replace(git(place.repo, "rev-parse", theirs)[:10], theirs)
    assert "the task c" in told, "the node of the other side"
    assert "- c:\n```quoted\nLet line five say who changed it.\n```" in told, "and its prompt"
    assert "  <<<<<<< HEAD\n  changed by m\n  =======\n  changed by c\n  >>>>>>> " in told
    assert "This is attempt 2 of at most 3." in told
    assert re.search(r"`>>>>>>> (main|[0-9a-f]{40})`", told), "the name in the markers: its commit once w has landed"
    why = git(place.repo, "show", "main:why.txt")
    assert "the flag is red" in why and "(exit 1)" in why and "refs/garrison/rescue/r1/f/1" in why
    log = next(line for line in why.splitlines() if line.startswith("All of its output")).split("`")[1]
    assert "the flag is red" in Path(log).read_text(), "a copy that a confined agent can read"
    assert "not like this" in nodes["s"]["reason"]
    rescued = git(place.repo, "for-each-ref", "--format=%(refname)", "refs/garrison/rescue/r1").splitlines()
    assert {f"refs/garrison/rescue/r1/{name}" for name in ("m/1", "f/1", "s/1", "s/2", "s/3")} <= set(rescued)


@pytest.mark.parametrize("how", ["merge", pytest.param("fresh", marks=pytest.mark.slow)])
def test_a_rework_is_resumed_wherever_its_runner_dies(place, how):
    """Two kills in one run at each point that only a rework passes."""
    points = ["runner:fact-failed.before", "runner:fact-failed.after", "runner:give_up.before",
              "runner:told-RUNNER_EXITED", "runner:fact-begun.before", "runner:fact-begun.after", "runner:tree.before",
              "runner:tree.after", "orchestrator:prompted"]
    place.kill_at(*points, times=2)
    node = Node("a", command='echo "attempt $GARRISON_ATTEMPT" > a.txt',
                attributes=f'rework={how}, acceptance="grep -q \'attempt 2\' a.txt"')
    place.run(place.graph(node), "r1", "--max-respawn", 1000)
    assert {name: (node["status"], node["attempt"]) for name, node in place.nodes().items()} == {"a": ("validated", 2)}
    assert git(place.repo, "show", "main:a.txt") == "attempt 2"
    assert set(place.failpoint_kills()) == set(points)


def test_the_tip_is_merged_once_an_attempt_and_without_a_name_in_git(place):
    """git has no name of the user; main moves on and the runner dies while the agent resolves."""
    for what in ("name", "email"):
        git(place.repo, "config", "--unset", f"user.{what}")
    place.env["GARRISON_FAILPOINT_LIST"] = str(place.points)
    me = "git -c user.name=a -c user.email=a@b.c"
    move = f"sed -i '5s/.*/by m/' notes.txt; {place.hold('first')}"
    again = f"git checkout --ours notes.txt; {me} commit -qam resolved; {place.hold('second')}"
    node = Node("m", attributes="rework=merge",
                command=f'if [ "$GARRISON_ATTEMPT" = 1 ]; then {move}; else {again}; fi')
    child = place.launch_until("first", place.graph(node), "r1")
    advance(place, "notes.txt", "by a person\n")
    place.release("first")
    place.wait_until_held("second")
    advance(place, "other.txt", "by a person\n")
    place.kill("runner-m", incarnation=2)
    wait_for("the third runner has its worktree", lambda: place.points.read_text().split().count(
        "runner:tree.after") == 3)
    place.release_to_end(child, "second")
    assert place.nodes()["m"]["attempt"] == 2
    assert git(place.repo, "show", "-s", "--format=%s", "main^2") == "resolved"
    assert git(place.repo, "rev-list", "--count", "--merges", "main^2") == "1"


def advance(place: Place, name: str, text: str) -> None:
    """Commit to main in the user's checkout."""
    (place.repo / name).write_text(text)
    git(place.repo, "add", name)
    git(place.repo, "-c", "user.name=p", "-c", "user.email=p@q.r", "commit", "-qm", f"Change {name}")
