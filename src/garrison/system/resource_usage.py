"""What the process trees of lives cost the machine: CPU time and memory, from one pass over /proc a look.

What decides is pure: `find_owners` says whose life each process belongs to (its own marker, else that of the nearest
ancestor that bears one), `cpu_seconds` how much each worked between two looks. `UsageMeter` reads: stat of everybody at
each look, the environment of a process again only while it is young, its private memory (dear) only for some at a look.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from garrison.system import processes
from garrison.system.processes import ProcessId

TICK = os.sysconf("SC_CLK_TCK")
"""Clock ticks a second, in which /proc counts."""
PAGE = os.sysconf("SC_PAGE_SIZE")
YOUNG = 2.0
"""Seconds after its start in which a process may still put on another program, and with it another environment."""
AGAIN = 30.0
"""Seconds after which an environment is read again all the same."""
AT_ONCE = 16
"""Processes whose private memory is read again at a look; those never read come first, all of them."""

_PRIVATE = (b"Private_Clean:", b"Private_Dirty:", b"Swap:")


@dataclass(frozen=True)
class Proc:
    """One process at one look. `cpu` is its own time, `waited` that of the children it collected, both in ticks."""

    pid: int
    ticks: int
    ppid: int
    zombie: bool
    cpu: int
    waited: int
    rss: int
    """Resident bytes, shared ones included."""

    @property
    def id(self) -> ProcessId:
        """(pid, start ticks)."""
        return ProcessId(self.pid, self.ticks)


@dataclass(frozen=True)
class Usage:
    """What a tree uses: `cpu` in percent of one core (None: not known before a second look), `memory` in bytes."""

    cpu: float | None
    memory: int
    processes: int


NO_USAGE = Usage(None, 0, 0)


@dataclass(frozen=True)
class Machine:
    """The machine's load over 1, 5 and 15 minutes, its cores, and its memory in bytes (0: not known)."""

    load: tuple[float, float, float]
    cores: int
    available: int
    total: int


# ---------------------------------------------------------------------------------------------------------- deciding


def parse(raw: bytes) -> Proc:
    """Read one /proc/PID/stat; the name may hold spaces and parentheses."""
    known = processes.parse_stat(raw)
    fields = raw[raw.rindex(b")") + 2:].split()
    return Proc(known.pid, known.ticks, known.ppid, known.zombie, int(fields[11]) + int(fields[12]),
                int(fields[13]) + int(fields[14]), int(fields[21]) * PAGE)


def find_owners(procs: Iterable[Proc], markers: Mapping[int, str]) -> dict[int, str]:
    """pid → the marker of its life: its own, else the nearest ancestor's; those of nobody's life are left out."""
    parents = {one.pid: one.ppid for one in procs}
    found: dict[int, str] = {}
    for pid in parents:
        path, at = [], pid
        while at in parents and at not in found and at not in markers and at not in path:
            path.append(at)
            at = parents[at]
        life = found.get(at) or (markers.get(at) if at in parents else None)
        if life:
            found |= dict.fromkeys([*path, at], life)
    return found


def cpu_seconds(old: Mapping[ProcessId, Proc], new: Mapping[ProcessId, Proc], seconds: float,
                cores: int) -> dict[int, float]:
    """pid → CPU seconds it worked between two looks that lie `seconds` apart, short-lived children included.

    A child that ended in between is known by what its parent collected, less what the child had at the last look. More
    than the machine can do in that time is old: of an orphan that a subreaper collected, or of a process that is seen
    for the first time long after its start.
    """
    most = seconds * cores * 1.1 + 2 / TICK
    gone = _gone({one.pid: one for one in old.values() if one.id not in new})
    worked = {}
    for one in new.values():
        before = old.get(one.id) or replace(one, cpu=0, waited=0)
        own = (one.cpu - before.cpu) / TICK
        collected = max(0, one.waited - before.waited - gone.get(one.pid, 0)) / TICK
        worked[one.pid] = sum(part for part in (own, collected) if 0 <= part <= most)
    return worked


def _gone(ended: Mapping[int, Proc]) -> dict[int, int]:
    """pid → the ticks that those below it had who have ended since: they went up through parents that ended too."""
    found: dict[int, int] = {}
    for one in ended.values():
        above, passed = one.ppid, {one.pid}
        while above in ended and above not in passed:
            passed.add(above)
            above = ended[above].ppid
        found[above] = found.get(above, 0) + one.cpu + one.waited
    return found


# ---------------------------------------------------------------------------------------------------------- reading


class UsageMeter:
    """Looks again and again; `ours` says which markers are of interest, others' trees are not summed."""

    def __init__(self, ours: Callable[[str], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self.ours, self.clock = ours, clock
        self.cores = os.cpu_count() or 1
        self._procs: dict[ProcessId, Proc] = {}
        self._at: float | None = None
        self._markers: dict[ProcessId, tuple[float, str]] = {}
        self._memory: dict[ProcessId, tuple[float, int]] = {}

    def look(self) -> dict[str, Usage]:
        """Marker → what its tree uses now, CPU since the last look."""
        now = self.clock()
        procs = {one.id: one for one in read_processes()}
        whose = find_owners(procs.values(), self._read_markers(procs, now))
        whose = {pid: life for pid, life in whose.items() if self.ours(life)}
        worked = cpu_seconds(self._procs, procs, now - self._at, self.cores) if self._at is not None else None
        memory = self._read_memory([one for one in procs.values() if one.pid in whose], now)
        found: dict[str, Usage] = {}
        for one in procs.values():
            life = whose.get(one.pid)
            if life is not None:
                part = worked[one.pid] * 100 / max(1e-3, now - self._at) if worked and self._at is not None else None
                found[life] = add_usage(found.get(life, NO_USAGE), Usage(part, memory.get(one.pid, 0), not one.zombie))
        self._procs, self._at = procs, now
        return found

    def _read_markers(self, procs: Collection[ProcessId], now: float) -> dict[int, str]:
        known = {one: held for one, held in self._markers.items() if one in procs and now - held[0] < AGAIN}
        boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        markers = {}
        for one in procs:
            held = known.get(one)
            if held is None:
                held = (now, processes.marker(one.pid) or "")
                if boot - one.ticks / TICK > YOUNG:
                    known[one] = held
            if held[1]:
                markers[one.pid] = held[1]
        self._markers = known
        return markers

    def _read_memory(self, procs: Collection[Proc], now: float) -> dict[int, int]:
        """pid → private bytes; at this look read are those never read, and of the others the few read longest ago."""
        living = {one.id: one for one in procs if not one.zombie}
        self._memory = {one: held for one, held in self._memory.items() if one in living}
        due = sorted(self._memory, key=lambda one: self._memory[one][0])[:AT_ONCE]
        for one in [*(one for one in living if one not in self._memory), *due]:
            private = private_memory(one.pid)
            self._memory[one] = (now, living[one].rss if private is None else private)
        return {one.pid: held[1] for one, held in self._memory.items()}


def add_usage(one: Usage, other: Usage) -> Usage:
    """Two trees as one."""
    known = [part.cpu for part in (one, other) if part.cpu is not None]
    return Usage(sum(known) if known else None, one.memory + other.memory, one.processes + other.processes)


def read_processes() -> list[Proc]:
    """All processes, zombies included, in one pass."""
    return list(map(parse, processes.stats()))


def private_memory(pid: int) -> int | None:
    """Bytes that only this process holds, swapped ones included; None if that cannot be read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb", buffering=0) as file:  # noqa: PTH123
            lines = file.read().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith(_PRIVATE)]
    return sum(found) * 1024 if found else None


def read_machine() -> Machine:
    """Load, cores and memory now."""
    with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file if line.split()[1].isdigit()}
    return Machine(os.getloadavg(), os.cpu_count() or 1, sizes.get("MemAvailable", 0), sizes.get("MemTotal", 0))
