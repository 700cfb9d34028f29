"""Dialer: open TCP connections in the network namespace of confined programs, without leaving this one.

A socket belongs to the namespace where it was created, wherever it is connected later. So a forked child enters the
namespace and only creates sockets, which it passes back. It exits with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
import socket
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.sandbox.proxy.upstream import BUFFER, Stream
from garrison.system import processes

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.system.processes import ProcessId
    from garrison.system.sockets import Listener

_OWNER = 0xB701
"""ioctl NS_GET_USERNS: the user namespace that owns a namespace."""
_SECONDS = 5.0
"""Time limits for a socket and for a connection: both are on this machine."""


class Unreachable(GarrisonError):
    """A connection failed; the message says why."""


@dataclass(slots=True)
class Dialer:
    """Creates sockets in the network namespace of a process."""

    channel: socket.socket

    @classmethod
    def enter(cls, process: ProcessId) -> Dialer:
        """Start the child; Unreachable if the process has ended or its namespace cannot be entered."""
        try:
            network = os.open(f"/proc/{process.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unreachable(f"its programs have ended ({error.strerror})") from error
        try:
            if not processes.is_running(process.pid, process.ticks):  # the pid may be reused by now
                raise Unreachable("its programs have ended")
            return cls.enter_namespace(network)
        finally:
            os.close(network)

    @classmethod
    def enter_namespace(cls, network: int) -> Dialer:
        """Start the child in the namespace of a descriptor, which may be closed afterwards."""
        # SEQPACKET separates messages, and reports at once that the other side has died, which datagrams do not.
        parent, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent.settimeout(_SECONDS)
        setns = ctypes.CDLL(None, use_errno=True).setns  # looked up before the fork
        with child:
            try:
                if os.fork() == 0:
                    _make_sockets(setns, network, child)
            except BaseException:
                parent.close()
                raise
        dialer = cls(parent)
        try:
            if dialer._receive() != b"ready":
                raise Unreachable("its network cannot be entered")
        except BaseException:
            dialer.close()
            raise
        return dialer

    def make_socket(self, *, is_v6: bool) -> socket.socket:
        """Return a new TCP socket of the namespace; Unreachable if the child has ended."""
        try:
            self.channel.send(b"6" if is_v6 else b"4")
            message, descriptors, _, _ = socket.recv_fds(self.channel, 256, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise Unreachable(f"its network is gone ({error.strerror or 'no answer'})") from error
        if not descriptors:
            raise Unreachable(f"its network returns no socket: {message.decode(errors='replace') or 'it has ended'}")
        return socket.socket(fileno=descriptors[0])

    def _receive(self) -> bytes:
        try:
            return self.channel.recv(256)
        except OSError as error:
            raise Unreachable("its network cannot be entered") from error

    def close(self) -> None:
        """End the child."""
        self.channel.close()


def _make_sockets(setns: Callable[[int, int], int], network: int, channel: socket.socket) -> None:
    """Enter the namespace in the forked child, and create sockets until the parent closes its end; then exit."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        kept = sorted({channel.fileno(), network})
        edges = [2, *kept, 1 << 20]
        for low, high in pairwise(edges):
            os.closerange(low + 1, high)  # connections of the parent would stay open here
        # Entering a network needs capabilities in the user namespace that owns it, which entering that one gives.
        owner = fcntl.ioctl(network, _OWNER)
        if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:  # noqa: PTH116
            _enter(setns, owner)
        _enter(setns, network)
        channel.settimeout(None)
        channel.send(b"ready")
        while kind := channel.recv(16):
            try:
                with socket.socket(socket.AF_INET6 if kind == b"6" else socket.AF_INET, socket.SOCK_STREAM,
                                   socket.IPPROTO_TCP) as made:
                    processes.send_descriptors(channel, b"socket", [made.fileno()])
            except OSError as error:
                channel.send((error.strerror or "error").encode()[:200])
    except BaseException as error:  # none of the parent's code may run in the child
        with contextlib.suppress(OSError):
            channel.send(str(error).encode()[:200] or b"error")
    finally:
        os._exit(0)


def _enter(setns: Callable[[int, int], int], namespace: int) -> None:
    if setns(namespace, 0) != 0:
        raise OSError(ctypes.get_errno(), "its namespace cannot be entered")


async def connect(made: socket.socket, listener: Listener) -> Stream:
    """Connect a socket to a listener; Unreachable if nothing listens there any more."""
    made.setblocking(False)
    try:
        async with asyncio.timeout(_SECONDS):
            await asyncio.get_running_loop().sock_connect(made, (listener.address, listener.port))
        return Stream(*await asyncio.open_connection(sock=made, limit=BUFFER))
    except (OSError, TimeoutError) as error:
        made.close()
        raise Unreachable(f"nothing answers at port {listener.port}: {getattr(error, 'strerror', '') or 'no answer'}"
                          ) from error
