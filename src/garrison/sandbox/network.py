"""Network of a confined tree: access to it, and the variables that point programs to it.

| network | sandbox | the tree gets |
|---|---|---|
| `none` | bubblewrap, Landlock | its own loopback device, nothing else; Landlock alone only restricts TCP |
| `none` | none | the machine's network, unrestricted |
| `allow` | bubblewrap, Landlock | its own loopback device, and on it the run's proxy, to allowed hosts and model APIs |
| `allow` | none | the machine's network; variables point to the proxy, but nothing forces a program to use it |
| `open` | any but none | the machine's network; model APIs through the proxy, so that keys stay outside |
| `open` | none | the machine's network and the keys, as without a sandbox |

`host_ports` add listeners on its own loopback device, which the proxy serves (`proxy.forwards`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from garrison.config import read_config
from garrison.errors import GarrisonError, Refused, Shortage
from garrison.records import costs
from garrison.records.budget import NO_LIMITS, Limits
from garrison.sandbox.place import NETWORK_FOLDER, Mode, Network, Place, Rights, Role
from garrison.sandbox.proxy.allowed_hosts import (
    DEFAULT_PORTS,
    REFUSED_PORTS,
    RefusedHost,
    find_rule,
    normalize_host,
    parse_rules,
    write_refused,
)
from garrison.sandbox.proxy.apis import APIS, Api, KeyVariable
from garrison.sandbox.proxy.forwards import (
    MAX_TOLD,
    PORT,
    Forward,
    bind,
    forwards_of,
    hosts_mount,
    ports_of_machine,
    read_resets,
    watch_resets,
)
from garrison.sandbox.proxy.registration import START_DEADLINE, ApiAccess, ProxyClient, Registration
from garrison.sandbox.rights import read_rights
from garrison.system import processes
from garrison.system.git.submodules import connect_as_user
from garrison.system.machine import ERRNOS
from garrison.tables import as_amount, or_none
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.system.event_loop import EventLoop
    from garrison.system.git import Git
    from garrison.system.git.submodules import Connect
    from garrison.system.processes import ProcessId

_KEYS_INTERVAL = 2.0
"""Seconds between two reads of keys that change, such as a log-in's token when it is renewed."""
_NO_PROXY = ("no_proxy", "NO_PROXY")
_LOCAL = "localhost,127.0.0.1,::1"


class NetworkUser(Value):
    """User of a network: the node and attempt that its calls and refused hosts are counted for."""

    home: Path
    run: str
    node: str
    attempt: int
    folder: Path
    """Folder of the attempt."""
    limits: Limits = NO_LIMITS
    reported_by: str = ""
    """Prefix of the User-Agent of a program that reports its own usage; '' if there is none."""

    run_directory: Path | None = None
    """Folder for the proxy of a run outside the home; None for a run in the home."""

    account: str = ""
    """The run's place in costs, '' for the run itself."""

    forwards: tuple[Forward, ...] = ()
    """Ports inside that are forwarded to servers outside, in addition to `host_ports`."""

    @property
    def run_folder(self) -> Path:
        """Return the folder of the run; outside of a run, the attempt's."""
        if self.run_directory is not None:
            return self.run_directory
        folder = self.home / "runs" / self.run
        return folder if self.run and folder.is_dir() else self.folder


class NetworkPlace(msgspec.Struct):
    """The network prepared for one confined tree. Keep it while the tree runs, call `keep` often, then `close`."""

    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Variables that replace the user's in the tree."""
    withheld: frozenset[str] = frozenset()
    """Variables that it does not get."""
    entry: tuple[str, ...] = ()
    """Prefix that starts the command in the prepared namespace; empty: nothing to enter."""
    client: ProxyClient | None = None
    namespace: NetNamespace | None = None
    forwards: tuple[Forward, ...] = ()
    account: str = ""
    """Fingerprint of the keys of model APIs that the tree uses, also if they are not withheld; '' for none."""
    read_keys: Callable[[], Mapping[str, str]] | None = None
    """Reads the variables of keys that change while the tree runs; None if they do not."""
    tend: Callable[[], None] | None = None
    """Restarts killed targets of its forwards; None if nothing needs it."""
    _keys_at: float = 0.0
    _tended_at: float = 0.0
    _told: set[int] = msgspec.field(default_factory=set)
    """Ports of this machine that the tree tried to reach."""

    @property
    def names(self) -> frozenset[str]:
        return self.withheld | self.environment.keys()

    def apply(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the tree: `env` without keys, with the variables that point to the proxy."""
        return {**{name: value for name, value in env.items() if name not in self.withheld}, **self.environment}

    def open_in(self, place: Place | None) -> Place | None:
        """Return the place with this network: `confine` starts the tree in the prepared namespace."""
        if place is None:
            return place
        ports = (self.client.listener.getsockname()[1],) if self.client is not None else ()
        return replace(place, entry=self.entry, ports=ports + tuple(each.port for each in self.forwards),
                       mounts=(*place.mounts, *hosts_mount(self.forwards, place.private)))

    @property
    def process(self) -> ProcessId | None:
        """Return the proxy process; None before it is started."""
        return self.client.proxy if self.client is not None else None

    def watch(self, event_loop: EventLoop) -> None:
        """Wake when the proxy ends; without a proxy, when a connection waits for one."""
        if self.client is None:
            return
        if self.client.awaits_connection:
            event_loop.watch_descriptor(self.client.listener.fileno())
            return
        event_loop.forget_descriptor(self.client.listener.fileno())  # the proxy handles its own connections
        if self.process is not None:
            event_loop.watch_process(self.process.pid, self.process.ticks)

    @property
    def unserved(self) -> int | None:
        """Return the descriptor that becomes readable when a connection waits for a proxy; None if none should wake
        us."""
        return self.client.listener.fileno() if self.client is not None and self.client.awaits_connection else None

    def keep(self) -> bool:
        """Have a proxy serve a waiting connection, with the current keys; return whether that was needed."""
        if self.client is None:
            return False
        now = time.monotonic()
        self._tell_refused_ports()
        if self.tend is not None and now >= self._tended_at:
            self._tended_at = now + _KEYS_INTERVAL
            self.tend()
        if self.read_keys is not None and now >= self._keys_at:
            self._keys_at = now + _KEYS_INTERVAL
            env = self.read_keys()
            self.client.replace_keys(tuple(access_of(api, key, value, env) for api, key, value in find_keys(env)))
        return self.client.keep()

    def _tell_refused_ports(self) -> None:
        """Record the ports of this machine that the tree tried to reach on its own loopback device, each once."""
        if self.namespace is None or self.namespace.resets is None or self.client is None:
            return
        new = read_resets(self.namespace.resets) - self._told - {each.port for each in self.forwards}
        if not new or len(self._told) >= MAX_TOLD or not (found := new & ports_of_machine()):
            return
        self._told |= found
        file = Path(self.client.registration.folder) / REFUSED_PORTS
        at = costs.now()
        write_refused(file, [RefusedHost(f"127.0.0.1:{port}", "the port is your machine's, not the node's", at, at, 1,
                                         port=port) for port in sorted(self._told)])

    def serve(self) -> bool:
        """Have a proxy serve the tree, even without a connection; return whether that was needed."""
        return self.client is not None and self.client.serve()

    def serve_until_end_of(self, process: ProcessId) -> None:
        """Keep the network while a process of the tree lives, even if this process dies first."""
        if self.client is not None:
            self.client.outlive(process)

    def close(self) -> None:
        """End the tree's network."""
        if self.client is not None:
            self.client.close()
            self.client = None
        if self.namespace is not None:
            self.namespace.close()
            self.namespace = None


def needs_proxy(rights: Rights, mode: Mode, env: Mapping[str, str], *, has_forwards: bool = False) -> bool:
    """Return whether a tree needs the run's proxy; `mode` confines it, `env` has its variables. Pure."""
    if rights.network is Network.ALLOW or (has_forwards and rights.network is Network.NONE and mode is not Mode.NONE):
        return True
    return rights.network is Network.OPEN and mode is not Mode.NONE and bool(find_keys(env))


def begin_ahead(rights: Rights, mode: Mode) -> NamespaceInMaking | None:
    """Start to create the namespace that a tree with these rights will need; None if that is impossible now."""
    if rights.network is not Network.ALLOW or not mode.mounts:
        return None
    try:
        return begin()
    except (Refused, Shortage):  # the tree's start reports why
        return None


def prepare(rights: Rights, mode: Mode, env: Mapping[str, str], user: NetworkUser, *,
            is_lazy: bool = True, begun: NamespaceInMaking | None = None,
            start_seconds: float = START_DEADLINE) -> NetworkPlace:
    """Prepare the network of one confined tree; Refused or UsageError with one line if that is impossible.

    Args:
        mode: what confines the tree: bubblewrap, Landlock or none.
        env: the variables that the tree would have without a sandbox.
        is_lazy: whether the proxy is started only by `serve` or at the first connection; a tree that outlives its
            starter needs it at once.
        begun: a namespace that was started in advance, for use unless forwards need another.
        start_seconds: how long the proxy may take to start, unless it is lazy.
    """
    forwards = (*forwards_of(rights.host_ports), *user.forwards) if rights.network is not Network.OPEN else ()
    if not needs_proxy(rights, mode, env, has_forwards=bool(forwards)):
        if rights.network is not Network.NONE or mode is Mode.NONE:
            return NetworkPlace()
        withheld = frozenset(key.name for _, key, _ in find_keys(env))
        # Bubblewrap creates its own; Landlock alone would only restrict TCP.
        namespace = _namespace(mode) if mode is Mode.LANDLOCK else None
        if namespace is None:
            return NetworkPlace(withheld=withheld)
        namespace.listener.close()
        return NetworkPlace(withheld=withheld, entry=namespace.entry(), namespace=namespace)
    hosts = rights.hosts if rights.network is Network.ALLOW else ()
    parse_rules(hosts)
    withheld = withheld_of(env)
    if rights.network is Network.NONE:  # only its forwards
        env = {name: value for name, value in env.items() if name not in withheld}
    namespace = _namespace(mode, forwards, begun) if rights.network is not Network.OPEN else None
    listener = namespace.listener if namespace is not None else _listen()
    # Without a namespace every program of the machine can reach the listener: it must send an unguessable key.
    secret = "" if namespace is not None else os.urandom(16).hex()
    port = listener.getsockname()[1]
    given = Registration(user.run, user.node, user.attempt, str(user.folder / NETWORK_FOLDER), hosts,
                         tuple(access_of(api, key, value, env) for api, key, value in find_keys(env)), user.limits,
                         user.reported_by, secret, user.account, forwards if namespace is not None else ())
    more = namespace.forwards if namespace is not None else ()
    place = NetworkPlace(environment_of(given, env, port), withheld,
                         namespace.entry() if namespace is not None else (),
                         ProxyClient(user.home, user.run_folder, given, listener, more), namespace, forwards)
    if is_lazy and not more:  # a connection through a forward would wake nothing
        return place
    try:
        assert place.client is not None
        place.client.connect(start_seconds)
    except GarrisonError:
        place.close()
        raise
    return place


def connect_for(git: Git) -> Connect:
    """Return how garrison's own git may connect for what is missing in a worktree: with the rights of its set-up."""
    if git.home is None:
        return connect_as_user
    rights = read_rights(git.home, Role.SETUP, "", git.environment)
    return connect_as_user if rights.network is Network.OPEN else partial(_connect, git.home, rights)


@contextmanager
def _connect(home: Path, rights: Rights, address: str) -> Iterator[Mapping[str, str]]:
    """Open a connection to a server by the rules of the network; Refused if they exclude it.

    HTTP goes through the proxy, which checks each host that the server redirects to. ssh cannot: its host must be
    allowed with its port.
    """
    scheme, host, port = split_address(address)
    if rights.network is Network.NONE:
        raise Refused('network = "none"')
    if scheme != "file" and find_rule(parse_rules(rights.hosts), host, port) is None:
        entry = host if port in DEFAULT_PORTS else f"{host}:{port}"
        raise Refused(f'the network of set-ups has no {host}:{port}; add "{entry}" to hosts = [...] in [sandbox.setup] '
                      "of config.toml")
    if scheme not in ("http", "https"):
        yield {}
        return
    folder = home / "usage" / "submodules"
    user = NetworkUser(home, "", "submodules", 1, folder, run_directory=folder)
    with closing(prepare(rights, Mode.NONE, {}, user, is_lazy=False)) as held:
        # The user's http.proxy would override variables; this overrides it. No host bypasses the proxy.
        yield {**dict.fromkeys(_NO_PROXY, ""),
               "GIT_CONFIG_PARAMETERS": f"'remote.origin.proxy={held.environment['https_proxy']}'"}


def split_address(address: str) -> tuple[str, str, int]:
    """Return transport, host and port of an address as git parses it, `file` for a path; Refused for another kind."""
    scheme, sign, rest = address.partition("://")
    if not sign:
        named, colon, _ = address.partition(":")
        if not colon or "/" in named:
            return "file", "", 0
        if address.startswith(f"{named}::"):
            raise Refused(f"{named} is not a transport that the network of a sandbox supports")
        scheme, rest = "ssh", named
    if scheme == "file":
        return scheme, "", 0
    port = {"http": 80, "https": 443, "git": 9418, "ssh": 22, "git+ssh": 22, "ssh+git": 22}.get(scheme)
    named = re.split(r"[/?#]", rest)[0].rpartition("@")[2]
    host, colon, stated = named.rpartition(":")
    if not colon or named.endswith("]"):
        host, stated = named, ""
    host = normalize_host(host.removeprefix("[").removesuffix("]"))
    if port is None or not host or not (stated or "0").isdecimal():
        raise Refused(f"{scheme}://{named} is not an address that the network of a sandbox supports")
    return scheme, host, int(stated or port)


def lowest_limits(home: Path) -> Limits:
    """Return the limits of a run and of a day for costs that belong to no agent: the lowest of all profiles."""
    agents = read_config(home).table.below("agents")
    profiles = [agents.below(name) for name, table in agents.values.items() if isinstance(table, dict)
                ] if isinstance(agents.values, dict) else []
    run, day = (min((limit for each in profiles if (limit := each.value(key, or_none(as_amount), None)) is not None),
                    default=None) for key in ("budget_run", "budget_day"))
    return Limits(None, run, day)


def _namespace(mode: Mode, forwards: Sequence[Forward] = (), begun: NamespaceInMaking | None = None,
               ) -> NetNamespace | None:
    """Return a namespace for a confined tree; None for an unconfined one, or if Landlock must work without."""
    try:
        if mode is Mode.NONE:
            return None
        return create(forwards) if begun is None or forwards else begun.finish()
    except Refused:
        if mode.mounts:
            raise
        return None


def _listen() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(BACKLOG)
    return listener


# ---- variables


def find_keys(env: Mapping[str, str]) -> list[tuple[Api, KeyVariable, str]]:
    """Return the keys of model APIs in an environment, at most one per API: the first that is set. Pure."""
    found = []
    for api in APIS.values():
        for key in api.keys:
            if value := env.get(key.name):
                found.append((api, key, value))
                break
    return found


def account_of(env: Mapping[str, str]) -> str:
    """Return a fingerprint of the keys in an environment and their destinations; '' for none. Pure."""
    found = [access_of(api, key, value, env) for api, key, value in find_keys(env)]
    text = "\n".join(f"{each.url} {each.header} {each.key}" for each in found)
    return sha256(text.encode()).hexdigest()[:32] if found else ""


def access_of(api: Api, key: KeyVariable, value: str, env: Mapping[str, str]) -> ApiAccess:
    """Return the access that a key gives, to the base URL that the user has set. Pure."""
    url = next((env[name] for name in api.url_variables if env.get(name)), api.upstream)
    return ApiAccess(api.name, url.rstrip("/"), key.header, f"{key.scheme}{value}")


def withheld_of(env: Mapping[str, str]) -> frozenset[str]:
    """Return the names of keys, base URLs and proxies that a tree must not get unchanged. Pure."""
    apis = {api.name: api for api, _, _ in find_keys(env)}.values()
    names = {name for api in apis for name in (*(key.name for key in api.keys), *api.url_variables)}
    return frozenset(names & env.keys())


def environment_of(given: Registration, env: Mapping[str, str], port: int) -> dict[str, str]:
    """Return the variables that point a tree's programs to the proxy, with worthless keys. Pure."""
    base = f"http://127.0.0.1:{port}"
    variables: dict[str, str] = {}
    for api, key, _ in find_keys(env):
        variables[key.name] = dummy_key(key, given.secret)
        variables |= dict.fromkeys(api.url_variables, base + api.prefix)
    if given.hosts:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            variables |= {name: base, name.upper(): base}
        variables |= dict.fromkeys(_NO_PROXY, _LOCAL) | {"NODE_USE_ENV_PROXY": "1"}
        java = " ".join(f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={port}" for scheme in ("http", "https"))
        variables |= {name: f"{env.get(name, '')} {java}".strip() for name in ("MAVEN_OPTS", "GRADLE_OPTS")}
    else:  # ours must not be reached through the user's own proxy
        known = next((env[name] for name in _NO_PROXY if env.get(name)), "")
        variables |= dict.fromkeys(_NO_PROXY, f"{known},{_LOCAL}".removeprefix(","))
    return variables


def dummy_key(key: KeyVariable, secret: str) -> str:
    return key.dummy + (secret or "0" * 32)


# ---- net namespace ---------------------------------------------------------------------------------------------------

# Network namespaces: create one with its loopback device up and a listener in it, without leaving this one.
#
# A short-lived child enters the new namespace and passes back the listener and the namespace; root's is entered by a
# thread, which costs a tenth. A command enters it by `nsenter` (util-linux), which replaces itself by the command. The
# namespace ends with the last process in it and the last descriptor of it.

BACKLOG = 256
_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000
_SET_FLAGS, _UP = 0x8914, 1
_Made = tuple[bytes, list[int]]
"""A message, `ready` and maybe ` watched` or the number and text of an error, and the descriptors of a namespace."""


class NetNamespace(msgspec.Struct):
    """A network namespace that this process keeps open, and the listener in it."""

    listener: socket.socket
    program: str
    """Path of nsenter."""
    network: int
    user: int | None
    """The user namespace that owns it; None if this process may enter it directly."""
    forwards: tuple[socket.socket, ...] = ()
    """Listeners of its forwards."""
    resets: socket.socket | None = None
    """Receives the resets on its loopback device (`proxy.forwards.watch_resets`)."""

    def entry(self) -> tuple[str, ...]:
        """Return the prefix that starts a command in it, while this process lives."""
        folder = f"/proc/{os.getpid()}/fd"
        user = () if self.user is None else (f"--user={folder}/{self.user}", "--preserve-credentials")
        return (self.program, *user, f"--net={folder}/{self.network}", "--")

    def close(self) -> None:
        """Close the namespace; its listeners stay open."""
        if self.resets is not None:
            # The kernel first waits, for about 10 ms, until no processor looks at a packet for it.
            threading.Thread(target=self.resets.close, daemon=True).start()
            self.resets = None
        for descriptor in (self.network, self.user):
            if descriptor is not None:
                os.close(descriptor)
        self.network, self.user = -1, None


def create(forwards: Sequence[Forward] = ()) -> NetNamespace:
    """Create a network namespace with listeners for forwards.

    Refused with the reason if the machine does not allow it, Shortage if it has no room for one now.
    """
    return begin(forwards).finish()


class NamespaceInMaking:
    """A network namespace in the making: it takes Linux milliseconds, during which other work can be done."""

    def __init__(self, program: str, receive: Callable[[], _Made], forwards: int) -> None:
        self._program, self._forwards = program, forwards
        self._receive: Callable[[], _Made] | None = receive
        """Waits for its message and descriptors; None once they were received."""

    def finish(self) -> NetNamespace:
        """Wait for it and return it; errors as for `create`."""
        assert self._receive is not None
        receive, self._receive = self._receive, None
        message, descriptors = receive()
        if not message.startswith(b"ready"):
            for descriptor in descriptors:
                os.close(descriptor)
            number, _, told = message.decode(errors="replace").partition(" ")
            if int(number or 0) in ERRNOS or (int(number or 0) == errno.ENOSPC and _is_used_up()):
                raise _no_room(told)
            raise Refused(f"network namespaces are not allowed here ({told or 'no reason'}); set network = \"none\" or "
                          "\"open\"")
        listener, *rest = descriptors
        made = tuple(socket.socket(fileno=each) for each in rest[:self._forwards])
        network, *rest = rest[self._forwards:]
        resets = socket.socket(fileno=rest.pop()) if message == b"ready watched" else None
        return NetNamespace(socket.socket(fileno=listener), self._program, network, rest[0] if rest else None, made,
                            resets)

    def close(self) -> None:
        """Close it, unless it was finished."""
        if self._receive is not None:
            receive, self._receive = self._receive, None
            for descriptor in receive()[1]:
                os.close(descriptor)


def begin(forwards: Sequence[Forward] = ()) -> NamespaceInMaking:
    """Start what `create` does."""
    program = shutil.which("nsenter") or shutil.which("nsenter", path="/usr/bin:/bin")
    if program is None:
        raise Refused("network = \"allow\" needs the program nsenter (util-linux); install it, or set network = "
                      "\"none\" or \"open\"")
    unshare = ctypes.CDLL(None, use_errno=True).unshare  # looked up before the fork
    start = _start_thread if os.geteuid() == 0 else _start_child
    return NamespaceInMaking(program, start(unshare, forwards), len(forwards))


def _start_child(unshare: Callable[[int], int], forwards: Sequence[Forward]) -> Callable[[], _Made]:
    """Create the namespace in a child; return what waits for it."""
    with contextlib.ExitStack() as ends:
        try:
            parent, child = map(ends.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            pid = os.fork()
        except OSError as error:
            if error.errno not in ERRNOS:
                raise
            raise _no_room(error.strerror) from error
        if pid == 0:
            _make_in_child(unshare, child, forwards)
        child.close()  # so that the child's end is end of file
        ends.pop_all()
    return partial(_receive_from_child, parent, pid, len(forwards))


def _receive_from_child(channel: socket.socket, pid: int, forwards: int) -> _Made:
    with channel:
        # Four: the listener, the network, the user namespace that owns it, and the watch of resets.
        message, descriptors, _, _ = socket.recv_fds(channel, 256, 4 + forwards, socket.MSG_CMSG_CLOEXEC)
        with contextlib.suppress(ChildProcessError):  # the process collects all children
            os.waitpid(pid, 0)
    return message, descriptors


def _start_thread(unshare: Callable[[int], int], forwards: Sequence[Forward]) -> Callable[[], _Made]:
    """Create the namespace in a thread, which alone enters it; return what waits for it: a child if the machine refuses
    this root a namespace without a user namespace, for which a process may have only one thread."""
    made: list[_Made] = []

    def make() -> None:
        if unshare(_NEW_NETWORK) != 0:
            return
        try:
            made.append(_with_watch(_open(forwards, ("net",))))
        except OSError as error:
            made.append((_describe(error), []))

    def receive() -> _Made:
        thread.join()
        return made[0] if made else _start_child(unshare, forwards)()

    thread = threading.Thread(target=make, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise _no_room(str(error)) from error
    return receive


def _no_room(told: str | None) -> Shortage:
    return Shortage(f"no room for a network namespace ({told}); it is tried again")


def _is_used_up() -> bool:
    """Return whether the machine allows namespaces: then a user who gets none has used up the quota."""
    folder = Path("/proc/sys/user")
    return all((folder / name).read_text().strip() != "0" for name in ("max_net_namespaces", "max_user_namespaces"))


def _make_in_child(unshare: Callable[[int], int], channel: socket.socket, forwards: Sequence[Forward]) -> None:
    """Create the namespace in the forked child, pass it on, and exit."""
    try:
        processes.send_descriptors(channel, *_with_watch(_make(unshare, forwards)))
    except BaseException as error:  # none of the parent's code may run in the child
        with contextlib.suppress(OSError):
            channel.send(_describe(error))
    finally:
        os._exit(0)


def _describe(error: BaseException) -> bytes:
    return f"{getattr(error, 'errno', None) or 0} {error}".encode()[:250]


def _with_watch(descriptors: list[int]) -> _Made:
    """Return what is made of a namespace that was entered, with the watch of resets if that is possible."""
    resets = watch_resets()
    return (b"ready", descriptors) if resets is None else (b"ready watched", [*descriptors, resets.detach()])


def _make(unshare: Callable[[int], int], forwards: Sequence[Forward]) -> list[int]:
    """Enter a new namespace; return the descriptors of its listeners, itself, and its owner if new."""
    uid, gid = os.getuid(), os.getgid()
    needs_owner = unshare(_NEW_NETWORK) != 0  # only root, and not every root, can do without a user namespace
    if needs_owner:
        if unshare(_NEW_NETWORK | _NEW_USER) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        # Linux lets an unprivileged process write gid_map only once it has given up setgroups (3.19).
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    return _open(forwards, ("net", "user") if needs_owner else ("net",))


def _open(forwards: Sequence[Forward], names: Sequence[str]) -> list[int]:
    """Return the descriptors of the listeners and of these namespaces of the calling thread."""
    listener = socket.socket()
    fcntl.ioctl(listener, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    listener.bind(("127.0.0.1", PORT))
    listener.listen(BACKLOG)
    sockets = [listener, *bind(forwards)]
    namespaces = [os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
    return [*(each.detach() for each in sockets), *namespaces]
