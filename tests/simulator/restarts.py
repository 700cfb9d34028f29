"""Rules of restarts, with books of their own: how often a name may die in a window, and how long it then waits, parked
or not."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.simulator.violation import Violation

from garrison.records.names import Key

if TYPE_CHECKING:
    from tests.simulator.world import World

    from garrison.records.identity import Identity
    from garrison.records.journal import Entry

WINDOW, MOST, BASE, QUICK = 600.0, 5, 0.5, 60.0
"""Limits of the restart policy: seconds of the window, deaths in it, the first delay, and the life that ends a row."""
NO_ROOM, PAUSE = "shortage", 5.0
"""Class of the death of what the machine had no room for, and the seconds before it is tried again, at least."""
COOL_DOWN = 600.0
"""Seconds from a park to its probe, at least."""
COUNTED = ("crash", "hung")


class Restarts:
    """Deaths of each name that count, as they are journaled."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._deaths: dict[tuple[str, int], list[float]] = defaultdict(list)
        """Name and attempt → when it died, since it was last parked or unparked."""
        self._parked: dict[str, float] = {}
        """Name → when it was parked, until it is probed or unparked."""
        self._cramped: dict[str, float] = {}
        """Name → when it died last, if the machine had no room for it."""

    def recorded(self, journal: str, entry: Entry) -> None:
        """Take note of a record that is about to be written."""
        data = entry.data
        if entry.kind == "death":
            self._died(str(data["full"]), int(data.get("attempt", 1)), str(data.get("class", "crash")))
        elif entry.kind in ("park", "heal", "lift") or (entry.kind == "spawn" and data.get("probe")):
            if entry.kind == "spawn":
                self._check_probe(str(data["full"]))
            self._forget(str(data["full"]))
            if entry.kind == "park":
                self._parked[str(data["full"])] = self.world.t
        elif entry.kind in ("signal", "unpark"):  # a user may have unparked any of them
            key = None if entry.kind == "unpark" else data.get("type")
            if key in (None, "GUIDANCE"):
                run = journal.rpartition("@")[2]
                for full in {*self._parked, *(full for full, _ in self._deaths)}:
                    if Key.parse(full).run == run:
                        self._forget(full)

    def _died(self, full: str, attempt: int, class_: str) -> None:
        self._cramped.pop(full, None)
        if class_ == NO_ROOM:
            self._cramped[full] = self.world.t
        elif class_ in COUNTED:
            self._deaths[full, attempt].append(self.world.t)

    def _check_probe(self, full: str) -> None:
        """Check that what is probed has cooled down, unless its branch has landed and only the cleanup is left."""
        key, parked_at = Key.parse(full), self._parked.get(full, -COOL_DOWN)
        if (key.run, key.name) in self.world.check.landings:
            return
        if parked_at > self.world.booted_at and self.world.t - parked_at < COOL_DOWN - 0.1:
            raise Violation(f"{full} is probed {self.world.t - parked_at:.0f} s after it was parked")

    def _forget(self, full: str) -> None:
        self._parked.pop(full, None)
        self._cramped.pop(full, None)
        for known in [known for known in self._deaths if known[0] == full]:
            del self._deaths[known]

    def leased(self, new: Identity) -> None:
        """Check that the policy allows another incarnation of a name."""
        now, full = self.world.t, new.key.full
        died_at = self._cramped.get(full, -PAUSE)
        if died_at > self.world.booted_at and now - died_at < PAUSE - 0.1:
            raise Violation(f"{full} was started {now - died_at:.2f} s after the machine had no room for it")
        deaths = [at for at in self._deaths[full, int(new.metadata.get("attempt", 1))]
                  if at > self.world.booted_at and now - at < WINDOW]
        if len(deaths) > MOST + 1:
            raise Violation(f"{full} was started again after {len(deaths)} deaths in {WINDOW:.0f} s")
        if len(deaths) < 3 or any(later - earlier > QUICK / 2 for earlier, later in pairwise(deaths)):
            return
        due = deaths[-1] + BASE * 2 ** (len(deaths) - 3)
        if now < due - 0.1:
            raise Violation(f"{full} was started {now - deaths[-1]:.2f} s after death {len(deaths)} in a row")
