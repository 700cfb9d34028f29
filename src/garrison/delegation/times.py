"""The times in what a person says: the words as they were, and the interval they mean. Pure: now is an argument.

`dateparser` finds and reads them; this adds what an interval needs: "the last 24 hours" ends now, "tomorrow" is the
whole day, "by Friday" begins now, "since Monday" ends now.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from garrison.delegation.models import Interval

_PAST = re.compile(r"\b(?:(?:in |over |within |during )?the )?(?:last|past) $", re.IGNORECASE)
_NEXT = re.compile(r"\b(?:(?:in |over |within |during )?the )?(?:next|coming|following) $", re.IGNORECASE)
_SINCE = re.compile(r"\b(?:since|after|from) $", re.IGNORECASE)
_BY = re.compile(r"\b(?:by|until|till|before) $", re.IGNORECASE)
_CLOCK = re.compile(r"\d\s*(?:am|pm|h\b)|\d:\d\d|\bnoon\b|\bmidnight\b|\bnow\b", re.IGNORECASE)
_AGO = re.compile(r"\b(?:minutes?|hours?|seconds?|mins?)\b", re.IGNORECASE)
_LEADING = re.compile(r"^(?:by|until|till|before|since|after|from|on|at|in)\s+", re.IGNORECASE)
_NUMBER_ONLY = re.compile(r"^[\d.,:\s-]{1,4}$")
LANGUAGES = ["en"]


def intervals(text: str, now: datetime) -> tuple[Interval, ...]:
    """Every time in `text`, in its order; `now` has a time zone, and so have the answers."""
    from dateparser.search import search_dates

    settings = {"RELATIVE_BASE": now.replace(tzinfo=None), "PREFER_DATES_FROM": "future",
                "RETURN_AS_TIMEZONE_AWARE": False}
    found = search_dates(text, languages=LANGUAGES, settings=settings) or []
    place, told = 0, []
    for words, moment in found:
        at = text.find(words, place)
        at = at if at >= 0 else place
        if not _NUMBER_ONLY.match(words):
            told.append(_interval(text[:at], words, moment.replace(tzinfo=moment.tzinfo or now.tzinfo), now))
        place = at + len(words)
    return tuple(told)


def _interval(before: str, words: str, moment: datetime, now: datetime) -> Interval:
    lead = _LEADING.match(words)
    head = before + (lead.group(0) if lead else "")
    if past := _PAST.search(head):
        span = abs(moment - now)
        return Interval(words=past.group(0) + words, start=now - span, end=now)
    if later := _NEXT.search(head):
        return Interval(words=later.group(0) + words, start=now, end=now + abs(moment - now))
    start, end = _stretch(words, moment)
    if _SINCE.search(head) and not lead_is(lead, "on"):
        return Interval(words=_with(head, _SINCE, words, lead), start=start, end=now if start <= now else None)
    if _BY.search(head):
        return Interval(words=_with(head, _BY, words, lead), start=now, end=end)
    return Interval(words=words, start=start, end=end)


def lead_is(lead: re.Match[str] | None, word: str) -> bool:
    """Whether the words begin with this preposition."""
    return lead is not None and lead.group(0).strip().lower() == word


def _with(head: str, pattern: re.Pattern[str], words: str, lead: re.Match[str] | None) -> str:
    found = pattern.search(head)
    return words if lead is not None or found is None else found.group(0) + words


def _stretch(words: str, moment: datetime) -> tuple[datetime, datetime]:
    """The hour that begins then where a clock time is named, a minute for so many hours from now, else the day."""
    if _CLOCK.search(words):
        return moment, moment + timedelta(hours=1)
    if _AGO.search(words):
        return moment, moment + timedelta(minutes=1)
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return day, day + timedelta(days=1)
