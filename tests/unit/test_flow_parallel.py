"""Parallels: joins, branches, policies, results, nesting, cancellation, and reloaded states."""

from __future__ import annotations

from typing import Any

import pytest

from flow_driver import OK, FlowRun, Script, drive, fail, program_of, reloaded
from garrison.errors import Refused
from garrison.pipeline.flow import Finished, Resumed, advance
from garrison.pipeline.outcome import FAIL, PARTIAL, SKIPPED, SUCCESS, Outcome

THREE = "p [shape=component%s] f [shape=tripleoctagon] start -> p -> {a b c} -> f -> exit "


def results(run: FlowRun) -> list[tuple[str, str]]:
    return [(one["id"], one["status"]) for one in run.state.context()["parallel.results"]]


# ---- joins


@pytest.mark.parametrize(("edges", "join", "region"), [
    ("p -> {a b} -> f -> exit", "f", "a b"),
    ("p -> {a b} -> c -> f -> exit", "f", "a b c"),  # the nearest fan-in, though c is nearer
    ("p -> {a b} -> c -> d -> exit", "c", "a b"),  # no fan-in: the nearest common node
    ("p -> a -> f; p -> f; f -> exit", "f", "a"),  # an empty branch
    ("p -> {a b} -> exit", "exit", "a b"),
    ("q [shape=component] g [shape=tripleoctagon] p -> q -> {a b} -> g -> f; p -> c -> f; f -> exit", "f", "a b c g q"),
    ("q [shape=component] p -> q -> {a b} -> f; p -> c -> f; f -> exit", "f", "a b c q"),  # one join for both
    ("q [shape=component] g [shape=tripleoctagon] p -> {a b} -> c -> q -> {d e} -> g -> exit", "c", "a b"),
    ("p -> {a b} -> f; f -> p [condition=\"context.again\"]; f -> exit", "f", "a b"),  # a loop around it
    ("p -> {a b} -> f; f -> a [condition=\"context.again\"]; f -> exit", "f", "a b"),  # a loop into a branch
    ("a -> a [condition=\"fail\"]; p -> {a b} -> f -> exit", "f", "a b"),
    ("p -> a -> b -> exit; p -> b", "b", "a"),
    ("p -> a -> x -> y -> c -> exit; p -> b -> c; a -> p [condition=\"fail\"]", "c", "a b x y"),
    ("p -> {a b} -> {d c} -> exit", "c", "a b d exit"),
    ("p -> {a b} -> f; a -> exit [condition=\"fail\"]; f -> exit", "f", "a b exit"),
])
def test_branches_join_at_the_nearest_fan_in_or_common_node(edges: str, join: str, region: str) -> None:
    shapes = "p [shape=component] f [shape=tripleoctagon]" if " f" in edges else "p [shape=component]"
    fan_out = program_of(f"{shapes} start -> p; {edges}").units["p"].fan_out
    assert (fan_out.join, " ".join(sorted(fan_out.region))) == (join, region)


def test_parallels_have_their_own_joins_and_those_whose_branches_never_meet_are_refused() -> None:
    program = program_of("""p [shape=component] q [shape=component] f [shape=tripleoctagon] g [shape=tripleoctagon]
                            start -> p -> q -> {a b} -> g -> f; p -> c -> f; f -> exit""")
    found = {name: unit.fan_out.join for name, unit in program.units.items() if unit.fan_out}
    assert found == {"p": "f", "q": "g"}
    with pytest.raises(Refused, match=r"<.*>:1:\d+: node p: its branches never meet again"):
        program_of("exit2 [shape=Msquare] p [shape=component] start -> p; p -> a -> exit; p -> b -> exit2")


# ---- branches


def test_all_branches_are_in_flight_at_once_and_end_in_any_order() -> None:
    for pick in (0, 1, -1):
        run = FlowRun(THREE % "")
        assert sorted(run.state.in_flight) == ["p#1/a/a#1", "p#1/b/b#1", "p#1/c/c#1"]
        run.run(pick=lambda places, pick=pick: places[pick % len(places)])  # type: ignore[misc]
        assert run.result == "done"
        assert results(run) == [("a", SUCCESS), ("b", SUCCESS), ("c", SUCCESS)]
        assert run.state.completed[-3:] == ["p", "f", "exit"]


def test_max_parallel_bounds_how_many_run_at_once() -> None:
    run = FlowRun(THREE % ", max_parallel=2")
    assert sorted(place.node for place in run.state.in_flight.values()) == ["a", "b"]
    run.finish(run.state.in_flight["p#1/b/b#1"])
    assert sorted(place.node for place in run.state.in_flight.values()) == ["a", "c"]
    assert run.run().path == "b a c"
    run = FlowRun("p [shape=component] f [shape=tripleoctagon] start -> p -> {a b c d e g} -> f -> exit")
    assert len(run.state.in_flight) == 4
    assert run.run().result == "done"


def test_branches_route_retry_and_loop_independently_with_a_context_each() -> None:
    seen: dict[str, Any] = {}

    def work(place: Any) -> Outcome:
        seen[place.node] = dict(run.state.context(place.branch))
        run.state.contexts[place.branch]["deep"]["list"].append(place.node)
        return Outcome(SUCCESS, context_updates={"mine": place.node, place.node: 1})

    run = FlowRun("p [shape=component] f [shape=tripleoctagon] start -> p; p -> a -> a2 -> f; p -> b -> f\n"
               "f -> exit", work, context={"deep": {"list": []}, "kept": 1})
    run.run()
    assert seen["a2"]["mine"] == "a"
    assert "a" not in seen["b"]
    context = run.state.context()
    assert (context["deep"], "mine" in context, context["kept"]) == ({"list": []}, False, 1)
    assert [one["context"] for one in context["parallel.results"]] == [{"mine": "a2", "a": 1, "a2": 1},
                                                                       {"mine": "b", "b": 1}]

    run = drive("""p [shape=component] f [shape=tripleoctagon] a [max_retries=1] start -> p -> {a b} -> f -> exit
                  b -> fix [condition="fail"]; fix -> b""", {"a": [fail(), OK], "b": [fail("1"), fail("2"), OK]})
    assert run.result == "done"
    assert sorted(run.trace) == ["a", "a", "b", "b", "b", "fix", "fix"]
    assert {place.id for change in run.changes for place in change.started} == {
        "p#1/a/a#1", "p#1/b/b#1", "p#1/b/fix#1", "p#1/b/b#2", "p#1/b/fix#2", "p#1/b/b#3"}


def test_a_restart_within_a_branch_drops_the_whole_parallel() -> None:
    run = FlowRun("""p [shape=component] f [shape=tripleoctagon] start -> s -> p -> {a b} -> f -> exit
                  a -> s [condition="fail", loop_restart=true]""", {"a": [fail(), OK]})
    run.finish(run.state.in_flight["s#1"])
    change = run.finish(run.state.in_flight["p#1/a/a#1"])
    assert [place.id for place in change.cancelled] == ["p#1/b/b#1"]
    assert [place.id for place in change.started] == ["s#2"]
    assert (run.state.fans, list(run.state.branches), list(run.state.contexts)) == ({}, [""], [""])
    assert run.run().result == "done"
    assert run.path == "s a s a b"


def test_an_edge_opens_a_branch_wherever_it_leads() -> None:
    run = drive("p [shape=component] f [shape=tripleoctagon] start -> p; p -> a; p -> a; a -> f -> exit")
    assert [one["branch"] for one in run.state.context()["parallel.results"]] == ["a", "a.2"]
    assert run.path == "a a"
    text = """p [shape=component] f [shape=tripleoctagon] start -> s -> p; p -> a; p -> b [condition="context.wide=yes"]
              {a b} -> f -> exit"""
    assert results(drive(text)) == [("a", SUCCESS)]
    assert results(drive(text, {"s": Outcome(SUCCESS, context_updates={"wide": "yes"})})) == [("a", SUCCESS),
                                                                                        ("b", SUCCESS)]
    run = drive("""p [shape=component] f [shape=tripleoctagon] start -> s -> exit; s -> p [condition="fail"]
                  p -> a -> f; p -> f; f -> exit""", {"s": fail()})
    assert (run.result, results(run)) == ("done", [("a", SUCCESS), ("f", SUCCESS)])
    run = drive("""p [shape=component] f [shape=tripleoctagon] start -> p -> {a b} -> f; f -> p [condition="fail"]
                  f -> exit""", {"a": [fail(), OK], "b": [fail(), OK]})
    assert run.result == "done"
    assert sorted(place.id for change in run.changes for place in change.started) == [
        "p#1/a/a#1", "p#1/b/b#1", "p#2/a/a#1", "p#2/b/b#1"]


# ---- policies


@pytest.mark.parametrize(("policy", "outcomes", "status"), [
    ("", "s++", SUCCESS), (", join_policy=all_success", "+++", SUCCESS), (", join_policy=first_success", "---", FAIL),
    (", join_policy=first_success", "--+", SUCCESS), (", join_policy=k_of_n, join_k=2", "++-", SUCCESS),
    (", join_policy=quorum", "++-", SUCCESS), (", join_policy=quorum", "+--", FAIL),
    (", join_policy=quorum, quorum=1", "++-", FAIL), (", error_policy=ignore", "---", SUCCESS),
    (", error_policy=fail_fast", "+++", SUCCESS),
])
def test_a_join_policy_decides_by_the_outcomes_of_its_branches(policy: str, outcomes: str, status: str) -> None:
    """The others are in contract/test_conformance.py."""
    words = {"+": OK, "-": fail(), "s": Outcome(SKIPPED)}
    run = drive(THREE % policy, {node: words[sign] for node, sign in zip("abc", outcomes, strict=True)})
    assert run.state.outcomes["p"].status == status
    if status != FAIL and outcomes != "---":
        assert run.result == "done"


def test_a_policy_that_is_decided_cancels_the_others_and_names_them() -> None:
    run = FlowRun("p [shape=component, join_policy=first_success, max_parallel=3] f [shape=tripleoctagon]"
               "start -> p -> {a b c d} -> f -> g -> exit", {"a": fail()})
    run.finish(run.state.in_flight["p#1/a/a#1"])
    assert [place.node for place in run.changes[-1].started] == ["d"]
    change = run.finish(run.state.in_flight["p#1/c/c#1"])
    assert sorted(place.id for place in change.cancelled) == ["p#1/b/b#1", "p#1/d/d#1"]
    assert [place.node for place in change.started] == ["g"]
    assert results(run) == [("a", FAIL), ("b", SKIPPED), ("c", SUCCESS), ("d", SKIPPED)]
    assert [one["cancelled"] for one in run.state.context()["parallel.results"]] == [False, True, False, True]
    assert run.run().result == "done"
    run = drive("p [shape=component, join_policy=first_success] f [shape=tripleoctagon] start -> p; p -> f; p -> a\n"
               "a -> f -> exit")
    assert (run.result, run.path, results(run)) == ("done", "", [("f", SUCCESS), ("a", SKIPPED)])
    run = FlowRun("p [shape=component, join_policy=first_success] f [shape=tripleoctagon] a [goal_gate=true]"
                  "start -> p -> {a b} -> f -> exit")
    run.finish(run.state.in_flight["p#1/b/b#1"])
    assert run.result == "done"
    run = FlowRun(THREE % ", error_policy=fail_fast", {"b": fail("b broke")})
    change = run.finish(run.state.in_flight["p#1/b/b#1"])
    assert sorted(place.node for place in change.cancelled) == ["a", "c"]
    assert run.result == "failed: 0 of 3 branches succeeded (b: b broke)"


PLAIN = "p [shape=component%s] start -> p -> {a b} -> c -> exit"
BROKEN = {"a": fail(), "b": fail(), "c": fail()}
NONE = "0 of 2 branches succeeded (a: broken; b: broken)"
FAILURES: list[tuple[str, str, Script, str, str]] = [
    ("is judged by the edges of its fan-in", THREE % "" + "f -> mend [condition=fail]; mend -> exit",
     {**BROKEN, "mend": OK}, "a b c mend", ""),
    ("is judged by a conditional that is the join", "p [shape=component] d [shape=diamond] start -> p -> {a b} -> d; "
     "d -> exit [condition=pass]; d -> mend [condition=fail]; mend -> exit", BROKEN, "a b mend", ""),
    ("fails the run at a plain join", PLAIN % "", BROKEN, "a b", NONE),
    ("continues with on_error=continue", PLAIN % ", on_error=continue", {"a": fail(), "b": fail()}, "a b c", ""),
    ("goes back to its retry target", PLAIN % ", retry_target=p", {"a": [fail(), OK], "b": [fail(), OK]}, "a b a b c",
     ""),
    ("goes back before its fan-in", THREE % ", retry_target=p", {node: [fail(), OK] for node in "abc"}, "a b c a b c",
     ""),
    ("follows an edge that asks for it", PLAIN % "" + "; p -> mend [condition=fail]; mend -> c",
     {"a": fail(), "b": fail()}, "a b mend c", ""),
    ("is not taken by an edge that opens a branch", "p [shape=component] f [shape=tripleoctagon] start -> p; p -> a "
     '[condition="context.x!=1"]; p -> b; {a b} -> f -> exit', BROKEN, "a b", NONE),
    ("is missing before a fan-in", "f [shape=tripleoctagon] start -> a -> f -> exit", {}, "a",
     "no parallel results to evaluate"),
    ("does not come from a branch that ends at another exit",
     "p [shape=component] f [shape=tripleoctagon] start -> p -> "
     '{a b} -> f -> c -> exit; a -> exit [condition="outcome=skipped"]', {"a": SKIPPED}, "a b c", ""),
]


@pytest.mark.parametrize(("text", "script", "path", "why"), [one[1:] for one in FAILURES],
                         ids=[one[0] for one in FAILURES])
def test_a_failed_parallel(text: str, script: Script, path: str, why: str) -> None:
    run = drive(text, script)
    assert (run.path, run.result) == (path, f"failed: {why}" if why else "done")


@pytest.mark.parametrize(("text", "words"), [
    (", join_policy=some", "join_policy='some' is unknown; use wait_all"),
    (", join_policy=k_of_n", "needs join_k=1 to 3"),
    (", join_policy=k_of_n, join_k=4", "needs join_k=1 to 3"), (", quorum=2", "not a fraction"),
    (", error_policy=x", "error_policy='x' is unknown; use continue"), (", max_parallel=many", "not a number"),
])
def test_an_invalid_policy_is_refused(text: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        program_of(THREE % text)


# ---- fan-in


def test_the_fan_in_names_the_best_branch() -> None:
    def best(script: dict[str, Outcome]) -> tuple[str, str]:
        context = drive(THREE % "", script).state.context()
        return context["parallel.fan_in.best_id"], context["parallel.fan_in.best_outcome"]

    def scored(score: object, status: str = SUCCESS) -> Outcome:
        return Outcome(status, context_updates={"score": score})

    assert best({}) == ("a", SUCCESS)
    assert best({"a": fail(), "b": Outcome(PARTIAL)}) == ("c", SUCCESS)
    assert best({"a": scored(1), "b": scored(3), "c": scored(2)}) == ("b", SUCCESS)
    assert best({"a": scored(9, PARTIAL), "b": scored("high"), "c": scored(0.5)}) == ("c", SUCCESS)


# ---- nesting and leaving

NESTED = """p [shape=component] q [shape=component] f [shape=tripleoctagon] g [shape=tripleoctagon]
            start -> p -> q -> {a b} -> g -> d -> f; p -> c -> f; f -> exit """


def test_parallels_nest() -> None:
    run = FlowRun(NESTED)
    assert sorted(run.state.in_flight) == ["p#1/c/c#1", "p#1/q/q#1/a/a#1", "p#1/q/q#1/b/b#1"]
    run.run()
    assert run.result == "done"
    assert results(run) == [("q", SUCCESS), ("c", SUCCESS)]
    inner = run.state.context()["parallel.results"][0]["context"]
    assert [one["id"] for one in inner["parallel.results"]] == ["a", "b"]
    assert list(run.state.contexts) == [""]
    assert not run.state.fans
    run = drive("p [shape=component] q [shape=component] f [shape=tripleoctagon]"
               "start -> p -> q -> {a b} -> f; p -> c -> f; f -> exit")
    assert run.result == "done"
    assert results(run) == [("q", SUCCESS), ("c", SUCCESS)]
    run = drive(NESTED, {"a": fail(), "b": fail()})
    assert run.result == "done"
    assert run.state.outcomes["p"].status == PARTIAL
    assert results(run) == [("q", FAIL), ("c", SUCCESS)]
    run = FlowRun(NESTED.replace("p [shape=component]", "p [shape=component, join_policy=first_success]"))
    change = run.finish(run.state.in_flight["p#1/c/c#1"])
    assert sorted(place.id for place in change.cancelled) == ["p#1/q/q#1/a/a#1", "p#1/q/q#1/b/b#1"]
    assert run.result == "done"
    assert (list(run.state.branches), list(run.state.contexts), run.state.fans) == ([""], [""], {})
    run = drive("p [shape=component] start -> p -> {a b} -> exit")
    assert (run.result, run.state.completed) == ("done", ["start", "a", "b", "p", "exit"])


def test_a_branch_that_goes_back_to_its_parallel_or_to_an_outer_join_has_left_it() -> None:
    run = drive('p [shape=component] f [shape=tripleoctagon] start -> p -> {a b} -> f -> exit\n'
               'a -> p [condition="fail"]', {"a": fail()})
    assert run.state.context()["parallel.results"][0]["failure_reason"] == "branch_left_parallel"
    assert run.result == "done"
    run = drive(NESTED + 'a -> f [condition="fail"]', {"a": fail()})
    assert run.result == "done"
    inner = run.state.context()["parallel.results"][0]["context"]["parallel.results"]
    assert [(one["id"], one["status"], one["failure_reason"]) for one in inner] == [
        ("a", FAIL, "branch_left_parallel"), ("b", SUCCESS, "")]


AWAY = """p [shape=component, %s] f [shape=tripleoctagon] a [retry_target=%s] start -> s -> p -> {a0 b}; a0 -> a -> f
          b -> f -> exit"""


def test_a_retry_target_outside_cancels_the_parallel_and_its_running_nodes() -> None:
    for target in ("s", "p"):
        run = drive(AWAY % ("", target), {"a": [fail("x"), OK]})
        assert (run.result, run.trace.count("s"), run.trace.count("a0")) == ("done", 1 + (target == "s"), 2)
        assert run.state.completed.count("p") == 1
        assert run.state.context()["last_failed_node"] == "a" and run.state.branches.keys() == {""}
    run = FlowRun(AWAY % ("", "s"), {"a": [fail("x"), OK]})
    run.finish(run.state.in_flight["s#1"])
    run.finish(run.state.in_flight["p#1/a0/a0#1"])
    change = run.finish(run.state.in_flight["p#1/a0/a#1"])
    assert [place.id for place in change.cancelled] == ["p#1/b/b#1"] and not run.state.fans
    assert [(place.id, place.reason) for place in run.state.in_flight.values()] == [("s#2", "a failed: x")]


def test_a_retry_target_leaves_only_as_many_parallels_as_needed() -> None:
    text = """p [shape=component] f [shape=tripleoctagon] q [shape=component] g [shape=tripleoctagon]
              a [retry_target=%s] start -> s -> p -> {t b}; t -> q -> {a c} -> g -> f; b -> f -> exit"""
    inner = drive(text % "t", {"a": [fail("x"), OK]})
    assert [inner.trace.count(node) for node in "stab"] == [1, 2, 2, 1]
    outer = drive(text % "s", {"a": [fail("x"), OK]})
    assert [outer.trace.count(node) for node in "sta"] == [2, 2, 2]
    for policy in ("join_policy=first_success", "join_policy=quorum", "join_policy=k_of_n, join_k=1",
                   "error_policy=ignore"):
        assert drive(AWAY % (policy, "s"), {"a": [fail("x"), OK]}).trace.count("s") == 1
    run = drive(AWAY % ("", "a0"), {"a": [fail("x"), OK]})
    assert (run.trace.count("a0"), run.trace.count("b")) == (2, 1), "a target within the parallel keeps it"
    run = drive("""p [shape=component] f [shape=tripleoctagon] a [goal_gate=true, retry_target=p]
                  start -> p -> {a b} -> f -> exit; a -> f [condition="fail"]""", {"a": [fail(), fail("2"), OK]})
    assert (run.result, run.state.redirects, run.trace.count("b")) == ("done", 2, 3)


# ---- loading in the middle


def test_finished_branches_survive_a_reload() -> None:
    run = FlowRun(THREE % ", max_parallel=2", {"a": Outcome(SUCCESS, context_updates={"from": "a"})})
    run.finish(run.state.in_flight["p#1/a/a#1"])
    state = reloaded(run.state)
    assert state == run.state
    while state.in_flight:
        place = min(state.in_flight.values(), key=lambda place: place.id)
        assert place.node != "a"
        advance(run.program, state, Finished(place.id, OK))
    assert state.status == "done"
    assert state.context()["parallel.results"][0]["context"] == {"from": "a"}


def test_a_failed_parallel_is_retried_as_often_as_its_max_retries() -> None:
    """By its own retries; the graph's default is for the nodes in it."""
    body = THREE % ", join_policy=all_success, max_retries=1" + "default_max_retries=0"
    run = drive(body, {"b": [fail("red"), OK]})
    assert run.path == "a b c a b c"
    assert run.result == "done"
    assert run.state.visits["p"] == 2
    assert run.state.context()["internal.retry_count.p"] == 0
    assert run.changes[3].started[0].reason == "2 of 3 branches succeeded (b: red)"
    again = drive(body, {"b": fail("red")})
    assert again.path == "a b c a b c"
    assert again.state.outcomes["p"].status == FAIL
    others = THREE % ", join_policy=all_success" + "default_max_retries=3"
    assert drive(others, {"b": fail("x", "deterministic")}).path == "a b c"


def test_a_resume_retries_the_node_that_failed_not_the_one_that_passed_it_on() -> None:
    """Seen: a fan-in, visited again alone, counted the one branch that had succeeded as a success of all."""
    passes = 'c [shape=diamond] start -> a -> b -> c; c -> exit [condition="outcome=success"]'
    for body, ran in ((THREE % ", join_policy=all_success", "a b c a b c"), (passes, "a b b"),
                      ("flow=dag " + passes, "a b b")):
        run = drive(body, {"b": [fail("red", "deterministic"), OK]})
        assert run.state.status == "failed"
        run.apply(Resumed(again=True))
        assert run.run().path == ran
        assert run.result == "done"
