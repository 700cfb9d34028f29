"""In-memory process table, for simulations and tests. Passes the contract suite of the real one."""

from __future__ import annotations

import signal as signals
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from garrison.system.process_control import select_targets
from garrison.system.processes import MARKER, Child, PidScope, ProcessId, ProcessInfo, ProcessRow
from garrison.values import replace


class MemoryProcesses:
    """Process table in memory that follows the rules of the real one.

    `ours` is the caller's own pid. `exit` ends a process, `add` adds one that we did not spawn, `reboot` ends all and
    changes the boot id. `on_spawn` is called with each Child, its argv and env.
    """

    def __init__(self, where: PidScope | None = None, ours: int = 100) -> None:
        self._where = where or PidScope("memory", "boot-1", "pid:[1]")
        self._boots = 1
        self._tick = 1000
        self._next = ours
        self._rows: dict[int, ProcessRow] = {}
        self._zombies: dict[int, tuple[ProcessInfo, int]] = {}
        self._stopped: set[int] = set()
        self.cpu: dict[int, int] = {}
        """Clock ticks that a process used, set by the test."""
        self.ours = self.add(marker=None, ppid=1, comm="python").pid
        self.on_spawn: Callable[[Child, list[str], dict[str, str]], None] | None = None

    def add(self, *, marker: str | None, ppid: int, comm: str = "command") -> ProcessId:
        """Add a process; pids and ticks only grow."""
        row = ProcessRow(self._next, self._tick, ppid, comm, marker)
        self._next += 1
        self._tick += 1
        self._rows[row.pid] = row
        return row.id

    def exit(self, pid: int, code: int = 0) -> None:
        """End `pid` with `code`; our child stays as a zombie until reaped, its own children become pid 1's."""
        row = self._rows.pop(pid)
        for other in list(self._rows.values()):
            if other.ppid == pid:
                self._rows[other.pid] = replace(other, ppid=1)
        if row.ppid == self.ours:
            self._zombies[pid] = (ProcessInfo(pid, row.ticks, True, row.ppid, row.comm), code)

    def reboot(self) -> None:
        """End all processes and change the boot id; the caller starts again under a new pid."""
        self._boots += 1
        self._where = replace(self._where, boot_id=f"boot-{self._boots}")
        self._rows.clear()
        self._zombies.clear()
        self.ours = self.add(marker=None, ppid=1, comm="python").pid

    def here(self) -> PidScope:
        return self._where

    def probe(self, pid: int) -> ProcessInfo | None:
        """Return what is known of `pid`."""
        if pid in self._zombies:
            return self._zombies[pid][0]
        row = self._rows.get(pid)
        if row is None:
            return None
        return ProcessInfo(pid, row.ticks, False, row.ppid, row.comm, state="T" if pid in self._stopped else "S",
                           cpu=self.cpu.get(pid, 0))

    def is_running(self, pid: int, ticks: int) -> bool:
        process = self.probe(pid)
        return process is not None and process.ticks == ticks and not process.zombie

    def find_marked(self, marker: str) -> list[ProcessId]:
        return [row.id for row in self._rows.values() if marker and row.marker == marker]

    def group_by_marker(self, markers: Collection[str]) -> dict[str, list[ProcessId]]:
        found = {marker: self.find_marked(marker) for marker in markers}
        return {marker: marked for marker, marked in found.items() if marked}

    def descendants(self, pid: int, marker: str) -> list[ProcessInfo]:
        children = [row.pid for row in self._rows.values() if row.ppid == pid and row.marker in (None, marker)]
        probes = [probe for child in children if (probe := self.probe(child)) is not None]
        return probes + [process for child in children for process in self.descendants(child, marker)]

    def send(self, pid: int, ticks: int, signal: int) -> bool:
        """End it at once for TERM and KILL, stop or continue it for STOP and CONT, ignore any other signal."""
        row = self._rows.get(pid)
        if row is None or row.ticks != ticks:
            return False
        if signal in (signals.SIGTERM, signals.SIGKILL):
            self.exit(pid, -signal)
        elif signal == signals.SIGSTOP:
            self._stopped.add(pid)
        elif signal == signals.SIGCONT:
            self._stopped.discard(pid)
        return True

    def kill_tree(self, root: ProcessId | None, marker: str, *, grace: float = 5.0) -> list[ProcessId]:
        """End an incarnation by the rule of the real one."""
        targets = select_targets(root, marker, self._rows.values(), caller=self.ours)
        for target in targets:
            self.send(target.pid, target.ticks, signals.SIGTERM if grace > 0 else signals.SIGKILL)
        return sorted(targets)

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Child:
        """Add a child with the marker that `env` gives it."""
        process = self.add(marker=env.get(MARKER), ppid=self.ours, comm=Path(argv[0]).name[:15])
        child = Child(process.pid, process.ticks, -1)
        if self.on_spawn is not None:
            self.on_spawn(child, list(argv), dict(env))
        return child

    start = spawn

    def reap(self) -> dict[int, int]:
        """Collect children of ours that ended."""
        collected = {pid: code for pid, (_, code) in self._zombies.items()}
        self._zombies.clear()
        return collected
