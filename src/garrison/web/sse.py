"""Server-sent events: their encoding, a bounded queue per client, and the stream as an ASGI response.

Nothing waits for a client. One that reads too slowly loses its queue, gets `bye` and is disconnected; it reconnects
with the id of the last event it saw.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.types import Receive, Scope, Send

from garrison.values import to_builtins

EVENTS, BYTES = 512, 4 << 20
"""Most events, and bytes of events, queued for one client."""
PIECE = 64 << 10
"""Bytes passed to a connection at once: it copies unsent bytes, while all clients share the queued events."""
SEND_SECONDS = 20.0
"""Longest time for one send before the client counts as disconnected."""
KEEPALIVE_SECONDS = 20.0
"""Silence after which a keepalive is sent, so that no proxy closes the stream."""
COMMENT = b": alive\n\n"
ALIVE = b"event: alive\ndata: {}\n\n"
"""Keepalive as an event, for a page that treats a silent stream as lost."""
RETRY = b"retry: 1000\n\n"
"""Tells a browser to reconnect after a second."""
HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"),
           (b"x-accel-buffering", b"no"))


def as_json(value: object) -> str:
    """Encode records and JSON data for the page. A lone surrogate, which an agent's output may contain, is escaped:
    UTF-8 cannot encode it.
    """
    value = to_builtins(value)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


def encode_event(event: str, data: object, id_: str = "") -> bytes:
    """Encode a server-sent event. JSON contains no line break, so one `data` line is enough."""
    head = f"id: {id_}\n" if id_ else ""
    return f"{head}event: {event}\ndata: {as_json(data)}\n\n".encode()


class Client:
    """Event queue of one client.

    A client that follows several runs has an id for each, in the order of `cursors` (run → the id of its last event, ''
    before the first). Its events carry all of them, separated by commas, so that the last one is its position.
    """

    def __init__(self, first: list[bytes] | None = None, cursors: Mapping[str, str] | None = None,
                 alive: bytes = COMMENT) -> None:
        self._queue: deque[tuple[bytes, int]] = deque((data, 0) for data in first or ())
        """Events, each with the bytes that it counts for: 0 for the first ones."""
        self._cursors, self._alive = dict(cursors or {}), alive
        self._bytes = 0
        self._arrived = asyncio.Event()
        self.ending = False

    @property
    def cursors(self) -> Mapping[str, str]:
        return self._cursors

    def begin(self, events: list[bytes], run: str = "") -> None:
        """Queue the first events, whatever their size."""
        self._queue.extend((self._with_cursors(data, run), 0) for data in events)
        self._arrived.set()

    def put(self, data: bytes, run: str = "") -> None:
        """Queue an event (of a run); if the queue is full, disconnect the client."""
        if self.ending:
            return
        data = self._with_cursors(data, run)
        if len(self._queue) >= EVENTS or self._bytes + len(data) > BYTES:
            # All of it: events after a gap could not be applied, and a reconnect by the last id gets them.
            self._queue.clear()
            self._bytes = 0
            self.leave("the client read too slowly; connect again")
            return
        self._queue.append((data, len(data)))
        self._bytes += len(data)
        self._arrived.set()

    def _with_cursors(self, data: bytes, run: str) -> bytes:
        """Return an event with an id for the client's position in all its runs."""
        if len(self._cursors) < 2 or run not in self._cursors or not data.startswith(b"id: "):
            return data
        head, _, rest = data.partition(b"\n")
        self._cursors[run] = head[len(b"id: "):].decode()
        return f"id: {','.join(self._cursors.values())}\n".encode() + rest

    def leave(self, why: str) -> None:
        """End its stream with `bye`, after the queued events."""
        if not self.ending:
            self._queue.append((encode_event("bye", {"why": why}), 0))
            self.finish()

    def finish(self) -> None:
        """End its stream after the queued events."""
        self.ending = True
        self._arrived.set()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the queued events, small ones together; a keepalive now and then while there are none."""
        while True:
            if not self._queue:
                if self.ending:
                    return
                self._arrived.clear()
                try:
                    async with asyncio.timeout(KEEPALIVE_SECONDS):
                        await self._arrived.wait()
                except TimeoutError:
                    yield self._alive
                continue
            yield self._take()

    def _take(self) -> bytes:
        """Remove and return the next events: one, however large, or several that are small."""
        batch, size = list[bytes](), 0
        while self._queue and (not batch or size + len(self._queue[0][0]) <= PIECE):
            data, counted = self._queue.popleft()
            batch.append(data)
            size += len(data)
            self._bytes -= counted
        return b"".join(batch)


class EventStream:
    """ASGI response that sends an iterator's output until it ends or the client leaves, then calls `on_end`."""

    def __init__(self, source: AsyncIterator[bytes], on_end: Callable[[], None] = lambda: None) -> None:
        self.source, self.on_end = source, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream: one task sends, the other waits for the client to disconnect."""
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            self.on_end()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        await send({"type": "http.response.body", "body": RETRY, "more_body": True})
        async for data in self.source:
            for begin in range(0, len(data), PIECE):
                async with asyncio.timeout(SEND_SECONDS):
                    await send({"type": "http.response.body", "body": data[begin:begin + PIECE], "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
