"""Kill a process tree: `select_targets` decides which processes belong to it (pure), `kill_tree` ends them all.

One scan is not enough: processes forked during it are found by the next one, until nothing is left.
"""

from __future__ import annotations

import os
import select
import signal
import signal as signals
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, NoReturn, Protocol

from garrison.errors import GarrisonError
from garrison.system import forks, processes
from garrison.system.machine import is_shortage
from garrison.system.processes import (
    TICKS_PER_SECOND,
    ProcessId,
    ProcessRow,
    adopted,
    is_container_monitor,
    is_sandbox,
    is_tmux,
    last_pid,
    list_processes,
    open_verified,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from garrison.system.processes import Child, PidScope, ProcessId, ProcessInfo

_ROUND = 0.25
"""Seconds between two scans while waiting for processes to end."""
_OLDER = 120 * TICKS_PER_SECOND
"""Clock ticks by which a process with the incarnation's marker may be older than the root: a reaper starts first."""


def select_targets(root: ProcessId | None, marker: str, rows: Iterable[ProcessRow], *, caller: int = 0,
                   earlier: Iterable[ProcessId] = (), only_below: bool = False) -> list[ProcessId]:
    """Return the processes to end, parents first. Pure.

    These are the root, its descendants without another incarnation's marker (and nothing below one with such a marker),
    all processes with this `marker`, and their descendants by the same rule. tmux servers, engines' monitors, the
    caller (a pid) with its ancestors, and pid 1 are spared.

    Args:
        earlier: targets of an earlier scan of the same sweep, which may be gone by now: a process forked in between
            without another marker is still recognised by the session that one of them leads.
        only_below: leave out processes with the marker elsewhere, for a part of an incarnation, such as a job.
    """
    by_pid = {row.pid: row for row in rows}
    spared = {1, caller} | _ancestors(caller, by_pid)
    earlier = set(earlier)
    leaders = {process.pid for process in earlier
               if process.pid not in by_pid or by_pid[process.pid].ticks == process.ticks}
    targets = {*earlier, *([root] if root else [])}
    since = root.ticks - _OLDER if root else 0
    first = [row for row in by_pid.values() if row.id in targets
             or (marker and not only_below and row.ticks >= since and row.marker == marker)
             or (row.session in leaders and row.marker in (None, marker))]
    first.sort(key=lambda row: (row.id != root, row.ticks, row.pid))
    return [row.id for row in _with_descendants(first, by_pid, marker)
            if row.pid not in spared and not is_tmux(row.comm) and not is_container_monitor(row)]


def _with_descendants(first: list[ProcessRow], by_pid: Mapping[int, ProcessRow], marker: str) -> list[ProcessRow]:
    """Return `first` and everything below, cut at other incarnations and at tmux servers."""
    return list(walk_down(first, by_pid.values(), lambda row: row.marker in (None, marker)))


def walk_down(first: Iterable[ProcessRow], rows: Iterable[ProcessRow],
              belongs: Callable[[ProcessRow], bool]) -> Iterator[ProcessRow]:
    """Yield `first` and its descendants, nearest first; nothing below a tmux server, whose panes do not belong to
    it."""
    children: dict[int, list[ProcessRow]] = {}
    for row in rows:
        children.setdefault(row.ppid, []).append(row)
    queue = deque(first)
    seen = {row.pid for row in queue}
    while queue:
        row = queue.popleft()
        yield row
        for child in children.get(row.pid, ()) if not is_tmux(row.comm) else ():
            if child.pid not in seen and belongs(child):
                seen.add(child.pid)
                queue.append(child)


def _ancestors(pid: int, by_pid: Mapping[int, ProcessRow]) -> set[int]:
    pids: set[int] = set()
    row = by_pid.get(pid)
    while row is not None and row.ppid not in pids:
        pids.add(row.ppid)
        row = by_pid.get(row.ppid)
    return pids


def kill_tree(root: ProcessId | None, marker: str, *, grace: float = 5.0, limit: float = 10.0,
              only_below: bool = False, is_closed: bool = False) -> list[ProcessId]:
    """Kill an incarnation's processes: TERM, `grace` seconds, KILL, rescanning until nothing is left.

    Stopped processes are continued so that they receive the TERM. Zombies count as dead; their parents reap them.

    Args:
        limit: seconds after the grace in which all must have died.
        only_below: as for `select_targets`.
        is_closed: the root starts nothing relevant any more, and nothing below can escape, as it is a subreaper above a
            pid namespace. Then its descendants are all, and the machine's other processes are not read.

    Returns:
        The processes that were signalled.

    Raises:
        GarrisonError: processes do not die (blocked in the kernel, or another user's).
    """
    kill_from = time.monotonic() + grace
    give_up = kill_from + limit
    signalled: set[ProcessId] = set()
    while left := (_find_below(root, marker, signalled) if root is not None and is_closed
                   else _find_until_sure(root, marker, signalled, only_below=only_below)):
        now = time.monotonic()
        if now >= give_up:
            pids = ", ".join(str(process.pid) for process in left)
            raise GarrisonError(f"processes {pids} do not die (blocked in the kernel, or another user's); end them "
                                "by hand, then try again")
        use_kill = now >= kill_from
        pidfds = [pidfd for process in left
                  if (pidfd := _signal(process, kill=use_kill, again=process in signalled)) is not None]
        signalled.update(left)
        _wait_all(pidfds, min(now + _ROUND, give_up if use_kill else kill_from))
    return sorted(signalled)


def _find_until_sure(root: ProcessId | None, marker: str, earlier: Iterable[ProcessId], *,
                     only_below: bool) -> list[ProcessId]:
    """Find what remains; scan again if nothing was found but something was forked in between.

    A process that forks and exits all the time may be missed by one scan of /proc. The second scan skips the pids of
    the first: other processes do not become targets, and a pid is not reused within these milliseconds.
    """
    before, seen = last_pid(), set[int]()
    left = find_remaining(root, marker, earlier, only_below=only_below, seen=seen)
    # -1: the kernel does not report the newest pid, so something may have been forked.
    if left or -1 != before == last_pid():
        return left
    return find_remaining(root, marker, earlier, only_below=only_below, seen=seen)


def _find_below(root: ProcessId, marker: str, earlier: Iterable[ProcessId]) -> list[ProcessId]:
    # Signalled processes may have lost their parent since, and can no longer be found from the root.
    rows = [row for pid in {process.pid for process in earlier} if (row := processes.read_row(pid)) is not None]
    todo = deque([root.pid] if processes.is_running(root.pid, root.ticks) else ())
    while todo:
        pid = todo.popleft()
        if (row := processes.read_row(pid)) is not None:
            rows.append(row)
            todo.extend(processes.child_pids(pid))
    return select_targets(root, marker, rows, caller=os.getpid(), earlier=earlier, only_below=True)


def find_remaining(root: ProcessId | None, marker: str, earlier: Iterable[ProcessId], *, only_below: bool = False,
                   seen: set[int] | None = None) -> list[ProcessId]:
    """Apply `select_targets` to the current processes.

    Also return those that left parent, session and marker, and became our own children.
    """
    rows = list(list_processes(seen))
    return select_targets(root, marker, rows, caller=os.getpid(), earlier={*earlier, *adopted(rows)},
                          only_below=only_below)


def _signal(process: ProcessId, *, kill: bool, again: bool) -> int | None:
    """Send TERM (not `again`) or KILL to a process; return its verified pidfd, None if it is gone or not ours."""
    pidfd = open_verified(process.pid, process.ticks)
    if pidfd is None:
        return None
    try:
        if kill:
            signals.pidfd_send_signal(pidfd, signals.SIGKILL)
        elif not again and not is_sandbox(process.pid):
            signals.pidfd_send_signal(pidfd, signals.SIGTERM)
            signals.pidfd_send_signal(pidfd, signals.SIGCONT)
    except ProcessLookupError:
        pass
    except PermissionError:
        os.close(pidfd)
        time.sleep(_ROUND / 10)  # it stays in the table until the limit, to avoid a busy loop
        return None
    return pidfd


def _wait_all(pidfds: list[int], until: float) -> None:
    """Wait until every process has ended, at most until the monotonic time `until`; close the pidfds."""
    poller = select.poll()
    waiting = set(pidfds)
    for pidfd in pidfds:
        poller.register(pidfd, select.POLLIN)
    while waiting and (rest := until - time.monotonic()) > 0:
        for pidfd, _ in poller.poll(rest * 1000):
            poller.unregister(pidfd)  # it stays readable, and would be reported repeatedly
            waiting.discard(pidfd)
    for pidfd in pidfds:
        os.close(pidfd)


# ---- Reaper: a process above an orchestrator that kills whatever its agent leaves running.
#
# An agent's programs may leave their session, their parent and their life marker (`env -i setsid … &`); the kernel then
# gives the orphan to the nearest subreaper above it. The orchestrator is one; if it gets SIGKILL, its orphans go to the
# reaper, which kills them and then exits as the orchestrator did. `fork_under_reaper` is called before any lock is
# held.


_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GRACE = 0.5
"""Seconds between TERM and KILL for leftovers: shorter than a supervisor's, which ends the reaper too."""

FORK_TRIES, FORK_PAUSE = 100, 0.2
"""Tries to fork on a machine without room, and seconds between two; in total shorter than a start may take."""


def fork_under_reaper() -> None:
    """Fork, and return in a child that is a subreaper; the caller stays above it as its reaper, and exits after it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    processes.become_subreaper()
    pid = _fork()
    if pid:
        _reap_until_exit(pid)
    processes.become_subreaper()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork() -> int:
    """Fork; while the machine has no room for another process, wait and retry."""
    for _ in range(FORK_TRIES):
        try:
            return os.fork()
        except OSError as error:
            if not is_shortage(error):
                raise
            time.sleep(FORK_PAUSE)
    return os.fork()


def _reap_until_exit(pid: int) -> NoReturn:
    """Wait until `pid` ends, kill what is left below, and exit with its exit code or by its signal."""
    child = processes.probe(pid)
    code = None
    while code is None:
        received = signal.sigwait(_SIGNALS)
        code = processes.reap().get(pid)
        # The terminal also sends Ctrl-C to the child, but a hang-up only to the session leader, which we are.
        if code is None and received in (signal.SIGTERM, signal.SIGHUP) and child is not None:
            processes.send(child.pid, child.ticks, received)
    ended = kill_leftovers()
    if ended:
        print(f"ended what its agent had left running: {ended}", file=sys.stderr, flush=True)
    if code < 0:  # by the same signal as the child, so that our parent learns how it ended
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def kill_leftovers() -> str:
    """Kill processes below this one without another incarnation's marker; return their pids for a log."""
    this = processes.probe(os.getpid())
    assert this is not None
    try:
        ended = kill_tree(this.id, processes.life_marker(os.getpid()) or "", grace=GRACE, only_below=True)
    except GarrisonError as error:
        return str(error)
    finally:
        processes.reap()
    return ", ".join(str(process.pid) for process in ended)


# ---- Process control: the operations on processes that supervision needs, as an object that tests can replace.
#
# `RealProcesses` acts on this machine; `tests/doubles/processes.py` has an in-memory double that passes the same
# tests.


class Processes(Protocol):
    """Operations on processes that supervision needs."""

    def here(self) -> PidScope:
        """Return the host, boot and pid namespace of this process."""
        ...

    def probe(self, pid: int) -> ProcessInfo | None:
        """Return what is known about `pid` now; None if there is no such process."""
        ...

    def is_running(self, pid: int, ticks: int) -> bool:
        """Return whether exactly that process runs; a zombie does not."""
        ...

    def find_marked(self, marker: str) -> list[ProcessId]:
        ...

    def group_by_marker(self, markers: Collection[str]) -> dict[str, list[ProcessId]]:
        ...

    def descendants(self, pid: int, marker: str) -> list[ProcessInfo]:
        """Return the living processes below `pid` with this marker or none; cut at other incarnations."""
        ...

    def send(self, pid: int, ticks: int, signal: int) -> bool:
        """Signal exactly that process; False if it is gone."""
        ...

    def kill_tree(self, root: ProcessId | None, marker: str, *, grace: float = 5.0) -> list[ProcessId]:
        """End an incarnation by force; return what was signalled. GarrisonError if a process does not die."""
        ...

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Child:
        """Start a child in its own session with exactly `env`, its output appended to `log`."""
        ...

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Child:
        """Start a child as `spawn` does; a garrison program need not load again what this process has loaded."""
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
    start = staticmethod(forks.start)
    reap = staticmethod(processes.reap)
