"""flow=walk: choice of edges, failures, gates, restarts, and the context."""

from __future__ import annotations

import pytest

from flow_driver import OK, FlowRun, drive, fail
from garrison.errors import ForbiddenTransition, Refused
from garrison.pipeline.flow import Finished
from garrison.pipeline.outcome import FAIL, PARTIAL, SKIPPED, SUCCESS, Outcome

# ---- rule 1: conditional edges


def test_a_line_is_walked_to_its_exit() -> None:
    done = drive("start -> a -> b -> exit")
    assert (done.result, done.path, done.state.completed) == ("done", "a b", ["start", "a", "b", "exit"])
    assert done.state.steps == 4


def test_a_matching_condition_wins_over_weight_and_label() -> None:
    done = drive("""start -> a; a -> b [weight=9, label=Go]; a -> c [condition="outcome=success"]; {b c} -> exit""",
                {"a": Outcome(SUCCESS, "Go", ("b",))})
    assert done.path == "a c"


def test_among_matching_conditions_weight_then_id_decides() -> None:
    edges = """start -> a; a -> z [condition="pass"%s]; a -> b [condition="pass"]; a -> c [condition="pass"]
               {b c z} -> exit"""
    assert drive(edges % ", weight=1").path == "a z"
    assert drive(edges % "").path == "a b"


def test_a_condition_reads_what_the_node_wrote() -> None:
    done = drive("""start -> a; a -> b [condition="context.x=1"]; a -> c [condition="context.x!=1"]; {b c} -> exit""",
                {"a": Outcome(SUCCESS, context_updates={"x": 1})})
    assert done.path == "a b"


# ---- rule 2: failures


def test_a_failure_follows_an_edge_that_asks_for_it() -> None:
    done = drive("""start -> a -> exit; a -> fix [condition="outcome=fail"]; fix -> a""", {"a": [fail(), OK]})
    assert (done.result, done.path) == ("done", "a fix a")


def test_a_failure_does_not_follow_an_unconditional_edge() -> None:
    done = drive("start -> a -> b -> exit", {"a": fail("no network")})
    assert (done.result, done.path) == ("failed: no network", "a")
    assert done.state.node == "a"


def test_a_failure_without_a_reason_still_names_its_node() -> None:
    assert drive("start -> a -> exit", {"a": FAIL}).result == "failed: a failed"


def test_a_failure_passes_into_a_conditional() -> None:
    done = drive("""d [shape=diamond] start -> a -> b [weight=5]; a -> d; b -> exit
                   d -> exit [condition="outcome=success"]; d -> fix [condition="outcome=fail"]; fix -> exit""",
                {"a": fail()})
    assert (done.result, done.path) == ("done", "a fix")


def test_the_unconditional_edge_of_a_conditional_that_asks_for_the_outcome_is_its_else() -> None:
    done = drive("""d [shape=diamond] start -> a -> d; d -> b [condition="outcome=success"]; d -> c; {b c} -> exit""",
                {"a": fail("x")})
    assert (done.result, done.path) == ("done", "a c")


@pytest.mark.parametrize("condition", ['[condition="context.x=1"]', ""])
def test_a_conditional_on_another_key_does_not_pass_a_failure(condition: str) -> None:
    done = drive(f"d [shape=diamond] start -> a -> d; d -> b {condition}; d -> c; {{b c}} -> exit", {"a": fail("x")})
    assert done.result == "failed: x"


def test_on_error_continue_treats_a_failure_as_a_success() -> None:
    done = drive("a [on_error=continue] start -> a; a -> b [weight=1]; a -> c; {b c} -> exit", {"a": fail()})
    assert (done.result, done.path) == ("done", "a b")
    assert done.state.outcomes["a"].status == FAIL


def test_a_failure_goes_back_to_the_retry_target_with_its_reason() -> None:
    done = drive("b [retry_target=a] start -> a -> b -> exit", {"b": [fail("red"), OK]})
    assert (done.result, done.path) == ("done", "a b a b")
    assert [place.reason for change in done.changes for place in change.started] == ["", "", "b failed: red", ""]


def test_a_node_visited_again_after_a_failure_has_the_reason() -> None:
    done = drive("""d [shape=diamond] start -> a -> test -> d; d -> exit [condition="pass"]
                   d -> a [condition="fail"]""",
                {"test": [fail("2 tests are red"), OK]})
    reasons = {place.id: place.reason for change in done.changes for place in change.started}
    assert reasons == {"a#1": "", "test#1": "", "a#2": "test failed: 2 tests are red", "test#2": ""}


def test_a_first_visit_has_no_reason() -> None:
    done = drive("""start -> a -> exit; a -> fix [condition="fail"]; fix -> exit""", {"a": fail("red")})
    assert [place.reason for change in done.changes for place in change.started] == ["", ""]


def test_the_fallback_is_used_where_the_retry_target_is_missing() -> None:
    done = drive("b [retry_target=nowhere, fallback_retry_target=a] start -> a -> b -> exit", {"b": [fail(), OK]})
    assert done.path == "a b a b"


def test_a_matching_edge_wins_over_the_retry_target() -> None:
    done = drive("""b [retry_target=a] start -> a -> b -> exit; b -> c [condition="fail"]; c -> exit""", {"b": fail()})
    assert done.path == "a b c"


def test_the_graphs_retry_target_is_for_gates_alone() -> None:
    assert drive("retry_target=a; start -> a -> b -> exit", {"b": fail("x")}).result == "failed: x"


# ---- rule 3: labels, suggestions, weight, id

FORK = "start -> a; a -> b [label=\"[B] Go on\"]; a -> c [label=\"Stop\", weight=%d]; a -> d; {b c d} -> exit"


@pytest.mark.parametrize(("outcome", "weight", "ran"), [
    (Outcome(SUCCESS), 0, "b"), (Outcome(SUCCESS), 1, "c"), (Outcome(SUCCESS), -1, "b"),
    (Outcome(SUCCESS, "go on"), 9, "b"), (Outcome(SUCCESS, "B) Go on"), 9, "b"), (Outcome(SUCCESS, "STOP"), 0, "c"),
    (Outcome(SUCCESS, "unknown"), 9, "c"), (Outcome(SUCCESS, "", ("x", "d", "b")), 9, "d"),
    (Outcome(SUCCESS, "stop", ("d",)), 0, "c"), (Outcome(SUCCESS, "nothing", ("d",)), 0, "d"),
    (Outcome(SKIPPED), 1, "c"), (Outcome(PARTIAL, "stop"), 0, "c"),
])
def test_label_then_suggestion_then_weight_then_id(outcome: Outcome, weight: int, ran: str) -> None:
    assert drive(FORK % weight, {"a": outcome}).path == f"a {ran}"


# ---- rule 4: nothing matches


def test_no_matching_edge() -> None:
    done = drive("""start -> a; a -> exit [condition="context.ready"]""")
    assert done.result == "failed: no_matching_edge"
    assert done.state.node == "a"


def test_a_dead_end_fails() -> None:
    assert drive("start -> a -> b; a -> exit [weight=-1]").result == "failed: no_matching_edge"


def test_skipped_and_partial_are_routed_as_success() -> None:
    edges = """start -> a; a -> b [condition="outcome=success"]; a -> c [condition="fail"]; {b c} -> exit"""
    assert drive(edges, {"a": SKIPPED}).path == "a b"
    assert drive(edges, {"a": PARTIAL}).path == "a b"
    assert drive("""start -> a; a -> b [condition="pass"]; a -> c [condition="outcome=skipped"]; {b c} -> exit""",
                {"a": SKIPPED}).path == "a c"
    assert drive("""start -> a; a -> b [condition="pass"]; a -> c; {b c} -> exit""", {"a": PARTIAL}).path == "a c"


# ---- conditionals and the context


def test_a_conditional_passes_status_and_label_through() -> None:
    done = drive("""d [shape=diamond] start -> a -> d; d -> b [condition="preferred_label=MORE"]
                   d -> exit; b -> exit""",
                {"a": Outcome(SUCCESS, "More")})
    assert done.path == "a b"
    assert done.state.outcomes["d"].preferred_label == "More"


def test_the_context_that_the_engine_writes() -> None:
    done = drive("""goal="g w"; color=red; start -> a; a -> b [condition="fail"]; b -> exit""",
                {"a": fail("why", "flaky"), "b": Outcome(SUCCESS, "L")}, context={"mine": 1})
    context = done.state.context()
    assert {key: context[key] for key in context if key != "current_node"} == {
        "graph.goal": "g w", "graph.color": "red", "mine": 1, "outcome": "success", "preferred_label": "",
        "failure_reason": "", "failure_class": "", "last_failure": "why", "last_failed_node": "a", "last_stage": "b"}
    assert context["current_node"] == "exit"


def test_the_context_right_after_a_failure() -> None:
    run = FlowRun("""start -> a; a -> b [condition="fail"]; b -> exit""", {"a": fail("why", "flaky")})
    run.finish(run.state.in_flight["a#1"])
    context = run.state.context()
    assert (context["outcome"], context["failure_reason"], context["failure_class"], context["current_node"]) == (
        "fail", "why", "flaky", "b")
    with pytest.raises(TypeError):
        context["x"] = 1  # type: ignore[index]


def test_a_graph_without_a_goal_still_has_one_in_the_context() -> None:
    assert drive("start -> a -> exit").state.context()["graph.goal"] == ""


# ---- goal gates


def test_a_gate_that_failed_sends_the_run_back_until_it_succeeds() -> None:
    done = drive("""g [goal_gate=true, retry_target=a] start -> a -> g; g -> b; g -> b [condition="fail"]; b -> exit""",
                {"g": [fail("1"), fail("2"), OK]})
    assert (done.result, done.path) == ("done", "a g b a g b a g b")
    assert done.state.redirects == 2
    reasons = [place.reason for change in done.changes for place in change.started if place.node == "a"]
    assert reasons == ["", "goal gate g ended as fail: 1", "goal gate g ended as fail: 2"]


def test_after_a_redirect_the_gate_itself_must_run_again() -> None:
    done = drive("""g [goal_gate=true, retry_target=b] start -> g; g -> b [condition="fail"]; g -> exit; b -> exit""",
                {"g": fail()})
    assert (done.result, done.path) == ("failed: goal_gate_unsatisfied", "g b b b b")


def test_three_redirects_are_the_limit() -> None:
    done = drive("""g [goal_gate=true, retry_target=g] start -> g; g -> exit; g -> exit [condition="fail"]""",
                lambda place: fail(str(place.visit)))
    assert (done.result, done.path) == ("failed: goal_gate_unsatisfied", "g g g g")


def test_retry_targets_of_gates() -> None:
    text = """%s g [goal_gate=true%s] start -> a -> g; g -> exit; g -> exit [condition="fail"]; x -> exit; a -> x"""
    once = {"g": [fail(), OK]}
    assert drive(text % ("retry_target=a;", ""), once).path == "a g a g"
    assert drive(text % ("fallback_retry_target=a;", ""), once).path == "a g a g"
    assert drive(text % ("retry_target=a;", ", retry_target=g"), once).path == "a g g"
    assert drive(text % ("", ", fallback_retry_target=g"), once).path == "a g g"
    assert drive(text % ("", ""), once).result == "failed: goal_gate_unsatisfied"


@pytest.mark.parametrize(("status", "more", "result"), [
    (SUCCESS, "", "done"), (PARTIAL, "", "done"), (PARTIAL, ", allow_partial=true", "done"),
    (PARTIAL, ", allow_partial=false", "failed: goal_gate_unsatisfied"),
    (SKIPPED, "", "failed: goal_gate_unsatisfied"),
])
def test_a_gate_needs_an_explicit_success(status: str, more: str, result: str) -> None:
    assert drive(f"g [goal_gate=true{more}] start -> g -> exit", {"g": status}).result == result


def test_a_gate_that_was_not_visited_does_not_count() -> None:
    assert drive("""g [goal_gate=true] start -> a -> exit; a -> g [condition="fail"]; g -> exit""").result == "done"


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


def test_five_restarts_are_the_limit() -> None:
    done = drive("start -> a; a -> a [loop_restart=true]; a -> exit [condition=\"fail\"]")
    assert (done.result, done.path) == ("failed: loop_restart_exceeded", "a a a a a a")


# ---- status words of the graph


def test_done_nodes_are_passed_through_once() -> None:
    done = drive("""a [status=validated] b [status=impl_complete] c [status=active]
                   start -> a -> b -> c; c -> a [condition="context.n!=2"]; c -> exit""",
                lambda place: Outcome(SUCCESS, context_updates={"n": place.visit}))
    assert (done.result, done.path) == ("done", "c a b c")
    assert done.state.completed[:4] == ["start", "a", "b", "c"]


def test_the_status_of_an_automatic_node_has_no_effect() -> None:
    assert drive("""p [shape=component, status=validated] f [shape=tripleoctagon, status=failed]
                   start -> p -> {a b} -> f -> exit""").path == "a b"


def test_failed_nodes_of_the_graph_fail() -> None:
    assert drive("a [status=failed] start -> a -> exit").result == "failed: the graph marks it as failed"
    assert drive("""a [status=failed] start -> a -> exit; a -> b [condition="fail"]; b -> exit""").path == "b"


def test_a_driver_may_replace_the_statuses_of_the_graph() -> None:
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
