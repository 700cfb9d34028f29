"""Proxy process: the program of a run's proxy, with the run's folder and the home as its arguments; one per run.

It has no important state: listeners, rights and keys come from its users, each over a connection to the control socket.
Its first user starts it. If it dies, a user starts another one and registers again. It exits soon after its last user.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from garrison.sandbox.proxy import registration
from garrison.sandbox.proxy.allowed_hosts import parse_rules
from garrison.sandbox.proxy.connection import Clients
from garrison.sandbox.proxy.forwards import MAX_FORWARDS, Forward, ForwardRefused, open_forward
from garrison.sandbox.proxy.ledger import Ledger
from garrison.sandbox.proxy.registration import MAX_MESSAGE, Registration, may_register
from garrison.sandbox.proxy.relay import Access, Patience, Relay, join_to
from garrison.sandbox.proxy.upstream import BUFFER, Stream, UpstreamFailed
from garrison.system import processes, unix_socket
from garrison.values import replace

LINGER = 1.0
"""Seconds without a user after which it exits."""
FORWARD_SECONDS = 12 * 3600.0
"""Idle time after which a forwarded connection is closed: a database pool keeps idle ones for hours."""
MAX_CONNECTIONS = 256
"""Most connections of one listener."""
LOOKUPS = 32
"""Most concurrent name look-ups: a slow name server must not block other agents."""
_FILES = 16384
"""Requested limit of descriptors: each connection takes two."""


@dataclass(slots=True)
class Proxy:
    """The listeners of a run."""

    home: Path
    run_id: str
    control: socket.socket
    patience: Patience = field(default_factory=Patience)
    users: int = 0
    _idle_since: float = 0.0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        """Serve until a while after the last user, or a signal."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(LOOKUPS))
        self._idle_since = loop.time() + 10 * LINGER  # its first user is still connecting
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        self.control.setblocking(False)
        loop.add_reader(self.control, self._accept)
        while not stopped.is_set() and (self.users or loop.time() - self._idle_since < LINGER):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER / 4 if not self.users else LINGER):
                    await stopped.wait()
        loop.remove_reader(self.control)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self.control.accept()
            self.users += 1
            task = asyncio.ensure_future(self._serve_user(connection))
            self._tasks.add(task)
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.users -= 1
        self._idle_since = asyncio.get_running_loop().time()
        if not task.cancelled() and (error := task.exception()) is not None:
            print(f"proxy: a registration failed: {error}", flush=True)

    async def _serve_user(self, connection: socket.socket) -> None:
        """Serve the listener of one user until the user is gone."""
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        with connection:
            if not may_register(connection, self.home, self.run_id):
                return
            await _readable(loop, connection)
            message, descriptors, _, _ = socket.recv_fds(connection, MAX_MESSAGE, 1 + MAX_FORWARDS,
                                                         socket.MSG_CMSG_CLOEXEC)
            listener, *more = (socket.socket(fileno=each) for each in descriptors) if descriptors else (None,)
            if not message or listener is None:
                return
            given = Registration.decode(message)
            access = Access(given, parse_rules(given.hosts), Ledger(self.home, given), listener.getsockname()[1],
                            self.patience)
            servers = [await asyncio.start_server(acceptor(access), sock=listener, limit=BUFFER, backlog=256)]
            for forward, each in zip(given.forwards, more, strict=False):
                servers.append(await asyncio.start_server(acceptor(access, forward), sock=each, limit=BUFFER))
            try:
                connection.send(str(os.getpid()).encode())
                process = await _wait_for_end(loop, connection, access)
                while process is not None and processes.is_running(*process):
                    await asyncio.sleep(LINGER / 2)
            except OSError:
                return
            finally:
                for server in servers:
                    server.close()
                access.close()


def acceptor(access: Access, forward: Forward | None = None, most: int = MAX_CONNECTIONS,
             ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Return the function that serves each connection of a listener, by requests or as a forward."""

    async def serve(client: Stream) -> None:
        try:
            if forward is None:
                await Relay(access, client).serve()
            else:
                await _pass_on(access, client, forward)
        except Exception as error:  # one connection must not end the others
            print(f"proxy: {access.registration.node}: {type(error).__name__}: {error}", flush=True)

    return Clients(serve, most, access.connections).accept


async def _pass_on(access: Access, client: Stream, forward: Forward) -> None:
    """Pass bytes between a client and the target of a forward."""
    try:
        await join_to(client, open_forward(forward), FORWARD_SECONDS)
    except ForwardRefused as refused:
        access.ledger.refuse_host(forward.place, str(refused))
    except UpstreamFailed:
        pass  # the client sees a connection that closes at once, as from a broken server


async def _wait_for_end(loop: asyncio.AbstractEventLoop, connection: socket.socket,
                        access: Access) -> tuple[int, int] | None:
    """Wait until a user is gone, and accept its new keys; return the process it has named, whose listener outlives the
    user."""
    process = None
    while True:
        await _readable(loop, connection)
        message = connection.recv(MAX_MESSAGE)
        if not message:
            return process
        if message.startswith(b"{"):
            access.registration = replace(access.registration, apis=Registration.decode(message).apis)
            continue
        pid, _, ticks = message.partition(b" ")
        process = (int(pid), int(ticks)) if pid.isdigit() and ticks.isdigit() and int(pid) else None


async def _readable(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    """Wait until a socket is readable."""
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


def take_lock(folder: Path) -> int | None:
    """Return the lock of a run's proxy; None if another process holds it."""
    descriptor = os.open(folder / registration.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def main() -> NoReturn:
    """Run as the proxy of a run; exit 0 at once if there is one."""
    code = 1
    try:
        code = _serve(*map(Path, sys.argv[1:3]))
    except BaseException:  # as the interpreter would print it
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)  # threads may still wait for a name server, and Python would wait for them


def _serve(folder: Path, home: Path) -> int:
    os.umask(0o077)
    lock = take_lock(folder)
    if lock is None:
        return 0
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE,
                           (_FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES), hard))
    control = unix_socket.listen(folder / registration.SOCKET, 64, socket.SOCK_SEQPACKET)
    try:
        # Not `asyncio.run`, which would wait for look-ups in progress.
        asyncio.SelectorEventLoop(selectors.PollSelector()).run_until_complete(Proxy(home, folder.name, control).run())
    finally:
        with contextlib.suppress(OSError):
            (folder / registration.SOCKET).unlink()  # still under the lock: it is ours
        sys.stdout.flush()
    return 0
