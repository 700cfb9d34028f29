"""Early conflicts: whenever the tip or the queue changed, who waits is merged with the tip, all in one call of git.

So a conflict is answered when it can be known, and not when its turn comes. Nothing that is merged here is kept: the
objects go into a directory of their own, which is thrown away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.merge.building import Builder
    from garrison.merge.entry import Entry
    from garrison.merge.pen import Pen
    from garrison.merge.steps import Progress

MERGED = ("merge", "squash")
"""Strategies whose conflict with the tip a merge tells; the others are tried when their turn comes."""


_SHARE = 10.0
"""A look that took long is not repeated before that many times as long has passed: there is more to do."""


class Early:
    """Answers the conflicts of one queue."""

    def __init__(self, pen: Pen, builder: Builder) -> None:
        self.pen, self.git, self._builder = pen, pen.git, builder
        self._tip = ""
        self._seen: set[str] = set()
        self._not_before = float("-inf")

    def look(self, tip: str, waiting: Sequence[Entry]) -> Progress | None:
        """Record the conflicts with `tip` of those that wait and were not looked at on it; None if there is none.

        Called while a gate runs: without one, who waits first is built at once.
        """
        if self._tip != tip:
            self._tip, self._seen = tip, set()
        fresh = [entry for entry in waiting if entry.id not in self._seen and entry.strategy in MERGED]
        begun = self.pen.clock.monotonic()
        if not fresh or begun < self._not_before:
            return None
        results = self.git.merge_trees(tip, [entry.oid for entry in fresh])
        done = None
        for entry, result in zip(fresh, results, strict=True):
            self._seen.add(entry.id)
            if result.conflicts:
                done = self._builder.conflict(entry, tip, result.conflicts, result.reason)
        ended = self.pen.clock.monotonic()
        self._not_before = ended + _SHARE * (ended - begun)
        return done
