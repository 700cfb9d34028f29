"""Process table: identify processes, read their life markers, and walk their trees. Read-only.

A process is (pid, start ticks): field 22 of /proc/PID/stat, which neither a clock step nor a recycled pid can fake. A
zombie counts as dead.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MARKER = "GARRISON_LIFE"
"""The environment variable that says whose life a process belongs to."""
_BORNE = MARKER.encode() + b"="
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
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    try:  # a thousand records are looked at in one scan, and such a line is never that long
        raw = os.read(descriptor, _CHUNK)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    fields = raw[raw.rindex(b")") + 2:].split(None, 20)
    return int(fields[19]) == ticks and not is_dead(fields)


def marker(pid: int) -> str | None:
    """The life marker in a process's environment; None if it bears none, is gone or is not ours to read."""
    raw = environment(pid)
    if raw is None:
        return None
    at = 0 if raw.startswith(_BORNE) else raw.find(b"\0" + _BORNE) + 1  # a scan asks hundreds, and most bear none
    if at == 0 and not raw.startswith(_BORNE):
        return None
    return os.fsdecode(raw[at + len(_BORNE):].partition(b"\0")[0]) or None


def environment(pid: int) -> bytes | None:
    """What a process was started with, as /proc has it; None if it is gone or not ours to read. Empty, too, for an
    instant of any exec."""
    try:
        return _read(f"/proc/{pid}/environ")
    except OSError:
        return None


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


def listed_to_the_last(seen: set[int] | None = None, others: Mapping[int, int] | None = None) -> Iterator[int]:
    """Every pid, each listing's read by the caller before the next: /proc is listed again until it names nobody new.
    Those in `seen` are left out; it then holds all that were given. So are `others`, by pid, while the number of their
    directory is that (`numbers`).

    Who forks and goes while the others are read, as in one listing they might all have done, is there when a later one
    is read, which is short. If nobody was forked meanwhile, there is nobody new.
    """
    seen = set() if seen is None else seen
    for _ in range(LISTINGS):
        before = forks()
        listed = (pid for pid, number in numbers().items() if others.get(pid) != number) if others else _listed()
        new = [pid for pid in listed if pid not in seen]
        seen.update(new)
        yield from new
        if not new or -1 != before == forks():
            return


def numbers() -> dict[int, int]:
    """Everybody in /proc with the number of their directory: it is made anew with each process, for whatever pid."""
    with os.scandir("/proc") as listing:
        return {int(entry.name): entry.inode() for entry in listing if entry.name.isdigit()}


def forks() -> int:
    """What differs when a process or thread was made in between; -1 where nothing tells."""
    try:
        descriptor = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        return int(os.read(descriptor, 128).split()[4])  # the last pid that was given
    except (OSError, ValueError, IndexError):
        return -1
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Numbering:
    """How far the kernel is with giving pids."""

    last: int
    """The last that was given."""
    forks: int
    """Processes and threads made since boot, in all pid namespaces."""
    threads: int
    """Those that live."""

    def since(self, before: Numbering, highest: int) -> range | None:
        """The pids given since `before`, whoever has them now; None where that is not for sure: pids begin anew after
        `highest`. To come round they have to pass all that nobody has, and who lives or lived meanwhile has two of them
        at most (its own, and that of a dead leader of its group or session)."""
        if self.last < before.last or 3 * (self.forks - before.forks) + 2 * self.threads + _RESERVED >= highest:
            return None
        return range(before.last + 1, self.last + 1)


_RESERVED = 300
"""Pids that are not given a second time."""


def numbering() -> Numbering | None:
    """How far it is now; None where nothing tells."""
    try:
        now = _read("/proc/loadavg").split()
        made = _read("/proc/stat").partition(b"\nprocesses ")[2].partition(b"\n")[0]
        return Numbering(int(now[4]), int(made), int(now[3].partition(b"/")[2]))
    except (OSError, ValueError, IndexError):
        return None


def highest_pid() -> int:
    """Where pids begin anew; 0 where nothing tells."""
    try:
        return int(_read("/proc/sys/kernel/pid_max"))
    except (OSError, ValueError):
        return 0


def leads(pid: int) -> bool:
    """Whether `pid` is a process: threads have pids too, and files that /proc does not list."""
    try:  # most of those asked for have gone, and to be told so by an error costs twice as much
        return os.access(f"/proc/{pid}", os.F_OK) and b"\nTgid:\t%d\n" % pid in _read(f"/proc/{pid}/status")
    except OSError:
        return False


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


def below(pid: int, life: str) -> list[Probe]:
    """Living processes below `pid` that bear the marker `life` or none, parents first; cut at other lives and at tmux.

    A child that the kernel shows only for a moment may be missed: whoever compares two looks sees that as a change.
    """
    children = children_of if kernel_tells() else _scan()
    found: list[Probe] = []
    queue = deque(children(pid))
    while queue:
        one = probe(queue.popleft())
        if one is None or one.zombie or one.comm == "tmux" or one.comm.startswith("tmux:"):
            continue
        if marker(one.pid) in (None, life):
            found.append(one)
            queue.extend(children(one.pid))
    return found


def ran(pid: int, life: str) -> frozenset[tuple[int, int, tuple[str, ...]]] | None:
    """What differs as soon as a process `below` has run for an instant; None where the kernel does not count it.

    (pid, start ticks, what each thread has run in nanoseconds). The ticks of a `Probe` would not show a short write.
    """
    try:
        return frozenset((one.pid, one.ticks, _threads_ran(one.pid)) for one in below(pid, life))
    except OSError:
        return None


def _threads_ran(pid: int) -> tuple[str, ...]:
    threads = sorted(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208  # light
    found = []
    for thread in threads:
        found.append(f"{thread} {_whole(f'/proc/{pid}/task/{thread}/schedstat').split()[0].decode()}")
    return tuple(found)


def kernel_tells() -> bool:
    """Whether the kernel lists children (CONFIG_PROC_CHILDREN)."""
    return os.access(f"/proc/{os.getpid()}/task/{os.getpid()}/children", os.R_OK)


def children_of(pid: int) -> list[int]:
    """The children of all threads of `pid`, where `kernel_tells`."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  # light
            found += map(int, _whole(f"/proc/{pid}/task/{thread}/children").split())
    except OSError:  # it ended meanwhile
        pass
    return found


def _whole(path: str) -> bytes:
    """A file of /proc to its end. A short read is not the end of one that lists things; a file object asks the kernel
    thrice what it is before it reads, and a hundred runners look at their trees each minute."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(descriptor, 4096):
            chunks.append(chunk)
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def _scan() -> Callable[[int], list[int]]:
    """The same from one scan of all processes."""
    table: dict[int, list[int]] = {}
    for one in probes():
        table.setdefault(one.ppid, []).append(one.pid)
    return lambda pid: table.get(pid, [])
