"""Connections of the server: a deadline for each request's head, and a limit for clients that have shown no access.

A client that opens connections and sends nothing, or a byte now and then, must not shut out the others. Until a request
of a connection was authorized, the connection belongs to a stranger. When strangers are too many, those that have
waited longest for their first whole request are ended. A browser sends it at once, so it is served in any crowd.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 5.0
"""Time for the head of a request, from the connection or the first byte on; also for a TLS handshake."""
STRANGERS = 96
"""Most connections of which no request was authorized, after `GRACE_SECONDS`."""
STRANGERS_AT_ONCE = 512
"""Most of them at any time; a process may open 1024 files by default."""
GRACE_SECONDS = 0.5
"""Time in which honest clients that connect at once are served."""
_STATE = "strangers"
"""Key of the server's state that holds its strangers."""
_CONNECTION = "connection"
"""Key of a request's state that holds its connection."""


class Connection(H11Protocol):
    """HTTP connection that is ended when the head of a request takes too long, or strangers are too many."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._strangers: dict[Connection, float] = app_state.setdefault(_STATE, {})
        """Connection → its time, in the order of connecting."""
        self.app_state = {**app_state, _CONNECTION: self}
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Count it as a stranger; end one if there are too many."""
        super().connection_made(transport)
        self._strangers[self] = self.loop.time()
        self._expect_head()
        if len(self._strangers) > STRANGERS_AT_ONCE:
            silent = (one for one in self._strangers if one.cycle is None)
            next(silent, next(iter(self._strangers))).end()
        elif len(self._strangers) == STRANGERS + 1:
            self.loop.call_later(GRACE_SECONDS, self._end_strangers)

    def _end_strangers(self) -> None:
        """End the strangers that are too many, the silent and the oldest first; do it again if some are too young."""
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
        """Count it as a stranger no longer: a request of it was authorized."""
        self._strangers.pop(self, None)

    def end(self) -> None:
        """End it at once."""
        self._strangers.pop(self, None)
        self._head_came()
        self.transport.abort()

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_SECONDS, self.end)

    def _head_came(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def recognize(scope: Scope) -> None:
    """Count the connection of an authorized request as a stranger's no longer."""
    connection = scope.get("state", {}).get(_CONNECTION)
    if isinstance(connection, Connection):
        connection.recognize()
