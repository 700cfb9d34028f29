"""Transport of an ACP agent's messages, bounded: what the agent's program writes is not trusted.

One message is one line of JSON. If a program writes something else, endless lines, or requests faster than they are
answered, its connection ends with one reason; until then at most one line and a few unanswered requests are kept in
memory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress

MAX_LINE = 16 << 20
"""Largest message in bytes."""
MAX_TOTAL = 512 << 20
"""Most bytes that an agent may send in one connection."""
MAX_STRAY = 50
"""Most lines that are not messages, such as a program's warnings, that are ignored."""
MAX_UNANSWERED = 64
"""Most requests of the agent that may wait for their answer concurrently."""
MAX_REFUSED = 500
"""Most consecutive failed requests of the agent: it must not repeat the same one forever."""
_SHOWN = 120


class Breach(Exception):
    """Raised when an agent violates the protocol; the text says how."""


class AgentTransport:
    """Message transport over the pipes of an agent's program, for the protocol's library."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._total = self._stray = self._refused = 0
        self._unanswered: set[str] = set()
        self._awaited: set[str] = set()
        """Ids of our unanswered requests."""
        self.breach: asyncio.Future[Breach] = asyncio.get_running_loop().create_future()
        """Done once the agent has violated the protocol: `receive` then reports its end."""
        self.ended = asyncio.Event()
        """Set once the agent has closed its output."""
        self.heard_at = asyncio.get_running_loop().time()

    async def send(self, message: Mapping[str, object]) -> None:
        """Send a message; an answer removes its request from the waiting ones."""
        if "method" not in message and "id" in message:
            self._unanswered.discard(_id_of(message))
            self._refused = self._refused + 1 if "error" in message else 0
            if self._refused > MAX_REFUSED:
                self.break_off(f"{MAX_REFUSED} requests in a row that had to be refused, the last: "
                            f"{_shown(json.dumps(message.get('error')))}")
        if "method" in message and "id" in message:
            # Before it is written: the answer may be read before `drain` returns.
            self._awaited.add(_id_of(message))
        with suppress(ConnectionError):  # its end is noticed by the reader
            self._writer.write(json.dumps(message).encode() + b"\n")
            await self._writer.drain()

    async def receive(self) -> dict[str, object] | None:
        """Return the next message; None once the agent has ended or violated the protocol."""
        try:
            message = await self._next()
        except Breach as breach:
            self.break_off(str(breach))
            message = None
        if message is None:
            self.ended.set()
        await asyncio.sleep(0)  # during a flood, the loop must get to answer
        return message

    async def close(self) -> None:
        """Close the agent's input."""
        with suppress(OSError):
            self._writer.close()

    async def _next(self) -> dict[str, object] | None:
        while not self.breach.done():
            line = await self._read_line()
            if not line:
                return None
            self.heard_at = asyncio.get_running_loop().time()
            if (message := self._parse(line)) is not None:
                self._count(message)
                return message
        return None

    async def _read_line(self) -> bytes:
        try:
            line = await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            line = error.partial
        except asyncio.LimitOverrunError:
            raise Breach(f"a line of more than {MAX_LINE >> 20} MiB") from None
        except OSError:
            return b""
        self._total += len(line)
        if self._total > MAX_TOTAL:
            raise Breach(f"more than {MAX_TOTAL >> 20} MiB in one connection")
        return line

    def _parse(self, line: bytes) -> dict[str, object] | None:
        """Return the message in a line; None if the line is empty or not a message, which is ignored for a while."""
        if not line.strip():
            return None
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict) and _is_message(message) and self._is_expected(message):
            return message
        self._stray += 1
        if self._stray > MAX_STRAY:
            last = _shown(line.decode(errors="replace"))
            raise Breach(f"{self._stray} lines that are not messages, the last: {last}")
        return None

    def _is_expected(self, message: Mapping[str, object]) -> bool:
        """Return whether to accept a message: not an unsolicited or repeated answer."""
        if "method" in message or _id_of(message) not in self._awaited:
            return "method" in message
        self._awaited.remove(_id_of(message))
        return True

    def _count(self, message: Mapping[str, object]) -> None:
        if "method" not in message or "id" not in message:
            return
        self._unanswered.add(_id_of(message))
        if len(self._unanswered) > MAX_UNANSWERED:
            raise Breach(f"more than {MAX_UNANSWERED} requests at one time, the last: "
                         f"{_shown(str(message['method']))}")

    def break_off(self, reason: str) -> None:
        """Stop reading from an agent that has violated the protocol."""
        if not self.breach.done():
            self.breach.set_result(Breach(reason))
            # Wakes a read that waits for a line: the library learns of the end only from `receive`.
            self._reader.set_exception(ConnectionResetError("the protocol was broken"))

    @property
    def stray(self) -> int:
        return self._stray


def _is_message(message: Mapping[str, object]) -> bool:
    """Return whether the library can handle a message: it would fail on an id that is a list, and stop reading."""
    if "method" in message and not isinstance(message["method"], str):
        return False
    return "method" in message or "id" in message if isinstance(message.get("id"), (str, int, type(None))) else False


def _id_of(message: Mapping[str, object]) -> str:
    return json.dumps(message["id"])[:200]


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
