"""Retries and their delays, budgets, suspension, and resumption of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_driver import OK, FlowRun, drive, fail, program_of, reloaded
from garrison.errors import ForbiddenTransition, Refused
from garrison.pipeline.flow import Aborted, Finished, Restarted, Resumed, Suspended, TimedOut, event_from_data
from garrison.pipeline.flow.program import PRESETS, RetryPolicy
from garrison.pipeline.flow.state import FLOW_STATUS
from garrison.pipeline.outcome import PARTIAL, RETRY, SUCCESS, Outcome
from garrison.values import asdict

# ---- how often


@pytest.mark.parametrize(("graph", "node", "attempts"), [
    ("", "", 1), ("", "max_retries=3", 4), ("", "max_retries=0", 1), ("", "max_retries=-2", 1),
    ("default_max_retries=2;", "", 3), ("default_max_retry=2;", "", 3), ("default_max_retries=2;", "max_retries=0", 1),
    ("", "retry_policy=standard", 5), ("", "retry_policy=none", 1), ("", "retry_policy=patient", 3),
    ("retry_policy=linear;", "", 3), ("retry_policy=linear;", "max_retries=1", 2),
    ("default_max_retries=7;", "retry_policy=patient", 3), ("retry_policy=linear; default_max_retries=7;", "", 8),
    ("", "retry_policy=Aggressive, max_retries=1", 2),
])
def test_number_of_attempts(graph: str, node: str, attempts: int) -> None:
    program = program_of(f"{graph} a [{node}] start -> a -> exit")
    assert program.units["a"].retry.attempts == attempts
    assert drive(program, {"a": fail()}).trace == ["a"] * attempts


def test_delays_of_the_presets() -> None:
    for name, delays in (("standard", [0.2, 0.4, 0.8, 1.6, 3.2]), ("aggressive", [0.5, 1.0, 2.0, 4.0, 8.0]),
                         ("linear", [0.5, 0.5, 0.5]), ("patient", [2.0, 6.0, 18.0])):
        policy = PRESETS[name]
        plain = RetryPolicy(policy.attempts, policy.first_s, policy.factor, jitter=False)
        assert [plain.delay(count, "") for count in range(1, len(delays) + 1)] == delays
    with pytest.raises(Refused, match="node a: retry_policy='eager' is unknown; use none, standard"):
        program_of("a [retry_policy=eager] start -> a -> exit")


@given(st.sampled_from(list(PRESETS.values())), st.integers(1, 10_000), st.text(max_size=5))
def test_a_delay_depends_on_the_seed_and_is_at_most_a_minute(policy: RetryPolicy, repetition: int, seed: str) -> None:
    delay = policy.delay(repetition, seed)
    assert delay == policy.delay(repetition, seed)
    assert 0.5 * min(policy.first_s, 60) <= delay <= 60


def test_the_seed_of_the_run_the_node_and_the_attempt_decide_a_delay() -> None:
    text = "a [max_retries=1] b [max_retries=1] start -> a -> b -> exit"

    def delays(seed: str) -> list[float]:
        run = drive(text, {"a": [fail(), OK], "b": [fail(), OK]}, seed=seed)
        return [place.delay_s for change in run.changes for place in change.retried]

    assert delays("one") == delays("one") != delays("two")
    assert len(set(delays("one"))) == 2
    assert all(0.1 <= delay <= 0.3 for delay in delays("one"))

    run = drive("retry_jitter=false; a [max_retries=3] start -> a -> exit", {"a": fail()})
    assert [place.delay_s for change in run.changes for place in change.retried] == [0.2, 0.4, 0.8]


def test_a_retry_is_the_next_attempt_at_the_same_place_with_the_reason() -> None:
    run = FlowRun("a [max_retries=1] start -> a -> exit", {"a": [fail("flaky net"), OK]})
    change = run.finish(run.state.in_flight["a#1"])
    place = run.state.in_flight["a#1"]
    assert change.started == change.retried == [place]
    assert (place.attempt, place.failed, place.reason, place.visit) == (2, 1, "flaky net", 1)
    assert run.state.context()["internal.retry_count.a"] == 1
    assert change.finished == []
    with pytest.raises(ForbiddenTransition, match="attempt 2"):
        run.apply(Finished("a#1", OK, attempt=1))
    assert run.run().result == "done"
    assert run.state.completed == ["start", "a", "exit"]
    assert run.state.context()["internal.retry_count.a"] == 0
    run = drive("""a [max_retries=1] start -> a; a -> a [condition="fail"]; a -> exit""",
               {"a": [fail("1"), fail("2"), fail("3"), OK]})
    assert (run.result, run.state.visits["a"]) == ("done", 2)


def test_retry_is_retried_and_then_fails_or_counts_as_partial() -> None:
    text = "a [max_retries=2%s] start -> a -> exit"
    assert drive(text % "", {"a": RETRY}).result == "failed: max retries exceeded"
    assert drive(text % "", {"a": Outcome(RETRY, failure_reason="busy")}).result == "failed: busy"
    run = drive(text % ", allow_partial=true", {"a": RETRY})
    assert (run.result, run.path, run.state.outcomes["a"].status) == ("done", "a a a", PARTIAL)
    assert drive(text % ", allow_partial=true", {"a": fail("x")}).result == "failed: x"


def test_a_lost_attempt_is_not_a_failure() -> None:
    run = FlowRun("a [max_retries=1] start -> a -> exit", {"a": [fail("x"), OK]})
    change = run.apply(Restarted("a#1", "its process died"))
    assert [(place.attempt, place.failed, place.reason) for place in change.started] == [(2, 0, "its process died")]
    run.apply(Restarted("a#1"))
    run.finish(run.state.in_flight["a#1"])
    assert (run.state.in_flight["a#1"].attempt, run.state.in_flight["a#1"].failed) == (4, 1)
    assert run.run().result == "done"
    with pytest.raises(ForbiddenTransition):
        run.apply(Restarted("a#1"))


# ---- steps, visits, stuck cycles

LOOP = "start -> a -> b -> a; b -> exit [condition=\"context.enough\"] %s"


def test_max_steps_keeps_what_is_next_and_can_be_resumed_with_more() -> None:
    run = drive("max_steps=4;" + LOOP % "")
    assert (run.result, run.path, run.state.steps) == ("failed: max_steps_exceeded", "a b a", 4)
    run.state = reloaded(run.state)
    change = run.apply(Resumed(max_steps=6))
    assert ([place.id for place in change.started], run.result) == (["b#2"], "running")
    assert run.run().result == "failed: max_steps_exceeded"
    assert run.path == "a b a b a"
    assert run.apply(Resumed()).ended == "failed"
    assert drive("max_steps=4;" + LOOP % "", max_steps=2).path == "a"
    assert drive(LOOP % "").state.steps == 500
    assert drive("start -> a -> exit", max_steps=3).result == "done"
    assert drive("start -> a -> exit", max_steps=2).result == "failed: max_steps_exceeded"
    assert drive("start -> a -> exit", max_steps=0).result == "failed: max_steps_exceeded"
    run = FlowRun("max_steps=4;" + LOOP % "")
    run.apply(Resumed(max_steps=20))
    assert run.run().state.steps == 20


def test_max_node_visits() -> None:
    for text in ("max_node_visits=2;" + LOOP % "", LOOP % "a [max_node_visits=2]",
                 "max_node_visits=9;" + LOOP % "a [max_visits=2]"):
        run = drive(text)
        assert (run.result, run.path) == ("failed: max_node_visits_exceeded", "a b a b")
        with pytest.raises(ForbiddenTransition):
            run.apply(Resumed(again=True))


def test_the_same_failure_three_times_in_a_row_is_a_stuck_cycle() -> None:
    text = """start -> a -> exit; a -> fix [condition="fail"]; fix -> a"""
    run = drive(text, {"a": fail("same")})
    assert (run.result, run.path) == ("failed: stuck_cycle", "a fix a fix a")
    assert drive(text, {"a": [fail("1"), fail("1"), fail("2"), fail("2"), fail("1"), OK]}).result == "done"
    assert drive(text, {"a": [fail("1"), fail("1"), OK]}).result == "done"
    run = drive("""start -> a -> b; a -> a [condition="fail"]; b -> a [condition="context.n<3"]; b -> exit""",
               lambda place: fail("same") if place.node == "a" and place.visit % 3 else Outcome(
                   SUCCESS, context_updates={"n": place.visit}))
    assert run.result == "done"
    assert run.trace.count("a") == 9
    assert drive("a [max_retries=4] start -> a -> exit", {"a": [fail("x")] * 4 + [OK]}).result == "done"


def test_max_same_failures_of_graph_and_node() -> None:
    for graph, node, result, times in (
            ("", "max_same_failures=2", "failed: stuck_cycle", 2),
            ("max_same_failures=4;", "", "failed: stuck_cycle", 4),
            ("max_same_failures=4;", "max_same_failures=1", "failed: stuck_cycle", 1),
            ("max_same_failures=0;", "", "done", 7), ("", "max_same_failures=0", "done", 7)):
        run = drive(f"""{graph} a [{node}] start -> a -> exit; a -> fix [condition="fail"]; fix -> a""",
                    {"a": [fail("same")] * 6 + [OK]})
        assert (run.result, run.trace.count("a")) == (result, times)


def test_a_stuck_node_has_all_its_attempts_again_when_resumed_and_a_parallel_all_its_branches() -> None:
    run = drive("""start -> a -> exit; a -> a [condition="fail"]""", {"a": [fail("x")] * 5 + [OK]})
    assert (run.result, run.path) == ("failed: stuck_cycle", "a a a")
    run.apply(Resumed(again=True))
    assert (run.run().result, run.path) == ("done", "a a a a a a")
    run = drive("""p [shape=component] f [shape=tripleoctagon] start -> p -> {a b} -> f -> exit
                  a -> a [condition="fail"]""", {"a": [fail("x")] * 3 + [OK]})
    assert run.result == "failed: stuck_cycle"
    change = run.apply(Resumed(again=True))
    assert sorted(place.id for place in change.started) == ["p#2/a/a#1", "p#2/b/b#1"]
    assert (list(run.state.fans), list(run.state.branches)) == (["p#2"], ["", "p#2/a", "p#2/b"])
    assert run.run().result == "done"


# ---- time, people, and resumption

PARALLEL = "p [shape=component] f [shape=tripleoctagon] start -> p -> {a b} -> f -> c -> exit"


def test_a_stopped_run_keeps_what_was_in_flight() -> None:
    for event, reason in ((TimedOut(), "max_pipeline_duration_exceeded"), (Aborted("by hand"), "aborted")):
        run = FlowRun(PARALLEL)
        run.finish(run.state.in_flight["p#1/a/a#1"])
        change = run.apply(event)
        assert (run.result, [place.node for place in change.cancelled]) == (f"failed: {reason}", ["b"])
        with pytest.raises(ForbiddenTransition):
            run.apply(Finished("p#1/b/b#1", OK))
        run.state = reloaded(run.state)
        assert [(place.id, place.attempt) for place in run.apply(Resumed()).started] == [("p#1/b/b#1", 2)]
        assert run.run().path == "a b c"
        assert (run.result, run.state.detail) == ("done", "")


def test_a_run_that_waits_for_people() -> None:
    run = FlowRun(PARALLEL)
    assert run.apply(Suspended("b wants an answer")).started == []
    assert run.result == "waiting"
    run.state = reloaded(run.state)
    run.finish(run.state.in_flight["p#1/a/a#1"])
    assert run.result == "running"
    run.apply(Suspended())
    assert run.apply(Resumed()).started == []
    assert run.run().result == "done"


def test_a_run_that_failed_at_a_node_resumes_there_with_again() -> None:
    run = drive("start -> a -> b -> exit", {"b": [fail("x"), OK]})
    assert run.result == "failed: x"
    with pytest.raises(ForbiddenTransition):
        run.apply(Resumed(max_steps=10_000))
    assert [(place.id, place.reason) for place in run.apply(Resumed(again=True)).started] == [("b#2", "x")]
    assert run.run().path == "a b b"
    assert run.result == "done"


def test_the_transitions_of_a_run_and_a_done_run_accepts_no_event() -> None:
    assert {(old, new) for old, allowed in FLOW_STATUS.items() for new in allowed} == {
        ("running", "waiting"), ("running", "done"), ("running", "failed"), ("waiting", "running"), ("waiting", "done"),
        ("waiting", "failed"), ("failed", "running"), ("done", "running")}  # done: sent back
    run = FlowRun("start -> a -> exit")
    run.apply(Suspended())
    with pytest.raises(ForbiddenTransition):
        run.apply(Suspended())
    run = drive("start -> a -> exit")
    before = run.state.to_data()
    for event in (Suspended(), Resumed(), TimedOut(), Aborted(), Finished("a#1", OK), Restarted("a#1")):
        with pytest.raises(ForbiddenTransition):
            run.apply(event)
    assert run.state.to_data() == before


def test_events_can_be_journaled() -> None:
    for event in (Finished("a#1", Outcome(SUCCESS, "x", ("b",), {"k": [1]}), 2), Finished("a#1", None),
                  Restarted("a#1", "r"), Suspended("s"), Resumed(5, again=True), Resumed(), Resumed(max_steps=0),
                  TimedOut("t"), Aborted()):
        assert event_from_data(asdict(event)) == event
