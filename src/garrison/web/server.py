"""The server process: a socket, uvicorn on it, and an end in order.

The rule of this room: nothing is printed of a request, for an address may hold a token; nothing wakes by a timer while
nobody looks; when it is told to stop it says so to every stream first, so that nobody waits for anybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from garrison.errors import Refused, UsageError
from garrison.web import access
from garrison.web.chat import Desks, claude_desk
from garrison.web.routes import Page

CONNECTIONS = 512
"""Connections at most; a browser keeps a few open."""
UNSENT_BYTES = 128 << 10
"""What the kernel keeps for a client that does not read; of its own it would go to megabytes."""
STUCK_MS = 30_000
"""Milliseconds after which the kernel gives up a connection whose other end takes nothing."""
LAST_SECONDS = 3
"""For answers under way when the server stops."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Place:
    """Where to listen. `names`: further names that the server may be asked by; `tls`: certificate and key."""

    address: str = "127.0.0.1"
    port: int = 0
    names: tuple[str, ...] = ()
    tls: tuple[Path, Path] | None = None
    plain: bool = False
    """Whether plain HTTP is wanted although others can reach the address."""

    def check(self) -> Place:
        """UsageError for an address that is none, or that must not be served so."""
        try:
            address = ipaddress.ip_address(self.address)
        except ValueError:
            raise UsageError(f"--listen {self.address!r:.60} is no IP address; for this machine alone leave it out"
                             ) from None
        if not address.is_loopback and self.tls is None and not self.plain:
            raise UsageError(f"{self.address} can be reached from other machines, and what is sent could be read on "
                             "the way: give --tls-cert and --tls-key, or say --plain-http")
        if address.is_unspecified and not self.names:
            raise UsageError(f"with --listen {self.address} say by which name it is asked: --name HOST")
        return self

    @property
    def shown(self) -> str:
        """The host of the printed address."""
        name = self.names[0] if self.names else self.address
        return f"[{name}]" if ":" in name else name

    @property
    def known_by(self) -> list[str]:
        """All names that a request may use."""
        own = ["127.0.0.1", "localhost", "::1"] if ipaddress.ip_address(self.address).is_loopback else [self.address]
        return [*own, *self.names]


def listening(place: Place) -> socket.socket:
    """The socket; Refused if the port is taken or not ours to take."""
    family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit both.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STUCK_MS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNSENT_BYTES)
    try:
        sock.bind((place.address, place.port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise Refused(f"cannot listen on {place.address} port {place.port}: {error.strerror}; say another --port, or 0 "
                      "for any that is free") from None
    return sock


class Server(uvicorn.Server):
    """uvicorn, but woken instead of looking ten times a second whether it should stop."""

    def __init__(self, config: uvicorn.Config, leave: Callable[[], None]) -> None:
        super().__init__(config)
        self.leave = leave
        self._told: asyncio.Event = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """TERM, INT and HUP end the server in order."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """End in order; said twice, at once."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        """Until told to stop."""
        await self.on_tick(0)
        await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Everybody is told, then uvicorn ends what is left."""
        self.leave()
        await super().shutdown(sockets)


async def serve(home: Path, place: Place, tokens: dict[str, str], ready: Callable[[int], None], *,
                until: int | None = None, stop: asyncio.Event | None = None, desks: Desks = claude_desk) -> None:
    """Serve until a signal, until the process `until` has ended, or until `stop`; `ready` is called with the port.

    The socket listens by then, so a browser that comes at once is answered as soon as that begins.
    """
    sock = listening(place)
    port = sock.getsockname()[1]
    rules = access.Rules(access.hosts(place.known_by, port), tokens, f"garrison-{port}",
                         "https" if place.tls else "http")
    page = Page(home, rules, desks)
    server = Server(_config(page, place), page.leave)
    waits = asyncio.create_task(_stopping(stop, server)) if stop is not None else None
    page.hub.start()
    try:
        ready(port)
        with _ending_with(until, server.stop):
            await server.serve(sockets=[sock])
    finally:
        if waits is not None:
            waits.cancel()
        await page.close()
        sock.close()


def _config(page: Page, place: Place) -> uvicorn.Config:
    options: dict[str, Any] = {}
    if place.tls:
        options = {"ssl_certfile": str(place.tls[0]), "ssl_keyfile": str(place.tls[1])}
    return uvicorn.Config(
        page.app(), log_config=None, access_log=False, log_level="critical", lifespan="off", server_header=False,
        date_header=False, limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=LAST_SECONDS,
        timeout_keep_alive=30, h11_max_incomplete_event_size=32 << 10, proxy_headers=False, ws="none", http="h11",
        **options)


async def _stopping(stop: asyncio.Event, server: Server) -> None:
    await stop.wait()
    server.stop()


@contextlib.contextmanager
def _ending_with(pid: int | None, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` when a process ends; at once if it has."""
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
