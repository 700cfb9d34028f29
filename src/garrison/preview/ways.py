"""Connections to a node's port: into its network namespace, to its socket in the machine's, or over a Unix socket."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Protocol

from garrison.sandbox.dialer import Dialer, Unreachable, connect
from garrison.sandbox.proxy.upstream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.preview.listeners import Tree
    from garrison.system.sockets import Listener


class Way(Protocol):
    """A connection to a node's port."""

    async def open(self) -> Stream:
        """Connect; Unreachable if that is impossible now."""


class NodeWay:
    """Connection to a port of a node: into its namespace, or to its own socket in the machine's."""

    def __init__(self, look: Callable[[], Tree | None], port: int) -> None:
        """`look` returns the node's present programs; `port` is one of theirs."""
        self._look, self.port = look, port
        self._dialer: Dialer | None = None
        self._listener: Listener | None = None

    async def open(self) -> Stream:
        """Connect; inspect the node again if the known listener is gone."""
        if self._dialer is not None and self._listener is not None:
            with contextlib.suppress(Unreachable):
                return await connect(self._dialer.make_socket(is_v6=self._listener.is_v6), self._listener)
        self.close()
        tree = self._look()
        if tree is None:
            raise Unreachable("none of its programs is running now")
        listener = tree.find(self.port)
        if listener is None:
            raise Unreachable(f"nothing listens on its port {self.port} now")
        if tree.namespace is None:
            return await self._open_shared(listener)
        self._dialer, self._listener = Dialer.enter(tree.namespace), listener
        return await connect(self._dialer.make_socket(is_v6=listener.is_v6), listener)

    async def _open_shared(self, listener: Listener) -> Stream:
        """Connect in the machine's own namespace, where another program may take over the port at any time."""
        stream = await connect(socket.socket(socket.AF_INET6 if listener.is_v6 else socket.AF_INET,
                                             socket.SOCK_STREAM, socket.IPPROTO_TCP), listener)
        # Checked after connecting: before it, the port could change hands in between.
        tree = self._look()
        found = tree.find(self.port) if tree is not None else None
        if found is None or found.inode != listener.inode:  # the connection may be to another socket
            stream.close()
            raise Unreachable(f"port {self.port} now belongs to another program")
        return stream

    def close(self) -> None:
        """Release the namespace."""
        if self._dialer is not None:
            self._dialer.close()
        self._dialer = self._listener = None
