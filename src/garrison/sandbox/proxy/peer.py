"""Peers: which processes may register a listener. A program that one of the run's processes confines may not.

Where no namespace hides the control socket from it, an agent could register a listener of its own, with any hosts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from garrison.records.json_io import read_json
from garrison.system import processes, unix_socket

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


def may_register(connection: socket.socket, home: Path, run: str) -> bool:
    """Return whether the process at the other end may register: one of the run's own, or one outside of them all."""
    pid, uid = unix_socket.credentials(connection)
    if uid != os.getuid() or pid <= 0:
        return False
    return is_trusted(pid, processes.ancestors(pid), recorded_processes(home, run), _ticks)


def is_trusted(pid: int, ancestors: Iterable[int], recorded: Mapping[int, int],
               ticks: Callable[[int], int | None]) -> bool:
    """Return whether a process is recorded, or has no recorded one above it; `ticks` gives a process's start."""
    if pid in recorded and ticks(pid) == recorded[pid]:
        return True
    return not any(above in recorded and ticks(above) == recorded[above] for above in ancestors)


def recorded_processes(home: Path, run: str) -> dict[int, int]:
    """Return pid → start ticks of the processes in the identities of a run."""
    found = {}
    for path in (home / "identities").glob(f"*@{run}.json"):
        body = read_json(path)
        pid, ticks = (body.get("pid"), body.get("start_ticks")) if isinstance(body, dict) else (None, None)
        if isinstance(pid, int) and isinstance(ticks, int):
            found[pid] = ticks
    return found


def _ticks(pid: int) -> int | None:
    process = processes.probe(pid)
    return process.ticks if process is not None else None
