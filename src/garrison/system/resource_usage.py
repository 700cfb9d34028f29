"""Resource usage: CPU time and memory of the process trees of incarnations, and of the machine.

The decisions are pure: `find_owners` assigns each process to an incarnation (by its own marker, else by that of the
nearest ancestor that has one), `cpu_seconds` computes how much each worked between two samples. `UsageMeter` reads
through psutil. What is expensive it reads rarely: an environment again only while a process is young, private memory
only of a few processes per sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil

from garrison.system.processes import ProcessId, life_marker

RESOLUTION = 0.01
"""Seconds of CPU time that the kernel counts in."""
YOUNG = 2.0
"""Seconds after its start in which a process may still execute another program, with another environment."""
REFRESH = 30.0
"""Seconds after which an environment is read again all the same."""
MEMORY_READS = 16
"""Processes whose private memory is read again per sample; those never read come first, all of them."""


@dataclass(frozen=True)
class Proc:
    """One process in one sample; `cpu` is its own time, `waited` that of the children it collected, in seconds."""

    pid: int
    ticks: int
    ppid: int
    zombie: bool
    cpu: float
    waited: float
    rss: int
    """Resident bytes, including shared ones."""
    age: float = YOUNG
    """Seconds since its start."""

    @property
    def id(self) -> ProcessId:
        """(pid, start)."""
        return ProcessId(self.pid, self.ticks)


@dataclass(frozen=True)
class Usage:
    """Use of a tree: `cpu` in percent of one core (None before the second sample), `memory` in bytes."""

    cpu: float | None
    memory: int
    processes: int


NO_USAGE = Usage(None, 0, 0)


@dataclass(frozen=True)
class Machine:
    """Load of the machine over 1, 5 and 15 minutes, its cores, and its memory in bytes."""

    load: tuple[float, float, float]
    cores: int
    available: int
    total: int


# --- decisions --------------------------------------------------------------------------------------------------------


def find_owners(procs: Iterable[Proc], markers: Mapping[int, str]) -> dict[int, str]:
    """Return pid → marker of its incarnation: its own, else its nearest ancestor's. Processes without one are
    absent."""
    parents = {one.pid: one.ppid for one in procs}
    owners: dict[int, str] = {}
    for pid in parents:
        path, at = [], pid
        while at in parents and at not in owners and at not in markers and at not in path:
            path.append(at)
            at = parents[at]
        marker = owners.get(at) or (markers.get(at) if at in parents else None)
        if marker:
            owners |= dict.fromkeys([*path, at], marker)
    return owners


def cpu_seconds(old: Mapping[ProcessId, Proc], new: Mapping[ProcessId, Proc], seconds: float,
                cores: int) -> dict[int, float]:
    """Return pid → CPU seconds between two samples that are `seconds` apart, including short-lived children.

    A child that ended in between is counted by what its parent collected, less what the child had in the last sample.
    More than the machine can do in that time is older: of an orphan that a subreaper collected, or of a process that is
    sampled for the first time long after its start.
    """
    most = seconds * cores * 1.1 + 2 * RESOLUTION
    gone = _ended_cpu({one.pid: one for one in old.values() if one.id not in new})
    worked = {}
    for one in new.values():
        before = old.get(one.id) or replace(one, cpu=0, waited=0)
        own = one.cpu - before.cpu
        collected = max(0.0, one.waited - before.waited - gone.get(one.pid, 0.0))
        worked[one.pid] = sum(part for part in (own, collected) if 0 <= part <= most)
    return worked


def _ended_cpu(ended: Mapping[int, Proc]) -> dict[int, float]:
    """Return pid → CPU of the ended processes below it: it went up through parents that ended too."""
    found: dict[int, float] = {}
    for one in ended.values():
        above, passed = one.ppid, {one.pid}
        while above in ended and above not in passed:
            passed.add(above)
            above = ended[above].ppid
        found[above] = found.get(above, 0.0) + one.cpu + one.waited
    return found


def add_usage(one: Usage, other: Usage) -> Usage:
    """Return the usage of two trees together."""
    known = [part.cpu for part in (one, other) if part.cpu is not None]
    return Usage(sum(known) if known else None, one.memory + other.memory, one.processes + other.processes)


# --- reading ----------------------------------------------------------------------------------------------------------


class UsageMeter:
    """Samples the process trees whose markers `ours` accepts."""

    def __init__(self, ours: Callable[[str], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self.ours, self.clock = ours, clock
        self.cores = psutil.cpu_count() or 1
        self._procs: dict[ProcessId, Proc] = {}
        self._at: float | None = None
        self._markers: dict[ProcessId, tuple[float, str]] = {}
        self._memory: dict[ProcessId, tuple[float, int]] = {}

    def sample(self) -> dict[str, Usage]:
        """Return marker → what its tree uses now, CPU since the last sample."""
        now = self.clock()
        procs = {one.id: one for one in read_processes()}
        owners = find_owners(procs.values(), self._read_markers(procs.values(), now))
        owners = {pid: marker for pid, marker in owners.items() if self.ours(marker)}
        worked = cpu_seconds(self._procs, procs, now - self._at, self.cores) if self._at is not None else None
        memory = self._read_memory([one for one in procs.values() if one.pid in owners], now)
        found: dict[str, Usage] = {}
        for one in procs.values():
            marker = owners.get(one.pid)
            if marker is not None:
                cpu = worked[one.pid] * 100 / max(1e-3, now - self._at) if worked and self._at is not None else None
                found[marker] = add_usage(found.get(marker, NO_USAGE),
                                          Usage(cpu, memory.get(one.pid, 0), not one.zombie))
        self._procs, self._at = procs, now
        return found

    def _read_markers(self, procs: Iterable[Proc], now: float) -> dict[int, str]:
        """Return pid → marker, read again while a process is young and after `REFRESH` seconds."""
        known: dict[ProcessId, tuple[float, str]] = {}
        markers = {}
        for one in procs:
            at, marker = self._markers.get(one.id, (now - REFRESH, ""))
            if now - at >= REFRESH:
                at, marker = now, life_marker(one.pid) or ""
            if one.age > YOUNG:
                known[one.id] = at, marker
            if marker:
                markers[one.pid] = marker
        self._markers = known
        return markers

    def _read_memory(self, procs: Collection[Proc], now: float) -> dict[int, int]:
        """Return pid → private bytes; read are those never read, and the few read longest ago."""
        living = {one.id: one for one in procs if not one.zombie}
        self._memory = {one: held for one, held in self._memory.items() if one in living}
        due = sorted(self._memory, key=lambda one: self._memory[one][0])[:MEMORY_READS]
        for one in [*(one for one in living if one not in self._memory), *due]:
            private = private_memory(one.pid)
            self._memory[one] = (now, living[one].rss if private is None else private)
        return {one.pid: held[1] for one, held in self._memory.items()}


def read_processes() -> list[Proc]:
    """Return all processes, including zombies."""
    found, now = [], time.time()
    for process in psutil.process_iter():  # it keeps its objects from call to call, and with them the start times
        with suppress(psutil.Error, OSError), process.oneshot():
            times, started = process.cpu_times(), process.create_time()
            zombie = process.status() == psutil.STATUS_ZOMBIE
            found.append(Proc(process.pid, round(started / RESOLUTION), process.ppid(), zombie,
                              times.user + times.system, times.children_user + times.children_system,
                              process.memory_info().rss, now - started))
    return found


def private_memory(pid: int) -> int | None:
    """Return the bytes that only this process holds, including swapped ones; None if that cannot be read."""
    try:
        memory = psutil.Process(pid).memory_full_info()
    except (psutil.Error, OSError):
        return None
    return int(memory.uss + memory.swap)


def read_machine() -> Machine:
    """Return load, cores and memory of now."""
    memory = psutil.virtual_memory()
    return Machine(psutil.getloadavg(), psutil.cpu_count() or 1, memory.available, memory.total)
