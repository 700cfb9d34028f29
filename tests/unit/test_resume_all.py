"""`garrison up`: runs that get a launcher, and the report about the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from garrison.launch.resume import UNATTENDED, UNREMARKABLE, ResumeResult, decide_adhoc, decide_resume
from garrison.records.identity import Identity
from garrison.records.run import Launch
from garrison.records.signals import PostedSignal, Signal
from garrison.run.state import NodeState, RunState
from garrison.supervise.decisions import ChildState
from garrison.supervise.verdict import Verdict
from garrison.system.clock import from_iso
from garrison.values import replace

LAUNCHER = Identity(role="launch", name="launch", run_id="r1", agent_id="a", incarnation=1, status="active", pid=7,
                    created_at="2026-01-31T12:00:00.000000Z")
GUARDIAN = replace(LAUNCHER, role="guardian", name="crew")


def state(status: str, reason: str = "") -> RunState:
    found = RunState()
    found.status, found.reason = status, reason
    return found


def view(verdict: str, status: str = "active", why: str = "process 7 is running") -> ChildState:
    return ChildState(replace(LAUNCHER, status=status), Verdict(verdict, why))


@pytest.mark.parametrize(("status", "launched", "guardian", "wanted", "said"), [
    ("running", ChildState(), "active", "", ""),
    ("new", ChildState(), "", "", ""),
    ("running", view("dead"), "crashed", "", ""),
    ("running", view("lapsed", "starting"), "active", "", ""),
    ("running", view("ended", "terminated"), "active", "", ""),
    ("running", view("alive"), "active", "tended", "pid 7"),
    ("running", view("starting", "starting"), "active", "tended", "starting"),
    ("running", view("elsewhere", why="alive on h in another pid namespace"), "active", "elsewhere", "pid namespace"),
    ("stopped", view("elsewhere", why="alive on h in another pid namespace"), "active", "elsewhere", "pid namespace"),
    ("stopped", view("ended", "terminated"), "terminated", "stopped", "resume r1"),
    ("stopped", view("alive"), "terminated", "tended", "alive"),
    ("running", view("ended", "terminated"), "parked", "parked", "fix the cause"),
    ("parked", view("ended", "terminated"), "parked", "parked", "resume r1"),
    ("running", view("ended", "parked"), "active", "parked", "resume r1"),
    ("running", view("ended", "held"), "active", "held", "resume r1"),
    ("done", view("ended", "terminated"), "terminated", "over", "done"),
    ("done", view("elsewhere", why="alive on h in another pid namespace"), "terminated", "over", "done"),
    ("failed", ChildState(), "parked", "over", "failed"),
])
def test_which_runs_get_a_launcher(status: str, launched: ChildState, guardian: str, wanted: str, said: str) -> None:
    word = decide_resume("r1", state(status), launched, replace(GUARDIAN, status=guardian) if guardian else None)
    assert (word.state if isinstance(word, ResumeResult) else "") == wanted
    assert said in (word.line if isinstance(word, ResumeResult) else "")
    assert isinstance(word, ResumeResult) or word == ["--resume"]


@pytest.mark.parametrize(("status", "launched", "guardian"), [
    ("done", view("dead"), "terminated"), ("failed", view("ended", "crashed"), "terminated"),
    ("stopped", view("dead"), "terminated"), ("stopped", view("lapsed", "starting"), "terminated"),
    ("running", view("dead"), "parked"), ("failed", view("hung"), "terminated"),
])
def test_a_launcher_that_died_before_reporting_the_end_is_replaced(status: str, launched: ChildState,
                                                                   guardian: str) -> None:
    assert decide_resume("r1", state(status), launched, replace(GUARDIAN, status=guardian)) == []


def test_a_parked_guardian_is_restarted_after_its_cool_down() -> None:
    probe_at = "2026-01-31T12:10:00.000000Z"
    parked = replace(GUARDIAN, status="parked", metadata={"reason": "6 deaths", "probe_at": probe_at})
    due = from_iso(probe_at)
    early = decide_resume("r1", state("parked"), view("ended", "terminated"), parked, (), due - 1)
    assert isinstance(early, ResumeResult)
    assert early.line == (
        "run r1 is parked: its guardian keeps dying (6 deaths); the first `garrison up` after 12:10:00 UTC tries "
        "again; fix the cause, then `garrison resume r1` continues it at once")
    assert early.state in UNATTENDED
    assert decide_resume("r1", state("parked"), view("ended", "terminated"), parked, (), due) == []


def resume(id_: str = "r1-resume-1", **more: Any) -> PostedSignal:
    return PostedSignal(Path("x"), Signal(id_, {"role": "launch", "name": "launch", "incarnation": 0},
                                    {"role": "guardian", "name": "crew"}, "GUIDANCE", "r1", "now", None, 0,
                                    {"action": "resume", **more}))


@pytest.mark.parametrize(("status", "guardian"), [
    ("stopped", "terminated"), ("running", "parked"), ("running", "active"), ("failed", "terminated")])
def test_a_request_to_resume_survives_its_launcher(status: str, guardian: str) -> None:
    above = replace(GUARDIAN, status=guardian)
    for died in (view("dead"), view("lapsed", "starting"), view("ended", "crashed")):
        assert decide_resume("r1", state(status), died, above, [resume()]) == ["--resume"]
        assert decide_resume("r1", state(status), died, above, [resume(again=True)]) == ["--resume", "--again"]
    if status != "running":
        earlier = [resume("r1-resume-0")]
        assert decide_resume("r1", state(status), view("dead"), above, earlier) == [], "for an earlier launcher"
        obeyed = state(status)
        obeyed.applied.add("r1-resume-1")
        assert decide_resume("r1", obeyed, view("dead"), above, [resume()]) == [], "it was obeyed, the run ended again"
        ended = decide_resume("r1", state(status), view("ended", "terminated"), above, [resume()])
        assert isinstance(ended, ResumeResult), "a launcher that ended gracefully has handled it"


def test_a_run_that_failed_with_parked_nodes_waits_for_the_user() -> None:
    parked = state("failed")
    parked.nodes["a"] = NodeState("active", 1)
    word = decide_resume("r1", parked, ChildState(), None)
    assert isinstance(word, ResumeResult)
    assert (word.state, "resume r1" in word.line, "parked" in word.line) == ("failed", True, True)


def test_a_result_has_its_line() -> None:
    refused = ResumeResult("r1", "refused", "its repository is gone")
    assert refused.line == "run r1 is not resumed: its repository is gone"
    assert ResumeResult("r1", "started").line == "run r1: started"
    assert {"over", "tended"} == UNREMARKABLE


ADHOC = Launch("adhoc-n-1", "adhoc-n", "/repo", "main", "2026-01-31T12:00:00.000000Z", "/trees", adhoc=True,
               prd_ref="P", max_respawn=3)


def child(verdict: str, status: str = "active", reason: str = "", respawns: int = 0) -> ChildState:
    identity = replace(LAUNCHER, role="runner", name="n", run_id="adhoc-n-1", status=status, respawns=respawns,
                       metadata={"reason": reason})
    return ChildState(identity, Verdict(verdict, "process 7 is gone"))


@pytest.mark.parametrize(("runner", "wanted", "said"), [
    (child("dead"), "", ""),
    (child("lapsed", "starting"), "", ""),
    (child("hung"), "", ""),
    (child("ended", "crashed"), "", ""),
    (child("dead", respawns=3), "refused", "respawned 3 times, the limit is 3; `garrison logs n --run adhoc-n-1`"),
    (child("alive"), "tended", "its runner is alive (pid 7)"),
    (child("lingering", "terminated", "done"), "tended", "lingering"),
    (child("elsewhere"), "elsewhere", "its runner is process 7"),
    (child("ended", "terminated", "done"), "over", "done"),
    (child("ended", "terminated", "failed"), "over", "failed"),
    (child("ended", "terminated", "stopped"), "stopped",
     "its runner ended (stopped); `spawn_runner.py --target-dir /repo --run adhoc-n-1 --node n --prd P` continues it"),
    (child("ended", "terminated"), "stopped", "its runner ended (terminated)"),
    (child("ended", "parked"), "parked", "its runner is parked"),
    (ChildState(), "stopped", "no process of it was ever started"),
])
def test_an_ad_hoc_run_gets_a_runner_or_a_report(runner: ChildState, wanted: str, said: str) -> None:
    word = decide_adhoc(ADHOC, runner, ChildState())
    assert (word.state if word else "") == wanted
    assert said in (word.line if word else "")


@pytest.mark.parametrize(("orchestrator", "wanted", "said"), [
    (child("dead"), "refused",
     "`spawn_orchestrator.py --repo-root /repo --run adhoc-n-1 --node n --prd P` continues it"),
    (child("alive"), "tended", "its orchestrator is alive"),
    (child("ended", "terminated", "done"), "over", "done"),
])
def test_an_orchestrator_started_by_hand_is_reported(orchestrator: ChildState, wanted: str, said: str) -> None:
    word = decide_adhoc(ADHOC, ChildState(), orchestrator)
    assert word.state == wanted
    assert said in word.line
    assert decide_adhoc(ADHOC, child("dead"), orchestrator) is None, "its runner handles it"
