"""Gateway: forward a browser's requests to a node's server, HTTP/1.1 and WebSockets; or raw bytes.

h11 reads and writes both sides, so forwarded messages are written from parsed parts. Each request has its own
connection to the server: a restarted server is reached at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

import h11

from garrison.preview import rules as rule
from garrison.preview.rules import FRAMING, HttpRefusal, PreviewRules, Tickets
from garrison.sandbox.dialer import Unreachable
from garrison.sandbox.proxy.connection import CHUNK, Clients, ClientWaits, Connection, Gone, write
from garrison.sandbox.proxy.relay import join, join_to
from garrison.sandbox.proxy.upstream import BUFFER, Stream

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from garrison.preview.ways import Way

MAX_HEAD = 64 << 10
"""Bytes of a request's or a response's head: development servers set many cookies."""
MAX_CONNECTIONS = 256
"""Connections of browsers at once; a page opens some dozen."""
WAITS = ClientWaits()
"""The gateway waits for an answer as long as the browser does: it may be a stream of events."""
TUNNEL_SECONDS = 12 * 3600.0
"""Time without a byte after which a WebSocket or a forwarded connection ends."""


@dataclass(slots=True)
class Gateway:
    """The server of one preview."""

    way: Way
    rules: PreviewRules | None
    """None: raw bytes are forwarded."""
    tickets: Tickets | None = None
    """None if no ticket is needed."""
    on_ticket: Callable[[], None] = lambda: None
    """Called once a ticket was used."""
    node: str = ""
    clients: Clients = field(init=False)
    servers: list[asyncio.Server] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clients = Clients(self._serve, MAX_CONNECTIONS)

    async def listen(self, listeners: list[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        """Start to serve."""
        for listener in listeners:
            self.servers.append(await asyncio.start_server(
                self.clients.accept, sock=listener, limit=BUFFER, ssl=tls,
                ssl_handshake_timeout=WAITS.head if tls else None))

    async def _serve(self, client: Stream) -> None:
        if self.rules is not None:
            await _Conversation(self, self.rules, client).serve()
        else:
            with contextlib.suppress(Unreachable, OSError, TimeoutError):
                await join_to(client, self.way.open(), TUNNEL_SECONDS)

    async def close(self) -> None:
        """End it, with all connections."""
        for server in self.servers:
            server.close()
        await self.clients.end()


class _Conversation(Connection):
    """One connection of a browser."""

    def __init__(self, gateway: Gateway, rules: PreviewRules, client: Stream) -> None:
        super().__init__(client, MAX_HEAD, WAITS)
        self.gateway, self.rules = gateway, rules

    async def serve(self) -> None:
        """Serve requests until either side is done."""
        try:
            while await self._serve_request():
                self.http.start_next_cycle()
        except (Gone, OSError, TimeoutError, h11.LocalProtocolError):
            pass
        except h11.RemoteProtocolError as error:
            with contextlib.suppress(Gone, OSError, TimeoutError, h11.LocalProtocolError):
                await self.refuse(HttpRefusal(error.error_status_hint, "the request is malformed or too long"))

    async def _serve_request(self) -> bool:
        """Serve one request; return whether another may follow."""
        request = await self.read_head()
        if request is None:
            return False
        headers = [(bytes(name), bytes(value)) for name, value in request.headers]
        if self.gateway.tickets is not None and rule.has_ticket(request.target):
            await self._redeem(self.gateway.tickets, request, headers)
            return False
        refusal = rule.judge(self.rules, request.method, request.target, headers)
        if refusal is not None:
            await self.refuse(refusal)
            return False
        try:
            upstream = await self.gateway.way.open()
        except Unreachable as error:
            await self.refuse(HttpRefusal(502, f"{self.gateway.node}: {error}"))
            return False
        try:
            return await _PreviewExchange(self, upstream).run(request, headers)
        finally:
            upstream.close()

    async def _redeem(self, tickets: Tickets, request: h11.Request, headers: list[tuple[bytes, bytes]]) -> None:
        """Exchange a ticket for the browser's cookie, and redirect to the address without the ticket."""
        rules = self.rules
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        if hosts != [rules.host] or request.method != b"GET" or not tickets.redeem(request.target):
            await self.refuse(HttpRefusal(401, "this address was already used, or has been replaced; open "
                                          "the one that `garrison preview` printed last"))
            return
        self.gateway.on_ticket()
        cookie = f"{rules.cookie}={rules.secret}; Path=/; Secure; HttpOnly; SameSite=Lax"
        await self.refuse(HttpRefusal(303, "open /"), [(b"Location", b"/"), (b"Set-Cookie", cookie.encode()),
                                                    (b"Referrer-Policy", b"no-referrer")])

    async def refuse(self, refusal: HttpRefusal, more: list[tuple[bytes, bytes]] | None = None) -> None:
        """Answer with a page of one line."""
        body = f"<!doctype html><meta charset=utf-8><title>garrison</title><p>{escape(refusal.message)}\n".encode()
        headers = [(b"Content-Type", b"text/html; charset=utf-8"), (b"Content-Security-Policy", b"default-src 'none'"),
                   (b"Cache-Control", b"no-store"), *(more or [])]
        await self.answer(refusal.status, headers, body, b"garrison")


class _PreviewExchange:
    """One request to the node's server, and its response."""

    def __init__(self, conversation: _Conversation, upstream: Stream) -> None:
        self.browser, self.upstream = conversation, upstream
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._has_body = True

    async def run(self, request: h11.Request, headers: list[tuple[bytes, bytes]]) -> bool:
        """Forward both; return whether another request may follow on the browser's connection."""
        browser = self.browser
        passed = rule.headers_in(browser.rules, headers)
        self._has_body = browser.http.their_state is h11.SEND_BODY and any(name in FRAMING for name, _ in headers)
        begin = h11.Request(method=request.method, target=request.target, headers=passed)
        await self._send(begin, *(() if self._has_body else (h11.EndOfMessage(),)))
        switched = await self._while_browser_stays(self._respond())
        if switched is not None:
            await self._switch(switched)
            return False
        return browser.may_go_on

    async def _while_browser_stays(self, work: Coroutine[None, None, h11.InformationalResponse | None],
                                   ) -> h11.InformationalResponse | None:
        """Forward the response alongside the rest of the request; Gone once the browser has left."""
        answer, watch = asyncio.ensure_future(work), asyncio.ensure_future(self._upload_and_watch())
        try:
            await asyncio.wait({answer, watch}, return_when=asyncio.FIRST_COMPLETED)
            # The browser may also send more before the answer, as a pipelined request: the answer is still awaited.
            if not answer.done() and watch.result():
                raise Gone
            return await answer
        finally:
            for task in (answer, watch):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _respond(self) -> h11.InformationalResponse | None:
        """Forward the response; return a change of protocol instead, if it is one."""
        try:
            response = await self._next_response()
        except (OSError, h11.RemoteProtocolError):
            response = None
        if isinstance(response, h11.InformationalResponse):
            return response
        if isinstance(response, h11.Response):
            await self._download(response)
        else:
            await self.browser.refuse(HttpRefusal(502, f"{self.browser.gateway.node}: its server closed the connection "
                                                   "without a valid answer"))
        return None

    async def _next_response(self) -> object:
        event = await self._next_event()
        while isinstance(event, h11.InformationalResponse) and event.status_code != 101:
            event = await self._next_event()
        return event

    async def _switch(self, response: h11.InformationalResponse) -> None:
        """Join both sides of a WebSocket."""
        headers = [(bytes(name), bytes(value)) for name, value in response.headers]
        kept = [(name, value) for name, value in rule.headers_out(self.browser.rules, headers)
                if name not in (b"content-length", b"Transfer-Encoding")]
        await self.browser.send(h11.InformationalResponse(
            status_code=101, reason=response.reason,
            headers=[(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"), *kept]))
        # Data that was read along with the two heads must be forwarded first.
        for data, side in ((self.http.trailing_data[0], self.browser.client),
                           (self.browser.http.trailing_data[0], self.upstream)):
            if data:
                side.writer.write(data)
        await join(self.browser.client, self.upstream, TUNNEL_SECONDS)

    async def _upload_and_watch(self) -> bool:
        """Forward the rest of the request, then return whether the browser leaves before it sends more."""
        with contextlib.suppress(OSError):  # the server may have answered before it closed the connection
            while (data := await self.browser.read_body()) is not None:
                await self._send(h11.Data(data=data))
            if self._has_body:
                await self._send(h11.EndOfMessage())
        return await self.browser.receive()

    async def _download(self, response: h11.Response) -> None:
        headers = [(bytes(name), bytes(value)) for name, value in response.headers]
        ready: list[h11.Event] = [h11.Response(status_code=response.status_code, reason=response.reason,
                                               headers=rule.headers_out(self.browser.rules, headers))]
        try:
            while not isinstance(event := self.http.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Data):
                    ready.append(h11.Data(data=bytes(event.data)))
                elif event is h11.NEED_DATA:  # received data is forwarded before waiting for more
                    await self.browser.send(*ready)
                    ready.clear()
                    self.http.receive_data(await self.upstream.reader.read(CHUNK))
                else:
                    raise Gone
        except h11.RemoteProtocolError as error:
            raise Gone from error
        await self.browser.send(*ready, h11.EndOfMessage())

    async def _next_event(self) -> object:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.upstream.reader.read(CHUNK))
        return event

    async def _send(self, *events: h11.Event) -> None:
        try:
            data = b"".join(filter(None, map(self.http.send, events)))
        except h11.LocalProtocolError as error:  # the browser's body does not fit its header
            raise Gone from error
        await write(self.upstream, data, WAITS.body)
