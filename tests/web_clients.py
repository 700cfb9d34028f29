"""Clients of the page's server: many event streams in one loop."""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass, field

_EVENT_END = b"\n\n\r\n"
"""End of an event that is the end of a chunk."""
_READ = 1 << 18
PORTION = 50
"""Streams that are opened at once: the server holds few connections whose request it has not read yet."""


@dataclass
class Reader:
    """One event stream, of which only what a marker needs is kept."""

    socket: socket.socket
    tail: bytes = b""
    received: int = 0


@dataclass
class Crowd:
    """Event streams of one run, read by one thread; parses nothing, looks for markers in the bytes."""

    port: int
    token: str
    run: str = "r1"
    readers: dict[int, Reader] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._poll = select.epoll()

    def join(self, number: int) -> float:
        """Open `number` more streams, a portion at a time; return the seconds until each has its snapshot."""
        begun = time.perf_counter()
        for left in range(number, 0, -PORTION):
            self._join_at_once(min(left, PORTION))
        return time.perf_counter() - begun

    def _join_at_once(self, number: int) -> None:
        request = (f"GET /api/events?run={self.run} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
                   f"Authorization: Bearer {self.token}\r\n\r\n").encode()
        new = []
        for _ in range(number):
            sock = socket.create_connection(("127.0.0.1", self.port), 30)
            sock.sendall(request)
            sock.setblocking(False)
            new.append(Reader(sock))
            self.readers[sock.fileno()] = new[-1]
            self._poll.register(sock, select.EPOLLIN)
        self.until(b"event: snapshot", new, whole=True)

    def until(self, marker: bytes, among: list[Reader] | None = None, *, whole: bool = False,
              seconds: float = 60) -> float:
        """Read until each has had the marker (and, if `whole`, the event to its end); return the moment of the last."""
        waiting = {one.socket.fileno() for one in (among if among is not None else self.readers.values())}
        seen: set[int] = set()
        deadline = time.perf_counter() + seconds
        while waiting:
            left = deadline - time.perf_counter()
            assert left > 0, f"{len(waiting)} of {len(self.readers)} clients had no {marker!r}"
            for descriptor, _ in self._poll.poll(left):
                reader = self.readers[descriptor]
                data = self._read(reader)
                data = reader.tail + data
                reader.tail = data[-len(marker):]
                if marker in data:
                    seen.add(descriptor)
                if descriptor in seen and (not whole or data.endswith(_EVENT_END)):
                    waiting.discard(descriptor)
        return time.perf_counter()

    def drain(self, seconds: float) -> None:
        """Read what comes for a while."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            for descriptor, _ in self._poll.poll(left):
                self._read(self.readers[descriptor])

    def _read(self, reader: Reader) -> bytes:
        data = reader.socket.recv(_READ)
        reader.received += len(data)
        assert data, "the server ended a stream"
        return data

    def leave(self, number: int | None = None) -> None:
        """Close the oldest streams; all without a number."""
        for descriptor in list(self.readers)[:number]:
            self._poll.unregister(descriptor)
            self.readers.pop(descriptor).socket.close()
