"""A census of the machine's processes, so that a sweep reads only those it does not know yet. Looks only.

The rule of this room: who is left out of a sweep is proved to be nobody it could end. A process stays what it was seen
to be: of the life whose marker it bore, or a stranger, who bore none and nobody above it did. Neither becomes one of
another life's later. What could be otherwise is not remembered, but read by each sweep:

- who is young: between fork and exec a process shows the environment of its parent;
- who shows no environment at all: so does everybody for an instant of an exec;
- who bears no marker below one that does, or below us: when its parent ends it may come to us (`children.adopted`);
- who is a child of the life's process, or ours though we did not start it: it may have left its marker by an exec;
- who has gone, or has another's pid: the kernel numbers each directory of /proc anew, and pid and number must fit.

Nor is /proc listed, which takes longer than to read the few: who came since has one of the pids given since, as long as
these cannot have come round (`procfs.Numbering`). Where that is not for sure, or they are many, it is listed. (Whoever
gives pids by hand, which takes the right to, can hide somebody for a minute, until /proc is listed again.)
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from os import getpid

from garrison.system.children import came_to_us
from garrison.system.kill_tree import Glimpse, glimpse
from garrison.system.process_table import (
    LISTINGS,
    ancestors,
    children_of,
    environment,
    forks,
    highest_pid,
    kernel_tells,
    leads,
    listed_to_the_last,
    numbering,
    numbers,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from garrison.system.process_table import Numbering

SETTLED = 10.0
"""Seconds after which a process has long become what it was started as."""
EVERY = 60.0
"""Seconds between two censuses, at least."""
FEW = 128
"""So many pids are rather tried than all of /proc is listed."""
SOME = 32
"""So many given since are looked at in a quiet moment rather than by the next sweep."""
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
        self._read: set[int] = set()
        """Those who were there by the time of `_at` and had not settled."""
        self._by: dict[str | int | None, set[int]] = {}
        """Who settled, by the life they bear, and by the session they are of."""
        self._above: set[int] = set()
        """Who was above us, and so whoever is."""
        self._at: Numbering | None = None
        self._highest = 0
        self._due = 0.0

    def take(self, monotonic: float) -> None:
        """Get to know who has come; only by their pids if it was done within `EVERY` seconds."""
        if monotonic < self._due:
            self._note()
            return
        self._due = monotonic + EVERY
        self._at, self._highest = numbering(), highest_pid()
        there = numbers()
        known = {pid: one for pid, one in self._settled.items() if there.get(pid) == one.number}
        new = [seen for pid in there if pid not in known and (seen := glimpse(pid)) is not None and not seen.dead]
        before = int((time.clock_gettime(time.CLOCK_BOOTTIME) - SETTLED) * _TICKS)
        told = [one for one in new if one.marker is not None or one.kernel or environment(one.pid) != b""]
        self._keep(known | settle(told, known, there, before, getpid()), there)

    def _keep(self, settled: dict[int, Settled], there: Iterable[int]) -> None:
        self._settled, self._by, self._above = settled, {}, ancestors(getpid())
        self._read = {pid for pid in there if pid not in settled}
        for pid, one in settled.items():
            self._by.setdefault(one.life, set()).add(pid)
            self._by.setdefault(one.session, set()).add(pid)

    def _note(self) -> None:
        """Let those who came since be few."""
        if self._at is None or 0 <= forks() - self._at.last < SOME:
            return
        now, came = self._came()
        if came is not None:
            self._read.update(came)
            self._at = now

    def _came(self) -> tuple[Numbering | None, list[int] | None]:
        """How far the kernel is, and who of those that came since is there: None if they are not known, or many."""
        now = numbering() if self._at is not None else None
        given = now.since(self._at, self._highest) if now is not None and self._at is not None else None
        if given is None or len(given) > FEW:
            return now, None
        return now, [pid for pid in given if leads(pid)]

    def to_read(self, life: str, leaders: Collection[int], seen: set[int]) -> Iterator[int]:
        """Every pid that a sweep of `life` has to read: as `listed_to_the_last` without `others`, each lot read by the
        caller before the next."""
        now, came = self._came()
        kin = self._kin(life, leaders) if kernel_tells() else None
        if now is None or came is None or kin is None:
            yield from listed_to_the_last(seen, self.others(life, leaders))
            return
        last, lot = now.last, [*self._read.union(kin, came)]
        for _ in range(LISTINGS):
            new = [pid for pid in lot if pid not in seen]
            seen.update(new)
            yield from new
            before, last = last, forks()
            if last == before:
                return
            if last < before:
                break
            lot = [pid for pid in range(before + 1, last + 1) if leads(pid)]
        yield from listed_to_the_last(seen, self.others(life, leaders))

    def others(self, life: str, leaders: Collection[int]) -> dict[int, int]:
        """Whom a sweep of `life` need not read, as `listed_to_the_last` takes it: none above us, neither the `leaders`
        and who came to us nor the sessions they lead, no child of a leader. Nobody, where the kernel does not tell."""
        if not kernel_tells():
            return {}
        kin = self._kin(life, leaders)
        return {pid: one.number for pid, one in self._settled.items() if pid not in kin}

    def _kin(self, life: str, leaders: Collection[int]) -> set[int]:
        """Who is read though they settled, and some more."""
        led = came_to_us(children_of(getpid())) | set(leaders)
        return self._above.union(led, *map(children_of, leaders), self._by.get(life, ()),
                                 *(self._by.get(leader, ()) for leader in led))


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
