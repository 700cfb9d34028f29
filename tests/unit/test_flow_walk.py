"""flow=walk: choice of edges, failures, gates, restarts, and the context."""

from __future__ import annotations

import pytest

from flow_driver import OK, FlowRun, Script, drive, fail
from garrison.errors import ForbiddenTransition, Refused
from garrison.pipeline.flow import Finished
from garrison.pipeline.outcome import FAIL, PARTIAL, SKIPPED, SUCCESS, Outcome

AGAIN = "%s g [goal_gate=true%s] start -> a -> g; g -> exit; g -> exit [condition=fail]; x -> exit; a -> x"
PASSED = "start -> a; a -> b [condition=pass]; a -> c"
FAILED = "goal_gate_unsatisfied"
WALKS: list[tuple[str, str, Script, str, str]] = [
    ("a failure without a reason names its node", "start -> a -> exit", {"a": FAIL}, "a", "a failed"),
    ("a failure takes a conditional before a heavier edge", "d [shape=diamond] start -> a -> b [weight=5]; a -> d; b "
     "-> exit; d -> exit [condition=pass]; d -> fix [condition=fail]; fix -> exit", {"a": fail()}, "a fix", ""),
    ("a conditional on another key passes no failure", 'd [shape=diamond] start -> a -> d; d -> c; {b c} -> exit; d -> '
     'b [condition="context.x=1"]', {"a": fail("x")}, "a", "x"),
    ("nor does one without conditions", "d [shape=diamond] start -> a -> d; d -> {b c} -> exit", {"a": fail("x")}, "a",
     "x"),
    ("a fallback for a retry target that is missing", "b [retry_target=nowhere, fallback_retry_target=a] start -> a -> "
     "b -> exit", {"b": [fail(), OK]}, "a b a b", ""),
    ("the graph's retry target is for gates alone", "retry_target=a; start -> a -> b -> exit", {"b": fail("x")}, "a b",
     "x"),
    ("a dead end", "start -> a -> b; a -> exit [weight=-1]", {}, "a b", "no_matching_edge"),
    ("skipped where an edge asks for it", PASSED + " [condition=skipped]; {b c} -> exit", {"a": SKIPPED}, "a c", ""),
    ("partial takes a plain edge before one for success", PASSED + "; {b c} -> exit", {"a": PARTIAL}, "a c", ""),
    ("a conditional passes the label on", "d [shape=diamond] start -> a -> d -> exit; b -> exit; d -> b "
     '[condition="preferred_label=MORE"]', {"a": Outcome(SUCCESS, "More")}, "a b", ""),
    ("a gate itself must run again", "g [goal_gate=true, retry_target=b] start -> g -> exit; g -> b [condition=fail]; "
     "b -> exit", {"g": fail()}, "g b b b b", FAILED),
    ("a gate that was skipped", "g [goal_gate=true] start -> g -> exit", {"g": SKIPPED}, "g", FAILED),
    ("the graph's target of a gate", AGAIN % ("retry_target=a;", ""), {"g": [fail(), OK]}, "a g a g", ""),
    ("the graph's fallback", AGAIN % ("fallback_retry_target=a;", ""), {"g": [fail(), OK]}, "a g a g", ""),
    ("a gate's own before the graph's", AGAIN % ("retry_target=a;", ", retry_target=g"), {"g": [fail(), OK]}, "a g g",
     ""),
    ("a gate's own fallback", AGAIN % ("", ", fallback_retry_target=g"), {"g": [fail(), OK]}, "a g g", ""),
    ("five restarts are the limit", "start -> a; a -> a [loop_restart=true]; a -> exit [condition=fail]", {},
     "a a a a a a", "loop_restart_exceeded"),
    ("the status of an automatic node has no effect", "p [shape=component, status=validated] f [shape=tripleoctagon, "
     "status=failed] start -> p -> {a b} -> f -> exit", {}, "a b", ""),
    ("what the graph marks as failed", "a [status=failed] start -> a -> exit", {}, "", "the graph marks it as failed"),
]


@pytest.mark.parametrize(("text", "script", "path", "why"), [one[1:] for one in WALKS], ids=[one[0] for one in WALKS])
def test_a_walk(text: str, script: Script, path: str, why: str) -> None:
    """Beside what contract/test_conformance.py asks of every engine of the dialect."""
    done = drive(text, script)
    assert (done.path, done.result) == (path, f"failed: {why}" if why else "done")


@pytest.mark.parametrize(("text", "script", "reasons"), [
    pytest.param("b [retry_target=a] start -> a -> b -> exit", {"b": [fail("red"), OK]}, ["", "", "b failed: red", ""],
                 id="after a failure"),
    pytest.param("d [shape=diamond] start -> a -> test -> d; d -> exit [condition=pass]; d -> a [condition=fail]",
                 {"test": [fail("2 are red"), OK]}, ["", "", "test failed: 2 are red", ""], id="through a conditional"),
    pytest.param("start -> a -> exit; a -> fix [condition=fail]; fix -> exit", {"a": fail("red")}, ["", ""],
                 id="a first visit has none"),
    pytest.param("g [goal_gate=true, retry_target=a] start -> a -> g -> exit; g -> exit [condition=fail]",
                 {"g": [fail("1"), fail("2"), OK]}, ["", "", "goal gate g ended as fail: 1", "",
                                                     "goal gate g ended as fail: 2", ""], id="after a gate"),
])
def test_the_reason_of_another_visit(text: str, script: Script, reasons: list[str]) -> None:
    assert [place.reason for change in drive(text, script).changes for place in change.started] == reasons


# ---- conditionals and the context


def test_the_context_that_the_engine_writes() -> None:
    done = drive("""goal="g w"; color=red; start -> a; a -> b [condition="fail"]; b -> exit""",
                {"a": fail("why", "flaky"), "b": Outcome(SUCCESS, "L")}, context={"mine": 1})
    context = done.state.context()
    assert {key: context[key] for key in context if key != "current_node"} == {
        "graph.goal": "g w", "graph.color": "red", "mine": 1, "outcome": "success", "preferred_label": "",
        "failure_reason": "", "failure_class": "", "last_failure": "why", "last_failed_node": "a", "last_stage": "b"}
    assert context["current_node"] == "exit"
    run = FlowRun("""start -> a; a -> b [condition="fail"]; b -> exit""", {"a": fail("why", "flaky")})
    run.finish(run.state.in_flight["a#1"])
    context = run.state.context()
    assert (context["outcome"], context["failure_reason"], context["failure_class"], context["current_node"]) == (
        "fail", "why", "flaky", "b")
    with pytest.raises(TypeError):
        context["x"] = 1  # type: ignore[index]
    assert drive("start -> a -> exit").state.context()["graph.goal"] == ""


# ---- loop_restart


def test_loop_restart_starts_over_with_new_ids_and_the_first_context() -> None:
    done = drive("""start -> a -> b; b -> exit [condition="context.round=done"]
                   b -> a [condition="outcome=success && context.round!=done", loop_restart=true]""",
                lambda place: Outcome(SUCCESS, context_updates={f"{place.node}{place.visit}": 1} | (
                    {"round": "done"} if place.id == "b#3" else {})), context={"mine": 1})
    assert (done.result, done.path, done.state.restarts) == ("done", "a b a b a b", 2)
    context = done.state.context()
    assert {key for key in context if key[0] in "ab" and key[1:].isdigit()} == {"a3", "b3"}
    assert (context["mine"], context["internal.restart_count"]) == (1, 2)
    assert done.state.visits["a"] == 1
    assert [place.id for change in done.changes for place in change.started] == ["a#1", "b#1", "a#2", "b#2", "a#3",
                                                                              "b#3"]


def test_done_nodes_are_passed_through_once() -> None:
    done = drive("""a [status=validated] b [status=impl_complete] c [status=active]
                   start -> a -> b -> c; c -> a [condition="context.n!=2"]; c -> exit""",
                lambda place: Outcome(SUCCESS, context_updates={"n": place.visit}))
    assert (done.result, done.path) == ("done", "c a b c")
    assert done.state.completed[:4] == ["start", "a", "b", "c"]
    assert drive("a [status=validated] start -> a -> b -> exit", initial={}).path == "a b"
    assert drive("start -> a -> b -> exit", initial={"a": "validated"}).path == "b"


# ---- what does not fit


def test_a_place_finishes_once() -> None:
    run = FlowRun("start -> a -> b -> exit")
    run.apply(Finished("a#1", OK))
    before = run.state.to_data()
    for event in (Finished("a#1", OK), Finished("b#2", OK), Finished("b#1", OK, attempt=2), Finished("", OK)):
        with pytest.raises(ForbiddenTransition):
            run.apply(event)
    assert run.state.to_data() == before
    run.apply(Finished("b#1", OK, attempt=1))
    with pytest.raises(ForbiddenTransition):
        run.apply(Finished("b#1", OK))


def test_a_walk_may_start_elsewhere() -> None:
    assert drive("start -> a -> b -> exit", at="b").path == "b"
    with pytest.raises(Refused, match="cannot start at zz: the graph has no such node"):
        FlowRun("start -> a -> exit", at="zz")


def test_a_handler_without_a_status() -> None:
    run = FlowRun("start -> a -> exit")
    run.apply(Finished("a#1", None))
    assert run.result == "failed: the handler ended without a status; write one, or set auto_status=true"
    run = FlowRun("a [auto_status=true] start -> a -> exit")
    run.apply(Finished("a#1", None))
    assert run.result == "done"


def test_a_change_lists_the_effects_of_a_step() -> None:
    run = FlowRun("""d [shape=diamond] start -> a -> d; d -> b [condition="pass"]; d -> exit; b -> exit""")
    change = run.finish(run.state.in_flight["a#1"])
    assert [(step.node, step.automatic) for step in change.finished] == [("a", False), ("d", True)]
    assert [(branch, str(route)) for branch, route in change.followed] == [("", "a -> d"), ("", "d -> b")]
    assert [(place.id, str(run.program.edges[place.via])) for place in change.started] == [("b#1", "d -> b")]
    assert (change.ended, run.finish(run.state.in_flight["b#1"]).ended) == ("", "done")
