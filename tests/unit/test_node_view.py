"""Descriptions and one-word states of a node; limits and their use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from garrison.agents.outages import Outage
from garrison.cli.top_render import SYMBOLS
from garrison.config import Timing
from garrison.merge.entry import TRANSITIONS, MergeEntry
from garrison.merge.state import Pause
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import plan_run
from garrison.records.run import Launch
from garrison.run.state import NodeOutcome, NodeState, RunState
from garrison.supervise.restart import Death
from garrison.values import replace
from garrison.views.limits import TIMEOUTS, Used, limits
from garrison.views.node_view import NodeFacts, describe_activity, shared_outages, state_word, unfinished_before
from garrison.views.process_view import ProcessView

ENTRY = MergeEntry("a-1-x", "r1", "a", 1, "b", "oid", "main")
ALIVE = NodeFacts("active", phase="executing", runner_alive=True, agent_alive=True, agent_status="active",
                  agent_incarnation=1)
LANDING = NodeFacts("impl_complete", phase="validating", entry=ENTRY)

WORDS = [
    (NodeFacts("pending", waits_for=["a", "b"]), "waiting for a, b"),
    (NodeFacts("pending", busy=2), "waiting for a free agent, 2 at work"),
    (NodeFacts("pending", busy=2, guardian_alive=False), "waiting for a guardian; none is alive"),
    (NodeFacts("pending", blocked_by=["a"], waits_for=["a"]), "cannot start: a failed"),
    (NodeFacts("pending", run_over="failed"), "not started; the run is failed"),
    (NodeFacts("pending", unreached=True), "not reached yet"),
    (ALIVE, "its agent is working"),
    (replace(ALIVE, deaths=2), "its agent is working, after 2 deaths"),
    (replace(ALIVE, attempt=2, reason="red\ntail"), "its agent is working (retry: red)"),
    (replace(ALIVE, agent_suspended=True), "its agent is suspended (SIGSTOP)"),
    (replace(ALIVE, agent_alive=False, agent_status="crashed", deaths=3),
     "its agent died (3 deaths in this attempt) and is being restarted"),
    (replace(ALIVE, session_waits="until 10:00:00 UTC: rate_limit"),
     "its session is waiting until 10:00:00 UTC: rate_limit"),
    (replace(ALIVE, session_waits="for an answer: x", question="which?"),
     "asks you: which? (answer: garrison answer NODE 'TEXT')"),
    (replace(ALIVE, question="which?", quiet=29.0), "its agent is working"),
    (replace(ALIVE, quiet=61.4, deaths=1),
     "it may be asking in its terminal: `garrison attach NODE --write`, after 1 death"),
    (replace(ALIVE, session_waits="while it is taken over", taken_over=True, question="which?"),
     "its session is waiting while it is taken over"),
    (replace(ALIVE, job="validator", question="which?", agent_alive=False),
     "asks you: which? (answer: garrison answer NODE 'TEXT')"),
    (replace(ALIVE, job="acceptance", agent_alive=False), "running its acceptance command"),
    (replace(ALIVE, job="setup", phase="planning", agent_alive=False), "setting up its worktree"),
    (NodeFacts("active", phase="planning", runner_alive=True), "creating its worktree"),
    (NodeFacts("active", phase="executing", runner_alive=True), "starting its agent"),
    (replace(ALIVE, agent_alive=False), "its agent is done; checking its work"),
    (NodeFacts("active", guardian_alive=False), "waiting for a guardian; none is alive"),
    (NodeFacts("active", guardian_alive=True), "starting its runner"),
    (NodeFacts("active", run_over="stopped"), "stopped; continues when the run is resumed"),
    (replace(ALIVE, is_over=True), "this attempt is over; its agent is being ended"),
    (replace(ALIVE, full_disk="/x"), "waiting for disk space: the disk of /x is full"),
    (NodeFacts("impl_complete"), "entering the merge queue"),
    (replace(LANDING, entries_ahead=2), "waiting in the merge queue, 2 ahead"),
    (LANDING, "next in the merge queue"),
    (replace(LANDING, pause=Pause("base_red", "on the bare main: red\nlog", "tip")),
     "the queue is paused (base_red): on the bare main: red"),
    (replace(LANDING, hindrance="git fails at b-1: no\nmore"),
     "the queue is held up: git fails at b-1: no; it tries again"),
    (replace(LANDING, entry=replace(ENTRY, status="testing")), "the gate is testing its merge candidate"),
    (replace(LANDING, entry=replace(ENTRY, status="testing", reason="its disk is full")),
     "the gate is testing its merge candidate (retry: its disk is full)"),
    (replace(LANDING, entry=replace(ENTRY, status="landing_blocked", reason="commit or stash a.py in /r",
                                    files=("a.py", "b.py"))), "cannot land: commit or stash a.py in /r (b.py)"),
    (NodeFacts("validated", commit="0123456789abcdef"), "landed as 0123456789"),
    (NodeFacts("validated"), "landed before this run"),
    (NodeFacts("validated", commit="0", landed=replace(ENTRY, status="undone", reason="by hand")), "undone: by hand"),
    (NodeFacts("validated", commit="0", landed=replace(ENTRY, status="landed", commit="fed")), "landed as fed"),
    (NodeFacts("failed", reason="exit code 3\ntail"), "exit code 3"),
    (NodeFacts("failed"), "no reason was recorded"),
    (NodeFacts("active", held="the API is down"), "parked by you: the API is down"),
    (NodeFacts("pending", held=""), "parked by you"),
    (NodeFacts("active", parked="its agent was given up: 6 deaths"), "parked: its agent was given up: 6 deaths"),
]


@pytest.mark.parametrize(("facts", "words"), WORDS)
def test_each_state_of_a_node_is_described(facts: NodeFacts, words: str) -> None:
    assert describe_activity(facts) == words


def test_every_status_of_a_merge_entry_is_described_and_has_a_state_of_one_word() -> None:
    for status in TRANSITIONS:
        assert describe_activity(replace(LANDING, entry=replace(ENTRY, status=status, reason="why")))
        word = state_word("landing", WORKING, None, asks=False, landing=replace(ENTRY, status=status).landing)
        assert word in ("queued", "testing", "landed", "undone", "rejected", "withdrawn")
        approval = state_word("landing", WORKING, None, asks=False, landing=replace(
            ENTRY, status=status, approval=True).landing)
        assert approval == ("waiting for approval" if status == "held" else word) and approval in SYMBOLS


def test_limits_nest_and_count_their_use_and_a_death_for_lack_of_memory_counts_in_part() -> None:
    launch = Launch("r1", "crew", "/repo", "main", "", "", max_agents=3, max_respawn=7, max_rework=1)
    deaths = {"orchestrator-a@r1": [Death(1, 10.0, "boot"), Death(2, 990.0, "boot"), Death(3, 995.0, "before")],
              "guardian-crew@r1": [Death(1, 999.0, "boot")]}
    used = Used(deaths, {"a": 2, "b": 1}, 2, {"a": 60.0}, ["b"], 90.0, 1000.0, "boot")
    rows = limits(launch, Timing(restart_window=600.0), used)
    by_level = {row.level: row for row in rows}
    assert [row.level for row in rows[:4]] == ["life", "attempt", "node", "run"]
    assert (by_level["life"].limit, by_level["life"].used) == (5, {"orchestrator-a@r1": 1, "guardian-crew@r1": 1})
    assert "10 min" in by_level["life"].text
    assert (by_level["attempt"].limit, by_level["attempt"].used) == (7, {"orchestrator-a@r1": 3})
    assert (by_level["node"].limit, by_level["node"].used) == (1, {"a": 1})
    assert "b" in by_level["node"].text
    assert (by_level["run"].limit, by_level["run"].used) == (3, {"r1": 2})
    times = {row.text: row.limit for row in rows if row.level == "time-out"}
    assert (times["agent of a"], times["gate"], times["acceptance command"]) == (60.0, 90.0, 1800.0)
    assert len(times) == len(TIMEOUTS) + 1
    launch = Launch("r1", "crew", "/repo", "main", "", "", max_respawn=7)
    deaths = {"runner-a@r1": [Death(number, 990.0 + number, "boot", kind="memory") for number in (1, 2)],
              "runner-b@r1": [Death(number, 990.0 + number, "boot", kind="memory") for number in range(1, 6)]}
    rows = limits(launch, Timing(restart_window=600.0), Used(deaths, now=1000.0, boot_id="boot"))
    assert [row.used for row in rows[:2]] == [{"runner-a@r1": 0.4, "runner-b@r1": 1}] * 2


def layer(status: str, *, living: bool) -> ProcessView:
    verdict = "alive" if living else "dead"
    return ProcessView("runner-a@r1", "runner", "a", status, 1, verdict, living, "", None, None, False, None, None, "")


WORKING, DEAD = layer("active", living=True), layer("active", living=False)


@pytest.mark.parametrize(("place", "asks", "runner", "agent", "state"), [
    ("working", False, None, None, "starting"),
    ("working", False, WORKING, None, "starting"),
    ("working", False, WORKING, WORKING, "working"),
    ("working", True, WORKING, WORKING, "asks"),
    ("working", False, WORKING, layer("terminated", living=False), "working"),
    ("working", False, WORKING, layer("crashed", living=False), "died"),
    ("working", False, DEAD, None, "died"),
    ("working", False, layer("terminated", living=False), layer("terminated", living=False), "stopped"),
    ("working", False, WORKING, layer("parked", living=False), "parked"),
    ("landed", False, layer("parked", living=False), None, "landed"),
    ("landing", False, None, None, "queued")])
def test_the_state_of_a_node_is_one_word(place: str, asks: bool, runner: ProcessView | None, agent: ProcessView | None,
                                         state: str) -> None:
    assert state_word(place, runner, agent, asks=asks) == state
    assert state in SYMBOLS


GATED = """digraph g { graph [flow=dag]; start [shape=Mdiamond]; end [shape=Msquare];
a [command="true"]; b [command="true"]; c [command="true"]; d [command="true"];
ask [shape=hexagon, label="Go on?"]; hear [type="wait.signal", signal=deployed]; fork [shape=component];
start -> a -> ask -> fork; fork -> b -> end; fork -> c -> end; start -> hear -> d -> end }"""


def test_a_node_behind_a_gate_waits_for_the_gate_not_for_a_free_agent() -> None:
    plan = plan_run(parse(GATED))
    state = RunState("running", nodes={name: NodeState() for name in "abcd"})
    assert {name: unfinished_before(plan, state, name) for name in "abcd"} == {
        "a": [], "b": ["ask"], "c": ["ask"], "d": ["hear"]}
    state.outcomes |= {"ask": NodeOutcome("success"), "fork": NodeOutcome("success")}
    assert unfinished_before(plan, state, "b") == []


def test_an_outage_is_one_line_for_all_nodes_that_wait_for_it() -> None:
    def node(outage: Outage | None) -> Any:
        return SimpleNamespace(outage=outage)

    out = Outage("server", "503 down", 36_120.0, 36_130.0, 36_190.0, status=503)
    later = replace(out, at=36_191.0, until=36_420.0)
    limit = Outage("quota", "You will regain access", 36_000.0, 36_000.0, 40_000.0)
    [tried] = shared_outages([node(later), node(replace(later, at=36_421.0, tries="b"))])
    assert tried == "API answers 503 since 10:02 UTC: down; b tries now; 2 nodes wait"
    assert shared_outages([node(out), node(None), node(later), node(limit)]) == [
        "API answers 503 since 10:02 UTC: down; next try 10:07:00 UTC; 2 nodes wait",
        "quota used up since 10:00 UTC: You will regain access; next try 11:06:40 UTC; 1 node waits"]
