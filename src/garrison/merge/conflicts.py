"""Conflicts: between waiting entries and the target's tip, recorded as soon as they can be known, and between any two.

`git merge-tree` compares the pinned commits, one call for many, without a checkout. The objects of the early check go
into a directory of their own, which is thrown away. Of two entries that conflict with each other either may land; the
second to come is answered with the conflict then.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from garrison.errors import Refused
from garrison.merge.queue import PINS, pin_ref

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.merge.candidates import CandidateBuilder
    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import MergeQueue, Progress, QueueWriter
    from garrison.system.git import Git


@dataclass(frozen=True)
class Conflict:
    """A conflict of `entry` with the target or with another entry, in these files."""

    entry: str
    against: str
    files: tuple[str, ...]
    reason: str

    def describe(self) -> str:
        """The files in one line, or why there are none."""
        return ", ".join(self.files) or self.reason


@dataclass(frozen=True)
class ConflictMatrix:
    """All conflicts at `tip`; `entries` were looked at, `gone` could not be, because their commit is gone."""

    target: str
    tip: str
    entries: tuple[str, ...]
    pairs: tuple[Conflict, ...]
    gone: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON's shape."""
        body = asdict(self)
        body["conflicts"] = body.pop("pairs")
        return body


def find_conflicts(queue: MergeQueue) -> ConflictMatrix:
    """Look at all unfinished entries of `queue`; Refused if the target does not exist."""
    tip = queue.branch.tip()
    if tip is None:
        raise Refused(f"branch {queue.target} does not exist in {queue.repo}; create it, or name another with --target")
    unfinished = queue.state.unfinished()
    pinned = queue.git.refs(f"{PINS}/")
    waiting = [entry for entry in unfinished if pin_ref(entry.id, "head") in pinned or queue.git.rev(entry.oid)]
    gone = tuple(entry.id for entry in unfinished if entry not in waiting)
    found = _row(queue.git, queue.target, tip, waiting)
    strange = {pair.entry for pair in found if not pair.files}
    likely = [entry for entry in waiting if entry.id not in strange]  # the others can be merged with nobody
    for place, entry in enumerate(likely):
        found += _row(queue.git, entry.id, entry.oid, likely[place + 1:])
    return ConflictMatrix(queue.target, tip, tuple(entry.id for entry in waiting), tuple(found), gone)


def _row(git: Git, against: str, oid: str, entries: Sequence[MergeEntry]) -> list[Conflict]:
    """The conflicts of these entries with one commit."""
    results = git.merge_trees(oid, [entry.oid for entry in entries]) if entries else []
    return [Conflict(entry.id, against, tuple(result.conflicts), result.reason)
            for entry, result in zip(entries, results, strict=True) if result.tree is None]


MERGED = ("merge", "squash")
"""Strategies whose conflict with the tip a merge tells; the others are tried when their turn comes."""


_SHARE = 10.0
"""A look that took long is not repeated before that many times as long has passed: there is more to do."""


class ConflictCheck:
    """Answers the conflicts of one queue."""

    def __init__(self, writer: QueueWriter, builder: CandidateBuilder) -> None:
        self.writer, self.git, self._builder = writer, writer.git, builder
        self._tip = ""
        self._seen: set[str] = set()
        self._not_before = float("-inf")

    def look(self, tip: str, waiting: Sequence[MergeEntry]) -> Progress | None:
        """Record the conflicts with `tip` of those that wait and were not looked at on it; None if there is none.

        Called while a gate runs: without one, who waits first is built at once.
        """
        if self._tip != tip:
            self._tip, self._seen = tip, set()
        fresh = [entry for entry in waiting if entry.id not in self._seen and entry.strategy in MERGED]
        begun = self.writer.clock.monotonic()
        if not fresh or begun < self._not_before:
            return None
        results = self.git.merge_trees(tip, [entry.oid for entry in fresh])
        done = None
        for entry, result in zip(fresh, results, strict=True):
            self._seen.add(entry.id)
            if result.conflicts:
                done = self._builder.conflict(entry, tip, result.conflicts, result.reason)
        ended = self.writer.clock.monotonic()
        self._not_before = ended + _SHARE * (ended - begun)
        return done
