"""One client of an event stream: what it has not read yet, within bounds, and the stream itself as an ASGI response.

The rule of this room: nobody waits for a client. One that reads too slowly loses its queue, is told `bye` and is let
go; it comes back with the id of the last event it saw.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

EVENTS, BYTES = 512, 4 << 20
"""How many events, and how many bytes of them, wait for one client at most."""
SEND_SECONDS = 20.0
"""How long one piece may take to go out before the client counts as gone."""
ALIVE_SECONDS = 20.0
"""Silence after which a word is sent, so that nothing in between takes the stream for dead."""
COMMENT = b": alive\n\n"
ALIVE = b"event: alive\ndata: {}\n\n"
"""The same as an event, for a page that counts a stream without any as lost."""
RETRY = b"retry: 1000\n\n"
"""A browser whose stream broke off comes back after a second."""
HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"),
           (b"x-accel-buffering", b"no"))


def as_json(value: Any) -> str:
    """JSON for the page. A half character, which an agent's output may hold, is escaped: UTF-8 has none."""
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        written.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return written


def encoded(event: str, data: Any, id_: str = "") -> bytes:
    """A server-sent event. JSON holds no line break, so one `data` line is enough."""
    name = f"id: {id_}\n" if id_ else ""
    return f"{name}event: {event}\ndata: {as_json(data)}\n\n".encode()


class Client:
    """What waits for one client.

    Who follows several runs has an id for each, in the order of `places` (run → the id of the last event of it, ''
    before the first); its events bear all of them, with commas between, so that the last one says where it stands.
    """

    def __init__(self, first: list[bytes] | None = None, places: Mapping[str, str] | None = None,
                 alive: bytes = COMMENT) -> None:
        self._waiting: deque[bytes] = deque(first or ())
        self._places, self._alive = dict(places or {}), alive
        self._bytes = 0
        self._more = asyncio.Event()
        self.leaving = False

    @property
    def places(self) -> Mapping[str, str]:
        """The runs that it follows, each with the id of the last event of it."""
        return self._places

    def begin(self, events: list[bytes], run: str = "") -> None:
        """What it has to know first, however much that is."""
        self._waiting.extend(self._placed(data, run) for data in events)
        self._more.set()

    def put(self, data: bytes, run: str = "") -> None:
        """Let it have an event (of a run); too many, and it has to go."""
        if self.leaving:
            return
        data = self._placed(data, run)
        if len(self._waiting) >= EVENTS or self._bytes + len(data) > BYTES:
            self._waiting.clear()
            self.leave("you read too slowly; connect again")
            return
        self._waiting.append(data)
        self._bytes += len(data)
        self._more.set()

    def _placed(self, data: bytes, run: str) -> bytes:
        """An event with an id that says where the client stands in all its runs."""
        if len(self._places) < 2 or run not in self._places or not data.startswith(b"id: "):
            return data
        head, _, rest = data.partition(b"\n")
        self._places[run] = head[len(b"id: "):].decode()
        return f"id: {','.join(self._places.values())}\n".encode() + rest

    def leave(self, why: str) -> None:
        """End its stream, after what waits, with a word."""
        if not self.leaving:
            self._waiting.append(encoded("bye", {"why": why}))
            self.finish()

    def finish(self) -> None:
        """End its stream after what waits."""
        self.leaving = True
        self._more.set()

    async def events(self) -> AsyncIterator[bytes]:
        """What comes, several events at once where they wait; a sign of life now and then where nothing does."""
        while True:
            if not self._waiting:
                if self.leaving:
                    return
                self._more.clear()
                try:
                    async with asyncio.timeout(ALIVE_SECONDS):
                        await self._more.wait()
                except TimeoutError:
                    yield self._alive
                continue
            data = b"".join(self._waiting)
            self._waiting.clear()
            self._bytes = 0
            yield data


class EventStream:
    """An ASGI response that sends what an iterator gives, until that, or the client, ends."""

    def __init__(self, source: AsyncIterator[bytes], ended: Callable[[], None] = lambda: None) -> None:
        self.source, self.ended = source, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream. One task sends; the other waits for the client to go."""
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            self.ended()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        await send({"type": "http.response.body", "body": RETRY, "more_body": True})
        async for data in self.source:
            async with asyncio.timeout(SEND_SECONDS):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
