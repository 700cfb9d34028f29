"""Which signals may be obeyed, and how their files are called. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.records.names import Key
from garrison.records.signals import (
    BY_ATTEMPT,
    BY_INCARNATION,
    TO_INCARNATION,
    TYPES,
    Signal,
    describe_own,
    file_name,
    find_objection,
    parse,
)

AT = "2026-01-31T12:00:00.000001Z"
ATTEMPTS = {"a": 2}
LIVES = {"runner-a@r1": 4, "orchestrator-a@r1": 3}


def signal(kind: str, **changes: Any) -> Signal:
    body: dict[str, Any] = {"id": "i", "source": {"role": "runner", "name": "a", "incarnation": 4},
                            "target": {"role": "guardian", "name": "p"}, "signal_type": kind, "run_id": "r1",
                            "timestamp": AT, "node_id": "a", "attempt": 2}
    return Signal(**{**body, **changes})


def ask(kind: str, **changes: Any) -> str | None:
    return find_objection(signal(kind, **changes), "r1", ATTEMPTS, LIVES)


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_a_signal_of_this_run_attempt_and_incarnation_is_applied(kind: str) -> None:
    assert ask(kind, target={"role": "runner", "name": "a"}) is None


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_another_run_is_never_obeyed(kind: str) -> None:
    assert ask(kind, run_id="r2") == "it is of run r2, this is r1"


@pytest.mark.parametrize("kind", sorted(TYPES))
@pytest.mark.parametrize("attempt", [0, 1, 3])
def test_another_attempt(kind: str, attempt: int) -> None:
    why = ask(kind, attempt=attempt, source={"role": "runner", "name": "a", "incarnation": 9})
    expected = f"it is of attempt {attempt} of a, the current one is 2" if kind in BY_ATTEMPT else None
    assert why == expected


@pytest.mark.parametrize("kind", sorted(TYPES))
@pytest.mark.parametrize("node", ["b", None])
def test_another_runs_node(kind: str, node: str | None) -> None:
    assert ask(kind, node_id=node) == (f"this run has no node {node}" if kind in BY_ATTEMPT else None)


@pytest.mark.parametrize("kind", sorted(TYPES))
@pytest.mark.parametrize(("life", "older"), [(3, True), (4, False), (5, False), (None, True), (0, True), ("3", True)])
def test_an_older_incarnation(kind: str, life: Any, older: bool) -> None:
    why = ask(kind, source={"role": "runner", "name": "a", "incarnation": life})
    assert why == ("runner-a@r1 has a later incarnation (4)" if older and kind in BY_INCARNATION else None)


def test_death_does_not_unsay() -> None:
    gone = {"role": "runner", "name": "gone", "incarnation": 1}
    for kind in TYPES:
        assert ask(kind, source=gone) is None, kind


@pytest.mark.parametrize("kind", sorted(TYPES))
@pytest.mark.parametrize(("payload", "over"), [({}, None), ({"incarnation": 3}, None),
                                               ({"incarnation": 2}, "incarnation 2"),
                                               ({"incarnation": 4}, "incarnation 4"),
                                               ({"incarnation": "3"}, "incarnation 3"),
                                               ({"incarnation": None}, "incarnation None")])
def test_commands_for_one_incarnation(kind: str, payload: dict[str, Any], over: str | None) -> None:
    why = ask(kind, target={"role": "runner", "name": "a"}, payload=payload)
    if over and kind in TO_INCARNATION:
        assert why == f"it was meant for {over} of orchestrator-a@r1, which is over"
    else:
        assert why is None


def test_the_tables_name_only_known_types_and_a_signal_its_sender_and_recipient() -> None:
    sent = signal("GUIDANCE")
    assert sent.sender == Key("runner", "a", "r1") and sent.recipient == Key("guardian", "p", "r1")
    assert BY_ATTEMPT | BY_INCARNATION | TO_INCARNATION <= TYPES
    assert len(TYPES) == 20
    assert {"NODE_COMPLETE", "MERGE_READY", "MERGE_COMPLETE", "MERGE_FAILED"} <= BY_ATTEMPT
    assert {"RUNNER_EXITED", "ORCHESTRATOR_CRASHED"} == BY_INCARNATION
    assert {"KILL_ORCHESTRATOR", "INPUT_RESPONSE"} == TO_INCARNATION


@given(st.integers(0, 999_999), st.integers(0, 999_999))
def test_files_sort_in_the_order_of_writing(first: int, second: int) -> None:
    names = [file_name(signal("GUIDANCE"), number) for number in (first, second)]
    assert (names[0] < names[1]) == (first < second)
    later = file_name(signal("GUIDANCE", timestamp="2026-01-31T12:00:00.000002Z"), first)
    assert later > names[1]


def test_a_users_own_type_is_a_signal_with_no_other_effect() -> None:
    own = {"id": "s1", "source": {"role": "launch", "name": "p", "incarnation": 0},
           "target": {"role": "guardian", "name": "p"}, "run_id": "r1", "timestamp": "2026-01-01T00:00:00Z"}
    for name in ("X-deployed", "X-1", "X-" + "a" * 40):
        signal = Signal(signal_type=name, payload={"text": "to  staging\n"}, **own)
        assert (parse(signal), find_objection(signal, "r1", {}, {})) == (None, None)
        assert describe_own(signal) == "to staging"
    assert describe_own(Signal(signal_type="X-a", payload={"run_id": "r1", "n": 1}, **own)) == '{"n": 1}'
    for name in ("X-", "x-deployed", "X-a b", "X-../a", "X-" + "a" * 41, "DEPLOYED", "X-a\n"):
        with pytest.raises(ValueError, match="one of your own begins with X-"):
            Signal(signal_type=name, **own)
