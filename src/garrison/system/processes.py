"""Processes of this machine behind one seam, which simulations and tests replace by an in-memory double.

Finding and signalling is in `process_table`, starting and collecting children in `children`, ending a process tree in
`kill_tree`; what other rooms use of the first two can be imported from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from garrison.system.children import Child, adopted, become_subreaper, exit_code, reap, spawn
from garrison.system.kill_tree import kill_tree
from garrison.system.process_table import (
    MARKER,
    Host,
    ProcessId,
    ProcessInfo,
    ProcessRow,
    ancestors,
    boot_id,
    descendants,
    find_marked,
    has_ended,
    is_running,
    life_marker,
    list_processes,
    open_verified,
    parse_stat,
    probe,
    same_boot,
    send,
    this_host,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = [
    "MARKER", "Child", "Host", "ProcessId", "ProcessInfo", "ProcessRow", "Processes", "RealProcesses", "adopted",
    "ancestors", "become_subreaper", "boot_id", "descendants", "exit_code", "find_marked", "has_ended", "is_running",
    "kill_tree", "life_marker", "list_processes", "open_verified", "parse_stat", "probe", "reap", "same_boot", "send",
    "spawn", "this_host",
]


class Processes(Protocol):
    """Operations on processes that supervision needs."""

    def here(self) -> Host:
        """Return the host, boot and pid namespace of this process."""
        ...

    def probe(self, pid: int) -> ProcessInfo | None:
        """Return what is known of `pid` now; None if there is no such process."""
        ...

    def is_running(self, pid: int, ticks: int) -> bool:
        """Return whether that very process runs; a zombie does not."""
        ...

    def find_marked(self, marker: str) -> list[ProcessId]:
        """Return the living processes that carry the life marker `life_marker`."""
        ...

    def descendants(self, pid: int, marker: str) -> list[ProcessInfo]:
        """Return the living processes below `pid` that carry `life_marker` or none; cut at other incarnations."""
        ...

    def send(self, pid: int, ticks: int, signal: int) -> bool:
        """Signal that very process; False if it is gone."""
        ...

    def kill_tree(self, root: ProcessId | None, marker: str, *, grace: float = 5.0) -> list[ProcessId]:
        """End an incarnation by force; return what was signalled. GarrisonError if a process does not die."""
        ...

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Child:
        """Start a child in its own session with exactly `env`, its output appended to `log`."""
        ...

    def reap(self) -> dict[int, int]:
        """Collect children that ended: pid → exit code, negative for a signal."""
        ...


class RealProcesses:
    """The machine's processes."""

    here = staticmethod(this_host)
    probe = staticmethod(probe)
    is_running = staticmethod(is_running)
    find_marked = staticmethod(find_marked)
    descendants = staticmethod(descendants)
    send = staticmethod(send)
    kill_tree = staticmethod(kill_tree)
    spawn = staticmethod(spawn)
    reap = staticmethod(reap)
