"""Schedules: due times and their starts, whatever the clock, its changes and crashes do."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from itertools import takewhile
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.errors import UsageError
from garrison.launch.own_command import runs_in
from garrison.records.names import check_run
from garrison.schedules import policy
from garrison.schedules.policy import DAY, Go, Overlap, Schedule, ScheduledStart, Stage, due_times, read_times
from garrison.schedules.starts import Schedules, command_words, stem_of, word_of
from garrison.values import replace

BERLIN = ZoneInfo("Europe/Berlin")
MONDAY = datetime(2026, 11, 30, tzinfo=UTC).timestamp()


def schedule(times: str = "0 3 * * *", since: float = MONDAY, **more: object) -> Schedule:
    return replace(Schedule("nightly", times, ["run", "x"], "/repo", since), **more)


def moments(times: str, zone: ZoneInfo, since: datetime, until: datetime) -> list[datetime]:
    found = due_times(schedule(times), since.timestamp(), zone)
    return [datetime.fromtimestamp(due, zone) for due in takewhile(lambda due: due < until.timestamp(), found)]


@given(st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/St_Johns",
                        "Africa/Casablanca", "UTC"]),
       st.integers(0, 23), st.integers(0, 59), st.sampled_from([2024, 2026]))
@settings(max_examples=12, deadline=None)
def test_a_time_of_day_is_due_once_a_day_whatever_the_clock_does(name: str, hour: int, minute: int, year: int) -> None:
    """A repeated time is due at its first occurrence, a skipped one when the clock has passed it."""
    zone, day = ZoneInfo(name), date(year, 1, 1)
    wanted = []
    while day.year == year:
        at = datetime.combine(day, time(hour, minute))
        while at.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) != at:
            at += timedelta(minutes=1)
        wanted.append(at.replace(tzinfo=zone).timestamp())
        day += timedelta(days=1)
    found = moments(f"{minute} {hour} * * *", zone, datetime(year, 1, 1, tzinfo=zone) - timedelta(seconds=1),
                    datetime(year + 1, 1, 1, tzinfo=zone))
    assert [at.timestamp() for at in found] == wanted


@pytest.mark.parametrize(("since", "first"), [
    (datetime(2026, 10, 25, 2, 10, fold=1, tzinfo=BERLIN), datetime(2026, 10, 26, 2, 30, tzinfo=BERLIN)),
    (datetime(2026, 10, 25, 2, 10, fold=0, tzinfo=BERLIN), datetime(2026, 10, 25, 2, 30, fold=0, tzinfo=BERLIN)),
])
def test_a_schedule_added_in_a_repeated_hour_is_not_due_in_the_past(since: datetime, first: datetime) -> None:
    assert next(due_times(schedule("30 2 * * *"), since.timestamp(), BERLIN)) == first.timestamp()


def test_frequent_times_continue_through_a_change_of_the_clock() -> None:
    since, until = datetime(2026, 10, 24, 20, tzinfo=BERLIN), datetime(2026, 10, 25, 8, tzinfo=BERLIN)
    assert len(moments("0 * * * *", BERLIN, since, until)) == 12  # one hour more than its clock shows
    assert len(moments("*/15 * * * *", BERLIN, since, until)) == 13 * 4 - 1


@pytest.mark.parametrize(("text", "said"), [
    ("0 3 * *", "has 4 fields"), ("0 0 3 * * *", "has 6 fields"), ("61 * * * *", "Bad minute"), ("0 0 30 2 *", "Bad"),
    ("@reboot", "there are"), ("@dayly", "did you mean @daily"), ("", "has 0 fields"), ("x y z a b", "Bad"),
])
def test_an_invalid_time_is_refused_with_its_mistake(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_times(text)
    assert read_times("@daily") == read_times(" 0  0 * * * ") == "0 0 * * *"
    with pytest.raises(UsageError, match="not a time zone"):
        policy.read_zone("Mars/Olympus")


def play(of: Schedule, steps: list[tuple[float, bool]], zone: ZoneInfo) -> list[ScheduledStart]:
    """Return the records after calls at these times; a killed call writes only its first record."""
    starts: dict[str, ScheduledStart] = {}
    for now, is_killed in steps:
        due = policy.decide(of, max((start.due for start in starts.values()), default=0.0), now, zone)
        recorded = [start for start in (due.missed, due.start) if start is not None]
        for start in recorded[:1] if is_killed else recorded:
            assert stem_of(start) not in starts, "a time is handled twice"
            starts[stem_of(start)] = start
    return sorted(starts.values(), key=lambda start: start.due)


@given(st.sampled_from(["0 3 * * *", "30 2 * * *", "*/20 * * * *", "0 */6 * * *", "15 4 * * 1-5"]),
       st.sampled_from([BERLIN, *map(ZoneInfo, ("America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"))]),
       st.sampled_from([datetime(2026, 3, 27), datetime(2026, 10, 23), datetime(2026, 11, 20), datetime(2026, 4, 3)]),
       st.lists(st.tuples(st.floats(-7200, 90_000) | st.just(7 * DAY), st.booleans()), min_size=1, max_size=40),
       st.sampled_from([None, 3600.0, DAY, 30 * DAY]))
@settings(max_examples=60, deadline=None)
def test_each_due_time_is_handled_exactly_once(times: str, zone: ZoneInfo, day: datetime,
                                               steps: list[tuple[float, bool]], missed: float | None) -> None:
    """Calls come late, twice and after a week; clocks are set back; calls are killed between their two records."""
    since = now = day.replace(tzinfo=zone).timestamp()
    of, calls = schedule(times, since, missed=missed), []
    for pause, is_killed in steps:
        now += pause
        calls.append((now, is_killed))
    latest = max(now for now, _ in calls)
    calls.append((latest, False))
    starts = play(of, calls, zone)
    due = [at for at in takewhile(lambda at: at <= latest, due_times(of, since, zone)) if at > latest - policy.LOOKBACK]
    for at in due:
        handled = [start for start in starts if (start.first or start.due) <= at <= start.due]
        assert len(handled) == 1, (at, handled)
    begun = [start for start in starts if start.stage is Stage.BEGUN]
    assert all(not start.is_late or (missed is not None and start.at - start.due <= missed) for start in begun)
    assert sum(start.count for start in starts) >= len(due)


def test_after_a_sleep_only_the_latest_time_is_started() -> None:
    of = schedule("0 * * * *", since=MONDAY)
    due = policy.decide(of, 0.0, MONDAY + 7 * 3600 + 600, ZoneInfo("UTC"))
    assert due.start is not None and due.start.is_late and due.start.due == MONDAY + 7 * 3600
    assert due.missed is not None and due.missed.count == 6
    assert (word_of(due.missed), word_of(replace(due.start, stage=Stage.STARTED))) == ("missed 6 times", "late")
    never = policy.decide(replace(of, missed=None), 0.0, MONDAY + 7 * 3600 + 600, ZoneInfo("UTC"))
    assert never.start is None and never.missed is not None and never.missed.count == 7
    minute = policy.decide(schedule(missed=None), 0.0, MONDAY + 3 * 3600 + 65, ZoneInfo("UTC"))
    assert minute.missed is None and minute.start is not None and not minute.start.is_late, "a minute is not late"


def test_a_paused_schedule_is_never_due_and_late_starts_are_staggered() -> None:
    of = schedule(paused="by hand")
    assert policy.decide(of, 0.0, MONDAY + DAY, ZoneInfo("UTC")) == policy.Due()
    assert policy.next_due(of, 0.0, MONDAY, ZoneInfo("UTC")) is None
    late = [ScheduledStart(MONDAY, Stage.BEGUN, MONDAY, is_late=True)] * 3
    assert [start.begin_at for start in policy.stagger(late, MONDAY)] == [MONDAY, MONDAY + 30, MONDAY + 60]


STARTED = ScheduledStart(MONDAY, Stage.STARTED, MONDAY, runs=["r1"])
NEXT = ScheduledStart(MONDAY + 60, Stage.BEGUN, MONDAY + 60)
WAITING = ScheduledStart(MONDAY + 30, Stage.QUEUED, MONDAY + 30)


@pytest.mark.parametrize(("overlap", "others", "wanted"), [
    (Overlap.SKIP, [], Go.BEGIN), (Overlap.SKIP, [replace(STARTED, outcome="done")], Go.BEGIN),
    (Overlap.SKIP, [STARTED], Go.SKIP), (Overlap.QUEUE, [STARTED], Go.WAIT), (Overlap.STOP, [STARTED], Go.STOP_FIRST),
    (Overlap.QUEUE, [STARTED, WAITING], Go.SKIP), (Overlap.SKIP, [WAITING], Go.SKIP),
    (Overlap.STOP, [replace(WAITING, stage=Stage.BEGUN)], Go.WAIT),
    (Overlap.SKIP, [replace(NEXT, due=MONDAY + 90, at=MONDAY + 90)], Go.BEGIN),
])
def test_an_overlapping_start_follows_its_setting(overlap: Overlap, others: list[ScheduledStart], wanted: Go) -> None:
    assert policy.may_begin(schedule(overlap=overlap), NEXT, others, 0.0)[0] is wanted


def test_a_start_is_skipped_if_the_budget_of_the_week_is_spent() -> None:
    go, why = policy.may_begin(schedule(budget_week=5.0), NEXT, [], 5.0)
    assert go is Go.SKIP and why == "$5.00 of the $5.00 for this week are spent"


def test_three_failures_in_a_row_pause_a_schedule_until_it_is_resumed() -> None:
    failed = [ScheduledStart(MONDAY + number, Stage.FAILED, MONDAY + number, why="no gate") for number in range(3)]
    of = schedule(since=MONDAY)
    assert policy.find_pause(of, failed) == "its last 3 starts failed: no gate"
    assert policy.find_pause(of, failed[:2]) == ""
    assert policy.find_pause(of, [failed[0], replace(STARTED, due=MONDAY + 1, outcome="done"), *failed[1:]]) == ""
    assert policy.find_pause(of, [replace(start, stage=Stage.STARTED, outcome="failed") for start in failed]) != ""
    assert policy.find_pause(replace(of, since=MONDAY + 10), failed) == ""


def test_starts_are_kept_in_the_history_and_the_latest_time_comes_from_names(tmp_path: Path) -> None:
    schedules = Schedules(tmp_path)
    schedules.add(schedule())
    assert schedules.handled("nightly") == 0.0
    for start in (STARTED, replace(NEXT, by_hand=True), WAITING):
        schedules.write_start("nightly", start)
    assert schedules.handled("nightly") == WAITING.due  # a start by hand uses up no time
    schedules.write_start("nightly", replace(STARTED, outcome="done"))
    schedules.write_start("nightly", replace(WAITING, stage=Stage.SKIPPED))
    assert schedules.open_starts("nightly") == [replace(NEXT, by_hand=True)]
    assert [start.due for start in schedules.starts("nightly")] == [MONDAY, MONDAY + 30, MONDAY + 60]
    assert schedules.handled("nightly") == WAITING.due and len(schedules.starts("nightly", MONDAY + 10)) == 2
    schedules.remove("nightly")
    assert schedules.names() == [] and not (tmp_path / "schedules/nightly").exists()


def test_a_start_is_one_command_with_a_unique_id() -> None:
    run = policy.run_id("a-name-of-many-words-that-is-long", NEXT)
    assert run == "a-name-of-many-words-261130-0001" and check_run(run)
    now = replace(NEXT, by_hand=True, due=NEXT.due + 7.25)
    assert check_run(policy.run_id("a-name-of-many-words", now)) == "a-name-of-many-261130-0001-07250"
    of = schedule(words=["run", "--tasks", "TODO.md"])
    assert command_words(of, run) == ["run", "--json", "--target-dir=/repo", "--detach", f"--run={run}", "--new",
                                      "--yes", "--tasks", "TODO.md"]
    assert command_words(replace(of, words=["take", "12"]), run) == ["take", "--json", "--target-dir=/repo", "12"]
    assert runs_in('{"status": "ok", "run": "a"}') == ["a"] and runs_in('[{"run": "a"}, {"run": "b"}]') == ["a", "b"]
    assert runs_in("") == runs_in("[]") == runs_in("[3]") == []
