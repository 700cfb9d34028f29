"""Rules by which signals are obeyed, and the names of their files. Pure."""

from __future__ import annotations

from collections.abc import Set
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


def runner(incarnation: object) -> dict[str, Any]:
    return {"role": "runner", "name": "a", "incarnation": incarnation}


@pytest.mark.parametrize(("changes", "kinds", "objection"), [
    ({"target": {"role": "runner", "name": "a"}}, (), ""),
    ({"run_id": "r2"}, TYPES, "it belongs to run r2, this is r1"),
    *(({"attempt": attempt, "source": runner(9)}, BY_ATTEMPT,
       f"it belongs to attempt {attempt} of a, the current one is 2") for attempt in (0, 1, 3)),
    *(({"node_id": node}, BY_ATTEMPT, f"this run has no node {node}") for node in ("b", None)),
    *(({"source": runner(older)}, BY_INCARNATION, "runner-a@r1 has a later incarnation (4)")
      for older in (3, None, 0, "3")),
    ({"source": runner(4)}, (), ""), ({"source": runner(5)}, (), ""),
    ({"source": {"role": "runner", "name": "gone", "incarnation": 1}}, (), ""),  # a death withdraws no signal
    ({"target": {"role": "runner", "name": "a"}, "payload": {"incarnation": 3}}, (), ""),
    *(({"target": {"role": "runner", "name": "a"}, "payload": {"incarnation": other}}, TO_INCARNATION,
       f"it was meant for incarnation {other} of orchestrator-a@r1, which is over") for other in (2, 4, "3", None)),
])
def test_a_signal_of_another_run_attempt_or_incarnation_is_refused(changes: dict[str, Any], kinds: Set[str],
                                                                   objection: str) -> None:
    for kind in TYPES:
        assert ask(kind, **changes) == (objection if kind in kinds else None), kind


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


def test_a_custom_type_is_a_signal_without_effect() -> None:
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
