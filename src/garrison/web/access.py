"""Access control of the web server: authorize each request by host, origin, token and headers; store the tokens.

A page on any site can make a browser send requests to the loopback interface. So a request is checked for its host name
(DNS rebinding), the requesting page (Origin), a token that no other page knows and, for changes, a header and a content
type that no form can send. The two tokens are in `web/tokens.json`, so that an open page survives its server.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from garrison.errors import RecordUnreadable
from garrison.frozen import frozen
from garrison.records import atomic

READ, WRITE = "read", "write"
QUERY = "token"
"""Parameter of the printed address; its value becomes a cookie."""
BODY_BYTES = 64 << 10
"""Largest body of a request."""
HEADERS = {
    "content-security-policy":
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
"""Headers of every response."""


@frozen
class Rules:
    """Access rules of a server: its host names (with port), tokens by scope, the name of its cookie."""

    hosts: frozenset[str]
    tokens: Mapping[str, str]
    cookie: str
    scheme: str = "http"

    def origin(self, value: str) -> bool:
        """Return whether a page of that origin is one of ours."""
        scheme, separator, host = value.partition("://")
        return bool(separator) and scheme == self.scheme and host in self.hosts

    def scope(self, token: str) -> str:
        """Return the scope of a token, '' if invalid; compares in constant time."""
        scopes = [scope for scope, valid in self.tokens.items() if hmac.compare_digest(valid.encode(), token.encode())]
        return scopes[0] if scopes else ""


@frozen
class Refusal:
    """Refusal of a request: an HTTP status, and one line that says what to do."""

    status: int
    message: str


def judge(rules: Rules, method: str, headers: Mapping[str, str]) -> Refusal | str:
    """Return the scope of a request, or its refusal; header names in lower case."""
    if headers.get("host", "") not in rules.hosts:
        return Refusal(421, "this server has another host name; use the address that `garrison serve` printed")
    origin = headers.get("origin")
    if (origin is not None and not rules.origin(origin)) or headers.get("sec-fetch-site") == "cross-site":
        return Refusal(403, "pages of other sites may not use this server; open the printed address itself")
    scope = rules.scope(token_of(rules, headers))
    if not scope:
        return Refusal(401, "open the address that `garrison serve` printed: it holds the token")
    if method == "GET":
        return scope
    if method != "POST":
        return Refusal(405, "use GET or POST")
    return _refuse_change(headers, scope) or scope


def _refuse_change(headers: Mapping[str, str], scope: str) -> Refusal | None:
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return Refusal(415, "send Content-Type: application/json")
    if headers.get("x-garrison") != "1":
        return Refusal(403, "send the header X-Garrison: 1")
    if scope != WRITE:
        return Refusal(403, "this address is read-only; `garrison serve` without --read-only prints one that may act")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or int(length) > BODY_BYTES:
        return Refusal(413, f"a request has at most {BODY_BYTES >> 10} KiB")
    return None


def token_of(rules: Rules, headers: Mapping[str, str]) -> str:
    """Return the token of a request: from `Authorization: Bearer` (programs), else from our cookie."""
    kind, _, word = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return word.strip()
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == rules.cookie:
            return value
    return ""


def cookie_of(rules: Rules, token: str) -> str:
    """Return the header that stores the token in a browser; no script can read it, no other site's page can send it."""
    secure = "; Secure" if rules.scheme == "https" else ""
    return f"{rules.cookie}={token}; Path=/; HttpOnly; SameSite=Strict{secure}"


def hosts(names: list[str], port: int) -> frozenset[str]:
    """Return the host names (with port) that a request may name."""
    bracketed = [f"[{name}]" if ":" in name else name for name in names]
    default = {80, 443} & {port}
    return frozenset([f"{name}:{port}" for name in bracketed] + [name for name in bracketed if default])


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
        raise RecordUnreadable(path, "other users may read it; `garrison serve --new-tokens` makes new tokens")
    try:
        body = json.loads(data)
        return {scope: _token(body[scope]) for scope in (WRITE, READ)}
    except (ValueError, KeyError, TypeError) as error:
        raise RecordUnreadable(path, "it holds no tokens; `garrison serve --new-tokens` makes new tokens") from error


def _token(value: object) -> str:
    if not isinstance(value, str) or len(value) < 32 or not value.isascii():
        raise ValueError("no token")
    return value
