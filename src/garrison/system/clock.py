"""Clock: the time, read in one place and passed in everywhere else.

Three readings: `utc` for records (ISO 8601 with microseconds and `Z`), `time` for arithmetic on them, and `monotonic`
for ages (CLOCK_MONOTONIC: neither a clock step nor a suspended machine changes an age).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FORMAT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z")


class Clock(Protocol):
    """Source of time."""

    def utc(self) -> str:
        """Return now as `2026-01-31T12:00:00.000000Z`."""
        ...

    def time(self) -> float:
        """Return now in seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Return seconds on CLOCK_MONOTONIC, comparable between processes of one boot."""
        ...


class SystemClock:
    """The machine's clock."""

    def utc(self) -> str:
        """Return now as ISO 8601."""
        return _format(time.time_ns() // 1000)

    def time(self) -> float:
        """Return now in seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds on CLOCK_MONOTONIC."""
        return time.clock_gettime(time.CLOCK_MONOTONIC)


def wait_until(is_done: Callable[[], bool], seconds: float, every: float = 0.05) -> bool:
    """Poll until a condition is true, for at most so many seconds; return whether it is."""
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


def iso(epoch: float) -> str:
    """Return seconds since the epoch as ISO 8601 in UTC, with microseconds and `Z`."""
    return _format(round(epoch * 1_000_000))


def _format(microseconds: int) -> str:
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def from_iso(text: str) -> float:
    """Return the seconds since the epoch of a time that `iso` wrote, or another program as RFC 3339 in UTC with up to
    nine digits of a second; ValueError for any other format."""
    try:
        if _FORMAT.fullmatch(text):
            return datetime.fromisoformat(text).timestamp()
    except ValueError:  # a day that the calendar lacks
        pass
    raise ValueError(f"not a time: {text!r}; times read 2026-01-31T12:00:00.000000Z")


def age_of(stamp: str) -> str:
    """Return how long ago an ISO 8601 time was, as `format_age`; '' if it is not a time."""
    try:
        return format_age(max(0.0, time.time() - datetime.fromisoformat(stamp).timestamp()))
    except ValueError:
        return ""


def format_age(seconds: float | None) -> str:
    """Return a length of time in one unit: 4s, 12m, 3h, 2d; '' for None."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def find_zone(name: str) -> tzinfo | None:
    """Return a time zone by its name, such as Europe/Berlin; None if there is none."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # few processes need a calendar

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, ZoneInfoNotFoundError):
        return None


def local_zone(link: Path = Path("/etc/localtime")) -> tzinfo:
    """Return the time zone of `TZ`, else the machine's, which `link` points to, with its summer time; today's offset if
    its name is unknown."""
    name = os.environ.get("TZ", "").lstrip(":") or os.path.realpath(link).partition("/zoneinfo/")[2]
    return (find_zone(name) if name else None) or datetime.now().astimezone().tzinfo or UTC
