"""Process table: identify, find and signal processes.

A process is (pid, start ticks): field 22 of /proc/PID/stat, which neither a clock step nor a recycled pid can fake. It
is signalled only through a pidfd that was verified against its start ticks. A zombie counts as dead. psutil lists
processes; the stat line is read here, because psutil does not give the start ticks, and so is the marker, for speed.
"""

from __future__ import annotations

import os
import select
import signal as signals
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from garrison.errors import GarrisonError

MARKER = "GARRISON_LIFE"
"""Environment variable that names the incarnation a process belongs to."""
LISTINGS = 50
"""Bound on the listings of one scan: a machine that forks faster than we read must not keep us reading for ever."""


@dataclass(frozen=True, order=True)
class ProcessId:
    """One process for ever: its pid, and its start in clock ticks since boot."""

    pid: int
    ticks: int


@dataclass(frozen=True)
class ProcessInfo:
    """Fields of /proc/PID/stat."""

    pid: int
    ticks: int
    zombie: bool
    ppid: int
    comm: str
    session: int = 0
    state: str = ""
    """R running, S and I waiting, D blocked in the kernel, T stopped, t traced; '' unknown."""
    cpu: int = 0
    """Clock ticks of CPU it used, including those of the children it collected."""

    @property
    def id(self) -> ProcessId:
        """(pid, ticks)."""
        return ProcessId(self.pid, self.ticks)


@dataclass(frozen=True)
class ProcessRow:
    """A living process as `kill_tree.select_targets` sees it; `marker` is its incarnation, None if it has none."""

    pid: int
    ticks: int
    ppid: int
    comm: str
    marker: str | None
    session: int = 0

    @property
    def id(self) -> ProcessId:
        """(pid, ticks)."""
        return ProcessId(self.pid, self.ticks)


@dataclass(frozen=True)
class Host:
    """Scope of a pid: pids compare only within the same host, boot and pid namespace."""

    host: str
    boot_id: str
    pid_ns: str


# --- where we are -----------------------------------------------------------------------------------------------------


def this_host() -> Host:
    """Return the host, boot and pid namespace of this process."""
    return Host(os.uname().nodename, boot_id(), os.readlink("/proc/self/ns/pid"))  # noqa: PTH115  # no path: pid:[…]


def boot_id() -> str:
    """Return the kernel's id of this boot; a test sets GARRISON_BOOT_ID to simulate a reboot."""
    return os.environ.get("GARRISON_BOOT_ID") or _read("/proc/sys/kernel/random/boot_id").decode().strip()


def same_boot(recorded: str) -> bool:
    """Return whether a pid recorded under that boot id is still valid; a record without a boot id counts as valid."""
    return recorded in ("", boot_id())


# --- one process ------------------------------------------------------------------------------------------------------


def probe(pid: int) -> ProcessInfo | None:
    """Return what is known of `pid` now; None if there is no such process."""
    if pid <= 0:
        return None
    try:
        return parse_stat(_read(f"/proc/{pid}/stat"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def parse_stat(raw: bytes) -> ProcessInfo:
    """Parse one /proc/PID/stat. The name may hold spaces and parentheses, so fields count from the last `)`.

    A leader whose other threads live on shows as Z too; it is dead only when it is the last thread.
    """
    opened, closed = raw.index(b"("), raw.rindex(b")")
    fields = raw[closed + 2:].split()
    dead = fields[0] in (b"X", b"x") or (fields[0] == b"Z" and int(fields[17]) <= 1)
    return ProcessInfo(pid=int(raw[:opened]), ticks=int(fields[19]), zombie=dead, ppid=int(fields[1]),
                       comm=raw[opened + 1:closed].decode(errors="replace"), session=int(fields[3]),
                       state=fields[0].decode(), cpu=sum(map(int, fields[11:15])))


def is_running(pid: int, ticks: int) -> bool:
    """Return whether that very process runs; a zombie does not."""
    found = probe(pid)
    return found is not None and found.ticks == ticks and not found.zombie


def life_marker(pid: int) -> str | None:
    """Return the life marker in a process's environment; None if it has none, is gone or is not ours to read."""
    try:
        environ = _read(f"/proc/{pid}/environ")
    except OSError:
        return None
    # psutil builds a Process and a dict for each: 13 ms for 350 processes, this 4; every gate run reads them all twice.
    value = (b"\0" + environ).partition(f"\0{MARKER}=".encode())[2]
    return value.partition(b"\0")[0].decode(errors="surrogateescape") or None


def open_verified(pid: int, ticks: int) -> int | None:
    """Return a pidfd (close-on-exec) of that very process; None if it has ended or the pid is another's."""
    if pid <= 0:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except (ProcessLookupError, FileNotFoundError):
        return None
    # Alive after the ticks were read: so the pid was its own while they were.
    if is_running(pid, ticks) and not has_ended(pidfd):
        return pidfd
    os.close(pidfd)
    return None


def has_ended(pidfd: int) -> bool:
    """Return whether the process behind a pidfd has ended (it may still be a zombie)."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def send(pid: int, ticks: int, signal: int) -> bool:
    """Signal that very process through a verified pidfd; False if it is gone, GarrisonError if we may not."""
    pidfd = open_verified(pid, ticks)
    if pidfd is None:
        return False
    try:
        signals.pidfd_send_signal(pidfd, signal)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise GarrisonError(f"process {pid} belongs to another user; end it by hand") from error
    finally:
        os.close(pidfd)
    return True


# --- all processes ----------------------------------------------------------------------------------------------------


def list_processes(seen: set[int] | None = None) -> Iterator[ProcessRow]:
    """Yield every living process with its marker, except those whose pids are in `seen`, to which it adds their pids.

    /proc is listed again until a listing names no new pid: a process that forks and exits while the others are read
    could pass by one listing, but its successor is found in a later one, which is short.
    """
    seen = set() if seen is None else seen
    for _ in range(LISTINGS):
        before = last_pid()
        new = [pid for pid in psutil.pids() if pid not in seen]
        seen.update(new)
        for pid in new:
            found = probe(pid)
            if found is not None and not found.zombie:
                yield ProcessRow(pid, found.ticks, found.ppid, found.comm, life_marker(pid), found.session)
        if not new or -1 != before == last_pid():
            return


def last_pid() -> int:
    """Return the pid given last, which changes with every fork; -1 if the kernel does not tell."""
    try:
        return int(_read("/proc/loadavg").split()[4])
    except (OSError, ValueError, IndexError):
        return -1


def find_marked(marker: str) -> list[ProcessId]:
    """Return the living processes that carry the life marker `marker`; none for an empty one."""
    return [row.id for row in list_processes() if row.marker == marker] if marker else []


def ancestors(pid: int) -> set[int]:
    """Return the pids above `pid`, up to 1."""
    above: set[int] = set()
    found = probe(pid)
    while found is not None and found.ppid > 0 and found.ppid not in above:
        above.add(found.ppid)
        found = probe(found.ppid)
    return above


def descendants(pid: int, marker: str) -> list[ProcessInfo]:
    """Return the living processes below `pid`, parents first, leaving out other incarnations and tmux with their trees.

    A process that exits within the scan may be missed; a caller that compares two scans sees that as a change.
    """
    found: list[ProcessInfo] = []
    queue = deque(child_pids(pid))
    while queue:
        info = probe(queue.popleft())
        if info is None or info.zombie or is_tmux(info.comm):
            continue
        if life_marker(info.pid) in (None, marker):
            found.append(info)
            queue.extend(child_pids(info.pid))
    return found


def child_pids(pid: int) -> list[int]:
    """Return the pids of the children of all threads of `pid`.

    The kernel lists them (CONFIG_PROC_CHILDREN); psutil, which reads every process for it, is the fallback.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  # names only
        return [int(child) for thread in threads for child in _read(f"/proc/{pid}/task/{thread}/children").split()]
    except FileNotFoundError:
        if os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):  # noqa: PTH110
            return []  # the process ended meanwhile
    except OSError:
        return []
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def cpu_fingerprint(pid: int, marker: str) -> frozenset[tuple[int, int, tuple[str, ...]]] | None:
    """Return what changes as soon as a descendant has run for an instant; None where the kernel does not count it.

    (pid, start ticks, nanoseconds that each thread has run): clock ticks would not show a short write.
    """
    try:
        return frozenset((info.pid, info.ticks, _thread_times(info.pid)) for info in descendants(pid, marker))
    except OSError:
        return None


def _thread_times(pid: int) -> tuple[str, ...]:
    threads = sorted(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208  # names only
    return tuple(f"{thread} {_read(f'/proc/{pid}/task/{thread}/schedstat').split()[0].decode()}" for thread in threads)


def is_tmux(comm: str) -> bool:
    """Return whether a process name is a tmux server's or client's."""
    return comm == "tmux" or comm.startswith("tmux:")


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # /proc: unbuffered, thousands of times a minute
        return file.read()
