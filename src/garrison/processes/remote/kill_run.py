"""Kill a run: every process that bears a marker of it, and what is below those.

A claim that is over leaves nothing at work. The run's processes restart one another, so all found by one look are
killed together, and it is looked until two looks in a row find nothing.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.records.identity import Identity
from garrison.records.names import parse_marker
from garrison.records.store import Store
from garrison.system import processes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from garrison.system.processes import ProcessId, ProcessRow

KILL_SECONDS = 20.0
"""Longest wait for the death of killed processes; then they hang in the kernel."""
_PAUSE = 0.01


def kill_run(home: Path, run: str) -> None:
    """Kill every process of a run in a home; GarrisonError if some do not die."""
    end = time.monotonic() + KILL_SECONDS
    clear = 0
    while clear < 2:
        left = select_processes(list(processes.list_processes()), str(home), run, os.getpid())
        clear = 0 if left else clear + 1
        for each in left:
            processes.send(each.pid, each.ticks, signal.SIGKILL)
        if left and time.monotonic() > end:
            raise GarrisonError(f"processes {', '.join(str(each.pid) for each in left)} of run {run} do not die "
                                "(blocked in the kernel); end them by hand")
        if left:
            time.sleep(_PAUSE)
    end_terminal(home, run)


def end_terminal(home: Path, run: str) -> None:
    """Close the sessions of a killed run, and with the last one the tmux server of its home."""
    from garrison.system.tmux_server import has_socket

    if not has_socket(home / "run"):
        return
    from garrison.system.terminal_choice import choose_terminal  # with libtmux

    with suppress(GarrisonError, OSError):
        terminal, _ = choose_terminal("tmux", home)
        for key in Store(home).keys(Identity):
            if key.run == run and (session := terminal.find(key.full)) is not None:
                terminal.close(session, grace=0.0)
        terminal.shutdown()


def select_processes(rows: Iterable[ProcessRow], home: str, run: str, caller: int = 0) -> list[ProcessId]:
    """Return the processes of a run, with what is below them and bears no other marker; no tmux server. Pure."""
    children: dict[int, list[ProcessRow]] = {}
    marked: list[ProcessRow] = []
    for row in rows:
        children.setdefault(row.ppid, []).append(row)
        if _is_of(row.marker, home, run):
            marked.append(row)
    queue, seen = list(marked), {row.pid for row in marked}
    found: list[ProcessId] = []
    while queue:
        row = queue.pop()
        if processes.is_tmux(row.comm) or row.pid == caller:
            continue
        found.append(row.id)
        for child in children.get(row.pid, ()):
            if child.pid not in seen and (child.marker is None or _is_of(child.marker, home, run)):
                seen.add(child.pid)
                queue.append(child)
    return found


def _is_of(marker: str | None, home: str, run: str) -> bool:
    parsed = parse_marker(marker) if marker is not None else None
    return parsed is not None and (parsed[0], parsed[1]) == (home, run)
