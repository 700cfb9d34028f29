"""Leases: until when a worker may act, and from when another one may. Pure; time is an argument.

Two machines have two clocks, so only durations are compared. The worker counts from when it *sent* the last
answered heartbeat, the dispatcher from when it *received* it, which is later. The worker stops at 0.8 of the
lease. The other fifth is for killing the agent's processes, and for a clock that is up to a fifth too slow.

The worker uses CLOCK_BOOTTIME (`worker_clock`), which counts while the machine is suspended: a laptop that
wakes up must find its lease over. A process that is stopped while its agent runs cannot stop it; but the token of
such an agent is refused.
"""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from garrison.hosts.attempts import AttemptResult, Completion, DispatcherLost, StaleToken, WorkerOrder
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.hosts.attempts import Claim, Dispatcher, HeartbeatReply, WorkerMessage

STOP_SHARE = 0.8
"""Share of the lease after which a worker without answers stops its agent."""
BEAT_SHARE = 0.2
"""Share of the lease between two heartbeats, and the longest wait for an answer: three tries before the stop."""


class Duty(StrEnum):
    """Next action of a worker."""

    WAIT = "wait"
    BEAT = "beat"
    """Send a heartbeat."""
    STOP = "stop"
    """Kill the agent and everything it started, at once: another worker may soon start."""


class HeldLease(Value):
    """Lease of a claim, counted by its worker."""

    seconds: float
    answered: float | None = None
    """When the last answered heartbeat was sent; None: there is none, and the worker may not start."""
    sent: float | None = None
    """When the latest heartbeat was sent."""

    @property
    def stop_at(self) -> float | None:
        """Return the time at which the worker must stop; None if it may not even start."""
        return None if self.answered is None else self.answered + STOP_SHARE * self.seconds

    def note_sent(self, at: float) -> HeldLease:
        return replace(self, sent=at)

    def note_answer(self, sent_at: float) -> HeldLease:
        """Return the lease after the answer to the heartbeat that was sent at `sent_at`; a late answer never shortens
        it."""
        return replace(self, answered=sent_at if self.answered is None else max(self.answered, sent_at))

    def may_work(self, now: float) -> bool:
        return self.stop_at is not None and now < self.stop_at

    def decide(self, now: float) -> Duty:
        """Return the worker's next action."""
        if self.stop_at is not None and now >= self.stop_at:
            return Duty.STOP
        if self.sent is None or now >= self.sent + BEAT_SHARE * self.seconds:
            return Duty.BEAT
        return Duty.WAIT

    def next_wake(self) -> float:
        due = -1.0 if self.sent is None else self.sent + BEAT_SHARE * self.seconds
        return due if self.stop_at is None else min(due, self.stop_at)


class GrantedLease(Value):
    """Lease of a claim, counted by the dispatcher."""

    seconds: float
    received: float
    """When it received the last heartbeat, or granted the claim."""

    @property
    def ends_at(self) -> float:
        return self.received + self.seconds

    def renewed(self, at: float) -> GrantedLease:
        return replace(self, received=max(self.received, at))

    def is_over(self, now: float) -> bool:
        return now >= self.ends_at


def worker_clock() -> float:
    """Return the seconds on CLOCK_BOOTTIME, which no clock step changes and no suspend stops."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# ---- Work on a claim: start it once the lease has started, renew the lease, and kill the work before the lease can
# be over.
#
# Heartbeats run alongside the loop: waiting for an answer must not keep a cut-off worker from
# stopping. A waiting order or message is fetched by a heartbeat at once.


POLL_SECONDS = 0.1
"""Longest time between two polls of the work."""


class ClaimEnd(StrEnum):
    """How a worker's part in a claim ended."""

    COMPLETED = "completed"
    """The dispatcher accepted the result."""
    CUT_OFF = "cut off"
    """No heartbeat was answered for the worker's share of the lease; the work was killed, or never started."""
    LOST = "lost"
    """The claim is no longer current; the work was killed, its result refused."""


class ClaimWork(Protocol):
    """The work of one claim, as processes of this machine."""

    def start(self) -> None:
        """Start it."""
        ...

    def poll(self) -> AttemptResult | None:
        """Return its result, None while it runs."""
        ...

    def progress(self) -> str:
        ...

    def deliver(self, message: WorkerMessage) -> None:
        """Give it a message; only after `start`."""
        ...

    def kill(self) -> None:
        """Kill it with everything it started; none of it runs when this returns. Finished work is unaffected."""
        ...


class WorkerPace(Protocol):
    """The clock of a worker, and its calls alongside the loop."""

    def now(self) -> float:
        """Return the worker's time in seconds."""
        ...

    def begin(self, call: Callable[[], HeartbeatReply]) -> Future[HeartbeatReply]:
        """Start a call, and return without its answer."""
        ...

    def wait(self, answer: Future[HeartbeatReply] | None, seconds: float) -> None:
        """Wait for an answer, for `seconds` at most."""
        ...


class MachinePace:
    """Clock of this machine; calls run in a thread. A context manager, whose exit waits for no call: the thread ends
    with its current call."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "heartbeat")
        self._idle: Future[HeartbeatReply] = Future()

    def __enter__(self) -> MachinePace:
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def now(self) -> float:
        """Return the seconds on CLOCK_BOOTTIME."""
        return worker_clock()

    def begin(self, call: Callable[[], HeartbeatReply]) -> Future[HeartbeatReply]:
        """Start a call in the thread."""
        return self._executor.submit(call)

    def wait(self, answer: Future[HeartbeatReply] | None, seconds: float) -> None:
        """Wait for an answer, for `seconds` at most."""
        wait([answer or self._idle], max(0.0, seconds), FIRST_COMPLETED)


def work_on(dispatcher: Dispatcher, claim: Claim, work: ClaimWork, pace: WorkerPace) -> ClaimEnd:
    """Do the work of a claim; none of it runs when this returns or raises.

    The work starts with the first answered heartbeat. It is killed when the claim was lost or cancelled, or when no
    heartbeat was answered for 0.8 of the lease.
    """
    try:
        return _Worker(dispatcher, claim, work, pace).run()
    finally:
        work.kill()


class _Worker:
    def __init__(self, dispatcher: Dispatcher, claim: Claim, work: ClaimWork, pace: WorkerPace) -> None:
        self.dispatcher, self.token, self.work, self.pace = dispatcher, claim.token, work, pace
        self.lease = HeldLease(claim.attempt.lease)
        self.begun_by = pace.now() + claim.attempt.lease
        self.has_started = False
        self.beat: Future[HeartbeatReply] | None = None

    def run(self) -> ClaimEnd:
        """Work until the claim ends."""
        while True:
            ending = self._take_answer()
            if ending is not None:
                return ending
            now = self.pace.now()
            duty = self.lease.decide(now)
            if duty is Duty.STOP or (not self.has_started and now >= self.begun_by):
                return ClaimEnd.CUT_OFF
            result = self.work.poll() if self.has_started else None
            if result is not None:
                return self._complete(result)
            if self.beat is None and (duty is Duty.BEAT or self.dispatcher.is_called(self.token)):
                self._send_heartbeat(now)
            self.pace.wait(self.beat, min(POLL_SECONDS, max(0.0, self._next_wake() - self.pace.now())))

    def _next_wake(self) -> float:
        # A heartbeat in flight is not repeated: until its answer only the end of the lease is due.
        if self.beat is None:
            return self.lease.next_wake()
        return self.begun_by if self.lease.stop_at is None else self.lease.stop_at

    def _send_heartbeat(self, now: float) -> None:
        self.lease = self.lease.note_sent(now)
        token, progress = self.token, self.work.progress() if self.has_started else ""
        self.beat = self.pace.begin(lambda: self.dispatcher.heartbeat(token, progress))

    def _take_answer(self) -> ClaimEnd | None:
        if self.beat is None or not self.beat.done():
            return None
        beat, self.beat = self.beat, None
        try:
            answer = beat.result()
        except DispatcherLost:
            return None
        if answer.order is WorkerOrder.LOST:
            return ClaimEnd.LOST
        assert self.lease.sent is not None
        self.lease = self.lease.note_answer(self.lease.sent)
        if answer.order is WorkerOrder.CANCEL:
            # Polled before the kill: finished work counts, although it is no longer wanted.
            result = self.work.poll() if self.has_started else None
            self.work.kill()
            return self._complete(result or AttemptResult(Completion.CANCELLED))
        if not self.has_started and self.lease.may_work(self.pace.now()):
            self.has_started = True
            self.work.start()
        if self.has_started:
            for message in answer.messages:
                self.work.deliver(message)
        return None

    def _complete(self, result: AttemptResult) -> ClaimEnd:
        while True:
            try:
                self.dispatcher.complete(self.token, result)
            except StaleToken:
                return ClaimEnd.LOST
            except DispatcherLost:
                # Nothing renews the lease here: once it is over, the attempt may be another worker's.
                if self.lease.decide(self.pace.now()) is Duty.STOP:
                    return ClaimEnd.CUT_OFF
                self.pace.wait(None, POLL_SECONDS)
            else:
                return ClaimEnd.COMPLETED
