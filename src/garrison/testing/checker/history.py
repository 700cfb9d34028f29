"""The history of a run: the JSON lines of `garrison events RUN --json`, and what the launch recorded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

QUEUE, GUARDIAN, LAUNCHER = "merge-queue", "guardian", "launch"
"""Names of journals; another process's journal is `role-name`."""


class UnreadableHistory(ValueError):
    """A line of a history is not an event."""


@dataclass(frozen=True)
class JournalEvent:
    """One journal record, as `garrison events --json` prints it."""

    at: str
    journal: str
    by: str
    """Writer: `role-name@run#incarnation`."""
    seq: int
    kind: str
    node: str
    data: Mapping[str, Any]
    queue: str = ""
    """Target branch of the merge queue whose record it is, '' in another journal."""

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(self.data.get("entries") or ([self.data["entry"]] if self.data.get("entry") else []))

    @property
    def place(self) -> str:
        return f"record {self.seq} of {self.journal}" + (f" of {self.queue}" if self.queue else "")


@dataclass(frozen=True)
class History:
    """All events of one run, in the order of each journal; each merge queue has its own journal."""

    events: tuple[JournalEvent, ...]

    def of(self, *kinds: str, journal: str = "") -> Iterator[JournalEvent]:
        """Yield the events of these kinds, of one journal if it is named."""
        return (event for event in self.events if event.kind in kinds and journal in ("", event.journal))

    @property
    def journals(self) -> list[tuple[JournalEvent, ...]]:
        """Return the events of each journal."""
        found: dict[tuple[str, str], list[JournalEvent]] = {}
        for event in self.events:
            found.setdefault((event.journal, event.queue), []).append(event)
        return [tuple(events) for events in found.values()]

    @property
    def launch(self) -> Mapping[str, Any]:
        """Return the record of the launch; empty if there is none."""
        for event in self.of("launch"):
            launch: Mapping[str, Any] = json.loads(event.data["launch"])
            return launch
        return {}

    @property
    def end(self) -> str:
        """Return the status with which the run ended; '' while it continues or is stopped."""
        last = ""
        for event in self.of("run", journal=GUARDIAN):
            last = event.data["status"]
        return last if last in ("done", "failed") else ""


def read_events(lines: Iterable[str]) -> History:
    """Read the lines; UnreadableHistory names the first one that is not an event."""
    events = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            body = json.loads(line)
            if not isinstance(body["data"], dict):
                raise TypeError("its data is not an object")
            events.append(JournalEvent(body["at"], body["journal"], body["by"], int(body["seq"]), body["kind"],
                                       body["node"], body["data"], str(body.get("queue", ""))))
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableHistory(f"line {number} is not one of `garrison events --json`: {line[:80]!r}") from error
    # By number: clocks may be set back, and the lines of several journals come in any order.
    return History(tuple(sorted(events, key=lambda event: (event.journal, event.queue, event.seq))))
