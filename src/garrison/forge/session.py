"""Requests to one forge: deadline, ETags, pages and failures, over the transport of a client library."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

from garrison.forge.errors import NotFound, RateLimited, Refused, Unauthorized, Unreachable
from garrison.forge.etag_cache import CachedAnswer, EtagCache
from garrison.forge.model import RequestCount
from garrison.forge.protocol import DEADLINE, MAX_PAGES, PAGE_SIZE
from garrison.forge.reading import as_objects
from garrison.system import failpoint
from garrison.system.terminal_text import clean
from garrison.values import Value

if TYPE_CHECKING:
    from garrison.forge.credentials import Token

Query = Mapping[str, str]
Body = Mapping[str, Any]


class Request(Value):
    """One request; `path` begins with `/` and is relative to the API."""

    method: str
    path: str
    query: Query
    body: Body | None
    headers: Mapping[str, str]


class Answer(Value):
    """What came back, whatever its status."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    content: bytes


class Transport(Protocol):
    """A client library, as far as it sends requests. It neither retries, nor waits, nor follows to another host."""

    def send(self, request: Request, timeout: float) -> Answer:
        """Send a request; Unreachable if no answer came."""
        ...


_RATE = re.compile(r"rate limit|abuse detection|too many requests|retry later", re.IGNORECASE)
_SCOPE = re.compile(r"scope|not accessible by|permission|must have|forbidden|not allowed to access", re.IGNORECASE)
_SCOPE_HEADERS = ("x-accepted-github-permissions", "x-accepted-oauth-scopes")
_REFUSALS = {400, 405, 406, 409, 412, 422, 423}
_NEXT = re.compile(r'<([^<>]*)>\s*;[^,<]*\brel="?next\b')
SECONDARY_WAIT = 60.0
"""Seconds to wait at a secondary limit that names no time: what GitHub asks for."""
_LONGEST_WAIT = 24 * 3600.0
_REASON = 300


class Session:
    """The requests of one client. One thread uses it at a time."""

    def __init__(self, transport: Transport, token: Token, cache: EtagCache | None = None, *,
                 deadline: float = DEADLINE, clock: Callable[[], float] = time.time) -> None:
        self._transport, self._cache, self._clock, self._length = transport, cache, clock, deadline
        self._secret = token.reveal()
        self._end: float | None = None
        self.requests = RequestCount()
        self.is_anew = False
        """True while no read is conditional."""

    @contextmanager
    def deadline(self) -> Iterator[None]:
        """Bound all requests within the block together; within another such block, by that one's end."""
        outer = self._end
        if outer is None:
            self._end = time.monotonic() + self._length
        try:
            yield
        finally:
            self._end = outer

    def pause(self, seconds: float) -> bool:
        """Wait before looking again; False if the deadline would pass meanwhile."""
        if self._end is not None and time.monotonic() + seconds > self._end:
            return False
        time.sleep(seconds)
        return True

    def get(self, path: str, query: Query | None = None) -> Any:
        """Return the JSON of a resource, from the cache if the forge says that it has not changed."""
        return self._read(path, query or {})[0]

    def get_pages(self, path: str, query: Query | None = None, *, key: str = "", pages: int = MAX_PAGES,
                  size: str = "per_page") -> list[dict[str, Any]]:
        """Return the objects of all pages, at most `pages`; with `key`, those of that list in each page."""
        found: list[dict[str, Any]] = []
        asked = {**(query or {}), size: str(PAGE_SIZE)}
        for _ in range(pages):
            body, link = self._read(path, asked)
            found += as_objects(body.get(key) or [] if key and isinstance(body, dict) else body)
            onward = _NEXT.search(link)
            if onward is None:
                break
            # only the query is taken over: a link to another host would carry the token there
            asked = dict(parse_qsl(urlsplit(onward[1]).query))
        return found

    def get_text(self, path: str) -> str:
        return self._send(Request("GET", path, {}, None, {})).content.decode(errors="replace")

    def write(self, method: str, path: str, body: Body | None = None, query: Query | None = None) -> Any:
        """Send a write once; return its JSON, None for an empty answer."""
        return _parse(self._send(Request(method, path, query or {}, body, {})))

    def _read(self, path: str, query: Query) -> tuple[Any, str]:
        address = f"{path}?{urlencode(sorted(query.items()))}"
        known = self._cache.find(address) if self._cache and not self.is_anew else None
        headers = {"If-None-Match": known.etag} if known else {}
        answer = self._send(Request("GET", path, query, None, headers))
        if answer.status == 304 and known is not None:
            self.requests.not_modified += 1
            return json.loads(known.body), known.link
        body, link = _parse(answer), answer.headers.get("link", "")
        if self._cache and (etag := answer.headers.get("etag", "")):
            self._cache.keep(CachedAnswer(address, etag, answer.content.decode(errors="replace"), link))
        return body, link

    def _send(self, request: Request) -> Answer:
        left = self._length if self._end is None else self._end - time.monotonic()
        if left <= 0:
            raise Unreachable(f"{request.method} {request.path}: the forge took longer than {self._length:g} s")
        failpoint.here(f"forge:{request.method}")
        self.requests.sent += 1
        try:
            answer = self._transport.send(request, max(0.1, left))
        finally:
            failpoint.here(f"forge:{request.method}-sent")
        if 200 <= answer.status < 300 or (answer.status == 304 and "If-None-Match" in request.headers):
            return answer
        raise self._failure(request, answer)

    def _failure(self, request: Request, answer: Answer) -> Exception:
        reason = self._clean(_reason(answer))
        what = f"{request.method} {request.path}: {answer.status} {reason}".rstrip()
        status = answer.status
        if status == 429 or (status == 403 and self._is_rate_limit(answer, reason)):
            return RateLimited(what, self._limit_end(answer))
        if status == 401:
            return Unauthorized(f"{what}: the token is not valid; set another")
        if status == 403:
            scope = next((answer.headers[name] for name in _SCOPE_HEADERS if answer.headers.get(name)), "")
            if scope or _SCOPE.search(reason):
                return Unauthorized(f"{what}: the token lacks {scope or 'a permission'}", scope or reason)
            return Refused(what, reason)
        if status in {404, 410}:
            return NotFound(what)
        if 300 <= status < 400:
            return Refused(f"{what}: the repository has moved; change the remote's URL", "moved")
        return Refused(what, reason) if status in _REFUSALS else Unreachable(what)

    def _is_rate_limit(self, answer: Answer, reason: str) -> bool:
        headers = answer.headers
        return bool("retry-after" in headers or headers.get("x-ratelimit-remaining") == "0" or _RATE.search(reason))

    def _limit_end(self, answer: Answer) -> float:
        """Return when the limit ends; a forge that names a senseless time is asked again within a day.

        Times are compared with the forge's own clock, so that a wrong one here does not matter.
        """
        now, wait = self._clock(), SECONDARY_WAIT
        there = _moment(answer.headers.get("date", "")) or now
        after = answer.headers.get("retry-after", "")
        if after.isdecimal() or _moment(after):
            wait = float(after) if after.isdecimal() else _moment(after) - there
        elif (answer.headers.get("x-ratelimit-remaining") == "0" or answer.status == 429):
            reset = answer.headers.get("x-ratelimit-reset") or answer.headers.get("ratelimit-reset") or ""
            wait = float(reset) - there if reset.isdecimal() else wait
        return now + min(max(wait, 1.0), _LONGEST_WAIT)

    def _clean(self, reason: str) -> str:
        """Return a forge's text in one line, without escape sequences and without the token, should it echo it."""
        line = " ".join(clean(reason.replace(self._secret, "...")).split())
        return line[:_REASON]


def _moment(date: str) -> float:
    """Return a date of HTTP in seconds since 1970; 0 if it is none."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _parse(answer: Answer) -> Any:
    if not answer.content.strip():
        return None
    try:
        return json.loads(answer.content)
    except (ValueError, RecursionError) as error:
        raise Unreachable(f"the forge answered {answer.status} with something that is not JSON") from error


def _reason(answer: Answer) -> str:
    """Return the forge's own words about a failure."""
    try:
        body = json.loads(answer.content)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(body, dict):
        return ""
    said = body.get("message") or body.get("error_description") or body.get("error") or ""
    details = [each.get("message") if isinstance(each, dict) else each for each in body.get("errors") or []
               ] if isinstance(body.get("errors"), list) else []
    return "; ".join(str(each) for each in (said, *details) if each)
