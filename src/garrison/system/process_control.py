"""Process control: the operations on processes that supervision needs, as one object that a test can replace.

`RealProcesses` acts on this machine; `tests/doubles/processes.py` has an in-memory double that passes the same tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from garrison.system import processes
from garrison.system.kill_tree import kill_tree

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from garrison.system.processes import Child, Host, ProcessId, ProcessInfo


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
        ...

    def group_by_marker(self, markers: Collection[str]) -> dict[str, list[ProcessId]]:
        ...

    def descendants(self, pid: int, marker: str) -> list[ProcessInfo]:
        """Return the living processes below `pid` that carry this marker or none; cut at other incarnations."""
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

    here = staticmethod(processes.this_host)
    probe = staticmethod(processes.probe)
    is_running = staticmethod(processes.is_running)
    find_marked = staticmethod(processes.find_marked)
    group_by_marker = staticmethod(processes.group_by_marker)
    descendants = staticmethod(processes.descendants)
    send = staticmethod(processes.send)
    kill_tree = staticmethod(kill_tree)
    spawn = staticmethod(processes.spawn)
    reap = staticmethod(processes.reap)
