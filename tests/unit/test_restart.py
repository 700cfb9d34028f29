"""Restart policy, and the next step of a supervisor for one name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.records.identity import Identity
from garrison.supervise.decisions import START_RECHECK, ChildState, decide_restart
from garrison.supervise.restart import Circuit, Death, Policy, apply_policy
from garrison.supervise.verdict import Verdict
from garrison.values import replace

POLICY = Policy(total=10)
NOW = 10_000.0


def deaths(*ages: float, boot: str = "b1") -> list[Death]:
    """Return a death for each age, in seconds before NOW."""
    return [Death(number + 1, NOW - age, boot) for number, age in enumerate(ages)]


@pytest.mark.parametrize(("ages", "delay"), [
    ((), 0), ((0,), 0), ((599,), 0), ((1, 0), 0.5), ((2, 1, 0), 1), ((3, 2, 1, 0), 2), ((4, 3, 2, 1, 0), 4)])
def test_the_first_restart_is_immediate_then_it_backs_off(ages: tuple[float, ...], delay: float) -> None:
    decision = apply_policy(deaths(*ages), NOW, "b1", POLICY)
    assert decision.at is not None and NOW + delay <= decision.at <= NOW + delay * 1.25


def test_the_delay_starts_at_the_last_death_and_is_zero_after_a_healthy_period() -> None:
    at = apply_policy(deaths(0.05, 50, 20), NOW, "b1", POLICY).at
    assert at is not None and NOW - 0.05 + 1 <= at <= NOW - 0.05 + 1.25
    assert apply_policy(deaths(900, 800, 700, 0), NOW, "b1", POLICY).at == NOW


def test_the_sixth_death_in_the_sliding_window_parks() -> None:
    decision = apply_policy(deaths(5, 4, 3, 2, 1, 0), NOW, "b1", POLICY)
    assert decision.park and decision.at is None and decision.why == "6 deaths in 600 s, the limit is 5"
    assert apply_policy(deaths(599.9, 4, 3, 2, 1, 0), NOW, "b1", POLICY).park
    assert not apply_policy(deaths(600, 4, 3, 2, 1, 0), NOW, "b1", POLICY).park
    assert not apply_policy(deaths(1000, 900, 800, 4, 3, 2, 1, 0), NOW, "b1", POLICY).park


@pytest.mark.parametrize(("kind", "lasts"), [("crash", 5.0), ("memory", 300.0), ("host", 120.0)])
def test_a_series_of_deaths_does_not_use_up_the_allowance(kind: str, lasts: float) -> None:
    """Each incarnation dies immediately, as under memory pressure; none is parked within `lasts` seconds."""
    known: list[Death] = []
    now = NOW
    while now < NOW + lasts:
        known.append(Death(len(known) + 1, now, "b1", kind=kind))
        decision = apply_policy(known, now, "b1", POLICY)
        assert decision.at is not None, f"parked after {now - NOW:.1f} s and {len(known)} deaths: {decision.why}"
        now = decision.at + 0.1
    assert len(known) > 3


def test_deaths_for_lack_of_memory_park_a_name_at_last_and_never_restart_at_once() -> None:
    few = [Death(number, NOW - 600 + 20 * number, "b1", kind="memory") for number in range(1, 26)]
    decision = apply_policy(few, NOW - 100, "b1", POLICY)
    assert decision.at is not None and decision.at >= NOW - 100 + 2
    more = [Death(number, NOW - 590 + 20 * number, "b1", kind="memory") for number in range(1, 28)]
    assert apply_policy(more, NOW - 40, "b1", POLICY).kind == "park"
    first = apply_policy([Death(1, NOW, "b1", kind="memory")], NOW, "b1", POLICY)
    assert first.at is not None and NOW + 2 <= first.at <= NOW + 2.5


def test_a_lost_host_counts_as_a_fifth_of_a_death() -> None:
    assert apply_policy([Death(1, NOW, "b1", kind="host")], NOW, "b1", POLICY).at == NOW
    lost = [Death(number, NOW - 500 + 10 * number, "b1", kind="host") for number in range(1, 21)]
    assert apply_policy(lost, NOW, "b1", POLICY).kind == "start"
    assert apply_policy([Death(each.incarnation, each.monotonic, "b1") for each in lost], NOW, "b1", POLICY).park


def test_the_delay_is_capped() -> None:
    patient = Policy(intensity=100, total=100)
    at = apply_policy(deaths(*[0] * 6), NOW, "b1", patient).at
    assert at is not None and NOW + 8 <= at <= NOW + 10
    for count in (11, 40, 100):
        assert apply_policy(deaths(*[0] * count), NOW, "b1", patient).at == pytest.approx(NOW + 30)


def test_the_total_of_an_attempt_has_no_window() -> None:
    old = [10_000 - 900 * number for number in range(11)]
    assert not apply_policy(deaths(*old[:10]), NOW, "b1", POLICY).park
    decision = apply_policy(deaths(*old), NOW, "b1", POLICY)
    assert decision.park and decision.why == "11 deaths in this attempt, the limit is 10"


def test_deaths_of_another_boot_count_only_in_the_total() -> None:
    elsewhere = deaths(5, 4, 3, 2, 1, 0, boot="b0")
    assert apply_policy(elsewhere, NOW, "b1", POLICY).at == NOW
    both = elsewhere + deaths(4, 3, 2, 1, 0)
    assert apply_policy(both, NOW, "b1", POLICY).why == "11 deaths in this attempt, the limit is 10"


@given(st.lists(st.floats(0, 5000), max_size=14), st.floats(0, 700))
def test_a_later_decision_never_delays_the_restart(ages: list[float], wait: float) -> None:
    before = apply_policy(deaths(*ages), NOW, "b1", POLICY)
    after = apply_policy(deaths(*ages), NOW + wait, "b1", POLICY)
    if before.at is not None:
        assert after.at is not None and after.at <= max(before.at, NOW + wait)
        assert before.at <= NOW + POLICY.cap


LIFE = Identity("id", "runner", "a", "r1", "2026-01-31T12:00:00.000000Z", pid=7, incarnation=3)
CRASHED = replace(LIFE, status="crashed", metadata={"reason": "process 7 is gone"})


def step(identity: Identity | None, state: str = "", known: list[Death] | None = None, now: float = NOW) -> tuple[str,
                                                                                                                  str]:
    verdict = Verdict(state, "because") if state else None
    found = decide_restart(ChildState(identity, verdict), known or [], now, "b1", POLICY)
    return found.kind, found.why


@pytest.mark.parametrize(("identity", "state", "kind", "why"), [
    (None, "", "start", "first start"),
    (LIFE, "alive", "none", "because"), (LIFE, "starting", "none", "because"), (LIFE, "elsewhere", "none", "because"),
    (LIFE, "dead", "replace", "because"), (LIFE, "lapsed", "replace", "because"),
    (replace(LIFE, status="terminated", metadata={"reason": "stopped"}), "ended", "ended", "stopped"),
    (replace(LIFE, status="parked", metadata={"reason": "6 deaths"}), "ended", "park", "6 deaths"),
    (CRASHED, "ended", "record", "process 7 is gone"),
])
def test_each_state_of_a_child_has_a_next_step(identity: Identity | None, state: str, kind: str, why: str) -> None:
    assert step(identity, state) == (kind, why)


def test_a_starting_process_is_observed_again_soon() -> None:
    """Only time changes its verdict, and the kernel may report its death earlier."""
    for circuit in (Circuit(), Circuit("probing", since=NOW - 1, boot_id="b1", probe=3)):
        starting = decide_restart(ChildState(LIFE, Verdict("starting", "because")), [], NOW, "b1", POLICY, circuit)
        assert (starting.kind, starting.at) == ("none", NOW + START_RECHECK)


def test_a_recorded_death_leads_to_start_wait_or_park() -> None:
    this = [Death(3, NOW, "b1")]
    assert step(CRASHED, "ended", [Death(2, NOW, "b1")])[0] == "record"
    assert step(CRASHED, "ended", this) == ("start", "first restart in the window: at once")
    two = [Death(2, NOW - 1, "b1"), *this]
    assert step(CRASHED, "ended", two)[0] == "wait"
    assert step(CRASHED, "ended", two, NOW + 0.626)[0] == "start"
    assert step(CRASHED, "ended", deaths(5, 4, 3, 2, 1, 0))[0] == "park"
    assert NOW + 0.5 <= decide_restart(ChildState(CRASHED, Verdict("ended", "")), two, NOW, "b1",
                                       POLICY).at <= NOW + 0.625
