"""Capacity: decide how many agents this machine runs at once, from its cores and memory, and what it was short of."""

from __future__ import annotations

import os
from pathlib import Path

from garrison.values import Value, replace

AGENT_BYTES = 512 << 20
"""Estimated memory of one agent with its tools."""
_UNLIMITED = 1 << 60
"""Limits from here on mean that there is none (v1 has no `max`)."""


def default_agents(cores: int, available: int | None) -> int:
    """Return the default of `--max-agents`: one per core, at least 2, if memory (bytes; None: unknown) allows. Pure."""
    by_cores = max(2, cores)
    return by_cores if available is None else max(1, min(by_cores, available // AGENT_BYTES))


RECOVERY = 60.0
"""Seconds without a shortage after which one more agent may work."""


class AgentLimit(Value):
    """Number of agents that may work at once: lowered while the machine is short of room, raised again one by one.

    It stops no agent; only no other is started while more work than it allows.
    """

    most: int
    allowed: int
    changed: float = 0.0
    """When it was changed last, in monotonic seconds."""

    @classmethod
    def full(cls, most: int) -> AgentLimit:
        return cls(most, most)

    def after(self, *, is_short: bool, busy: int, now: float) -> AgentLimit:
        """Return the limit now, while `busy` agents work. Pure."""
        if is_short and self.allowed >= min(self.most, max(1, busy)):
            return replace(self, allowed=max(1, min(self.most, busy) - 1), changed=now)
        if is_short:
            return replace(self, changed=now)
        if self.allowed < self.most and now - self.changed >= RECOVERY:
            return replace(self, allowed=self.allowed + 1, changed=now)
        return self


def cores() -> int:
    return len(os.sched_getaffinity(0))


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that may still be used: the least of MemAvailable and what our cgroups leave; None: unknown."""
    limits = [left for group in _memory_cgroups(proc, cgroups) if (left := _unused(group)) is not None]
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) << 10)
    except (OSError, ValueError, IndexError):
        pass
    return min(limits, default=None)


def _memory_cgroups(proc: Path, cgroups: Path) -> list[Path]:
    """Return the folders of our memory cgroup and of its parents; a container may mount them at the root."""
    try:
        lines = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    groups = []
    for _, controllers, path in lines:
        if controllers and "memory" not in controllers.split(","):
            continue
        base = cgroups / "memory" if controllers else cgroups
        group = base / path.strip("/")
        groups += [folder for folder in (group, *group.parents) if folder == base or base in folder.parents]
    return groups


def _unused(group: Path) -> int | None:
    """Return the bytes that a cgroup's limit leaves, counting droppable page cache as free; None: no limit."""
    for limit, used, idle in (("memory.max", "memory.current", "inactive_file"),
                              ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")):
        try:
            allowed, taken = int((group / limit).read_text()), int((group / used).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            if allowed < _UNLIMITED:
                return max(0, allowed - taken + int(stat.get(idle, 0)))
        except (OSError, ValueError):  # `max`, or no such file
            continue
    return None
