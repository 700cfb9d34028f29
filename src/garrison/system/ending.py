"""Ending a life by force. `doomed` decides whom and is pure over a table; `sweep` acts on it until nobody is left."""

from __future__ import annotations

import os
import select
import signal as signals
import time
from collections import deque

from garrison.errors import GarrisonError
from garrison.system.processes import ProcessId, Row, adopted, open_verified, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ROUND = 0.25
"""Seconds between two scans while a sweep waits for processes to end."""


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
    # Twice: whoever forks and goes all the time may pass by one scan of /proc.
    while left := (left_of(root, life, asked, only_below=only_below)
                   or left_of(root, life, asked, only_below=only_below)):
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


def left_of(root: ProcessId | None, life: str, known: Iterable[ProcessId], *,
            only_below: bool = False) -> list[ProcessId]:
    """`doomed`, now, with those that escaped by leaving parent, session and marker and became our own children."""
    rows = table()
    return doomed(root, life, rows, caller=os.getpid(), known={*known, *adopted(rows)}, only_below=only_below)


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
