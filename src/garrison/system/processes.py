"""Processes of this machine: identify, find and signal them; start, collect and adopt our own children.

A process is (pid, start ticks): field 22 of /proc/PID/stat, which neither a clock step nor a recycled pid can fake. It
is signalled only through a pidfd that was verified against its start ticks. A zombie counts as dead. /proc is read
here: psutil gives no start ticks, is slower for markers, and costs 9 ms to list processes once.

A child of `spawn` is collected only by `reap` or `exit_code`; its pid is not reused until then.
"""

from __future__ import annotations

import os
import select
import signal as signals
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from garrison.errors import GarrisonError, Shortage
from garrison.system.machine import is_shortage
from garrison.values import Value

if TYPE_CHECKING:
    import socket
    import subprocess
    from asyncio.subprocess import Process as AsyncioProcess
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
"""Clock ticks per second, the kernel's unit of CPU times and start times."""
MARKER = "GARRISON_LIFE"
"""Environment variable that names the incarnation a process belongs to."""
LISTINGS = 50
"""Bound on the listings of one scan: a machine that forks faster than we read must not keep us reading forever."""


class ProcessId(Value, frozen=True, order=True):
    """Identity of a process: its pid, and its start in clock ticks since boot."""

    pid: int
    ticks: int


class ProcessInfo(Value):
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
    """CPU clock ticks, including those of collected children."""

    @property
    def id(self) -> ProcessId:
        return ProcessId(self.pid, self.ticks)


class ProcessRow(Value):
    """A living process, as `process_control.select_targets` sees it; `marker` is its incarnation, None if none."""

    pid: int
    ticks: int
    ppid: int
    comm: str
    marker: str | None
    session: int = 0

    @property
    def id(self) -> ProcessId:
        return ProcessId(self.pid, self.ticks)


class PidScope(Value):
    """Scope of a pid: pids are comparable only within the same host, boot and pid namespace."""

    host: str
    boot_id: str
    pid_ns: str


# --- this host --------------------------------------------------------------------------------------------------------


def this_host() -> PidScope:
    """Return the host, boot and pid namespace of this process."""
    return PidScope(os.uname().nodename, boot_id(),
                    os.readlink("/proc/self/ns/pid"))  # noqa: PTH115  # not a path: pid:[…]


def boot_id() -> str:
    """Return the kernel's id of this boot; a test sets GARRISON_BOOT_ID to simulate a reboot."""
    return os.environ.get("GARRISON_BOOT_ID") or read_kernel_file("/proc/sys/kernel/random/boot_id").decode().strip()


def same_boot(recorded: str) -> bool:
    """Return whether a pid recorded under that boot id is still valid; a record without a boot id counts as valid."""
    return recorded in ("", boot_id())


# --- one process ------------------------------------------------------------------------------------------------------


def probe(pid: int) -> ProcessInfo | None:
    """Return what is known about `pid` now; None if there is no such process."""
    if pid <= 0:
        return None
    try:
        return parse_stat(read_kernel_file(f"/proc/{pid}/stat"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def parse_stat(raw: bytes) -> ProcessInfo:
    """Parse one /proc/PID/stat. The name may contain spaces and parentheses, so fields count from the last `)`.

    A leader whose other threads are alive also shows as Z; it is dead only when it is the last thread.
    """
    opened, closed = raw.index(b"("), raw.rindex(b")")
    fields = raw[closed + 2:].split()
    dead = fields[0] in (b"X", b"x") or (fields[0] == b"Z" and int(fields[17]) <= 1)
    return ProcessInfo(pid=int(raw[:opened]), ticks=int(fields[19]), zombie=dead, ppid=int(fields[1]),
                       comm=raw[opened + 1:closed].decode(errors="replace"), session=int(fields[3]),
                       state=fields[0].decode(), cpu=sum(map(int, fields[11:15])))


def is_running(pid: int, ticks: int) -> bool:
    """Return whether exactly that process runs; a zombie does not."""
    process = probe(pid)
    return process is not None and process.ticks == ticks and not process.zombie


def life_marker(pid: int) -> str | None:
    """Return the life marker in a process's environment; None if it has none, has ended or may not be read."""
    try:
        environ = read_kernel_file(f"/proc/{pid}/environ")
    except OSError:
        return None
    # psutil builds a Process and a dict for each: 13 ms for 350 processes, this takes 4; each gate run reads them
    # twice.
    value = (b"\0" + environ).partition(f"\0{MARKER}=".encode())[2]
    return value.partition(b"\0")[0].decode(errors="surrogateescape") or None


def open_verified(pid: int, ticks: int) -> int | None:
    """Return a pidfd (close-on-exec) of exactly that process; None if it has ended or the pid was reused."""
    if pid <= 0:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except (ProcessLookupError, FileNotFoundError):
        return None
    # It was alive after its ticks were read, so they belong to it.
    if is_running(pid, ticks) and not has_ended(pidfd):
        return pidfd
    os.close(pidfd)
    return None


def has_ended(pidfd: int) -> bool:
    """Return whether the process behind a pidfd has ended (it may still be a zombie)."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def signal_group(child: subprocess.Popen[Any] | AsyncioProcess, number: int = signals.SIGKILL) -> None:
    """Signal the group that our own child leads, unless it was collected: until then its pid is not reused."""
    if child.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)


def send(pid: int, ticks: int, signal: int) -> bool:
    """Signal exactly that process through a verified pidfd; False if it is gone, GarrisonError if we may not."""
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
    """Yield every living process with its marker, except those whose pids are in `seen`; add their pids to it.

    /proc is listed again until a listing names no new pid: a process that forks and exits while the others are read
    could be missed by one listing, but its successor is found by a later one, which is short.
    """
    seen = set() if seen is None else seen
    for _ in range(LISTINGS):
        before = last_pid()
        new = [pid for pid in list_pids() if pid not in seen]
        seen.update(new)
        for pid in new:
            if (row := read_row(pid)) is not None:
                yield row
        if not new or -1 != before == last_pid():
            return


def read_row(pid: int) -> ProcessRow | None:
    """Return a living process with its marker; None if there is none."""
    process = probe(pid)
    if process is None or process.zombie:
        return None
    return ProcessRow(pid, process.ticks, process.ppid, process.comm, life_marker(pid), process.session)


def list_pids() -> list[int]:
    """Return the pids of all processes and zombies, by one listing."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208  # names only


def last_pid() -> int:
    """Return the newest pid, which changes with every fork; -1 if the kernel does not report it."""
    try:
        return int(read_kernel_file("/proc/loadavg").split()[4])
    except (OSError, ValueError, IndexError):
        return -1


def read_argv(pid: int) -> list[bytes]:
    """Return the words of a process's command line; [] if it is gone or belongs to another user."""
    try:
        return read_kernel_file(f"/proc/{pid}/cmdline").split(b"\0")
    except OSError:
        return []


def find_marked(marker: str) -> list[ProcessId]:
    """Return the living processes that carry the life marker `marker`; none for an empty one."""
    return [row.id for row in list_processes() if row.marker == marker] if marker else []


def group_by_marker(markers: Collection[str]) -> dict[str, list[ProcessId]]:
    """Return each of these life markers that living processes carry, with the processes, from one listing."""
    found: dict[str, list[ProcessId]] = {}
    for row in list_processes() if markers else ():
        if row.marker is not None and row.marker in markers:
            found.setdefault(row.marker, []).append(row.id)
    return found


def ancestors(pid: int) -> set[int]:
    """Return the pids above `pid`, up to 1."""
    pids: set[int] = set()
    process = probe(pid)
    while process is not None and process.ppid > 0 and process.ppid not in pids:
        pids.add(process.ppid)
        process = probe(process.ppid)
    return pids


def descendants(pid: int, marker: str) -> list[ProcessInfo]:
    """Return the living processes below `pid`, parents first, leaving out other incarnations and tmux with their trees.

    A process that exits during the scan may be missed; to a caller that compares two scans, that is a change.
    """
    tree: list[ProcessInfo] = []
    queue = deque(child_pids(pid))
    while queue:
        info = probe(queue.popleft())
        if info is None or info.zombie or is_tmux(info.comm):
            continue
        if life_marker(info.pid) in (None, marker):
            tree.append(info)
            queue.extend(child_pids(info.pid))
    return tree


def child_pids(pid: int) -> list[int]:
    """Return the pids of the children of all threads of `pid`.

    The kernel lists them (CONFIG_PROC_CHILDREN); psutil, which reads every process for it, is the fallback.
    """
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  # names only
            pids += map(int, read_kernel_file(f"/proc/{pid}/task/{thread}/children").split())
    except OSError as error:  # the process, or one of its threads, has ended; or the kernel does not list them
        own = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
        is_listed = not isinstance(error, FileNotFoundError) or os.path.exists(own)  # noqa: PTH110
    else:
        is_listed = True
    if is_listed:
        return pids
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def cpu_fingerprint(pid: int, marker: str) -> frozenset[tuple[int, int, tuple[str, ...]]] | None:
    """Return a value that changes when a descendant has run for an instant; None if the kernel does not count it.

    (pid, start ticks, nanoseconds that each thread has run): clock ticks would not show a short write.
    """
    try:
        return frozenset((info.pid, info.ticks, _thread_times(info.pid)) for info in descendants(pid, marker))
    except OSError:
        return None


def _thread_times(pid: int) -> tuple[str, ...]:
    threads = sorted(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208  # names only
    files = {thread: read_kernel_file(f"/proc/{pid}/task/{thread}/schedstat") for thread in threads}
    return tuple(f"{thread} {content.split()[0].decode()}" for thread, content in files.items())


def is_container_monitor(row: ProcessRow) -> bool:
    """Return whether a process belongs to a container engine and outlives the container to remove it: it exits by
    itself."""
    return row.comm == "conmon" or (row.comm == "podman" and row.marker is None)


def is_tmux(comm: str) -> bool:
    return comm == "tmux" or comm.startswith("tmux:")


def is_sandbox(pid: int) -> bool:
    """Return whether a process is bubblewrap itself, which keeps a sandbox and exits when its content has.

    TERM kills it, and its content with it by KILL: to end its content gracefully, leave it out.
    """
    try:
        return read_kernel_file(f"/proc/{pid}/comm") == b"bwrap\n"
    except OSError:
        return False


def read_kernel_file(path: str | Path) -> bytes:
    """Return the content of a file in /proc or /sys, which the kernel generates at each read."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # unbuffered, thousands of times a minute
        return file.read()


# --- our children -----------------------------------------------------------------------------------------------------

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_WNOTHREAD = 0x20000000
"""Flag of wait: no children of other threads (`waitpid(2)`, `__WNOTHREAD`)."""


class Child(Value):
    """A process we started; `pidfd` is ours to close (-1: none) and becomes readable when it ends."""

    pid: int
    ticks: int
    pidfd: int

    @property
    def id(self) -> ProcessId:
        return ProcessId(self.pid, self.ticks)

    def close(self) -> None:
        """Close the pidfd; the process is not touched."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            msgspec.structs.force_setattr(self, "pidfd", -1)


_codes: dict[int, tuple[int, int]] = {}
"""Start ticks and exit codes of spawned children that were collected, by pid."""
_spawned: dict[int, int] = {}
"""Our spawned children that have not been reaped: pid → start ticks."""


def spawn(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path,
          extra_fds: Sequence[int] = (), subreaper: bool = False, stdin: int | None = None,
          stdout: Path | None = None) -> Child:
    """Start a child: own session, exactly `env`, stdin empty, stdout and stderr appended to `log` (made 0600).

    `stdin` is a descriptor to read instead of nothing, `stdout` its own file for stdout.

    GarrisonError if the program or the directory is missing, Shortage if the machine has no room for it. The child is
    collected by `reap` or `exit_code`. A `subreaper` child becomes the parent of every orphan below it while it lives.
    """
    import subprocess  # script commands do not spawn, and need not load it

    outputs = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
               for path in ((log,) if stdout is None else (log, stdout))]
    try:
        process = subprocess.Popen(
            list(argv), env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=outputs[-1], stderr=outputs[0],
            start_new_session=True, close_fds=True, pass_fds=tuple(extra_fds),
            preexec_fn=_subreaper_setter() if subreaper else None)  # noqa: PLW1509  # one system call, no lock
    except OSError as error:
        if is_shortage(error):
            raise Shortage(f"no room to start {argv[0]}: {error.strerror}; it is tried again") from error
        raise GarrisonError(f"cannot start {argv[0]} in {cwd}: {error.strerror}; check the program and the "
                            "directory") from error
    finally:
        for output in outputs:
            os.close(output)
    process.returncode = 0  # it is collected here; Popen need not wait for it
    return adopt_child(process.pid)


def adopt_child(pid: int) -> Child:
    """Register a child that this process has just started, to be collected like those of `spawn`; return it."""
    child = probe(pid)  # not reaped yet, so the pid is not reused
    assert child is not None
    _codes.pop(pid, None)
    _spawned[pid] = child.ticks
    return Child(pid, child.ticks, os.pidfd_open(pid))


def forget_children() -> None:
    """Forget the children of the process that this one was forked from."""
    global _adopting  # noqa: PLW0603  # as in `become_subreaper`
    _codes.clear()
    _spawned.clear()
    _adopting = False


def send_descriptors(channel: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    """Send data with descriptors, despite the user's limit on descriptors in flight: agents may have many."""
    import resource
    from socket import send_fds  # script commands do not need it

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    try:
        send_fds(channel, [data], list(descriptors))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def reap() -> dict[int, int]:
    """Collect the children of `spawn` and orphans that have ended: pid → exit code, negative for a signal.

    For the main thread: Linux gives it the orphans. Children of other threads are left to them: a `subprocess` call
    whose child is collected elsewhere would report success. `exit_code` still answers for spawned children afterwards.
    """
    assert threading.current_thread() is threading.main_thread()
    collected = {pid: code for pid in list(_spawned) if (code := exit_code(pid)) is not None}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | _WNOTHREAD)
        except ChildProcessError:
            break
        if pid == 0:
            break
        collected[pid] = os.waitstatus_to_exitcode(status)
    return collected


def exit_code(pid: int, ticks: int | None = None) -> int | None:
    """Return how a child of `spawn` ended (negative: a signal); None while it runs, or if it was collected elsewhere.

    With `ticks` only for the child that started then: its pid may be reused by now.
    """
    if pid in _spawned:
        try:
            waited, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            _spawned.pop(pid, None)
            return None
        if waited:
            _codes[pid] = _spawned.pop(pid), os.waitstatus_to_exitcode(status)
    began, code = _codes.get(pid, (None, None))
    return code if ticks in (None, began) else None


def adopted(rows: Iterable[ProcessRow]) -> list[ProcessId]:
    """Return our children without a marker that we did not start: orphans of one of our programs that ended.

    Empty unless `become_subreaper(adopting=True)` was called: other children may not be ours to kill.
    """
    pid = os.getpid()
    return [row.id for row in rows
            if _adopting and row.ppid == pid and row.marker is None and row.pid not in _spawned]


def die_with_parent() -> None:
    """Receive SIGTERM when the parent dies, or now if it is already gone."""
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signals.SIGTERM, 0, 0, 0)
    # It may have died before the kernel processed the request.
    if os.getppid() != parent:
        os.kill(os.getpid(), signals.SIGTERM)


def _subreaper_setter() -> Callable[[], object]:
    """Return a function that makes the calling process a subreaper; execve keeps that, fork does not."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl  # looked up here: nothing may be imported between fork and exec
    return lambda: prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


_adopting = False
"""Set if every orphan that becomes our child comes from a process we started."""


def become_subreaper(*, adopting: bool = False) -> None:
    """Make orphans below us our children, so that `reap` collects them.

    With `adopting` they are also ours to kill (see `adopted`): only for a process that started without children.
    """
    import ctypes

    global _adopting  # noqa: PLW0603  # a process is a subreaper as a whole
    _adopting = adopting

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise GarrisonError(f"cannot become a subreaper: {os.strerror(ctypes.get_errno())}; garrison needs Linux ≥ 3.4")
