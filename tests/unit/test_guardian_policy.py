"""Guardian policy: histories and observations go in, actions come out."""

from __future__ import annotations

from typing import Any

import pytest

from garrison.pipeline.plan import RunPlan
from garrison.processes.actions import ApplySignal, Decision
from garrison.records.events import NodeChanged, StuckAgent
from garrison.records.journal import Entry
from garrison.records.signals import PostedSignal
from garrison.run import flow_policy, guardian_policy
from garrison.run.flow import RunFlow
from garrison.run.guardian_view import GuardianView
from garrison.run.merge_client import MergeStatus
from garrison.run.state import RunState, describe_landed, from_snapshot, replay_run, to_snapshot
from garrison.supervise.decisions import ChildState, replay
from garrison.supervise.restart import Circuit
from garrison.supervise.verdict import Observation, Verdict
from garrison.values import replace
from policy_support import (
    AT,
    BOOT,
    NOW,
    POLICY,
    RUN,
    RUNNING,
    TWO,
    WIDE,
    death,
    effect,
    journal,
    life,
    node,
    parked,
    plan,
    posted,
    record,
    shown,
    signal,
)

AT_WORK = (node("a", "pending"), node("a", "active"), node("b", "pending"), RUNNING)
IN_QUEUE = (*AT_WORK, node("a", "impl_complete"))


def keep_up(state: RunState, pipeline: RunPlan, **seen: Any) -> None:
    """Tell the flow how the nodes of a history ended."""
    if state.flow is None:
        state.flow = RunFlow(pipeline.program, RUN)
    view = GuardianView(RUN, NOW, BOOT, **seen)
    while (acts := flow_policy.reconcile(pipeline, state, view)) and acts[0].kind == "flow":
        state.apply(record(acts[0]))


def guard(state: RunState, pipeline: RunPlan | None = None, max_agents: int = 2, max_rework: int = 0,
          **seen: Any) -> Decision:
    pipeline = pipeline or (WIDE if "c" in state.nodes else TWO)
    keep_up(state, pipeline, **seen)
    return guardian_policy.decide(pipeline, state, GuardianView(RUN, NOW, BOOT, **seen), max_agents, POLICY,
                                  max_rework)


def test_nodes_and_attempts_are_journaled_before_they_run() -> None:
    assert shown(guard(journal())) == [("node", "a"), ("node", "b"), ("run", "running")]
    assert shown(guard(journal(node("a", "pending")))) == [("node", "b"), ("run", "running")]
    state = journal(node("a", "pending"), node("b", "pending"), RUNNING)
    assert shown(guard(state)) == [("node", "a")]
    state.apply(Entry(9, 1, "t", AT, *node("a", "active")))
    assert shown(guard(state)) == [("start", "a")]
    assert guard(state, runners={"a": life("runner", "a")}).actions == []


def test_no_node_fails_without_a_reason() -> None:
    first = guard(journal(), pipeline=plan({"a": (), "b": ()}, {"a": "failed"})).actions
    assert effect(first[0]) == {"node": "a", "status": "failed", "attempt": 1,
                                "reason": "its graph marks it as failed before this run"}
    state = journal(*AT_WORK)
    gave_up = posted("RUNNER_EXITED", payload={"status": "failed", "reason": " "})
    [act] = guard(state, runners={"a": life("runner", "a")}, inbox=[gave_up]).actions
    assert effect(act)["effect"]["reason"].startswith("its runner failed and reported no reason")


@pytest.mark.parametrize(("active", "limit", "started"), [
    ((), 2, ["a", "b"]), (("a",), 2, ["b"]), (("a", "b"), 2, []), (("a",), 1, []), ((), 9, ["a", "b", "c"])])
def test_no_more_nodes_start_than_agents_are_free(active: tuple[str, ...], limit: int, started: list[str]) -> None:
    state = journal(*(node(name, "active" if name in active else "pending") for name in "abc"), RUNNING)
    runners = {name: life("runner", name) for name in active}
    assert [act.target for act in guard(state, WIDE, limit, runners=runners).actions] == started


def test_a_node_without_a_place_neither_starts_nor_continues_and_one_that_waits_for_its_merge_needs_none() -> None:
    state = journal(node("a", "active"), node("b", "pending"), node("c", "pending"), RUNNING)
    assert shown(guard(state, WIDE, 3, placed={"b"})) == [("node", "b")]
    assert shown(guard(state, WIDE, 3, placed={"a"})) == [("start", "a")]
    assert shown(guard(state, WIDE, 3, placed=set())) == []
    state = journal(*IN_QUEUE, node("c", "pending"))
    seen = {"runners": {"a": life("runner", "a")}, "processor": life("processor", "p")}
    assert shown(guard(state, WIDE, 1, **seen)) == [("node", "b")]


@pytest.mark.parametrize(("view", "deaths", "expected"), [
    (life("runner", "a", "starting", "starting"), 0, []),
    (life("runner", "a", state="dead"), 0, ["replace"]),
    (life("runner", "a", "starting", "lapsed"), 0, ["replace"]),
    (life("runner", "a", "crashed"), 0, ["record"]),
    (life("runner", "a", "crashed"), 1, ["start"]),
    (life("runner", "a", "terminated", reason="orphaned"), 0, ["start"]),
    (life("runner", "a", "parked"), 0, ["park"]),  # its supervisor died before it journaled that
    (life("runner", "a", "terminated", reason="stopped"), 0, ["stop_run"]),
    (life("runner", "a", "terminated", reason="marked by hand"), 0, ["start"]),
    (life("runner", "a", "terminated", reason="failed"), 0, ["record"]),  # its report was lost
    (life("runner", "a", "terminated", reason="failed"), 1, ["start"]),
    (life("runner", "a", "terminated", reason="failed", incarnation=6), 6, ["park"]),
])
def test_decisions_about_a_runner(view: ChildState, deaths: int, expected: list[str]) -> None:
    known = [death("runner-a@r1", number + 1) for number in range(deaths)]
    state = journal(*AT_WORK, *known)
    assert [act.kind for act in guard(state, runners={"a": view}).actions] == expected


def test_stopped_runners_stop_the_run_with_a_hint_and_start_again_once_unparked() -> None:
    state = journal(node("a", "pending"), node("a", "active"), node("b", "pending"), node("b", "active"), RUNNING)
    gone = {name: life("runner", name, "terminated", reason="stopped") for name in "ab"}
    acts = guard(state, plan({"a": (), "b": ()}), runners=gone).actions
    assert [(act.kind, act.target) for act in acts] == [("stop_run", "")]
    assert "the runner of a, b" in acts[0].why and f"garrison resume {RUN}" in acts[0].why
    state = journal(*AT_WORK)
    runners = {"a": life("runner", "a", "terminated", reason="stopped", incarnation=3)}
    told = guard(state, runners=runners, inbox=[posted("GUIDANCE", payload={"action": "resume"})])
    assert [effect(act) for act in told.actions] == [{"resume": {"runner-a@r1": 3}}]
    state.apply(record(told.actions[0]))
    again = guard(state, runners=runners)
    assert shown(again) == [("start", "a")]
    assert again.actions[0].why == "it had ended gracefully (stopped); the run continues"
    later = {"a": life("runner", "a", "terminated", reason="stopped", incarnation=4)}
    assert shown(guard(state, runners=later)) == [("stop_run", "")]


def six_deaths(status: str, lives: int = 6) -> tuple[RunState, dict[str, ChildState]]:
    known = [death("runner-a@r1", number + 1) for number in range(lives)]
    steps = {"active": ["active"], "validated": ["active", "impl_complete", "validated"]}[status]
    state = journal(node("a", "pending"), *(node("a", step) for step in steps), node("b", "pending"), RUNNING, *known)
    return state, {"a": life("runner", "a", "crashed", incarnation=lives)}


def test_a_runner_whose_total_is_used_up_fails_its_node() -> None:
    state, runners = six_deaths("active", 11)
    policy = replace(POLICY, total=10)
    acts = guardian_policy.decide(TWO, state, GuardianView(RUN, NOW, BOOT, runners=runners), 2, policy).actions
    assert [(act.kind, act.target) for act in acts] == [("node", "a"), ("park", "a")]
    assert effect(acts[0])["status"] == "failed" and "failed too often: 11 deaths" in effect(acts[0])["reason"]


def test_a_runner_whose_window_is_used_up_is_parked_and_its_node_waits_or_stays_landed() -> None:
    for status in ("active", "validated"):  # found by seed 105: the journal got `validated → failed`
        state, runners = six_deaths(status)
        assert shown(guard(state, runners=runners)) == [("park", "a")]


@pytest.mark.parametrize(("reason", "lifted"), [("stopped", 0), ("stopped", 1), ("orphaned", 0), ("by hand", 0)])
def test_the_runner_of_a_landed_node_that_was_stopped_comes_back_to_clean_up(reason: str, lifted: int) -> None:
    # Found by a storm: SIGTERM between landing and clean-up left branch and worktree for ever.
    state, _ = six_deaths("validated", 1)
    state.lifted["runner-a@r1"] = lifted
    gone = {"a": life("runner", "a", "terminated", incarnation=2, reason=reason)}
    assert shown(guard(state, runners=gone)) == [("start", "a")]
    assert guard(state, runners=gone).actions[0].why.startswith(f"it had ended gracefully ({reason})"), "verify asks"
    done = {"a": life("runner", "a", "terminated", incarnation=3, reason="done")}
    assert shown(guard(state, runners=done)) == [("node", "b")]


def test_the_parked_runner_of_a_landed_node_is_probed_at_once_to_clean_up_and_only_once() -> None:
    state, _ = six_deaths("validated")
    gone = {"a": life("runner", "a", "parked", incarnation=6, reason="six deaths")}
    state.apply(Entry(20, 1, "t", AT, *parked("runner-a@r1", 6)))
    acts = guard(state, runners=gone).actions
    assert [(act.kind, act.target) for act in acts] == [("probe", "a")]
    assert acts[0].basis is not None and replay(acts[0].basis, "probe").same
    cleaned = {"a": life("runner", "a", "terminated", incarnation=7, reason="done")}
    # Found by seed 127826: it was started again each time it had cleaned up, until the run was over.
    assert shown(guard(state, runners=cleaned)) == [("node", "b")]
    state.apply(Entry(21, 1, "t", AT, *parked("runner-a@r1", 7)))
    assert shown(guard(state, runners=gone)) == [("node", "b")], "one that cannot clean up delays no other"


def test_a_runner_parked_twice_before_the_landing_is_probed_once_to_clean_up() -> None:
    # Found by seed 489 of the simulator: the worktree of a landed node was left behind.
    state, _ = six_deaths("active")
    gone = {"a": life("runner", "a", "parked", incarnation=7, reason="too many deaths")}
    records = [parked("runner-a@r1", 6), parked("runner-a@r1", 7), node("a", "impl_complete"), node("a", "validated")]
    for number, each in enumerate(records, 20):
        state.apply(Entry(number, 1, "t", AT, *each))
    assert shown(guard(state, runners=gone)) == [("probe", "a")]
    state = replay_run([Entry(30, 1, "t", AT, "snapshot", to_snapshot(state))])
    assert shown(guard(state, runners=gone)) == [("probe", "a")], "from a compacted journal as well"
    state.apply(Entry(31, 1, "t", AT, *parked("runner-a@r1", 8)))
    assert shown(guard(state, runners=gone)) == [("node", "b")]


def test_a_parked_processor_lets_entries_wait_and_fails_the_run_when_nothing_else_runs() -> None:
    # Found by seed 938: the runner of the failed node waited for the queue, and the run for the runner, for ever.
    state = journal(*IN_QUEUE)
    seen = {"runners": {"a": life("runner", "a")}, "processor": life("processor", "p", "parked", reason="six deaths")}
    assert shown(guard(state, **seen)) == [("park", "processor")]
    state.apply(Entry(9, 1, "t", AT, *parked("processor-p@r1")))
    over = guard(state, **seen)
    assert shown(over) == [("run", "failed")]
    assert "a: parked: the merge processor keeps failing: six deaths" in over.actions[0].why
    assert "fix the cause, then: garrison resume r1" in over.actions[0].why
    other = replay_run([Entry(number, 1, "t", AT, *record) for number, record in enumerate([
        *(node(name, "active") for name in "ab"), node("a", "impl_complete"), RUNNING, parked("processor-p@r1")], 1)])
    waits = guard(other, plan({"a": (), "b": ()}), **{**seen, "runners": {**seen["runners"], "b": life("runner", "b")}})
    assert waits.actions == [] and waits.wake_at == NOW - 1 + 600
    assert shown(guard(other, runners=seen["runners"] | {"b": life("runner", "b", "crashed")},
                       processor=seen["processor"])) == [("record", "b")]
    state = journal(*AT_WORK)
    seen = {"runners": {"a": life("runner", "a", state="dead")}, "processor": life("processor", "p", "parked")}
    assert shown(guard(state, **seen)) == [("replace", "a")]


def test_the_processor_starts_with_the_first_completed_node() -> None:
    state = journal(*AT_WORK)
    runners = {"a": life("runner", "a")}
    assert guard(state, runners=runners).actions == []
    state.apply(Entry(9, 1, "t", AT, *node("a", "impl_complete")))
    assert shown(guard(state, runners=runners)) == [("start", "processor")]
    idle = life("processor", "p", "terminated", reason="orphaned")
    assert shown(guard(state, runners=runners, processor=idle)) == [("start", "processor")]


def test_a_landing_whose_record_a_power_cut_lost_is_recorded_again_by_a_processor() -> None:
    # Found by simulator seed 906244: the guardian had read the record before it was synced; the runner waits for it.
    steps = ("pending", "active", "impl_complete", "validated")
    state = journal(*(node("a", step) for step in steps), node("b", "pending"), RUNNING)
    runners = {"a": life("runner", "a")}
    merges = {"a": MergeStatus(1, "landing")}
    assert shown(guard(state, max_agents=0, runners=runners, merges=merges)) == [("start", "processor")]
    for recorded in (MergeStatus(1, "landed"), MergeStatus(2, "landing")):
        assert guard(state, max_agents=0, runners=runners, merges={"a": recorded}).actions == []


@pytest.mark.parametrize(("status", "merge", "expected"), [
    ("active", MergeStatus(1, "landed", commit="c"), "impl_complete"),
    ("impl_complete", MergeStatus(1, "landed", commit="c"), "validated"),
    ("impl_complete", MergeStatus(1, "conflict", "in f"), None),  # its runner reports it, with what is to be reworked
    ("impl_complete", MergeStatus(1, "rejected", "red"), None),
    ("impl_complete", MergeStatus(2, "landed"), None), ("impl_complete", MergeStatus(1, "testing"), None),
    ("active", MergeStatus(1, "rejected"), None), ("pending", MergeStatus(1, "landed"), None),
])
def test_the_merge_journal_counts_for_this_attempt_only(status: str, merge: MergeStatus, expected: str | None) -> None:
    path = ["pending", "active", "impl_complete"]
    state = journal(*(node("a", one) for one in path[: path.index(status) + 1]), node("b", "pending"), RUNNING)
    seen = {"runners": {"a": life("runner", "a")}, "processor": life("processor", "p"), "merges": {"a": merge}}
    changes = [effect(act)["status"] for act in guard(state, max_agents=0, **seen).actions if act.kind == "node"]
    assert changes == ([expected] if expected else [])


@pytest.mark.parametrize(("status", "kind"), [("conflict", "conflict"), ("rejected", "gate"), ("cancelled", "")])
@pytest.mark.parametrize("max_rework", [0, 1])
def test_an_entry_that_did_not_land_is_reworked_or_fails_without_a_runner_to_report_it(status: str, kind: str,
                                                                                       max_rework: int) -> None:
    state = journal(*IN_QUEUE)
    seen = {"runners": {"a": life("runner", "a", "parked", state="ended")}, "processor": life("processor", "p"),
            "merges": {"a": MergeStatus(1, status, "why")}}
    kept = {"kind": kind} if kind == "gate" else {}
    again = {"node": "a", "status": "active", "attempt": 2, "reason": "why", **kept}
    over = {"node": "a", "status": "failed", "attempt": 1, "reason": "why", **({"kind": kind} if kind else {})}
    assert [effect(act) for act in guard(state, max_agents=0, max_rework=max_rework, **seen).actions] == [
        again if kind and max_rework else over]


def test_a_node_in_the_queue_lands_though_its_runner_is_parked() -> None:
    state = journal(*IN_QUEUE, parked("runner-a@r1"))
    seen = {"runners": {"a": life("runner", "a", "parked", state="ended")}, "processor": life("processor", "p")}
    assert guard(state, max_agents=0, **seen).actions == []


# ---- parked nodes, as the guardian sees them


def stuck(parked: bool = True, attempt: int = 1, life: int = 6) -> PostedSignal:
    return posted("ORCHESTRATOR_STUCK", attempt=attempt,
                  payload={"parked": parked, "life": life, "why": "6 deaths", "probe_at": AT if parked else ""})


def applied(state: RunState, said: PostedSignal, **seen: Any) -> RunState:
    """Return the state after the guardian applied a signal."""
    (act,) = guard(state, inbox=[said], **seen).actions
    return state.apply(record(act))


def guidance(action: str, who: str = "a", id_: str = "g1") -> PostedSignal:
    return posted("GUIDANCE", id_, payload={"action": action, "who": who, "text": "because"})


def test_a_parked_node_leaves_its_slot_to_another_and_takes_it_back_with_its_probe() -> None:
    state = journal(*(node(name, "active" if name == "a" else "pending") for name in "abc"), RUNNING)
    runners = {"a": life("runner", "a")}
    assert guard(state, WIDE, 1, runners=runners).actions == []
    assert applied(state, stuck(attempt=2), runners=runners).stuck == {}
    state.applied.clear()
    applied(state, stuck(), runners=runners)
    assert state.stuck == {"a": StuckAgent("6 deaths", AT, 6)}
    assert shown(guard(state, WIDE, 1, runners=runners)) == [("node", "b")]
    state.applied.clear()
    assert applied(state, stuck(parked=False), runners=runners).stuck == {}
    assert guard(state, WIDE, 1, runners=runners).actions == []


def test_parking_and_unparking_of_an_agent_may_be_reported_in_any_order() -> None:
    # Found by seed 811846: a run failed while its agent worked: its parking was applied after its end.
    state = journal(node("a", "active"), node("b", "pending"), RUNNING)
    for is_parked, life_, expected in ((False, 6, {}), (True, 6, {}), (True, 7, {"a": 7}), (False, 6, {"a": 7}),
                                    (False, 7, {}), (True, 7, {})):
        state.applied.clear()
        applied(state, stuck(parked=is_parked, life=life_), runners={"a": life("runner", "a")})
        assert {name: one.incarnation for name, one in state.stuck.items()} == expected
    state.applied.clear()
    hangs = posted("ORCHESTRATOR_STUCK", payload={"incarnation": 8, "why": "no beat"})
    (action,) = guard(state, inbox=[hangs], runners={"a": life("runner", "a")}).actions
    assert effect(action) == {}


@pytest.mark.parametrize(("of_b", "of_c", "expected"), [
    ("active", "pending", []),  # another node works
    ("validated", "active", []),
    ("failed", "validated", [("run", "failed")]),
    ("validated", "validated", [("run", "failed")])])
def test_a_run_fails_when_nothing_but_parked_nodes_is_left(of_b: str, of_c: str,
                                                           expected: list[tuple[str, str]]) -> None:
    path = {"pending": [], "active": ["active"], "failed": ["active", "failed"],
            "validated": ["active", "impl_complete", "validated"]}
    state = journal(node("a", "active"), *(node(name, one) for name, last in (("b", of_b), ("c", of_c))
                                           for one in ["pending", *path[last]]), RUNNING)
    state.stuck["a"] = StuckAgent("6 deaths", AT)
    runners = {name: life("runner", name) for name, one in state.statuses.items() if one == "active"}
    over = guard(state, WIDE, max_agents=1 if of_c == "pending" else 3, runners=runners)
    assert shown(over) == expected
    if expected:
        assert "a: parked: its agent keeps failing: 6 deaths" in over.actions[0].why


def test_a_resumed_run_unparks_its_nodes_and_one_that_continues_by_itself_does_not() -> None:
    state = journal(node("a", "active"), node("b", "pending"), RUNNING, parked("runner-a@r1", 6),
                    ("run", {"status": "failed"}))
    seen = {"runners": {"a": life("runner", "a", "parked", incarnation=6)}}
    assert not state.over and shown(guard(state, **seen)) == [("end", "")]
    told = guard(state, inbox=[guidance("resume")], **seen)
    assert effect(told.actions[0]) == {"resume": {}, "run": "running", "unparked": ["a"]}
    state.apply(record(told.actions[0]))
    assert state.status == "running" and not state.circuit("runner-a@r1").parked
    assert shown(guard(state, **seen)) == [("start", "a")]
    assert journal(node("a", "active"), node("a", "failed"), RUNNING, ("run", {"status": "failed"})).over
    state = journal(node("a", "active"), node("b", "pending"), RUNNING, parked("runner-a@r1", 6))
    seen = {"runners": {"a": life("runner", "a", "parked", incarnation=6)}}
    assert effect(guard(state, inbox=[guidance("resume")], **seen).actions[0]) == {"resume": {}}


def test_a_guardian_that_dies_right_after_a_request_to_resume_leaves_a_run_that_continues() -> None:
    # Journaled as applied in one record and as running in the next, the request was lost by a death between them: the
    # next guardian found a stopped run and ended, and its launcher started another, for ever.
    state = journal(node("a", "active"), node("b", "pending"), RUNNING, ("run", {"status": "stopped"}))
    runners = {"a": life("runner", "a", "terminated", reason="stopped", incarnation=3)}
    told = guard(state, inbox=[guidance("resume")], runners=runners)
    state.apply(record(told.actions[0]))
    assert (state.status, state.reason) == ("running", "resumed")
    assert shown(guard(state, runners=runners)) == [("start", "a")]
    failed = journal(node("a", "active"), node("a", "failed"), RUNNING, ("run", {"status": "failed"}))
    assert effect(guard(failed, inbox=[guidance("resume")]).actions[0]) == {"resume": {}}


def test_a_node_parked_by_the_user_is_stopped_and_stays_parked_when_the_run_is_resumed() -> None:
    state = journal(node("a", "active"), node("b", "pending"), node("c", "pending"), RUNNING)
    runner = {"a": life("runner", "a", incarnation=2)}
    applied(state, guidance("park"), runners=runner)
    assert state.held == {"a": "because"}
    assert shown(guard(state, WIDE, 1, runners=runner)) == [("term", "a"), ("node", "b")]
    home = {"a": life("runner", "a", "terminated", reason="stopped", incarnation=2)}
    dead = {"a": life("runner", "a", state="dead")}
    assert shown(guard(state, WIDE, 0, runners=dead)) == [("replace", "a")]
    assert shown(guard(state, WIDE, 0, runners=home, strays={"a": life("orchestrator", "a")})) == [("stray", "a")]
    assert guard(state, WIDE, 0, runners=home).actions == []
    assert effect(guard(state, inbox=[guidance("resume", id_="g2")], runners=home).actions[0]) == {"resume": {}}
    applied(state, guidance("unpark", id_="g3"), runners=home)
    assert state.held == {} and shown(guard(state, WIDE, 0, runners=home)) == [("start", "a")]


def test_a_node_parked_before_its_start_does_not_start_and_one_that_is_done_is_not_parked() -> None:
    state = journal(node("a", "pending"), node("b", "active"), node("b", "impl_complete"), node("c", "pending"),
                    RUNNING)
    applied(state, guidance("park"))
    assert shown(guard(state, WIDE, 9, processor=life("processor", "p"), runners={"b": life("runner", "b")})) == [
        ("node", "c")]
    assert applied(state, guidance("park", "b", "g2")).held == {"a": "because"}
    assert applied(state, guidance("park", "unknown", "g3")).held == {"a": "because"}


def test_a_run_waits_for_a_queue_that_the_user_parked() -> None:
    state = journal(*IN_QUEUE)
    seen = {"runners": {"a": life("runner", "a")}, "processor": life("processor", "p")}
    applied(state, guidance("park", "processor"), **seen)
    assert shown(guard(state, **seen)) == [("term", "processor")]
    seen["processor"] = life("processor", "p", "terminated", reason="stopped")
    assert guard(state, **seen).actions == []
    applied(state, guidance("unpark", "processor", "g2"), **seen)
    assert shown(guard(state, **seen)) == [("start", "processor")]


def test_a_parked_runner_is_probed_and_heals() -> None:
    known = [death("runner-a@r1", number + 1) for number in range(6)]
    state = journal(node("a", "active"), node("b", "active"), RUNNING, *known, parked("runner-a@r1", 6, ago=600))
    seen = {"a": life("runner", "a", "parked", incarnation=6), "b": life("runner", "b")}
    assert shown(guard(state, runners=seen)) == [("probe", "a")]
    for ago, expected in ((59.0, []), (60.0, [("heal", "a")])):
        probe = {"full": "runner-a@r1", "incarnation": 7, "probe": True, "monotonic": NOW - ago, "boot_id": BOOT}
        state.apply(Entry(9, 1, "t", AT, "spawn", probe))
        assert shown(guard(state, runners={**seen, "a": life("runner", "a", incarnation=7)})) == expected
    state.apply(Entry(9, 1, "t", AT, "heal", {"full": "runner-a@r1", "incarnation": 7}))
    assert state.circuits["runner-a@r1"] == Circuit(forgiven=6)
    assert from_snapshot(to_snapshot(state)) == state


@pytest.mark.parametrize(("kind", "attempt", "limit", "status", "following"), [
    ("acceptance", 1, 2, "active", 2), ("gate", 2, 2, "active", 3), ("conflict", 1, 2, "active", 2),
    ("gate", 3, 2, "failed", 3), ("acceptance", 1, 0, "failed", 1), ("", 1, 2, "failed", 1),
    ("setup", 1, 2, "failed", 1),
])
def test_failures_that_an_agent_may_fix_are_reworked_within_the_limit(kind: str, attempt: int, limit: int, status: str,
                                                                      following: int) -> None:
    state = journal(node("a", "pending"), node("a", "active", attempt=attempt), node("b", "pending"), RUNNING)
    exited = posted("RUNNER_EXITED", attempt=attempt, payload={"status": "failed", "kind": kind, "reason": "red"})
    view = GuardianView(RUN, NOW, BOOT, [exited], {"a": life("runner", "a")})
    (act,) = guardian_policy.decide(TWO, state, view, 2, POLICY, limit).actions
    what = {"kind": kind} if kind in ("acceptance", "gate") or (kind and status == "failed") else {}
    assert effect(act)["effect"] == {"node": "a", "status": status, "attempt": following, "reason": "red", **what}


def test_a_new_attempt_waits_for_the_runner_of_the_old_one_and_then_has_its_own() -> None:
    state = journal(node("a", "pending"), node("a", "active"), node("a", "active", attempt=2), node("b", "pending"),
                    RUNNING)
    old = life("runner", "a", "terminated", state="ended", reason="failed")
    assert guard(state, runners={"a": life("runner", "a")}).actions == []
    assert shown(guard(state, runners={"a": old})) == [("start", "a")]


@pytest.mark.parametrize(("said", "act", "data"), [
    (posted("NODE_COMPLETE"), "take", {"effect": {"node": "a", "status": "impl_complete", "attempt": 1}}),
    (posted("NODE_COMPLETE", payload={"landing": "no change"}), "take",
     {"effect": {"node": "a", "status": "impl_complete", "attempt": 1, "landing": "no change"}}),
    (posted("NODE_COMPLETE", attempt=2), "refuse", {}),
    (posted("NODE_COMPLETE", run_id="r2"), "refuse", {}),
    (posted("NODE_COMPLETE", id_="known"), "take", {}),
    (posted("RUNNER_EXITED", payload={"status": "failed", "reason": "red"}), "take",
     {"effect": {"node": "a", "status": "failed", "attempt": 1, "reason": "red"}}),
    (posted("RUNNER_EXITED", payload={"status": "done"}), "take", {}),
    (posted("RUNNER_EXITED", source={"role": "runner", "name": "a", "incarnation": 0}), "refuse", {}),
    (posted("GUIDANCE", payload={"action": "stop"}), "take", {"stop": True}),
    (PostedSignal("x.json", None, "not JSON"), "refuse", {}),  # type: ignore[arg-type]
])
def test_effects_of_signals_on_the_run(said: PostedSignal, act: str, data: dict[str, Any]) -> None:
    state = journal(*AT_WORK, signal("known", type="NODE_COMPLETE"))
    acts = guard(state, runners={"a": life("runner", "a")}, inbox=[said]).actions
    assert [(one.kind, effect(one)) for one in acts] == [(act, data)]


def test_a_node_without_a_change_or_with_changes_that_the_target_has_is_done_without_landing() -> None:
    state = journal(*AT_WORK,
                    signal("s", type="NODE_COMPLETE", effect={"node": "a", "status": "impl_complete", "attempt": 1,
                                                              "landing": "no change"}))
    acts = guard(state, runners={"a": life("runner", "a")}).actions
    assert [(act.kind, effect(act)) for act in acts] == [
        ("node", {"node": "a", "status": "validated", "attempt": 1, "landing": "no change"})]
    state.apply_event(acts[0].expect(NodeChanged), AT)
    assert (state.landed, state.unchanged, state.nodes["a"].has_landed) == (0, 1, False)
    assert describe_landed(state, "node", "main", "main", 2) == "0 of 2 landed, 1 no change"
    state = journal(*IN_QUEUE)
    acts = guard(state, merges={"a": MergeStatus(1, "landed", "its changes are already in main")}).actions
    assert [(act.kind, effect(act)) for act in acts] == [
        ("node", {"node": "a", "status": "validated", "attempt": 1, "landing": "no change"})]


def test_one_new_signal_is_applied_a_turn_since_it_may_change_the_meaning_of_the_next() -> None:
    state = journal(*AT_WORK)
    inbox = [posted("NODE_COMPLETE", attempt=2, id_="s0"), posted("NODE_COMPLETE", id_="s1"),
             posted("RUNNER_EXITED", id_="s2")]
    acts = guard(state, runners={"a": life("runner", "a")}, inbox=inbox).actions
    assert [(act.kind, act.expect(ApplySignal).posted.path) for act in acts] == [
        ("refuse", "s0.json"), ("take", "s1.json")]


def test_a_stop_goes_down_in_order() -> None:
    state = journal(*AT_WORK)
    runner, processor = life("runner", "a"), life("processor", "p")
    home = life("runner", "a", "terminated", reason="stopped")
    stray = {"a": life("orchestrator", "a")}
    assert shown(guard(state, stopping=True, runners={"a": runner}, processor=processor)) == [("term", "a")]
    assert shown(guard(state, stopping=True, overdue=True, runners={"a": runner})) == [("replace", "a")]
    assert shown(guard(state, stopping=True, runners={"a": home}, processor=processor)) == [("term", "processor")]
    assert shown(guard(state, stopping=True, runners={"a": home}, strays=stray)) == [("stray", "a")]
    assert shown(guard(state, stopping=True, runners={"a": home})) == [("run", "stopped")]
    dead = life("runner", "a", state="dead")
    assert shown(guard(state, stopping=True, runners={"a": dead})) == [("replace", "a")]


def test_a_run_is_stopped_only_when_none_of_its_processes_lives() -> None:
    state = journal(*AT_WORK)
    leaving = replace(life("runner", "a", "terminated", reason="marked by hand"),
                      observation=Observation("h", BOOT, "p", leaving=1.0))
    waits = guard(state, stopping=True, runners={"a": leaving})
    assert (waits.actions, waits.wake_at is not None) == ([], True)
    lingering = replace(leaving, verdict=Verdict("lingering", "stays"))
    assert shown(guard(state, stopping=True, runners={"a": lingering})) == [("replace", "a")]
    assert shown(guard(state, stopping=True, strays={"runner-x@r1": lingering})) == [("stray", "runner-x@r1")]
    assert shown(guard(state, stopping=True, strays={"runner-x@r1": leaving})) == []

    stopped = journal(*AT_WORK, ("run", {"status": "stopped"}))
    assert shown(guard(stopped, runners={"a": life("runner", "a")})) == [("term", "a")]
    assert shown(guard(stopped, strays={"orchestrator-a@r1": life("orchestrator", "a")})) == [
        ("stray", "orchestrator-a@r1")]
    assert shown(guard(stopped)) == [("end", "")]


def test_after_the_end_nothing_is_restarted_and_a_stopped_run_waits_for_a_request() -> None:
    for status in ("done", "failed"):
        state = journal(node("a", "active"), node("b", "pending"), RUNNING, ("run", {"status": status}))
        assert shown(guard(state, processor=life("processor", "p"))) == [("term", "processor")]
        assert shown(guard(state)) == [("end", "")]
    assert shown(guard(journal(RUNNING, ("run", {"status": "stopped"})))) == [("end", "")]


def test_the_end_of_a_run() -> None:
    landed = ["pending", "active", "impl_complete", "validated"]
    state = journal(*(node("a", one) for one in landed), *(node("b", one) for one in landed), RUNNING)
    leaving = {"a": life("runner", "a", "terminated", reason="done"), "b": life("runner", "b")}
    assert guard(state, runners=leaving).actions == []
    gone = {**leaving, "b": life("runner", "b", "terminated", reason="done")}
    assert shown(guard(state, runners=gone)) == [("run", "done")]
    lost = journal(node("a", "pending"), node("a", "active"), node("a", "failed", reason="red"), node("b", "pending"),
                   RUNNING)
    assert [(act.target, act.why) for act in guard(lost).actions] == [("failed", "a: red")]


def test_the_next_attempt_records_an_otherwise_unrecorded_end_and_a_death_counts_in_its_own_attempt_only() -> None:
    """Found by a soak: `garrison verify` missed the end of a runner whose report repeated that of its predecessor."""
    state = journal(node("a", "active"), node("b", "pending"), RUNNING, node("a", "active", attempt=2))
    runners = {"a": life("runner", "a", "terminated", reason="done")}
    (act,) = guard(state, runners=runners).actions
    assert (act.kind, act.why) == ("start", "attempt 2; it had ended gracefully (done)")
    known = [node("a", "active"), RUNNING, death("runner-a@r1", 1), node("a", "active", attempt=2)]
    state, seen = journal(*known), {"a": life("runner", "a", "crashed")}
    (act,) = guardian_policy.decide(TWO, state, GuardianView(RUN, NOW, BOOT, runners=seen), 2, POLICY).actions
    assert (act.kind, act.why) == ("start", "attempt 2")
    stopping = GuardianView(RUN, NOW, BOOT, runners=seen, stopping=True)
    assert [act.kind for act in guardian_policy.decide(TWO, state, stopping, 2, POLICY).actions] == ["run"]
    again = from_snapshot(to_snapshot(state))
    assert guardian_policy.decide(TWO, again, stopping, 2, POLICY).actions[0].kind == "run"
