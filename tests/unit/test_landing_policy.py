"""The landing of a whole run, decided from its journal and the target's queue; where a refused run returns to."""

from __future__ import annotations

import pytest

from flow_driver import drive, fail
from garrison.errors import ForbiddenTransition
from garrison.merge.entry import MergeEntry
from garrison.merge.state import Pause, QueueState
from garrison.pipeline.flow import Resumed, SentBack, advance, node_to_return_to
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import RunPlan, plan_run
from garrison.processes.actions import Action
from garrison.records.events import GuardianSignal, LandingChanged, NodeChanged, RunChanged, encode
from garrison.records.journal import Entry
from garrison.records.run import Launch
from garrison.records.signals import ResumeRun
from garrison.run import flow_policy, guardian_policy
from garrison.run.guardian_view import GuardianView, LandingView
from garrison.run.merge_client import MergeStatus
from garrison.run.progress import describe_event
from garrison.run.state import (
    NodeState,
    RunLanding,
    RunState,
    describe_landed,
    describe_push,
    from_snapshot,
    replay_run,
    to_snapshot,
)
from garrison.values import replace
from garrison.views.run_model import RunModel
from garrison.views.run_view import landing_view, waits_for
from policy_support import AT, BOOT, NOW, POLICY, RUN

ENDS = "start [shape=Mdiamond] exit [shape=Msquare]"
LINE = plan_run(parse(f"digraph {{ {ENDS} start -> a -> b -> exit }}"))
ASK = plan_run(parse(f"digraph {{ {ENDS} ask [shape=hexagon] start -> ask; ask -> exit [label=Yes] }}"))


def reached_exit(plan: RunPlan = LINE, *after: LandingChanged) -> RunState:
    """Return the state of a run whose nodes have all landed, after these records of its landing."""
    state = replay_run([], plan.program, RUN)
    for name in plan.tasks:
        state.apply_event(NodeChanged(name, "pending"), AT)
    state.apply_event(RunChanged("running"), AT)
    for name in plan.tasks:
        state.apply_event(NodeChanged(name, "active", step=f"{name}#1:1"), AT)
        state.apply_event(NodeChanged(name, "impl_complete"), AT)
        state.apply_event(NodeChanged(name, "validated"), AT)
        store_action(state, flow_policy.reconcile(plan, state, GuardianView(RUN, NOW, BOOT))[0])
    for event in after:
        state.apply_event(event, AT)
    return state


def store_action(state: RunState, action: Action) -> None:
    assert action.payload is not None
    state.apply(Entry(1, 1, "t", AT, action.payload.kind, encode(action.payload)))  # type: ignore[union-attr, arg-type]


def decide(state: RunState, merge: MergeStatus | None = None, *, is_new: bool = True, plan: RunPlan = LINE,
           max_rework: int = 2, auto_approve: bool = False) -> list[Action]:
    view = GuardianView(RUN, NOW, BOOT, landing=LandingView("c0ffee", is_new, merge), auto_approve=auto_approve)
    return guardian_policy.decide(plan, state, view, 2, POLICY, max_rework).actions


def shown(actions: list[Action]) -> list[tuple[str, str]]:
    return [(str(action.kind), action.target) for action in actions if action.target != "processor"]


REQUESTED = LandingChanged("requested", 1, oid="c0ffee")


def test_a_run_requests_its_landing_enqueues_that_commit_and_is_done_once_it_landed() -> None:
    state = reached_exit()
    [requested] = decide(state)
    assert requested.payload == REQUESTED
    store_action(state, requested)
    assert ("enqueue", "integration") not in shown(decide(state, MergeStatus(1, "queued")))
    assert shown(guardian_policy.request_landing(state, RUN, LandingView("moved on"))) == [("enqueue", "integration")]
    [landed] = decide(state, MergeStatus(1, "landed", commit="beef"))
    assert landed.payload == LandingChanged("landed", 1, commit="beef")
    store_action(state, landed)
    assert shown(decide(state, MergeStatus(1, "landed", commit="beef"))) == [("run", "done")]
    words = describe_landed(state, "run", "main", "garrison/r1/integration", 2)
    assert words == "2 of 2 landed, together as beef on main"


def test_a_run_merged_by_hand_has_landed_and_one_without_a_change_lands_nothing() -> None:
    event = LandingChanged("landed", 1)
    words = describe_landed(reached_exit(LINE, event), "run", "main", "garrison/r1/integration", 2)
    assert words == "2 of 2 landed, all of it already on main"
    assert describe_event(event) == "the run: landed, all of it was already there"
    state = reached_exit()
    [change] = decide(state, is_new=False)
    store_action(state, change)
    [end] = decide(state, is_new=False)
    assert (end.target, end.why) == ("done", guardian_policy.NOTHING_TO_LAND)


@pytest.mark.parametrize(("label", "decided"), [
    ("No", "declined"), ("[N] No, thanks", "declined"), ("Reject", "declined"), ("Yes", "requested"),
    ("Now", "requested"), ("No thanks", "declined"), ("No changes needed", "requested")])
def test_a_gate_that_leads_to_the_exit_by_the_answer_no_lands_nothing(label: str, decided: str) -> None:
    plan = plan_run(parse(f'digraph {{ {ENDS} ask [shape=hexagon] start -> a -> ask; ask -> exit [label="{label}"] '
                          f'ask -> a [label="Again"] }}'))
    state = reached_exit(plan)
    store_action(state, decide(state, plan=plan)[0])
    store_action(state, decide(state, plan=plan, auto_approve=True)[0])
    [request] = decide(state, plan=plan)
    assert isinstance(request.payload, LandingChanged) and request.payload.status == decided
    store_action(state, request)
    if decided == "declined":
        [end] = decide(state, plan=plan)
        assert (end.target, end.why.partition(",")[0]) == ("done", "ask was answered with No")


@pytest.mark.parametrize(("merge", "reason"), [
    (MergeStatus(1, "rejected", "the gate failed\nlast line of its log"), "last line of its log"),
    (MergeStatus(1, "conflict", "conflict in f.txt", target="main"),
     "`git merge heads/main` in your worktree shows both")])
def test_a_refused_landing_sends_the_run_back_with_the_reason(merge: MergeStatus, reason: str) -> None:
    state = reached_exit(LINE, REQUESTED)
    [refused] = decide(state, merge)
    store_action(state, refused)
    assert state.flow is not None and not state.flow.over
    [again] = decide(state, merge)
    assert again.kind == "node" and again.target == "b" and reason in str(again.payload.reason)  # type: ignore[union-attr]
    assert (again.payload.status, again.payload.attempt) == ("pending", 2)  # type: ignore[union-attr]


def test_the_landing_is_refused_as_often_as_rework_is_allowed_then_the_run_fails_and_can_be_resumed() -> None:
    state = reached_exit(LINE, REQUESTED)
    [failed] = decide(state, MergeStatus(1, "rejected", "red"), max_rework=0)
    assert failed.payload.status == "failed"  # type: ignore[union-attr]
    store_action(state, failed)
    [end] = decide(state)
    assert end.target == "failed" and "its branch garrison/r1/integration is kept" in end.why
    state.apply_event(RunChanged("failed", end.why), AT)
    assert not state.over
    guidance = GuardianSignal("s", "GUIDANCE")
    state.apply_event(guardian_policy.apply_guidance(state, GuardianView(RUN, NOW, BOOT), ResumeRun(), guidance), AT)
    assert (state.status, state.landing.status, state.landing.attempt) == ("running", "", 1)
    assert decide(state)[0].payload == LandingChanged("requested", 2, oid="c0ffee")


def test_a_run_without_a_node_to_return_to_fails() -> None:
    state = replay_run([], ASK.program, RUN)
    state.apply_event(RunChanged("running"), AT)
    state.flow.apply({"event": "finished", "place_id": "ask#1", "outcome": {"status": "success",  # type: ignore[union-attr]
                                                                            "preferred_label": "Yes"}, "attempt": 1})
    state.apply_event(REQUESTED, AT)
    [failed] = decide(state, MergeStatus(1, "rejected", "red"), plan=ASK)
    assert "no node to return to (retry_target=)" in failed.payload.reason  # type: ignore[union-attr]


def test_a_withdrawn_landing_fails_the_run_and_an_entry_of_an_earlier_request_decides_nothing() -> None:
    [failed] = decide(reached_exit(LINE, REQUESTED), MergeStatus(1, "cancelled", "by me"))
    assert failed.payload.reason.startswith("its landing was withdrawn: by me")  # type: ignore[union-attr]
    state = reached_exit(LINE, REQUESTED, LandingChanged("requested", 2, oid="dead"))
    assert guardian_policy.follow_landing(state, GuardianView(RUN, NOW, BOOT, landing=LandingView(
        "dead", merge=MergeStatus(1, "rejected", "red"))), 2) == []


@pytest.mark.parametrize(("status", "pause", "waits", "word"), [
    ("queued", "", [], "queued"), ("testing", "", [], "testing"),
    ("held", "", ["you to release i-1 in the merge queue"], "queued"),
    ("queued", "base_red", ["the merge queue, which is paused (base_red)"], "queued")])
def test_a_landing_that_only_the_user_can_continue_is_waited_for(status: str, pause: str, waits: list[str],
                                                                 word: str) -> None:
    entry = MergeEntry("i-1", RUN, "integration", 1, "b", "c0ffee", "main", status=status, seq=1)
    target = QueueState(entries={"i-1": entry}, pause=Pause(pause, "red", "abc") if pause else None)
    folders = {"garrison/r1/integration": "own", "main": "target"}
    model = RunModel(RUN, reached_exit(LINE, REQUESTED), {"own": QueueState(), "target": target}, folders)
    assert (model.queue_folder, model.landing_folder) == ("own", "target")
    assert waits_for(model, ()) == waits
    view = landing_view(model, Launch(RUN, "p", "repo", "main", AT, "trees", land="run"))
    assert view is not None and view.status == word
    assert view.progress == "2 of 2 landed on garrison/r1/integration, nothing on main"


def test_a_landing_is_kept_by_a_snapshot() -> None:
    state = reached_exit(LINE, REQUESTED)
    assert from_snapshot(to_snapshot(state)).landing == state.landing == RunLanding("requested", 1, "c0ffee")


MOVED = LandingView("moved on")
"""The branch of the run with a later commit: the requested one is landed."""


@pytest.mark.parametrize(("view", "status", "told"), [
    (LandingView("c0ffee"), "enqueue", ""),
    (MOVED, "enqueue", ""),
    (LandingView("c0ffee", merge=MergeStatus(1, "queued")), "", ""),
    (LandingView("c0ffee", merge=MergeStatus(1, "testing")), "", ""),
    (replace(MOVED, merge=MergeStatus(1, "testing")), "", ""),
    (LandingView("c0ffee", merge=MergeStatus(1, "held")), "", ""),  # it needs approval
    (LandingView("c0ffee", merge=MergeStatus(1, "landing_blocked", "main is checked out and changed")), "", ""),
    (LandingView("c0ffee", merge=MergeStatus(1, "landed", commit="beef")), "landed", ""),
    (LandingView("c0ffee", False, MergeStatus(1, "landed")), "landed", ""),  # merged by hand
    (LandingView("c0ffee", merge=MergeStatus(1, "rejected", "the gate `make test` failed (exit 1)")), "refused",
     "the run did not land: the gate `make test` failed (exit 1)"),
    (LandingView("c0ffee", merge=MergeStatus(1, "rejected", "rejected by ann: too big")), "refused",
     "the run did not land: rejected by ann: too big"),
    (LandingView("c0ffee", merge=MergeStatus(1, "conflict", "conflict in f.txt", target="main")), "refused",
     "its branch garrison/r1/integration conflicts with main: conflict in f.txt"),
    (LandingView("c0ffee", merge=MergeStatus(1, "superseded", "by another")), "failed", "withdrawn: by another"),
    (LandingView("c0ffee", merge=MergeStatus(1, "cancelled", "by ann")), "failed", "withdrawn: by ann"),
])
def test_a_requested_landing_in_each_situation_of_its_entry(view: LandingView, status: str, told: str) -> None:
    """It lands, is refused or fails once, as the queue decided; every other state is waited for."""
    state = reached_exit(LINE, REQUESTED)
    actions = guardian_policy.decide(LINE, state, GuardianView(RUN, NOW, BOOT, landing=view), 2, POLICY, 2).actions
    events = [action.payload for action in actions if isinstance(action.payload, LandingChanged)]
    enqueued = shown(guardian_policy.request_landing(state, RUN, view))
    assert enqueued == ([("enqueue", "integration")] if status == "enqueue" else []), "once, and the same commit"
    assert [event.status for event in events] == ([status] if status not in ("", "enqueue") else [])
    assert all(told in event.reason for event in events)
    assert [action for action in actions if action.kind == "run"] == [], "the run ends by the record, in another turn"


# ---- where a refused run returns to


def test_a_refused_run_returns_to_the_graphs_retry_target_else_to_the_last_agent() -> None:
    line = "start -> a -> t -> exit; t [shape=parallelogram, tool_command=true]"
    done = drive(line)
    assert node_to_return_to(done.program, done.state) == "a"
    done = drive(f"graph [retry_target=a]; b; {line.replace('a -> t', 'a -> b -> t')}")
    assert node_to_return_to(done.program, done.state) == "a"
    done = drive("""p [shape=component] j [shape=tripleoctagon] start -> p -> {a b} -> j -> exit""")
    assert node_to_return_to(done.program, done.state) == "p"


def test_a_refused_run_continues_where_it_is_sent_and_a_dag_with_all_later_nodes() -> None:
    done = drive("start -> a -> b -> exit")
    advance(done.program, done.state, SentBack("a", "red"))
    [place] = done.state.in_flight.values()
    assert (done.state.status, place.node, place.visit, place.reason) == ("running", "a", 2, "red")
    done = drive("graph [flow=dag]; start -> a -> b -> exit; start -> c -> exit")
    advance(done.program, done.state, SentBack("a", "red"))
    assert [place.node for place in done.state.in_flight.values()] == ["a"]
    assert done.run().result == "done"


def test_only_a_run_at_its_exit_is_sent_back_and_none_is_resumed_from_there() -> None:
    failed, done = drive("start -> a -> exit", {"a": fail()}), drive("start -> a -> exit")
    with pytest.raises(ForbiddenTransition):
        advance(failed.program, failed.state, SentBack("a", "red"))
    with pytest.raises(ForbiddenTransition):
        advance(done.program, done.state, Resumed(again=True))


@pytest.mark.parametrize(("land", "remotes", "told"), [
    ("run", ["origin"], "`git push origin main` publishes it"),
    ("run", ["fork", "origin"], "`git push origin main` publishes it"),
    ("run", ["fork"], "`git push fork main` publishes it"),
    ("run", ["fork", "mirror"], ""),  # which one is not ours to guess
    ("run", [], ""),
    ("pr", ["origin"], ""),  # garrison has pushed it itself
])
def test_a_landed_run_names_the_command_to_push(land: str, remotes: list[str], told: str) -> None:
    state = reached_exit(LINE, LandingChanged("landed", 1, commit="beef"))
    assert describe_push(state, land, "main", remotes) == "", "it is not done"
    state.status = "done"
    assert describe_push(state, land, "main", remotes) == told


def test_only_landed_work_is_to_be_pushed_with_the_path_for_other_folders() -> None:
    state = RunState("done", nodes={"a": NodeState("validated")})
    assert describe_push(state, "node", "main", ["origin"], "/a b") == "`git -C '/a b' push origin main` publishes it"
    assert describe_push(state, "none", "main", ["origin"]) == ""
    assert describe_push(RunState("done"), "node", "main", ["origin"]) == "", "nothing landed"
