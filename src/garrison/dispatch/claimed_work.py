"""Work on a claim: start it once the lease has begun, renew the lease, and kill the work before the lease can be over.

Heartbeats run beside the loop: one that waits for its answer must not keep a worker that is cut off from stopping. An
order or a message that has come is fetched by a heartbeat at once.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from garrison.dispatch.base import StaleToken, Unreachable
from garrison.dispatch.lease import Duty, HeldLease, worker_clock
from garrison.dispatch.records import AttemptResult, Order, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.dispatch.base import Dispatcher
    from garrison.dispatch.records import Answer, Claim, Message

POLL_SECONDS = 0.1
"""Longest time between two looks at the work."""


class Ending(StrEnum):
    """How a worker's part in a claim ended."""

    COMPLETED = "completed"
    """The dispatcher accepted the result."""
    CUT_OFF = "cut off"
    """No heartbeat was answered for the worker's share of the lease; the work was killed, or never begun."""
    LOST = "lost"
    """The claim is no longer current; the work was killed, its result refused."""


class Work(Protocol):
    """The work of one claim, as processes of this machine."""

    def start(self) -> None:
        """Start it."""
        ...

    def poll(self) -> AttemptResult | None:
        """Return its result, None while it runs."""
        ...

    def progress(self) -> str:
        ...

    def deliver(self, message: Message) -> None:
        """Give it a message; only after `start`."""
        ...

    def kill(self) -> None:
        """Kill it with everything it started; nothing of it runs when this returns. Work that is over stays so."""
        ...


class Pace(Protocol):
    """The time of a worker, and what it does beside its loop."""

    def now(self) -> float:
        """Return the worker's time in seconds."""
        ...

    def begin(self, call: Callable[[], Answer]) -> Future[Answer]:
        """Begin a call, and return without its answer."""
        ...

    def wait(self, answer: Future[Answer] | None, seconds: float) -> None:
        """Wait for an answer, for `seconds` at most."""
        ...


class MachinePace:
    """Time of this machine; calls run in a thread. A context manager, whose end waits for no call: the thread ends
    with the call that it is in."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "heartbeat")
        self._idle: Future[Answer] = Future()

    def __enter__(self) -> MachinePace:
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def now(self) -> float:
        """Return the seconds on CLOCK_BOOTTIME."""
        return worker_clock()

    def begin(self, call: Callable[[], Answer]) -> Future[Answer]:
        """Begin a call in the thread."""
        return self._executor.submit(call)

    def wait(self, answer: Future[Answer] | None, seconds: float) -> None:
        """Wait for an answer, for `seconds` at most."""
        wait([answer or self._idle], max(0.0, seconds), FIRST_COMPLETED)


def work_on(dispatcher: Dispatcher, claim: Claim, work: Work, pace: Pace) -> Ending:
    """Do the work of a claim; nothing of it runs when this returns or raises.

    The work starts with the first answered heartbeat. It is killed when the claim was lost or cancelled, or when no
    heartbeat was answered for 0.8 of the lease.
    """
    try:
        return _Worker(dispatcher, claim, work, pace).run()
    finally:
        work.kill()


class _Worker:
    def __init__(self, dispatcher: Dispatcher, claim: Claim, work: Work, pace: Pace) -> None:
        self.dispatcher, self.token, self.work, self.pace = dispatcher, claim.token, work, pace
        self.lease = HeldLease(claim.attempt.lease)
        self.begun_by = pace.now() + claim.attempt.lease
        self.has_started = False
        self.beat: Future[Answer] | None = None

    def run(self) -> Ending:
        """Work until the claim ends."""
        while True:
            ending = self._take_answer()
            if ending is not None:
                return ending
            now = self.pace.now()
            duty = self.lease.decide(now)
            if duty is Duty.STOP or (not self.has_started and now >= self.begun_by):
                return Ending.CUT_OFF
            result = self.work.poll() if self.has_started else None
            if result is not None:
                return self._complete(result)
            if self.beat is None and (duty is Duty.BEAT or self.dispatcher.is_called(self.token)):
                self._send_heartbeat(now)
            self.pace.wait(self.beat, min(POLL_SECONDS, max(0.0, self._next_wake() - self.pace.now())))

    def _next_wake(self) -> float:
        # A heartbeat that is under way is not repeated: until its answer only the end of the lease is due.
        if self.beat is None:
            return self.lease.next_wake()
        return self.begun_by if self.lease.stop_at is None else self.lease.stop_at

    def _send_heartbeat(self, now: float) -> None:
        self.lease = self.lease.note_sent(now)
        token, progress = self.token, self.work.progress() if self.has_started else ""
        self.beat = self.pace.begin(lambda: self.dispatcher.heartbeat(token, progress))

    def _take_answer(self) -> Ending | None:
        if self.beat is None or not self.beat.done():
            return None
        beat, self.beat = self.beat, None
        try:
            answer = beat.result()
        except Unreachable:
            return None
        if answer.order is Order.LOST:
            return Ending.LOST
        assert self.lease.sent is not None
        self.lease = self.lease.note_answer(self.lease.sent)
        if answer.order is Order.CANCEL:
            result = self.work.poll() if self.has_started else None
            self.work.kill()
            return self._complete(result or AttemptResult(Outcome.CANCELLED))
        if not self.has_started and self.lease.may_work(self.pace.now()):
            self.has_started = True
            self.work.start()
        if self.has_started:
            for message in answer.messages:
                self.work.deliver(message)
        return None

    def _complete(self, result: AttemptResult) -> Ending:
        while True:
            try:
                self.dispatcher.complete(self.token, result)
            except StaleToken:
                return Ending.LOST
            except Unreachable:
                if self.lease.decide(self.pace.now()) is Duty.STOP:
                    return Ending.CUT_OFF
                self.pace.wait(None, POLL_SECONDS)
            else:
                return Ending.COMPLETED
