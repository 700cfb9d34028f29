"""Time phrases in a message: find them and compute the interval that each means. Pure: now is an argument.

Phrases that name an interval by words alone ("the past hour", "last week", "tonight", "from 9am to 5pm") are matched
by a table of rules; `dateparser` finds the moments between them ("tomorrow 3pm", "by Friday"), which become intervals:
"tomorrow" is the whole day, "3pm" one hour, "by Friday" begins now, "since Monday" is past and ends now.

Hours and minutes are elapsed time, also across a change to summer time; days, weeks and months follow the calendar.
"Last week" is the one from Monday to Monday, "the past week" the last seven days.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from garrison.delegation.models import Interval

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


def find_stretches(text: str, now: datetime) -> list[Stretch]:
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
    find_stretches = _calendar(now, (match["unit"] or "day").lower(), 0)
    return (now, find_stretches[1]) if find_stretches is not None else None


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


_SINCE = re.compile(r"\b(?:since|after|from) $", re.IGNORECASE)
_BY = re.compile(r"\b(?:by|until|till|before) $", re.IGNORECASE)
_CLOCK = re.compile(r"\d\s*(?:am|pm|h\b)|\d:\d\d|\bnow\b", re.IGNORECASE)
_AGO = re.compile(r"\b(?:minutes?|hours?|seconds?|mins?)\b", re.IGNORECASE)
_LEADING = re.compile(r"^(?:by|until|till|before|since|after|from|on|at|in)\s+", re.IGNORECASE)
_TRAILING = re.compile(r"(?:\s+(?:and|or|to|on|at|in|of|the|from|by|for)|[\s,;:])+$", re.IGNORECASE)
_NUMBER_ONLY = re.compile(r"^[\d.,:\s-]{1,4}$")
_MONTHS = re.compile(r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
                     r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\Z", re.IGNORECASE)
_OTHER_WORDS = frozenset({"may", "march", "mar", "jan", "dec", "sun", "sat", "mon", "wed", "second", "sec"})
"""Names of times that are, without a word before them that says so, as often something else."""
_NAMED_BY = re.compile(r"\b(?:by|until|till|before|since|after|from|on|in|during|this|next|last)\s+$", re.IGNORECASE)
_SHARP = re.compile(SHARP, re.IGNORECASE)
LANGUAGES = ["en"]


def intervals(text: str, now: datetime) -> tuple[Interval, ...]:
    """Every time in `text`, in its order; `now` has a time zone, and so have the answers."""
    told: list[Interval] = []
    place = 0
    for one in find_stretches(text, now):
        told += _moments(text, place, one.at, now)
        words = text[one.at:one.to]
        due = one.start if _SHARP.search(words) else one.end
        told.append(_bounded(text, one.at, words, one.start, one.end, due, now))
        place = one.to
    return (*told, *_moments(text, place, len(text), now))


def _moments(text: str, begin: int, end: int, now: datetime) -> list[Interval]:
    """Those that dateparser finds in a part of the text."""
    from dateparser.search import search_dates

    read = text[begin:end]
    told, place = [], 0
    for raw, moment in (search_dates(read, languages=LANGUAGES, settings=_settings(now, "future")) or []
                        if re.search(r"\w", read) else []):
        at = max(read.find(raw, place), place)
        place = at + len(raw)
        words = _TRAILING.sub("", raw)
        if words and not _NUMBER_ONLY.match(words) and not _is_other(read[:at], words):
            told.append(_interval(text, begin + at, words, moment, now))
    return told


def _settings(now: datetime, prefer: str) -> Any:
    return {"RELATIVE_BASE": now.replace(tzinfo=None), "PREFER_DATES_FROM": prefer}


def _is_other(before: str, words: str) -> bool:
    """Whether a word alone is probably no time at all ("may I", "the march release")."""
    core = _LEADING.sub("", words)
    *others, last = core.lower().split()
    return last in _OTHER_WORDS and set(others) <= {"the", "of", "a"} and core == words and (
        bool(others) or not _NAMED_BY.search(before))


def _interval(text: str, at: int, words: str, moment: datetime, now: datetime) -> Interval:
    """What a moment means, whose words stand at `at`; where `since` stands before, it is past."""
    lead = _LEADING.match(words)
    head = text[:at] + (lead.group(0) if lead else "")
    core = words[lead.end():] if lead else words
    start, end = _stretch(core, _placed(core, moment, now), now)
    if start > now and re.search(r"\bsince $", head, re.IGNORECASE):
        import dateparser

        earlier = dateparser.parse(core, languages=LANGUAGES, settings=_settings(now, "past"))
        start, end = _stretch(core, _placed(core, earlier, now), now) if earlier is not None else (start, end)
    shown = text[at:at + len(words)]
    due = start if _CLOCK.search(core) else end
    return _bounded(text, at, shown, start, end, due, now, lead=lead.group(0) if lead else "")


def _bounded(text: str, at: int, words: str, start: datetime, end: datetime, due: datetime, now: datetime, *,
             lead: str = "") -> Interval:
    """The interval, with what a `since` or `by` (then it ends at `due`) before it, or as `lead` in its words, makes
    of it."""
    head = text[:at] + lead
    for pattern in (_SINCE, _BY):
        match = pattern.search(head)
        if match is None:
            continue
        whole = words if lead else match.group(0) + words
        if pattern is _BY:
            return Interval(words=whole, start=now, end=due)
        return Interval(words=whole, start=start, end=now if start <= now else None)
    return Interval(words=words, start=start, end=end)


def _placed(words: str, moment: datetime, now: datetime) -> datetime:
    """A moment on the person's clock: one with a time zone of its own is that; "in 2 hours" is so on any clock."""
    if moment.tzinfo is not None:
        return moment.astimezone(now.tzinfo)
    if _AGO.search(words):
        return later(now, moment - now.replace(tzinfo=None))
    return moment.replace(tzinfo=now.tzinfo).astimezone(UTC).astimezone(now.tzinfo)  # an hour that is left out


def _stretch(words: str, moment: datetime, now: datetime) -> tuple[datetime, datetime]:
    """The hour that begins then where a clock time is named, a minute for so many hours from now, the month where a
    month alone is, else the day."""
    if _CLOCK.search(words):
        return moment, later(moment, timedelta(hours=1))
    if _AGO.search(words):
        return moment, later(moment, timedelta(minutes=1))
    if _MONTHS.match(words):
        first = midnight(moment).replace(day=1)
        return first, midnight(first, 32).replace(day=1)
    return midnight(moment), midnight(moment, 1)


_ZONES = "/zoneinfo/"
LOCALTIME = Path("/etc/localtime")


def local_zone() -> tzinfo | None:
    """The local_zone of `TZ`, else the system's; None where its name cannot be had."""
    name = os.environ.get("TZ", "").lstrip(":") or os.path.realpath(LOCALTIME).partition(_ZONES)[2]
    try:
        return ZoneInfo(name) if name else None
    except (OSError, ValueError, ZoneInfoNotFoundError):
        return None


def local_now() -> datetime:
    """Now; in the offset of the moment where the local_zone's name cannot be had."""
    return datetime.now(UTC).astimezone(local_zone())
