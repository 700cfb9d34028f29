"""Processes behind one seam: looking is done by `procfs`, starting and collecting by `children`, and signalling here.

A process is signalled only through a pidfd whose start ticks were verified. Light: cron's doors load this file. Ending
a life by force is in `ending`, a world in memory for tests and simulations in `memory`.
"""

from __future__ import annotations

import os
import select
import signal as signals
import time

from garrison.errors import GarrisonError
from garrison.system.children import Child, adopted, become_subreaper, exit_code, reap, spawn
from garrison.system.process_table import (
    MARKER,
    Probe,
    ProcessId,
    Row,
    Where,
    ancestors,
    bearers,
    boot_id,
    descendants,
    forks,
    host,
    is_dead,
    listed_to_the_last,
    living,
    marker,
    parse_stat,
    pid_namespace,
    probe,
    probes,
    same_boot,
    stats,
    table,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Protocol

    from garrison.system.census import Census
else:
    Protocol = object

__all__ = [
    "MARKER", "Child", "Probe", "ProcessId", "Processes", "RealProcesses", "Row", "Where", "adopted", "ancestors",
    "bearers", "become_subreaper", "boot_id", "descendants", "ended", "exit_code", "forks", "host", "is_dead",
    "listed_to_the_last", "living", "marker", "open_verified", "parse_stat", "pid_namespace", "probe", "probes", "reap",
    "same_boot", "send", "spawn", "stats", "table",
]


class Processes(Protocol):
    """What supervision needs of the process world."""

    def here(self) -> Where:
        """Where this process runs."""
        ...

    def probe(self, pid: int) -> Probe | None:
        """What is known of `pid` now; None if there is no such process."""
        ...

    def living(self, pid: int, ticks: int) -> bool:
        """Whether that very process runs; a zombie does not."""
        ...

    def bearers(self, life: str) -> list[ProcessId]:
        """Living processes that bear the marker `life`."""
        ...

    def below(self, pid: int, life: str) -> list[Probe]:
        """Living processes below `pid` that bear the marker `life` or none; cut at other lives."""
        ...

    def send(self, pid: int, ticks: int, signal: int) -> bool:
        """Signal that very process; False if it is gone."""
        ...

    def sweep(self, root: ProcessId | None, life: str, *, grace: float = 5.0) -> list[ProcessId]:
        """End a life by force; returns whom it ended. GarrisonError if somebody would not die."""
        ...

    def remember(self) -> None:
        """Get to know, in a quiet moment, who need not be looked at by a later `kill_tree`; asked too often, it is no
        matter."""
        ...

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Child:
        """Start a child in its own session with exactly `env`, its output appended to `log`."""
        ...

    def reap(self) -> dict[int, int]:
        """Collect children that ended: pid → exit code, negative for a signal."""
        ...


def open_verified(pid: int, ticks: int) -> int | None:
    """A pidfd (close-on-exec) of that very process; None if it has ended or the pid is another's."""
    if pid <= 0:
        return None
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, FileNotFoundError):
        return None
    # Alive after the ticks were read: so the pid was its own while they were.
    if living(pid, ticks) and not ended(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def ended(pidfd: int) -> bool:
    """Whether the process behind a pidfd has ended (it may still be a zombie)."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def send(pid: int, ticks: int, signal: int) -> bool:
    """Signal that very process through a verified pidfd; False if it is gone. GarrisonError if we may not."""
    descriptor = open_verified(pid, ticks)
    if descriptor is None:
        return False
    try:
        signals.pidfd_send_signal(descriptor, signal)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise GarrisonError(f"process {pid} belongs to another user; end it by hand") from error
    finally:
        os.close(descriptor)
    return True


class RealProcesses:
    """The machine's processes, behind the seam."""

    def __init__(self) -> None:
        self._census: Census | None = None

    def here(self) -> Where:
        """Where this process runs."""
        return Where(host(), boot_id(), pid_namespace())

    def probe(self, pid: int) -> Probe | None:
        """See `probe`."""
        return probe(pid)

    def living(self, pid: int, ticks: int) -> bool:
        """See `living`."""
        return living(pid, ticks)

    def bearers(self, life: str) -> list[ProcessId]:
        """See `bearers`."""
        return bearers(life)

    def below(self, pid: int, life: str) -> list[Probe]:
        """See `tree.below`."""
        from garrison.system.process_table import below  # it builds on this file

        return below(pid, life)

    def send(self, pid: int, ticks: int, signal: int) -> bool:
        """See `send`."""
        return send(pid, ticks, signal)

    def sweep(self, root: ProcessId | None, life: str, *, grace: float = 5.0) -> list[ProcessId]:
        """See `ending.sweep`."""
        from garrison.system.kill_tree import kill_tree  # it builds on this file, and cron's doors never end anybody

        return kill_tree(root, life, grace=grace, census=self._census)

    def remember(self) -> None:
        """See `census`."""
        from garrison.system.census import Census  # it builds on this file

        if self._census is None:
            self._census = Census()
        self._census.take(time.monotonic())

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Child:
        """See `spawn`."""
        return spawn(argv, env=env, cwd=cwd, log=log)

    def reap(self) -> dict[int, int]:
        """See `reap`."""
        return reap()
