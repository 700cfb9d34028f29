"""Rebuild of a run's state from a damaged journal and the run's other records."""

from __future__ import annotations

import pytest

from garrison.pipeline.parser import parse
from garrison.pipeline.plan import RunPlan, plan_run
from garrison.records.events import CandidatesRanked, LandingChanged
from garrison.records.journal import Entry
from garrison.records.run import Result
from garrison.records.signals import NodeComplete, RunnerExited
from garrison.run import guardian_policy
from garrison.run.guardian_view import GuardianView
from garrison.run.plan import is_behind
from garrison.run.repair import (
    AttemptEvidence,
    RunEvidence,
    catch_up,
    find_finished_steps,
    find_lost_reports,
    salvage_state,
)
from garrison.run.state import LANDED, RunState, from_snapshot, to_snapshot
from policy_support import AT, POLICY, RUN, RUNNING, TWO, journal, node

LOOP = plan_run(parse('''digraph {
    start [shape=Mdiamond] end [shape=Msquare] ask [shape=hexagon, label="Good?"]
    start -> work -> ask; ask -> end [label="Yes"]; ask -> work [label="No"] }'''))


def report(status: str, kind: str = "", reason: str = "") -> RunnerExited:
    return RunnerExited("n", "b", status, kind, reason)


def caught_up(plan: RunPlan, evidence: RunEvidence, *records: tuple[str, dict[str, object]]) -> RunState:
    entries = [Entry(number, 1, "t", AT, kind, data) for number, (kind, data) in enumerate(records, 1)]
    state = salvage_state(plan, RUN, entries)
    catch_up(plan, state, evidence, AT, 2)
    restored = from_snapshot(to_snapshot(state))
    assert restored.nodes == state.nodes, "it is written as a snapshot"
    return state


def statuses(state: RunState) -> dict[str, tuple[str, int]]:
    return {name: (each.status, each.attempt) for name, each in state.nodes.items()}


def test_without_records_the_run_starts_over() -> None:
    state = caught_up(TWO, RunEvidence())
    assert (state.status, statuses(state)) == ("running", {"a": ("pending", 1), "b": ("pending", 1)})


def test_landed_failed_and_running_attempts_are_restored() -> None:
    evidence = RunEvidence({"a": [AttemptEvidence(1, report=report("failed", "acceptance", "red")),
                                  AttemptEvidence(2, landed="c1")],
                            "b": [AttemptEvidence(1)]}, applied=frozenset({"s1"}),
                           incarnations={"runner-a@r1": 3})
    state = caught_up(TWO, evidence)
    assert statuses(state) == {"a": ("validated", 2), "b": ("active", 1)}
    assert (state.nodes["a"].commit, state.nodes["a"].first) == ("c1", 1)
    assert (state.applied, state.incarnations) == ({"s1"}, {"runner-a@r1": 3})
    assert [place.node for place in state.flow.places.values()] == ["b"]


@pytest.mark.parametrize(("kind", "attempts", "after"), [
    ("acceptance", 1, ("active", 2)), ("acceptance", 3, ("failed", 3)), ("", 1, ("failed", 1))])
def test_a_reported_failure_is_handled_as_by_the_guardian(kind: str, attempts: int, after: tuple[str, int]) -> None:
    failed = [AttemptEvidence(number, report=report("failed", kind, "red")) for number in range(1, attempts + 1)]
    state = caught_up(TWO, RunEvidence({"a": failed}))
    assert statuses(state)["a"] == after
    assert state.nodes["a"].reason == "red"
    state = caught_up(TWO, RunEvidence({"a": [AttemptEvidence(1, report=report("done"))]}))
    assert statuses(state)["a"] == ("validated", 1), "it changed nothing, so that nothing landed"


def test_candidates_that_passed_are_judged_again_and_none_counts_as_landed() -> None:
    graph = plan_run(parse("digraph { flow=dag start [shape=Mdiamond] end [shape=Msquare] "
                           'a [prompt=x, best_of=2, judge_command="wc"] start -> a -> end }'))
    kept = [NodeComplete(f"a__{one}", "a", "kept", f"c{one}", 3, score) for one, score in (("a", 1.0), ("b", 2.0))]
    state = caught_up(graph, RunEvidence({each.node: [AttemptEvidence(1, "a#1:1", complete=each)] for each in kept}))
    assert {name: node.landing for name, node in state.nodes.items()} == {"a": "", "a__a": "kept", "a__b": "kept"}
    [choice] = guardian_policy.decide(graph, state, GuardianView(RUN, 1.0, "b"), 9, POLICY).actions
    assert isinstance(choice.payload, CandidatesRanked) and choice.payload.order == ["a__b", "a__a"]


def test_a_loop_is_replayed_by_its_steps_and_answers() -> None:
    """Each attempt names its step, each answer its gate: the flow takes the same path."""
    attempts = [AttemptEvidence(1, "work#1:1", landed="c1"), AttemptEvidence(2, "work#2:1", landed="c2")]
    state = caught_up(LOOP, RunEvidence({"work": attempts}, {"ask#1": "No"}))
    assert [place.id for place in state.flow.places.values()] == ["ask#2"]
    assert (state.nodes["work"].attempt, state.nodes["work"].commit) == (2, "c2")
    state = caught_up(LOOP, RunEvidence({"work": attempts[:1]}, {"ask#1": "No"}))
    assert [place.id for place in state.flow.places.values()] == ["work#2"]
    assert state.nodes["work"].status == "validated", "from the previous step: the guardian starts the next attempt"


def test_the_outcome_of_an_agent_is_that_of_its_attempt() -> None:
    graph = plan_run(parse("digraph { start [shape=Mdiamond] end [shape=Msquare] start -> a; a -> end [label=ok]; "
                           "a -> b [label=more]; b -> end }"))
    result = Result(RUN, "a", 1, 1, "success", AT, said={"preferred_label": "more"})
    state = caught_up(graph, RunEvidence({"a": [AttemptEvidence(1, landed="c1", result=result)]}))
    assert [place.node for place in state.flow.places.values()] == ["b"]


CHOICE = plan_run(parse("digraph { start [shape=Mdiamond] end [shape=Msquare] start -> a -> b; b -> c [label=ok]; "
                        "b -> d [label=more]; {c d} -> end }"))


@pytest.mark.parametrize(("status", "place", "leads_to"), [
    ("success", "b#1", "d"), ("partial_success", "b#1", "d"), ("fail", "b#1", "c"), ("success", "b#2", "c")])
def test_the_outcome_of_a_damaged_result_comes_from_a_later_record(status: str, place: str, leads_to: str) -> None:
    """The record that a finished is lost, so the one of b applies to nothing; b's report is nowhere else."""
    said = {"status": status, "preferred_label": "more", "context_updates": {"k": 1}}
    records = [Entry(9, 1, "t", AT, "flow", {"event": "finished", "place_id": place, "node": "b", "attempt": 1,
                                             "outcome": said})]
    evidence = RunEvidence({"a": [AttemptEvidence(1, landed="c1")],
                            "b": [AttemptEvidence(1, "b#1:1", "c2", result_problem="result.json is damaged")]},
                           finished=find_finished_steps(records))
    state = salvage_state(CHOICE, RUN, records)
    catch_up(CHOICE, state, evidence, AT, 2)
    [at] = state.flow.places.values()
    assert (at.node, "k" in state.flow.context(at)) == (leads_to, leads_to == "d")
    lost = ["result.json is damaged; b counts as done without its report"]
    assert find_lost_reports(evidence) == (lost if place == "b#2" else [])


def test_records_after_a_missing_one_apply() -> None:
    state = salvage_state(TWO, RUN, [Entry(number, 1, "t", AT, kind, data) for number, (kind, data) in enumerate([
        node("a", "pending"), ("node", {}), ("unheard-of", {}), node("a", "validated", commit="c1"), RUNNING])])
    assert (state.status, state.nodes["a"].status, state.nodes["a"].commit) == ("running", "validated", "c1")


def test_a_node_that_the_flow_has_passed_is_restored_without_its_own_records() -> None:
    """The readable end of the journal says that both have finished; it has only b's own record."""
    finished = [("flow", {"event": "finished", "place_id": f"{name}#1", "node": name, "outcome": {"status": "success"}})
                for name in "ab"]
    state = caught_up(TWO, RunEvidence({"a": [AttemptEvidence(1, "a#1:1", landed="c1")]}), *finished[:1],
                      node("b", "validated", commit="c2"), *finished[1:], ("run", {"status": "done"}))
    assert statuses(state) == {"a": ("validated", 1), "b": ("validated", 1)}
    assert state.nodes["a"].commit == "c1" and not is_behind(state, {"a": 1})


@pytest.mark.parametrize("ended", ["stopped", "failed"])
def test_a_run_that_a_guardian_ended_is_not_restarted(ended: str) -> None:
    assert caught_up(TWO, RunEvidence(ended=ended)).status == ended


@pytest.mark.parametrize(("attempts", "status"), [
    ({"a": [AttemptEvidence(1, landed="c1")], "b": [AttemptEvidence(1, landed="c2")]}, "running"), ({}, "done")])
def test_a_run_that_has_landed_as_a_whole_does_not_land_again(attempts: dict[str, list[AttemptEvidence]],
                                                              status: str) -> None:
    """Its branch may be archived: the guardian ends it, or, if the path to its exit is lost, there is nothing to do."""
    state = caught_up(TWO, RunEvidence(attempts, landed=LandingChanged(LANDED, 2, "tip", "commit")))
    assert (state.status, state.landing.status, state.landing.attempt) == (status, LANDED, 2)
    assert (state.landing.oid, state.landing.commit) == ("tip", "commit")


def test_a_journal_is_behind_if_it_lacks_a_started_attempt() -> None:
    state = journal(RUNNING, node("a", "active"), node("b", "pending"))
    assert not is_behind(state, {"a": 1})
    assert not is_behind(RunState(), {})
    for latest in ({"a": 2}, {"b": 1}, {"c": 1}):
        assert is_behind(state, latest)
    assert is_behind(RunState(), {"a": 1})
