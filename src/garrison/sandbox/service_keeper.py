"""Keeper: the process that starts a service, forwards its connections, and exits with its last user.

`python -P -m garrison.sandbox.service_keeper FOLDER`; started and described by `services`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.records import atomic, record
from garrison.records.json_io import read_json
from garrison.records.life_lock import LifeLock
from garrison.sandbox import network
from garrison.sandbox.confine import confine
from garrison.sandbox.dialer import Dialer, Unreachable, connect
from garrison.sandbox.layers import copy_tree
from garrison.sandbox.place import Network, Place, Role
from garrison.sandbox.proxy.connection import Clients
from garrison.sandbox.proxy.relay import join_to
from garrison.sandbox.proxy.upstream import BUFFER, Stream
from garrison.sandbox.rights import read_rights
from garrison.sandbox.services import (
    LOG,
    LOOK,
    READY_LOG,
    SETTINGS,
    SOCKET,
    STATE,
    USERS,
    Phase,
    ServiceSettings,
    ServiceState,
    end_left,
    marker_of,
)
from garrison.system import failpoint, processes, untrusted
from garrison.system.command import Job, read_tail
from garrison.system.environment import child_environment
from garrison.system.sockets import Listener
from garrison.system.unix_socket import listen
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DATA = "data"
RESTARTS = 2
"""Most restarts of a service that has ended."""
READY_SECONDS = 60.0
"""Time limit in seconds for a service to become ready."""
TEMPLATE_SECONDS = 300.0
TEMPLATE_DAYS = 14.0
"""Days after which an unused template is removed."""
_SLOW_LOOK = 1.0
_IDLE_SECONDS = 12 * 3600.0
UID = 65534
"""User inside if garrison is root: nobody, since servers such as PostgreSQL refuse to run as root."""


class Keeper:
    """Keeps one service."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = record.decode(ServiceSettings, atomic.read(folder / SETTINGS) or b"", folder / SETTINGS)
        own = processes.probe(os.getpid())
        self.state = ServiceState(pid=os.getpid(), ticks=own.ticks if own is not None else 0)
        self.namespace = network.create()
        self.namespace.listener.close()
        self.dialer = Dialer.enter_namespace(self.namespace.network)
        self.job: Job | None = None
        self._stopped = asyncio.Event()
        self._clients = Clients(self._join)
        self._seen = time.monotonic()

    async def run(self) -> None:
        """Keep it until it has no users, or a signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopped.set)
        self._write()
        server = await asyncio.start_unix_server(self._clients.accept, sock=listen(self.folder / SOCKET, 128),
                                                limit=BUFFER)
        failpoint.here("service:listening")
        end_left(self.settings, self.folder)
        try:
            self._prepare_data()
            await self._serve()
        except GarrisonError as error:
            self._write(phase=Phase.FAILED, line=str(error), ends=self.state.ends + 1)
            while await self._is_wanted():
                pass
        finally:
            server.close()
            await self._close()

    async def _serve(self) -> None:
        """Start the command, restart it when it ends; report when it is ready."""
        while await self._is_wanted(LOOK if self.state.phase is Phase.STARTING else _SLOW_LOOK):
            if self.state.phase is Phase.FAILED:
                continue
            if self.job is None:
                self.job, began = self._run(self.settings.service.command, LOG), time.monotonic()
                failpoint.here("service:started")
            if (end := self.job.poll(time.monotonic())) is not None:
                self.job = None
                lines = read_tail(self.folder / LOG, 1).splitlines() or [f"exit code {end.code}"]
                ends = self.state.ends + 1
                failpoint.here("service:ended")
                self._write(ends=ends, line=lines[-1][:300],
                            phase=Phase.FAILED if ends > RESTARTS else Phase.STARTING)
            elif self.state.phase is Phase.STARTING:
                if await self._is_ready():
                    self._write(phase=Phase.READY)
                    failpoint.here("service:ready")
                elif time.monotonic() - began > READY_SECONDS:
                    self._write(phase=Phase.FAILED, ends=self.state.ends, line=f"not ready after {READY_SECONDS:g} s")

    async def _is_ready(self) -> bool:
        """Return whether its port accepts a connection and its `ready` command, if any, succeeds."""
        try:
            (await self._connect()).close()
        except Unreachable:
            return False
        if not self.settings.service.ready:
            return True
        job = self._run(self.settings.service.ready, READY_LOG, timeout=10.0)
        while (end := job.poll(time.monotonic())) is None:
            await asyncio.sleep(0.02)
        return end.ok

    async def _is_wanted(self, pause: float = _SLOW_LOOK) -> bool:
        """Wait briefly; return whether the service is still used."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._stopped.wait()
        now = time.monotonic()
        if now - self._seen > _SLOW_LOOK and any(self._living_users()):
            self._seen = now
        is_used = now - self._seen < self.settings.linger
        return is_used and not self._stopped.is_set() and (self.folder / SETTINGS).exists()

    def _living_users(self) -> Iterable[bool]:
        users = read_json(self.folder / USERS)
        if not isinstance(users, dict):
            return
        for pid, ticks in users.get("processes", []):
            yield processes.is_running(pid, ticks)
        for path in users.get("identities", []):
            body = read_json(Path(path))
            if isinstance(body, dict) and processes.same_boot(str(body.get("boot_id", ""))):
                yield processes.is_running(int(body.get("pid") or 0), int(body.get("start_ticks") or 0))

    # ---- the command

    def _run(self, command: str, log: str, timeout: float | None = None) -> Job:
        """Start a command of the service in its sandbox and its network."""
        return start_confined(self.settings, command, self.folder, self.folder / DATA, self.folder / log,
                              self.namespace.entry(), timeout)

    def _prepare_data(self) -> None:
        """Give the service its own data folder; reuse a killed keeper's."""
        data, template = self.folder / DATA, self.settings.service.template
        if data.is_dir():
            return
        # Renamed once complete: the partial copy of a killed keeper is not mistaken for data by the next.
        making = atomic.make_directory(self.folder / "data.part")
        if template:
            copy_tree(template_folder(self.settings, self.namespace.entry()), making)
        failpoint.here("service:copied")
        making.rename(data)
        failpoint.here("service:data")

    async def _connect(self) -> Stream:
        port = self.settings.service.port
        return await connect(self.dialer.make_socket(is_v6=False), Listener(port, "127.0.0.1", 0))

    # ---- connections

    async def _join(self, client: Stream) -> None:
        with suppress(Unreachable, OSError):  # the client sees a connection that closes at once
            await join_to(client, self._connect(), _IDLE_SECONDS)

    def _write(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)
        atomic.write(self.folder / STATE, record.encode(self.state), durable=False)

    async def _close(self) -> None:
        """End the command, whose data is discarded, and remove the folder."""
        self._clients.cancel()
        if self.job is not None:
            processes.send(self.job.pid, self.job.ticks, signal.SIGKILL)
            until = time.monotonic() + 10.0
            while self.job.poll(time.monotonic()) is None and time.monotonic() < until:
                self.job.kill()
                await asyncio.sleep(0.02)
        failpoint.here("service:stopped")
        self.dialer.close()
        self.namespace.close()
        with suppress(GarrisonError, OSError):
            untrusted.remove(self.folder.parent, self.folder.name)


def start_confined(settings: ServiceSettings, command: str, folder: Path, data: Path, log: Path,
                   entry: Sequence[str], timeout: float | None = None) -> Job:
    """Start a shell line of a service: it may write to its data folder, and has only its own network."""
    home, service = Path(settings.home), settings.service
    rights = replace(read_rights(home, Role.TOOL), network=Network.NONE, host_ports=())
    place = Place(Role.TOOL, rights, data, folder / "private", entry=tuple(entry),
                  user=UID if os.geteuid() == 0 else None)
    line = command.replace("{port}", str(service.port)).replace("{data}", str(data))
    env = child_environment({**os.environ, "PATH": settings.path}, (), {processes.MARKER: marker_of(settings, log)})
    confined = confine(["/bin/sh", "-c", line], env, place)
    return Job.start(confined.argv, env=confined.env, cwd=data, log=log, timeout_s=timeout, grace=0.0)


def template_folder(settings: ServiceSettings, entry: Sequence[str]) -> Path:
    """Return the data folder from the template of a service, created once per command and version of its programs."""
    store = atomic.make_directory(Path(settings.store))
    words = (settings.service.template, settings.service.command, settings.path, str(os.geteuid()))
    key = hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]
    folder = store / key
    with atomic.locked(store / f"{key}.lock"):
        if (folder / DATA).is_dir():
            os.utime(folder)
            return folder / DATA
        _sweep(store)
        end_left(settings, folder)
        if folder.exists():  # from a killed keeper
            untrusted.remove(store, key)
        making = atomic.make_directory(folder / "data.part")
        job = start_confined(settings, settings.service.template.replace("{data}", str(making)), folder, making,
                             folder / LOG, entry, TEMPLATE_SECONDS)
        failpoint.here("service:template")
        while (end := job.poll(time.monotonic())) is None:
            time.sleep(LOOK)
        failpoint.here("service:templated")
        if not end.ok:
            raise GarrisonError(f"its template failed (exit {end.code}): {read_tail(folder / LOG, 1)}")
        making.rename(folder / DATA)
        failpoint.here("service:kept")
        return folder / DATA


def _sweep(store: Path) -> None:
    old = time.time() - TEMPLATE_DAYS * 86400
    for name in atomic.list_names(store):
        with suppress(OSError, GarrisonError):
            if (store / name).is_dir() and (store / name).stat().st_mtime < old:
                untrusted.remove(store, name)


def main(argv: list[str] | None = None) -> int:
    """Run as the keeper of a folder; exit 0 at once if it has one."""
    folder = Path((sys.argv[1:] if argv is None else argv)[0])
    os.umask(0o077)
    lock = LifeLock.try_acquire(folder.parent / f".{folder.name}.life")
    if lock is None:
        return 0
    failpoint.here("service:locked")
    try:
        asyncio.run(Keeper(folder).run())
    finally:
        with suppress(OSError):
            lock.path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
