"""What each waiting entry changes, and how old its base is: read from git once an entry, for those who decide order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from garrison.merge.entry import MergeEntry
    from garrison.system.git import Git

MAX_FILES = 2000
"""Files of an entry that are remembered; a larger change is known by the first of them."""
KEPT = 500
"""Entries that are remembered."""


@frozen
class Touched:
    """Files that an entry changes against its merge base, how many they are, and its age.

    `age` is the number of commits on the target's first-parent line since the merge base.
    """

    files: tuple[str, ...] = ()
    count: int = 0
    age: int = 0


UNKNOWN = Touched()


class TouchedFiles:
    """Touched files of entries, cached: an entry's commit never changes."""

    def __init__(self, git: Git) -> None:
        self.git = git
        self._known: dict[str, Touched] = {}

    def of(self, entry: MergeEntry, tip: str) -> Touched:
        """Return what an entry changes, against the tip that it was built on, else `tip`; UNKNOWN where git fails."""
        if entry.id not in self._known:
            if len(self._known) >= KEPT:
                del self._known[next(iter(self._known))]
            self._known[entry.id] = self._read(entry.oid, entry.base or tip)
        return self._known[entry.id]

    def of_all(self, entries: Iterable[MergeEntry], tip: str) -> dict[str, Touched]:
        """Return what each entry changes, by its id."""
        return {entry.id: self.of(entry, tip) for entry in entries}

    def _read(self, oid: str, tip: str) -> Touched:
        try:
            base = self.git.merge_base(tip, oid)
            if base is None:
                return UNKNOWN
            paths = self.git.changed_paths(base, oid)
            age = int(self.git.run("rev-list", "--count", "--first-parent", f"{base}..{tip}", "--").out)
        except GarrisonError:  # what git says of it is judged when it is built
            return UNKNOWN
        return Touched(tuple(paths[:MAX_FILES]), len(paths), age)
