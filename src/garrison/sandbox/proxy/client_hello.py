"""Client hello: the name that a TLS client asks a server for, read from the first bytes of a tunnel. Pure.

One address may serve many names, so an allowed host in `CONNECT` does not say who is asked. The name in the client's
first message does, and it is not encrypted. A server may still be asked for another name inside the tunnel; most refuse
that.
"""

from __future__ import annotations

MAX_HELLO = 16 << 10
"""Bytes of a tunnel's beginning that are read for its name."""
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME = 22, 1, 0


class _Reader:
    """Reads numbers and blocks; IndexError beyond the end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        block = self._data[self._at:self._at + size]
        if len(block) < size:
            raise IndexError
        self._at += size
        return block

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def block(self, size: int) -> _Reader:
        """Return a reader of a block that begins with its length, in `size` bytes."""
        return _Reader(self.take(self.number(size)))

    def rest(self) -> bytes:
        return self._data[self._at:]

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._data)


def is_complete(data: bytes) -> bool:
    """Return whether the bytes hold the whole first message of a TLS client, or are none."""
    try:
        return _handshake(data) is not None
    except ValueError:
        return True


def server_name(data: bytes) -> str | None:
    """Return the name in a TLS client's first message, '' if it names none; None if the bytes are no such message."""
    try:
        hello = _handshake(data)
        return None if hello is None else _find_name(_Reader(hello))
    except (IndexError, ValueError):
        return None


def _handshake(data: bytes) -> bytes | None:
    """Return the body of the client hello, joined from its records; None if bytes are missing, ValueError if it is
    none.
    """
    message, reader = b"", _Reader(data)
    while not reader.is_at_end:
        try:
            kind, major, _, fragment = reader.number(1), reader.number(1), reader.number(1), reader.number(2)
            if kind != _HANDSHAKE or major != 3 or not 0 < fragment <= MAX_HELLO:
                raise ValueError("no TLS handshake")
            message += reader.take(fragment)
        except IndexError:
            if data[:1] not in (b"", bytes([_HANDSHAKE])):
                raise ValueError("no TLS handshake") from None
            return None
        if message[0] != _CLIENT_HELLO:
            raise ValueError("no client hello")
        if len(message) >= 4 and len(message) >= 4 + int.from_bytes(message[1:4], "big"):
            return message[4:4 + int.from_bytes(message[1:4], "big")]
    return None


def _find_name(hello: _Reader) -> str:
    hello.take(2 + 32)
    hello.block(1)  # session id
    hello.block(2)  # cipher suites
    hello.block(1)  # compression methods
    if hello.is_at_end:
        return ""
    extensions, found = hello.block(2), set()
    while not extensions.is_at_end:
        kind, body = extensions.number(2), extensions.block(2)
        names = body.block(2) if kind == _SERVER_NAME else _Reader(b"")
        while not names.is_at_end:
            name_type, name = names.number(1), names.block(2)
            if name_type == 0:
                found.add(name.rest().decode("ascii"))
    if len(found) > 1:
        raise ValueError("two names, of which a server takes the one or the other")
    return found.pop() if found else ""
