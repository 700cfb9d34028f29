"""Agents that run as sessions, with real runners: what a kill within a step leaves, and what is repeated."""

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
%s- edit: {path: a.txt, text: "two\\n", append: true}
- run: "echo after >> $LEDGER"
- commit: Write both
"""


def begin(place: Any, who: str, question: str = "", attributes: str = "") -> Any:
    """Launch a run in which the agent's script kills `who` in the middle, and asks after that."""
    place.commit("Add the script", {"a.yaml": SCRIPT % (who, f"- ask_guardian: {question}\n" if question else "")})
    (place.root / "crew.dot").write_text(GRAPH % attributes)
    return place.launch(place.root / "crew.dot")


def check_done_once(place: Any, child: Any, deaths: list[int]) -> None:
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:a.txt") == "one\ntwo"
    assert place.ledger.read_text() == "before\nafter\n"
    assert place.deaths() == {"orchestrator-a": deaths}
    place.check_nothing_left()


def test_a_session_that_is_killed_in_a_tool_and_while_it_waits_for_an_answer_does_nothing_twice(place: Any) -> None:
    """While it waits nothing of it runs; its orchestrator is killed then."""
    child = begin(place, "me", "Which colour?")
    wait_for("the question is shown", lambda: "asks: Which colour?" in place.logs())
    wait_for("it waits", lambda: any(place.home.glob("runs/*/nodes/a/**/claude/waiting")))
    place.kill("orchestrator-a")
    answered = place.command("answer", "a", "blue")
    assert answered.returncode == 0, answered.stderr
    check_done_once(place, child, [1, 2])
    assert place.command("answer", "a", "blue").returncode == 1, "nothing is asked any more"


@pytest.mark.slow
def test_a_session_whose_orchestrator_is_killed_and_one_with_subgraphs_continue(place: Any) -> None:
    shipped = Path(__file__).parents[2] / "pipelines"
    for name in ("turn", "heartbeat"):
        (place.repo / f"{name}.dot").write_text((shipped / f"{name}.dot").read_text())
    place.use_mode("none")  # in a sandbox no agent reaches its orchestrator
    child = begin(place, "orchestrator",
                  attributes=', tier=trusted, turn_graph="turn.dot", heartbeat_graph="heartbeat.dot", initiative=3')
    check_done_once(place, child, [1])
