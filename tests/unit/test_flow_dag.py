"""flow=dag: start of nodes, skipped nodes, blocking failures, and the end of a run."""

from __future__ import annotations

import pytest

from flow_driver import OK, FlowRun, Script, drive, fail, reloaded
from garrison.errors import ForbiddenTransition, Refused
from garrison.pipeline.flow import Finished, Resumed
from garrison.pipeline.outcome import FAIL, PARTIAL, SKIPPED, SUCCESS, Outcome

DIAMOND = "flow=dag; start -> {a b} -> c -> exit "


def dag(body: str, script: object = None, **options: object) -> FlowRun:
    return drive(f"flow=dag; {body}", script, **options)  # type: ignore[arg-type]


GATE = "g [goal_gate=true, allow_partial=false, retry_target=%s] "
ASKED = 'g [shape=hexagon] start -> g; g -> a [label="[Y] Yes"]; g -> b [label=No]; g -> c; {a b c} -> exit'
UNSATISFIED = "goal_gate_unsatisfied"
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
    ("a gate whose work was skipped", "g [goal_gate=true] start -> g -> exit", {"g": SKIPPED}, "g", UNSATISFIED),
    ("a gate that was not reached", "g [goal_gate=true] start -> a -> exit; a -> g [condition=fail]; g -> exit", {},
     "a", ""),
    ("a retry target must be before the node", "t [retry_target=other] start -> {t other} -> exit", {"t": fail("red")},
     "other t", "red"),
    ("else its fallback", "t [retry_target=other, fallback_retry_target=t] start -> {t other} -> exit",
     {"t": [fail("red"), OK]}, "other t t", ""),
    ("going back does not count an edge twice", "t [retry_target=a] start -> {a y}; a -> {t x}; y -> x; {t x} -> exit",
     {"t": [fail("red"), OK]}, "a t a t y x", ""),
    ("a gate does not go back to where it would not rerun", GATE % "x" + "start -> {g x} -> exit", {"g": PARTIAL},
     "g x", UNSATISFIED),
    ("a gate reruns everything after its target", GATE % "a" + "start -> a -> g -> c -> exit; start -> x -> exit",
     {"g": [PARTIAL, OK]}, "a g c x a g c", ""),
    ("a gate goes back three times", GATE % "g" + "start -> g -> exit", {"g": PARTIAL}, "g g g g", UNSATISFIED),
]


@pytest.mark.parametrize(("body", "script", "path", "why"), [one[1:] for one in DAGS], ids=[one[0] for one in DAGS])
def test_a_dag(body: str, script: Script, path: str, why: str) -> None:
    run = dag(body, script)
    assert (run.path, run.result) == (path, f"failed: {why}" if why else "done")


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


def test_done_nodes_are_not_run_and_active_ones_start_first() -> None:
    text = "a [status=validated] c [status=active] start -> {a b c}; a -> d -> e -> exit; {b c} -> e"
    run = FlowRun(f"flow=dag; {text}")
    assert [place.node for place in run.changes[0].started] == ["c", "b", "d"]
    assert run.run().result == "done"
    assert dag(text.replace("validated", "failed")).result == "failed: the graph marks it as failed"


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
