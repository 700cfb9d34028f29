"""Reaper: a process above an orchestrator that ends whatever its agent leaves running.

An agent's programs may leave their session, their parent and their life marker (`env -i setsid … &`); an orphan then
belongs to the nearest subreaper above. The orchestrator is one; when it dies by SIGKILL its orphans come to the reaper,
which ends them and then exits as the orchestrator did. `fork_under_reaper` makes one process two, before any lock is
held.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from garrison.errors import GarrisonError
from garrison.system import kill_tree, processes

_HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GRACE = 0.5
"""Seconds between TERM and KILL for leftovers: shorter than a supervisor's, which ends the reaper too."""


def fork_under_reaper() -> None:
    """Return in a child that is a subreaper; the caller stays above it as its keeper, and ends after it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    processes.become_subreaper()
    pid = os.fork()
    if pid:
        _keep(pid)
    processes.become_subreaper()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _keep(pid: int) -> NoReturn:
    """Wait for the end of `pid`, end what is left below, and go with its exit code or by its signal."""
    found = processes.probe(pid)
    code = None
    while code is None:
        heard = signal.sigwait(_HEARD)
        code = processes.reap().get(pid)
        # A Ctrl-C its terminal sends it by itself; but of a terminal that closes, only the session's leader hears.
        if code is None and heard in (signal.SIGTERM, signal.SIGHUP) and found is not None:
            processes.send(found.pid, found.ticks, heard)
    left = kill_leftovers()
    if left:
        print(f"ended what its agent had left running: {left}", file=sys.stderr, flush=True)
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def kill_leftovers() -> str:
    """End what lives below this process without another incarnation's marker; return the pids for a log."""
    me = processes.probe(os.getpid())
    assert me is not None
    try:
        ended = kill_tree.kill_tree(me.id, processes.life_marker(os.getpid()) or "", grace=GRACE, only_below=True)
    except GarrisonError as error:
        return str(error)
    finally:
        processes.reap()
    return ", ".join(str(one.pid) for one in ended)
