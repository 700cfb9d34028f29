"""Is a living process at work? The rules as a table, their properties, and the arithmetic of watching."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.records.record import from_data
from garrison.supervise.hang_detector import (
    AGENT_EVIDENCE,
    OWN_EVIDENCE,
    SPINNING_TIMEOUTS,
    Evidence,
    EvidenceTimes,
    RecordedEvidence,
    WatchClock,
    find_hang,
    find_job_hang,
    judge_recorded,
    latest_evidence,
    record_evidence,
    seconds_silent,
)
from garrison.supervise.job_watch import LostTime
from garrison.values import asdict, replace

TIMEOUT = 300.0
OLD = dict.fromkeys((*OWN_EVIDENCE, *AGENT_EVIDENCE), 1000.0)


def layer(**what: Any) -> Evidence:
    """A layer whose every sign is old; `ages` adds to them."""
    ages = dict.fromkeys(OWN_EVIDENCE, 1000.0) | what.pop("ages", {})
    return Evidence(1, ages, **{"state": "S", **what})


def agent(**what: Any) -> Evidence:
    """A working orchestrator, and an agent of two processes whose every sign is old."""
    ages = OLD | dict.fromkeys(OWN_EVIDENCE, 0.1) | what.pop("ages", {})
    return Evidence(1, ages, **{"state": "S", "below": 2, **what})


TABLE: list[tuple[str, Evidence, float | None, str]] = [
    ("silent", layer(), None, "silent"),
    ("at the limit", layer(ages={"beat": 300.0}), None, "silent"),
    ("within the limit", layer(ages={"beat": 299.9}), None, ""),
    ("a long turn that computes", layer(ages={"cpu": 1.0}), None, ""),
    ("a long turn whose child computes", layer(below=3, ages={"cpu": 1.0}), None, ""),
    ("blocked on the disk", layer(state="D", blocked=1), None, ""),
    ("its checkout is blocked on the disk", layer(below=1, blocked=1), None, ""),
    ("waits for the CPU", layer(state="R", ages={"beat": 400.0}), None, ""),
    ("not to be seen", layer(state=""), None, ""),
    ("stopped", layer(state="T"), None, "stopped"),
    ("stopped, its child computes", layer(state="T", below=1, ages={"cpu": 0.0}), None, "stopped"),
    ("stopped a moment ago", layer(state="T", ages={"running": 3.0}), None, ""),
    ("in a debugger, silent", layer(state="t"), None, "silent"),
    ("spinning", layer(state="R", ages={"cpu": 0.0, "beat": SPINNING_TIMEOUTS * TIMEOUT}), None, "spinning"),
    ("a turn of a quarter of an hour", layer(state="R", ages={"cpu": 0.0, "beat": 900.0}), None, ""),
    ("spinning, with a child", layer(state="R", below=1, ages={"cpu": 0.0, "beat": 1e4}), None, ""),
    ("a silent agent", agent(), None, ""),
    ("a stopped agent", agent(stopped=2), None, "agent-stopped"),
    ("half of it stopped", agent(stopped=1), None, "agent-stopped"),
    ("half of it stopped, the rest computes", agent(stopped=1, ages={"work": 9.0}), None, ""),
    ("half of it stopped, it speaks", agent(stopped=1, ages={"output": 9.0}), None, ""),
    ("stopped a moment ago, silent before", agent(stopped=2, ages={"unstopped": 5.0}), None, ""),
    ("half of it stopped, a tool under way", agent(stopped=1, tool="Bash", tool_left=60.0), None, ""),
    ("all of it stopped, a tool under way", agent(stopped=2, tool="Bash", tool_left=60.0), None, "agent-stopped"),
    ("a tool's deadline is over", agent(stopped=1, tool="Bash", tool_left=0.0), None, "agent-stopped"),
    ("silent where that is a hang", agent(), 600.0, "agent-silent"),
    ("silent, not so long", agent(), 1001.0, ""),
    ("silent but for a commit", agent(ages={"head": 10.0}), 600.0, ""),
    ("silent but for its files", agent(ages={"worktree": 10.0}), 600.0, ""),
    ("silent but for events", agent(ages={"stream": 10.0}), 600.0, ""),
    ("silent, a tool under way", agent(tool="Bash", tool_left=1.0), 600.0, ""),
    ("silent, waits for the user", agent(waiting="for your answer"), 600.0, ""),
    ("silent on the disk", agent(blocked=1), 600.0, ""),
    ("nothing below it", agent(below=0), 600.0, ""),
    ("nothing known", Evidence(1), 1.0, ""),
]


@pytest.mark.parametrize(("seen", "silence", "rule"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_rule_and_its_record(seen: Evidence, silence: float | None, rule: str) -> None:
    hang = find_hang(seen, TIMEOUT, silence)
    assert (hang.rule if hang else "") == rule
    kept = record_evidence(seen, hang, TIMEOUT, silence)
    assert kept.rule == rule
    again = from_data(RecordedEvidence, json.loads(json.dumps(asdict(kept))))
    assert again == kept, "plain data"
    once_more = judge_recorded(again)
    assert (once_more.rule if once_more else "") == rule, "the record gives the same"
    assert hang is None or hang.why.isprintable()


kinds = (*OWN_EVIDENCE, *AGENT_EVIDENCE)
ages = st.dictionaries(st.sampled_from(kinds), st.floats(0, 3000), max_size=len(kinds))
evidences = st.builds(
    Evidence, st.just(1), ages, st.sampled_from(["", "R", "S", "D", "T", "t", "I"]), st.integers(0, 3),
    st.integers(0, 3), st.integers(0, 1), st.just(1.0), st.sampled_from(["", "Bash"]), st.sampled_from([0.0, 60.0]),
    st.sampled_from(["", "for you"])).map(lambda e: replace(e, stopped=min(e.stopped, e.below)))
limits = st.floats(0.5, 900)


@given(evidences, limits, st.none() | limits, st.floats(0, 3000))
def test_a_hang_stays_one_as_time_goes_by(seen: Evidence, timeout: float, silence: float | None, more: float) -> None:
    older = replace(seen, ages={kind: age + more for kind, age in seen.ages.items()})
    assert find_hang(seen, timeout, silence) is None or find_hang(older, timeout, silence) is not None


@given(evidences, limits, st.none() | limits, st.floats(0, 0.49))
def test_nothing_hangs_while_all_evidence_is_fresh(seen: Evidence, timeout: float, silence: float | None,
                                                   age: float) -> None:
    fresh = replace(seen, ages=dict.fromkeys(seen.ages, age))
    assert find_hang(fresh, timeout, silence) is None


@given(evidences, limits, st.none() | limits, st.sampled_from(["beat", "work", "output", "head"]))
def test_a_process_that_beats_hangs_only_with_an_agent_without_evidence(
        seen: Evidence, timeout: float, silence: float | None, sign: str) -> None:
    beating = replace(seen, ages=seen.ages | {"beat": 0.0, sign: 0.0})
    hang = find_hang(beating, timeout, silence)
    assert hang is None or (hang.rule.startswith("agent-") and sign == "beat")


@given(evidences, limits, limits, limits)
def test_patience_only_helps(seen: Evidence, timeout: float, silence: float, more: float) -> None:
    assert find_hang(seen, timeout + more, silence + more) is None or find_hang(seen, timeout, silence) is not None


@given(st.lists(st.floats(-10, 1e6), max_size=30), st.floats(0.1, 5))
def test_a_gap_between_scans_counts_as_no_more_than_the_cap(gaps: list[float], cap: float) -> None:
    clock, now = WatchClock(cap), 1000.0
    before = clock.advance(now)
    assert before == 0.0
    for gap in gaps:
        now += gap
        after = clock.advance(now)
        assert 0 <= clock.step <= cap
        assert after == before + clock.step
        before = after


def test_evidence_has_the_time_of_its_last_change() -> None:
    signs = EvidenceTimes(5.0)
    signs.note("output", (1, 1), 9.0)
    assert signs.ages(10.0) == {"output": 5.0}, "the first stamp tells of no change"
    signs.note("output", (1, 1), 11.0)
    signs.note("head", None, 11.0)
    assert signs.ages(12.0) == {"output": 7.0, "head": 7.0}
    signs.note("output", (2, 1), 13.0)
    signs.note("head", (1, 1), 14.0)
    assert signs.ages(15.0) == {"output": 2.0, "head": 1.0}
    signs.hold_while("running", False, 16.0, since=7.0)
    assert signs.ages(17.0)["running"] == 10.0
    signs.hold_while("running", True, 18.0, since=7.0)
    signs.hold_while("running", False, 19.0, since=7.0)
    assert signs.ages(20.0)["running"] == 2.0


def test_evidence_that_ended_between_two_scans_counts_until_the_scan_that_missed_it() -> None:
    """Seen: an agent stopped a moment after its start counted as hung before it had been stopped for the timeout."""
    signs = EvidenceTimes(5.0)
    signs.hold_until_missed("unstopped", False, 9.0)
    assert signs.ages(10.0) == {"unstopped": 1.0}
    signs.hold_until_missed("unstopped", False, 11.0)
    assert signs.ages(12.0) == {"unstopped": 3.0}
    for at, good in ((13.0, True), (15.0, False), (16.0, False)):
        signs.hold_until_missed("unstopped", good, at)
    assert signs.ages(17.0) == {"unstopped": 2.0}


def test_the_latest_evidence_counts() -> None:
    assert latest_evidence({}) is None
    assert latest_evidence({"beat": 9.0, "output": 3.0}) == ("output", 3.0)
    assert seconds_silent(Evidence(1, {"beat": 9.0, "output": 3.0}), ("beat", "head"), ("beat",)) == 9.0
    assert seconds_silent(Evidence(1, {"beat": 9.0}), ("beat", "work"), ("work",)) == 0.0


def job(**what: Any) -> Evidence:
    """A job of two processes whose every sign is old."""
    ages = dict.fromkeys(("work", "unstopped", "output"), 1000.0) | what.pop("ages", {})
    return Evidence(0, ages, **{"below": 2, **what})


@pytest.mark.parametrize(("evidence", "silence", "rule"), [
    (job(stopped=1), None, "job-stopped"), (job(stopped=2), 5.0, "job-stopped"),
    (job(stopped=1, ages={"work": 1.0}), None, ""), (job(stopped=1, ages={"output": 1.0}), None, ""),
    (job(stopped=1, ages={"unstopped": 1.0}), None, ""), (job(stopped=1, blocked=1), None, ""),
    (job(), None, ""), (job(), 900.0, "job-silent"), (job(), 1100.0, ""), (job(blocked=1), 900.0, ""),
    (job(below=0), 900.0, ""), (job(ages={"output": 1.0}), 900.0, "")])
def test_a_job_is_judged_as_an_agent_is(evidence: Evidence, silence: float | None, rule: str) -> None:
    hang = find_job_hang(evidence, TIMEOUT, silence)
    assert (hang.rule if hang else "") == rule
    as_agent = find_hang(evidence, TIMEOUT, silence)
    assert (as_agent is None) == (hang is None)
    assert hang is None or "its agent" not in hang.why


# ---- lost time


LIMIT = 100.0


@pytest.mark.parametrize(("looks", "lost"), [
    ([(0, 0, False), (1, 0, False), (2, 0, False)], 0),
    ([(0, 0, False), (1, 0, True), (2, 0, True), (31, 0, False), (32, 0, False)], 30),
    ([(0, 0, True), (1, 0, None), (40, 0, None)], 40),
    ([(0, 0, False), (1, 3600, False)], 3600),
    ([(0, 0, False), (61, 0, False)], 51),
    ([(0, 0, False), (9, 0, False), (18, 0, False)], 0),
])
def test_time_in_which_a_job_could_not_run_is_counted(looks, lost):
    time = LostTime(LIMIT)
    for look in looks:
        time.note(*look)
    assert time.seconds == lost
    assert time.is_decisive == (lost >= 10)
