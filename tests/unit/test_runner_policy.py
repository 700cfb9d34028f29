"""Runner policy: actions decided from facts and observations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from garrison.agents.result import parse_report
from garrison.ends import LandingNote
from garrison.node import policy as runner_policy
from garrison.node.policy import RunnerFacts, RunnerView
from garrison.node.runner import Runner
from garrison.processes.actions import Decision, SendSignal
from garrison.records.journal import Entry
from garrison.records.run import Result, Task
from garrison.run.merge_client import MergeStatus
from garrison.run.plan import REWORKABLE
from garrison.supervise.restart import Circuit, Death
from garrison.system.clock import iso
from garrison.values import replace
from policy_support import AT, BOOT, NOW, POLICY, RUN, effect, life, posted, record, shown

TASK = Task(RUN, "a", 1)
DONE = Result(RUN, "a", 1, 1, "success", AT)
LOOKED_AT, ASKED, REFUSED = (RunnerFacts(change="yes", inspected="c0ffee", changes=changes) for changes in (
    (), (LandingNote("gate", "ask", 1, ("run.sh",)), LandingNote("tests", "tell", 1, ("test_a.py",))),
    (LandingNote("secrets", "refuse", 1, (".env",)),)))


def run(facts: RunnerFacts | None = None, phase: str = "executing", job: Task = TASK, **seen: Any) -> Decision:
    view = RunnerView(job, phase, NOW, BOOT, **{"worktree_ready": True, **seen})
    return runner_policy.decide(facts or RunnerFacts(), view, POLICY)


@pytest.mark.parametrize(("phase", "seen", "expected"), [
    ("planning", {"worktree_ready": False}, [("tree", "")]),
    ("planning", {"job": Task(RUN, "a", 1, setup="s")}, [("job", "setup")]),
    ("planning", {}, [("start", ""), ("move", "executing")]),
    ("planning", {"job": Task(RUN, "a", 1, skip_agent=True, acceptance="t")}, [("move", "executing")]),
    ("executing", {"orchestrator": life("orchestrator", "a")}, []),
    ("executing", {"orchestrator": life("orchestrator", "a", state="dead")}, [("replace", "")]),
    ("executing", {"orchestrator": life("orchestrator", "a", "crashed")}, [("record", "")]),
    ("executing", {"orchestrator": life("orchestrator", "a", "terminated", reason="stopped")}, [("record", "")]),
    ("executing", {"result": DONE, "orchestrator": life("orchestrator", "a")}, []),
    ("executing", {"result": DONE, "orchestrator": life("orchestrator", "a", state="dead")}, [("replace", "")]),
    ("executing", {"result": DONE, "orchestrator": life("orchestrator", "a", "terminated", reason="done")},
     [("compare", "")]),
    ("executing", {"result": DONE, "facts": RunnerFacts(change="yes")}, [("inspect", "")]),
    ("executing", {"result": DONE, "facts": RunnerFacts(change="no")}, [("move", "impl_complete")]),
    ("executing", {"result": DONE, "facts": LOOKED_AT}, [("move", "impl_complete")]),
    ("executing", {"result": DONE, "facts": ASKED}, [("move", "impl_complete")]),
    ("executing", {"result": DONE, "facts": REFUSED, "needs_validation": True}, [("fact", "failed")]),
    ("executing", {"result": DONE, "facts": LOOKED_AT, "needs_validation": True}, [("job", "validator")]),
    ("executing", {"result": DONE, "facts": RunnerFacts(change="yes"), "job": Task(RUN, "a", 1, acceptance="t")},
     [("job", "acceptance")]),
    ("executing", {"result": replace(DONE, status="fail", reason="no")}, [("fact", "failed")]),
    ("impl_complete", {}, [("inspect", "")]),
    ("impl_complete", {"facts": LOOKED_AT},
     [("say", "NODE_COMPLETE"), ("enqueue", ""), ("say", "MERGE_READY"), ("move", "validating")]),
    *(("impl_complete", seen, [("say", "NODE_COMPLETE"), ("enqueue", ""), ("say", "MERGE_READY"),
                               ("say", "NEEDS_REVIEW"), ("move", "validating")])
      for seen in ({"job": Task(RUN, "a", 1, approve=True), "facts": LOOKED_AT}, {"facts": ASKED})),
    ("validating", {"facts": REFUSED}, [("fact", "failed")]),
    ("validating", {}, [("enqueue", "")]),
    ("validating", {"merge": MergeStatus(1, "testing")}, []),
    ("validating", {"merge": MergeStatus(1, "landed")}, [("move", "merged")]),
    ("validating", {"merge": MergeStatus(1, "landed"), "merge_reported": False}, []),
    ("validating", {"merge": MergeStatus(1, "conflict", "f")}, [("fact", "failed")]),
    ("validating", {"merge": MergeStatus(1, "testing"), "orphaned_for": 1.0}, []),
    ("validating", {"merge": MergeStatus(1, "testing"), "orphaned_for": 601.0}, [("end", "orphaned")]),
    ("merged", {}, [("tidy", ""), ("say", "RUNNER_EXITED"), ("end", "done")]),
])
def test_a_runner_takes_the_next_step(phase: str, seen: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    job, facts = seen.get("job", TASK), seen.get("facts")
    rest = {name: one for name, one in seen.items() if name not in ("job", "facts")}
    assert shown(run(facts, phase=phase, job=job, **rest)) == expected


def test_a_failure_is_recorded_before_it_has_effects() -> None:
    facts = RunnerFacts(failed="acceptance ended with exit code 1")
    assert [(act.kind, act.why) for act in run(facts).actions] == [("give_up", facts.failed), ("end", "")]
    living = run(facts, orchestrator=life("orchestrator", "a"))
    assert shown(living) == [("replace", "")]
    facts = RunnerFacts(change="yes", acceptance="red")
    assert shown(run(facts, result=DONE, job=Task(RUN, "a", 1, acceptance="t"))) == [("fact", "failed")]


def test_the_failure_is_recorded_before_the_orchestrator_is_parked_for_good() -> None:
    # seed 277: a runner killed between the two left a successor that waited for the user for ever
    facts = RunnerFacts(deaths=[Death(number, NOW - 1, BOOT) for number in range(1, 7)])
    view = life("orchestrator", "a", "crashed", incarnation=6)
    assert shown(run(facts, orchestrator=view, adhoc=True)) == [("fact", "failed"), ("park", "")]
    few = runner_policy.decide(facts, RunnerView(TASK, "executing", NOW, BOOT, worktree_ready=True, orchestrator=view),
                               replace(POLICY, total=5))
    assert shown(few) == [("fact", "failed"), ("park", "")]
    told = replace(facts, failed="its orchestrator failed too often")
    assert shown(run(told, orchestrator=view)) == [("give_up", ""), ("end", "failed")]


SIX = [Death(number, NOW - 1, BOOT) for number in range(1, 7)]
PARKED = Circuit("parked", "6 deaths", NOW - 1, BOOT, 1, incarnation=6)


def test_an_orchestrator_that_dies_too_often_is_reported_then_parked() -> None:
    view = life("orchestrator", "a", "crashed", incarnation=6)
    decision = run(RunnerFacts(deaths=SIX), orchestrator=view)
    assert shown(decision) == [("say", "ORCHESTRATOR_STUCK"), ("park", "")]
    assert effect(decision.actions[0]) == {"node_id": "a", "branch": "garrison/r1/a", "parked": True, "life": 6,
                                           "why": decision.actions[1].why, "probe_at": iso(600.0)}
    assert decision.actions[0].expect(SendSignal).suffix == "parked-6"


def test_a_parked_orchestrator_waits_for_its_probe_which_is_reported_first() -> None:
    view = life("orchestrator", "a", "parked", incarnation=6)
    facts = RunnerFacts(deaths=SIX, circuit=PARKED)
    waits = run(facts, orchestrator=view)
    assert waits.actions == [] and waits.wake_at == NOW + 599
    due = replace(facts, circuit=replace(PARKED, since=NOW - 600))
    assert shown(run(due, orchestrator=view)) == [("say", "ORCHESTRATOR_STUCK"), ("probe", "")]
    assert effect(run(due, orchestrator=view).actions[0])["parked"] is False
    assert shown(run(due, orchestrator=view, orphaned_for=601.0)) == [("end", "orphaned")]
    living = life("orchestrator", "a", incarnation=7)
    probing = Circuit("probing", "6 deaths", NOW - 59, BOOT, 1, incarnation=6, probe=7)
    assert run(replace(facts, circuit=probing), orchestrator=living).wake_at == NOW + 1
    assert shown(run(replace(facts, circuit=replace(probing, since=NOW - 60)), orchestrator=living)) == [("heal", "")]


@pytest.mark.parametrize(("asked", "expected"), [("validator-trouble-2", ["trouble-2"]), ("q1", ["orchestrator"])])
def test_an_answer_for_a_validator_never_reaches_the_orchestrator(asked: str, expected: list[str]) -> None:
    """Regression: a restarted validator did not know the question, and the answer went to the node's agent."""
    told: list[str] = []
    of = SimpleNamespace(jobs=SimpleNamespace(answer=lambda question, _text: told.append(question)),
                         supervisor=SimpleNamespace(forward=lambda key, _signal: told.append(key)),
                         parent=SimpleNamespace(), orchestrator_key="orchestrator")
    said = posted("INPUT_RESPONSE", target={"role": "runner", "name": "a"}, payload={"question_id": asked}).signal
    Runner.forward(of, said, "down")
    assert told == expected


def test_a_node_that_failed_just_before_its_cancellation_gets_no_new_attempt() -> None:
    facts = RunnerFacts()
    facts.apply(Entry(1, 1, "t", AT, "fact", {"name": "failed", "value": "red", "kind": "acceptance", "attempt": 1}), 1)
    said = posted("GUIDANCE", target={"role": "runner", "name": "a"}, payload={"action": "cancel", "text": "enough"})
    (act,) = run(facts, inbox=[said]).actions
    facts.apply(record(act), 1)
    assert (facts.failed, facts.failure_kind) == ("red", runner_policy.CANCELLED)


def test_a_user_can_restart_a_parked_orchestrator_immediately() -> None:
    view = life("orchestrator", "a", "parked", incarnation=6)
    facts = RunnerFacts(deaths=SIX, circuit=PARKED, incarnation=6)
    said = posted("GUIDANCE", target={"role": "runner", "name": "a"}, payload={"action": "unpark"})
    told, act = run(facts, orchestrator=view, inbox=[said]).actions
    assert (told.kind, told.target, effect(told)["parked"]) == ("say", "ORCHESTRATOR_STUCK", False), \
        "a guardian that got the user's signal before that of the parking would keep the agent parked for ever"
    assert effect(told)["life"] == 6
    at_work = run(facts, orchestrator=life("orchestrator", "a", "active", incarnation=7), inbox=[said]).actions[0]
    assert effect(at_work)["life"] == 6, "nothing about the running incarnation is reported yet"
    facts.apply(record(act), 1)
    assert facts.circuit == Circuit(forgiven=6)
    assert shown(run(facts, orchestrator=view)) == [("start", "")]


def test_work_of_a_parked_orchestrator_is_saved_when_its_runner_stops() -> None:
    view = life("orchestrator", "a", "parked", incarnation=6)
    stopping = RunnerView(TASK, "executing", NOW, BOOT, worktree_ready=True, stopping=True, orchestrator=view)
    facts = RunnerFacts(deaths=SIX, circuit=PARKED)
    assert shown(runner_policy.decide(facts, stopping, POLICY)) == [("keep", ""), ("end", "stopped")]


@pytest.mark.parametrize(("told", "expected"), [(3, "start"), (2, "record"), (0, "record")])
def test_only_a_requested_stop_is_no_death(told: int, expected: str) -> None:
    view = life("orchestrator", "a", "terminated", incarnation=3, reason="stopped")
    assert shown(run(RunnerFacts(stop_requested=told), orchestrator=view)) == [(expected, "")]
    once = RunnerFacts(stop_requested=3)
    living = life("orchestrator", "a", incarnation=3)
    stopping = RunnerView(TASK, "executing", NOW, BOOT, worktree_ready=True, stopping=True, orchestrator=living)
    assert shown(runner_policy.decide(once, stopping, POLICY)) == [("term", "")]


@pytest.mark.parametrize(("alone", "expected"), [(None, "start"), (599.0, "start"), (601.0, "end")])
def test_an_orphan_starts_nothing_after_its_grace_period(alone: float | None, expected: str) -> None:
    facts = RunnerFacts(deaths=[Death(1, NOW - 100, BOOT)])
    view = life("orchestrator", "a", "crashed")
    assert [act.kind for act in run(facts, orchestrator=view, orphaned_for=alone).actions] == [expected]


def test_a_kill_order_applies_only_to_the_incarnation_that_it_names() -> None:
    aimed = posted("KILL_ORCHESTRATOR", target={"role": "runner", "name": "a"}, payload={"incarnation": 2})
    now, later = (life("orchestrator", "a", incarnation=number) for number in (2, 3))
    assert [(act.kind, effect(act)) for act in run(inbox=[aimed], orchestrator=now).actions] == [("take", {"kill": 2})]
    assert [act.kind for act in run(inbox=[aimed], orchestrator=later).actions] == ["refuse"]
    facts = RunnerFacts(kill=2)
    assert shown(run(facts, orchestrator=now)) == [("replace", "")]
    assert run(facts, orchestrator=later).actions == []


def test_a_runner_obeys_a_signal_once_and_none_of_another_attempt() -> None:
    landed = posted("MERGE_COMPLETE", target={"role": "runner", "name": "a"})
    assert [act.kind for act in run(inbox=[landed]).actions] == ["take"]
    other = posted("MERGE_COMPLETE", target={"role": "runner", "name": "a"}, attempt=2)
    assert [act.kind for act in run(inbox=[other]).actions] == ["refuse"]
    repeated = run(RunnerFacts(applied={"s1"}), inbox=[landed]).actions
    assert [(act.kind, effect(act)) for act in repeated] == [("take", {})]


@pytest.mark.parametrize(("seen", "expected"), [
    ({"job": "setup"}, ["stop_job"]), ({"orchestrator": life("orchestrator", "a")}, ["fact", "term"]),
    ({"orchestrator": life("orchestrator", "a"), "overdue": True}, ["replace"]),
    ({"orchestrator": life("orchestrator", "a", state="dead")}, ["replace"]),
    ({"orchestrator": life("orchestrator", "a", "crashed")}, ["record"]), ({}, ["end"])])
def test_a_runner_stops_its_job_then_its_orchestrator_then_itself(seen: dict[str, Any], expected: list[str]) -> None:
    view = RunnerView(TASK, "executing", NOW, BOOT, worktree_ready=True, stopping=True, **seen)
    assert [act.kind for act in runner_policy.decide(RunnerFacts(), view, POLICY).actions] == expected


def test_facts_of_another_attempt_are_ignored_except_signals_and_incarnations() -> None:
    facts, full = RunnerFacts(), "orchestrator-a@r1"
    park = Entry(1, 1, "t", AT, "park", {"full": full, "why": "", "incarnation": 6, "monotonic": NOW, "boot_id": BOOT,
                                         "attempt": 1})
    facts.apply(park, 2)
    assert facts.circuit == Circuit()
    facts.apply(park, 1)
    assert facts.circuit.parked
    facts = RunnerFacts()
    for kind, data in (("fact", {"name": "setup", "value": "ok", "attempt": 1}),
                       ("signal", {"id": "s", "type": "KILL_ORCHESTRATOR", "kill": 3}),
                       ("spawn", {"full": full, "incarnation": 5}),
                       ("fact", {"name": "acceptance", "value": "red", "attempt": 2}),
                       ("death", {"full": full, "incarnation": 5, "monotonic": 1.0, "boot_id": BOOT, "attempt": 1})):
        facts.apply(Entry(1, 1, "t", AT, kind, data), 2)
    assert facts == RunnerFacts(applied={"s"}, kill=3, incarnation=5, acceptance="red")


def again(phase: str, facts: RunnerFacts | None = None, **seen: Any) -> list[tuple[str, str]]:
    return shown(run(facts, phase, replace(TASK, attempt=2), **seen))


def test_a_rework_returns_to_executing_first() -> None:
    assert again("validating", merge=MergeStatus(1, "conflict", "f")) == [("move", "executing")]
    assert again("impl_complete") == [("move", "executing")]
    assert again("executing", worktree_ready=False) == [("fact", "begun")]
    begun = RunnerFacts(has_begun=True)
    assert again("executing", begun, worktree_ready=False) == [("tree", "")]


    old = life("orchestrator", "a", "terminated", reason="done")
    assert again("executing", begun, worktree_ready=True, orchestrator=old) == [("start", "")], "no death is counted"


def test_a_failure_has_its_kind() -> None:
    facts = RunnerFacts(change="yes", acceptance="acceptance ended with exit code 1")
    result = Result(RUN, "a", 1, 1, "success", AT)
    acts = run(facts, "executing", replace(TASK, acceptance="true"), worktree_ready=True, result=result).actions
    assert [(act.target, effect(act)["kind"]) for act in acts] == [("failed", "acceptance")]
    for status, kind in (("conflict", "conflict"), ("rejected", "gate"), ("cancelled", "")):
        acts = run(None, "validating", merge=MergeStatus(1, status, "why")).actions
        assert [(act.target, effect(act)["kind"]) for act in acts] == [("failed", kind)]


UNCHANGED = RunnerFacts(change="no")


def test_a_success_that_changed_nothing_fails_and_may_be_reworked() -> None:
    strict = replace(TASK, allow_empty=False, acceptance="t")
    result = replace(DONE, tail="reading files\nInvalid API key · Please run /login\n\n")
    acts = run(UNCHANGED, "executing", strict, result=result).actions
    assert [(act.target, effect(act)["kind"], effect(act)["value"]) for act in acts] == [
        ("failed", "no_change", "it ended as a success, but changed nothing (if that is right: --allow-empty, or "
         "allow_empty=true); its output ends: Invalid API key · Please run /login")]
    assert "no_change" in REWORKABLE


def test_nothing_to_do_is_accepted_only_with_evidence() -> None:
    strict = replace(TASK, allow_empty=False, acceptance="t")
    said = parse_report({"status": "nothing_to_do", "notes": "calc.py:3 has it"})
    assert shown(run(UNCHANGED, "executing", strict, result=replace(DONE, said=said))) == [("job", "acceptance")]
    unproven = replace(DONE, said=parse_report({"status": "nothing_to_do"}))
    assert shown(run(UNCHANGED, "executing", strict, result=unproven)) == [("fact", "failed")]


def test_an_allowed_empty_attempt_is_accepted_without_being_enqueued() -> None:
    allowed = replace(TASK, allow_empty=True, acceptance="t")
    assert shown(run(UNCHANGED, "executing", allowed, result=DONE)) == [("job", "acceptance")]
    decision = run(UNCHANGED, "impl_complete", allowed)
    assert shown(decision) == [("say", "NODE_COMPLETE"), ("move", "validating")]
    assert decision.actions[0].expect(SendSignal).payload.to_data()["landing"] == "no change"
    assert shown(run(UNCHANGED, "validating", allowed)) == [("move", "merged")]
    assert shown(run(UNCHANGED, "validating", allowed, adhoc=True)) == [("move", "merged")]


def test_the_start_of_a_new_attempt_records_the_graceful_end_of_the_last_agent() -> None:
    """Regression: after a cancellation nothing else does, and `garrison verify` took both for alive."""
    second, told = RunnerFacts(has_begun=True), {}
    for state in ("terminated", "crashed"):
        last = life("orchestrator", "a", state, reason="stopped")
        told[state] = run(second, job=Task(RUN, "a", 2), orchestrator=last).actions[0].why
    assert told == {"terminated": "attempt 2; it had ended gracefully (stopped)", "crashed": "attempt 2"}
