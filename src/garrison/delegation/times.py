"""The times in what a person says: the words as they were, and the interval they mean. Pure: now is an argument.

`stretches` reads those that are named by words; `dateparser` finds and reads the moments between them. This adds what
an interval needs: "tomorrow" is the whole day, "3pm" an hour, "by Friday" begins now, "since Monday" is past and ends
now.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from garrison.delegation.models import Interval
from garrison.delegation.stretches import SHARP, found, later, midnight

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
    for one in found(text, now):
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
