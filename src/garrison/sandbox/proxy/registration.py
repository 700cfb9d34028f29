"""Registrations: what the proxy is told of one listener, and how its user passes both to it.

A registration is one message on the run's control socket, with the listener's descriptor. The connection it came
through is its lease: the listener is closed with it. Keys are in these messages only, neither on disk nor in the
proxy's environment.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.records.budget import NO_LIMITS, Limits
from garrison.records.json_io import read_json
from garrison.records.record import from_data
from garrison.sandbox.proxy.apis import ApiName
from garrison.system import processes, unix_socket
from garrison.system.unix_socket import short_path
from garrison.values import Value, asdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

MAX_MESSAGE = 128 << 10
SOCKET, LOCK = "proxy.sock", "proxy.lock"
"""Files of a run's folder."""


class ApiAccess(Value):
    """Access to one model API with the user's key."""

    api: ApiName
    url: str
    """Base URL outside."""
    header: str
    key: str
    """Value of the header, with its scheme."""

    def __repr__(self) -> str:
        return f"ApiAccess({self.api}, {self.url})"


class Registration(Value):
    """One listener: whose connections come through it, and what they may do."""

    run: str
    node: str
    attempt: int
    folder: str
    """Folder for its usage and its refused hosts."""
    hosts: tuple[str, ...] = ()
    """Hosts that tunnels and forwarded requests may reach; none: model APIs only."""
    apis: tuple[ApiAccess, ...] = ()
    limits: Limits = NO_LIMITS
    reported_by: str = ""
    """Beginning of the User-Agent whose calls are in another usage file already; '' if there is none."""
    secret: str = ""
    """Part of the key that a client must send; '' where the listener can be reached by nobody else."""
    account: str = ""
    """What stands for the run in its costs; '' for the run itself."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Registration:
        """Invert `encode`; ValueError if it is no registration."""
        return from_data(cls, json.loads(data))


def connect(folder: Path) -> socket.socket:
    """Connect to the control socket in a run's folder; OSError if no proxy listens."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with short_path(folder / SOCKET) as name:
            control.connect(name)
    except BaseException:
        control.close()
        raise
    return control


def bind(folder: Path) -> socket.socket:
    """Listen on the control socket in a run's folder, for this user alone; replaces a socket that is left there."""
    path = folder / SOCKET
    path.unlink(missing_ok=True)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with short_path(path) as name:
        control.bind(name)
    path.chmod(0o600)
    control.listen(64)
    return control


# ---- peer ------------------------------------------------------------------------------------------------------------

# Peers: which processes may register a listener. A program that one of the run's processes confines may not.
#
# Where no namespace hides the control socket from it, an agent could register a listener of its own, with any hosts.


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
