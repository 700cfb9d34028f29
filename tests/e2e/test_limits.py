"""Agents of two runs at once, over which `[limits] agents` holds, also when everything of one run is killed."""

from __future__ import annotations

import os
import signal

import pytest

from support import Node, wait_for


def most_at_once(lines: list[str]) -> int:
    now = most = 0
    for line in lines:
        now += 1 if line == "begin" else -1
        most = max(most, now)
    return most


@pytest.mark.slow
def test_no_more_agents_work_at_once_over_two_runs_than_the_limit_and_each_run_ends(place):
    place.configure("[limits]\nagents = 2\n")
    book = place.root / "book"
    for run in ("r1", "r2"):
        nodes = [Node(f"{name}_{run}", command=f"echo begin >> {book}; {work}; echo {name} > {run}{name}.txt; "
                                               f"echo end >> {book}")
                 for name, work in (("held", place.hold(run)), ("one", "sleep 1"), ("two", "sleep 1"))]
        place.begin(*place.launch_arguments(place.graph(*nodes, name=run), run, "--max-agents", "4"))
        place.wait_until_held(run)
    for command in (["status", "r2"], ["why", "two_r2"]):
        shown = place.command(*command).stdout
        assert "waits for a free place: 2 of 2 agents at work ([limits] agents)" in shown, shown

    assert most_at_once(book.read_text().split()) == 2
    for stem in ("launch", "guardian-r1", "runner-held_r1", "orchestrator-held_r1"):  # r1 frees what it had
        os.kill(place.pid(stem, "r1"), signal.SIGKILL)
    wait_for("the other run goes on", lambda: all(
        state["status"] == "validated" for name, state in place.nodes("r2").items() if name != "held_r2"))
    place.release("r1")
    place.release("r2")
    assert place.finish(place.started[-1], "r2") == 0, place.logs()
    assert place.finish(place.resume("r1"), "r1") == 0, place.logs()
    assert not list((place.home / "places").glob("*.json"))
