"""The life of a node's status, and the frontier of a plan."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.errors import ForbiddenTransition
from garrison.pipeline.launch import RunPlan, plan_run
from garrison.pipeline.parser import parse
from garrison.pipeline.routing import NODE_STATUS, blocked_by, finished, first_status, frontier, step

ALLOWED = {("pending", "active"), ("active", "impl_complete"), ("active", "failed"), ("impl_complete", "validated"),
           ("impl_complete", "failed"), ("impl_complete", "active"), ("failed", "active")}


def plan_of(edges: str, nodes: str = "") -> RunPlan:
    return plan_run(parse(f"digraph {{ flow=dag start [shape=Mdiamond] end [shape=Msquare] {nodes} {edges} }}"))


DIAMOND = plan_of("start -> a -> {b c} -> d -> end")


@pytest.mark.parametrize(("old", "new"), list(itertools.product(NODE_STATUS, NODE_STATUS)))
def test_the_table_allows_exactly_this(old: str, new: str) -> None:
    if (old, new) in ALLOWED:
        assert step(old, new) == new
    else:
        with pytest.raises(ForbiddenTransition, match=f"node x cannot go from {old} to {new}"):
            step(old, new, "node x")


def test_an_unknown_status_goes_nowhere() -> None:
    with pytest.raises(ForbiddenTransition):
        step("lost", "active")


def test_a_task_starts_when_all_before_it_are_validated() -> None:
    assert frontier(DIAMOND, {}) == ["a"]
    assert frontier(DIAMOND, {"a": "active"}) == []
    assert frontier(DIAMOND, {"a": "impl_complete"}) == []
    assert frontier(DIAMOND, {"a": "validated"}) == ["b", "c"]
    assert frontier(DIAMOND, {"a": "validated", "b": "validated", "c": "active"}) == []
    assert frontier(DIAMOND, {"a": "validated", "b": "validated", "c": "validated"}) == ["d"]


def test_the_end_of_a_run() -> None:
    done = dict.fromkeys("abcd", "validated")
    assert finished(DIAMOND, done) == "done"
    assert finished(DIAMOND, {}) is None
    assert finished(DIAMOND, {**done, "d": "impl_complete"}) is None
    assert finished(DIAMOND, {**done, "d": "failed"}) == "failed"
    assert finished(DIAMOND, {"a": "failed"}) == "failed"
    assert finished(DIAMOND, {"a": "validated", "b": "failed", "c": "active"}) is None
    assert finished(DIAMOND, {"a": "validated", "b": "failed"}) is None, "c can still start"
    assert finished(DIAMOND, {"a": "validated", "b": "failed", "c": "validated"}) == "failed"
    assert finished(plan_of("start -> end"), {}) == "done"


def test_a_task_beside_the_way_to_the_exit_must_land_too() -> None:
    plan = plan_of("start -> a -> end; a -> side")
    assert finished(plan, {"a": "validated"}) is None
    assert finished(plan, {"a": "validated", "side": "failed"}) == "failed"


def test_whom_a_failure_holds_up() -> None:
    assert blocked_by(DIAMOND, {"a": "failed"}) == {"b": ("a",), "c": ("a",), "d": ("a",)}
    assert blocked_by(DIAMOND, {"a": "validated", "c": "failed", "b": "failed"}) == {"d": ("b", "c")}
    assert blocked_by(DIAMOND, {"a": "active"}) == {}


def test_what_was_begun_starts_first() -> None:
    nodes = "a [status=pending] b [status=impl_complete] c [status=active] d [status=validated] e [status=failed]"
    plan = plan_of("start -> {a b c d e} -> end", nodes)
    status = first_status(plan)
    assert status == {"a": "pending", "b": "pending", "c": "pending", "d": "validated", "e": "failed"}
    assert frontier(plan, status) == ["c", "b", "a"]


@settings(database=None, deadline=None, max_examples=60)
@given(st.data())
def test_every_run_of_every_dag_ends(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 7))
    pairs = [f"t{i} -> t{j};" for j in range(count) for i in range(j) if data.draw(st.booleans())]
    plan = plan_of("start -> {" + " ".join(f"t{i}" for i in range(count)) + "} -> end; " + " ".join(pairs))
    status = first_status(plan)
    for _ in range(3 * count + 1):
        if finished(plan, status):
            break
        for task in frontier(plan, status):
            status[task] = step(status[task], "active")
        running = [task for task in plan.tasks if status[task] in ("active", "impl_complete")]
        task = data.draw(st.sampled_from(running))
        choices = sorted(NODE_STATUS[status[task]] - {"active"})
        status[task] = step(status[task], data.draw(st.sampled_from(choices)))
    end = finished(plan, status)
    failed = {task for task in plan.tasks if status[task] == "failed"}
    assert end == ("failed" if failed else "done")
    assert set(blocked_by(plan, status)) == {task for task in plan.tasks if status[task] == "pending"}
    assert all(set(causes) <= failed for causes in blocked_by(plan, status).values())
