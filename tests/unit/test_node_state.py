"""What a node is said to do or wait for, and what is used of the limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from garrison.config import Timing
from garrison.merge.entry import TRANSITIONS, MergeEntry
from garrison.merge.state import Pause
from garrison.records.run import Launch
from garrison.supervise.restart import Death
from garrison.views.limits import TIMES, Used, limits
from garrison.views.node_state import Facts, doing

ENTRY = MergeEntry("a-1-x", "r1", "a", 1, "b", "oid", "main")
ALIVE = Facts("active", phase="executing", runner_living=True, agent_living=True, agent_status="active", agent_lives=1)
LANDING = Facts("impl_complete", phase="validating", entry=ENTRY)

WORDS = [
    (Facts("pending", waits_for=["a", "b"]), "waits for a, b"),
    (Facts("pending", busy=2), "waits for a free agent, 2 at work"),
    (Facts("pending", blocked_by=["a"], waits_for=["a"]), "cannot begin: a failed"),
    (Facts("pending", over="failed"), "did not begin; the run is failed"),
    (ALIVE, "its agent works"),
    (replace(ALIVE, deaths=2), "its agent works, 2 died before"),
    (replace(ALIVE, attempt=2, reason="red\ntail"), "its agent works (again, since red)"),
    (replace(ALIVE, agent_living=False, agent_status="crashed", deaths=3),
     "its agent died (3 in this attempt) and comes back"),
    (replace(ALIVE, waits="until 10:00:00 UTC: rate_limit"), "its session waits until 10:00:00 UTC: rate_limit"),
    (replace(ALIVE, waits="for an answer: x", asked="which?"),
     "asks you: which? (answer: garrison answer NODE 'TEXT')"),
    (replace(ALIVE, asked="which?"), "its agent works"),
    (replace(ALIVE, waits="while it is held by a person", asked="which?"),
     "its session waits while it is held by a person"),
    (replace(ALIVE, job="validator", asked="which?", agent_living=False),
     "asks you: which? (answer: garrison answer NODE 'TEXT')"),
    (replace(ALIVE, job="acceptance", agent_living=False), "its acceptance runs"),
    (replace(ALIVE, job="setup", phase="planning", agent_living=False), "its tree is set up"),
    (Facts("active", phase="planning", runner_living=True), "its tree is made"),
    (Facts("active", led=False), "nobody leads the run"),
    (Facts("active", led=True), "its runner is started"),
    (Facts("active", over="stopped"), "stopped; goes on when the run is resumed"),
    (Facts("impl_complete"), "is put into the merge queue"),
    (replace(LANDING, ahead=2), "waits in the merge queue, 2 before it"),
    (LANDING, "is next in the merge queue"),
    (replace(LANDING, pause=Pause("base_red", "on the bare main: red\nlog", "tip")),
     "the queue is paused (base_red): on the bare main: red"),
    (replace(LANDING, entry=replace(ENTRY, status="testing")), "the gate tests its merge"),
    (replace(LANDING, entry=replace(ENTRY, status="landing_blocked", reason="commit or stash a.py in /r",
                                    files=("a.py", "b.py"))), "cannot land: commit or stash a.py in /r (b.py)"),
    (Facts("validated", commit="0123456789abcdef"), "merged as 0123456789"),
    (Facts("validated"), "merged before this run"),
    (Facts("failed", reason="exit code 3\ntail"), "exit code 3"),
    (Facts("failed"), "no reason was recorded"),
    (Facts("active", held="the API is down"), "parked by you: the API is down"),
    (Facts("pending", held=""), "parked by you"),
    (Facts("active", parked="its agent was given up: 6 deaths"), "parked: its agent was given up: 6 deaths"),
]


@pytest.mark.parametrize(("facts", "words"), WORDS)
def test_words(facts: Facts, words: str) -> None:
    assert doing(facts) == words


@pytest.mark.parametrize("status", TRANSITIONS)
def test_every_place_in_the_queue_has_words(status: str) -> None:
    assert doing(replace(LANDING, entry=replace(ENTRY, status=status, reason="why")))


def test_limits_nest_and_say_what_is_used() -> None:
    launch = Launch("r1", "crew", "/repo", "main", "", "", max_agents=3, max_respawn=7, max_rework=1)
    deaths = {"orchestrator-a@r1": [Death(1, 10.0, "boot"), Death(2, 990.0, "boot"), Death(3, 995.0, "before")],
              "guardian-crew@r1": [Death(1, 999.0, "boot")]}
    used = Used(deaths, {"a": 2, "b": 1}, 2, {"a": 60.0}, ["b"], 90.0, 1000.0, "boot")
    rows = limits(launch, Timing(restart_window=600.0), used)
    told = {row["level"]: row for row in rows}
    assert [row["level"] for row in rows[:4]] == ["life", "attempt", "node", "run"]
    assert (told["life"]["limit"], told["life"]["used"]) == (5, {"orchestrator-a@r1": 1, "guardian-crew@r1": 1})
    assert "10 min" in told["life"]["text"]
    assert (told["attempt"]["limit"], told["attempt"]["used"]) == (7, {"orchestrator-a@r1": 3})
    assert (told["node"]["limit"], told["node"]["used"]) == (1, {"a": 1})
    assert "b" in told["node"]["text"]
    assert (told["run"]["limit"], told["run"]["used"]) == (3, {"r1": 2})
    times = {row["text"]: row["limit"] for row in rows if row["level"] == "time-out"}
    assert (times["agent of a"], times["gate"], times["acceptance"]) == (60.0, 90.0, 1800.0)
    assert len(times) == len(TIMES) + 1
