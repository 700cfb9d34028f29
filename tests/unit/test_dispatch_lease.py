"""Leases: the worker has stopped before its successor starts, whatever the network and the two clocks do."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import pytest

from garrison.hosts.lease import Duty, GrantedLease, HeldLease, worker_clock
from garrison.values import replace

FRESH = HeldLease(10.0)
ANSWERED = HeldLease(10.0, answered=100.0, sent=100.0)


@pytest.mark.parametrize(("lease", "now", "duty"), [
    (FRESH, 0.0, Duty.BEAT),  # a claim alone allows nothing: ask first
    (FRESH.note_sent(100.0), 101.9, Duty.WAIT),
    (FRESH.note_sent(100.0), 102.0, Duty.BEAT),
    (FRESH.note_sent(100.0), 500.0, Duty.BEAT),
    (ANSWERED, 100.0, Duty.WAIT),
    (ANSWERED, 101.9, Duty.WAIT),
    (ANSWERED, 102.0, Duty.BEAT),
    (ANSWERED.note_sent(102.0), 103.9, Duty.WAIT),
    (ANSWERED.note_sent(106.0), 107.9, Duty.WAIT),
    (ANSWERED.note_sent(107.9), 108.0, Duty.STOP),  # an answer may be on its way; the worker does not wait
    (ANSWERED, 108.0, Duty.STOP),
    (ANSWERED, 1e9, Duty.STOP),  # it was suspended
])
def test_a_worker_waits_beats_or_stops_by_its_lease(lease: HeldLease, now: float, duty: Duty) -> None:
    assert lease.decide(now) is duty
    assert lease.may_work(now) is (lease.answered is not None and duty is not Duty.STOP)


def test_a_lease_counts_from_when_the_answered_heartbeat_was_sent() -> None:
    lease = ANSWERED.note_sent(102.0).note_sent(104.0)
    assert lease.stop_at == 108.0
    assert lease.note_answer(102.0).stop_at == 110.0
    assert lease.note_answer(104.0).note_answer(102.0).stop_at == 112.0  # answers overtake each other
    assert (lease.note_answer(102.0).next_wake(), FRESH.stop_at) == (106.0, None)
    assert replace(lease, sent=107.0).next_wake() == 108.0


@pytest.mark.parametrize(("now", "over"), [(109.999, False), (110.0, True), (500.0, True)])
def test_a_successor_waits_for_the_whole_lease(now: float, over: bool) -> None:
    assert GrantedLease(10.0, 100.0).is_over(now) is over
    assert GrantedLease(10.0, 100.0).renewed(90.0).ends_at == 110.0
    assert not GrantedLease(10.0, 100.0).renewed(101.0).is_over(110.5)


def test_the_workers_clock_counts_suspended_time() -> None:
    assert abs(worker_clock() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5


# ---- the two sides together ------------------------------------------------------------------------------------------


class StopsLate(HeldLease):
    """Mistake: it uses its lease to the end."""

    @property
    def stop_at(self) -> float | None:
        return None if self.answered is None else self.answered + self.seconds


class StartsAtOnce(HeldLease):
    """Mistake: a claim counts as a lease from its arrival."""

    def note_sent(self, at: float) -> HeldLease:
        return replace(self, sent=at, answered=self.answered if self.answered is not None else at)


class SucceedsEarly(GrantedLease):
    """Mistake: the successor starts when the worker should have stopped."""

    @property
    def ends_at(self) -> float:
        return self.received + 0.8 * self.seconds


@dataclass(frozen=True)
class Rules:
    """The two sides of a lease, and whether the worker counts from the answer."""

    worker: type[HeldLease] = HeldLease
    granted: type[GrantedLease] = GrantedLease
    from_answer: bool = False


STEP = 0.02
KILLING = 0.3
"""Seconds that killing an agent takes."""


class Claimed:
    """One claim with a lease of 5 s: a network that delays and then cuts, both ways or only the answers, and a worker's
    clock that is off and runs up to 10 % wrong."""

    def __init__(self, seed: int, rules: Rules) -> None:
        self.dice, self.rules = random.Random(seed), rules
        self.offset, self.rate = self.dice.uniform(-3600, 3600), self.dice.uniform(0.9, 1.1)
        self.cut_at, self.loses_answers = self.dice.uniform(0.0, 12.0), self.dice.random() < 0.5
        self.arrives = self.dice.choice([0.01, 0.5, 3.0, 4.9])
        self.is_slow = self.dice.random() < 0.5
        self.granted, self.lease = rules.granted(5.0, 0.0), rules.worker(5.0)
        self.beats: list[tuple[float, float]] = []
        self.answers: list[tuple[float, float]] = []
        """Messages on their way: when they arrive, and when the worker sent the heartbeat."""
        self.stopped_at: float | None = None

    def local(self, true: float) -> float:
        return self.offset + true * self.rate

    def delay(self) -> float:
        is_late = self.is_slow and self.dice.random() < 0.3
        return self.dice.uniform(0.5, 1.5) if is_late else self.dice.uniform(0.001, 0.05)

    def engine(self, true: float) -> None:
        for beat in [each for each in self.beats if each[0] <= true]:
            self.beats.remove(beat)
            self.granted = self.granted.renewed(true)
            if true < self.cut_at or not self.loses_answers:
                self.answers.append((true + self.delay(), beat[1]))

    def worker(self, true: float) -> None:
        for answer in [each for each in self.answers if each[0] <= true]:
            self.answers.remove(answer)
            self.lease = self.lease.note_answer(self.local(true) if self.rules.from_answer else answer[1])
        now = self.local(true)
        duty = self.lease.decide(now)
        if duty is Duty.STOP:
            self.stopped_at = true + KILLING
        elif duty is Duty.BEAT:
            self.lease = self.lease.note_sent(now)
            if true < self.cut_at:
                self.beats.append((true + self.delay(), now))

    def overlap(self) -> float:
        """Return for how many seconds agent and successor run together."""
        true = 0.0
        while not self.granted.is_over(true):
            self.engine(true)
            if true >= self.arrives and self.stopped_at is None:
                self.worker(true)
            true += STEP
        stopped_at = self.stopped_at
        if stopped_at is None and (stop_at := self.lease.stop_at) is not None:
            stopped_at = (stop_at - self.offset) / self.rate + KILLING
        return max(0.0, (stopped_at or 0.0) - true)


SEEDS = range(200)


def test_no_agent_runs_while_its_successor_does() -> None:
    assert [seed for seed in SEEDS if Claimed(seed, Rules()).overlap() > 0] == []


@pytest.mark.parametrize("planted", [
    Rules(worker=StopsLate), Rules(worker=StartsAtOnce), Rules(granted=SucceedsEarly), Rules(from_answer=True),
], ids=["stops at the end of the lease", "works from the claim on", "successor at 0.8", "counts from the answer"])
def test_the_schedules_find_planted_mistakes(planted: Rules) -> None:
    assert any(Claimed(seed, planted).overlap() > 0 for seed in SEEDS)
