"""Reaper: a process above an orchestrator that ends whatever its agent leaves running.

An agent's programs may leave their session, their parent and their life marker (`env -i setsid … &`); the kernel then
gives the orphan to the nearest subreaper above it. The orchestrator is one; when SIGKILL ends it, its orphans go to the
reaper, which ends them and then exits as the orchestrator did. `fork_under_reaper` is called before any lock is held.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import NoReturn

from garrison.errors import GarrisonError
from garrison.system import kill_tree, processes
from garrison.system.shortage import is_shortage

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GRACE = 0.5
"""Seconds between TERM and KILL for leftovers: shorter than a supervisor's, which ends the reaper too."""

FORK_TRIES, FORK_PAUSE = 100, 0.2
"""Tries to fork on a machine without room, and seconds between two; together shorter than a start may take."""


def fork_under_reaper() -> None:
    """Fork, and return in a child that is a subreaper; the caller stays above it as its reaper, and ends after it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    processes.become_subreaper()
    pid = _fork()
    if pid:
        _reap_until_exit(pid)
    processes.become_subreaper()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork() -> int:
    """Fork; while the machine has no room for another process, wait and try again."""
    for _ in range(FORK_TRIES):
        try:
            return os.fork()
        except OSError as error:
            if not is_shortage(error):
                raise
            time.sleep(FORK_PAUSE)
    return os.fork()


def _reap_until_exit(pid: int) -> NoReturn:
    """Wait until `pid` ends, end what is left below, and exit with its exit code or by its signal."""
    child = processes.probe(pid)
    code = None
    while code is None:
        received = signal.sigwait(_SIGNALS)
        code = processes.reap().get(pid)
        # The terminal itself sends Ctrl-C to the child too, but a hang-up only to the session's leader, which we are.
        if code is None and received in (signal.SIGTERM, signal.SIGHUP) and child is not None:
            processes.send(child.pid, child.ticks, received)
    ended = kill_leftovers()
    if ended:
        print(f"ended what its agent had left running: {ended}", file=sys.stderr, flush=True)
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def kill_leftovers() -> str:
    """End processes below this one that bear no other incarnation's marker; return their pids for a log."""
    this = processes.probe(os.getpid())
    assert this is not None
    try:
        ended = kill_tree.kill_tree(this.id, processes.life_marker(os.getpid()) or "", grace=GRACE, only_below=True)
    except GarrisonError as error:
        return str(error)
    finally:
        processes.reap()
    return ", ".join(str(process.pid) for process in ended)
