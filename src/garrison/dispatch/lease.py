"""Leases: until when a worker may act, and from when another one may. Pure; time is an argument.

Two machines, two clocks; only the lengths of time on them are compared. The worker counts from when it *sent* the last
heartbeat that was answered, the dispatcher from when it *received* it, which is later. The worker stops at 0.8 of the
lease. The other fifth is for killing the agent's processes, and for a clock that runs slow: up to a fifth.

Times of the worker are of CLOCK_BOOTTIME (`worker_clock`), which counts while the machine is suspended: a laptop that
wakes up must find its lease over. A process that is stopped while its agent runs cannot stop it; the token refuses
what such an agent does.
"""

from __future__ import annotations

import time
from enum import StrEnum

from garrison.values import Value, replace

STOP_SHARE = 0.8
"""Share of the lease after which a worker without answers stops its agent."""
BEAT_SHARE = 0.2
"""Share of the lease between two heartbeats, and for which one waits for its answer: three tries before the stop."""


class Duty(StrEnum):
    """What a worker has to do now."""

    WAIT = "wait"
    BEAT = "beat"
    """Send a heartbeat."""
    STOP = "stop"
    """Kill the agent and everything it started, at once: another worker may soon begin."""


class HeldLease(Value):
    """Lease of a claim, as its worker counts it."""

    seconds: float
    answered: float | None = None
    """When the latest heartbeat was sent that has been answered; None: none was, and the worker may not begin."""
    sent: float | None = None
    """When the latest heartbeat was sent."""

    @property
    def stop_at(self) -> float | None:
        """Return the time at which the worker must stop; None if it may not even begin."""
        return None if self.answered is None else self.answered + STOP_SHARE * self.seconds

    @property
    def answer_timeout(self) -> float:
        return BEAT_SHARE * self.seconds

    def note_sent(self, at: float) -> HeldLease:
        return replace(self, sent=at)

    def note_answer(self, sent_at: float) -> HeldLease:
        """Return the lease after the answer to the heartbeat that was sent at `sent_at`; a late one takes nothing
        back."""
        return replace(self, answered=sent_at if self.answered is None else max(self.answered, sent_at))

    def may_work(self, now: float) -> bool:
        return self.stop_at is not None and now < self.stop_at

    def decide(self, now: float) -> Duty:
        """Return what the worker has to do now."""
        if self.stop_at is not None and now >= self.stop_at:
            return Duty.STOP
        if self.sent is None or now >= self.sent + BEAT_SHARE * self.seconds:
            return Duty.BEAT
        return Duty.WAIT

    def next_wake(self) -> float:
        due = -1.0 if self.sent is None else self.sent + BEAT_SHARE * self.seconds
        return due if self.stop_at is None else min(due, self.stop_at)


class GrantedLease(Value):
    """Lease of a claim, as the dispatcher counts it."""

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
