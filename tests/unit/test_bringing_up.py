"""Whom `garrison up` brings up, and what it says of the others. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from garrison.layers.bringing_up import QUIET, Word, assess
from garrison.layers.run_state import NodeState, RunState
from garrison.records.identity import Identity
from garrison.supervise.step import LifeView
from garrison.supervise.verdict import Verdict

LAUNCHER = Identity(role="launch", name="launch", run_id="r1", agent_id="a", incarnation=1, status="active", pid=7,
                    created_at="2026-01-31T12:00:00.000000Z")
GUARDIAN = replace(LAUNCHER, role="guardian", name="crew")


def state(status: str, reason: str = "") -> RunState:
    found = RunState()
    found.status, found.reason = status, reason
    return found


def view(verdict: str, status: str = "active", why: str = "process 7 lives") -> LifeView:
    return LifeView(replace(LAUNCHER, status=status), Verdict(verdict, why))


@pytest.mark.parametrize(("status", "launched", "guardian", "wanted", "said"), [
    ("running", LifeView(), "active", "", ""),
    ("new", LifeView(), "", "", ""),
    ("running", view("dead"), "crashed", "", ""),
    ("running", view("lapsed", "starting"), "active", "", ""),
    ("running", view("ended", "terminated"), "active", "", ""),
    ("running", view("alive"), "active", "tended", "pid 7"),
    ("running", view("starting", "starting"), "active", "tended", "starting"),
    ("running", view("elsewhere", why="alive on h in another pid namespace"), "active", "elsewhere", "pid namespace"),
    ("stopped", view("elsewhere", why="alive on h in another pid namespace"), "active", "elsewhere", "pid namespace"),
    ("stopped", view("ended", "terminated"), "terminated", "stopped", "--resume r1"),
    ("stopped", view("alive"), "terminated", "tended", "alive"),
    ("running", view("ended", "terminated"), "parked", "parked", "mend that"),
    ("running", view("ended", "parked"), "active", "parked", "--resume r1"),
    ("running", view("ended", "held"), "active", "held", "--resume r1"),
    ("done", view("dead"), "terminated", "over", "done"),
    ("failed", LifeView(), "parked", "over", "failed"),
])
def test_who_is_brought_up(status: str, launched: LifeView, guardian: str, wanted: str, said: str) -> None:
    word = assess("r1", state(status), launched, replace(GUARDIAN, status=guardian) if guardian else None)
    assert (word.state if word else "") == wanted
    assert said in (word.line if word else "")


def test_a_run_that_failed_with_parked_nodes_waits_for_a_person() -> None:
    parked = state("failed")
    parked.nodes["a"] = NodeState("active", 1)
    word = assess("r1", parked, LifeView(), None)
    assert word is not None
    assert (word.state, "--resume r1" in word.line, "parked" in word.line) == ("parked", True, True)


def test_a_word_to_a_person() -> None:
    assert Word("r1", "refused", "its repository is gone").line == "run r1 is not resumed: its repository is gone"
    assert Word("r1", "started").line == "run r1: started"
    assert {"over", "tended"} == QUIET
