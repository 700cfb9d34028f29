"""Lost time: how long a job could not run although its clock went on. Pure.

A time limit is about the job's own slowness. It says nothing of a job that was stopped (SIGSTOP), of one on a machine
that was suspended, or of one whose machine was so busy that the watcher itself did not run.
"""

from __future__ import annotations

SHARE = 0.1
"""Share of its limit that a job must have lost for its time-out to be no verdict."""
MIN_CAP = 5.0
"""Seconds between two looks at a job that are usual."""


class LostTime:
    """Counts the seconds that a job with this time limit lost."""

    def __init__(self, limit: float) -> None:
        self.limit, self.seconds = limit, 0.0
        self._cap = max(MIN_CAP, limit * SHARE)
        self._last: tuple[float, float] | None = None
        self._was_stopped = False

    def note(self, now: float, suspended: float, stopped: bool | None) -> None:
        """Count the time since the last look.

        Args:
            now: monotonic seconds, which do not pass while the machine is suspended.
            suspended: seconds that the machine has been suspended, since any fixed time.
            stopped: whether a process of the job is stopped; None: not looked at, so as before.
        """
        is_stopped = self._was_stopped if stopped is None else stopped
        if self._last is not None:
            passed = max(0.0, now - self._last[0])
            self.seconds += max(0.0, suspended - self._last[1])
            self.seconds += passed if self._was_stopped else max(0.0, passed - self._cap)
        self._last, self._was_stopped = (now, suspended), is_stopped

    @property
    def is_decisive(self) -> bool:
        """Return whether the job had so much less than its time that a time-out says nothing about it."""
        return self.seconds >= self.limit * SHARE
