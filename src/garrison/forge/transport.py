"""Requests to one forge: connections, deadline, kept answers, pages and failures.

Answers are decoded here, into the records that the caller names: an undocumented answer is `Unreachable`, never a
traceback. There are no retries, no waiting, and no redirects to another host with the token.

Reading what has not changed costs nothing: answers with an ETag are cached in the home, one file each, named by address
and token, so that no token gets what only another may see. Losing a file costs one request, so they are not synced to
disk.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2

from garrison.backoff import Backoff
from garrison.errors import RecordError
from garrison.forge.errors import ForgeNotFound, ForgeRefused, ForgeUnreachable, RateLimited, Unauthorized
from garrison.forge.model import RequestCount
from garrison.records import atomic
from garrison.records.record import decode, encode, read_foreign
from garrison.sandbox.proxy.upstream import tls_context, user_proxy_url
from garrison.system import failpoint
from garrison.system.terminal_text import clean
from garrison.values import Value

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.forge.credentials import Token

T = TypeVar("T")
Query = Mapping[str, str]
Body = Mapping[str, object]
NOTHING: Query = MappingProxyType({})

MAX_PAGES = 20
PAGE_SIZE = 100
DEADLINE = 30.0
"""Seconds that a call may take, including all its pages and read-backs."""
PAUSES = Backoff(0.25)
"""Delays between looks for an object after a write that may have made it."""
LOG_TAIL = 16_000
"""Most characters of a log that are returned."""
SECONDARY_WAIT = 60.0
"""Seconds to wait at a secondary limit that names no time, as GitHub asks."""
_LONGEST_WAIT = 24 * 3600.0
_SOCKET_TIMEOUT = 10.0
_LOG_PIECES = 800
"""Pieces of 64 KiB of a log that are read at most: 50 MiB."""
_REASON = 300
_KEPT = 400
"""Answers kept; the oldest are removed."""
_LARGEST = 2_000_000
"""Largest answer in bytes that is worth caching."""
_RATE = re.compile(r"rate limit|abuse detection|too many requests|retry later", re.IGNORECASE)
_SCOPE = re.compile(r"scope|not accessible by|permission|must have|forbidden|not allowed to access", re.IGNORECASE)
_SCOPE_HEADERS = ("x-accepted-github-permissions", "x-accepted-oauth-scopes")
_REFUSALS = {400, 405, 406, 409, 412, 422, 423}
NEXT_LINK = re.compile(r'<([^<>]*)>\s*;[^,<]*\brel="?next\b')


class ForgeRequest(Value):
    """One request; `path` starts with `/` and is relative to the API, or is a whole address."""

    method: str
    path: str
    query: Query = NOTHING
    body: Body | None = None
    headers: Mapping[str, str] = NOTHING


class Response(Value):
    """A response, whatever its status."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    content: bytes


class Connections:
    """Connections to one API."""

    def __init__(self, base: str, authorization: str) -> None:
        self._base, self._pool = base, _connect(base, {"Authorization": authorization})

    def send(self, request: ForgeRequest, timeout: float) -> Response:
        """Send a request once; Unreachable if no answer came."""
        address = request.path if "://" in request.path else self._base + request.path
        with _answering(request):
            answer = self._pool.request(
                request.method, address, params=dict(request.query) or None, json=request.body,
                headers=dict(request.headers), timeout=min(timeout, _SOCKET_TIMEOUT))
        return Response(answer.status_code, dict(answer.headers), answer.content)


def read_elsewhere(address: str) -> Response:
    """Read the end of a log from where the forge stores it, without the token."""
    kept = b""
    with _answering(ForgeRequest("GET", "a log")), _connect(address, {}) as client, \
            client.stream("GET", address, timeout=_SOCKET_TIMEOUT) as answer:
        for count, piece in enumerate(answer.iter_bytes(65_536)):
            kept = (kept + piece)[-4 * LOG_TAIL:]
            if count >= _LOG_PIECES:
                break
    return Response(200 if answer.status_code == 200 else 404, {}, kept)


@contextmanager
def _answering(request: ForgeRequest) -> Iterator[None]:
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        why: BaseException = error
        while why.__cause__ is not None:  # its exceptions alone do not tell a refusal from a bad certificate
            why = why.__cause__
        raise ForgeUnreachable(f"{request.method} {request.path}: {type(why).__name__}") from None


def _connect(address: str, headers: Mapping[str, str]) -> httpx2.Client:
    """Return connections to a host, through the user's proxy for it; Unreachable if the proxy cannot be used."""
    host = urlsplit(address).netloc
    try:
        # `upstream` has already read the proxy and the certificates; a ~/.netrc must not replace the token.
        return httpx2.Client(verify=tls_context(), proxy=user_proxy_url(urlsplit(address).scheme, host) or None,
                             headers={"User-Agent": "garrison", **headers}, trust_env=False)
    except (ImportError, ValueError, httpx2.InvalidURL) as error:  # they may contain its password
        problem = f"the proxy for {host} in the environment cannot be used: {type(error).__name__}"
        raise ForgeUnreachable(problem) from None


class KeptAnswer(Value):
    """An answer as it was received."""

    address: str
    etag: str
    body: str
    link: str = ""
    """Its `Link` header, which names the next page."""


class EtagCache:
    """The answers cached in one folder."""

    def __init__(self, folder: Path, token: Token) -> None:
        self._folder = folder
        self._salt = sha256(token.reveal().encode()).digest()

    def find(self, address: str) -> KeptAnswer | None:
        """Return the cached answer for an address; a damaged file counts as none."""
        path = self._path(address)
        try:
            data = atomic.read(path)
            found = decode(KeptAnswer, data, path) if data is not None else None
            if found is None or found.address != address:
                return None
            json.loads(found.body)
        except (RecordError, OSError, ValueError, RecursionError):
            return None
        return found

    def keep(self, answer: KeptAnswer) -> None:
        """Cache an answer; on a full disk it is just not cached."""
        if len(answer.body) > _LARGEST:
            return
        with contextlib.suppress(OSError, RecordError):
            atomic.make_directory(self._folder)
            atomic.write(self._path(answer.address), encode(answer), durable=False)
            self._prune()

    def _path(self, address: str) -> Path:
        return self._folder / f"{sha256(self._salt + address.encode()).hexdigest()[:32]}.json"

    def _prune(self) -> None:
        names = atomic.list_names(self._folder)
        if len(names) <= _KEPT:
            return
        ages = sorted((path.stat().st_mtime, path) for path in map(self._folder.joinpath, names) if path.is_file())
        # A quarter at a time: otherwise every answer from now on would read the ages of all.
        for _, path in ages[:len(ages) - _KEPT * 3 // 4]:
            path.unlink(missing_ok=True)


class ForgeSession:
    """The requests of one client. One thread uses it at a time."""

    def __init__(self, connections: Connections, token: Token, cache: EtagCache | None = None, *,
                 size: str = "per_page", clock: Callable[[], float] = time.time, pauses: Backoff = PAUSES) -> None:
        """Prepare; `size` is the parameter that sets the page size on this forge."""
        self._connections, self._cache, self._clock = connections, cache, clock
        self._secret, self._size = token.reveal(), size
        self._end: float | None = None
        self.pauses = pauses
        self.requests = RequestCount()
        self.is_anew = False
        """True while reads are unconditional."""

    @contextmanager
    def deadline(self) -> Iterator[None]:
        """Bound all requests within the block together; a nested block ends with the outer one."""
        outer = self._end
        if outer is None:
            self._end = time.monotonic() + DEADLINE
        try:
            yield
        finally:
            self._end = outer

    def pause(self, seconds: float) -> bool:
        """Wait before reading again; False if the deadline would pass."""
        if self._end is not None and time.monotonic() + seconds > self._end:
            return False
        time.sleep(seconds)
        return True

    def get(self, kind: type[T], path: str, query: Query = NOTHING) -> T:
        """Return a resource, from the cache if the forge says that it has not changed."""
        return _as(kind, self._read(path, query)[0])

    def get_pages(self, kind: type[T], path: str, query: Query = NOTHING, *, key: str = "",
                  pages: int = MAX_PAGES) -> list[T]:
        """Return the objects of all pages, at most `pages`; with `key`, those of that list in each page."""
        found: list[T] = []
        asked = {**query, self._size: str(PAGE_SIZE)}
        for _ in range(pages):
            body, link = self._read(path, asked)
            rows = body.get(key) or [] if key and isinstance(body, dict) else body
            if not isinstance(rows, list):
                raise ForgeUnreachable(f"the forge sent {type(rows).__name__} instead of a list")
            found += [_as(kind, each) for each in rows]
            onward = NEXT_LINK.search(link)
            if onward is None:
                break
            # only the query is used: a link to another host would send the token there
            asked = dict(parse_qsl(urlsplit(onward[1]).query))
        return found

    def get_log(self, path: str) -> str:
        """Return the end of a log, from the start of a line; a forge may store it on another host."""
        request = ForgeRequest("GET", path)
        answer = self._exchange(request)
        if answer.status == 302:
            # GitHub redirects to another host, with a URL that is valid for a minute; it gets no token.
            answer = read_elsewhere(answer.headers.get("location", ""))
        if answer.status != 200:
            raise self._failure(request, answer)
        return tail(answer.content.decode(errors="replace"))

    def write(self, kind: type[T], method: str, path: str, body: Body) -> T:
        """Send a write once, and return what the forge answers to it."""
        return _as(kind, _parse(self._send(ForgeRequest(method, path, body=body))))

    def tell(self, method: str, path: str, body: Body | None = None) -> None:
        """Send a write once, without reading its answer."""
        self._send(ForgeRequest(method, path, body=body))

    def _read(self, path: str, query: Query) -> tuple[object, str]:
        address = f"{path}?{urlencode(sorted(query.items()))}"
        known = self._cache.find(address) if self._cache and not self.is_anew else None
        headers = {"If-None-Match": known.etag} if known else {}
        answer = self._send(ForgeRequest("GET", path, query, None, headers))
        if answer.status == 304 and known is not None:
            self.requests.not_modified += 1
            return json.loads(known.body), known.link
        body, link = _parse(answer), answer.headers.get("link", "")
        if self._cache and (etag := answer.headers.get("etag", "")):
            self._cache.keep(KeptAnswer(address, etag, answer.content.decode(errors="replace"), link))
        return body, link

    def _send(self, request: ForgeRequest) -> Response:
        answer = self._exchange(request)
        if 200 <= answer.status < 300 or (answer.status == 304 and "If-None-Match" in request.headers):
            return answer
        raise self._failure(request, answer)

    def _exchange(self, request: ForgeRequest) -> Response:
        left = DEADLINE if self._end is None else self._end - time.monotonic()
        if left <= 0:
            raise ForgeUnreachable(f"{request.method} {request.path}: the forge took longer than {DEADLINE:g} s")
        failpoint.here(f"forge:{request.method}")
        self.requests.sent += 1
        try:
            return self._connections.send(request, max(0.1, left))
        finally:
            failpoint.here(f"forge:{request.method}-sent")

    def _failure(self, request: ForgeRequest, answer: Response) -> Exception:
        reason = self._clean(_reason(answer))
        what = f"{request.method} {request.path}: {answer.status} {reason}".rstrip()
        status = answer.status
        if status == 429 or (status == 403 and self._is_rate_limit(answer, reason)):
            return RateLimited(what, self._limit_end(answer))
        if status == 401:
            return Unauthorized(f"{what}: the token is invalid; set another")
        if status == 403:
            scope = next((answer.headers[name] for name in _SCOPE_HEADERS if answer.headers.get(name)), "")
            if scope or _SCOPE.search(reason):
                return Unauthorized(f"{what}: the token lacks {scope or 'a permission'}", scope or reason)
            return ForgeRefused(what, reason)
        if status in {404, 410}:
            return ForgeNotFound(what)
        if 300 <= status < 400:
            return ForgeRefused(f"{what}: the repository has moved; change the remote's URL", "moved")
        return ForgeRefused(what, reason) if status in _REFUSALS else ForgeUnreachable(what)

    def _is_rate_limit(self, answer: Response, reason: str) -> bool:
        headers = answer.headers
        return bool("retry-after" in headers or headers.get("x-ratelimit-remaining") == "0" or _RATE.search(reason))

    def _limit_end(self, answer: Response) -> float:
        """Return when the limit ends; after an absurd time, the forge is asked again within a day.

        Times are compared with the forge's own clock, so that a wrong local one does not matter.
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
        """Return a forge's text in one line, without escape sequences and without the token, in case it echoes it."""
        line = " ".join(clean(reason.replace(self._secret, "...")).split())
        return line[:_REASON]


def tail(log: str) -> str:
    """Return the end of a log, from the start of a line."""
    if len(log) <= LOG_TAIL:
        return log
    cut = log[-LOG_TAIL:]
    return cut.partition("\n")[2] or cut


def _moment(date: str) -> float:
    """Return an HTTP date in seconds since 1970; 0 if it is invalid."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _parse(answer: Response) -> object:
    try:
        value: object = json.loads(answer.content)
    except (ValueError, RecursionError) as error:
        raise ForgeUnreachable(f"the forge answered {answer.status} with something that is not JSON") from error
    return value


def _as(kind: type[T], value: object) -> T:
    try:
        return read_foreign(kind, value)
    except ValueError as error:
        raise ForgeUnreachable(f"the forge sent an undocumented answer: {error}") from None


class _Trouble(Value):
    """A forge's description of a failure; some send a text, others an object."""

    message: object = ""
    error_description: object = ""
    error: object = ""
    errors: object = ()


def _reason(answer: Response) -> str:
    try:
        said = read_foreign(_Trouble, json.loads(answer.content))
    except (ValueError, RecursionError):
        return ""
    details = said.errors if isinstance(said.errors, list) else []
    parts = (said.message or said.error_description or said.error,
             *(each.get("message") if isinstance(each, dict) else each for each in details))
    return "; ".join(str(each) for each in parts if each)
