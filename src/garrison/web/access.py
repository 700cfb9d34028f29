"""Access control of the web server: judge each request by host, origin, token and headers; keep the tokens.

A page on any site can make a browser ask a server on the loopback interface. So the name it was asked by counts (DNS
rebinding), the page that asks (Origin), a token that no other page knows, and for changes a header and a content type
that no form can send. The two tokens lie in `web/tokens.json`, so that an open page outlives its server.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from garrison.errors import RecordUnreadable
from garrison.records import atomic

READ, WRITE = "read", "write"
QUERY = "token"
"""The parameter of the printed address that becomes a cookie."""
BODY_BYTES = 64 << 10
"""A request's body at most."""
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
"""On every answer."""


@dataclass(frozen=True)
class Rules:
    """What a server lets in: names (with port) it may be asked by, tokens by scope, the name of its cookie."""

    hosts: frozenset[str]
    tokens: Mapping[str, str]
    cookie: str
    scheme: str = "http"

    def origin(self, value: str) -> bool:
        """Whether a page of that origin is ours."""
        scheme, separator, host = value.partition("://")
        return bool(separator) and scheme == self.scheme and host in self.hosts

    def scope(self, token: str) -> str:
        """The scope of a token, '' if it is none; each is compared in the same time."""
        found = [scope for scope, known in self.tokens.items() if hmac.compare_digest(known.encode(), token.encode())]
        return found[0] if found else ""


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered: a status, and one line that says what to do."""

    status: int
    message: str


def judge(rules: Rules, method: str, headers: Mapping[str, str]) -> Refusal | str:
    """The scope that a request has, or why it is refused; header names in lower case."""
    if headers.get("host", "") not in rules.hosts:
        return Refusal(421, "this server does not go by that name; use the address that `garrison serve` printed")
    origin = headers.get("origin")
    if (origin is not None and not rules.origin(origin)) or headers.get("sec-fetch-site") == "cross-site":
        return Refusal(403, "another site's page may not ask this server; open the printed address itself")
    scope = rules.scope(token_of(rules, headers))
    if not scope:
        return Refusal(401, "open the address that `garrison serve` printed: it holds the token")
    if method == "GET":
        return scope
    if method != "POST":
        return Refusal(405, "only GET and POST are answered")
    return _may_change(headers, scope) or scope


def _may_change(headers: Mapping[str, str], scope: str) -> Refusal | None:
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return Refusal(415, "send Content-Type: application/json")
    if headers.get("x-garrison") != "1":
        return Refusal(403, "send the header X-Garrison: 1")
    if scope != WRITE:
        return Refusal(403, "this address may only look; `garrison serve` without --read-only prints one that may act")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or int(length) > BODY_BYTES:
        return Refusal(413, f"a request has at most {BODY_BYTES >> 10} KiB")
    return None


def token_of(rules: Rules, headers: Mapping[str, str]) -> str:
    """The token that a request brings: as `Authorization: Bearer`, for programs, else in our cookie."""
    kind, _, word = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return word.strip()
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == rules.cookie:
            return value
    return ""


def cookie_of(rules: Rules, token: str) -> str:
    """The header that makes a browser keep the token: no script reads it, no other site's page sends it along."""
    secure = "; Secure" if rules.scheme == "https" else ""
    return f"{rules.cookie}={token}; Path=/; HttpOnly; SameSite=Strict{secure}"


def hosts(names: list[str], port: int) -> frozenset[str]:
    """The names (with port) that a server is asked by."""
    written = [f"[{name}]" if ":" in name else name for name in names]
    default = {80, 443} & {port}
    return frozenset([f"{name}:{port}" for name in written] + [name for name in written if default])


def tokens(home: Path, *, new: bool = False) -> dict[str, str]:
    """Scope → token; made where there are none, or where `new` ones are wanted.

    RecordUnreadable if the file is no such record, or others may read it.
    """
    path = home / "web" / "tokens.json"
    data = None if new else atomic.read(path)
    if data is None:
        found = {scope: secrets.token_urlsafe(32) for scope in (WRITE, READ)}
        atomic.make_directory(path.parent)
        atomic.write(path, json.dumps(found, indent=1).encode() + b"\n")
        return found
    if path.stat().st_mode & 0o077:
        raise RecordUnreadable(path, "others may read it; `garrison serve --new-tokens` makes new ones")
    try:
        body = json.loads(data)
        return {scope: _token(body[scope]) for scope in (WRITE, READ)}
    except (ValueError, KeyError, TypeError) as error:
        raise RecordUnreadable(path, "it holds no tokens; `garrison serve --new-tokens` makes new ones") from error


def _token(value: object) -> str:
    if not isinstance(value, str) or len(value) < 32 or not value.isascii():
        raise ValueError("no token")
    return value
