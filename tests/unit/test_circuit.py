"""Classes of death, the sliding window, and how a parked name returns; without processes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.agents import trouble
from garrison.agents.conversation import policy as claude
from garrison.agents.trouble import TroubleKind, ruling
from garrison.config import Timing
from garrison.records.events import ChildDied, ChildHealed, ChildParked, ChildSpawned, decode_data
from garrison.records.identity import Identity
from garrison.supervise import restart
from garrison.supervise.death_classes import CLASSES
from garrison.supervise.decisions import ChildState, decide_restart
from garrison.supervise.restart import CLOSED, Circuit, Death, Policy, apply_policy, backoff_delay
from garrison.supervise.verdict import Verdict
from garrison.values import replace

BOOT, NOW = "b1", 10_000.0
POLICY = Policy()

# ------------------------------------------------------------------------------------------------------------- classes


@pytest.mark.parametrize(("kind", "kinds", "at"), [
    ("crash", "park", None), ("hung", "park", None), ("unheard of", "park", None),
    ("churn", "start", NOW), ("order", "start", NOW), ("reboot", "start", NOW), ("stop", "start", NOW),
    ("rate_limit", "start", NOW + 50), ("authentication", "park", None), ("billing", "park", None),
    ("budget", "park", None), ("clean", "rest", None)])
def test_the_decision_for_each_death_class(kind: str, kinds: str, at: float | None) -> None:
    many = [Death(number, NOW, BOOT, "why", kind, NOW + 50) for number in range(1, 40)]
    decision = apply_policy(many, NOW, BOOT, POLICY)
    assert (decision.kind, decision.at) == (kinds, at)


@pytest.mark.parametrize("kind", [kind for kind, ruling in CLASSES.items() if not ruling.counts])
def test_deaths_without_fault_count_neither_in_the_window_nor_in_the_total(kind: str) -> None:
    many = [Death(number, NOW, BOOT, "", kind) for number in range(1, 40)]
    decision = apply_policy([*many, Death(40, NOW, BOOT)], NOW, BOOT, Policy(total=1))
    assert (decision.kind, decision.at) == ("start", NOW)


def test_sessions_have_the_same_table_of_classes_and_a_death_of_an_older_journal_is_a_crash() -> None:
    assert {"authentication", "billing", "budget"} == claude.NEEDS_PERSON
    assert {"overloaded", "server", "network", "hang", "too_long"} == claude.COUNTED
    assert ruling(TroubleKind.CONTEXT).follows == "at once" and not ruling(TroubleKind.CONTEXT).counts
    assert set(trouble.CLASSES.values()) <= set(CLASSES)
    record = decode_data("death", {"full": "runner-a@r", "incarnation": 2, "monotonic": 3.0, "boot_id": "b"})
    assert isinstance(record, ChildDied)
    old = Death.of(record)
    assert old == Death(2, 3.0, "b", "", "crash") and old.counts


# -------------------------------------------------------------------------------------------------- window and backoff

policies = st.builds(Policy, window=st.floats(1, 1000), intensity=st.integers(0, 8), base=st.floats(0.01, 5),
                     cap=st.floats(5, 60), healthy=st.floats(0.5, 100), jitter=st.floats(0, 0.5))


@given(policies, st.lists(st.floats(0, 300), min_size=1, max_size=60), st.text(max_size=4))
def test_no_window_ever_holds_more_restarts_than_the_limit(policy: Policy, lives: list[float], name: str) -> None:
    """A punctual supervisor and lives of any length; a parked name waits for the whole window."""
    now, deaths, starts = 0.0, [], []
    for number, lived in enumerate(lives, 1):
        now += lived
        deaths.append(Death(number, now, BOOT))
        decision = apply_policy(deaths, now, BOOT, policy, CLOSED, name)
        if decision.at is None:
            break
        assert now <= decision.at <= now + policy.cap
        now = decision.at
        assert apply_policy(deaths, now, BOOT, policy, CLOSED, name).at is not None, "waiting does not make it worse"
        starts.append(now)
        assert sum(now - start < policy.window * (1 - 1e-9) for start in starts) <= policy.intensity


@given(policies, st.text(max_size=4), st.integers(1, 10**6))
def test_delays_grow_are_capped_and_the_first_is_none(policy: Policy, name: str, life: int) -> None:
    delays = [backoff_delay(running, policy, name, life + running) for running in range(1, 80)]
    assert delays[0] == 0 and delays == sorted(delays) and delays[-1] == policy.cap
    assert delays == [backoff_delay(running, policy, name, life + running) for running in range(1, 80)]


def test_names_that_died_together_do_not_come_back_together() -> None:
    assert len({backoff_delay(3, POLICY, f"runner-{name}@r", 4) for name in "abcdefgh"}) == 8


@pytest.mark.parametrize(("lived", "running"), [(59.0, 4), (61.0, 1)])
def test_a_healthy_period_resets_the_backoff(lived: float, running: int) -> None:
    deaths = [Death(number, NOW - lived - 3 + number, BOOT) for number in (1, 2, 3)]
    restarted = deaths[-1].monotonic + backoff_delay(3, POLICY, "", 3)
    at = apply_policy([*deaths, Death(4, restarted + lived, BOOT)], restarted + lived, BOOT, POLICY).at
    assert at == pytest.approx(restarted + lived + backoff_delay(running, POLICY, "", 4))


@given(st.lists(st.tuples(st.floats(0, 90), st.sampled_from(["crash", *CLASSES]), st.sampled_from(["b0", "b1"])),
                max_size=14), st.integers(0, 10**6), st.integers(0, 14))
def test_the_order_of_deaths_does_not_matter(told: list[tuple[float, str, str]], seed: int,
                                             forgiven: int) -> None:
    deaths = [Death(number, NOW - age, boot, "", kind) for number, (age, kind, boot) in enumerate(told, 1)]
    mixed = deaths.copy()
    random.Random(seed).shuffle(mixed)
    known = Circuit(forgiven=forgiven)
    assert apply_policy(deaths, NOW, BOOT, POLICY, known) == apply_policy(mixed, NOW, BOOT, POLICY, known)


def test_the_total_counts_what_the_window_has_forgiven() -> None:
    deaths = [Death(number, NOW, BOOT) for number in range(1, 8)]
    assert apply_policy(deaths, NOW, BOOT, Policy(total=6), Circuit(forgiven=6)).kind == "give_up"
    assert apply_policy(deaths, NOW, BOOT, Policy(total=7), Circuit(forgiven=6)).at == NOW


# --------------------------------------------------------------------------------------------------------- the circuit

LIFE = Identity("id", "runner", "a", "r1", "2026-01-31T12:00:00.000000Z", pid=7, incarnation=6)
SIX = [Death(number, NOW, BOOT) for number in range(1, 7)]


def park(known: Circuit = CLOSED, at: float = NOW, life: int = 6) -> Circuit:
    return restart.apply_event(known, ChildParked("runner-a@r", life, "6 deaths", at, BOOT))


def probe(known: Circuit, at: float, life: int = 7) -> Circuit:
    return restart.apply_event(known, ChildSpawned("runner-a@r", life, probe=True, monotonic=at, boot_id=BOOT))


def seen(status: str, incarnation: int, state: str = "ended") -> ChildState:
    return ChildState(replace(LIFE, status=status, incarnation=incarnation), Verdict(state, "seen"))


def kind(view: ChildState, deaths: list[Death], now: float, known: Circuit, boot: str = BOOT) -> tuple[str, float]:
    step = decide_restart(view, deaths, now, boot, POLICY, known)
    return step.kind, step.at


def test_a_parked_name_is_probed_after_the_cool_down_and_at_once_after_a_reboot() -> None:
    parked = park()
    assert kind(seen("parked", 6), SIX, NOW + 599, parked) == ("parked", NOW + 600)
    assert kind(seen("parked", 6), SIX, NOW + 600, parked) == ("probe", NOW + 600)
    assert kind(seen("crashed", 6), SIX, NOW + 599, parked)[0] == "parked"
    assert kind(seen("parked", 6), SIX, 5.0, parked, "b2")[0] == "probe"
    assert kind(seen("parked", 6), SIX, NOW, CLOSED)[0] == "park"


def test_a_probe_that_dies_parks_again_for_twice_as_long_up_to_a_cap() -> None:
    probing = probe(park(), NOW + 600)
    early = [*SIX, Death(7, NOW + 630, BOOT, "again")]
    step = decide_restart(seen("crashed", 7), early, NOW + 630, BOOT, POLICY, probing)
    assert (step.kind, step.why) == ("park", "its probe (incarnation 7) failed, parked again; the last: again")
    twice = park(probing, NOW + 630, 7)
    assert (twice.parks, POLICY.probe_due(twice, BOOT)) == (2, NOW + 630 + 1200)
    assert [POLICY.cool_down(parks) for parks in (1, 2, 3, 4, 5, 100)] == [600, 1200, 2400, 4800, 7200, 7200]


def test_a_probe_whose_start_the_journal_lost_is_recorded_and_has_failed() -> None:
    """Its supervisor or the machine died between the lease and its record."""
    parked, dead = park(), Death(7, NOW + 630, BOOT, "again")
    for boot in (BOOT, "b2"):
        assert kind(seen("crashed", 7), SIX, NOW + 630, parked, boot)[0] == "record"
        step = decide_restart(seen("crashed", 7), [*SIX, dead], NOW + 630, boot, POLICY, parked)
        assert (step.kind, step.why) == ("park", "its probe (incarnation 7) failed, parked again; the last: again")
    assert kind(seen("parked", 7), [*SIX, dead], NOW + 630, parked)[0] == "park"
    ordered = Death(7, NOW + 630, BOOT, "", "order")
    assert kind(seen("crashed", 7), [*SIX, ordered], NOW + 630, parked) == ("probe", NOW + 600)


def test_a_probe_that_stays_healthy_closes_the_circuit_and_empties_the_window() -> None:
    probing = probe(park(), NOW + 600)
    assert kind(seen("active", 7, "alive"), SIX, NOW + 659, probing) == ("none", NOW + 660)
    assert kind(seen("active", 7, "alive"), SIX, NOW + 660, probing)[0] == "heal"
    healed = restart.apply_event(probing, ChildHealed("runner-a@r", 7))
    assert healed == Circuit(forgiven=6)
    late = [*SIX, Death(7, NOW + 661, BOOT)]
    assert kind(seen("crashed", 7), late, NOW + 661, healed)[0] == "start"
    assert kind(seen("crashed", 7), late, NOW + 661, probing)[0] == "start", "no supervisor recorded that it healed"
    probing = probe(park(), NOW + 600)
    for reason in ("stop", "reboot", "order"):
        assert kind(seen("crashed", 7), [*SIX, Death(7, NOW + 601, BOOT, "", reason)], NOW + 601, probing)[0] == "start"


def test_an_unpark_empties_the_window_and_a_start_that_is_no_probe_changes_no_circuit() -> None:
    lifted = restart.reset_circuit(park(), 5)  # the record of incarnation 6 was lost, that of the park names it
    assert lifted == Circuit(forgiven=6)
    assert kind(seen("parked", 6), SIX, NOW, lifted)[0] == "start"
    for known in (CLOSED, park()):
        assert restart.apply_event(known, ChildSpawned("runner-a@r", 9)) == known


def test_the_first_cool_down_is_as_long_as_the_window_unless_it_is_set() -> None:
    assert Policy.of(Timing(restart_window=7)).cool_down(1) == 7
    assert Policy.of(Timing(restart_window=7, probe_after=2), 3).cool_down(2) == 4
    assert Policy.of(Timing(), 3).total == 3 and Policy.of(Timing(healthy_after=9)).healthy == 9
