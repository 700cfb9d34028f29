"""Service of a preview: open it once the node's server listens, report what it waits for, end it with the node.

`listeners.decide` decides the next step; this module acts. An open preview has a record in its run's folder, which
names its process: the record of a killed one does not count.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import signal
import socket
import ssl
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, RecordError, Refused, UsageError
from garrison.preview.gateway import Gateway
from garrison.preview.listeners import ENDS, Step, Tree, decide, look_at
from garrison.preview.rules import TICKET, PreviewRules, Tickets, host_label
from garrison.preview.ways import NodeWay, Way
from garrison.records import atomic, record
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.run import RunFiles
from garrison.system import processes
from garrison.system.processes import ProcessId
from garrison.system.sockets import Listener
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from garrison.records.store import Store

LOOK_SECONDS = 0.5
"""Time between two polls of the node."""
FOLDER = "previews"
"""Folder of a run with the records of its open previews."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Address(Value):
    """Address at which a preview is opened."""

    port: int = 0
    """0 for any free one."""
    listen: str = "127.0.0.1"
    hostname: str = ""
    """Name of this machine for others, if not loopback."""
    tls: tuple[Path, Path] | None = None
    as_localhost: bool = False
    tcp: bool = False
    """True to forward raw bytes."""

    def check(self) -> Address:
        """Return itself; UsageError for an address beyond this machine without TLS or a name."""
        try:
            if self.is_loopback:
                return self
        except ValueError:
            raise UsageError(f"--listen {self.listen!r:.60} is not an IP address; to open it on this machine only, "
                             "omit it") from None
        if self.tcp or self.as_localhost:
            raise UsageError("--tcp and --as-localhost are for this machine only: they have no ticket; leave out "
                             "--listen, and reach it by `ssh -L`")
        if self.tls is None or not self.hostname:
            raise UsageError(f"other machines can reach {self.listen}: pass --hostname, --tls-cert and --tls-key")
        return self

    @property
    def shown(self) -> str:
        """Return the address to listen on, in the form before a port."""
        return f"[{self.listen}]" if ":" in self.listen else self.listen

    @property
    def is_loopback(self) -> bool:
        return ip_address(self.listen).is_loopback


class PreviewTarget(Value):
    """A requested preview."""

    node: str
    run: str
    port: int = 0
    """Port of the node; 0 for its only one."""

    @property
    def hint(self) -> str:
        """Return the advice for when its agent has ended."""
        return f"`garrison preview {self.node} --run {self.run} --command CMD` starts a server from its commit"


class OpenPreview(Value):
    """Record of an open preview."""

    node: str
    run: str
    port: int
    url: str
    pid: int
    ticks: int

    @property
    def is_open(self) -> bool:
        return processes.is_running(self.pid, self.ticks)


class PreviewSource:
    """Source of a preview: a node at work, here or on a host, or a server that was started for it."""

    trouble = ""
    """Why it cannot be inspected now, '' if it can."""

    def look(self) -> Tree | None:
        """Return its present programs; None while there are none."""
        raise NotImplementedError

    def why_over(self) -> str:
        """Return why none of its programs will run any more, '' if one may."""
        raise NotImplementedError

    def way(self, port: int) -> Way:
        """Return the connection to one of its ports."""
        return NodeWay(self.look, port)

    def close(self) -> None:
        """Release its resources."""


class NodeAtWork(PreviewSource):
    """The programs of a node's agent."""

    def __init__(self, store: Store, wanted: PreviewTarget, why_over: Callable[[], str]) -> None:
        self._store, self._key, self._why_over = store, Key("orchestrator", wanted.node, wanted.run), why_over

    def look(self) -> Tree | None:
        """Return its programs."""
        try:
            identity = self._store.read(Identity, self._key)
        except RecordError:
            return None
        if identity is None or not identity.pid or identity.start_ticks is None or \
                not processes.same_boot(identity.boot_id):
            return None
        return look_at(ProcessId(identity.pid, identity.start_ticks))

    def why_over(self) -> str:
        return self._why_over()


class Preview:
    """A preview, from the command to its end."""

    def __init__(self, home: Path, wanted: PreviewTarget, address: Address, subject: PreviewSource,
                 tell: Callable[[str], None]) -> None:
        self._home, self._wanted, self._address, self._subject, self._tell = home, wanted, address, subject, tell
        self._gateway: Gateway | None = None
        self._record: Path | None = None
        self._told = ""
        self._stopped = asyncio.Event()

    async def run(self, opened: Callable[[str], None]) -> None:
        """Open it, call `opened` with its address, and serve until the node or the user ends it; Refused if it cannot
        be opened."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stopped.set)
        port = self._wanted.port
        try:
            while not self._stopped.is_set():
                tree = self._subject.look()
                why = self._subject.why_over() if tree is None else ""
                step, listener = decide(tree, port, is_over=bool(why))
                if step in ENDS:
                    self._end(step, tree, port, why)
                    return
                if self._subject.trouble and self._gateway is None:
                    raise Refused(f"{self._wanted.node} cannot be inspected: {self._subject.trouble}")
                if listener is not None and self._gateway is None:
                    port = listener.port
                    opened(await self._open(listener))
                self._report(step, port, tree)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._stopped.wait()
        finally:
            await self._close()

    def _end(self, step: Step, tree: Tree | None, port: int, why: str) -> None:
        """Report why it ends; Refused if it was never open."""
        node, message = self._wanted.node, why
        if step is Step.SEVERAL and tree is not None:
            message = f"{node} listens on several ports, name one: {', '.join(describe(tree.listeners))}"
        elif step is Step.RESERVED:
            message = f"port {port} in {node} is used by garrison itself, not by the node"
        if self._gateway is None:
            raise Refused(message)
        self._tell(f"{message}; its preview is closed")

    def _report(self, step: Step, port: int, tree: Tree | None) -> None:
        """Report once what it waits for."""
        what = f"port {port}" if port else "a port"
        others = f", but on {', '.join(describe(tree.listeners))}" if tree is not None and tree.listeners else ""
        node = self._wanted.node
        line = {Step.AWAIT_NODE: f"waiting for {node} to start; Ctrl-C ends the wait",
                Step.AWAIT_PORT: f"{node} does not listen on {what} yet{others}; waiting for it"}.get(step, "")
        if self._gateway is not None and line:
            why = self._subject.trouble or f"{node} does not listen on {what} any more"
            line = f"{why}; the preview waits until it does again"
        if line and line != self._told:
            self._tell(line)
        self._told = line

    async def _open(self, listener: Listener) -> str:
        """Start to serve; return the address to open."""
        address, wanted = self._address, self._wanted
        way = self._subject.way(listener.port)
        sockets = open_sockets(address, listener.port)
        port = sockets[0].getsockname()[1]
        rules, tickets = rules_of(address, wanted, listener.port, port), None
        if rules is not None and rules.secret:
            tickets = Tickets()
        self._gateway = Gateway(way, rules, tickets, self._tell_next_ticket, wanted.node)
        await self._gateway.listen(sockets, _tls_context(address.tls) if address.tls is not None else None)
        url = f"{rules.origin}/" if rules is not None else f"{address.shown}:{port}"
        own = processes.probe(os.getpid())
        # Recorded once it listens: readers of the record may connect.
        self._record = record_path(self._home, wanted, listener.port, address)
        atomic.make_directory(self._record.parent)
        atomic.write(self._record, record.encode(OpenPreview(
            wanted.node, wanted.run, listener.port, url, os.getpid(), own.ticks if own is not None else 0)))
        return f"{url}?{TICKET}={tickets.current}" if tickets is not None else url

    def _tell_next_ticket(self) -> None:
        gateway = self._gateway
        if gateway is not None and gateway.rules is not None and gateway.tickets is not None:
            address = f"{gateway.rules.origin}/?{TICKET}={gateway.tickets.current}"
            self._tell(f"it was opened; for another browser: {address}")

    async def _close(self) -> None:
        if self._record is not None:  # before the connections end, so that no reader connects to a closing preview
            self._record.unlink(missing_ok=True)
        if self._gateway is not None:
            await self._gateway.close()


def describe(listeners: tuple[Listener, ...]) -> list[str]:
    return [f"{each.port} ({each.program})" if each.program else str(each.port) for each in listeners]


def rules_of(address: Address, wanted: PreviewTarget, inner: int, port: int) -> PreviewRules | None:
    """Return the rules of a preview at a port; None if raw bytes are forwarded. Pure, except for a secret."""
    if address.tcp:
        return None
    if not address.is_loopback:
        return PreviewRules(f"{address.hostname.lower()}:{port}", inner, "https", is_shared=True,
                     secret=secrets.token_urlsafe(32))
    name = "localhost" if address.as_localhost else f"{host_label(wanted.node, wanted.run)}.localhost"
    scheme = "http" if address.tls is None else "https"
    return PreviewRules(f"{name}:{port}", inner, scheme, is_shared=address.as_localhost)


def open_sockets(address: Address, inner: int) -> list[socket.socket]:
    """Return the listening sockets: on loopback in both families, since a browser may use either.

    An app that is bound to the name `localhost` is shown at its own port if that is free.
    """
    # 0 four times: a port that is free on 127.0.0.1 may be taken on ::1, and then the kernel is asked again.
    ports = [address.port] if address.port else [inner, 0, 0, 0] if address.as_localhost else [0, 0, 0, 0]
    for number, port in enumerate(ports):
        try:
            return _listen(address.listen, port)
        except OSError as error:
            if number == len(ports) - 1:
                raise Refused(f"port {port} cannot be opened on {address.listen}: {error.strerror}; pass another "
                              "--outer-port, or none") from None
    raise AssertionError


def _listen(listen: str, port: int) -> list[socket.socket]:
    first = _bind(socket.AF_INET6 if ":" in listen else socket.AF_INET, listen, port)
    if listen != "127.0.0.1":
        return [first]
    try:
        return [first, _bind(socket.AF_INET6, "::1", first.getsockname()[1])]
    except OSError as error:
        if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # a machine without IPv6
            return [first]
        first.close()  # another program has the port there, and a browser might reach that
        raise


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # the protocol turns Nagle's algorithm off
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(128)
    except OSError:
        sock.close()
        raise
    return sock


def _tls_context(files: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(*files)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise UsageError(f"{files[0]} and {files[1]} are not a certificate and key: {error}") from error
    return context


# ---- records ---------------------------------------------------------------------------------------------------------


def record_path(home: Path, wanted: PreviewTarget, port: int, address: Address) -> Path:
    way = "-tcp" if address.tcp else "-localhost" if address.as_localhost else "" if address.is_loopback else "-tls"
    return RunFiles(home, wanted.run).root / FOLDER / f"{wanted.node}.{port}{way}.json"


def list_previews(home: Path, run: str) -> Iterator[OpenPreview]:
    """Yield the open previews of a run; records of killed ones are removed."""
    folder = RunFiles(home, run).root / FOLDER
    for name in sorted(name for name in atomic.list_names(folder) if name.endswith(".json")):
        try:
            found = record.decode(OpenPreview, atomic.read(folder / name) or b"", folder / name)
        except GarrisonError:
            continue
        if found.is_open:
            yield found
        else:
            (folder / name).unlink(missing_ok=True)
