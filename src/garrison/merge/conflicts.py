"""Conflicts: find them early, between waiting entries and the target's tip, and between any two entries.

`git merge-tree` compares many pinned commits in one call, without a checkout; the objects it writes are discarded. If
two entries conflict, either may land; the other is then in conflict. `order` chooses which: `PairConflicts` finds the
pairs, and caches them, as commits never change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.merge import union
from garrison.merge.entry import FAST_FORWARD
from garrison.merge.queue import PINS, pin_ref
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from garrison.merge.candidates import CandidateBuilder
    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import MergeQueue, QueueWriter, StepResult
    from garrison.merge.touched import TouchedFiles
    from garrison.system.git import Git

_MERGED = ("merge", "squash", FAST_FORWARD)
"""Strategies that conflict exactly if a merge does; others are tried when they are built."""
MAX_PAIRS = 5000
"""Maximum number of cached pairs."""
_PAUSE_FACTOR = 10.0
"""Pause before the next check, as a multiple of the last one's duration: checks take at most a tenth of the time."""


class ConflictCheck:
    """Records conflicts of waiting entries with the tip while a gate runs, before it is their turn."""

    def __init__(self, writer: QueueWriter, builder: CandidateBuilder) -> None:
        self.writer, self.git, self._builder = writer, writer.git, builder
        self._tip = ""
        self._checked: set[str] = set()
        self._not_before = float("-inf")

    def check(self, tip: str, waiting: Sequence[MergeEntry], busy: Collection[str] = ()) -> StepResult | None:
        """Record the conflicts with `tip` of waiting entries not yet checked on it; None if there is none.

        Of entries that conflict in the same file only the first is recorded: the others wait for its turn, and their
        agents retry once it has landed. Conflicts in a `busy` file, under test for another entry, wait for that entry.
        """
        if self._tip != tip:
            self._tip, self._checked = tip, set()
        unchecked = [entry for entry in waiting if entry.id not in self._checked and entry.strategy in _MERGED]
        started = self.writer.clock.monotonic()
        if not unchecked or started < self._not_before:
            return None
        results = self.git.merge_trees(tip, [entry.oid for entry in unchecked])
        progress, taken = None, set(busy)
        for entry, result in zip(unchecked, results, strict=True):
            if not taken.isdisjoint(result.conflicts):
                continue
            self._checked.add(entry.id)
            if result.conflicts and not union.is_united(self.git, tip, entry.oid, tip, result.conflicts):
                progress = self._builder.record_conflict(entry, tip, result.conflicts, result.reason)
                if entry.recipient:
                    taken.update(result.conflicts)
        ended = self.writer.clock.monotonic()
        self._not_before = ended + _PAUSE_FACTOR * (ended - started)
        return progress


class PairConflicts:
    """Conflicts of any two waiting entries, each pair compared once."""

    def __init__(self, git: Git, touched: TouchedFiles) -> None:
        self.git, self.touched = git, touched
        self._known: dict[frozenset[str], bool] = {}
        """Two entries' ids → whether they conflict."""
        self._grown: dict[str, bool] = {}
        """File → whether it may be united, by the target's commit `_grown_on`."""
        self._grown_on = ""

    def find(self, entries: Sequence[MergeEntry], tip: str) -> set[frozenset[str]]:
        """Return the pairs of these entries that conflict; pairs without a common file are not compared."""
        files = {name: frozenset(each.files) for name, each in self.touched.of_all(entries, tip).items()}
        if len(self._known) > MAX_PAIRS:
            self._known.clear()
        sharing = [[other for other in entries[index + 1:] if not files[entry.id].isdisjoint(files[other.id])]
                   for index, entry in enumerate(entries)]
        for entry, later in zip(entries, sharing, strict=True):
            others = [other for other in later if frozenset((entry.id, other.id)) not in self._known]
            results = self.git.merge_trees(entry.oid, [other.oid for other in others]) if others else []
            for other, result in zip(others, results, strict=True):
                self._known[frozenset((entry.id, other.id))] = result.tree is None and not self._may_be_united(
                    result.conflicts, tip)
        return {pair for one, later in zip(entries, sharing, strict=True) for other in later
                if self._known[pair := frozenset((one.id, other.id))]}

    def _may_be_united(self, paths: Sequence[str], tip: str) -> bool:
        """Return whether a union is tried for all these files; a pair that still conflicts only waits."""
        if self._grown_on != tip:
            self._grown, self._grown_on = {}, tip
        if unknown := [path for path in paths if path not in self._grown]:
            grown = union.find_grown(self.git, tip, unknown)
            self._grown.update({path: path in grown for path in unknown})
        return bool(paths) and all(self._grown[path] for path in paths)


# ------------------------------------------------------------------------------------------- `merge-queue conflicts`


class Conflict(Value):
    """A conflict of `entry` with the target or with another entry, in these files."""

    entry: str
    against: str
    files: tuple[str, ...]
    reason: str

    def describe(self) -> str:
        return ", ".join(self.files) or self.reason


class ConflictMatrix(Value):
    """All conflicts of `entries` at `tip`; the commits of those in `gone` no longer exist."""

    target: str
    tip: str
    entries: tuple[str, ...]
    conflicts: tuple[Conflict, ...]
    gone: tuple[str, ...] = ()


def find_conflicts(queue: MergeQueue) -> ConflictMatrix:
    """Compare all unfinished entries of `queue`, recording nothing; Refused if the target does not exist."""
    tip = queue.branch.tip()
    if tip is None:
        raise Refused(f"branch {queue.target} does not exist in {queue.repo}; create it, or name another with --target")
    unfinished = queue.state.unfinished()
    pinned = queue.git.refs(f"{PINS}/")
    entries = [entry for entry in unfinished if pin_ref(entry.id, "head") in pinned or queue.git.rev(entry.oid)]
    gone = tuple(entry.id for entry in unfinished if entry not in entries)
    conflicts = _compare(queue.git, queue.target, tip, entries, tip)
    unrelated = {conflict.entry for conflict in conflicts if not conflict.files}
    comparable = [entry for entry in entries if entry.id not in unrelated]
    for index, entry in enumerate(comparable):
        conflicts += _compare(queue.git, entry.id, entry.oid, comparable[index + 1:], tip)
    return ConflictMatrix(queue.target, tip, tuple(entry.id for entry in entries), tuple(conflicts), gone)


def _compare(git: Git, against: str, oid: str, entries: Sequence[MergeEntry], tip: str) -> list[Conflict]:
    """Return the conflicts of these entries with one commit that no union resolves."""
    results = git.merge_trees(oid, [entry.oid for entry in entries]) if entries else []
    return [Conflict(entry.id, against, tuple(result.conflicts), result.reason)
            for entry, result in zip(entries, results, strict=True)
            if result.tree is None and not union.is_united(git, oid, entry.oid, tip, result.conflicts)]
