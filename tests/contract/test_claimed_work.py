"""Work on claims: real processes, the in-memory dispatcher, and time that the test lets pass, or the machine's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from dispatch_lab import MemoryLab, MemoryWorker, ProcessWork, attempt
from garrison.hosts.attempts import (
    AttemptResult,
    AttemptState,
    ClaimToken,
    Completion,
    DispatcherLost,
    HeartbeatReply,
    NodeAttempt,
    WorkerMessage,
)
from garrison.hosts.lease import ClaimEnd, MachinePace, work_on

DONE = AttemptResult(Completion.DONE, "exit code 0")


class FakePace:
    """Time of a lab; `at` says what happens when; heartbeats of a worker that is cut off wait for an answer."""

    def __init__(self, lab: MemoryLab, worker: MemoryWorker) -> None:
        self.lab, self.worker = lab, worker
        self.events: list[tuple[float, Callable[[], object]]] = []
        self.start = lab.now()
        self.hangs = False
        self.beats = 0

    def at(self, seconds: float, event: Callable[[], object]) -> None:
        self.events.append((self.start + seconds, event))

    def now(self) -> float:
        return self.lab.now()

    def begin(self, call: Callable[[], HeartbeatReply]) -> Future[HeartbeatReply]:
        self.beats += 1
        answer: Future[HeartbeatReply] = Future()
        if not (self.hangs and self.worker.is_cut):
            try:
                answer.set_result(call())
            except DispatcherLost as error:
                answer.set_exception(error)
        return answer

    def wait(self, answer: Future[HeartbeatReply] | None, seconds: float) -> None:
        assert self.lab.now() < self.start + 100, "the worker never stops"
        if answer is not None and answer.done():
            return
        self.lab.clock.advance(max(seconds, 0.001))
        due = [event for when, event in self.events if when <= self.lab.now()]
        self.events = [each for each in self.events if each[0] > self.lab.now()]
        for event in due:
            event()


class Bench:
    """One submitted attempt, claimed by one worker."""

    def __init__(self, *, max_claims: int = 1, lease: float = MemoryLab.lease) -> None:
        self.lab = MemoryLab()
        self.lab.lease = lease
        self.offered: NodeAttempt = attempt(self.lab, max_claims=max_claims)
        self.lab.dispatcher.submit(self.offered)
        self.worker = self.lab.worker("a")
        claim = self.worker.claim(0.0)
        assert claim is not None
        self.claim = claim
        self.work = ProcessWork()
        self.pace = FakePace(self.lab, self.worker)

    def run(self) -> ClaimEnd:
        return work_on(self.worker, self.claim, self.work, self.pace)

    @property
    def state(self) -> AttemptState:
        return self.lab.dispatcher.watch(self.offered.id).state


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(max_claims=2)
    yield made
    made.work.kill()


def test_work_that_outlasts_many_leases_is_done_by_its_first_worker(bench: Bench) -> None:
    bench.lab.dispatcher.send(bench.offered.id, WorkerMessage("m1", "hello"))
    bench.pace.at(22.0, bench.work.finish)
    assert bench.run() is ClaimEnd.COMPLETED
    view = bench.lab.dispatcher.watch(bench.offered.id)
    assert (view.state, view.claim, view.result, view.progress) == (AttemptState.DONE, 1, DONE, "at it")
    assert bench.work.heard == [WorkerMessage("m1", "hello")]
    assert 20 <= bench.pace.beats <= 25  # one a second, by the lease of five


@pytest.mark.parametrize("hangs", [False, True], ids=["unreachable", "no-answer"])
def test_the_work_of_a_worker_that_is_cut_off_is_killed_before_a_successor_can_start(bench: Bench, hangs: bool) -> None:
    bench.pace.hangs = hangs
    began: list[bool] = []

    def cut() -> None:
        began.append(bench.work.is_running)
        bench.worker.cut()

    bench.pace.at(6.5, cut)
    assert bench.run() is ClaimEnd.CUT_OFF
    assert (began, bench.work.is_running) == ([True], False)
    successor = bench.lab.worker("b")
    assert successor.claim(0.0) is None
    bench.lab.clock.advance(0.9)  # the fifth of the lease that is for killing
    assert successor.claim(0.0) is None
    bench.lab.clock.advance(0.2)
    assert successor.claim(0.0) is not None


def test_a_short_cut_costs_nothing(bench: Bench) -> None:
    bench.pace.at(6.5, bench.worker.cut)
    bench.pace.at(8.9, bench.worker.heal)
    bench.pace.at(20.0, bench.work.finish)
    assert bench.run() is ClaimEnd.COMPLETED
    assert bench.lab.dispatcher.watch(bench.offered.id).claim == 1


def test_work_without_an_answered_heartbeat_never_starts(bench: Bench) -> None:
    bench.worker.cut()
    assert bench.run() is ClaimEnd.CUT_OFF
    assert bench.work.process is None


def test_work_never_starts_on_an_answer_that_comes_after_its_share_of_the_lease(
        bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    late: Future[HeartbeatReply] = Future()

    def begin(call: Callable[[], HeartbeatReply]) -> Future[HeartbeatReply]:
        bench.pace.at(4.5, lambda: late.set_result(call()))
        return late

    monkeypatch.setattr(bench.pace, "begin", begin)
    assert bench.run() is ClaimEnd.CUT_OFF
    assert late.done() and bench.work.process is None


def test_a_worker_that_slept_through_its_lease_kills_its_work(bench: Bench) -> None:
    """Its clock counts while it sleeps: it kills before it asks."""
    beats: list[int] = []

    def sleep() -> None:
        beats.append(bench.pace.beats)
        bench.lab.clock.advance(50.0)

    bench.pace.at(6.5, sleep)
    assert bench.run() is ClaimEnd.CUT_OFF
    assert (beats, bench.work.is_running) == ([bench.pace.beats], False)
    assert bench.state is AttemptState.WAITING


def test_cancelled_work_is_killed_and_completed_as_cancelled(bench: Bench) -> None:
    bench.pace.at(6.5, lambda: bench.lab.dispatcher.cancel(bench.offered.id, "not wanted any more"))
    assert bench.run() is ClaimEnd.COMPLETED
    assert (bench.state, bench.work.is_running) == (AttemptState.CANCELLED, False)


def test_orders_and_messages_do_not_wait_for_the_next_heartbeat(bench: Bench) -> None:
    times: dict[str, float] = {}
    bench.work.deliver = lambda message: times.setdefault(message.id, bench.lab.now())
    bench.pace.at(6.1, lambda: bench.lab.dispatcher.send(bench.offered.id, WorkerMessage("m1", "hello")))
    bench.pace.at(7.2, lambda: bench.lab.dispatcher.cancel(bench.offered.id, "not wanted any more"))
    assert bench.run() is ClaimEnd.COMPLETED
    assert times["m1"] - bench.pace.start <= 6.1 + 0.15
    assert bench.lab.now() - bench.pace.start <= 7.2 + 0.15


@pytest.mark.parametrize(("heals", "end"), [(True, ClaimEnd.COMPLETED), (False, ClaimEnd.CUT_OFF)])
def test_a_result_of_a_worker_that_is_cut_off_is_kept_until_its_lease_ends(
        bench: Bench, heals: bool, end: ClaimEnd) -> None:
    def cut_and_finish() -> None:
        bench.worker.cut()
        bench.work.finish()

    bench.pace.at(6.5, cut_and_finish)
    if heals:
        bench.pace.at(8.5, bench.worker.heal)
    assert bench.run() is end
    assert (bench.state is AttemptState.DONE) is heals


def test_work_is_killed_when_the_loop_fails(bench: Bench) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    bench.pace.at(6.5, fail)
    with pytest.raises(RuntimeError, match="a bug"):
        bench.run()
    assert not bench.work.is_running


def test_by_the_clock_of_the_machine_work_starts_gets_messages_and_is_completed(
        bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.lab.dispatcher.send(bench.offered.id, WorkerMessage("m1", "that will do"))
    threads: list[str] = []
    answer = bench.worker.heartbeat

    def heartbeat(token: ClaimToken, progress: str = "") -> HeartbeatReply:
        threads.append(threading.current_thread().name)
        return answer(token, progress)

    def deliver(message: WorkerMessage) -> None:
        finished.append(True)

    finished: list[bool] = []
    monkeypatch.setattr(bench.worker, "heartbeat", heartbeat)
    monkeypatch.setattr(bench.work, "deliver", deliver)
    monkeypatch.setattr(bench.work, "poll", lambda: DONE if finished else None)
    with MachinePace() as pace:
        assert work_on(bench.worker, bench.claim, bench.work, pace) is ClaimEnd.COMPLETED
    assert (bench.state, bench.work.is_running) == (AttemptState.DONE, False)
    assert threads and threading.main_thread().name not in threads


def test_by_the_clock_of_the_machine_a_hanging_heartbeat_does_not_prevent_stopping(
        monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(lease=0.5)
    released = threading.Event()
    answer = bench.worker.heartbeat
    beats: list[bool] = []

    def heartbeat(token: ClaimToken, progress: str = "") -> HeartbeatReply:
        beats.append(True)
        if len(beats) > 1:
            released.wait(20.0)
            released.set()
        return answer(token, progress)

    monkeypatch.setattr(bench.worker, "heartbeat", heartbeat)
    try:
        with MachinePace() as pace:
            assert work_on(bench.worker, bench.claim, bench.work, pace) is ClaimEnd.CUT_OFF
        assert not released.is_set(), "it waited for the heartbeat"
        assert not bench.work.is_running
    finally:
        released.set()
        bench.work.kill()
