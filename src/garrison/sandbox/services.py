"""Services: servers that a run starts for its nodes, such as a database, each with its own data folder.

A keeper, one process per service and node (or run, or gate), starts the command in a sandbox with its own network,
where nothing but its port is reached: from inside a node, a forward leads to the keeper's Unix socket, and that to the
port.
The service is not trusted, since what an agent says to a database may run programs in it.

| event | the keeper |
|---|---|
| it is started | copies the template's data folder, starts the command, asks `ready` until that succeeds |
| the command ends | starts it again, twice; then notes its last line, and stays |
| no user of it lives for `LINGER` seconds, or SIGTERM | ends the command, removes the folder |
| it is killed | the command dies with it; the next user starts another keeper on the same data |
| its folder is gone | ends the command |
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.config import ServiceConfig, read_config
from garrison.errors import GarrisonError, Refused, Shortage
from garrison.records import atomic, record
from garrison.records.json_io import read_json, write_json
from garrison.records.life_lock import LifeLock
from garrison.sandbox import network
from garrison.sandbox.confine import confine
from garrison.sandbox.dialer import Dialer, Unreachable, connect
from garrison.sandbox.layers import copy_tree
from garrison.sandbox.place import AUTO_VARIABLE, MODE_VARIABLE, Mode, Network, Place, Role
from garrison.sandbox.probe import mode_here
from garrison.sandbox.proxy.forwards import Forward
from garrison.sandbox.proxy.hosts import RefusedHost, write_refused
from garrison.sandbox.proxy.relay import join
from garrison.sandbox.proxy.upstream import BUFFER, Stream
from garrison.sandbox.rights import read_rights
from garrison.system import processes, untrusted
from garrison.system.command import Job, read_tail
from garrison.system.environment import child_environment
from garrison.system.machine import module_argv
from garrison.system.processes import ProcessId
from garrison.system.sockets import Listener
from garrison.system.unix_socket import short_path
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

FOLDER = "services"
"""Folder with a folder for each service, of a node's sandbox, of a run, or of a gate's slot."""
TEMPLATES = ".services"
"""Folder of a repository's worktrees with the data folders that templates made, one for each command and version."""
SETTINGS, STATE, LOG, DATA, SOCKET, USERS = "settings.json", "state.json", "output.log", "data", "socket", "users.json"
"""Files of a service's folder."""
RESTARTS = 2
"""Times that a service which has ended is started again."""
LINGER = 15.0
"""Seconds without a living user after which a keeper ends: a killed runner has a successor by then."""
READY_SECONDS = 60.0
"""Seconds for a service to become ready."""
INLINE_SECONDS = 10.0
"""Seconds that its user waits for it at a time."""
TEMPLATE_SECONDS = 300.0
TEMPLATE_DAYS = 14.0
"""Days after which a template that was not used is removed."""
_LOOK = 0.05
_SLOW_LOOK = 1.0
_IDLE_SECONDS = 12 * 3600.0
UID = 65534
"""User inside where garrison is root: nobody, since servers such as PostgreSQL refuse to be root."""


class Phase(StrEnum):
    """State of a service."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


class ServiceState(Value):
    """What its keeper says of a service."""

    phase: Phase = Phase.STARTING
    ends: int = 0
    """How often its command has ended."""
    line: str = ""
    """Last line that it printed before it ended."""
    pid: int = 0
    ticks: int = 0
    """Its keeper."""


class ServiceSettings(Value):
    """What a keeper works by."""

    name: str
    run: str
    service: ServiceConfig
    home: str
    store: str
    """Folder of the templates."""
    path: str
    """PATH of its commands."""
    linger: float = LINGER


class ServiceUser(Value):
    """Who uses services: where their folders are, and whose life they share."""

    run: str
    folder: Path
    """Folder of those with `per = "node"`."""
    run_folder: Path
    """Folder of those with `per = "run"`."""
    store: Path
    identities: tuple[Path, ...] = ()
    """Records of processes; one that lives keeps a service."""
    run_identities: tuple[Path, ...] = ()
    process: ProcessId | None = None
    """A process that keeps it as well."""
    linger: float = LINGER


def variables(home: Path) -> dict[str, str]:
    """Return the variables that lead programs inside to the services of a home."""
    return {name: value.replace("{port}", str(service.port)) for service in read_config(home).services().values()
            for name, value in service.env}


def check(home: Path, mode: Mode) -> None:
    """Refuse services of a home that cannot be had: without bubblewrap, or two at one port."""
    services = read_config(home).services()
    if services and mode_here(mode) is not Mode.BUBBLEWRAP:
        raise Refused(f"[services.{next(iter(services))}] of config.toml needs bubblewrap: without it a service would "
                      "run as you do; install bubblewrap, or use a server of your own")
    ports: dict[int, str] = {port: "host_ports" for host, port in read_rights(home, Role.AGENT).host_ports
                             if host == "127.0.0.1"}
    for name, service in services.items():
        if service.port in ports:
            raise Refused(f"port {service.port} of [services.{name}] is that of {ports[service.port]} as well; give "
                          "it another")
        ports[service.port] = f"[services.{name}]"


def provide(home: Path, user: ServiceUser, environ: Mapping[str, str], report: Path | None = None,
            ) -> tuple[Forward, ...]:
    """Have all services of a home run for a user, and return the forwards to them; Shortage while one is starting.

    Args:
        report: file for those that do not run, in the form of refused hosts.
    """
    forwards, failed = [], []
    until = time.monotonic() + INLINE_SECONDS
    for folder, settings in _wanted(home, user, environ):
        state = _start(folder, settings, user, until)
        forwards.append(Forward("127.0.0.1", settings.service.port, socket=str(folder / SOCKET)))
        if state.phase is Phase.FAILED:
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            failed.append(RefusedHost(f"service {settings.name}",
                                      f"its command has ended {state.ends} times: {state.line}", at, at, 1))
    if report is not None and failed:
        write_refused(report, failed)
    return tuple(forwards)


def tend(home: Path, user: ServiceUser, environ: Mapping[str, str]) -> None:
    """Start the keepers of a user's services again that were killed, without waiting for them."""
    for folder, settings in _wanted(home, user, environ):
        if not processes.is_running(*_keeper_of(folder)):
            _start_keeper(folder, settings, user)


def _wanted(home: Path, user: ServiceUser, environ: Mapping[str, str]) -> Iterator[tuple[Path, ServiceSettings]]:
    """Yield the folder and settings of each service that a user has."""
    for name, service in read_config(home).services().items():
        folder = (user.run_folder if service.per == "run" else user.folder) / name
        yield folder, ServiceSettings(name, user.run, service, str(home), str(user.store),
                                      environ.get("PATH", os.defpath), user.linger)


def _start_keeper(folder: Path, settings: ServiceSettings, user: ServiceUser) -> None:
    """Start a keeper for a folder; it ends at once if there is one."""
    atomic.make_directory(folder)  # a keeper that has just ended removes it
    _record_users(folder, settings, user)
    atomic.write(folder / SETTINGS, record.encode(settings))
    argv = [*module_argv("garrison.sandbox.services"), str(folder)]
    marker = f"{settings.home}:{settings.run}:service-{settings.name}#1"
    modes = {name: value for name, value in os.environ.items() if name in (MODE_VARIABLE, AUTO_VARIABLE)}
    processes.spawn(argv, env=child_environment({**os.environ, "PATH": settings.path}, (),
                                                {**modes, processes.MARKER: marker}),
                    cwd=settings.home, log=folder / "keeper.log").close()


def _record_users(folder: Path, settings: ServiceSettings, user: ServiceUser) -> None:
    identities = user.run_identities if settings.service.per == "run" else user.identities
    users = {"identities": [str(path) for path in identities],
             "processes": [] if user.process is None else [[user.process.pid, user.process.ticks]]}
    if read_json(folder / USERS) != users:
        write_json(folder / USERS, users)


def _start(folder: Path, settings: ServiceSettings, user: ServiceUser, until: float) -> ServiceState:
    """Have a keeper work on a folder, and return the state of its service once that is ready or has failed."""
    while True:
        state = read_state(folder)
        if not processes.is_running(state.pid, state.ticks):
            _start_keeper(folder, settings, user)
            _await(lambda: processes.is_running(*_keeper_of(folder)), min(until, time.monotonic() + 3.0))
            state = read_state(folder)
        else:
            _record_users(folder, settings, user)
        if state.phase is not Phase.STARTING:
            return state
        if time.monotonic() > until:
            raise Shortage(f"the service {settings.name} is not ready yet ({folder / LOG}); it is waited for")
        time.sleep(_LOOK)


def _await(condition: Callable[[], bool], until: float) -> None:
    while not condition() and time.monotonic() < until:
        time.sleep(_LOOK)


def _keeper_of(folder: Path) -> tuple[int, int]:
    state = read_state(folder)
    return state.pid, state.ticks


def read_state(folder: Path) -> ServiceState:
    """Return what is known of a service; that it is starting for a folder without, or with a damaged, state."""
    with suppress(GarrisonError, OSError):
        if (data := atomic.read(folder / STATE)) is not None:
            return record.decode(ServiceState, data, folder / STATE)
    return ServiceState()


def use_until_end_of(folder: Path, process: ProcessId) -> None:
    """Keep the services in a folder while that process lives as well."""
    for each in _folders(folder):
        users = read_json(each / USERS)
        if isinstance(users, dict):
            more = [*users.get("processes", []), [process.pid, process.ticks]]
            write_json(each / USERS, {**users, "processes": more})


def stop(folder: Path) -> None:
    """End the services in a folder, and remove it."""
    keepers = [read_state(each) for each in _folders(folder)]
    for state in keepers:
        with suppress(GarrisonError):
            processes.send(state.pid, state.ticks, signal.SIGTERM)
    _await(lambda: not any(processes.is_running(state.pid, state.ticks) for state in keepers), time.monotonic() + 10)
    if folder.is_dir():
        with suppress(GarrisonError, OSError):
            untrusted.remove(folder.parent, folder.name)


def _folders(folder: Path) -> list[Path]:
    return [folder / name for name in atomic.list_names(folder) if (folder / name / SETTINGS).exists()]


# ---- keeper ----------------------------------------------------------------------------------------------------------


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
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen = time.monotonic()

    async def run(self) -> None:
        """Keep it until nobody uses it, or a signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopped.set)
        self._write()
        server = await asyncio.start_unix_server(self._accept, sock=self._listen(), limit=BUFFER)
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
        """Start the command, and again when it ends; tell when it is ready."""
        while await self._is_wanted(_LOOK if self.state.phase is Phase.STARTING else _SLOW_LOOK):
            if self.state.phase is Phase.FAILED:
                continue
            if self.job is None:
                self.job, began = self._run(self.settings.service.command, LOG), time.monotonic()
            if (end := self.job.poll(time.monotonic())) is not None:
                self.job = None
                lines = read_tail(self.folder / LOG, 1).splitlines() or [f"exit code {end.code}"]
                ends = self.state.ends + 1
                self._write(ends=ends, line=lines[-1][:300],
                            phase=Phase.FAILED if ends > RESTARTS else Phase.STARTING)
            elif self.state.phase is Phase.STARTING:
                if await self._is_ready():
                    self._write(phase=Phase.READY)
                elif time.monotonic() - began > READY_SECONDS:
                    self._write(phase=Phase.FAILED, ends=self.state.ends, line=f"not ready after {READY_SECONDS:g} s")

    async def _is_ready(self) -> bool:
        """Return whether its port takes a connection, and `ready` succeeds if there is one."""
        try:
            (await self._connect()).close()
        except Unreachable:
            return False
        if not self.settings.service.ready:
            return True
        job = self._run(self.settings.service.ready, "ready.log", timeout=10.0)
        while (end := job.poll(time.monotonic())) is None:
            await asyncio.sleep(0.02)
        return end.ok

    async def _is_wanted(self, pause: float = _SLOW_LOOK) -> bool:
        """Wait a little; return whether the service is used still."""
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
        """Give the service a data folder of its own; that of a killed keeper is used again."""
        data, template = self.folder / DATA, self.settings.service.template
        if data.is_dir():
            return
        making = atomic.make_directory(self.folder / "data.part")
        if template:
            copy_tree(template_folder(self.settings, self.namespace.entry()), making)
        making.rename(data)

    async def _connect(self) -> Stream:
        port = self.settings.service.port
        return await connect(self.dialer.make_socket(is_v6=False), Listener(port, "127.0.0.1", 0))

    # ---- connections

    def _listen(self) -> socket.socket:
        path = self.folder / SOCKET
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_path(path) as name:
            listener.bind(name)
        path.chmod(0o600)
        listener.listen(128)
        return listener

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        client = Stream(reader, writer)
        try:
            upstream = await self._connect()
            try:
                await join(client, upstream, _IDLE_SECONDS)
            finally:
                upstream.close()
        except (Unreachable, OSError, asyncio.CancelledError):
            pass  # the client sees a connection that ends at once
        finally:
            self._tasks.discard(task)
            client.close()

    def _write(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)
        atomic.write(self.folder / STATE, record.encode(self.state), durable=False)

    async def _close(self) -> None:
        """End the command, which loses nothing that is kept, and remove the folder."""
        for task in list(self._tasks):
            task.cancel()
        if self.job is not None:
            processes.send(self.job.pid, self.job.ticks, signal.SIGKILL)
            until = time.monotonic() + 10.0
            while self.job.poll(time.monotonic()) is None and time.monotonic() < until:
                self.job.kill()
                await asyncio.sleep(0.02)
        self.dialer.close()
        self.namespace.close()
        with suppress(GarrisonError, OSError):
            untrusted.remove(self.folder.parent, self.folder.name)


def start_confined(settings: ServiceSettings, command: str, folder: Path, data: Path, log: Path,
                   entry: Sequence[str], timeout: float | None = None) -> Job:
    """Start a shell line of a service: it may write its data folder, and reaches its own network alone."""
    home, service = Path(settings.home), settings.service
    rights = replace(read_rights(home, Role.TOOL), network=Network.NONE, host_ports=())
    place = Place(Role.TOOL, rights, data, folder / "private", entry=tuple(entry),
                  user=UID if os.geteuid() == 0 else None)
    line = command.replace("{port}", str(service.port)).replace("{data}", str(data))
    env = child_environment({**os.environ, "PATH": settings.path}, (), {})
    confined = confine(["/bin/sh", "-c", line], env, place)
    return Job.start(confined.argv, env=confined.env, cwd=data, log=log, timeout_s=timeout, grace=0.0)


def template_folder(settings: ServiceSettings, entry: Sequence[str]) -> Path:
    """Return the data folder that the template of a service made, once for each command and version of its programs."""
    store = atomic.make_directory(Path(settings.store))
    words = (settings.service.template, settings.service.command, settings.path, str(os.geteuid()))
    key = hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]
    folder = store / key
    with atomic.locked(store / f"{key}.lock"):
        if (folder / DATA).is_dir():
            os.utime(folder)
            return folder / DATA
        _sweep(store)
        if folder.exists():  # of a keeper that was killed
            untrusted.remove(store, key)
        making = atomic.make_directory(folder / "data.part")
        job = start_confined(settings, settings.service.template.replace("{data}", str(making)), folder, making,
                             folder / LOG, entry, TEMPLATE_SECONDS)
        while (end := job.poll(time.monotonic())) is None:
            time.sleep(_LOOK)
        if not end.ok:
            raise GarrisonError(f"its template failed (exit {end.code}): {read_tail(folder / LOG, 1)}")
        making.rename(folder / DATA)
        return folder / DATA


def _sweep(store: Path) -> None:
    old = time.time() - TEMPLATE_DAYS * 86400
    for name in atomic.list_names(store):
        with suppress(OSError, GarrisonError):
            if (store / name).is_dir() and (store / name).stat().st_mtime < old:
                untrusted.remove(store, name)


def main(argv: list[str] | None = None) -> int:
    """Be the keeper of a folder; exit 0 at once if it has one."""
    folder = Path((sys.argv[1:] if argv is None else argv)[0])
    os.umask(0o077)
    lock = LifeLock.try_acquire(folder.parent / f".{folder.name}.life")
    if lock is None:
        return 0
    try:
        asyncio.run(Keeper(folder).run())
    finally:
        with suppress(OSError):
            lock.path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
