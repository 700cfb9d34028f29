"""Stretches of time that people name by words alone: "the past hour", "last week", "tonight", "from 9am to 5pm". Pure.

The rule of this room: a stretch of hours or minutes is so long on any clock, also over a change to summer time; one of
days, weeks and months is told by the calendar. "Last week" is the one from Monday to Monday, "the past week" the last
seven days. `dateparser` reads moments (`times`), and of these it makes a day or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBERS = {word: number for number, words in enumerate((
    "", "a an one", "two couple", "three few", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve")) for word in words.split()}
_LEAD = r"\b(?:(?:in|over|within|during) )?(?:the )?"
_DAY = rf"(?:today|tomorrow|yesterday|(?:on )?(?:{'|'.join(WEEKDAYS)}))"
_TIME = r"(?:\d{1,2}(?::\d\d)? ?[ap]m|\d{1,2}:\d\d|noon|midnight)"
_MOMENT = rf"(?:{_TIME}(?: {_DAY})?|{_DAY}(?: (?:at )?{_TIME})?)"
SHARP = r"(?:noon|midnight)"
PARTS = {"morning": (6, 12), "afternoon": (12, 18), "evening": (18, 24), "night": (18, 30)}
"""Hours of the day; a night ends on the next."""


@dataclass(frozen=True)
class Stretch:
    """Where it stands in the text, and what it means: [start, end)."""

    at: int
    to: int
    start: datetime
    end: datetime


def later(moment: datetime, delta: timedelta) -> datetime:
    """So much later (or earlier) on any clock."""
    return (moment.astimezone(UTC) + delta).astimezone(moment.tzinfo)


def midnight(moment: datetime, days: int = 0) -> datetime:
    """The beginning of its day, or of one so many days on."""
    return datetime.combine(moment.date() + timedelta(days=days), time(), moment.tzinfo)


def found(text: str, now: datetime) -> list[Stretch]:
    """The stretches in `text`, in its order; where two begin in one another, the first rule of the table is meant."""
    told: list[Stretch] = []
    for pattern, means in _RULES:
        for match in pattern.finditer(text):
            free = all(match.end() <= one.at or one.to <= match.start() for one in told)
            meant = means(match, now) if free else None
            if meant is not None:
                told.append(Stretch(match.start(), match.end(), *meant))
    return sorted(told, key=lambda one: one.at)


Meant = tuple[datetime, datetime] | None


def _counted(match: re.Match[str], now: datetime) -> Meant:
    """So many units back or on from now; one of the calendar for "last week" and its like."""
    direction, number, unit = (word.lower() if word else "" for word in match.group("way", "number", "unit"))
    back = direction in ("last", "past", "previous")
    if not number and unit in ("day", "week", "month", "year") and direction in ("last", "previous", "next"):
        return _calendar(now, unit, -1 if back else 1)
    if not number and unit.endswith("s") and unit != "hours":
        return None  # "the last minutes": nobody can say how many
    count = int(number) if number.isdigit() else _NUMBERS.get(number.removesuffix(" of").removeprefix("a "), 1)
    count = min(count, 100_000) * (-1 if back else 1)
    other = _moved(now, unit.rstrip("s"), count)
    return None if other is None else (other, now) if back else (now, other)


def _moved(now: datetime, unit: str, count: int) -> datetime | None:
    try:
        if unit in _SECONDS:
            return later(now, timedelta(seconds=_SECONDS[unit] * count))
        if unit in ("day", "week"):
            return now + timedelta(days=count * (7 if unit == "week" else 1))
        month = now.year * 12 + now.month - 1 + count * (12 if unit == "year" else 1)
        last = (datetime(month // 12 + (month % 12 == 11), (month + 1) % 12 + 1, 1) - timedelta(days=1)).day
        return now.replace(year=month // 12, month=month % 12 + 1, day=min(now.day, last))
    except (OverflowError, ValueError):  # before the year 1, or after 9999
        return None


_SECONDS = {"second": 1, "sec": 1, "minute": 60, "min": 60, "hour": 3600, "hr": 3600}


def _calendar(now: datetime, unit: str, by: int) -> Meant:
    """The calendar's day, week, month or year, so many on."""
    if unit == "day":
        return midnight(now, by), midnight(now, by + 1)
    if unit == "week":
        monday = 7 * by - now.weekday()
        return midnight(now, monday), midnight(now, monday + 7)
    first = midnight(now).replace(day=1) if unit == "month" else midnight(now).replace(month=1, day=1)
    start, end = _moved(first, unit, by), _moved(first, unit, by + 1)
    return None if start is None or end is None else (start, end)


def _this(match: re.Match[str], now: datetime) -> Meant:
    return _calendar(now, match["unit"].lower(), 0)


def _beyond(match: re.Match[str], now: datetime) -> Meant:
    days = 2 if match["way"].lower() == "after" else -2
    return midnight(now, days), midnight(now, days + 1)


def _part(match: re.Match[str], now: datetime) -> Meant:
    """A part of a day."""
    said = match[0].lower()
    if said == "tonight":
        return _hours(now, 0, "night")
    day, part = said.split()
    if said in ("last night", "yesterday night"):
        return _hours(now, -1, "night")
    return None if day == "last" else _hours(now, _days_on(day, now), part)


def _hours(now: datetime, days: int, part: str) -> Meant:
    begin, end = PARTS[part]
    until = midnight(now, days + 1) if end >= 24 else midnight(now, days).replace(hour=end)
    return midnight(now, days).replace(hour=begin), until.replace(hour=end - 24) if end > 24 else until


def _end_of(match: re.Match[str], now: datetime) -> Meant:
    found = _calendar(now, (match["unit"] or "day").lower(), 0)
    return (now, found[1]) if found is not None else None


def _range(match: re.Match[str], now: datetime) -> Meant:
    """From one moment to another; a day that only one of them names is the day of both."""
    days = [_named(match[name]) for name in ("one", "other")]
    texts = [re.search(_TIME, match[name], re.IGNORECASE) for name in ("one", "other")]
    on = [_days_on(days[0] or days[1] or "today", now), _days_on(days[1] or days[0] or "today", now)]
    start = _at(now, on[0], texts[0][0] if texts[0] else "")
    end = _at(now, on[1], texts[1][0]) if texts[1] else midnight(now, on[1] + 1)
    if end <= start:  # past midnight, or past Sunday
        end += timedelta(days=7 if days[1] and days[1].lower() in WEEKDAYS else 1)
    return (start, end) if start < end else None


def _sharp(match: re.Match[str], now: datetime) -> Meant:
    """Noon, or the midnight at the end of a day, and the hour after it."""
    days = _days_on(_named(match[0]), now)
    start = _at(now, days, "noon") if "noon" in match[0].lower() else midnight(now, days + 1)
    return start, later(start, timedelta(hours=1))


def _named(text: str) -> str:
    """The day that a moment names; ''."""
    match = re.search(_DAY, text, re.IGNORECASE)
    return match[0].lower().removeprefix("on ") if match else ""


def _days_on(day: str, now: datetime) -> int:
    """In how many days that is; a weekday is the next of its name, today's is today."""
    if day in WEEKDAYS:
        return (WEEKDAYS.index(day) - now.weekday()) % 7
    return {"tomorrow": 1, "yesterday": -1}.get(day, 0)


def _at(now: datetime, days: int, clock: str) -> datetime:
    begin = midnight(now, days)
    word = clock.lower().replace(" ", "")
    if word in ("", "midnight"):
        return begin
    if word == "noon":
        return begin.replace(hour=12)
    hour, _, minute = word.rstrip("apm").partition(":")
    hours = int(hour) % 12 + (12 if word.endswith("pm") else 0) if word[-1] == "m" else int(hour)
    return begin.replace(hour=hours % 24, minute=int(minute or 0) % 60)


def _rule(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_NUMBER = rf"\d{{1,6}}|{'|'.join(word for word in _NUMBERS if word != 'couple')}|(?:a )?couple of|a few"
_RULES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], datetime], Meant]], ...] = (
    (_rule(rf"\b(?:between|from) (?P<one>{_MOMENT}) (?:and|to|until|till) (?P<other>{_MOMENT})\b"), _range),
    (_rule(rf"{_LEAD}(?P<way>last|past|previous|next|coming|following) (?:(?P<number>{_NUMBER}) )?"
           r"(?P<unit>seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|years?)\b"), _counted),
    (_rule(r"\bthis (?P<unit>week|month|year)\b"), _this),
    (_rule(r"\b(?:the )?day (?P<way>after|before) (?:tomorrow|yesterday)\b"), _beyond),
    (_rule(rf"\b(?:tonight|(?:this|last|{_DAY}) (?:{'|'.join(PARTS)}))\b(?! (?:at )?\d)"), _part),
    (_rule(rf"\b(?:{_DAY} (?:at )?)?{SHARP}(?: {_DAY})?\b"), _sharp),
    (_rule(r"\b(?:EOD|(?:the )?end of (?:the |this )?(?P<unit>day|week|month|year))\b"), _end_of),
)
