"""flow=walk: choice of edges, failures, gates, restarts, and the context."""

from __future__ import annotations

import pytest

from flow_driver import OK, FlowRun, Script, drive, fail, reloaded
from garrison.errors import ForbiddenTransition, Refused
from garrison.pipeline.flow import Finished, Resumed
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


GATE = "g [goal_gate=true, allow_partial=false, retry_target=%s] "
ASKED = 'g [shape=hexagon] start -> g; g -> a [label="[Y] Yes"]; g -> b [label=No]; g -> c; {a b c} -> exit'
DAGS: list[tuple[str, str, Script, str, str]] = [
    ("unreached nodes and their dependents are skipped", "start -> s; s -> a [condition=fail]; a -> b -> c; s -> d -> "
     "c; b -> e; {c e} -> exit", {}, "s d c", ""),
    ("a node after a failure waits, even with another predecessor", "start -> {a b} -> c -> exit", {"b": fail("broke")},
     "a b", "broke"),
    ("a failure that an edge asks for", "start -> a; a -> b; a -> mend [condition=fail]; {b mend} -> exit",
     {"a": fail()}, "a mend", ""),
    ("on_error=continue", "a [on_error=continue] start -> a -> b -> exit", {"a": fail()}, "a b", ""),
    ("a conditional takes a failure", "d [shape=diamond] start -> {a b} -> d; d -> x [condition=fail]; d -> y "
     "[condition=pass]; {x y} -> exit", {"b": fail()}, "a b x", ""),
    ("an answer selects among labelled edges", ASKED, {"g": Outcome(SUCCESS, "yes")}, "g a c", ""),
    ("so does a suggestion", ASKED, {"g": Outcome(SUCCESS, "", ("b",))}, "g b", ""),
    ("an answer that no edge has", ASKED, {"g": Outcome(SUCCESS, "other")}, "g a b c", ""),
    ("no exit is reached", 'start -> a; a -> b [condition="context.never"]; b -> exit', {}, "a", "no_matching_edge"),
    ("one of several exits is enough", "end [shape=Msquare] start -> a; a -> exit [condition=fail]; a -> end", {}, "a",
     ""),
    ("parallel and fan-in are passed through",
     "p [shape=component] f [shape=tripleoctagon] start -> p -> {a b} -> f -> "
     "c -> exit", {}, "a b c", ""),
    ("a gate counts at the end", "g [goal_gate=true] start -> g -> exit", {"g": PARTIAL}, "g", ""),
    ("a gate whose work was skipped", "g [goal_gate=true] start -> g -> exit", {"g": SKIPPED}, "g", FAILED),
    ("a gate that was not reached", "g [goal_gate=true] start -> a -> exit; a -> g [condition=fail]; g -> exit", {},
     "a", ""),
    ("a retry target must be before the node", "t [retry_target=other] start -> {t other} -> exit", {"t": fail("red")},
     "other t", "red"),
    ("else its fallback", "t [retry_target=other, fallback_retry_target=t] start -> {t other} -> exit",
     {"t": [fail("red"), OK]}, "other t t", ""),
    ("going back does not count an edge twice", "t [retry_target=a] start -> {a y}; a -> {t x}; y -> x; {t x} -> exit",
     {"t": [fail("red"), OK]}, "a t a t y x", ""),
    ("a gate does not go back to where it would not rerun", GATE % "x" + "start -> {g x} -> exit", {"g": PARTIAL},
     "g x", FAILED),
    ("a gate reruns everything after its target", GATE % "a" + "start -> a -> g -> c -> exit; start -> x -> exit",
     {"g": [PARTIAL, OK]}, "a g c x a g c", ""),
    ("a gate goes back three times", GATE % "g" + "start -> g -> exit", {"g": PARTIAL}, "g g g g", FAILED),
]
ROUTES = [(*one, flow) for flow, table in (("walk", WALKS), ("dag", DAGS)) for one in table]


@pytest.mark.parametrize(("text", "script", "path", "why", "flow"), [one[1:] for one in ROUTES],
                         ids=[f"{one[-1]}: {one[0]}" for one in ROUTES])
def test_a_run_takes_its_route(text: str, script: Script, path: str, why: str, flow: str) -> None:
    """In addition to contract/test_conformance.py, which every engine of the dialect passes."""
    done = drive(f"flow={flow}; {text}", script)
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
def test_another_visit_has_its_reason(text: str, script: Script, reasons: list[str]) -> None:
    assert [place.reason for change in drive(text, script).changes for place in change.started] == reasons


# ---- conditionals and the context


def test_the_engine_writes_its_keys_into_the_context() -> None:
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


def test_done_nodes_are_passed_through_once_and_active_ones_of_a_dag_start_first() -> None:
    done = drive("""a [status=validated] b [status=impl_complete] c [status=active]
                   start -> a -> b -> c; c -> a [condition="context.n!=2"]; c -> exit""",
                lambda place: Outcome(SUCCESS, context_updates={"n": place.visit}))
    assert (done.result, done.path) == ("done", "c a b c")
    assert done.state.completed[:4] == ["start", "a", "b", "c"]
    assert drive("a [status=validated] start -> a -> b -> exit", initial={}).path == "a b"
    assert drive("start -> a -> b -> exit", initial={"a": "validated"}).path == "b"
    text = "a [status=validated] c [status=active] start -> {a b c}; a -> d -> e -> exit; {b c} -> e"
    run = FlowRun(f"flow=dag; {text}")
    assert [place.node for place in run.changes[0].started] == ["c", "b", "d"]
    assert run.run().result == "done"
    assert dag(text.replace("validated", "failed")).result == "failed: the graph marks it as failed"


# ---- events that do not apply


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


def test_a_walk_may_start_at_any_node() -> None:
    assert drive("start -> a -> b -> exit", at="b").path == "b"
    with pytest.raises(Refused, match="cannot start at zz: the graph has no such node"):
        FlowRun("start -> a -> exit", at="zz")


def test_a_handler_without_a_status_fails_unless_the_node_allows_it() -> None:
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


# ---- flow=dag


DIAMOND = "flow=dag; start -> {a b} -> c -> exit "


def dag(body: str, script: object = None, **options: object) -> FlowRun:
    return drive(f"flow=dag; {body}", script, **options)  # type: ignore[arg-type]


def test_a_node_starts_when_all_its_predecessors_are_done() -> None:
    run = FlowRun(DIAMOND)
    assert sorted(run.state.in_flight) == ["a#1", "b#1"]
    assert run.finish(run.state.in_flight["b#1"]).started == []
    assert [place.id for place in run.finish(run.state.in_flight["a#1"]).started] == ["c#1"]
    assert run.run().result == "done"
    run = FlowRun(DIAMOND)
    run.finish(run.state.in_flight["a#1"])
    state = reloaded(run.state)
    assert state == run.state
    run.state = state
    assert run.apply(Finished("b#1", OK)).started[0].id == "c#1"


def test_every_edge_whose_condition_is_true_is_followed_and_the_rest_is_skipped() -> None:
    run = dag("""start -> s; s -> a [condition="context.x=1"]; s -> b [condition="context.x>0"]; s -> c
                 s -> d [condition="context.x=2"]; {a b c d} -> exit""",
              {"s": Outcome(SUCCESS, context_updates={"x": 1})})
    assert (run.result, run.path) == ("done", "s a b c")
    assert run.state.outcomes["d"].status == SKIPPED
    assert "d" not in run.state.visits
    run = dag("""start -> a -> exit; a -> b [condition="fail"]; b -> exit""")
    assert {node: outcome.status for node, outcome in run.state.outcomes.items()} == {
        "start": SUCCESS, "a": SUCCESS, "b": SKIPPED, "exit": SUCCESS}
    assert FAIL not in {outcome.status for outcome in run.state.outcomes.values()}


def test_a_failure_blocks_its_successors_and_the_rest_continues() -> None:
    run = dag("start -> {a b}; a -> c -> d; b -> e -> f; {d f} -> exit", {"a": fail("a broke")})
    assert (run.result, run.path) == ("failed: a broke", "a b e f")
    assert run.state.node == "a"
    assert "c" not in run.state.outcomes
    run = dag("start -> {a b} -> exit", {"a": fail("one"), "b": fail("two")})
    assert run.result == "failed: one"
    assert "a and 1 more failed" in run.state.detail


def test_a_conditional_passes_the_worst_of_what_leads_to_it() -> None:
    text = """d [shape=diamond] start -> {a b} -> d -> x -> exit"""
    for one, other, status in [(SUCCESS, PARTIAL, PARTIAL), (PARTIAL, SUCCESS, PARTIAL), (SUCCESS, SUCCESS, SUCCESS)]:
        assert dag(text, {"a": one, "b": other}).state.outcomes["d"].status == status
    assert dag(text, {"a": SUCCESS, "b": fail("x")}).result == "failed: x"


def test_a_cycle_is_refused_with_its_position() -> None:
    with pytest.raises(Refused, match=r"flow=dag, but .* wait for each other"):
        FlowRun("flow=dag; start -> a -> b -> a; b -> exit")
    with pytest.raises(Refused, match="cannot start at a: flow=dag starts at the start node"):
        FlowRun("flow=dag; start -> a -> exit", at="a")


def test_retries_budgets_and_resumes_work_as_in_a_walk() -> None:
    run = dag("a [max_retries=2] start -> a -> exit", {"a": [fail(), fail(), OK]})
    assert (run.result, run.path) == ("done", "a a a")
    run = FlowRun(DIAMOND, max_steps=2).run()
    assert (run.result, list(run.state.in_flight)) == ("failed: max_steps_exceeded", ["a#1"])
    change = run.apply(Resumed(max_steps=9))
    assert [(place.id, place.attempt) for place in change.started] == [("a#1", 2), ("b#1", 1)]
    assert run.run().result == "done"
    run = dag("start -> {a b}; a -> c; {b c} -> exit", {"a": [fail("x"), OK]})
    assert run.result == "failed: x"
    with pytest.raises(ForbiddenTransition):
        run.apply(Resumed())
    change = run.apply(Resumed(again=True))
    assert [(place.id, place.reason) for place in change.started] == [("a#2", "x")]
    assert run.run().result == "done"
    assert run.path == "a b a c"


# ---- going back


def test_a_failure_goes_back_to_its_retry_target_and_reruns_the_nodes_between() -> None:
    run = dag("t [retry_target=a] start -> a -> {b x} ; b -> t -> c; {x c} -> exit", {"t": [fail("red"), OK]})
    assert (run.result, run.path) == ("done", "a b t a b t c x")
    assert [(place.id, place.reason) for change in run.changes for place in change.started if place.node == "a"] == [
        ("a#1", ""), ("a#2", "t failed: red")]
    run = dag("t [retry_target=a] start -> a -> m -> t -> exit", {"t": fail("red"), "a": [OK, fail("gone")]})
    assert (run.result, run.path) == ("failed: gone", "a m t a")
    assert {"m", "t"}.isdisjoint(run.state.outcomes)
    run = dag(GATE % "g" + "start -> g; g -> no [condition=partial]; g -> yes [condition=pass]; {no yes} -> z -> exit",
              {"g": [PARTIAL, OK]})
    assert (run.result, run.path, run.state.outcomes["no"].status) == ("done", "g no z g yes z", SKIPPED)
    run = dag("t [retry_target=a] start -> a -> t -> exit", {"t": fail("red")})
    assert (run.result, run.path) == ("failed: stuck_cycle", "a t a t a t")
    run.script = {}
    assert [place.id for place in run.apply(Resumed(again=True)).started] == ["t#4"]
    assert run.run().result == "done"


def test_a_conditional_is_entered_while_one_of_its_sources_runs_again() -> None:
    run = FlowRun("""flow=dag; start -> a; a -> {b w}; c [shape=diamond]; {a w} -> c -> exit
                     b [retry_target=a]; b -> exit; w -> exit""", {"b": [fail("not yet"), OK]})
    run.finish(run.state.in_flight["a#1"])
    run.finish(run.state.in_flight["b#1"])
    assert sorted(run.state.in_flight) == ["a#2", "w#1"]
    run.finish(run.state.in_flight["w#1"])
    assert run.state.outcomes["c"].status == SUCCESS
    assert (run.run().result, run.path) == ("done", "a b w a b")
