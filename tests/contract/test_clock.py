from __future__ import annotations

import calendar
import time

import pytest

from doubles.clock import FakeClock
from garrison.system.clock import Clock, SystemClock, from_iso, iso


@pytest.fixture(params=[SystemClock, FakeClock])
def clock(request: pytest.FixtureRequest) -> Clock:
    made: Clock = request.param()
    return made


def test_the_readings_agree_and_do_not_run_backwards(clock: Clock) -> None:
    before = clock.time()
    stamped = from_iso(clock.utc())
    assert before - 1e-5 <= stamped <= clock.time() + 1e-5
    for read in (clock.monotonic, clock.utc):
        readings = [read() for _ in range(100)]
        assert readings == sorted(readings)
    assert len(clock.utc()) == 27


def test_the_system_clock_is_the_machines() -> None:
    for theirs, ours in ((time.time, SystemClock().time), (time.monotonic, SystemClock().monotonic)):
        before, now, after = theirs(), ours(), theirs()
        assert before - 0.1 <= now <= after + 0.1


def test_the_fake_clock_advances_on_request() -> None:
    clock = FakeClock(1000.0, monotonic=5.0)
    clock.advance(2.5)
    assert (clock.time(), clock.monotonic(), clock.utc()) == (1002.5, 7.5, "1970-01-01T00:16:42.500000Z")
    clock.step(-3600)
    assert (clock.time(), clock.monotonic()) == (1002.5 - 3600, 7.5)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


@pytest.mark.parametrize("date", [(1970, 1, 1), (1972, 2, 29), (1999, 12, 31), (2000, 2, 29), (2000, 3, 1),
                                  (2024, 2, 29), (2026, 3, 1), (2100, 2, 28), (2100, 3, 1), (2200, 12, 31)])
def test_dates_are_right_to_the_microsecond(date: tuple[int, int, int]) -> None:
    for micro in (0, 1, 499_999, 500_000, 999_999):
        text = "{:04d}-{:02d}-{:02d}T23:59:58.{:06d}Z".format(*date, micro)
        assert from_iso(text) == pytest.approx(calendar.timegm((*date, 23, 59, 58)) + micro / 1e6, abs=1e-7)
        assert iso(from_iso(text)) == text


@pytest.mark.parametrize("text", ["", "2026-07-31", "2026-07-31T12:34:56.0000000000Z", "2026-07-31T12:34:56.000000",
                                  "2026-07-31T12:34:56.000000+00:00", "2026-02-30T12:34:56.000000Z",
                                  "2026-13-01T12:34:56.000000Z", "2026-07-31T24:00:00.000000Z",
                                  "2026-07-31 12:34:56.000000Z", "2026-07-31T12:34:56.00000٠Z",
                                  "2026-07-31T+1:34:56.000000Z"])
def test_other_shapes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a time"):
        from_iso(text)
