"""Complete history of a run: timeline, signals and merge queue in pages, with a search.

The event stream sends the latest entries only. Here the journals are replayed once with everything kept, and read on
by each request. A cursor is an entry's time and id, so that it stays valid whatever is added, and for the next server.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Generic, TypeVar

from garrison.errors import NotFound, UsageError
from garrison.records import run as run_records
from garrison.records.run import Launch, RunFiles
from garrison.values import Value, fields_of
from garrison.views.event_log import QUEUE
from garrison.views.page_view import SignalEntry, TimelineEntry
from garrison.views.run_timeline import RunTimeline, TimelineReader
from garrison.web.run_stream import FollowedRun

PAGE, MOST = 100, 500
"""Entries of a page, unless the request names another number, and at most."""
KEPT_RUNS = 3
"""Runs with their whole history in memory."""
KEPT_TIMELINES = 8
"""Readers of timelines kept in memory."""
SEPARATOR = " "
"""Between time and id in a cursor: neither contains it first."""


class PagedList(StrEnum):
    """A list that has pages."""

    TIMELINE = "timeline"
    SIGNALS = "signals"
    QUEUE = "queue"


class Wanted(Value):
    """One page: `limit` entries before or after a cursor; without either the latest. `query`: words they contain."""

    before: str | None = None
    after: str | None = None
    limit: int = PAGE
    query: str = ""

    def check(self) -> Wanted:
        """Return itself; UsageError for an impossible page."""
        if self.before is not None and self.after is not None:
            raise UsageError("pass before=CURSOR or after=CURSOR, not both")
        if not 0 < self.limit <= MOST:
            raise UsageError(f"limit should be between 1 and {MOST}")
        return self


Entry = TimelineEntry | SignalEntry
T = TypeVar("T")


class HistoryPage(Value):
    """A page of a list, oldest first, with the cursors of the pages around it (None: there is none)."""

    entries: Sequence[object]
    total: int
    position: int
    older: str | None
    newer: str | None


def cursor_of(entry: Entry) -> str:
    """Return the cursor of an entry. Pure."""
    return f"{entry.at}{SEPARATOR}{entry.id}"


def text_of(entry: Entry) -> str:
    """Return the text that a search of an entry matches. Pure."""
    return " ".join(str(value) for name, value in fields_of(entry).items() if name not in ("id", "at"))


def cut_page(entries: Sequence[T], wanted: Wanted, cursor: Callable[[T], str],
             text: Callable[[T], str]) -> HistoryPage:
    """Return a page of entries. Pure."""
    words = wanted.query.casefold().split()
    found = sorted((entry for entry in entries if not words or _contains(text(entry), words)), key=cursor)
    keys = [cursor(entry) for entry in found]
    if wanted.after is not None:
        begin = bisect_right(keys, wanted.after)
        end = min(len(found), begin + wanted.limit)
    else:
        end = len(found) if wanted.before is None else bisect_left(keys, wanted.before)
        begin = max(0, end - wanted.limit)
    page = found[begin:end]
    return HistoryPage(page, len(found), begin, keys[begin] if page and begin > 0 else None,
                       keys[end - 1] if page and end < len(found) else None)


def _contains(text: str, words: Sequence[str]) -> bool:
    text = text.casefold()
    return all(word in text for word in words)


class RunHistory:
    """Everything that happened in one run; each call reads on."""

    def __init__(self, home: Path, launch: Launch) -> None:
        self._followed = FollowedRun(home, launch, {})
        self._followed.page.keeps_all = True
        self._queue: list[TimelineEntry] = []

    def page(self, kind: PagedList, wanted: Wanted) -> HistoryPage:
        """Return a page of one of its lists."""
        for record in self._followed.log.records():
            words = self._followed.replay_one(record)
            entry = self._followed.page.model.merge_entry(record) if record.journal == QUEUE else None
            if entry is not None:
                self._queue.append(TimelineEntry(
                    f"{record.queue}:{record.entry.seq}", record.entry.at, record.entry.kind, entry.node,
                    words or str(record.entry.data.get("status", ""))))
        page = self._followed.page
        lists: Mapping[PagedList, Sequence[Entry]] = {
            PagedList.TIMELINE: page.timeline, PagedList.SIGNALS: page.signals, PagedList.QUEUE: self._queue}
        return cut_page(lists[kind], wanted, cursor_of, text_of)


class _KeptReaders(Generic[T]):
    """Readers of the most recently requested runs, each used by one thread at a time."""

    def __init__(self, most: int, make: Callable[[Launch], T]) -> None:
        self._most, self._make, self._lock = most, make, threading.Lock()
        self._readers: OrderedDict[tuple[str, str], T] = OrderedDict()

    @contextmanager
    def reader(self, home: Path, run: str) -> Iterator[T]:
        """Yield the reader of a run, NotFound if there is no such run."""
        launch = run_records.load(Launch, RunFiles(home, run).launch)
        if launch is None:
            raise NotFound(f"no run {run} in {home}; `garrison status` lists the runs")
        name = (run, launch.created_at)  # another run may have a removed one's name
        with self._lock:  # for the whole reading, which replays journals on: requests come in several threads
            self._readers[name] = reader = self._readers.pop(name, None) or self._make(launch)
            if len(self._readers) > self._most:
                self._readers.popitem(last=False)
            yield reader


class Histories:
    """Histories and timelines of a home's runs. Called from several threads."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._histories = _KeptReaders(KEPT_RUNS, lambda launch: RunHistory(home, launch))
        self._timelines = _KeptReaders(KEPT_TIMELINES, lambda launch: TimelineReader(home, launch.run_id))

    def page(self, run: str, kind: str, wanted: Wanted) -> HistoryPage:
        """Return a page; NotFound for a run or a list that does not exist."""
        try:
            which = PagedList(kind)
        except ValueError:
            raise NotFound(f"there is no list {kind!r:.40}; there are {', '.join(PagedList)}") from None
        with self._histories.reader(self.home, run) as history:
            return history.page(which, wanted.check())

    def timeline(self, run: str) -> RunTimeline:
        """Return when the nodes of a run worked and waited, and what it has cost over time."""
        with self._timelines.reader(self.home, run) as reader:
            return reader.read()
