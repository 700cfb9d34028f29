"""Access control of the web server: authorize each request by host, origin, bearer and headers; store the tokens.

A page on any site can make a browser send requests to the loopback interface, and a cookie knows no port: one of
127.0.0.1:8642 is sent to a development server on 127.0.0.1:3000 as well. So there is no cookie. A browser turns the
token of the printed address into a pass, which the page keeps in the session storage of its own origin and sends as a
bearer; no form, image, link or page of another port can send it. A request is also checked for its host name (DNS
rebinding), the requesting page (Origin, Sec-Fetch-Site) and, for changes, a header and a content type that no form can
send.

A pass is `KIND.SCOPE.LOGIN.EXPIRES.SIGNATURE`, signed with the token of its scope, so that it survives a restart of the
server but not `--new-tokens`. The two tokens are in `web/tokens.json`. The pass of a paired device names that device as
well, and is valid while it is paired; its own key signs for a new one (`phones`).
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from garrison.errors import RecordUnreadable
from garrison.records import atomic
from garrison.values import Value, replace

READ, WRITE = "read", "write"
QUERY = "token"
"""Parameter of the printed address; the page gets a ticket instead of its value."""
PRIVATE = "/api/"
"""Prefix of every address that reads or changes data; all others are files of the page."""
EXCHANGE = "/api/session"
"""Address that exchanges a ticket, or a session that ends soon, for a session."""
TICKET_SECONDS = 60
"""Lifetime of a ticket: time for a browser to open the page that it was redirected to."""
SESSION_SECONDS = 12 * 3600
"""Lifetime of a session that no open page renews."""
LOGIN_SECONDS = 7 * 86400
"""Time after which the printed address must be opened again."""
WEBHOOK = "/webhook"
"""Address that forges deliver to; each delivery proves itself (`webhooks`), since a forge has no token."""
BUTTON = "/button/"
"""Prefix of the addresses of messages' buttons; a token follows, and nothing else."""
PAIR, CHALLENGE, DEVICE_SESSION = "/api/pair", "/api/device/challenge", "/api/device/session"
"""Addresses of a device that has no session: each request proves itself, by a code or a signature (`phones`)."""
SUBSCRIBE = "/api/device/push"
"""Address at which a device, whatever its rights, sets where its messages go."""
BODY_BYTES = 64 << 10
"""Largest body of a request."""
HEADERS = {
    "content-security-policy":
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
"""Headers of every response."""


class PassKind(StrEnum):
    """What a pass is for."""

    TICKET = "t"
    """Can only be exchanged for a session."""
    SESSION = "s"


class Pass(Value):
    """Access of one browser for a limited time; times are in seconds since the epoch."""

    kind: PassKind
    scope: str
    login: int
    expires: int
    device: str = ""
    """Id of the paired device that owns it, '' for a browser."""

    def encode(self, token: str) -> str:
        text = f"{self.kind}.{self.scope}.{self.login}.{self.expires}{f'.{self.device}' if self.device else ''}"
        return f"{text}.{_signature(text, token)}"


def _signature(text: str, token: str) -> str:
    digest = hmac.digest(token.encode(), f"garrison pass {text}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class Rules(Value):
    """Access rules of a server: the origins of its page, and its tokens by scope."""

    origins: frozenset[str]
    tokens: Mapping[str, str]
    former_cookie: str = ""
    """Cookie in which garrison 0.1 stored the token in a browser; a login deletes it."""
    scope_of_device: Callable[[str], str] = lambda _: ""
    """Return what a paired device may do now, '' for one that is revoked."""

    def is_own_host(self, host: str) -> bool:
        return any(urlsplit(origin).netloc == host for origin in self.origins)

    def scope(self, bearer: str, now: float) -> str:
        """Return the scope of a bearer that allows requests, '' for none."""
        found = self.scope_of_token(bearer)
        if not found:
            given = self.read_pass(bearer, now)
            found = given.scope if given is not None and given.kind is PassKind.SESSION else ""
        return found

    def scope_of_token(self, token: str) -> str:
        """Return the scope of a token, '' if invalid; compares in constant time."""
        # As bytes: `compare_digest` raises TypeError for text that is not ASCII, which a header may contain.
        scopes = [scope for scope, valid in self.tokens.items() if hmac.compare_digest(valid.encode(), token.encode())]
        return scopes[0] if scopes else ""

    def read_pass(self, bearer: str, now: float) -> Pass | None:
        """Return a pass that is ours, has not expired, and whose device is still paired."""
        text, _, signature = bearer.rpartition(".")
        parts = text.split(".")
        if len(parts) not in (_PASS_PARTS, _PASS_PARTS + 1) or parts[1] not in self.tokens:
            return None
        if not hmac.compare_digest(_signature(text, self.tokens[parts[1]]).encode(), signature.encode()):
            return None
        kind, scope, login, expires, *device = parts  # signed, so we wrote them
        found = Pass(PassKind(kind), scope, int(login), int(expires), "".join(device))
        is_paired = not found.device or self.scope_of_device(found.device) == scope
        return found if now < found.expires and is_paired else None

    def issue_ticket(self, scope: str, now: float) -> str:
        """Return a ticket for a client that has a token."""
        return Pass(PassKind.TICKET, scope, int(now), int(now) + TICKET_SECONDS).encode(self.tokens[scope])

    def issue_session(self, given: Pass, now: float) -> tuple[str, int] | None:
        """Return a session for a pass, with its seconds of validity; None long after its login."""
        # Counted from the log-in, however often the session is renewed: a stolen one is valid for a week at most.
        expires = min(int(now) + SESSION_SECONDS, given.login + LOGIN_SECONDS)
        if expires <= now:
            return None
        made = replace(given, kind=PassKind.SESSION, expires=expires)
        return made.encode(self.tokens[given.scope]), expires - int(now)


_PASS_PARTS = 4
"""Parts of a pass before its signature, without the device."""


class AccessDenied(Value):
    """Refusal of a request: an HTTP status, and one line that says what to do."""

    status: int
    message: str


NO_ACCESS = AccessDenied(401, "this browser has no access (any more): open the address that `garrison serve` printed")


def judge(rules: Rules, method: str, path: str, headers: Mapping[str, str], now: float) -> AccessDenied | str:
    """Return the scope of a request ('' for a file of the page, and a webhook), or its refusal.

    Names of headers are in lower case.
    """
    # Before all else: under a name that DNS rebinding gave us, even our own page would be another site's.
    if not rules.is_own_host(headers.get("host", "")):
        return AccessDenied(421,
                            "this is not the server's host name; open the address that `garrison serve` printed, or "
                            "add this name with --hostname")
    public = method == "GET" and not path.startswith(PRIVATE)
    if _is_foreign(rules, headers) and not (public and _is_navigation(headers)):
        return AccessDenied(403, "pages of other sites may not use this server; open the printed address directly")
    if public:
        return ""
    if (path == WEBHOOK or path.startswith(BUTTON)) and method == "POST":
        return ""
    if path in (PAIR, CHALLENGE, DEVICE_SESSION):
        return AccessDenied(405, "use POST") if method != "POST" else _refuse_change(headers, WRITE) or ""
    if path == EXCHANGE:
        given = rules.read_pass(bearer_of(headers), now)
        return NO_ACCESS if given is None else _refuse_change(headers, WRITE) or given.scope
    scope = rules.scope(bearer_of(headers), now)
    if not scope:
        return NO_ACCESS
    if method == "GET":
        return scope
    if method != "POST":
        return AccessDenied(405, "use GET or POST")
    return _refuse_change(headers, WRITE if path == SUBSCRIBE else scope) or scope


def _is_foreign(rules: Rules, headers: Mapping[str, str]) -> bool:
    """Return whether another page made the request, perhaps one on another port of this machine."""
    origin = headers.get("origin")
    return ((origin is not None and origin not in rules.origins)
            or headers.get("sec-fetch-site") in ("cross-site", "same-site"))


def _is_navigation(headers: Mapping[str, str]) -> bool:
    """Return whether a link opens one of our pages in its own tab, so that the linking page learns nothing."""
    return (headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            and "origin" not in headers)


def _refuse_change(headers: Mapping[str, str], scope: str) -> AccessDenied | None:
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return AccessDenied(415, "send Content-Type: application/json")
    if headers.get("x-garrison") != "1":
        return AccessDenied(403, "send the header X-Garrison: 1")
    if scope != WRITE:
        return AccessDenied(403,
                            "this address is read-only; start `garrison serve` without --read-only to act")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or int(length) > BODY_BYTES:
        return AccessDenied(413, f"the request is larger than the limit of {BODY_BYTES >> 10} KiB")
    return None


def bearer_of(headers: Mapping[str, str]) -> str:
    """Return the bearer of a request: a token (programs) or a pass (our page); '' for none."""
    kind, _, word = headers.get("authorization", "").partition(" ")
    return word.strip() if kind.lower() == "bearer" else ""


def origins(names: list[str], port: int, scheme: str) -> frozenset[str]:
    """Return the origins of the page on a server with these names.

    A name that is an origin itself, such as `https://garrison.example`, is the public address of a reverse proxy.
    """
    found = set()
    for name in names:
        if "://" in name:
            found.add(name.rstrip("/"))
            continue
        base = f"{scheme}://[{name}]" if ":" in name else f"{scheme}://{name}"
        found.add(f"{base}:{port}")
        if port == _DEFAULT_PORTS[scheme]:
            found.add(base)
    return frozenset(found)


_DEFAULT_PORTS = {"http": 80, "https": 443}


def load_tokens(home: Path, *, new: bool = False) -> dict[str, str]:
    """Return scope → token; generate them if there are none, or with `new`.

    Raises RecordUnreadable if the file is invalid or readable by other users.
    """
    path = home / "web" / "tokens.json"
    data = None if new else atomic.read(path)
    if data is None:
        tokens = {scope: secrets.token_urlsafe(32) for scope in (WRITE, READ)}
        atomic.make_directory(path.parent)
        atomic.write(path, json.dumps(tokens, indent=1).encode() + b"\n")
        return tokens
    if path.stat().st_mode & 0o077:
        raise RecordUnreadable(path, "other users can read it; `garrison serve --new-tokens` makes new tokens")
    try:
        body = json.loads(data)
        return {scope: _token(body[scope]) for scope in (WRITE, READ)}
    except (ValueError, KeyError, TypeError) as error:
        raise RecordUnreadable(path, "it contains no tokens; `garrison serve --new-tokens` makes new tokens") from error


def _token(value: object) -> str:
    if not isinstance(value, str) or len(value) < 32 or not value.isascii():
        raise ValueError("no token")
    return value
