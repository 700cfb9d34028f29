"""Changed files and age of the base of waiting entries, read from git once per entry, for choosing the order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.system.git.bounds import explain_excess
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from garrison.merge.entry import MergeEntry
    from garrison.system.git import Git

MAX_FILES = 2000
"""Maximum number of files cached per entry; the rest of a larger change is dropped."""
KEPT = 500
"""Maximum number of cached entries."""


class Touched(Value):
    """Files that an entry changes against its merge base, and their number."""

    files: tuple[str, ...] = ()
    count: int = 0
    base: str = ""


UNKNOWN = Touched()


class TouchedFiles:
    """Touched files of entries, cached: an entry's commit never changes."""

    def __init__(self, git: Git) -> None:
        self.git = git
        self._known: dict[str, Touched] = {}
        self._ages: dict[str, int] = {}

    def of(self, entry: MergeEntry, tip: str) -> Touched:
        """Return what an entry changes against the tip that it was built on, else `tip`; UNKNOWN if git fails."""
        if entry.id not in self._known:
            if len(self._known) >= KEPT:
                oldest = next(iter(self._known))
                del self._known[oldest]
                self._ages.pop(oldest, None)
            self._known[entry.id] = self._read(entry.oid, entry.base or tip)
        return self._known[entry.id]

    def of_all(self, entries: Iterable[MergeEntry], tip: str) -> dict[str, Touched]:
        return {entry.id: self.of(entry, tip) for entry in entries}

    def _read(self, oid: str, tip: str) -> Touched:
        try:
            base = self.git.merge_base(tip, oid)
            if base is None or explain_excess(self.git, base, oid):
                return UNKNOWN
            paths = self.git.changed_paths(base, oid)
        except GarrisonError:  # git's errors are handled when it is built
            return UNKNOWN
        return Touched(tuple(paths[:MAX_FILES]), len(paths), base)

    def age_of(self, entry: MergeEntry, tip: str) -> int:
        """Return how many commits the target's first-parent line was ahead of an entry's base, 0 if git fails."""
        if entry.id not in self._ages:
            base, start = self.of(entry, tip).base, entry.base or tip
            ages = ("rev-list", "--count", "--first-parent", f"{base}..{start}", "--")
            try:
                answer = self.git.run(*ages).out if base and base != start else "0"
                self._ages[entry.id] = int(answer)
            except GarrisonError:
                self._ages[entry.id] = 0
        return self._ages[entry.id]
