"""Times in prose: their meaning, changes to summer time, and text that is no time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from garrison.delegation import time_phrases
from garrison.delegation.time_phrases import intervals
from garrison.system import clock

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 1, 14, 10, 30, tzinfo=BERLIN)
"""A Wednesday."""


@pytest.mark.parametrize(("text", "words", "start", "end"), [
    ("what happened yesterday?", "yesterday", "13 00:00", "14 00:00"),
    ("what happened since yesterday?", "since yesterday", "13 00:00", "14 10:30"),
    ("finish it by Friday", "by Friday", "14 10:30", "17 00:00"),
    ("the merge on 2026-01-20 at 14:30", "on 2026-01-20 at 14:30", "20 14:30", "20 15:30"),
    ("finish next Friday", "next Friday", "16 00:00", "17 00:00"),
    ("what landed since Monday?", "since Monday", "12 00:00", "14 10:30"),
    ("what failed since 9am and why", "since 9am", "14 09:00", "14 10:30"),
    ("due by tomorrow 5pm", "by tomorrow 5pm", "14 10:30", "15 17:00"),
    ("hold it until midnight", "until midnight", "14 10:30", "15 00:00"),
    ("before Friday noon", "before Friday noon", "14 10:30", "16 12:00"), ("noon", "noon", "14 12:00", "14 13:00"),
    ("deaths of last week", "last week", "05 00:00", "12 00:00"),
    ("the past week", "the past week", "07 10:30", "14 10:30"), ("this week", "this week", "12 00:00", "19 00:00"),
    ("by the end of the week", "by the end of the week", "14 10:30", "19 00:00"),
    ("within the next hour", "within the next hour", "14 10:30", "14 11:30"),
    ("in the last couple of days", "in the last couple of days", "12 10:30", "14 10:30"),
    ("the day after tomorrow", "the day after tomorrow", "16 00:00", "17 00:00"),
    ("the day before yesterday", "the day before yesterday", "12 00:00", "13 00:00"),
    ("tonight", "tonight", "14 18:00", "15 06:00"), ("last night", "last night", "13 18:00", "14 06:00"),
    ("Friday morning", "Friday morning", "16 06:00", "16 12:00"),
    ("between 2pm and 4pm", "between 2pm and 4pm", "14 14:00", "14 16:00"),
    ("from 9am to 5:30pm tomorrow", "from 9am to 5:30pm tomorrow", "15 09:00", "15 17:30"),
    ("from 22:00 to 6am", "from 22:00 to 6am", "14 22:00", "15 06:00"),
    ("from 9am to 13pm", "from 9am to 13pm", "14 09:00", "14 13:00"),
    ("in 2 hrs", "in 2 hrs", "14 12:30", "14 12:31"),
    ("from Monday to Wednesday", "from Monday to Wednesday", "19 00:00", "22 00:00"),
    ("schedule it for 3pm UTC", "3pm UTC", "14 16:00", "14 17:00"),
    ("on 2026-01-20T14:00:00+05:00", "on 2026-01-20T14:00:00+05:00", "20 10:00", "20 11:00")])
def test_a_phrase_is_an_interval(text: str, words: str, start: str, end: str) -> None:
    [found] = intervals(text, NOW)
    assert found.words == words
    assert [f"{moment.astimezone(BERLIN):%d %H:%M}" for moment in (found.start, found.end)] == [start, end]


def test_months_are_those_of_the_calendar() -> None:
    told = [(one.start, one.end) for one in intervals("last month, next month, in March, past 2 months", NOW)]
    assert [tuple(f"{moment:%y-%m-%d}" for moment in pair if moment) for pair in told] == [
        ("25-12-01", "26-01-01"), ("26-02-01", "26-03-01"), ("26-03-01", "26-04-01"), ("25-11-14", "26-01-14")]


@pytest.mark.parametrize(("now", "text", "hours"), [
    ("2026-03-29 12:00", "last 24 hours", -24), ("2026-10-25 12:00", "last 24 hours", -24),
    ("2026-10-24 12:00", "next 24 hours", 24), ("2026-03-28 15:00", "tomorrow 3pm", 23),
    ("2026-10-24 15:00", "tomorrow 3pm", 25), ("2026-03-29 01:30", "in 2 hours", 2),
    ("2026-03-29 12:00", "past day", -23)])
def test_hours_and_times_of_day_are_exact_over_a_change_to_summer_time(now: str, text: str, hours: int) -> None:
    here = datetime.fromisoformat(now).replace(tzinfo=BERLIN)
    [found] = intervals(text, here)
    far = found.start if hours < 0 or found.start != here else found.end
    assert far.astimezone(UTC) - here.astimezone(UTC) == timedelta(hours=hours)
    [skipped] = intervals("tomorrow 2:30am", datetime(2026, 3, 28, 15, tzinfo=BERLIN))
    assert f"{skipped.start:%H:%M} {skipped.end:%H:%M}" == "03:30 04:30", "an hour that is skipped is the next one"


@pytest.mark.parametrize("text", [
    "May I go on?", "I may march on", "the march release", "sun is down", "the last three runs", "the last minutes",
    "run r1 node a2 port 8080", "version 1.2.3", "between run a and run b", "from main to release", "next node",
    "the past 999999 years", "second attempt", "How is run r1 doing?", "stop demo-2", "retry node build_3"])
def test_other_text_has_no_interval(text: str) -> None:
    assert intervals(text, NOW) == ()


def test_the_local_zone_has_summer_time_if_its_name_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TZ", ":Europe/Berlin")
    assert time_phrases.local_now().tzinfo == BERLIN
    monkeypatch.setenv("TZ", "No/Such")
    assert time_phrases.local_now().utcoffset() is not None
    monkeypatch.delenv("TZ")
    assert datetime.now(clock.local_zone(tmp_path / "none")).utcoffset() is not None
