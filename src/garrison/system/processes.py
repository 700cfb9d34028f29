"""Processes: who lives, who descends from whom, starting them, and ending a life by force.

A process is (pid, start ticks): field 22 of /proc/PID/stat, which neither a clock step nor a recycled pid can fake.
It is signalled only through a pidfd whose ticks were verified. A zombie is dead. `doomed` decides whom Replace ends
and is pure over a table; `sweep` acts on it until nobody is left. Light: cron's doors load this file.
"""

from __future__ import annotations

import os
import select
import signal as signals
import time
from collections import deque

from garrison.errors import GarrisonError
from garrison.light import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Protocol
else:
    Protocol = object

MARKER = "GARRISON_LIFE"
"""The environment variable that says whose life a process belongs to."""
_ROUND = 0.25
"""Seconds between two scans while a sweep waits for processes to end."""
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, order=True)
class ProcessId:
    """One process for ever: its pid and its start, in clock ticks since boot."""

    pid: int
    ticks: int


@dataclass(frozen=True)
class Probe:
    """What /proc/PID/stat says."""

    pid: int
    ticks: int
    zombie: bool
    ppid: int
    comm: str
    session: int = 0

    @property
    def id(self) -> ProcessId:
        """(pid, ticks)."""
        return ProcessId(self.pid, self.ticks)


@dataclass(frozen=True)
class Row:
    """A living process in the table that `doomed` decides on; `marker` is its life, None if it bears none."""

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
class Where:
    """Where a pid means something: only same host, boot and pid namespace may compare pids."""

    host: str
    boot_id: str
    pid_ns: str


@dataclass(frozen=True)
class Child:
    """A process we started; `pidfd` is ours to close (-1: none) and becomes readable when it ends."""

    pid: int
    ticks: int
    pidfd: int

    @property
    def id(self) -> ProcessId:
        """(pid, ticks)."""
        return ProcessId(self.pid, self.ticks)

    def close(self) -> None:
        """Close the pidfd; the process is not touched."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            object.__setattr__(self, "pidfd", -1)


class Processes(Protocol):
    """What supervision needs of the process world."""

    def here(self) -> Where:
        """Where this process runs."""
        ...

    def probe(self, pid: int) -> Probe | None:
        """What is known of `pid` now; None if there is no such process."""
        ...

    def bearers(self, life: str) -> list[ProcessId]:
        """Living processes that bear the marker `life`."""
        ...

    def send(self, pid: int, ticks: int, signal: int) -> bool:
        """Signal that very process; False if it is gone."""
        ...

    def sweep(self, root: ProcessId | None, life: str, *, grace: float = 5.0) -> list[ProcessId]:
        """End a life by force; returns whom it ended. GarrisonError if somebody would not die."""
        ...

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Child:
        """Start a child in its own session with exactly `env`, its output appended to `log`."""
        ...

    def reap(self) -> dict[int, int]:
        """Collect children that ended: pid → exit code, negative for a signal."""
        ...


# ---------------------------------------------------------------------------------------------------------- looking


def host() -> str:
    """This machine's name."""
    return os.uname().nodename


def boot_id() -> str:
    """The kernel's id of this boot."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def pid_namespace() -> str:
    """The pid namespace we are in, as `pid:[4026531836]`."""
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115  # light


def probe(pid: int) -> Probe | None:
    """What is known of `pid` now; None if there is no such process."""
    if pid <= 0:
        return None
    try:
        return parse_stat(_read(f"/proc/{pid}/stat"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def parse_stat(raw: bytes) -> Probe:
    """Read one /proc/PID/stat. The name may hold spaces and parentheses, so fields count from the last `)`.

    A leader whose other threads live on shows as Z too; it is dead only when it is the last thread.
    """
    opened, closed = raw.index(b"("), raw.rindex(b")")
    fields = raw[closed + 2:].split()
    dead = fields[0] in (b"X", b"x") or (fields[0] == b"Z" and int(fields[17]) <= 1)
    return Probe(pid=int(raw[:opened]), ticks=int(fields[19]), zombie=dead, ppid=int(fields[1]),
                 comm=raw[opened + 1:closed].decode(errors="replace"), session=int(fields[3]))


def living(pid: int, ticks: int) -> bool:
    """Whether that very process runs; a zombie does not."""
    found = probe(pid)
    return found is not None and found.ticks == ticks and not found.zombie


def marker(pid: int) -> str | None:
    """The life marker in a process's environment; None if it bears none, is gone or is not ours to read."""
    try:
        raw = _read(f"/proc/{pid}/environ")
    except OSError:
        return None
    prefix = MARKER.encode() + b"="
    for item in raw.split(b"\0"):
        if item.startswith(prefix):
            return os.fsdecode(item[len(prefix):]) or None
    return None


def probes() -> list[Probe]:
    """Everybody in /proc, zombies included, in one scan."""
    found = (probe(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208  # light
    return [one for one in found if one is not None]


def table() -> list[Row]:
    """Everybody who lives, with their markers, in one scan."""
    return [Row(one.pid, one.ticks, one.ppid, one.comm, marker(one.pid), one.session)
            for one in probes() if not one.zombie]


def bearers(value: str) -> list[ProcessId]:
    """Living processes that bear the marker `value`; none for an empty value."""
    return [row.id for row in table() if row.marker == value] if value else []


def descendants(pid: int) -> list[ProcessId]:
    """Living processes below `pid` by parentage, `pid` itself not included."""
    children: dict[int, list[Probe]] = {}
    for one in probes():
        children.setdefault(one.ppid, []).append(one)
    found: list[ProcessId] = []
    queue = deque(children.get(pid, ()))
    while queue:
        one = queue.popleft()
        queue.extend(children.get(one.pid, ()))
        if not one.zombie:
            found.append(one.id)
    return found


def ancestors(pid: int) -> set[int]:
    """The pids above `pid`, up to 1; `pid` itself not included."""
    above: set[int] = set()
    found = probe(pid)
    while found is not None and found.ppid > 0 and found.ppid not in above:
        above.add(found.ppid)
        found = probe(found.ppid)
    return above


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
        return b"".join(chunks)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------------------------------------------- signalling


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


# ---------------------------------------------------------------------------------------------------------- replacing


def doomed(root: ProcessId | None, life: str, rows: Iterable[Row], *, caller: int = 0,
           known: Iterable[ProcessId] = (), only_below: bool = False) -> list[ProcessId]:
    """Whom Replace ends, parents first. Pure.

    The process, its descendants that bear no other life's marker (nobody below those that do), all bearers of its own
    marker and what descends from them in the same way. tmux servers, the caller (a pid) and its ancestors are spared,
    and pid 1. `known` are processes doomed in an earlier scan of the same sweep, which may be gone by now: whoever
    was forked in between and bears no other marker is still known by the session that one of them leads.
    `only_below` leaves out the bearers elsewhere: for a part of a life, such as a job that bears its starter's marker.
    """
    by_pid = {row.pid: row for row in rows}
    spared = {1, caller} | _above(caller, by_pid)
    earlier = set(known)
    leaders = {one.pid for one in earlier if one.pid not in by_pid or by_pid[one.pid].ticks == one.ticks}
    first = [row for row in by_pid.values() if row.id == root or row.id in earlier
             or (life and row.marker == life and not only_below)
             or (row.session in leaders and row.marker in (None, life))]
    first.sort(key=lambda row: (row.id != root, row.ticks, row.pid))
    found = _below(first, by_pid, life)
    return [row.id for row in found if row.pid not in spared and not is_tmux(row.comm)]


def _below(first: list[Row], by_pid: Mapping[int, Row], life: str) -> list[Row]:
    """`first` and everybody under them, cut at other lives and at tmux servers (whose panes are not theirs)."""
    children: dict[int, list[Row]] = {}
    for row in by_pid.values():
        children.setdefault(row.ppid, []).append(row)
    queue, seen, found = deque(first), {row.pid for row in first}, []
    while queue:
        row = queue.popleft()
        found.append(row)
        if is_tmux(row.comm):
            continue
        for child in children.get(row.pid, ()):
            if child.pid not in seen and child.marker in (None, life):
                seen.add(child.pid)
                queue.append(child)
    return found


def _above(pid: int, by_pid: Mapping[int, Row]) -> set[int]:
    above: set[int] = set()
    row = by_pid.get(pid)
    while row is not None and row.ppid not in above:
        above.add(row.ppid)
        row = by_pid.get(row.ppid)
    return above


def is_tmux(comm: str) -> bool:
    """Whether a process name is a tmux server's or client's."""
    return comm == "tmux" or comm.startswith("tmux:")


def sweep(root: ProcessId | None, life: str, *, grace: float = 5.0, limit: float = 10.0,
          only_below: bool = False) -> list[ProcessId]:
    """End a life by force: TERM, `grace` seconds, KILL, rescanning until nobody is left. Returns whom it signalled.

    Stopped processes are continued to hear the TERM. Those still there `limit` seconds after the grace (D state,
    another user's) raise GarrisonError with their pids. Zombies count as dead; they are their parents' to reap.
    """
    kill_from = time.monotonic() + grace
    give_up = kill_from + limit
    asked: set[ProcessId] = set()
    while left := doomed(root, life, table(), caller=os.getpid(), known=asked, only_below=only_below):
        now = time.monotonic()
        if now >= give_up:
            pids = ", ".join(str(one.pid) for one in left)
            raise GarrisonError(f"processes {pids} do not die (blocked in the kernel, or another user's); end them "
                                "by hand, then try again")
        deadly = now >= kill_from
        pidfds = [pidfd for one in left if (pidfd := _end(one, deadly, one in asked)) is not None]
        asked.update(left)
        wake = min(now + _ROUND, give_up if deadly else kill_from)
        _wait_all(pidfds, wake)
    return sorted(asked)


def _end(one: ProcessId, deadly: bool, asked: bool) -> int | None:
    """TERM (once) or KILL one process; its verified pidfd to wait on, None if it is gone or not ours."""
    pidfd = open_verified(one.pid, one.ticks)
    if pidfd is None:
        return None
    try:
        if deadly:
            signals.pidfd_send_signal(pidfd, signals.SIGKILL)
        elif not asked:
            signals.pidfd_send_signal(pidfd, signals.SIGTERM)
            signals.pidfd_send_signal(pidfd, signals.SIGCONT)
    except ProcessLookupError:
        pass
    except PermissionError:
        os.close(pidfd)
        time.sleep(_ROUND / 10)  # it stays in the table until the limit; do not spin on it
        return None
    return pidfd


def _wait_all(pidfds: list[int], until: float) -> None:
    """Wait until every pidfd has ended, at most until the monotonic time `until`; close them."""
    poller = select.poll()
    waiting = set(pidfds)
    for pidfd in pidfds:
        poller.register(pidfd, select.POLLIN)
    while waiting and (rest := until - time.monotonic()) > 0:
        for pidfd, _ in poller.poll(rest * 1000):
            poller.unregister(pidfd)
            waiting.discard(pidfd)
    for pidfd in pidfds:
        os.close(pidfd)


# ---------------------------------------------------------------------------------------------------------- starting

_codes: dict[int, int] = {}
"""Exit codes of our spawned children that `reap` collected and nobody has asked for yet."""
_spawned: set[int] = set()
"""Our spawned children that have not been reaped."""


def spawn(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path,
          extra_fds: Sequence[int] = ()) -> Child:
    """Start a child: own session, exactly `env`, stdin empty, stdout and stderr appended to `log` (made 0600).

    GarrisonError if the program or the directory is missing. The child is collected by `reap` or `exit_code`.
    """
    import subprocess  # light doors never spawn

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            list(argv), env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, close_fds=True, pass_fds=tuple(extra_fds))
    except OSError as error:
        raise GarrisonError(f"cannot start {argv[0]} in {cwd}: {error.strerror}; check the program and the "
                            "directory") from error
    finally:
        os.close(output)
    process.returncode = 0  # we wait for it ourselves; Popen need not remember it
    _codes.pop(process.pid, None)
    _spawned.add(process.pid)
    found = probe(process.pid)  # not reaped yet, so the pid is its own
    assert found is not None
    return Child(process.pid, found.ticks, os.pidfd_open(process.pid))


def reap() -> dict[int, int]:
    """Collect every child that has ended: pid → exit code, negative for a signal.

    Not while a `subprocess` call waits in another thread. `exit_code` still answers for spawned children afterwards.
    """
    collected: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            break
        collected[pid] = os.waitstatus_to_exitcode(status)
        if pid in _spawned:
            _spawned.discard(pid)
            _codes[pid] = collected[pid]
    return collected


def exit_code(pid: int) -> int | None:
    """How a child of `spawn` ended (negative: a signal); None while it runs or if somebody else collected it."""
    if pid in _spawned:
        try:
            waited, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            _spawned.discard(pid)
            return None
        if waited:
            _spawned.discard(pid)
            _codes[pid] = os.waitstatus_to_exitcode(status)
    return _codes.get(pid)


def become_subreaper() -> None:
    """Make orphans below us our children, so that `reap` collects them."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise GarrisonError(f"cannot become a subreaper: {os.strerror(ctypes.get_errno())}; garrison needs Linux ≥ 3.4")


class RealProcesses:
    """The machine's processes, behind the seam."""

    def here(self) -> Where:
        """Where this process runs."""
        return Where(host(), boot_id(), pid_namespace())

    def probe(self, pid: int) -> Probe | None:
        """See `probe`."""
        return probe(pid)

    def bearers(self, life: str) -> list[ProcessId]:
        """See `bearers`."""
        return bearers(life)

    def send(self, pid: int, ticks: int, signal: int) -> bool:
        """See `send`."""
        return send(pid, ticks, signal)

    def sweep(self, root: ProcessId | None, life: str, *, grace: float = 5.0) -> list[ProcessId]:
        """See `sweep`."""
        return sweep(root, life, grace=grace)

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Child:
        """See `spawn`."""
        return spawn(argv, env=env, cwd=cwd, log=log)

    def reap(self) -> dict[int, int]:
        """See `reap`."""
        return reap()


class MemoryProcesses:
    """A process world in memory, for simulations and tests: same rules, no kernel.

    `ours` is the caller's own pid. `exit` ends a process as it would end by itself, `add` brings one that nobody
    spawned, `reboot` ends all and changes the boot id. `on_spawn` is called with each Child and its argv and env.
    """

    def __init__(self, where: Where | None = None, ours: int = 100) -> None:
        self._where = where or Where("memory", "boot-1", "pid:[1]")
        self._boots = 1
        self._tick = 1000
        self._next = ours
        self._rows: dict[int, Row] = {}
        self._zombies: dict[int, tuple[Probe, int]] = {}
        self.ours = self.add(marker=None, ppid=1, comm="python").pid
        self.on_spawn: Callable[[Child, list[str], dict[str, str]], None] | None = None

    def add(self, *, marker: str | None, ppid: int, comm: str = "command") -> ProcessId:
        """A new process; pids and ticks only grow."""
        row = Row(self._next, self._tick, ppid, comm, marker)
        self._next += 1
        self._tick += 1
        self._rows[row.pid] = row
        return row.id

    def exit(self, pid: int, code: int = 0) -> None:
        """`pid` ends with `code`; a child of ours stays as a zombie until reaped, its own children go to pid 1."""
        row = self._rows.pop(pid)
        for other in list(self._rows.values()):
            if other.ppid == pid:
                self._rows[other.pid] = replace(other, ppid=1)
        if row.ppid == self.ours:
            self._zombies[pid] = (Probe(pid, row.ticks, True, row.ppid, row.comm), code)

    def reboot(self) -> None:
        """Everybody is gone and the boot id is another; the caller starts anew under a new pid."""
        self._boots += 1
        self._where = replace(self._where, boot_id=f"boot-{self._boots}")
        self._rows.clear()
        self._zombies.clear()
        self.ours = self.add(marker=None, ppid=1, comm="python").pid

    def here(self) -> Where:
        """Where this process runs."""
        return self._where

    def probe(self, pid: int) -> Probe | None:
        """What is known of `pid`."""
        if pid in self._zombies:
            return self._zombies[pid][0]
        row = self._rows.get(pid)
        return Probe(row.pid, row.ticks, False, row.ppid, row.comm) if row else None

    def bearers(self, life: str) -> list[ProcessId]:
        """Living processes that bear the marker `life`."""
        return [row.id for row in self._rows.values() if life and row.marker == life]

    def send(self, pid: int, ticks: int, signal: int) -> bool:
        """TERM and KILL end it at once, anything else is heard and ignored."""
        row = self._rows.get(pid)
        if row is None or row.ticks != ticks:
            return False
        if signal in (signals.SIGTERM, signals.SIGKILL):
            self.exit(pid, -signal)
        return True

    def sweep(self, root: ProcessId | None, life: str, *, grace: float = 5.0) -> list[ProcessId]:
        """End a life by the same rule as the real one."""
        targets = doomed(root, life, self._rows.values(), caller=self.ours)
        for one in targets:
            self.send(one.pid, one.ticks, signals.SIGTERM if grace > 0 else signals.SIGKILL)
        return sorted(targets)

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Child:
        """A new child with the marker that `env` gives it."""
        one = self.add(marker=env.get(MARKER), ppid=self.ours, comm=os.path.basename(argv[0])[:15])  # noqa: PTH119
        child = Child(one.pid, one.ticks, -1)
        if self.on_spawn is not None:
            self.on_spawn(child, list(argv), dict(env))
        return child

    def reap(self) -> dict[int, int]:
        """Collect children of ours that ended."""
        collected = {pid: code for pid, (_, code) in self._zombies.items()}
        self._zombies.clear()
        return collected
