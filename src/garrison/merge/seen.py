"""What the journal has seen of trees and gates: the verdict cache, and what batches are sized by. Pure; see `state`.

A verdict is kept by (tree, key); the key stands for gate, set-up and the environment they ran in. A green one is used
again for any candidate with that tree. A red one is remembered with the entries that were under test, and never rejects
anybody by itself.
"""

from __future__ import annotations

from garrison.light import dataclass, field
from garrison.merge.batch import Base, Known, Red
from garrison.merge.classes import BROKEN, MAX_LOST
from garrison.merge.sizing import WINDOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

_LAST_RUNS = 5
_WAVERING = 200
"""So many verdicts after a gate judged one tree both ways it still counts as one that wavers."""


class OfOneKey:
    """The trees of a set of (tree, key) pairs, for one key."""

    def __init__(self, pairs: Collection[tuple[str, str]], key: str) -> None:
        self._pairs, self._key = pairs, key

    def __contains__(self, tree: object) -> bool:
        return (tree, self._key) in self._pairs


@dataclass
class Seen:
    """Folded from verdicts; `judged` says of each entry that landed or was rejected whether it was rejected."""

    green: dict[tuple[str, str], None] = field(default_factory=dict)
    """(tree, key) pairs that passed, the first seen first."""
    red: dict[str, dict[str, tuple[Red, ...]]] = field(default_factory=dict)
    """Key → tree → runs that were not green, oldest first."""
    base: Base | None = None
    broken: int = 0
    """Number of the first broken verdict since the tip or the suspects changed."""
    judged: list[bool] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """What the last gate runs took."""
    _lost: dict[tuple[str, str], int] = field(default_factory=dict)
    _verdicts: int = 0
    _wavered: int = -_WAVERING

    def verdict(self, tree: str, key: str, result: str, entries: tuple[str, ...], seq: int) -> bool:
        """Fold a run's end; whether it counts as a verdict (one that vanished does when that happened too often)."""
        self._verdicts += 1
        reds = self.red.setdefault(key, {})
        if result == "green":
            if tree in reds:
                self._wavered = self._verdicts
            self.green[tree, key] = None
            return True
        if result == "lost":
            self._lost[tree, key] = self._lost.get((tree, key), 0) + 1
            if self._lost[tree, key] < MAX_LOST:
                return False
            del self._lost[tree, key]
        if (tree, key) in self.green:
            self._wavered = self._verdicts
        reds[tree] = (*reds.get(tree, ()), Red(entries, result, seq))
        if result in BROKEN and not self.broken:
            self.broken = seq
        return True

    def of_base(self, tree: str, key: str, result: str, seq: int) -> bool:
        """Fold the end of a run on the bare target; whether it counts."""
        before, broken = self.base, self.broken
        counts = self.verdict(tree, key, result, (), seq)
        self.broken = broken
        if counts:
            failures = 0 if result == "green" else 1 + (before.failures if before else 0)
            self.base = Base(result, seq, failures)
        return counts

    def took(self, seconds: float) -> None:
        """Fold how long a run took."""
        self.seconds = [*self.seconds, max(0.0, seconds)][-_LAST_RUNS:]

    def judge(self, *, rejected: bool) -> None:
        """Fold that an entry landed or was rejected."""
        self.judged = [*self.judged, rejected][-WINDOW:]

    def fresh(self) -> None:
        """The tip or the suspects changed, or the queue paused: the bare target's answer is of before."""
        self.base, self.broken = None, 0

    def new_life(self) -> None:
        """Another processor: what vanished under the last one is not held against the tree."""
        self._lost = {}

    def known(self, key: str, running: Collection[str]) -> Known:
        """What decides, for one key."""
        return Known(OfOneKey(self.green, key), self.red.get(key, {}), running, self.base, self.broken,
                     self._verdicts - self._wavered < _WAVERING)
