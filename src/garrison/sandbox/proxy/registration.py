"""Registrations: settings of one listener of the proxy, and how its user passes both.

A registration is one message on the run's control socket, with the listener's descriptor. The connection it came
through is its lease: the listener is closed with it. Keys are only in these messages, neither on disk nor in the
proxy's environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, Refused
from garrison.records import log_retention
from garrison.records.budget import NO_LIMITS, Limits
from garrison.records.json_io import read_json
from garrison.records.record import from_data
from garrison.sandbox.proxy.apis import ApiName
from garrison.sandbox.proxy.forwards import Forward
from garrison.system import forks, processes, unix_socket
from garrison.system.environment import child_environment
from garrison.system.machine import module_argv
from garrison.system.unix_socket import short_path
from garrison.values import Value, asdict, replace

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
    """One listener: the owner of its connections, and their rights."""

    run: str
    node: str
    attempt: int
    folder: str
    """Folder for its usage and its refused hosts."""
    hosts: tuple[str, ...] = ()
    """Hosts that tunnels and forwarded requests may reach; empty: only model APIs."""
    apis: tuple[ApiAccess, ...] = ()
    limits: Limits = NO_LIMITS
    reported_by: str = ""
    """Prefix of the User-Agent whose calls are already in another usage file; '' if there is none."""
    secret: str = ""
    """Part of the key that a client must send; '' if nothing else can reach the listener."""
    account: str = ""
    """The run's place in costs; '' for the run itself."""
    forwards: tuple[Forward, ...] = ()
    """Targets of the connections of further listeners, in order."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Registration:
        """Invert `encode`; ValueError if it is not a registration."""
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


# ---- peer ------------------------------------------------------------------------------------------------------------

# Peers: which processes may register a listener. A program confined by one of the run's processes may not.
#
# If no namespace hides the control socket, an agent could otherwise register its own listener, with any hosts.


def may_register(connection: socket.socket, home: Path, run: str) -> bool:
    """Return whether the process at the other end may register: one of the run's own, or one below none of them."""
    pid, uid = unix_socket.credentials(connection)
    if uid != os.getuid() or pid <= 0:
        return False
    return is_trusted(pid, processes.ancestors(pid), recorded_processes(home, run), _ticks)


def is_trusted(pid: int, ancestors: Iterable[int], recorded: Mapping[int, int],
               ticks: Callable[[int], int | None]) -> bool:
    """Return whether a process is recorded, or has no recorded ancestor; `ticks` gives a process's start."""
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


# ---- Client of the proxy: keep one listener served by the run's current proxy process.
#
# The listener belongs to its user. The proxy is started with an agent, which needs its model, or when the first
# connection waits in the listener's backlog: most other trees never connect. If the proxy dies, connections wait until
# the next one serves the listener. A stopped proxy gets SIGCONT: otherwise every agent of the run would wait for it.


START_DEADLINE = 10.0
"""Seconds for a proxy to start and to serve a listener."""
RETRY_PAUSE = 10.0
"""Seconds before a proxy that did not start is started again."""
STOP_CHECK_INTERVAL = 1.0
"""Seconds between two checks whether the proxy is stopped."""
MARKER = "proxy"
"""Prefix of the name in the marker of proxy processes: they are not part of the incarnation that starts one."""


@dataclass(slots=True)
class ProxyClient:
    """One listener, registered with the run's proxy."""

    home: Path
    run_folder: Path
    registration: Registration
    listener: socket.socket
    more: tuple[socket.socket, ...] = ()
    """Listeners of the registration's forwards."""
    proxy: processes.ProcessId | None = None
    """The process that serves the listener."""
    _control: socket.socket | None = field(default=None)
    _user: processes.ProcessId | None = field(default=None)
    _retry_at: float = 0.0
    _check_at: float = 0.0

    def connect(self, within: float = START_DEADLINE) -> None:
        """Have the listener served, starting a proxy if there is none; Refused if that is impossible."""
        deadline = time.monotonic() + within
        started: processes.Child | None = None
        while True:
            try:
                return self._register(deadline)
            except (OSError, EOFError) as error:
                self._disconnect()
                if time.monotonic() > deadline:
                    raise Refused(f"the proxy of run {self.registration.run} does not start ({error}); see "
                                  f"{self._log()}") from error
            # A proxy that finds another one exits at once; if that one was about to exit, the next must be started.
            if started is None or processes.exit_code(started.pid, started.ticks) is not None:
                started = start_proxy(self.home, self.run_folder, self.registration.run, self._log())
            time.sleep(0.01)

    def keep(self) -> bool:
        """Have the listener served once a first connection waits, and again if the proxy has died; return whether that
        was needed. Also continue a stopped proxy. Call it often."""
        if self._control is not None and not _is_readable(self._control):
            self._check_for_stop()
            return False  # its end would be visible: the proxy sends nothing after its first answer
        if self.proxy is None and not _is_readable(self.listener):
            return False
        return self._try_to_connect()

    def serve(self) -> bool:
        """Have the listener served before anything connects; return whether that was needed."""
        return self._try_to_connect() if self._control is None else self.keep()

    def _try_to_connect(self) -> bool:
        self._disconnect()
        if time.monotonic() < self._retry_at:
            return False
        try:
            self.connect()
        except GarrisonError as error:  # the caller must not wait for it at each call
            self._retry_at = time.monotonic() + RETRY_PAUSE
            print(f"network: {error}", file=sys.stderr, flush=True)
        return True

    @property
    def awaits_connection(self) -> bool:
        """Return whether the next connection should wake the user; one that waits for a retry must not, repeatedly.
        """
        return self._control is None and time.monotonic() >= self._retry_at

    def outlive(self, user: processes.ProcessId) -> None:
        """Have the listener served while that process lives, even if this one dies."""
        self._user = user
        with contextlib.suppress(OSError):  # the proxy has died; its successor gets it
            self._tell_user()

    def replace_keys(self, apis: tuple[ApiAccess, ...]) -> None:
        """Use other keys of the same APIs for further calls; empty: no new keys."""
        if not apis or apis == self.registration.apis:
            return
        self.registration = replace(self.registration, apis=apis)
        if self._control is not None:
            with contextlib.suppress(OSError):  # the proxy has died; its successor gets it
                self._control.send(self.registration.encode())

    def close(self) -> None:
        """Close the listener and all its connections."""
        if self._control is not None and self._user is not None:
            with contextlib.suppress(OSError):
                self._control.send(b"0 0")
        self._disconnect()
        for listener in (self.listener, *self.more):
            listener.close()

    def _register(self, deadline: float) -> None:
        self._control = connect(self.run_folder)
        _continue(unix_socket.credentials(self._control)[0])
        self._control.settimeout(max(0.05, deadline - time.monotonic()))
        processes.send_descriptors(self._control, self.registration.encode(),
                                   [each.fileno() for each in (self.listener, *self.more)])
        answer = self._control.recv(32)
        if not answer:
            raise EOFError("it ended")
        process = processes.probe(int(answer))
        self.proxy = processes.ProcessId(process.pid, process.ticks) if process is not None else None
        self._tell_user()
        self._control.setblocking(False)

    def _check_for_stop(self) -> None:
        now = time.monotonic()
        if self.proxy is not None and now >= self._check_at:
            self._check_at = now + STOP_CHECK_INTERVAL
            _continue(self.proxy.pid, self.proxy.ticks)

    def _tell_user(self) -> None:
        if self._control is not None and self._user is not None:
            self._control.send(f"{self._user.pid} {self._user.ticks}".encode())

    def _disconnect(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def _log(self) -> Path:
        return self.run_folder / "layers" / "proxy.log"


def start_proxy(home: Path, run_folder: Path, run: str, log: Path) -> processes.Child:
    """Start a proxy process for a run; it exits by itself if the run has one."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    log_retention.shorten_log(log)
    marker = f"{home}:{run}:{MARKER}-{run}#1"
    argv = [*module_argv("garrison.sandbox.proxy.process"), str(run_folder), str(home)]
    child = forks.start(argv, env=child_environment(os.environ, (), {processes.MARKER: marker}), cwd=home, log=log)
    child.close()
    return child


def _continue(pid: int, ticks: int | None = None) -> None:
    """Continue a process that a signal stopped; with `ticks` only if it started then."""
    process = processes.probe(pid)
    if process is None or process.state != "T" or ticks not in (None, process.ticks):
        return
    with contextlib.suppress(GarrisonError):  # it is another user's
        if processes.send(process.pid, process.ticks, signal.SIGCONT):
            print(f"network: the proxy (process {pid}) was stopped, and is continued", file=sys.stderr, flush=True)


def _is_readable(end: socket.socket) -> bool:
    poller = select.poll()
    poller.register(end, select.POLLIN)
    return bool(poller.poll(0))
