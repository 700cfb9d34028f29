"""Ending a life by force. `select_targets` decides whom and is pure over a table; `kill_tree` acts on it until nobody
is left."""

from __future__ import annotations

import os
import select
import signal as signals
import time
from collections import deque

from garrison.errors import GarrisonError
from garrison.system.processes import (
    ProcessId,
    adopted,
    forks,
    is_dead,
    listed_to_the_last,
    marker,
    open_verified,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeAlias

    from garrison.system.census import Census
    from garrison.system.processes import Row

    Someone: TypeAlias = "Row | Glimpse"

_ROUND = 0.25
"""Seconds between two scans while a sweep waits for processes to end."""
_OLDER = 120 * os.sysconf("SC_CLK_TCK")
"""Clock ticks by which a bearer of a life's marker may be older than its own process (who keeps it starts first)."""

_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD among the flags of a stat line."""


class Glimpse:
    """A `Row` whose marker is read only if the decision asks for it: most of a machine's processes are long known to
    be strangers, and reading an environment costs more than all else about a process."""

    __slots__ = ("_marker", "_raw", "dead", "pid", "ppid", "session", "ticks")

    def __init__(self, pid: int, raw: bytes) -> None:
        closed = raw.rindex(b")")
        fields = raw[closed + 2:].split(None, 20)
        self.pid, self.ticks, self.ppid, self.session = pid, int(fields[19]), int(fields[1]), int(fields[3])
        self.dead = is_dead(fields)
        self._raw = raw
        self._marker: str | None = ""

    @property
    def comm(self) -> bytes:
        """Its name."""
        return self._raw[self._raw.index(b"(") + 1:self._raw.rindex(b")")]

    @property
    def marker(self) -> str | None:
        """The life it belongs to, None if to none."""
        if self._marker == "":  # None is an answer
            self._marker = marker(self.pid)
        return self._marker

    @property
    def kernel(self) -> bool:
        """Whether it is a thread of the kernel's own, which has no environment."""
        return bool(int(self._raw[self._raw.rindex(b")") + 2:].split(None, 7)[6]) & _KERNEL_THREAD)

    @property
    def id(self) -> ProcessId:
        """(pid, ticks)."""
        return ProcessId(self.pid, self.ticks)


def glimpses(pids: Iterable[int] | None = None) -> list[Glimpse]:
    """Everybody who lives, or those of them with one of these pids, as cheap as it gets."""
    there = listed_to_the_last() if pids is None else pids
    return [one for pid in there if (one := glimpse(pid)) is not None and not one.dead]


def glimpse(pid: int) -> Glimpse | None:
    """One process; None if it has gone."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return Glimpse(pid, os.read(descriptor, 1024))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def select_targets(root: ProcessId | None, life: str, rows: Iterable[Someone], *, caller: int = 0,
           known: Iterable[ProcessId] = (), only_below: bool = False) -> list[ProcessId]:
    """Whom Replace ends, parents first. Pure.

    The process, its descendants that bear no other life's marker (nobody below those that do), all bearers of its own
    marker and what descends from them in the same way. tmux servers, the caller (a pid) and its ancestors are spared,
    and pid 1. `known` are processes doomed in an earlier scan of the same sweep, which may be gone by now: whoever
    was forked in between and bears no other marker is still known by the session that one of them leads.
    `only_below` leaves out the bearers elsewhere: for a part of a life, such as a job that bears its starter's marker.
    Who is far older than the process does not bear its marker and is not asked.
    """
    by_pid = {row.pid: row for row in rows}
    spared = {1, caller} | _above(caller, by_pid)
    earlier = set(known)
    leaders = {one.pid for one in earlier if one.pid not in by_pid or by_pid[one.pid].ticks == one.ticks}
    named = {(one.pid, one.ticks) for one in ([root] if root else []) + list(earlier)}
    at = (root.pid, root.ticks) if root else None
    since = root.ticks - _OLDER if root else 0
    first = [row for row in by_pid.values() if (row.pid, row.ticks) in named
             or (life and not only_below and row.ticks >= since and row.marker == life)
             or (row.session in leaders and row.marker in (None, life))]
    first.sort(key=lambda row: ((row.pid, row.ticks) != at, row.ticks, row.pid))
    found = _below(first, by_pid, life)
    return [row.id for row in found if row.pid not in spared and not is_tmux(row.comm)]


def _below(first: list[Someone], by_pid: Mapping[int, Someone], life: str) -> list[Someone]:
    """`first` and everybody under them, cut at other lives and at tmux servers (whose panes are not theirs)."""
    children: dict[int, list[Someone]] = {}
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


def _above(pid: int, by_pid: Mapping[int, Someone]) -> set[int]:
    above: set[int] = set()
    row = by_pid.get(pid)
    while row is not None and row.ppid not in above:
        above.add(row.ppid)
        row = by_pid.get(row.ppid)
    return above


def is_tmux(comm: str | bytes) -> bool:
    """Whether a process name is a tmux server's or client's."""
    return comm in ("tmux", b"tmux") or comm[:5] in ("tmux:", b"tmux:")


def kill_tree(root: ProcessId | None, life: str, *, grace: float = 5.0, limit: float = 10.0,
          only_below: bool = False, census: Census | None = None) -> list[ProcessId]:
    """End a life by force: TERM, `grace` seconds, KILL, rescanning until nobody is left. Returns whom it signalled.

    Whom a `census` knows to be others is not looked at; without one everybody is.
    Stopped processes are continued to hear the TERM. Those still there `limit` seconds after the grace (D state,
    another user's) raise GarrisonError with their pids. Zombies count as dead; they are their parents' to reap.
    """
    kill_from = time.monotonic() + grace
    give_up = kill_from + limit
    asked: set[ProcessId] = set()
    while left := _left_for_sure(root, life, asked, only_below=only_below, census=census):
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


def _left_for_sure(root: ProcessId | None, life: str, known: Iterable[ProcessId], *,
                   only_below: bool, census: Census | None) -> list[ProcessId]:
    """`find_remaining`, looked for again if it finds nobody and anybody was forked meanwhile: who forks and goes all
    the time may pass by one scan of /proc.

    Whom the first scan has seen is none of them: a stranger does not become one, and before a pid is given anew within
    these milliseconds, all the others must have been.
    """
    before, seen = forks(), set[int]()
    leaders = {one.pid for one in (*known, *([root] if root else ()))}

    def pids() -> Iterable[int]:
        return census.to_read(life, leaders, seen) if census is not None and life else listed_to_the_last(seen)

    left = find_remaining(root, life, known, only_below=only_below, pids=pids())
    if left or -1 != before == forks():
        return left
    return find_remaining(root, life, known, only_below=only_below, pids=pids())


def find_remaining(root: ProcessId | None, life: str, known: Iterable[ProcessId], *, only_below: bool = False,
            pids: Iterable[int] | None = None) -> list[ProcessId]:
    """`select_targets`, now, with those that escaped by leaving parent, session and marker and became our own children;
    of all or of those with one of these pids."""
    rows = glimpses(pids)
    return select_targets(root, life, rows, caller=os.getpid(), known={*known, *adopted(rows)}, only_below=only_below)


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
