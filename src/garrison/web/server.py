"""Server process: open a socket, run uvicorn on it, stop gracefully.

Requests are not logged, because an address may contain a token. No timer runs while no page is open. On a signal every
stream ends first, so that no client delays the shutdown.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from garrison.errors import Refused, UsageError
from garrison.notify import devices
from garrison.system.stamps import file_stamp
from garrison.values import Value
from garrison.web import access, page_files
from garrison.web.broadcaster import OBSERVE_EVERY, Broadcaster
from garrison.web.chat import OpenButler, claude_butler
from garrison.web.connections import CAPACITY, Capacity, HttpConnection, capacity_of, raise_file_limit
from garrison.web.phones import scope_of_device
from garrison.web.routes import Page
from garrison.web.terminals import Terminals
from garrison.web.webhooks import Webhooks

BACKLOG = 1024
"""Connections that the kernel queues until they are accepted; if the queue is full, a client retries after a second."""
ACCEPTED_AT_ONCE = 128
"""Connections that are accepted before other work gets its turn."""
UNSENT_BYTES = 128 << 10
"""Bytes that the kernel buffers for a client that does not read; by default megabytes."""
STUCK_MS = 30_000
"""Milliseconds after which the kernel drops a connection whose other end accepts nothing."""
SHUTDOWN_SECONDS = 3
"""Time for responses in progress when the server stops."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Endpoint(Value):
    """Address to listen on.

    `names`: further host names of the server, or origins of a reverse proxy; `tls`: certificate and key.
    """

    address: str = "127.0.0.1"
    port: int = 0
    names: tuple[str, ...] = ()
    tls: tuple[Path, Path] | None = None
    plain: bool = False
    """True to serve without TLS even if other machines can reach the address."""

    def check(self) -> Endpoint:
        """Return itself; UsageError for an invalid address, or one that needs TLS or a host name."""
        try:
            address = ipaddress.ip_address(self.address)
        except ValueError:
            raise UsageError(f"--listen {self.address!r:.60} is not an IP address; to serve this machine only, omit it"
                             ) from None
        if not address.is_loopback and self.tls is None and not self.plain:
            raise UsageError(f"other machines can reach {self.address} and could read the traffic: pass --tls-cert "
                             "and --tls-key, or --plain-http")
        if address.is_unspecified and not self.names:
            raise UsageError(f"--listen {self.address} needs the name of this host as well: --hostname HOST")
        for name in self.names:
            if not _is_name(name):
                raise UsageError(f"--hostname {name!r:.80} should be a name such as build.example, or behind a reverse "
                                 "proxy its address, such as https://garrison.example")
        return self

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    def origin(self, port: int) -> str:
        """Return the origin of the printed address."""
        name = self.names[0] if self.names else self.address
        if "://" in name:
            return name.rstrip("/")
        return f"{self.scheme}://[{name}]:{port}" if ":" in name else f"{self.scheme}://{name}:{port}"

    @property
    def host_names(self) -> list[str]:
        own = ["127.0.0.1", "localhost", "::1"] if ipaddress.ip_address(self.address).is_loopback else [self.address]
        return [*own, *self.names]


def _is_name(name: str) -> bool:
    """Return whether it is the name of a host, or an origin."""
    scheme, separator, host = name.rpartition("://")
    host = host.rstrip("/") if separator else host
    if not host or any(character in "/?#@ \\" for character in host) or scheme not in ("", "http", "https"):
        return False
    try:
        return bool(separator) or ":" not in host or bool(ipaddress.IPv6Address(host))
    except ValueError:
        return False


def open_socket(endpoint: Endpoint) -> socket.socket:
    """Open the listening socket; Refused if the port is in use or forbidden."""
    family = socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET
    # without an explicit protocol asyncio leaves Nagle's algorithm on: each response waits 40 ms for an acknowledgement
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # accepted connections inherit both options
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STUCK_MS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNSENT_BYTES)
    try:
        sock.bind((endpoint.address, endpoint.port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise Refused(f"cannot listen on {endpoint.address} port {endpoint.port}: {error.strerror}; pass another "
                      "--port, or 0 for any free one") from None
    return sock


class Certificate:
    """Certificate and key of a server, reloaded when they are renewed."""

    def __init__(self, files: tuple[Path, Path]) -> None:
        self.files = files
        self._loaded = file_stamp(files[0]), file_stamp(files[1])

    def refresh(self, context: ssl.SSLContext) -> None:
        """Load both files into a context if one has changed; a pair that does not match (yet) is tried again."""
        found = file_stamp(self.files[0]), file_stamp(self.files[1])
        if found == self._loaded:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self.files)  # a failure would spoil the other
            context.load_cert_chain(*self.files)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            print(f"garrison serve: the new certificate is not used: {error}", file=sys.stderr, flush=True)
        else:
            self._loaded = found


class Server(uvicorn.Server):
    """uvicorn server that is woken to stop, instead of polling ten times a second."""

    def __init__(self, config: uvicorn.Config, capacity: Capacity, leave: Callable[[], None],
                 certificate: Certificate | None = None) -> None:
        super().__init__(config)
        self.capacity, self.leave, self.certificate = capacity, leave, certificate
        self._stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop the server gracefully on TERM, INT and HUP."""
        # uvicorn's own handler would raise the signal again after the shutdown, and the exit code would be a kill's.
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Stop gracefully; on the second call, at once."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._stopping.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections; a TLS handshake has the deadline of a request's head."""
        loop = asyncio.get_running_loop()
        secure, state = self.config.ssl, {CAPACITY: self.capacity}

        def accepted() -> HttpConnection:
            if self.certificate is not None and secure is not None:
                self.certificate.refresh(secure)  # before the handshake, which asyncio starts next
            return HttpConnection(self.config, self.server_state, state)

        self.servers = [await loop.create_server(
            accepted, sock=sock, backlog=ACCEPTED_AT_ONCE, ssl=secure,
            ssl_handshake_timeout=self.capacity.head_seconds if secure else None) for sock in sockets or ()]
        for sock in sockets or ():
            sock.listen(BACKLOG)  # asyncio has set it to the number that it accepts at once
        self.started = True

    async def main_loop(self) -> None:
        """Run until stopped."""
        await self.on_tick(0)  # sets the headers of responses; they have no date, so once is enough
        await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell all clients, then let uvicorn close the remaining connections."""
        self.leave()
        await super().shutdown(sockets)


async def serve(home: Path, endpoint: Endpoint, tokens: dict[str, str], ready: Callable[[int], None], *,
                until: int | None = None, stop: asyncio.Event | None = None,
                open_butler: OpenButler = claude_butler, webhooks: Webhooks | None = None,
                capacity: Capacity | None = None, observe_every: float = OBSERVE_EVERY,
                terminals: Terminals | None = None) -> None:
    """Serve until a signal, until the process `until` has ended, or until `stop`; `ready` is called with the port.

    The socket is listening by then, so that a browser that connects at once gets a response.
    """
    sock = open_socket(endpoint)
    port = sock.getsockname()[1]
    rules = access.Rules(access.origins(endpoint.host_names, port, endpoint.scheme), tokens, f"garrison-{port}",
                         partial(scope_of_device, home))
    capacity = capacity or capacity_of(raise_file_limit())
    page = Page(home, rules, Broadcaster(home, capacity, observe_every), open_butler, webhooks or Webhooks(home),
                terminals)
    server = Server(_config(page, endpoint), capacity, page.leave, Certificate(endpoint.tls) if endpoint.tls else None)
    waiting = asyncio.create_task(_stop_after(stop, server)) if stop is not None else None
    page.broadcaster.start()
    prepared = asyncio.create_task(asyncio.to_thread(page_files.prepare))
    try:
        devices.write_serving(home, endpoint.origin(port), os.getpid())
        ready(port)
        with _ends_with(until, server.stop):
            await server.serve(sockets=[sock])
    finally:
        if waiting is not None:
            waiting.cancel()
        await asyncio.gather(prepared, return_exceptions=True)  # a page that cannot be bundled fails its requests
        await page.close()
        sock.close()


def _config(page: Page, endpoint: Endpoint) -> uvicorn.Config:
    options: dict[str, Any] = {}
    if endpoint.tls:
        options = {"ssl_certfile": str(endpoint.tls[0]), "ssl_keyfile": str(endpoint.tls[1])}
    return uvicorn.Config(
        page.app(), log_config=None, access_log=False, log_level="critical", lifespan="off", server_header=False,
        date_header=False, timeout_graceful_shutdown=SHUTDOWN_SECONDS, timeout_keep_alive=30,
        h11_max_incomplete_event_size=32 << 10, proxy_headers=False, ws="none", http=HttpConnection,
        **options)


async def _stop_after(stop: asyncio.Event, server: Server) -> None:
    await stop.wait()
    server.stop()


@contextlib.contextmanager
def _ends_with(pid: int | None, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` when a process ends; at once if it has ended already."""
    if pid is None:
        yield
        return
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        loop.call_soon(stop)
        yield
        return

    def ended() -> None:
        loop.remove_reader(descriptor)
        stop()

    loop.add_reader(descriptor, ended)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
