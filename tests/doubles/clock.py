"""Clock for tests: it moves only when the test moves it."""

from __future__ import annotations

from garrison.system.clock import iso


class FakeClock:
    """A clock that a test moves: `advance` lets time pass, `step` sets the wall clock."""

    def __init__(self, start: float = 1_700_000_000.0, monotonic: float = 1000.0) -> None:
        self._time, self._monotonic = start, monotonic

    def utc(self) -> str:
        """Return now as ISO 8601."""
        return iso(self._time)

    def time(self) -> float:
        """Return now in seconds since the epoch."""
        return self._time

    def monotonic(self) -> float:
        """Return the seconds that `advance` let pass, from an arbitrary start."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks; they do not run backwards."""
        if seconds < 0:
            raise ValueError("time does not run backwards; use step() to set the wall clock")
        self._time += seconds
        self._monotonic += seconds

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back by `seconds`."""
        self._time += seconds
