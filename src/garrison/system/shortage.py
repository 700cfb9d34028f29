"""Shortage: recognise that the machine lacks processes, memory or descriptors for another start, or garrison itself.

Like a full disk it passes, and says nothing about the work: what meets it waits and is tried again. `find_shortage`
looks at the limits before a start; `is_shortage` and `reports_shortage` recognise one that was met all the same (a
limit of the user, say, cannot be read).
"""

from __future__ import annotations

import errno
from pathlib import Path

from garrison.backoff import Backoff
from garrison.errors import GarrisonError, Shortage
from garrison.system import own_package
from garrison.system.capacity import available_memory
from garrison.values import Value

ERRNOS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS})
"""Errors of fork, exec and open for lack of processes, memory or descriptors."""
MIN_PROCESSES = 8
"""Processes that must be left in our cgroup for the start of a process: it will need more for its work."""
MIN_FOR_WORK = 3
"""Processes that must be left for an agent, a job or a gate run: fewer, so that what has begun is finished, and not all
wait for one another."""
MIN_MEMORY = 64 << 20
"""Bytes that must be left: a Python process and its agent's first steps need about as much."""
PAUSE = 5.0
"""Seconds before a start that met a shortage is tried again, the first time."""
LONGEST_PAUSE = 30.0

_MESSAGES = ("Resource temporarily unavailable", "Cannot allocate memory", "Too many open files", "Cannot fork",
             "cannot fork()", "unable to fork", "can't start new thread", "unable to create thread",
             "Too many references: cannot splice")


def is_shortage(error: BaseException) -> bool:
    """Return whether an error was met for lack of processes, memory or descriptors, as git and tmux say in words, or of
    a part of garrison itself."""
    if own_package.is_own(error):
        return True
    if isinstance(error, OSError):
        return error.errno in ERRNOS
    if isinstance(error, GarrisonError):
        return isinstance(error, Shortage) or reports_shortage(getattr(error, "stderr", "") or str(error))
    return isinstance(error, MemoryError)


def reports_shortage(output: str) -> bool:
    """Return whether a program's output reports such a lack. Pure."""
    return any(message in output for message in _MESSAGES)


def find_shortage(processes: int = MIN_PROCESSES, proc: Path = Path("/proc"),
                  cgroups: Path = Path("/sys/fs/cgroup")) -> str:
    """Return what the machine lacks for a start that needs so many processes, '' if nothing."""
    left = _processes_left(proc, cgroups)
    if left is not None and left < processes:
        return f"its cgroup allows only {left} more processes"
    memory = available_memory(proc, cgroups)
    if memory is not None and memory < MIN_MEMORY:
        return f"only {memory >> 20} MiB of memory are left"
    return ""


class Lack(Value):
    """What the start of a process lacks."""

    what: str
    ends: str
    """When what waits for it starts."""


def find_lack(processes: int = MIN_PROCESSES) -> Lack | None:
    """Return what the start of one of garrison's own processes lacks now; None if nothing."""
    if missing := own_package.find_missing():
        return Lack(f"{missing} (is an upgrade under way?)", f"once it is back, tried every {LONGEST_PAUSE:.0f} s")
    if lack := find_shortage(processes):
        return Lack(f"no room for another process: {lack}", "when there is room")
    return None


def require_room(processes: int = MIN_PROCESSES) -> None:
    """Raise Shortage if the machine lacks what a start needs."""
    if lack := find_lack(processes):
        raise Shortage(f"{lack.what}; it starts {lack.ends}")


def retry_pause(number: int) -> float:
    """Return the seconds before the start that met its `number`-th shortage in a row is tried again. Pure."""
    return Backoff(PAUSE, LONGEST_PAUSE).delay(number)


def _processes_left(proc: Path, cgroups: Path) -> int | None:
    """Return how many more processes our cgroup and its parents allow; None: no limit is known."""
    left: list[int] = []
    try:
        lines = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in lines:
        if controllers and "pids" not in controllers.split(","):
            continue
        base = cgroups / "pids" if controllers else cgroups
        group = base / path.strip("/")
        for folder in (group, *group.parents):
            if folder != base and base not in folder.parents:
                break
            try:
                left.append(int((folder / "pids.max").read_text()) - int((folder / "pids.current").read_text()))
            except (OSError, ValueError):  # `max`, or no such file
                continue
    return max(0, min(left)) if left else None

