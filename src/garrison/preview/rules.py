"""Rules of a preview: which requests pass, and how headers change on the way in and out. Pure.

A node's server is not trusted. Each preview has its own port and its own host name, so that a browser separates its
cookies and storage from those of the page and of other previews. The host name is checked (DNS rebinding), and so
is the page that makes a request. The server itself is requested as `localhost:PORT`, since development servers refuse
other names.
"""

from __future__ import annotations

import hmac
import re
import secrets
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from garrison.sandbox.proxy.target import end_to_end
from garrison.values import Value

if TYPE_CHECKING:
    from garrison.sandbox.proxy.target import Headers

TICKET = "garrison-ticket"
"""Parameter of an address that opens a preview once beyond this machine."""
# `__Host-`: a browser accepts such a cookie only over TLS and from this exact host, so no other server can plant one.
COOKIE = "__Host-garrison-preview-"
"""Prefix of the cookies that prove access; the port follows. No server behind a preview sees or sets one."""
MAX_LABEL = 63
"""Bytes of a label of a host name."""
_DIGEST = 8
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_DROPPED_IN = frozenset({b"host", b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto",
                         b"x-forwarded-port", b"x-real-ip"})
_DROPPED_OUT = frozenset({b"alt-svc", b"strict-transport-security", b"public-key-pins", b"clear-site-data",
                          b"proxy-authenticate"})
"""Headers of a response that would affect other servers of the same host name in a browser."""
FRAMING = frozenset({b"content-length", b"transfer-encoding"})


def host_label(node: str, run: str) -> str:
    """Return the label of a node's host name, `NODE-RUN`; no two nodes have the same.

    A digest follows if the name alone would be ambiguous: a letter was changed, the node's own name has a dash,
    or it was cut.
    """
    label = re.sub("[^a-z0-9-]", "-", f"{node}-{run}".lower()).strip("-")
    if label == f"{node}-{run}" and "-" not in node and len(label) <= MAX_LABEL:
        return label
    digest = sha256(f"{node}@{run}".encode()).hexdigest()[:_DIGEST]
    return f"{label[:MAX_LABEL - _DIGEST - 1].rstrip('-')}-{digest}"


class PreviewRules(Value):
    """Requirements on the requests of one preview."""

    host: str
    """Host name and port in a browser's address bar, in lower case."""
    inner: int
    """Port of the node's server."""
    scheme: str = "http"
    is_shared: bool = False
    """True if other servers have the same host name, such as `localhost`: nothing may be stored in the browser."""
    secret: str = ""
    """Value of the cookie that every request needs; '' if none is needed."""

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.host}"

    @property
    def inner_origin(self) -> str:
        return f"http://localhost:{self.inner}"

    @property
    def cookie(self) -> str:
        return f"{COOKIE}{self.host.rpartition(':')[2]}"


class HttpRefusal(Value):
    """A request that is refused: a status, and one line that says what to do."""

    status: int
    message: str


def judge(rules: PreviewRules, method: bytes, target: bytes, headers: Headers) -> HttpRefusal | None:
    """Return why a request is refused; None if it passes."""
    hosts = [value.decode("latin-1").strip().lower() for name, value in headers if name == b"host"]
    if hosts != [rules.host]:
        return HttpRefusal(421, f"this preview is at {rules.origin}, and under no other name")
    # Both framing headers: two parsers could disagree on the end of the body, and one read the rest as another request.
    names = {name for name, _ in headers}
    if not target.startswith(b"/") or method == b"CONNECT" or names >= FRAMING:
        return HttpRefusal(400, "the request is ambiguous")
    if _is_foreign(rules, method, headers):
        return HttpRefusal(403, f"pages of other sites may not use this preview; open {rules.origin}/ directly")
    if rules.is_shared and (b"service-worker", b"script") in {(name, value.lower()) for name, value in headers}:
        return HttpRefusal(403, "a service worker would affect other servers of this host name")
    # As bytes: `compare_digest` raises TypeError for text that is not ASCII, which a header may contain.
    if rules.secret and not hmac.compare_digest(cookies(headers).get(rules.cookie, "").encode(), rules.secret.encode()):
        return HttpRefusal(401, "open the address that `garrison preview` printed last; each opens one browser")
    return None


def _is_foreign(rules: PreviewRules, method: bytes, headers: Headers) -> bool:
    """Return whether a page of another site made a request that is not a navigation by the user."""
    values = {name: value.decode("latin-1").strip().lower() for name, value in headers}
    origin, site = values.get(b"origin"), values.get(b"sec-fetch-site")
    is_navigation = (method in (b"GET", b"HEAD") and values.get(b"sec-fetch-mode") == "navigate"
                     and values.get(b"sec-fetch-dest") == "document")
    if origin is not None:  # another port of the same name is another server of the same node
        return _name_of(origin) != rules.host.rpartition(":")[0]
    return site in ("cross-site", "same-site") and not is_navigation


def _name_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.rpartition("@")[2].partition(":")[0]
    except ValueError:
        return ""


def is_upgrade(headers: Headers) -> bool:
    """Return whether a request asks for a WebSocket, the only supported upgrade."""
    words = {word.strip().lower() for name, value in headers if name == b"connection" for word in value.split(b",")}
    return b"upgrade" in words and [value.lower() for name, value in headers if name == b"upgrade"] == [b"websocket"]


def cookies(headers: Headers) -> dict[str, str]:
    """Return the cookies of a request."""
    pairs = (pair.partition("=") for name, value in headers if name == b"cookie"
             for pair in value.decode("latin-1").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def headers_in(rules: PreviewRules, headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the headers that the node's server gets: `localhost`, and none of the cookies that prove access."""
    upgrade = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")] if is_upgrade(headers) else [
        (b"Connection", b"close")]
    passed = [(b"Host", f"localhost:{rules.inner}".encode()), *upgrade]
    for name, value in end_to_end(headers, _DROPPED_IN):
        if name == b"cookie":
            kept = [pair for pair in value.split(b";") if not pair.strip().startswith(COOKIE.encode())]
            if kept:
                passed.append((name, b";".join(kept).strip()))
        elif name in (b"origin", b"referer"):
            passed.append((name, _exchange(value, (rules.origin,), rules.inner_origin)))
        else:
            passed.append((name, value))
    return [*passed, *framing(headers)]


def headers_out(rules: PreviewRules, headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the headers that the browser gets: addresses of the preview, cookies of this exact host name."""
    own = [f"http://{name}:{rules.inner}" for name in _LOOPBACK]
    passed = []
    for name, value in end_to_end(headers, _DROPPED_OUT):
        if name == b"set-cookie":
            if not value.lstrip().startswith(COOKIE.encode()):
                passed.append((name, _without_domain(value)))
        elif name in (b"location", b"access-control-allow-origin", b"content-location"):
            passed.append((name, _exchange(value, own, rules.origin)))
        else:
            passed.append((name, value))
    return [*passed, *framing(headers)]


def framing(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the header that frames the body of a message; an explicit length passes as end-to-end."""
    return [(b"Transfer-Encoding", b"chunked")] if any(name == b"transfer-encoding" for name, _ in headers) else []


def _exchange(value: bytes, before: tuple[str, ...] | list[str], after: str) -> bytes:
    """Return a URL with another origin if it has one of `before`."""
    text = value.decode("latin-1")
    for origin in before:
        if text == origin or text.startswith((f"{origin}/", f"{origin}?", f"{origin}#")):
            return (after + text[len(origin):]).encode("latin-1")
    return value


def _without_domain(value: bytes) -> bytes:
    """Return a cookie that only its own host name gets."""
    return b";".join(part for part in value.split(b";") if part.partition(b"=")[0].strip().lower() != b"domain")


# ---- tickets ---------------------------------------------------------------------------------------------------------


class Tickets:
    """The ticket that opens a preview in one browser; a used one is replaced."""

    def __init__(self) -> None:
        self.current = secrets.token_urlsafe(24)

    def redeem(self, target: bytes) -> bool:
        """Use the ticket of an address; False if it has none, or not the current one."""
        _, _, query = target.decode("latin-1").partition("?")
        given = dict(parse_qsl(query)).get(TICKET, "")
        if not given or not hmac.compare_digest(given.encode(), self.current.encode()):
            return False
        self.current = secrets.token_urlsafe(24)
        return True


def has_ticket(target: bytes) -> bool:
    return f"{TICKET}=".encode() in target
