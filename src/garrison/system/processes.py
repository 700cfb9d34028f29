"""Processes: who lives, who descends from whom, starting and signalling them.

A process is (pid, start ticks): field 22 of /proc/PID/stat, which neither a clock step nor a recycled pid can fake.
It is signalled only through a pidfd whose ticks were verified. A zombie is dead. Light: cron's doors load
this file. Ending a life by force is in `ending`, a world in memory for tests and simulations in `memory`.
"""

from __future__ import annotations

import os
import select
import signal as signals
from collections import deque
from contextlib import suppress

from garrison.errors import GarrisonError
from garrison.light import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Protocol

    from garrison.system.ending import Glimpse
else:
    Protocol = object

MARKER = "GARRISON_LIFE"
"""The environment variable that says whose life a process belongs to."""
_BORNE = MARKER.encode() + b"="
_PR_SET_CHILD_SUBREAPER = 36
_CHUNK = 4096
"""Bytes read at once from /proc; a page, so that most files are read whole."""


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
    state: str = ""
    """Its letter: R running, S and I waiting, D blocked in the kernel, T stopped, t traced; '' unknown."""
    cpu: int = 0
    """Clock ticks of CPU it used, with those of its children that it collected."""

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
    """The kernel's id of this boot; GARRISON_BOOT_ID in its stead is how a test plays a reboot."""
    return os.environ.get("GARRISON_BOOT_ID") or _read("/proc/sys/kernel/random/boot_id").decode().strip()


def same_boot(recorded: str) -> bool:
    """Whether a pid that was recorded under that boot id means anything now: pids and ticks begin anew with each boot.

    A record that names no boot is taken at its word.
    """
    return recorded in ("", boot_id())


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
    return Probe(pid=int(raw[:opened]), ticks=int(fields[19]), zombie=is_dead(fields), ppid=int(fields[1]),
                 comm=raw[opened + 1:closed].decode(errors="replace"), session=int(fields[3]),
                 state=fields[0].decode(), cpu=sum(map(int, fields[11:15])))


def is_dead(fields: list[bytes]) -> bool:
    """Whether a stat line, from its third field on, is of a process that ended (its leader is not dead while other
    threads live on)."""
    return fields[0] in (b"X", b"x") or (fields[0] == b"Z" and int(fields[17]) <= 1)


def living(pid: int, ticks: int) -> bool:
    """Whether that very process runs; a zombie does not. `probe` without a record of what else is there."""
    if pid <= 0:
        return False
    try:
        raw = _read(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    fields = raw[raw.rindex(b")") + 2:].split(None, 20)
    return int(fields[19]) == ticks and not is_dead(fields)


def marker(pid: int) -> str | None:
    """The life marker in a process's environment; None if it bears none, is gone or is not ours to read."""
    try:
        raw = _read(f"/proc/{pid}/environ")
    except OSError:
        return None
    at = 0 if raw.startswith(_BORNE) else raw.find(b"\0" + _BORNE) + 1  # a scan asks hundreds, and most bear none
    if at == 0 and not raw.startswith(_BORNE):
        return None
    return os.fsdecode(raw[at + len(_BORNE):].partition(b"\0")[0]) or None


def stats() -> Iterator[bytes]:
    """The stat line of everybody in /proc, zombies included, in one scan."""
    for pid in _listed():
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            yield _read(f"/proc/{pid}/stat")


def probes() -> list[Probe]:
    """Everybody in /proc, zombies included, in one scan."""
    return list(map(parse_stat, stats()))


def _listed() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # light


LISTINGS = 50
"""How often /proc is listed at most: a machine that forks faster than we read is no reason to read for ever."""


def listed_to_the_last() -> Iterator[int]:
    """Every pid, each listing's read by the caller before the next: /proc is listed again until it names nobody new.

    Who forks and goes while the others are read, as in one listing they might all have done, is there when a later one
    is read, which is short.
    """
    seen = set[int]()
    for _ in range(LISTINGS):
        new = [pid for pid in _listed() if pid not in seen]
        if not new:
            return
        seen.update(new)
        yield from new


def table() -> list[Row]:
    """Everybody who lives, with their markers."""
    return [Row(one.pid, one.ticks, one.ppid, one.comm, marker(one.pid), one.session)
            for pid in listed_to_the_last() if (one := probe(pid)) is not None and not one.zombie]


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
        while chunk := os.read(descriptor, _CHUNK):
            chunks.append(chunk)
            if len(chunk) < _CHUNK:  # of these files a short read is the last; a scan reads hundreds
                break
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


def adopted(rows: Iterable[Row | Glimpse]) -> list[ProcessId]:
    """Children of ours that bear no marker and that we did not start: what a program of ours left behind as it ended.

    Empty in a process that is no adopting subreaper; its children may be anybody's.
    """
    me = os.getpid()
    return [row.id for row in rows
            if _adopting and row.ppid == me and row.marker is None and row.pid not in _spawned]


_adopting = False
"""Whether every orphan that becomes our child comes from what we started."""


def become_subreaper(*, adopting: bool = False) -> None:
    """Make orphans below us our children, so that `reap` collects them.

    With `adopting` they are ours to end, too (`adopted`): only for a process that had no children when it began.
    """
    import ctypes

    global _adopting  # noqa: PLW0603  # a process is a subreaper as a whole
    _adopting = adopting

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

    def living(self, pid: int, ticks: int) -> bool:
        """See `living`."""
        return living(pid, ticks)

    def bearers(self, life: str) -> list[ProcessId]:
        """See `bearers`."""
        return bearers(life)

    def below(self, pid: int, life: str) -> list[Probe]:
        """See `tree.below`."""
        from garrison.system.tree import below  # it builds on this file

        return below(pid, life)

    def send(self, pid: int, ticks: int, signal: int) -> bool:
        """See `send`."""
        return send(pid, ticks, signal)

    def sweep(self, root: ProcessId | None, life: str, *, grace: float = 5.0) -> list[ProcessId]:
        """See `ending.sweep`."""
        from garrison.system.ending import sweep  # it builds on this file, and cron's doors never end anybody

        return sweep(root, life, grace=grace)

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Child:
        """See `spawn`."""
        return spawn(argv, env=env, cwd=cwd, log=log)

    def reap(self) -> dict[int, int]:
        """See `reap`."""
        return reap()
