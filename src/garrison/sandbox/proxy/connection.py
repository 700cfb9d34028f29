"""Connection: the server side of HTTP/1.1 for one untrusted client, on h11.

Used by the proxy and previews. h11 parses input and writes output, so everything passed on is written from parsed
parts: no byte of a client's framing reaches a server. Every wait has a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import h11

from garrison.sandbox.proxy.upstream import BUFFER, Stream
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CHUNK = 64 << 10
"""Bytes per read."""
_END_SECONDS = 2.0
_CLOSING_SECONDS, _CLOSING_READS = 1.0, 64
"""Time limit and number of reads for the rest of a refused request."""


class Gone(Exception):
    """One side has disconnected or violated the protocol."""


class ClientWaits(Value):
    """Time limits for a client, in seconds."""

    head: float = 15.0
    """For a request's head, from its first byte."""
    idle: float = 90.0
    """For the next request of a connection."""
    body: float = 60.0
    """For the next part of a request's body, and for a side to accept output."""


class Clients:
    """Clients of a listener, each served by its own task."""

    def __init__(self, serve: Callable[[Stream], Awaitable[None]], most: int | None = None,
                 tasks: set[asyncio.Task[None]] | None = None) -> None:
        """Prepare.

        Args:
            most: limit of clients; further ones are closed at once.
            tasks: set of the serving tasks, if other listeners share it.
        """
        self._serve, self._most = serve, most
        self.tasks: set[asyncio.Task[None]] = set() if tasks is None else tasks

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client until it is done, or `end` is called."""
        task, client = asyncio.current_task(), Stream(reader, writer)
        assert task is not None
        if self._most is not None and len(self.tasks) >= self._most:
            client.close()
            return
        self.tasks.add(task)
        try:
            await self._serve(client)
        except asyncio.CancelledError:
            pass  # `end` was called
        finally:
            self.tasks.discard(task)
            client.close()

    def cancel(self) -> None:
        """Start to end all connections."""
        for task in list(self.tasks):
            task.cancel()

    async def end(self) -> None:
        """End all connections; wait for that briefly."""
        self.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=_END_SECONDS)


class Connection:
    """One connection of a client."""

    def __init__(self, client: Stream, max_head: int, waits: ClientWaits) -> None:
        """`max_head` is in bytes."""
        self.client, self._max_head, self._waits = client, max_head, waits
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=max_head)

    def begin_again(self, early: bytes) -> None:
        """Read what follows as a new connection that started with `early`."""
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._max_head)
        self.http.receive_data(early)

    @property
    def may_go_on(self) -> bool:
        """Return whether another request may follow."""
        return self.http.our_state is h11.DONE and self.http.their_state is h11.DONE

    async def read_head(self) -> h11.Request | None:
        """Return the next request; None if the client closes the connection instead."""
        event = self.http.next_event()
        if event is h11.NEED_DATA and not self.http.trailing_data[0]:
            async with asyncio.timeout(self._waits.idle):
                await self.receive()
            event = self.http.next_event()
        async with asyncio.timeout(self._waits.head):
            while event is h11.NEED_DATA:
                await self.receive()
                event = self.http.next_event()
        return event if isinstance(event, h11.Request) else None

    async def receive(self) -> bool:
        """Read what the client has sent; return whether it has disconnected."""
        data = await self.client.reader.read(CHUNK)
        self.http.receive_data(data)
        return not data

    async def read_body(self) -> bytes | None:
        """Return the next part of the request's body; None at its end."""
        while True:
            event = self.http.next_event()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                return None
            if event is not h11.NEED_DATA:
                raise Gone
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            async with asyncio.timeout(self._waits.body):
                await self.receive()

    async def send(self, *events: h11.Event) -> None:
        """Send the client parts of the response."""
        await write(self.client, b"".join(filter(None, map(self.http.send, events))), self._waits.body)

    async def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, reason: bytes) -> None:
        """Send garrison's own answer and end the connection; the rest of the request is not read."""
        if self.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        framing = [(b"Content-Length", str(len(body)).encode()), (b"Connection", b"close")]
        with contextlib.suppress(h11.LocalProtocolError):
            await self.send(h11.Response(status_code=status, headers=[*headers, *framing], reason=reason),
                            h11.Data(data=body), h11.EndOfMessage())
        await self.drain()

    async def drain(self) -> None:
        """Read some of what the client still sends: closing at once would reset the connection before the answer
        arrives."""
        with contextlib.suppress(OSError, TimeoutError):
            if self.client.writer.can_write_eof():
                self.client.writer.write_eof()
            async with asyncio.timeout(_CLOSING_SECONDS):
                for _ in range(_CLOSING_READS):
                    if not await self.client.reader.read(CHUNK):
                        return


async def write(to: Stream, data: bytes, seconds: float) -> None:
    """Write to a side, and wait while its buffer is full."""
    if not data:
        return
    to.writer.write(data)
    transport = to.writer.transport
    if transport.get_write_buffer_size() > BUFFER or transport.is_closing():  # a timeout costs more than the write
        async with asyncio.timeout(seconds):
            await to.writer.drain()
