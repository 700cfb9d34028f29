"""Time phrases in a message: find them and compute their intervals. Pure: now is an argument.

A table of rules matches phrases that name an interval ("the past hour", "last week", "tonight", "from 9am to 5pm");
`dateparser` finds moments in the rest ("tomorrow 3pm", "by Friday"), which become intervals: "tomorrow" is the whole
day, "3pm" one hour, "by Friday" starts now, "since Monday" is past and ends now.

Hours and minutes are elapsed time, even across a change to summer time; days, weeks and months follow the calendar.
"Last week" runs from Monday to Monday, "the past week" is the last seven days.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta

from garrison.delegation.models import Interval
from garrison.system.clock import local_zone
from garrison.values import Value

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
"""Hours of the day; a night ends on the next day."""


class PhraseSpan(Value):
    """Position of a phrase in the text, and its interval [start, end)."""

    at: int
    to: int
    start: datetime
    end: datetime


def shift(moment: datetime, delta: timedelta) -> datetime:
    return (moment.astimezone(UTC) + delta).astimezone(moment.tzinfo)


def midnight(moment: datetime, days: int = 0) -> datetime:
    return datetime.combine(moment.date() + timedelta(days=days), time(), moment.tzinfo)


def find_spans(text: str, now: datetime) -> list[PhraseSpan]:
    """Return the time spans in `text`, in order; of overlapping phrases the first rule of the table wins."""
    spans: list[PhraseSpan] = []
    for pattern, to_bounds in _RULES:
        for match in pattern.finditer(text):
            free = all(match.end() <= span.at or span.to <= match.start() for span in spans)
            bounds = to_bounds(match, now) if free else None
            if bounds is not None:
                spans.append(PhraseSpan(match.start(), match.end(), *bounds))
    return sorted(spans, key=lambda span: span.at)


Bounds = tuple[datetime, datetime] | None


def _count_units(match: re.Match[str], now: datetime) -> Bounds:
    """Return the given number of units before or after now, or a calendar unit for "last week" and the like."""
    direction, number, unit = (word.lower() if word else "" for word in match.group("way", "number", "unit"))
    back = direction in ("last", "past", "previous")
    if not number and unit in ("day", "week", "month", "year") and direction in ("last", "previous", "next"):
        return _calendar(now, unit, -1 if back else 1)
    if not number and unit.endswith("s") and unit != "hours":
        return None  # "the last minutes": an unknown number
    count = int(number) if number.isdigit() else _NUMBERS.get(number.removesuffix(" of").removeprefix("a "), 1)
    other = _later(now, unit, -count if back else count)
    return None if other is None else (other, now) if back else (now, other)


def _later(now: datetime, unit: str, count: int) -> datetime | None:
    """Return the moment `count` units after or before `now`; None if outside the calendar."""
    return _moment(f"in {count} {unit}" if count >= 0 else f"{-count} {unit} ago", now)


def _moment(words: str, now: datetime, prefer: str = "future") -> datetime | None:
    """Return the moment that dateparser sees in `words`."""
    import dateparser

    found = dateparser.parse(words, languages=LANGUAGES, settings=_settings(now, prefer))
    return None if found is None else _localize(words, found, now)


def _calendar(now: datetime, unit: str, by: int) -> Bounds:
    """Return the calendar day, week, month or year `by` units from the current one."""
    first = {"day": midnight(now), "week": midnight(now, -now.weekday()), "month": midnight(now).replace(day=1),
             "year": midnight(now).replace(month=1, day=1)}[unit]
    start, end = _later(first, unit, by), _later(first, unit, by + 1)
    return None if start is None or end is None else (start, end)


def _day_after(match: re.Match[str], now: datetime) -> Bounds:
    days = 2 if match["way"].lower() == "after" else -2
    return midnight(now, days), midnight(now, days + 1)


def _part_of_day(match: re.Match[str], now: datetime) -> Bounds:
    """Return a part of a day."""
    phrase = match[0].lower()
    if phrase == "tonight":
        return _hours(now, 0, "night")
    day, part = phrase.split()
    if phrase in ("last night", "yesterday night"):
        return _hours(now, -1, "night")
    return None if day == "last" else _hours(now, _days_until(day, now), part)


def _hours(now: datetime, days: int, part: str) -> Bounds:
    first, end = PARTS[part]
    until = midnight(now, days + 1) if end >= 24 else midnight(now, days).replace(hour=end)
    return midnight(now, days).replace(hour=first), until.replace(hour=end - 24) if end > 24 else until


def _end_of(match: re.Match[str], now: datetime) -> Bounds:
    bounds = _calendar(now, (match["unit"] or "day").lower(), 0)
    return (now, bounds[1]) if bounds is not None else None


def _range(match: re.Match[str], now: datetime) -> Bounds:
    """Return the interval between two moments; a day named by only one of them applies to both."""
    days = [_named_day(match[name]) for name in ("first", "last")]
    texts = [re.search(_TIME, match[name], re.IGNORECASE) for name in ("first", "last")]
    offsets = [_days_until(days[0] or days[1] or "today", now), _days_until(days[1] or days[0] or "today", now)]
    start = _clock_time(now, offsets[0], texts[0][0] if texts[0] else "")
    end = _clock_time(now, offsets[1], texts[1][0]) if texts[1] else midnight(now, offsets[1] + 1)
    if start is None or end is None:
        return None
    if end <= start:  # past midnight or past Sunday
        end += timedelta(days=7 if days[1] and days[1].lower() in WEEKDAYS else 1)
    return (start, end) if start < end else None


def _noon_or_midnight(match: re.Match[str], now: datetime) -> Bounds:
    """Return noon, or midnight at the end of a day, and the hour after it."""
    days = _days_until(_named_day(match[0]), now)
    start = midnight(now, days).replace(hour=12) if "noon" in match[0].lower() else midnight(now, days + 1)
    return start, shift(start, timedelta(hours=1))


def _named_day(text: str) -> str:
    """Return the day that a phrase names; '' for none."""
    match = re.search(_DAY, text, re.IGNORECASE)
    return match[0].lower().removeprefix("on ") if match else ""


def _days_until(day: str, now: datetime) -> int:
    """Return the days until a day; a weekday is its next occurrence, possibly today."""
    if day in WEEKDAYS:
        return (WEEKDAYS.index(day) - now.weekday()) % 7
    return {"tomorrow": 1, "yesterday": -1}.get(day, 0)


def _clock_time(now: datetime, days: int, clock: str) -> datetime | None:
    # dateparser silently skips "13pm"
    clock = re.sub(r"^(1[3-9]|2[0-3])(:\d\d)? ?[ap]m$", lambda told: told[1] + (told[2] or ":00"), clock, flags=re.I)
    return _moment(f"today {clock or 'midnight'}", midnight(now, days))


def _rule(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_NUMBER = rf"\d{{1,6}}|{'|'.join(word for word in _NUMBERS if word != 'couple')}|(?:a )?couple of|a few"
_RULES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], datetime], Bounds]], ...] = (
    (_rule(rf"\b(?:between|from) (?P<first>{_MOMENT}) (?:and|to|until|till) (?P<last>{_MOMENT})\b"), _range),
    (_rule(rf"{_LEAD}(?P<way>last|past|previous|next|coming|following) (?:(?P<number>{_NUMBER}) )?"
           r"(?P<unit>seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|years?)\b"), _count_units),
    (_rule(r"\bthis (?P<unit>week|month|year)\b"), lambda match, now: _calendar(now, match["unit"].lower(), 0)),
    (_rule(r"\b(?:the )?day (?P<way>after|before) (?:tomorrow|yesterday)\b"), _day_after),
    (_rule(rf"\b(?:tonight|(?:this|last|{_DAY}) (?:{'|'.join(PARTS)}))\b(?! (?:at )?\d)"), _part_of_day),
    (_rule(rf"\b(?:{_DAY} (?:at )?)?{SHARP}(?: {_DAY})?\b"), _noon_or_midnight),
    (_rule(r"\b(?:EOD|(?:the )?end of (?:the |this )?(?P<unit>day|week|month|year))\b"), _end_of),
)


_SINCE = re.compile(r"\b(?:since|after|from) $", re.IGNORECASE)
_BY = re.compile(r"\b(?:by|until|till|before) $", re.IGNORECASE)
_CLOCK = re.compile(r"\d\s*(?:am|pm|h\b)|\d:\d\d|\bnow\b", re.IGNORECASE)
_AGO = re.compile(r"\b(?:minutes?|hours?|seconds?|mins?|secs?|hrs?)\b", re.IGNORECASE)
_LEADING = re.compile(r"^(?:by|until|till|before|since|after|from|on|at|in)\s+", re.IGNORECASE)
_TRAILING = re.compile(r"(?:\s+(?:and|or|to|on|at|in|of|the|from|by|for)|[\s,;:])+$", re.IGNORECASE)
_NUMBER_ONLY = re.compile(r"^[\d.,:\s-]{1,4}$")
_MONTHS = re.compile(r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
                     r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\Z", re.IGNORECASE)
_OTHER_WORDS = frozenset({"may", "march", "mar", "jan", "dec", "sun", "sat", "mon", "wed", "second", "sec"})
"""Words that name a time only after a preposition."""
_NAMED_BY = re.compile(r"\b(?:by|until|till|before|since|after|from|on|in|during|this|next|last)\s+$", re.IGNORECASE)
_SHARP = re.compile(SHARP, re.IGNORECASE)
LANGUAGES = ["en"]


def intervals(text: str, now: datetime) -> tuple[Interval, ...]:
    """Return every time in `text`, in order; `now` and the results have time zones."""
    result: list[Interval] = []
    place = 0
    for span in find_spans(text, now):
        result += _moments(text, place, span.at, now)
        words = text[span.at:span.to]
        due = span.start if _SHARP.search(words) else span.end
        result.append(_apply_bound(text, span.at, words, span.start, span.end, due, now))
        place = span.to
    return (*result, *_moments(text, place, len(text), now))


def _moments(text: str, begin: int, end: int, now: datetime) -> list[Interval]:
    """Return the moments that dateparser finds in a part of the text."""
    from dateparser.search import search_dates

    part = text[begin:end]
    result, place = [], 0
    for raw, moment in (search_dates(part, languages=LANGUAGES, settings=_settings(now, "future")) or []
                        if re.search(r"\w", part) else []):
        at = max(part.find(raw, place), place)
        place = at + len(raw)
        words = _TRAILING.sub("", raw)
        if words and not _NUMBER_ONLY.match(words) and not _is_other_word(part[:at], words):
            result.append(_interval(text, begin + at, words, moment, now))
    return result


def _settings(now: datetime, prefer: str) -> object:
    return {"RELATIVE_BASE": now.replace(tzinfo=None), "PREFER_DATES_FROM": prefer}


def _is_other_word(before: str, words: str) -> bool:
    """Return whether a word alone is probably not a time ("may I", "the march release")."""
    core = _LEADING.sub("", words)
    *others, last = core.lower().split()
    return last in _OTHER_WORDS and set(others) <= {"the", "of", "a"} and core == words and (
        bool(others) or not _NAMED_BY.search(before))


def _interval(text: str, at: int, words: str, moment: datetime, now: datetime) -> Interval:
    """Return the interval of a moment with words from `at`; after `since` it is in the past."""
    lead = _LEADING.match(words)
    head = text[:at] + (lead.group(0) if lead else "")
    core = words[lead.end():] if lead else words
    start, end = _to_span(core, _localize(core, moment, now), now)
    if start > now and re.search(r"\bsince $", head, re.IGNORECASE):
        earlier = _moment(core, now, "past")
        start, end = _to_span(core, earlier, now) if earlier is not None else (start, end)
    shown = text[at:at + len(words)]
    due = start if _CLOCK.search(core) else end
    return _apply_bound(text, at, shown, start, end, due, now, lead=lead.group(0) if lead else "")


def _apply_bound(text: str, at: int, words: str, start: datetime, end: datetime, due: datetime, now: datetime, *,
                 lead: str = "") -> Interval:
    """Return the interval, bounded by a `since` or `by` (then it ends at `due`) in front of it or in `lead`."""
    preceding = text[:at] + lead
    for pattern in (_SINCE, _BY):
        match = pattern.search(preceding)
        if match is None:
            continue
        phrase = words if lead else match.group(0) + words
        if pattern is _BY:
            return Interval(words=phrase, start=now, end=due)
        return Interval(words=phrase, start=start, end=now if start <= now else None)
    return Interval(words=words, start=start, end=end)


def _localize(words: str, moment: datetime, now: datetime) -> datetime:
    """Return the moment on the user's clock; "in 2 hours" is elapsed time, and an explicit time zone is kept."""
    if moment.tzinfo is not None:
        return moment.astimezone(now.tzinfo)
    if _AGO.search(words):
        return shift(now, moment - now.replace(tzinfo=None))
    # via UTC, since a clock change may skip the hour
    return moment.replace(tzinfo=now.tzinfo).astimezone(UTC).astimezone(now.tzinfo)


def _to_span(words: str, moment: datetime, now: datetime) -> tuple[datetime, datetime]:
    """Return an hour for a clock time, a minute for a relative time, a month for a month's name, else the day."""
    if _CLOCK.search(words):
        return moment, shift(moment, timedelta(hours=1))
    if _AGO.search(words):
        return moment, shift(moment, timedelta(minutes=1))
    if _MONTHS.match(words):
        first = midnight(moment).replace(day=1)
        return first, midnight(first, 32).replace(day=1)
    return midnight(moment), midnight(moment, 1)


def local_now() -> datetime:
    return datetime.now(UTC).astimezone(local_zone())
