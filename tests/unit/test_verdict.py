"""Verdict on an incarnation: the whole table, and the reasons of find-stale."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from garrison.records.identity import STATUSES, Identity
from garrison.supervise.verdict import Observation, Verdict, judge, stale_reason
from garrison.values import replace

LIFE = Identity("id", "runner", "a", "r1", "2026-01-31T10:00:00.000000Z", pid=7, start_ticks=70, pid_ns="pid:[1]",
                boot_id="b1", host="h")
"""An active incarnation of process 7."""
LEASE = replace(LIFE, status="starting", spawn_deadline="2026-01-31T12:00:00.000000Z")
"""A lease whose spawner is process 7."""
ENDED = replace(LIFE, status="terminated", terminated_at="2026-01-31T12:00:00.000000Z")
"""An incarnation that recorded its end."""
HAND = Identity("id", "runner", "a", "", "2026-01-31T10:00:00.000000Z", host="h", boot_id="b1", pid_ns="pid:[1]")
"""A record made by hand, without a process."""


def seen(**what: Any) -> Observation:
    return Observation(**{"host": "h", "boot_id": "b1", "pid_ns": "pid:[1]", **what})


TABLE: list[tuple[str, Identity, Observation, str, str]] = [
    ("alive", LIFE, seen(pid_ticks=70), "alive", "process 7 is running"),
    ("silent but alive", LIFE, seen(pid_ticks=70, beat_age=1e9), "alive", "process 7 is running"),
    ("gone, or a zombie", LIFE, seen(pid_ticks=None), "dead", "process 7 is gone"),
    ("pid recycled", LIFE, seen(pid_ticks=71), "dead", "pid 7 is another process now"),
    ("lock held by its child", LIFE, seen(pid_ticks=None, life_held=True), "dead", "process 7 is gone"),
    ("held by a person", replace(LIFE, status="held"), seen(pid_ticks=70), "alive", "process 7 is running"),
    ("held by a person, gone", replace(LIFE, status="held"), seen(), "dead", "process 7 is gone"),
    ("another boot", LIFE, seen(boot_id="b2", pid_ticks=70, life_held=True), "dead", "rebooted since"),
    ("another boot, leased", LEASE, seen(boot_id="b2", marker_borne=True), "dead", "rebooted since"),
    ("other namespace, lock held", LIFE, seen(pid_ns="pid:[2]", life_held=True), "elsewhere", "another pid namespace"),
    ("other namespace, lock free", LIFE, seen(pid_ns="pid:[2]", pid_ticks=70), "dead", "its life lock is free"),
    ("other host, lock held", LIFE, seen(host="g", boot_id="b9", life_held=True), "elsewhere", "alive on h"),
    ("other host, lock free", LIFE, seen(host="g", boot_id="b9", pid_ticks=70), "dead", "its life lock is free"),
    ("leased elsewhere", LEASE, seen(pid_ns="pid:[2]", life_held=True), "elsewhere", "another pid namespace"),
    ("nameless host, lock held", replace(LIFE, host=""), seen(life_held=True), "elsewhere", "alive on another host"),
    ("starting, spawner lives", LEASE, seen(pid_ticks=70), "starting", "within its start deadline"),
    ("starting, spawner had its time, child there", LEASE, seen(pid_ticks=70, spawn_due=True, marker_borne=True),
     "starting", "within its start deadline"),
    ("spawner had its time, no bearer", LEASE, seen(pid_ticks=70, spawn_due=True), "lapsed", "during start-up"),
    ("starting, only the child", LEASE, seen(pid_ticks=None, marker_borne=True), "starting", "within its start"),
    ("starting, spawner's pid recycled, child there", LEASE, seen(pid_ticks=9, marker_borne=True), "starting",
     "within"),
    ("spawner dead, no bearer", LEASE, seen(pid_ticks=None), "lapsed", "during start-up"),
    ("spawner's pid recycled", LEASE, seen(pid_ticks=71), "lapsed", "during start-up"),
    ("spawner without ticks", replace(LEASE, start_ticks=None), seen(pid_ticks=None), "lapsed", "during start-up"),
    ("deadline over, spawner lives", LEASE, seen(pid_ticks=70, deadline_passed=True), "lapsed", "not active by"),
    ("deadline over, child there", LEASE, seen(marker_borne=True, deadline_passed=True), "lapsed", "not active by"),
    ("on its way out", ENDED, seen(pid_ticks=70, leaving=5.0), "ended", "status terminated"),
    ("never out", ENDED, seen(pid_ticks=70, leaving=5.1), "lingering", "process 7 still holds its life lock"),
    ("on its way out as the clock was set back", ENDED, seen(pid_ticks=70, leaving=-1.0), "lingering", "process 7"),
    ("by hand, fresh", HAND, seen(beat_age=299.0), "alive", "its heartbeat is fresh"),
    ("by hand, at the limit", HAND, seen(beat_age=300.0), "alive", "its heartbeat is fresh"),
    ("by hand, old", HAND, seen(beat_age=300.1), "dead", "its heartbeat is old"),
    ("by hand, never beat", HAND, seen(), "dead", "its heartbeat is old"),
    ("by hand on another host", HAND, seen(host="g", boot_id="b2", beat_age=1.0), "alive", "its heartbeat is fresh"),
    ("by hand before a boot", HAND, seen(boot_id="b2", beat_age=1.0), "alive", "its heartbeat is fresh"),
]


@pytest.mark.parametrize(("life", "what", "state", "why"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_an_observation_has_its_verdict(life: Identity, what: Observation, state: str, why: str) -> None:
    verdict = judge(life, what)
    assert verdict.state == state and why in verdict.why


@pytest.mark.parametrize("status", ["crashed", "terminated", "parked"])
@pytest.mark.parametrize("what", [seen(pid_ticks=70), seen(), seen(boot_id="b2"), seen(host="g", life_held=True)])
def test_an_ended_incarnation_is_ended_whatever_runs(status: str, what: Observation) -> None:
    assert judge(replace(LIFE, status=status), what) == Verdict("ended", f"status {status}")
    assert judge(replace(HAND, status=status), what).state == "ended"


def test_only_three_verdicts_count_as_living() -> None:
    states = ("alive", "starting", "elsewhere", "dead", "lapsed", "ended")
    assert [Verdict(state, "").living for state in states] == [True] * 3 + [False] * 3


def test_in_every_combination_only_a_process_or_a_heartbeat_proves_life() -> None:
    flags = product([LIFE, LEASE, HAND], STATUSES, [70, 71, None], [True, False], [True, False], [None, 1.0, 1e4],
                    [True, False], [True, False], ["b1", "b2"], ["pid:[1]", "pid:[2]"], ["h", "g"])
    for base, status, ticks, held, borne, age, late, due, boot, namespace, host in flags:
        life = replace(base, status=status)
        what = Observation(host, boot, namespace, ticks, held, borne, due, age, late)
        verdict = judge(life, what)
        here = (host, boot, namespace) == ("h", "b1", "pid:[1]")
        if verdict.state == "alive":
            assert (here and ticks == 70) if life.pid else age == 1.0
        if verdict.state == "elsewhere":
            assert held and life.pid and (host, namespace) != ("h", "pid:[1]")
        if verdict.state == "starting":
            assert here and status == "starting" and not late and (borne or (ticks == 70 and not due))
        if status in ("crashed", "terminated", "parked"):
            assert verdict.state == "ended"


STALE: list[tuple[str, Identity, Observation, str | None]] = [
    ("working", LIFE, seen(pid_ticks=70, beat_age=300.0), None),
    ("silent", LIFE, seen(pid_ticks=70, beat_age=300.1), "heartbeat"),
    ("never beat", LIFE, seen(pid_ticks=70), None),
    ("gone, though its heartbeat is fresh", LIFE, seen(beat_age=0.1), "process_gone"),
    ("recycled", LIFE, seen(pid_ticks=71, beat_age=0.1), "process_gone"),
    ("rebooted", LIFE, seen(boot_id="b2", beat_age=0.1), "process_gone"),
    ("elsewhere and silent", LIFE, seen(pid_ns="pid:[2]", life_held=True, beat_age=1e5), None),
    ("elsewhere and gone", LIFE, seen(pid_ns="pid:[2]", beat_age=1.0), "process_gone"),
    ("starting", LEASE, seen(pid_ticks=70, beat_age=1e5), None),
    ("lapsed", LEASE, seen(pid_ticks=70, deadline_passed=True), "start_deadline"),
    ("lapsed early", LEASE, seen(), "start_deadline"),
    ("by hand, fresh", HAND, seen(beat_age=300.0), None),
    ("by hand, old", HAND, seen(beat_age=301.0), "heartbeat"),
    ("by hand, never beat", HAND, seen(), "heartbeat"),
    ("held", replace(LIFE, status="held"), seen(), None),
    ("crashed", replace(LIFE, status="crashed"), seen(), None),
    ("terminated", replace(LIFE, status="terminated"), seen(), None),
    ("parked", replace(LIFE, status="parked"), seen(), None),
]


@pytest.mark.parametrize(("life", "what", "reason"), [row[1:] for row in STALE], ids=[row[0] for row in STALE])
def test_a_stale_identity_has_its_reason(life: Identity, what: Observation, reason: str | None) -> None:
    assert stale_reason(life, what, 300.0) == reason


@pytest.mark.parametrize(("life", "what", "timeout", "reason"), [
    (HAND, seen(beat_age=20.0), 10.0, "heartbeat"), (HAND, seen(beat_age=2000.0), 3000.0, None),
    (LIFE, seen(pid_ticks=70, beat_age=20.0), 10.0, "heartbeat")])
def test_the_caller_gives_the_timeout(life: Identity, what: Observation, timeout: float, reason: str | None) -> None:
    assert stale_reason(life, what, timeout) == reason
