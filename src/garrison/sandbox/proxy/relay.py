"""Relay: serve one connection of a confined client, request by request.

h11 parses and writes both sides, so everything passed on is written from parsed parts: no byte of a client's framing
reaches a server. Bodies are streamed. Every wait has a limit, and a refusal is one line in the form that the client's
program expects.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import urlsplit

import h11

from garrison.records.api_answers import read_error_text
from garrison.records.budget import Grant
from garrison.sandbox.proxy.allowed_hosts import HostRule, entry_for, find_rule, normalize_host, parse_address
from garrison.sandbox.proxy.apis import KEY_HEADERS, Api, ApiName
from garrison.sandbox.proxy.connection import CHUNK, ClientWaits, Connection, Gone
from garrison.sandbox.proxy.demand import NOTHING, Demand, limited_body, read_demand, without_hosted_tools
from garrison.sandbox.proxy.ledger import Ledger
from garrison.sandbox.proxy.registration import ApiAccess, Registration
from garrison.sandbox.proxy.target import (
    MAX_HELLO,
    Headers,
    RequestForm,
    RequestRefused,
    RequestTarget,
    end_to_end,
    is_complete,
    is_plain_http,
    named_host,
    read_target,
    server_name,
)
from garrison.sandbox.proxy.token_counts import CallCounts, ResponseReader
from garrison.sandbox.proxy.upstream import (
    CONNECT_TIMEOUT,
    Stream,
    UpstreamFailed,
    UpstreamRefused,
    open_api,
    open_checked,
)

MAX_HEAD = 32 << 10
"""Bytes of a request's or a response's head."""
MAX_BODY = 64 << 20
"""Largest request to a model API in bytes; the APIs themselves accept half of it."""
MAX_HELD = 256 << 20
"""Most bytes of one listener's requests that are kept in memory until their calls have ended, because of a budget."""
MAX_OPENING = 8
"""Hosts that one listener looks up and connects to concurrently; all agents of the run share the proxy's look-ups."""
MAX_IDLE_UPSTREAM = 4
"""Idle connections to one API kept for the next call."""
HTTP_PORT = 80
"""Port whose requests are forwarded, each by its own host; a tunnel would carry requests for any host."""
TLS_PORT = 443
"""Port whose tunnels carry only TLS for the host that they were opened to."""
_MAX_FAILURE = 16 << 10
"""Most bytes of a failure's body that are kept."""
_LOOK_AGAIN = 0.2
"""Seconds between two checks of a call that waits for the budget."""
_DROPPED = frozenset(name.encode() for name in KEY_HEADERS) | {b"host", b"accept-encoding"}
_OF_BODY = frozenset({b"content-length", b"content-encoding"})
"""Headers about a body that are dropped with it."""


class Patience(ClientWaits):
    """Time limits for a client and for servers, in seconds."""

    lookup: float = CONNECT_TIMEOUT
    """For the addresses of an allowed host."""
    answer: float = 900.0
    """For the next part of a response: a model may think for minutes before it writes."""
    tunnel: float = 900.0
    """For any byte in a tunnel."""
    budget: float = 900.0
    """For calls in progress that may cost what is left of a budget."""
    upstream: float = 20.0
    """Largest age of an idle connection to an API that is reused."""


@dataclass(slots=True)
class Access:
    """All that the connections of one listener share."""

    registration: Registration
    rules: tuple[HostRule, ...]
    ledger: Ledger
    port: int
    patience: Patience = field(default_factory=Patience)
    connections: set[asyncio.Task[None]] = field(default_factory=set)
    opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_OPENING))
    lookups: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_OPENING))
    """Held by each name look-up until it ends, even if its caller has given up."""
    idle: dict[ApiName, list[tuple[float, Stream]]] = field(default_factory=dict)
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Held while a request's demand is parsed in a thread, so that an agent's requests do not block other agents."""
    held: int = 0
    """Bytes of requests kept in memory."""

    def close(self) -> None:
        """End all connections."""
        self.ledger.close()
        for task in list(self.connections):
            task.cancel()
        for kept in self.idle.values():
            for _, stream in kept:
                stream.close()


class Relay(Connection):
    """One connection of a confined client."""

    def __init__(self, access: Access, client: Stream) -> None:
        super().__init__(client, MAX_HEAD, access.patience)
        self.access = access
        self._is_over = False
        self._held = 0

    async def serve(self) -> None:
        """Serve requests until either side is done."""
        try:
            while not self._is_over and await self._serve_request():
                self.http.start_next_cycle()
        except (Gone, OSError, TimeoutError, h11.LocalProtocolError):
            pass
        finally:
            self.client.close()

    async def _serve_request(self) -> bool:
        """Serve one request; return whether another may follow on the connection."""
        try:
            request = await self.read_head()
            if request is None:
                return False
            headers = [(bytes(name), bytes(value)) for name, value in request.headers]
            target = read_target(request.method, request.target, headers, self.access.port)
            if target.form is RequestForm.TUNNEL:
                await self._serve_tunnel(target)
                return False
            if target.form is RequestForm.FORWARD:
                await self._serve_forward(request, headers, target)
            else:
                await self._serve_witnessed(request, headers, target)
        except RequestRefused as refused:
            await self._refuse(refused)
            return False
        except h11.RemoteProtocolError as error:
            await self._refuse(RequestRefused(error.error_status_hint, "the request is malformed or too long"))
            return False
        if self.http.their_state is h11.SEND_BODY:  # it was answered before it had sent everything
            await self.drain()
        return self.may_go_on

    async def _refuse(self, refused: RequestRefused) -> None:
        """Answer with a refusal and end the connection without reading the rest."""
        message = f"garrison: {refused.reason}"
        body = refused.api.error_body(refused.status, message) if refused.api else f"{message}\n".encode()
        kind = b"application/json" if refused.api else b"text/plain; charset=utf-8"
        await self.answer(refused.status, [(b"content-type", kind)], body, b"Refused")

    # ---- tunnels and forwarded requests

    async def _open(self, target: RequestTarget) -> Stream:
        """Connect to an allowed host; RequestRefused, recorded, if it is not allowed."""
        rule = find_rule(self.access.rules, target.host, target.port)
        if rule is None:
            self.access.ledger.refuse_host(target.place, "not among the allowed hosts",
                                           entry_for(target.host, target.port))
            raise RequestRefused(403, f"{target.place} is not among the allowed hosts; the user can allow it: "
                                      "`garrison status` shows how")
        try:
            async with self.access.opening:
                return await open_checked(target.host, target.port, rule, self.access.lookups,
                                          self.access.patience.lookup)
        except UpstreamRefused as refused:
            self.access.ledger.refuse_host(target.place, str(refused), refused.entry)
            raise RequestRefused(403, f"{target.place} is refused: {refused}") from refused
        except UpstreamFailed as failed:
            raise RequestRefused(502, f"{target.place}: {failed}") from failed

    async def _serve_tunnel(self, target: RequestTarget) -> None:
        if target.port == HTTP_PORT:
            self.access.ledger.refuse_host(target.place, "a tunnel to the port of plain HTTP")
            raise RequestRefused(403, f"no tunnel to {target.place}: ask the proxy for http://{target.host}/ itself")
        upstream = await self._open(target)
        self._is_over = True
        try:
            await self.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
            early = await self._first_words(target, upstream)
            if is_plain_http(early):
                upstream.close()
                await self._serve_inside(target, early)
                return
            if early:
                upstream.writer.write(early)
            await join(self.client, upstream, self.access.patience.tunnel)
        finally:
            upstream.close()

    async def _first_words(self, target: RequestTarget, upstream: Stream) -> bytes:
        """Return the client's first bytes, once they show what the tunnel is used for; nothing if the server speaks
        first, unlike in TLS and HTTP. Gone, recorded, if it asks the allowed host for another."""
        early, _ = self.http.trailing_data
        if target.port != TLS_PORT and not early:
            early = await self._first_speaker(upstream)
        is_tls = target.port == TLS_PORT or early[:1] == b"\x16"
        if is_tls and parse_address(target.host) is not None:
            return early
        async with asyncio.timeout(self.access.patience.head):
            while (early or is_tls) and len(early) < MAX_HELLO and not (
                    is_complete(early) if is_tls else is_plain_http(early) is not None):
                data = await self.client.reader.read(CHUNK)
                if not data:
                    return early
                early += data
        name = server_name(early) if is_tls else ""
        if name is None or (name and normalize_host(name) != target.host):
            self._refuse_use(target, "something else than TLS" if name is None else f"the name {name[:100]}")
        return early

    async def _first_speaker(self, upstream: Stream) -> bytes:
        """Return the client's first bytes; nothing if the server's come first, which are passed on."""
        hears, speaks = (asyncio.ensure_future(side.reader.read(CHUNK)) for side in (self.client, upstream))
        try:
            async with asyncio.timeout(self.access.patience.tunnel):
                await asyncio.wait({hears, speaks}, return_when=asyncio.FIRST_COMPLETED)
            if speaks.done():
                self.client.writer.write(speaks.result())
            return hears.result() if hears.done() else b""
        finally:
            await _cancel(hears)
            await _cancel(speaks)

    def _refuse_use(self, target: RequestTarget, what: str) -> NoReturn:
        self.access.ledger.refuse_host(target.place, f"the tunnel was used for {what}")
        raise Gone

    async def _serve_inside(self, target: RequestTarget, early: bytes) -> None:
        """Serve plain HTTP in a tunnel request by request, only for the host that the tunnel was opened to."""
        self.begin_again(early)
        while (request := await self.read_head()) is not None:
            headers = [(bytes(name), bytes(value)) for name, value in request.headers]
            if (named := named_host(request.target, headers, target.port)) != target.place:
                self._refuse_use(target, f"the host {named[:100]}" if named else "HTTP without a clear host")
            path = request.target.decode("ascii")
            path = path if path.startswith("/") else "/" + path.partition("://")[2].partition("/")[2]
            await self._serve_forward(request, headers,
                                      RequestTarget(RequestForm.FORWARD, target.host, target.port, path))
            if not self.may_go_on:
                return
            self.http.start_next_cycle()

    async def _serve_forward(self, request: h11.Request, headers: Headers, target: RequestTarget) -> None:
        upstream = await self._open(target)
        host = target.place.removesuffix(":80").encode()
        sent = [(b"Host", host), *end_to_end(headers, frozenset({b"host"})), *_framing(headers)]
        exchange = _ProxyExchange(self, upstream)
        try:
            await exchange.run(h11.Request(method=request.method, target=target.path, headers=sent), None)
        except UpstreamFailed as failed:
            raise RequestRefused(502, f"{target.place}: {failed}") from failed
        finally:
            upstream.close()

    # ---- model APIs

    async def _serve_witnessed(self, request: h11.Request, headers: Headers, target: RequestTarget) -> None:
        """Serve a call of a model API; this proxy's refusals are recorded like answers of the API."""
        try:
            await self._serve_api(request, headers, target)
        except RequestRefused as refused:
            if target.route is not None and target.route.costs:
                is_unreachable = isinstance(refused.__cause__, UpstreamFailed)
                self.access.ledger.record_failure(None if is_unreachable else refused.status,
                                                  ("", f"garrison: {refused.reason}"))
            raise
        finally:
            self.access.held -= self._held
            self._held = 0

    async def _serve_api(self, request: h11.Request, headers: Headers, target: RequestTarget) -> None:
        api, route = target.api, target.route
        assert api is not None and route is not None
        access = next((each for each in self.access.registration.apis if each.api is api.name), None)
        if access is None:
            raise RequestRefused(403, f"this run has no key for {api.title}; set {api.keys[0].name} where you launch",
                                 api)
        secret = self.access.registration.secret.encode()
        if secret and not any(secret in value for name, value in headers if name.decode() in KEY_HEADERS) \
                and secret not in request.target:
            raise RequestRefused(401, "the request does not carry the key of this run's variables", api)
        length = next((int(value) for name, value in headers if name == b"content-length"), 0)
        if length > MAX_BODY:
            raise RequestRefused(413, f"the request is longer than {MAX_BODY >> 20} MiB", api)
        body: bytes | None = None
        number = 0
        demand, granted = NOTHING, Grant(0, 0.0)
        if route.costs:
            is_new = request.method == b"POST" and not target.path.endswith("/cancel")
            if is_new and self.access.ledger.has_limits:
                demand = await self._read_demand(headers, target, api)
            number, granted, demand = await self._reserve(demand, target, api)
        call = _ModelCall(self, access, target, number)
        try:
            if demand.body is not None:
                async with self.access.reading:
                    body = await asyncio.to_thread(limited_body, api.name, target.path, demand, granted.output)
                demand = NOTHING
            await call.run(request, headers, body)
        except UpstreamFailed as failed:
            raise RequestRefused(502, f"{api.title} cannot be reached: {failed}", api) from failed
        finally:
            call.settle()

    async def _read_demand(self, headers: Headers, target: RequestTarget, api: Api) -> Demand:
        """Read a whole request and return its demand; RequestRefused if that is unknown."""
        parts, size = [], 0
        while (data := await self.read_body()) is not None:
            parts.append(data)
            size += len(data)
            if size > MAX_BODY:
                raise RequestRefused(413, f"the request is longer than {MAX_BODY >> 20} MiB", api)
            self._hold(len(data), api)
        encoding = next((value.decode("latin-1") for name, value in headers if name == b"content-encoding"), "")
        demand = await self._look_at(b"".join(parts), encoding, target, api)
        self._hold(demand.size, api)
        return demand

    async def _look_at(self, body: bytes, encoding: str, target: RequestTarget, api: Api) -> Demand:
        try:
            async with self.access.reading:
                return await asyncio.to_thread(read_demand, api.name, target.path, body, encoding)
        except ValueError as error:
            raise RequestRefused(400, f"{error}: its cost is unknown, and there is a budget", api) from error

    def _hold(self, size: int, api: Api) -> None:
        """Count bytes of the request kept in memory; RequestRefused if the listener has too many."""
        self._held += size
        self.access.held += size
        if self.access.held > MAX_HELD:
            raise RequestRefused(429, f"requests in progress are longer than {MAX_HELD >> 20} MiB together", api)

    async def _reserve(self, demand: Demand, target: RequestTarget, api: Api) -> tuple[int, Grant, Demand]:
        """Return the number of a call that may start, its grant, and its demand: without tools that the API runs itself
        if their results may not fit. Wait while other calls may cost what is left."""
        ledger, is_waiting = self.access.ledger, False
        until = asyncio.get_running_loop().time() + self.access.patience.budget
        try:
            while True:
                number, granted = ledger.open_call(demand)
                if isinstance(granted, Grant):
                    return number, granted, demand
                if not granted.is_reserved and (body := without_hosted_tools(demand)) is not None:
                    demand = await self._look_at(body, "", target, api)
                    continue
                if not granted.is_reserved or asyncio.get_running_loop().time() > until:
                    raise RequestRefused(402, f"budget used up: {granted.reason}; raise it in config.toml or the graph",
                                         api)
                if not is_waiting:
                    ledger.wait(granted.reason)
                    is_waiting = True
                if self.client.reader.at_eof():
                    raise Gone
                await asyncio.sleep(_LOOK_AGAIN)
        finally:
            if is_waiting:
                ledger.go_on()


class _ModelCall:
    """One call of a model API."""

    def __init__(self, relay: Relay, access: ApiAccess, target: RequestTarget, number: int) -> None:
        self.relay, self.access, self.target = relay, access, target
        self._number, self._user_agent = number, ""
        self._exchange: _ProxyExchange | None = None

    async def run(self, request: h11.Request, headers: Headers, body: bytes | None) -> None:
        """Make the call.

        Args:
            body: replacement of the request's body, which has been read; None: stream the body.
        """
        self._user_agent = next((value.decode("latin-1") for name, value in headers if name == b"user-agent"), "")
        parts = urlsplit(self.access.url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        upstream = await self._connect(parts.scheme, host, port)
        framing = _framing(headers) if body is None else [(b"Content-Length", str(len(body)).encode())]
        passed = end_to_end(headers, _DROPPED if body is None else _DROPPED | _OF_BODY)
        sent = [(b"Host", parts.netloc.rpartition("@")[2].encode()), *passed,
                (b"Accept-Encoding", b"identity"),  # a model's output is counted as it passes
                *framing, (self.access.header.encode(), self.access.key.encode())]
        path = (parts.path.rstrip("/") + self.target.path) or "/"
        self._exchange = _ProxyExchange(self.relay, upstream, body)
        self._exchange.on_complete = self.settle
        reusable = False
        try:
            await self._exchange.run(h11.Request(method=request.method, target=path, headers=sent),
                                     self.access.api)
            reusable = self._exchange.is_reusable
        finally:
            if reusable:
                self._keep(upstream)
            else:
                upstream.close()

    def settle(self) -> None:
        """Record the cost of the call once: nothing, if it was not made or failed."""
        number, self._number = self._number, 0
        if not number:
            return
        ledger, counts = self.relay.access.ledger, None
        if self._exchange is not None:
            counts = self._exchange.counts(self._model())
            self._exchange.tell(ledger)
        ledger.close_call(number, counts, self._user_agent)

    def _model(self) -> str:
        name = self.target.path.partition("?")[0].rpartition("/")[2]
        return name.partition(":")[0] if self.access.api is ApiName.GOOGLE else ""

    async def _connect(self, scheme: str, host: str, port: int) -> Stream:
        """Return an idle connection to the API, or a new one."""
        kept = self.relay.access.idle.get(self.access.api, [])
        now = asyncio.get_running_loop().time()
        while kept:
            since, stream = kept.pop()
            if now - since < self.relay.access.patience.upstream and stream.is_usable:
                return stream
            stream.close()
        return await open_api(scheme, host, port)

    def _keep(self, stream: Stream) -> None:
        kept = self.relay.access.idle.setdefault(self.access.api, [])
        kept.append((asyncio.get_running_loop().time(), stream))
        if len(kept) > MAX_IDLE_UPSTREAM:
            kept.pop(0)[1].close()


class _ProxyExchange:
    """One request to a server and its response, streamed from and to the client."""

    def __init__(self, relay: Relay, upstream: Stream, body: bytes | None = None) -> None:
        self.relay, self.upstream, self._body = relay, upstream, body
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._sent = 0
        self._status = 0
        self._headers: dict[str, str] = {}
        self._reader: ResponseReader | None = None
        self._failure = bytearray()
        """Start of the body of a failed answer."""
        self._is_complete = self._has_failed = False
        self.on_complete: Callable[[], None] = lambda: None

    @property
    def is_reusable(self) -> bool:
        return self.http.our_state is h11.DONE and self.http.their_state is h11.DONE

    async def run(self, request: h11.Request, api: ApiName | None) -> None:
        """Pass the request and its response on; UpstreamFailed before the response starts, Gone after that."""
        await self._send(request)
        upload = asyncio.ensure_future(self._upload(limited=api is not None))
        download = asyncio.ensure_future(self._download(api))
        try:
            await asyncio.wait({upload, download}, return_when=asyncio.FIRST_COMPLETED)
            if upload.done() and not download.done():
                upload.result()
                watch = asyncio.ensure_future(self._watch_client())
                try:
                    await asyncio.wait({watch, download}, return_when=asyncio.FIRST_COMPLETED)
                    if watch.done() and not download.done() and watch.result():
                        raise Gone
                    await download
                finally:
                    await _cancel(watch)
            download.result() if download.done() else await download
        finally:
            await _cancel(upload)
            await _cancel(download)

    def counts(self, model: str) -> CallCounts | None:
        """Return the known tokens of a call that the API has accepted or not answered."""
        if self._status >= 300 or self.http.our_state not in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED) or (
                self._has_failed and self._body is None):
            return None
        reader = self._reader or ResponseReader(ApiName.ANTHROPIC)
        return reader.finish(self._sent, model, complete=self._is_complete)

    def tell(self, ledger: Ledger) -> None:
        """Report the API's answer to the ledger, unless the response was cut off."""
        if self._status >= 300:
            ledger.record_failure(self._status, read_error_text(bytes(self._failure)), self._headers)
        elif self._reader is not None and (error := self._reader.error) is not None:
            ledger.record_failure(self._status, error, self._headers)
        elif self._is_complete:
            ledger.record_success()

    async def _upload(self, *, limited: bool) -> None:
        relay = self.relay
        with contextlib.suppress(UpstreamFailed):  # it may have answered before closing the connection
            if self._body is not None:
                self._sent = len(self._body)
                await self._send(h11.Data(data=self._body))
            while self._body is None and (data := await relay.read_body()) is not None:
                self._sent += len(data)
                if limited and self._sent > MAX_BODY:
                    raise Gone
                await self._send(h11.Data(data=data))
            await self._send(h11.EndOfMessage())

    async def _watch_client(self) -> bool:
        """Return True once the client has disconnected; False if it sends its next request before the answer."""
        return await self.relay.receive()

    async def _send(self, event: h11.Event) -> None:
        try:
            data = self.http.send(event)
            if data:
                self.upstream.writer.write(data)
                async with asyncio.timeout(self.relay.access.patience.body):
                    await self.upstream.writer.drain()
        except h11.LocalProtocolError as error:  # the client's body does not fit its header
            raise Gone from error
        except (OSError, TimeoutError) as error:
            raise UpstreamFailed("the server accepts no more of the request") from error

    async def _download(self, api: ApiName | None) -> None:
        """Pass the response on."""
        try:
            response = await self._next_event()
            while isinstance(response, h11.InformationalResponse):
                response = await self._next_event()
            if not isinstance(response, h11.Response):
                self._has_failed = True
                raise UpstreamFailed("the server closed the connection without an answer")
        except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
            self._has_failed = True
            raise UpstreamFailed(f"no valid answer ({type(error).__name__})") from error
        self._status = response.status_code
        headers = [(bytes(name), bytes(value)) for name, value in response.headers]
        if api is not None:
            fields = dict(headers)
            self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
            self._reader = ResponseReader(api, fields.get(b"content-type", b"").decode("latin-1"),
                                          fields.get(b"content-encoding", b"").decode("latin-1"))
        await self.relay.send(h11.Response(status_code=response.status_code, reason=response.reason, headers=[
            *end_to_end(headers), *_framing(headers)]))
        try:
            await self._download_body()
        except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
            raise Gone from error

    async def _download_body(self) -> None:
        event = await self._next_event()
        while isinstance(event, h11.Data):
            data = bytes(event.data)
            if self._reader is not None:
                self._reader.feed(data)
                if self._status >= 300 and len(self._failure) < _MAX_FAILURE:
                    self._failure += data
            event = self.http.next_event()
            if isinstance(event, h11.EndOfMessage):
                self._complete()
            await self.relay.send(h11.Data(data=data))
            if event is h11.NEED_DATA:
                event = await self._next_event()
        if not isinstance(event, h11.EndOfMessage):
            raise Gone
        self._complete()
        await self.relay.send(h11.EndOfMessage())

    def _complete(self) -> None:
        """Count the call before the client knows that it is over."""
        if not self._is_complete:
            self._is_complete = True
            self.on_complete()

    async def _next_event(self) -> object:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(self.relay.access.patience.answer):
                self.http.receive_data(await self.upstream.reader.read(CHUNK))
        return event


async def join(one: Stream, other: Stream, patience: float) -> None:
    """Pass bytes both ways until both sides have ended, or nothing has passed for `patience` seconds."""
    loop = asyncio.get_running_loop()
    last = loop.time()

    async def copy(source: Stream, to: Stream) -> None:
        nonlocal last
        while data := await source.reader.read(CHUNK):
            last = loop.time()
            to.writer.write(data)
            await to.writer.drain()
        if to.writer.can_write_eof():
            to.writer.write_eof()

    tasks = {asyncio.ensure_future(copy(one, other)), asyncio.ensure_future(copy(other, one))}
    waiting = set(tasks)
    try:
        while waiting and (left := last + patience - loop.time()) > 0:
            done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if any(task.exception() for task in done):
                return
    finally:
        for task in tasks:
            await _cancel(task)


async def join_to(client: Stream, opening: Awaitable[Stream], patience: float) -> None:
    """Join a client to the connection that is being opened for it; if that fails, end the client's."""
    upstream = await opening
    try:
        await join(client, upstream, patience)
    finally:
        upstream.close()


async def _cancel(task: asyncio.Future[object] | asyncio.Task[None] | asyncio.Task[bool] | asyncio.Task[bytes]) -> None:
    """Cancel a task in any state."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


def _framing(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the header that frames the body of a message; an explicit length is passed end-to-end."""
    return [(b"Transfer-Encoding", b"chunked") for name, _ in headers if name == b"transfer-encoding"]
