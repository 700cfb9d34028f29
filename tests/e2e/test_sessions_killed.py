"""Agents that run as sessions, through real runners: what a kill within a step leaves, and what is done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support import git, wait_for

GRAPH = """digraph crew { flow=dag; start [shape=Mdiamond]; exit [shape=Msquare]
    a [shape=box, agent=scripted, session=true, script="a.yaml", prompt="Do a."%s]
    start -> a -> exit }"""
SCRIPT = """
- edit: {path: a.txt, text: "one\\n", append: true}
- run: "echo before >> $LEDGER"
- life: 1
  crash: %s
- edit: {path: a.txt, text: "two\\n", append: true}
- run: "echo after >> $LEDGER"
- commit: Write both
"""


def ran(place: Any, who: str, attributes: str = "") -> Any:
    """The place after a run in which the agent's script kills `who` in the middle."""
    (place.repo / "a.yaml").write_text(SCRIPT % who)
    git(place.repo, "add", "a.yaml")
    git(place.repo, "commit", "-qm", "Add the script")
    graph = place.root / "crew.dot"
    graph.write_text(GRAPH % attributes)
    if who == "orchestrator":
        place.use_mode("none")  # in a sandbox no agent reaches its orchestrator
    child = place.launch(graph)
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:a.txt") == "one\ntwo"
    assert place.ledger.read_text() == "before\nafter\n"
    assert place.deaths() == {"orchestrator-a": [1]}
    place.check_nothing_left()
    return place


def test_a_session_that_is_killed_in_a_tool_goes_on_after_the_tools_that_were_done(place: Any) -> None:
    ran(place, "me")


@pytest.mark.slow
def test_a_session_whose_orchestrator_is_killed_and_one_with_subgraphs_continue(place: Any) -> None:
    shipped = Path(__file__).parents[2] / "pipelines"
    for name in ("turn", "heartbeat"):
        (place.repo / f"{name}.dot").write_text((shipped / f"{name}.dot").read_text())
        git(place.repo, "add", f"{name}.dot")
    ran(place, "orchestrator", ', tier=trusted, turn_graph="turn.dot", heartbeat_graph="heartbeat.dot", initiative=3')


def test_a_session_that_asks_waits_and_continues_with_the_answer(place: Any) -> None:
    """While it waits nothing of it runs; its orchestrator is killed; nothing that was done is done again."""
    (place.repo / "a.yaml").write_text('- run: "echo before >> $LEDGER"\n- ask_guardian: "Which colour?"\n'
                                       '- edit: {path: a.txt, text: "two\\n"}\n- run: "echo after >> $LEDGER"\n')
    git(place.repo, "add", "a.yaml")
    git(place.repo, "commit", "-qm", "Add the script")
    graph = place.root / "crew.dot"
    graph.write_text(GRAPH % "")
    child = place.launch(graph)
    wait_for("the question is told", lambda: "asks: Which colour?" in place.logs())
    wait_for("it waits", lambda: any(place.home.glob("runs/*/nodes/a/**/claude/waiting")))
    place.kill("orchestrator-a")
    answered = place.command("answer", "a", "blue")
    assert answered.returncode == 0, answered.stderr
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:a.txt") == "two"
    assert place.ledger.read_text() == "before\nafter\n"
    assert place.command("answer", "a", "blue").returncode == 1, "nothing is asked any more"
    place.check_nothing_left()
