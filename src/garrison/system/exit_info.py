"""Exit info: find out how a process ended, and describe it.

A process must be watched before it ends. From Linux 6.15 on, a pidfd opened before the end gives the exit status of any
process (PIDFD_GET_INFO); earlier, only of our own children. The kernel counts out-of-memory kills per cgroup (v2
`memory.events`, v1 `memory.oom_control`) and for the machine (/proc/vmstat): a count that grew is no proof, which the
description mentions.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.ends import End, EndKind
from garrison.system import processes

if TYPE_CHECKING:
    from collections.abc import Iterable


CGROUPS = Path("/sys/fs/cgroup")
VMSTAT = Path("/proc/vmstat")
_REAPED_MS = 50
"""Milliseconds for the parent to collect an ended process; the kernel does not give its status earlier."""
MAX_WATCHED = 128
"""Number of watched processes from which ended ones are forgotten."""
_GET_INFO = 0xC040FF0B
"""_IOWR(0xFF, 11, struct pidfd_info) of 64 bytes."""
_WANT_EXIT = 1 << 3
_INFO = struct.Struct("=QQ11Ii")


class ExitMonitor:
    """Watches running processes to report how they ended."""

    def __init__(self, cgroups: Path = CGROUPS, vmstat: Path = VMSTAT, max_watched: int = MAX_WATCHED) -> None:
        self._cgroups, self._vmstat, self._max_watched = cgroups, vmstat, max_watched
        self._pidfds: dict[tuple[int, int], int] = {}
        self._counts: dict[tuple[int, int], tuple[Path | None, int | None]] = {}

    def watch(self, pid: int, ticks: int) -> None:
        """Watch a process from now on; do nothing if it has ended."""
        self.watch_all([(pid, ticks)])

    def watch_all(self, watched: Iterable[tuple[int, int]]) -> None:
        """Watch each (pid, start ticks); a shared counter is read once (a new guardian watches a hundred)."""
        counters: dict[str, tuple[Path | None, int | None]] = {}
        for process in watched:
            if process not in self._counts:
                self._watch(process, counters)

    def _watch(self, process: tuple[int, int], counters: dict[str, tuple[Path | None, int | None]]) -> None:
        if len(self._pidfds) >= self._max_watched:
            for other in [other for other, pidfd in self._pidfds.items() if processes.has_ended(pidfd)]:
                self.forget(*other)
        pidfd = processes.open_verified(*process)
        if pidfd is None:
            return
        self._pidfds[process] = pidfd
        group = cgroup_of(process[0])
        if group not in counters:
            counters[group] = _nearest_counter(group, self._cgroups, self._vmstat)
        self._counts[process] = counters[group]

    def exit_code(self, pid: int, ticks: int) -> int | None:
        """Return its exit code, negative for a signal; None if unknown."""
        code = processes.exit_code(pid, ticks)
        pidfd = self._pidfds.get((pid, ticks))
        return read_exit_code(pidfd) if code is None and pidfd is not None else code

    def out_of_memory(self, pid: int, ticks: int) -> bool:
        """Return whether the kernel's count of out-of-memory kills has grown since the process is watched."""
        counter, before = self._counts.get((pid, ticks), (None, None))
        after = oom_kills(counter)
        return before is not None and after is not None and after > before

    def forget(self, pid: int, ticks: int) -> None:
        """Stop watching a process."""
        self._counts.pop((pid, ticks), None)
        pidfd = self._pidfds.pop((pid, ticks), None)
        if pidfd is not None:
            os.close(pidfd)


def read_exit_code(pidfd: int) -> int | None:
    """Return the status of the ended process behind a pidfd, whoever its parent is; None if it is unknown."""
    poller = select.poll()
    poller.register(pidfd, 0)  # POLLHUP is always reported: the process was collected
    poller.poll(_REAPED_MS)
    buffer = bytearray(_INFO.pack(_WANT_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, buffer)
    except OSError:  # no such call before Linux 6.13, and no status of an uncollected process
        return None
    mask, *_, status = _INFO.unpack(buffer)
    return os.waitstatus_to_exitcode(status) if mask & _WANT_EXIT else None


def cgroup_of(pid: int) -> str:
    """Return /proc/PID/cgroup of `pid`, '' if it is gone."""
    try:
        return os.fsdecode(processes.read_kernel_file(f"/proc/{pid}/cgroup"))
    except OSError:
        return ""


def oom_counter(group: str, cgroups: Path = CGROUPS, vmstat: Path = VMSTAT) -> Path | None:
    """Return the file that counts out-of-memory kills nearest to `group` (`cgroup_of`), else the machine's."""
    return _nearest_counter(group, cgroups, vmstat)[0]


def _nearest_counter(group: str, cgroups: Path, vmstat: Path) -> tuple[Path | None, int | None]:
    """Return the file that counts out-of-memory kills nearest to `group`, and its count."""
    for line in group.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            place = cgroups / path.strip("/") / "memory.events"
        elif "memory" in controllers.split(","):
            place = cgroups / "memory" / path.strip("/") / "memory.oom_control"
        else:
            continue
        if (count := oom_kills(place)) is not None:
            return place, count
    count = oom_kills(vmstat)
    return (None if count is None else vmstat), count


def oom_kills(counter: Path | None) -> int | None:
    """Return the `oom_kill` count in a counter's file; None if there is none."""
    if counter is None:
        return None
    try:
        text = b"\n" + processes.read_kernel_file(counter)
        return int(text.partition(b"\noom_kill ")[2].partition(b"\n")[0])
    except (OSError, ValueError):
        return None


def is_tmux_server_gone(server: str) -> bool:
    """Return whether the tmux server of a recorded session (`pid:start time`) is gone; False if none is recorded."""
    pid = server.partition(":")[0]
    if not pid.isdigit():
        return False
    process = processes.probe(int(pid))
    return process is None or process.zombie or not process.comm.startswith("tmux")


ENDING_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM})
"""Signals that are sent to end a process; any other deadly one means a crash."""
_SERVER_DIED = "the tmux server died"


def describe_death(verdict: str, *, code: int | None = None, memory: bool = False, server_died: bool = False) -> str:
    """Return the verdict with what is known about the exit.

    Args:
        code: exit code, negative for a signal, None if unknown.
        memory: the kernel has killed something for lack of memory since.
        server_died: the tmux server of its session is gone.
    """
    if server_died:
        return f"{_SERVER_DIED}; {verdict}"
    return f"{verdict}: {how}" if (how := describe_end(End(code), memory=memory)) else verdict


def describe_end(end: End, *, memory: bool = False) -> str:
    """Describe an end by its exit code; empty if it is unknown. `memory`: the kernel killed something for lack of
    memory."""
    code = end.code
    if memory and (end.kind is EndKind.LOST or end.killed):
        return "killed, probably out of memory (the kernel's count of such kills grew)"
    if code is None:
        return ""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


_LONGEST_COMMAND = 80
"""Characters of a command that a reason quotes."""


def quote_command(command: str) -> str:
    """Return a command for a reason: its first line in backquotes, shortened."""
    line = command.strip().partition("\n")[0]
    is_short = line == command.strip() and len(line) <= _LONGEST_COMMAND
    return f"`{line if is_short else line[:_LONGEST_COMMAND] + '…'}`"


def describe_failure(what: str, end: End, output: str, *, hint: str = "") -> str:
    """Return why a command failed: `acceptance `make test` failed (exit 1): two tests`, then the whole of a longer
    output.

    The first line includes the last printed one: programs start with what they are and end with why they failed.

    Args:
        what: purpose and `quote_command` of the command.
        output: the last lines that it printed.
        hint: what to do, appended to the first line.
    """
    if end.timed_out:
        how = f"timed out after {end.seconds:.0f} s"
    elif end.code is not None and end.code < 0:
        how = f"was {describe_end(end)}"
    else:
        how = f"failed (exit {end.code})"
    lines = output.strip().splitlines()
    last = next((line.strip() for line in reversed(lines) if any(map(str.isalnum, line))), "it printed nothing")
    rest = "\n".join(["", *lines]) if len(lines) > 1 else ""
    return f"{what} {how}: {last}{hint}{rest}"


def describe_hangup(*, server_died: bool, has_session: bool) -> str:
    """Describe why an orchestrator ended by SIGHUP: its terminal closed, or the terminal's server died.

    Without a tmux session (its terminal is a plain process), some process sent it the signal.
    """
    if not has_session:
        return "it was ended by SIGHUP"
    return _SERVER_DIED if server_died else "its tmux session was closed"
