"""Time, asked in one place and passed in everywhere else.

Three readings: `utc` for records (ISO 8601, microseconds, `Z`), `time` for arithmetic on those, `monotonic` for ages
(CLOCK_MONOTONIC: neither a clock step nor a suspended machine ages anybody). Light: no datetime.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object


class Clock(Protocol):
    """What tells the time."""

    def utc(self) -> str:
        """Now as `2026-01-31T12:00:00.000000Z`."""
        ...

    def time(self) -> float:
        """Now in seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds on CLOCK_MONOTONIC, comparable between processes of one boot."""
        ...


class SystemClock:
    """The machine's clock."""

    def utc(self) -> str:
        """Now as ISO 8601."""
        return _text(time.time_ns() // 1000)

    def time(self) -> float:
        """Now in seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds on CLOCK_MONOTONIC."""
        return time.clock_gettime(time.CLOCK_MONOTONIC)


class FakeClock:
    """A clock that moves when told to: `advance` is time passing, `step` somebody setting the wall clock."""

    def __init__(self, start: float = 1_700_000_000.0, monotonic: float = 1000.0) -> None:
        self._time, self._monotonic = start, monotonic

    def utc(self) -> str:
        """Now as ISO 8601."""
        return iso(self._time)

    def time(self) -> float:
        """Now in seconds since the epoch."""
        return self._time

    def monotonic(self) -> float:
        """Seconds that `advance` let pass, from an arbitrary start."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks; they do not run backwards."""
        if seconds < 0:
            raise ValueError("time does not run backwards; use step() to set the wall clock")
        self._time += seconds
        self._monotonic += seconds

    def step(self, seconds: float) -> None:
        """Move the wall clock alone, in either direction."""
        self._time += seconds


def iso(epoch: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC with microseconds and `Z`."""
    return _text(round(epoch * 1_000_000))


_second = (-1, "")
"""The last second that was written, and its text: a busy layer writes many records in one."""


def _text(microseconds: int) -> str:
    global _second  # noqa: PLW0603  # a memory of one; whoever replaces it meanwhile puts in what is right, too
    seconds, rest = divmod(microseconds, 1_000_000)
    known, text = _second
    if known != seconds:
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        _second = seconds, text
    return f"{text}.{rest:06d}Z"


def from_iso(text: str) -> float:
    """The inverse of `iso`, in seconds since the epoch; ValueError for any other shape."""
    global _minute  # noqa: PLW0603  # as `_second`
    known, began = _minute
    second, micro = text[17:19], text[20:26]
    if not (len(text) == 27 and text[19] == "." and text[26] == "Z" and text.isascii()
            and second.isdigit() and micro.isdigit() and second <= "60"):
        raise ValueError(_NO_TIME.format(text))
    if text[:17] != known:
        began = _began(text)
        _minute = text[:17], began
    return began + int(second) + int(micro) / 1_000_000


_minute = ("", 0)
"""The last minute that was read and its beginning, in seconds since the epoch: a look names few of them."""
_NO_TIME = "not a time: {!r}; times read 2026-01-31T12:00:00.000000Z"


def _began(text: str) -> int:
    """When the minute of a time began."""
    numbers = [text[0:4], text[5:7], text[8:10], text[11:13], text[14:16]]
    if [text[4], text[7], text[10], text[13], text[16]] == list("--T::") and all(map(str.isdigit, numbers)):
        year, month, day, hour, minute = map(int, numbers)
        days = _days(year, month, day) if 1 <= month <= 12 else 0
        if time.gmtime(days * 86400)[:3] == (year, month, day) and hour <= 23 and minute <= 59:
            return days * 86400 + hour * 3600 + minute * 60
    raise ValueError(_NO_TIME.format(text))


def _days(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 in the Gregorian calendar, counted in years that begin in March."""
    shifted = year - (month <= 2)
    from_march = (153 * ((month - 3) % 12) + 2) // 5 + day - 1
    return 365 * shifted + shifted // 4 - shifted // 100 + shifted // 400 + from_march - 719468


def format_age(seconds: float | None) -> str:
    """A length of time in one unit: 4s, 12m, 3h, 2d; '' for None."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
