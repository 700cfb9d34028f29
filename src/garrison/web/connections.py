"""Connections of the server: how many it has room for, a deadline for each request's head, and a limit for clients that
have shown no access.

A client that opens connections and sends nothing, or a byte now and then, must not shut out the others. Until a request
of a connection was authorized, the connection belongs to a stranger. When strangers are too many, those that have
waited longest for their first whole request are ended. A browser sends it at once, so it is served in any crowd.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from garrison.errors import Refused
from garrison.values import Value

FILES = 4096
"""Open files that the server asks for; by default a process may open 1024."""
OWN_FILES = 128
"""Open files other than connections: terminals, commands, files being read."""
CONNECTIONS = 3072
"""Most connections; a browser keeps a few open."""
STREAMS = 1000
"""Most event streams of runs."""

HEAD_SECONDS = 5.0
"""Time for the head of a request, from the connection or the first byte on; also for a TLS handshake."""
STRANGERS = 96
"""Most connections of which no request was authorized, after `GRACE_SECONDS`."""
STRANGERS_AT_ONCE = 512
"""Most such connections at any time."""
GRACE_SECONDS = 0.5
"""Time in which honest clients that connect at once are served."""
CAPACITY = "capacity"
"""Key of the server's capacity in its state."""
_STATE = "strangers"
"""Key of the server's strangers in its state."""
_CONNECTION = "connection"
"""Key of a request's connection in its state."""


class Overloaded(Refused):
    """The server has no room for a request now; HTTP status 503."""


class Capacity(Value):
    """Most open files, connections, connections of strangers at any time, and event streams of runs."""

    files: int
    connections: int
    strangers: int
    streams: int
    head_seconds: float = HEAD_SECONDS

    def check_streams(self, opened: int) -> None:
        """Raise Overloaded if there is no room for a stream alongside the `opened` ones."""
        if opened < self.streams:
            return
        few = "" if self.streams == STREAMS else (
            f"; a process may open {self.files} files here, `ulimit -n {FILES}` before `garrison serve` allows more")
        raise Overloaded(f"{self.streams} pages are open, which is the limit: close one of them{few}")


def capacity_of(files: int) -> Capacity:
    """Return the capacity of a process that may open so many files. Pure.

    Strangers get three eighths of the connections at most, and streams half, so that neither shuts out a first request.
    """
    all_ = max(16, min(CONNECTIONS, files - OWN_FILES))
    return Capacity(files, all_, min(STRANGERS_AT_ONCE, all_ * 3 // 8), min(STREAMS, all_ // 2))


def raise_file_limit(wanted: int = FILES) -> int:
    """Let this process open `wanted` files, or as many as it may; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most, now = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in (hard, soft))
    if now < (target := min(wanted, most)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return max(now, target)


class HttpConnection(H11Protocol):
    """HTTP connection that is ended when the head of a request takes too long, or strangers are too many."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._strangers: dict[HttpConnection, float] = app_state.setdefault(_STATE, {})
        """Connection → its time, in the order of connecting."""
        self._capacity: Capacity = app_state[CAPACITY]
        self.app_state = {**app_state, _CONNECTION: self}  # uvicorn copies it into the scope of each request
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Count it as a stranger; end one if there are too many."""
        super().connection_made(transport)
        self._strangers[self] = self.loop.time()
        self._expect_head()
        if len(self._strangers) > self._capacity.strangers:
            silent = (one for one in self._strangers if one.cycle is None)
            next(silent, next(iter(self._strangers))).end()
        elif len(self._strangers) == STRANGERS + 1:  # exactly: one timer for the crowd, not one for each of it
            self.loop.call_later(GRACE_SECONDS, self._end_strangers)

    def _end_strangers(self) -> None:
        """End surplus strangers, the silent and the oldest first; repeat later if some are too young."""
        old = [one for one, since in self._strangers.items() if since <= self.loop.time() - GRACE_SECONDS]
        old.sort(key=lambda one: one.cycle is not None)  # stable: the oldest first
        for one in old[:max(0, len(self._strangers) - STRANGERS)]:
            one.end()
        if len(self._strangers) > STRANGERS:
            self.loop.call_later(GRACE_SECONDS, self._end_strangers)

    def data_received(self, data: bytes) -> None:
        """Read more of a request; its head has a deadline from its first byte on."""
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_head()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._head_came()

    def handle_events(self) -> None:
        """Handle what was read; a whole head ends its deadline."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._head_came()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._head_came()
        self._strangers.pop(self, None)
        super().connection_lost(exc)

    def recognize(self) -> None:
        """Count it as a stranger no longer: one of its requests was authorized."""
        self._strangers.pop(self, None)

    @property
    def is_beyond_capacity(self) -> bool:
        return len(self.connections) > self._capacity.connections

    def end(self) -> None:
        """End it at once."""
        self._strangers.pop(self, None)
        self._head_came()
        self.transport.abort()  # `close` would wait until the buffer is sent, even to a client that reads nothing

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(self._capacity.head_seconds, self.end)

    def _head_came(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def recognize(scope: Scope) -> None:
    """Count the connection of an authorized request as a stranger's no longer."""
    connection = scope.get("state", {}).get(_CONNECTION)
    if isinstance(connection, HttpConnection):
        connection.recognize()


def is_beyond_capacity(scope: Scope) -> bool:
    connection = scope.get("state", {}).get(_CONNECTION)
    return isinstance(connection, HttpConnection) and connection.is_beyond_capacity
