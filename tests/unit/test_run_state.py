"""State of a run, replayed from journal records and from snapshots."""

from __future__ import annotations

import itertools

import pytest

from garrison.errors import ForbiddenTransition
from garrison.pipeline.node_status import TRANSITIONS, check_transition
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import RunPlan, blocked_by, first_status, plan_run
from garrison.records.journal import Entry
from garrison.run.state import from_snapshot, replay_run, to_snapshot
from policy_support import AT, RUNNING, death, journal, node, signal


def test_a_repeated_death_counts_once_and_a_signal_includes_its_effect() -> None:
    change = {"node": "a", "status": "impl_complete", "attempt": 1}
    state = journal(node("a", "pending"), node("a", "active"), death("runner-a@r1", 1), death("runner-a@r1", 1),
                    death("runner-a@r1", 2), signal("s1", effect=change))
    assert [one.incarnation for one in state.deaths["runner-a@r1"]] == [1, 2]
    assert state.nodes["a"].status == "impl_complete" and state.applied == {"s1"}


def test_a_snapshot_is_complete_and_not_changed_by_later_records() -> None:
    state = journal(node("a", "pending"), node("a", "active"), death("runner-a@r1", 1), RUNNING,
                    signal("s0", resume={"x": 2}, run="running"),
                    ("spawn", {"full": "runner-a@r1", "incarnation": 4}), signal("s1"))
    assert from_snapshot(to_snapshot(state)) == state
    assert replay_run([Entry(1, 1, "t", AT, "snapshot", to_snapshot(state))]) == state
    with pytest.raises(ForbiddenTransition):
        journal(node("a", "pending"), node("a", "validated"))
    told = to_snapshot(journal(RUNNING, signal("1", heard={"name": "x", "value": 1})))
    journal(("snapshot", told), signal("2", heard={"name": "x", "value": 2}))
    assert told["heard"] == {"x": [1]}


# ---- Transitions of a task's status, and the tasks that failures block


ALLOWED = {("pending", "active"), ("active", "impl_complete"), ("active", "failed"), ("impl_complete", "validated"),
           ("impl_complete", "failed"), ("impl_complete", "active"), ("failed", "active"),
           ("pending", "skipped"), ("pending", "failed"), ("validated", "pending"), ("failed", "pending"),
           ("skipped", "pending")}


def plan_of(edges: str, nodes: str = "") -> RunPlan:
    return plan_run(parse(f"digraph {{ flow=dag start [shape=Mdiamond] end [shape=Msquare] {nodes} {edges} }}"))


def test_only_the_listed_transitions_are_allowed() -> None:
    for old, new in itertools.product(TRANSITIONS, TRANSITIONS):
        if (old, new) in ALLOWED:
            assert check_transition(old, new) == new
        else:
            with pytest.raises(ForbiddenTransition, match=f"node x cannot go from {old} to {new}"):
                check_transition(old, new, "node x")
    with pytest.raises(ForbiddenTransition):
        check_transition("lost", "active")


def test_first_statuses_and_tasks_blocked_by_a_failure() -> None:
    nodes = "a [status=pending] b [status=impl_complete] c [status=active] d [status=validated] e [status=failed]"
    plan = plan_of("start -> {a b c d e} -> end", nodes)
    status = first_status(plan)
    assert status == {"a": "pending", "b": "pending", "c": "pending", "d": "validated", "e": "failed"}
    diamond = plan_of("start -> a -> {b c} -> d -> end")
    assert blocked_by(diamond, {"a": "failed"}) == {"b": ("a",), "c": ("a",), "d": ("a",)}
    assert blocked_by(diamond, {"a": "validated", "c": "failed", "b": "failed"}) == {"d": ("b", "c")}
    assert blocked_by(diamond, {"a": "active"}) == {}
    plan = plan_of("start -> a; a -> b; a -> c [condition=\"outcome=fail\"]; {b c} -> end; d [on_error=continue]; "
                   "start -> d -> e -> end")
    assert blocked_by(plan, {"a": "failed", "d": "failed"}) == {"b": ("a",)}, "c is for a's failure"
    walk = plan_run(parse("digraph { start [shape=Mdiamond] end [shape=Msquare] start -> a -> b -> end b -> a }"))
    assert blocked_by(walk, {"a": "failed"}) == {}
