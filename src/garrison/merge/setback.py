"""Setbacks: decide when an entry at which git keeps failing is set aside, so that it does not hold up the others. Pure.

git fails for reasons that pass (a lock, a full disk, too little memory) and for others that stay with an entry. Tries
are counted while the same entries are at work. A git that was killed counts little: memory may have been short. One
that says what the machine lacks does not count.
"""

from __future__ import annotations

from garrison.system.exit_info import ENDING_SIGNALS
from garrison.values import Value, replace

MAX_WEIGHT = 30
"""Weight of all tries after which the failure is judged."""
WEIGHT = 6
"""Weight of one try."""
KILLED_WEIGHT = 1
"""Weight of a try whose git somebody killed."""
TOLD_AFTER = 2
"""Tries after which the queue says that it is hindered."""
_KILLED = frozenset(-number for number in ENDING_SIGNALS)


class Setback(Value):
    """Failures of git in a row while the entry `first`, alone or with others, is at work."""

    first: str = ""
    tries: int = 0
    weight: int = 0
    retry_at: float = 0.0
    """Monotonic seconds of the next try."""

    @property
    def is_lasting(self) -> bool:
        return self.weight >= MAX_WEIGHT

    @property
    def is_told(self) -> bool:
        return self.tries >= TOLD_AFTER

    def pause(self, first: str, now: float) -> float:
        """Return the seconds until the next try with `first`; 0 if it is due."""
        return max(0.0, self.retry_at - now) if first == self.first else 0.0

    def after(self, first: str, code: int, now: float, pause: float, *, lacks_room: bool = False) -> Setback:
        """Return it after another failure of git, with that exit code; of another entry it begins again.

        Args:
            now: monotonic seconds.
            pause: seconds until the next try.
            lacks_room: whether git said that the machine lacks disk, processes, memory or descriptors.
        """
        before = self if first == self.first else Setback(first)
        weight = 0 if lacks_room else KILLED_WEIGHT if code in _KILLED else WEIGHT
        return replace(before, tries=before.tries + 1, weight=before.weight + weight, retry_at=now + pause)
