"""Children: start our own child processes, collect them, and adopt the orphans below us.

A child of `spawn` is collected by `reap` or `exit_code` and by nothing else; its pid is its own until then.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.system.process_table import ProcessId, probe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from garrison.system.process_table import ProcessRow

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class Child:
    """A process we started; `pidfd` is ours to close (-1: none) and becomes readable when it ends."""

    pid: int
    ticks: int
    pidfd: int

    @property
    def id(self) -> ProcessId:
        """Return (pid, ticks)."""
        return ProcessId(self.pid, self.ticks)

    def close(self) -> None:
        """Close the pidfd; the process is not touched."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            object.__setattr__(self, "pidfd", -1)


_codes: dict[int, int] = {}
"""Exit codes of spawned children that `reap` collected."""
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
    """Return how a child of `spawn` ended (negative: a signal); None while it runs or if its status was taken
    elsewhere.
    """
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


def adopted(rows: Iterable[ProcessRow]) -> list[ProcessId]:
    """Children of ours that bear no marker and that we did not start: what a program of ours left behind as it ended.

    Empty in a process that is no adopting subreaper; its children may be anybody's.
    """
    me = os.getpid()
    return [row.id for row in rows
            if _adopting and row.ppid == me and row.marker is None and row.pid not in _spawned]


def die_with_parent() -> None:
    """Receive SIGTERM when the parent dies, or now if it is gone already."""
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


_adopting = False
"""True if every orphan that becomes our child comes from a process we started."""


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
