"""In which order entries are judged: first in first, priorities with ageing, dependencies before dependents. Pure.

A priority counts as so many places in the queue: with priority p an entry stands where one would that had come
`PLACES * p` entries earlier. Who waits so ages with every entry that comes after it, and no clock is asked: at most
`PLACES * (highest - p) - 1` later entries ever pass an entry of priority p, however many come (see `passes_at_most`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.merge.entry import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from garrison.merge.entry import Entry

PLACES = 8
"""Places in the queue that one step of priority is worth."""


def passes_at_most(priority: int) -> int:
    """How many later entries can ever pass one of this priority."""
    return max(0, PLACES * (PRIORITIES[-1] - _within(priority)) - 1)


def ranked(entries: Iterable[Entry], places: Mapping[str, int]) -> list[Entry]:
    """Entries by their rank; `places` says as how many-th each was enqueued."""
    return sorted(entries, key=lambda entry: (places[entry.id] - PLACES * _within(entry.priority), places[entry.id]))


def in_line(entries: Sequence[Entry], needs: Mapping[str, Collection[str]]) -> list[Entry]:
    """Those of the ranked `entries` that may be judged now, each after what it depends on.

    `needs` says what must still land before each. An entry may stand behind its dependencies in the same line; one
    whose dependency is neither landed nor among `entries` waits.
    """
    found: list[Entry] = []
    done: set[str] = set()
    waiting = list(entries)
    while True:
        free = next((entry for entry in waiting if done.issuperset(needs.get(entry.id, ()))), None)
        if free is None:
            return found
        waiting.remove(free)
        found.append(free)
        done.add(free.id)


def _within(priority: int) -> int:
    return max(PRIORITIES[0], min(PRIORITIES[-1], priority))
