"""A census of the machine's processes, so that a sweep reads only those it does not know yet. Looks only.

The rule of this room: who is left out of a sweep is proved to be nobody it could end. A process stays what it was seen
to be: of the life whose marker it bore, or a stranger, who bore none and nobody above it did. Neither becomes one of
another life's later. What could be otherwise is not remembered, but read by each sweep:

- who is young: between fork and exec a process shows the environment of its parent;
- who shows no environment at all: so does everybody for an instant of an exec;
- who bears no marker below one that does, or below us: when its parent ends it may come to us (`children.adopted`);
- who is a child of the life's process, or ours though we did not start it: it may have left its marker by an exec;
- who has gone, or has another's pid: the kernel numbers each directory of /proc anew, and pid and number must fit.
"""

from __future__ import annotations

import os
import time
from os import getpid

from garrison.light import dataclass
from garrison.system.children import came_to_us
from garrison.system.ending import Glimpse, glimpse
from garrison.system.procfs import ancestors, environment, numbers
from garrison.system.tree import children_of, kernel_tells

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

SETTLED = 10.0
"""Seconds after which a process has long become what it was started as."""
EVERY = 60.0
"""Seconds between two censuses, at least."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Settled:
    """A process that was looked at: the number of its directory, the life it bears (None: a stranger), its session."""

    number: int
    life: str | None
    session: int


class Census:
    """What one process knows of the others."""

    def __init__(self) -> None:
        self._settled: dict[int, Settled] = {}
        self._due = 0.0

    def take(self, monotonic: float) -> None:
        """Get to know who has come; nothing if that was done within `EVERY` seconds."""
        if monotonic < self._due:
            return
        self._due = monotonic + EVERY
        there = numbers()
        known = {pid: one for pid, one in self._settled.items() if there.get(pid) == one.number}
        new = [seen for pid in there if pid not in known and (seen := glimpse(pid)) is not None and not seen.dead]
        before = int((time.clock_gettime(time.CLOCK_BOOTTIME) - SETTLED) * _TICKS)
        told = [one for one in new if one.marker is not None or one.kernel or environment(one.pid) != b""]
        self._settled = known | settle(told, known, there, before, getpid())

    def others(self, life: str, leaders: Collection[int]) -> dict[int, int]:
        """Whom a sweep of `life` need not read, as `listed_to_the_last` takes it: none above us, neither the `leaders`
        and who came to us nor the sessions they lead, no child of a leader. Nobody, where the kernel does not tell."""
        if not kernel_tells():
            return {}
        led = came_to_us(children_of(getpid())) | set(leaders)
        spared = ancestors(getpid()).union(led, *map(children_of, leaders))
        return {pid: one.number for pid, one in self._settled.items()
                if one.life != life and pid not in spared and one.session not in led}


def settle(new: Iterable[Glimpse], known: Mapping[int, Settled], there: Mapping[int, int], before: int,
           ours: int) -> dict[int, Settled]:
    """Those of `new` that will stay what they are: started before `before` (ticks), and, if they bear no life, with
    nobody above them who does; `ours` is our own pid. Decides only, but for markers that are read as they are asked."""
    rows = {one.pid: one for one in new}
    strangers = {0: True, **{pid: one.life is None for pid, one in known.items()}}

    def stranger(pid: int) -> bool:
        """Whether neither it nor anybody above it bears a life or is us; not, where the way up breaks off."""
        way: list[int] = []
        while pid not in strangers:
            row = rows.get(pid)
            if row is None or pid == ours or pid in way or row.marker is not None:
                strangers[pid] = False
                break
            way.append(pid)
            pid = row.ppid
        strangers.update(dict.fromkeys(way, strangers[pid]))
        return strangers[way[0] if way else pid]

    return {pid: Settled(there[pid], one.marker, one.session) for pid, one in rows.items()
            if one.ticks < before and (one.marker is not None or stranger(pid))}
