"""Explanations: journaled decisions are replayed, records become lines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.records.identity import STATUSES, Identity
from garrison.records.journal import Entry
from garrison.supervise.decisions import (
    ChildState,
    DecisionInputs,
    decide_cleanup,
    decide_restart,
    decode_inputs,
    encode_inputs,
    replay,
)
from garrison.supervise.restart import Death, Policy
from garrison.supervise.verdict import Observation, judge
from garrison.views.event_log import QUEUE, LoggedEvent, subject_of
from garrison.views.explain import describe, explain, observation

NOW = "2026-01-31T12:00:00.000000Z"
DEATHS = st.lists(st.builds(Death, st.integers(1, 9), st.floats(0, 2000), st.sampled_from(["b", "c"])), max_size=9)
IDENTITIES = st.builds(
    lambda status, pid, reason, life: Identity("id", "runner", "a", "r1", NOW, pid=pid, start_ticks=7, pid_ns="n",
                                               boot_id="b", host="h", status=status, incarnation=life,
                                               metadata={"reason": reason}),
    st.sampled_from(sorted(STATUSES)), st.sampled_from([None, 42]), st.sampled_from(["done", "stopped", ""]),
    st.integers(1, 9))
OBSERVATIONS = st.builds(
    lambda ticks, boot, beat, late: Observation("h", boot, "n", pid_ticks=ticks, beat_age=beat, deadline_passed=late),
    st.sampled_from([None, 7, 8]), st.sampled_from(["b", "c"]), st.none() | st.floats(0, 900), st.booleans())
CHILDREN = st.just(ChildState()) | st.builds(
    lambda identity, seen: ChildState(identity, judge(identity, seen), seen), IDENTITIES, OBSERVATIONS)


@given(CHILDREN, DEATHS, st.floats(0, 3000))
def test_a_replayed_restart_decision_is_the_same(view: ChildState, deaths: list[Death], now: float) -> None:
    step = decide_restart(view, deaths, now, "b", Policy(total=6))
    assert step.basis is not None
    again = replay(decode_inputs(json.loads(json.dumps(encode_inputs(step.basis)))), step.kind)
    assert again.decision == step
    assert again.verdict == view.verdict
    assert again.same


@given(CHILDREN, DEATHS)
def test_a_replayed_cleanup_decision_is_the_same(view: ChildState, deaths: list[Death]) -> None:
    step = decide_cleanup(view, deaths)
    if step is not None:
        assert step.basis is not None
        assert replay(decode_inputs(json.loads(json.dumps(encode_inputs(step.basis)))), step.kind).same


def _dead() -> ChildState:
    identity = Identity("id", "runner", "a", "r1", NOW, pid=42, start_ticks=7, pid_ns="n", boot_id="b", host="h")
    seen = Observation("h", "b", "n", beat_age=3.25)
    return ChildState(identity, judge(identity, seen), seen)


def _event(kind: str, data: dict[str, object], seq: int = 1, about: str = "runner-a@r1",
           journal: str = "guardian") -> LoggedEvent:
    return LoggedEvent(NOW, "r1", journal, "guardian-p@r1#1", seq, kind, "a", about, data)


def _decision(act: str, view: ChildState) -> LoggedEvent:
    step = decide_restart(view, [], 10.0, "b", Policy())
    assert step.basis is not None
    return _event("decision", {"act": act, "why": step.why, "basis": encode_inputs(step.basis)})


def test_a_decision_and_its_effect_are_one_line_and_one_without_effect_has_its_own() -> None:
    fenced = _event("fenced", {"full": "runner-a@r1", "incarnation": 1, "why": "process 42 is gone"}, 2)
    lines = explain([_decision("replace", _dead()), fenced], frozenset({"runner-a@r1"}))
    assert [(line.kind, line.same) for line in lines] == [("fenced", True)]
    assert lines[0].observed == ("incarnation 1 is recorded active; no process 42; last heartbeat 3.2s ago; "
                                 "verdict dead: process 42 is gone")
    assert lines[0].rule == "process 42 is gone"
    note = _event("note", {"who": "a", "text": "something else"}, 2)
    lines = explain([_decision("replace", _dead()), note], frozenset())
    assert [line.text for line in lines] == ["decided to end its remaining processes", "something else"]


def test_an_observation_omits_a_verdict_that_repeats_the_record_and_names_a_reused_pid() -> None:
    identity = Identity("id", "runner", "a", "r1", NOW, pid=42, status="crashed", metadata={"reason": "killed"})
    verdict = judge(identity, Observation("h", "b", "n"))
    basis = DecisionInputs("next_step", ChildState(identity, verdict, Observation("h", "b", "n")), [], 1.0, "b")
    assert verdict.state == "ended"
    assert observation(basis) == "incarnation 1 is recorded crashed (killed)"
    dead = _dead()
    assert dead.identity is not None
    seen = Observation("h", "b", "n", pid_ticks=8)
    view = ChildState(dead.identity, judge(dead.identity, seen), seen)
    basis = decide_restart(view, [], 1.0, "b", Policy()).basis
    assert basis is not None
    assert "pid 42 belongs to another process" in observation(basis)


def test_a_decision_that_does_not_follow_from_its_inputs_is_marked() -> None:
    """The record says `start` for a dead process that was not replaced: no rule decides that."""
    lines = explain([_decision("start", _dead())], frozenset())
    assert [line.same for line in lines] == [False]


def _verdict(result: str, tree: str = "t1", reason: str = "exit code 1", entry: str = "a-1") -> LoggedEvent:
    return _event("verdict", {"entry": entry, "tree": tree, "command": "c", "result": result, "reason": reason},
                  about="", journal=QUEUE)


def test_a_repeated_gate_verdict_is_one_line() -> None:
    """An entry that is red alone is tested once more before it is rejected, which readers see as one red gate."""
    rejected = _event("state", {"status": "rejected", "reason": "exit code 1"}, about="", journal=QUEUE)
    lines = explain([_verdict("red"), _verdict("red"), rejected], frozenset())
    assert [line.text for line in lines] == ["gate red in 2 runs: exit code 1", "merge entry rejected: exit code 1"]


@pytest.mark.parametrize(("second", "text"), [
    (_verdict("green", reason=""), "gate green"), (_verdict("red", tree="t2"), "gate red: exit code 1"),
    (_verdict("red", reason="exit code 2"), "gate red: exit code 2"), (_verdict("red", entry="a-2"),
                                                                       "gate red: exit code 1")])
def test_another_gate_verdict_has_its_own_line(second: LoggedEvent, text: str) -> None:
    lines = explain([_verdict("red"), second], frozenset())
    assert [line.text for line in lines] == ["gate red: exit code 1", text]


@pytest.mark.parametrize("spoilt", [{"rule": "next_step", "identity": {"role": "runner", "name": "a"}}, {}])
def test_a_decision_that_cannot_be_replayed_is_marked(spoilt: dict[str, object]) -> None:
    lines = explain([_event("decision", {"act": "start", "why": "x", "basis": spoilt})], frozenset())
    assert lines[0].same is False
    assert "cannot be replayed" in lines[0].observed


def test_only_lines_about_the_subject_are_returned() -> None:
    events = [_event("note", {"who": "a", "text": "of a"}),
              LoggedEvent(NOW, "r1", "guardian", "g#1", 2, "node", "b", "", {"node": "b", "status": "active"})]
    assert [line.text for line in explain(events, frozenset({"runner-a@r1"}))] == ["of a"]
    assert [line.text for line in explain(events, frozenset({"x"}), "b")] == ["node working, attempt 1"]


@pytest.mark.parametrize(("journal", "data", "about"), [
    ("launch", {}, "launch@r1"), ("runner-a-b", {}, "runner-a-b@r1"),
    ("guardian", {"full": "runner-a@r1"}, "runner-a@r1"),
])
def test_a_record_is_about_the_process_that_it_names(journal: str, data: dict[str, object], about: str) -> None:
    found = subject_of(Entry(1, 1, "t", NOW, "open", dict(data)), journal, "r1")
    assert found.full == about


@pytest.mark.parametrize(("kind", "journal", "data", "text"), [
    ("spawn", "guardian", {"full": "runner-a@r1", "incarnation": 1, "why": "first start"}, "started"),
    ("spawn", "guardian", {"full": "runner-a@r1", "incarnation": 2, "why": "at once"},
     "incarnation 2 started: at once"),
    ("cancel", "guardian", {"node": "a", "attempt": 2, "why": "another branch won"},
     "cancelled, attempt 2: another branch won"),
    ("cancel", QUEUE, {"entry": "a-1", "reason": "by hand"}, "merge entry cancelled: by hand"),
    ("signal", "runner-a", {"id": "s1", "type": "KILL_ORCHESTRATOR", "kill": 3},
     "incarnation 3 is to be killed, on request"),
    ("pull_request", "guardian", {"state": "waiting for review", "number": 7, "reason": "rate limited until 12:40"},
     "pull request #7 waiting for review: rate limited until 12:40"),
    ("pull_request", "guardian", {"state": "pushing"}, "pull request pushing"),
    ("fact", "runner-a", {"name": "begun", "value": "yes", "attempt": 1}, None),
    ("fact", "runner-a", {"name": "acceptance", "value": "red\nlog", "attempt": 1}, "acceptance: red"),
    ("death", "guardian", {"full": "runner-a@r1"}, "unreadable death record: Object missing required field "
     "`incarnation`"),
    ("of a later version", "guardian", {}, None),
])
def test_each_kind_of_record_is_described(kind: str, journal: str, data: dict[str, object], text: str | None) -> None:
    line = describe(_event(kind, data, journal=journal))
    assert (line.text if line else None) == text
