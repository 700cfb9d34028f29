"""Timelines of runs for the page: one reader a run, which reads on with each request.

A reader is used by one thread at a time. The least recently used one is forgotten.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from garrison.records.run import RunFiles
from garrison.views.run_timeline import RunTimeline
from garrison.views.timeline_reader import TimelineReader

KEPT = 8
"""Readers kept in memory."""


class Timelines:
    """Readers of the timelines of one home's runs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._readers: OrderedDict[tuple[str, int], TimelineReader] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, run: str) -> RunTimeline:
        """Return the timeline of a run; NotFound for a run that does not exist. Reads files."""
        with self._lock:
            launch = RunFiles(self.home, run).launch
            key = (run, launch.stat().st_ino if launch.exists() else 0)  # another run may have a removed one's name
            reader = self._readers.pop(key, None) or TimelineReader(self.home, run)
            self._readers[key] = reader
            while len(self._readers) > KEPT:
                self._readers.popitem(last=False)
            return reader.read()
