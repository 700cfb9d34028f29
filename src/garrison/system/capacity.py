"""Capacity: how many agents this machine runs at once. `default_agents` is pure; the rest reads cores and memory."""

from __future__ import annotations

import os
from pathlib import Path

AGENT_BYTES = 512 << 20
"""Estimated memory of one agent with its tools."""
_UNLIMITED = 1 << 60


def default_agents(cores: int, available: int | None) -> int:
    """Return the default of `--max-agents`: one per core, at least 2, and no more than memory (bytes) allows. Pure.

    At least one; unknown memory (None) limits nothing.
    """
    wanted = max(2, cores)
    return wanted if available is None else max(1, min(wanted, available // AGENT_BYTES))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that may still be used: the least of MemAvailable and what our cgroups leave; None: unknown."""
    found = [left for place in _places(proc, cgroups) if (left := _left(place)) is not None]
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) << 10)
    except (OSError, ValueError, IndexError):
        pass
    return min(found, default=None)


def _places(proc: Path, cgroups: Path) -> list[Path]:
    """Return the folders of our memory cgroup and those above it; a container may mount them at the root."""
    try:
        lines = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    places = []
    for _, controllers, path in lines:
        if controllers and "memory" not in controllers.split(","):
            continue
        base = cgroups / "memory" if controllers else cgroups
        below = base / path.strip("/")
        places += [place for place in (below, *below.parents) if place == base or base in place.parents]
    return places


def _left(place: Path) -> int | None:
    """Return what a cgroup's limit leaves, counting droppable page cache as free. None: no limit."""
    for limit, used, idle in (("memory.max", "memory.current", "inactive_file"),
                              ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")):
        try:
            allowed, taken = int((place / limit).read_text()), int((place / used).read_text())
            stat = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
            if allowed < _UNLIMITED:
                return max(0, allowed - taken + int(stat.get(idle, 0)))
        except (OSError, ValueError):  # `max`, or no such file
            continue
    return None
