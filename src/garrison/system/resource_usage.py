"""Resource usage: CPU time and memory of the process trees of incarnations, and of the machine.

The decisions are pure: `find_owners` assigns each process to an incarnation (by its own marker, else by the nearest
ancestor's), `cpu_seconds` computes how much each worked between two samples. `UsageMeter` reads through psutil, and
what is expensive rarely: an environment again only while a process is young, private memory only of a few processes per
sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

import msgspec

from garrison.system.processes import ProcessId, life_marker
from garrison.values import Value, replace

RESOLUTION = 0.01
"""The kernel's unit of CPU time in seconds."""
YOUNG = 2.0
"""Seconds after its start in which a process may still exec another program, with another environment."""
REFRESH = 30.0
"""Seconds after which an environment is always read again."""
MEMORY_READS = 16
"""Processes per sample whose private memory is read again, in addition to new ones."""


class ProcessSample(Value):
    """One process in one sample; `cpu` is its own time, `waited` the time of collected children, in seconds."""

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
        return ProcessId(self.pid, self.ticks)


class ResourceUsage(Value):
    """Use of a tree: `cpu` in percent of one core (None before the second sample), `memory` in bytes."""

    cpu: float | None
    memory: int
    processes: int


NO_USAGE = ResourceUsage(None, 0, 0)


class Machine(Value):
    """Load of the machine over 1, 5 and 15 minutes, its cores, and its memory in bytes."""

    load: tuple[float, float, float]
    cores: int
    available: int = msgspec.field(name="memory_available")
    total: int = msgspec.field(name="memory_total")


# --- decisions --------------------------------------------------------------------------------------------------------


def find_owners(samples: Iterable[ProcessSample], markers: Mapping[int, str]) -> dict[int, str]:
    """Return pid → marker of its incarnation: its own, else its nearest ancestor's; only for processes that have
    one."""
    parents = {process.pid: process.ppid for process in samples}
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


def cpu_seconds(old: Mapping[ProcessId, ProcessSample], new: Mapping[ProcessId, ProcessSample], seconds: float,
                cores: int) -> dict[int, float]:
    """Return pid → CPU seconds between two samples that are `seconds` apart, including short-lived children.

    A child that ended in between is counted by what its parent collected, minus the child's time in the last sample.
    More than the machine can do in that time is older: from an orphan that a subreaper collected, or a process first
    sampled long after its start.
    """
    most = seconds * cores * 1.1 + 2 * RESOLUTION
    ended = _ended_cpu({process.pid: process for process in old.values() if process.id not in new})
    worked = {}
    for process in new.values():
        before = old.get(process.id) or replace(process, cpu=0, waited=0)
        own = process.cpu - before.cpu
        collected = max(0.0, process.waited - before.waited - ended.get(process.pid, 0.0))
        worked[process.pid] = sum(part for part in (own, collected) if 0 <= part <= most)
    return worked


def _ended_cpu(ended: Mapping[int, ProcessSample]) -> dict[int, float]:
    """Return pid → CPU of the ended processes below it, also collected through ended parents."""
    collected: dict[int, float] = {}
    for process in ended.values():
        parent, passed = process.ppid, {process.pid}
        while parent in ended and parent not in passed:
            passed.add(parent)
            parent = ended[parent].ppid
        collected[parent] = collected.get(parent, 0.0) + process.cpu + process.waited
    return collected


def add_usage(first: ResourceUsage, second: ResourceUsage) -> ResourceUsage:
    measured = [usage.cpu for usage in (first, second) if usage.cpu is not None]
    return ResourceUsage(sum(measured) if measured else None, first.memory + second.memory,
                         first.processes + second.processes)


# --- reading ----------------------------------------------------------------------------------------------------------


class UsageMeter:
    """Samples the process trees whose markers are `ours`."""

    def __init__(self, ours: Callable[[str], bool], clock: Callable[[], float] = time.monotonic) -> None:
        import psutil  # imported here and below: `garrison status`, which measures nothing, starts without it

        self.ours, self.clock = ours, clock
        self.cores = psutil.cpu_count() or 1
        self._last: dict[ProcessId, ProcessSample] = {}
        self._at: float | None = None
        self._markers: dict[ProcessId, tuple[float, str]] = {}
        self._memory: dict[ProcessId, tuple[float, int]] = {}

    def sample(self) -> dict[str, ResourceUsage]:
        """Return marker → what its tree uses now, CPU since the last sample."""
        now = self.clock()
        processes = {process.id: process for process in read_processes()}
        owners = find_owners(processes.values(), self._read_markers(processes.values(), now))
        owners = {pid: marker for pid, marker in owners.items() if self.ours(marker)}
        worked = cpu_seconds(self._last, processes, now - self._at, self.cores) if self._at is not None else None
        memory = self._read_memory([process for process in processes.values() if process.pid in owners], now)
        usage: dict[str, ResourceUsage] = {}
        for process in processes.values():
            marker = owners.get(process.pid)
            if marker is not None:
                cpu = worked[process.pid] * 100 / max(1e-3, now - self._at) if worked and self._at is not None else None
                usage[marker] = add_usage(usage.get(marker, NO_USAGE),
                                          ResourceUsage(cpu, memory.get(process.pid, 0), not process.zombie))
        self._last, self._at = processes, now
        return usage

    def _read_markers(self, processes: Iterable[ProcessSample], now: float) -> dict[int, str]:
        """Return pid → marker, read again while a process is young and after `REFRESH` seconds."""
        cache: dict[ProcessId, tuple[float, str]] = {}
        markers = {}
        for process in processes:
            at, marker = self._markers.get(process.id, (now - REFRESH, ""))
            if now - at >= REFRESH:
                at, marker = now, life_marker(process.pid) or ""
            # A young one may still have to exec its program, which gives it its environment, with the marker.
            if process.age > YOUNG:
                cache[process.id] = at, marker
            if marker:
                markers[process.pid] = marker
        self._markers = cache
        return markers

    def _read_memory(self, processes: Collection[ProcessSample], now: float) -> dict[int, int]:
        """Return pid → private bytes, reading new processes and the few that were read longest ago."""
        running = {process.id: process for process in processes if not process.zombie}
        self._memory = {process: cached for process, cached in self._memory.items() if process in running}
        oldest = sorted(self._memory, key=lambda process: self._memory[process][0])[:MEMORY_READS]
        for process in [*(process for process in running if process not in self._memory), *oldest]:
            private = private_memory(process.pid)
            self._memory[process] = (now, running[process].rss if private is None else private)
        return {process.pid: memory for process, (_, memory) in self._memory.items()}


def read_processes() -> list[ProcessSample]:
    """Return all processes, including zombies."""
    import psutil

    samples, now = [], time.time()
    for process in psutil.process_iter():  # it keeps its objects, and so the start times, between calls
        with suppress(psutil.Error, OSError), process.oneshot():
            times, started = process.cpu_times(), process.create_time()
            zombie = process.status() == psutil.STATUS_ZOMBIE
            samples.append(ProcessSample(
                process.pid, round(started / RESOLUTION), process.ppid(), zombie, times.user + times.system,
                times.children_user + times.children_system, process.memory_info().rss, now - started))
    return samples


def private_memory(pid: int) -> int | None:
    """Return the bytes private to this process, including swapped ones; None if unreadable."""
    import psutil

    try:
        memory = psutil.Process(pid).memory_full_info()
    except (psutil.Error, OSError):
        return None
    return int(memory.uss + memory.swap)


def read_machine() -> Machine:
    """Read the load, rounded to hundredths, and the memory."""
    import psutil

    memory = psutil.virtual_memory()
    one, five, fifteen = psutil.getloadavg()
    return Machine((round(one, 2), round(five, 2), round(fifteen, 2)), psutil.cpu_count() or 1, memory.available,
                   memory.total)
