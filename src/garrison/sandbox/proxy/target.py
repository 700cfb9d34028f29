"""Targets: parse what a request to the proxy asks for; everything ambiguous is refused. Pure.

A request has one of three forms: `CONNECT host:port` asks for a tunnel, `GET http://host/…` is forwarded, and a plain
path names a model API. A `Host` header must agree with the form, since all readers of a request must interpret it the
same way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from urllib.parse import unquote

from garrison.sandbox.proxy.allowed_hosts import normalize_host
from garrison.sandbox.proxy.apis import AdmittedCalls, Api, find_api
from garrison.values import Value

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, and values."""
HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
                        b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"})
"""Hop-by-hop headers, which are never passed on."""
MAX_TARGET = 8192
"""Longest target of a request in bytes."""
_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,255}))"
                        r"(?::(?P<port>[0-9]{1,5}))?\Z")
_REQUEST_BEGIN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]*(?:[ \t\v\f\r][^\x00-\x08\x0e-\x1f]*)?")
"""Possible start of a request line: any method in the grammar, and white space that lenient servers accept."""
_REQUEST_LINE = re.compile(rb"\S+\s+(?:\S+\s+HTTP/|/|\*|[A-Za-z]+://)", re.IGNORECASE)
_TLS = b"\x16\x03"
"""Start of a TLS client's first message, whose random bytes look like a request line in one of 140 connections."""
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_GOOGLE_KEY = re.compile(r"(?:(?<=\?)|&)key=[^&]*")


class RequestForm(StrEnum):
    """Form of a request."""

    TUNNEL = "tunnel"
    FORWARD = "forward"
    API = "api"


class RequestTarget(Value):
    """Destination of a request: a host and port, or a call of a model API."""

    form: RequestForm
    host: str = ""
    port: int = 0
    path: str = ""
    """Path and query for the next server; for an API, below its base URL."""
    api: Api | None = None
    route: AdmittedCalls | None = None

    @property
    def place(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RequestRefused(Exception):
    """A refused request; `status` and one line for the client."""

    def __init__(self, status: int, reason: str, api: Api | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.api = status, reason, api


def read_target(method: bytes, target: bytes, headers: Headers, port: int) -> RequestTarget:
    """Return what a request asks for; RequestRefused if it is malformed, ambiguous or not admitted.

    Args:
        port: port of the proxy's own listener, which a plain path must name as its host.
    """
    if len(target) > MAX_TARGET:
        raise RequestRefused(414, "the request's target is too long")
    try:
        text = target.decode("ascii")
    except UnicodeDecodeError:
        raise RequestRefused(400, "the request's target is not ASCII") from None
    if any(ord(char) <= 32 or ord(char) == 127 for char in text) or "#" in text or "\\" in text:
        raise RequestRefused(400, "the request's target has forbidden characters")
    hosts = [value for name, value in headers if name == b"host"]
    framing = {name for name, _ in headers if name in _FRAMING}
    if len(hosts) > 1 or framing == _FRAMING:
        raise RequestRefused(400, "the request can be read in two ways")
    host = hosts[0].decode("latin-1").strip() if hosts else ""
    if method == b"CONNECT":
        if framing:
            raise RequestRefused(400, "CONNECT has no body")
        return _read_tunnel(text, host)
    if text.startswith("/"):
        return _read_api(method.decode("latin-1"), text, host, port)
    return _read_forward(method.decode("latin-1"), text, host, port)


def _read_tunnel(text: str, host: str) -> RequestTarget:
    name, port = _split_authority(text, 0)
    if not port:
        raise RequestRefused(400, "CONNECT needs host:port")
    if host and _split_authority(host, port) not in ((name, port), (name, 443)):
        raise RequestRefused(400, "the Host header names another host than CONNECT")
    return RequestTarget(RequestForm.TUNNEL, name, port)


def _read_forward(method: str, text: str, host: str, own: int) -> RequestTarget:
    scheme, sign, rest = text.partition("://")
    if not sign or scheme.lower() != "http":
        raise RequestRefused(400, "use CONNECT for https, and http:// for the rest")
    at = next((index for index, char in enumerate(rest) if char in "/?"), len(rest))
    authority, path = rest[:at], rest[at:]
    name, port = _split_authority(authority, 80)
    if not host or _split_authority(host, 80) != (name, port):
        raise RequestRefused(400, "the Host header names another host than the request")
    if (name, port) in (("127.0.0.1", own), ("localhost", own)):  # from a client that ignores no_proxy
        return _read_api(method, path, host, own)
    return RequestTarget(RequestForm.FORWARD, name, port, path if path.startswith("/") else "/" + path)


def _read_api(method: str, text: str, host: str, port: int) -> RequestTarget:
    if not host or _split_authority(host, 80) not in (("127.0.0.1", port), ("localhost", port)):
        raise RequestRefused(400, "the Host header does not name this proxy")
    found = find_api(text)
    if found is None:
        raise RequestRefused(404, "this is garrison's proxy; it has /anthropic, /openai/v1 and /google")
    api, below = found
    path, _, query = below.partition("?")
    if unquote(path) != path or ".." in path or "//" in path:
        raise RequestRefused(400, "the request's path is not in normal form", api)
    route = api.find_route(method, path)
    if route is None:
        raise RequestRefused(404, f"garrison adds the key of {api.title} only to model calls, not to {method} "
                                  f"{path[:80]}", api)
    query = _GOOGLE_KEY.sub("", f"?{query}").removeprefix("?").removeprefix("&") if query else ""
    return RequestTarget(RequestForm.API, path=f"{path}?{query}" if query else path, api=api, route=route)


def _split_authority(text: str, default: int) -> tuple[str, int]:
    match = _AUTHORITY.match(text)
    host = normalize_host(match["v6"] or match["name"]) if match else ""
    port = int(match["port"]) if match and match["port"] else default
    if not host or not 0 <= port < 65536 or (match and match["port"] and not port):
        raise RequestRefused(400, "the request names no valid host")
    return host, port


def is_plain_http(data: bytes) -> bool | None:
    """Return whether bytes start an HTTP request, as lenient servers parse it; None if they may become one."""
    if data.startswith(_TLS):
        return False
    line, end, _ = data.lstrip()[:MAX_TARGET].partition(b"\n")
    if not end and len(data) < MAX_TARGET:
        return None if _REQUEST_BEGIN.fullmatch(line) else False
    return _REQUEST_LINE.match(line) is not None


def named_host(target: bytes, headers: Headers, port: int) -> str:
    """Return the host and port in a request inside a tunnel to `port`; '' if it names none, or two."""
    hosts = [value.decode("latin-1").strip() for name, value in headers if name == b"host"]
    text = target.decode("latin-1")
    if not text.startswith("/"):
        hosts.append(text.partition("://")[2].partition("/")[0].partition("?")[0])
    try:
        found = {_split_authority(host, port) for host in hosts}
    except RequestRefused:
        return ""
    return RequestTarget(RequestForm.FORWARD, *found.pop()).place if len(found) == 1 else ""


def end_to_end(headers: Headers, drop: frozenset[bytes] = frozenset()) -> list[tuple[bytes, bytes]]:
    """Return the headers to pass on: without hop-by-hop ones, those that `Connection` names, and `drop`."""
    named = {word.strip().lower() for name, value in headers if name == b"connection" for word in value.split(b",")}
    leave = HOP_BY_HOP | drop | (named - {b"content-length", b"host", b"content-type"})
    return [(name, value) for name, value in headers if name not in leave]


# ---- client hello ----------------------------------------------------------------------------------------------------

# Client hello: the name that a TLS client requests, read from the first bytes of a tunnel. Pure.
#
# One address may serve many names, so an allowed host in `CONNECT` does not determine the server. The name in the
# client's first message does, and it is not encrypted. A client may still request another name inside the tunnel; most
# servers refuse that.

MAX_HELLO = 16 << 10
"""Most bytes of a tunnel's start that are read for its name."""
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
        """Return a reader of a block that starts with its length in `size` bytes."""
        return _Reader(self.take(self.number(size)))

    def rest(self) -> bytes:
        return self._data[self._at:]

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._data)


def is_complete(data: bytes) -> bool:
    """Return whether the bytes contain the whole first message of a TLS client, or are not TLS."""
    try:
        return _handshake(data) is not None
    except ValueError:
        return True


def server_name(data: bytes) -> str | None:
    """Return the name in a TLS client's first message, '' if it names none; None if the bytes are not such a
    message."""
    try:
        hello = _handshake(data)
        return None if hello is None else _find_name(_Reader(hello))
    except (IndexError, ValueError):
        return None


def _handshake(data: bytes) -> bytes | None:
    """Return the body of the client hello, joined from its records; None if bytes are missing, ValueError if invalid.
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
        raise ValueError("two names: servers differ in which one they use")
    return found.pop() if found else ""
