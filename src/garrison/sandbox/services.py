"""Services: servers that a run starts for its nodes, such as a database, each with its own data folder.

A keeper (`service_keeper`), one process per service and node (or run, or gate), starts the command in a sandbox with
its own network, where only its port is reachable: inside a node, a forward connects to the keeper's Unix socket, and
that to the port. The service is not trusted, since an agent's input to a database may run programs in it.

| event | the keeper |
|---|---|
| it is started | copies the template's data folder, starts the command, runs `ready` until it succeeds |
| the command ends | restarts it, twice; then records its last line, and stays |
| no living user for `LINGER` seconds, or SIGTERM | ends the command, removes the folder |
| it is killed | the command dies with it, or is ended by the next keeper, which uses the same data |
| its folder is gone | ends the command |
"""

from __future__ import annotations

import os
import signal
import time
import zlib
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.config import ServiceConfig, read_config
from garrison.errors import GarrisonError, Refused, Shortage
from garrison.records import atomic, record
from garrison.records.json_io import read_json, write_json
from garrison.sandbox.place import AUTO_VARIABLE, MODE_VARIABLE, Mode, Role
from garrison.sandbox.probe import mode_here
from garrison.sandbox.proxy.allowed_hosts import RefusedHost, write_refused
from garrison.sandbox.proxy.forwards import Forward
from garrison.sandbox.rights import read_rights
from garrison.system import forks, processes, untrusted
from garrison.system.clock import wait_until
from garrison.system.environment import child_environment
from garrison.system.machine import module_argv
from garrison.system.process_control import kill_tree
from garrison.system.processes import ProcessId
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FOLDER = "services"
"""Folder with a folder for each service, of a node's sandbox, of a run, or of a gate's slot."""
TEMPLATES = ".services"
"""Folder of a repository's worktrees with the data folders from templates, one per command and version."""
SETTINGS, STATE, LOG, SOCKET, USERS = "settings.json", "state.json", "output.log", "socket", "users.json"
READY_LOG = "ready.log"
"""Files of a service's folder."""
LINGER = 15.0
"""Seconds without a living user after which a keeper exits: a killed runner has a successor by then."""
INLINE_SECONDS = 10.0
"""Seconds that its user waits for it in one call."""
LOOK = 0.05


class Phase(StrEnum):
    """State of a service."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


class ServiceState(Value):
    """Status of a service, from its keeper."""

    phase: Phase = Phase.STARTING
    ends: int = 0
    """How often its command has ended."""
    line: str = ""
    """Last line of its output before it ended."""
    pid: int = 0
    ticks: int = 0
    """The keeper process."""


class ServiceSettings(Value):
    """Settings of a keeper."""

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
    """User of services: where their folders are, and which processes keep them alive."""

    run: str
    folder: Path
    """Folder of those with `per = "node"`."""
    run_folder: Path
    """Folder of those with `per = "run"`."""
    store: Path
    identities: tuple[Path, ...] = ()
    """Records of processes; a living one keeps a service."""
    run_identities: tuple[Path, ...] = ()
    process: ProcessId | None = None
    """A process that also keeps it."""
    linger: float = LINGER


def marker_of(settings: ServiceSettings, log: Path) -> str:
    """Return the marker of the command that writes that log; each has its own, since a job kills all processes with its
    marker."""
    return f"{settings.home}:{settings.run}:service-{settings.name}#{2 + zlib.crc32(os.fsencode(log))}"


def variables(home: Path) -> dict[str, str]:
    """Return the variables that point programs inside to the services of a home."""
    return {name: value.replace("{port}", str(service.port)) for service in read_config(home).services().values()
            for name, value in service.env}


def check(home: Path, mode: Mode) -> None:
    """Refuse impossible services of a home: without bubblewrap, or two on one port."""
    services = read_config(home).services()
    if services and mode_here(mode) is not Mode.BUBBLEWRAP:
        raise Refused(f"[services.{next(iter(services))}] of config.toml needs bubblewrap: without it a service would "
                      "run as you do; install bubblewrap, or use a server of your own")
    ports: dict[int, str] = {port: "host_ports" for host, port in read_rights(home, Role.AGENT).host_ports
                             if host == "127.0.0.1"}
    for name, service in services.items():
        if service.port in ports:
            raise Refused(f"port {service.port} of [services.{name}] is also used by {ports[service.port]}; give "
                          "it another")
        ports[service.port] = f"[services.{name}]"


def provide(home: Path, user: ServiceUser, environ: Mapping[str, str], report: Path | None = None,
            ) -> tuple[Forward, ...]:
    """Run all services of a home for a user, and return the forwards to them; Shortage while one is starting.

    Args:
        report: file for services that do not run, in the form of refused hosts.
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
    """Restart killed keepers of a user's services, without waiting for them."""
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
    """Start a keeper for a folder; it exits at once if there is one."""
    atomic.make_directory(folder)  # a keeper that is just exiting removes it
    _record_users(folder, settings, user)
    atomic.write(folder / SETTINGS, record.encode(settings))
    argv = [*module_argv("garrison.sandbox.service_keeper"), str(folder)]
    marker = f"{settings.home}:{settings.run}:service-{settings.name}#1"
    modes = {name: value for name, value in os.environ.items() if name in (MODE_VARIABLE, AUTO_VARIABLE)}
    env = child_environment({**os.environ, "PATH": settings.path}, (), {**modes, processes.MARKER: marker})
    forks.start(argv, env=env, cwd=settings.home, log=folder / "keeper.log").close()


def _record_users(folder: Path, settings: ServiceSettings, user: ServiceUser) -> None:
    identities = user.run_identities if settings.service.per == "run" else user.identities
    users = {"identities": [str(path) for path in identities],
             "processes": [] if user.process is None else [[user.process.pid, user.process.ticks]]}
    if read_json(folder / USERS) != users:
        write_json(folder / USERS, users)


def _start(folder: Path, settings: ServiceSettings, user: ServiceUser, until: float) -> ServiceState:
    """Make sure a folder has a keeper, and return the state of its service once it is ready or has failed."""
    while True:
        state = read_state(folder)
        if not processes.is_running(state.pid, state.ticks):
            _start_keeper(folder, settings, user)
            wait_until(lambda: processes.is_running(*_keeper_of(folder)), min(until - time.monotonic(), 3.0), LOOK)
            state = read_state(folder)
        else:
            _record_users(folder, settings, user)
        if state.phase is not Phase.STARTING:
            return state
        if time.monotonic() > until:
            raise Shortage(f"the service {settings.name} is not ready yet ({folder / LOG}); waiting for it")
        time.sleep(LOOK)


def _keeper_of(folder: Path) -> tuple[int, int]:
    state = read_state(folder)
    return state.pid, state.ticks


def read_state(folder: Path) -> ServiceState:
    """Return the state of a service; starting if the state is missing or damaged."""
    with suppress(GarrisonError, OSError):
        if (data := atomic.read(folder / STATE)) is not None:
            return record.decode(ServiceState, data, folder / STATE)
    return ServiceState()


def use_until_end_of(folder: Path, process: ProcessId) -> None:
    """Keep the services in a folder also while that process lives."""
    for each in _folders(folder):
        users = read_json(each / USERS)
        if isinstance(users, dict):
            more = [*users.get("processes", []), [process.pid, process.ticks]]
            write_json(each / USERS, {**users, "processes": more})


def stop(folder: Path) -> None:
    """End the services in a folder, and remove it."""
    keepers = [read_state(each) for each in _folders(folder)]
    left = [(settings, each) for each in _folders(folder) if (settings := _settings_of(each)) is not None]
    for state in keepers:
        with suppress(GarrisonError):
            processes.send(state.pid, state.ticks, signal.SIGTERM)
    wait_until(lambda: not any(processes.is_running(state.pid, state.ticks) for state in keepers), 10.0, LOOK)
    for settings, each in left:
        end_left(settings, each)
    if folder.is_dir():
        with suppress(GarrisonError, OSError):
            untrusted.remove(folder.parent, folder.name)


def end_left(settings: ServiceSettings, folder: Path) -> None:
    """End a killed keeper's leftovers in a folder: a sandbox that is just being created does not end with it."""
    for log in (LOG, READY_LOG):
        with suppress(GarrisonError):
            kill_tree(None, marker_of(settings, folder / log), grace=0.0)


def _settings_of(folder: Path) -> ServiceSettings | None:
    with suppress(GarrisonError, OSError):
        return record.decode(ServiceSettings, atomic.read(folder / SETTINGS) or b"", folder / SETTINGS)
    return None


def _folders(folder: Path) -> list[Path]:
    return [folder / name for name in atomic.list_names(folder) if (folder / name / SETTINGS).exists()]
