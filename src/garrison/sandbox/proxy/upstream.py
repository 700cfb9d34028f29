"""Upstream: connect to a host outside the boundary.

A name is resolved once, its addresses are checked, and the connection goes to a checked address: a name server that
changes its answer gains nothing. If the user's network needs a proxy, this one uses it too.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from garrison.errors import UsageError
from garrison.sandbox.proxy.allowed_hosts import HostRule, entry_for, may_be_private, parse_address, permitted_addresses
from garrison.values import Value

CONNECT_TIMEOUT = 10.0
"""Time limits in seconds for one address, a name look-up, and an answer of the user's own proxy."""
BUFFER = 64 << 10
_MAX_ANSWER = 16 << 10


class UpstreamRefused(Exception):
    """A forbidden host, with the reason, and the entry of `hosts` that would allow it ('' for none)."""

    def __init__(self, reason: str, entry: str = "") -> None:
        super().__init__(reason)
        self.entry = entry


class UpstreamFailed(Exception):
    """An unreachable host, with the reason."""


class UserProxy(Value):
    """The proxy that the user's programs use for a scheme's hosts."""

    host: str
    port: int
    credentials: str = ""
    """Value of Proxy-Authorization, '' for none."""

    @classmethod
    def parse(cls, url: str) -> UserProxy:
        """Return the proxy of a URL; UsageError if it is not an HTTP proxy."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(f"the proxy {parts.scheme}://{parts.hostname} in the environment is not an HTTP proxy; "
                             "garrison's own supports no other kind")
        login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        encoded = base64.b64encode(login.encode()).decode() if parts.username else ""
        return cls(parts.hostname, parts.port or 3128, f"Basic {encoded}" if encoded else "")


def user_proxy(scheme: str, host: str) -> UserProxy | None:
    """Return the user's proxy for a host from this process's environment; None for a direct connection."""
    url = user_proxy_url(scheme, host)
    return UserProxy.parse(url) if url else None


def user_proxy_url(scheme: str, host: str) -> str:
    """Return the URL of the user's proxy for a host from this process's environment; '' for a direct connection."""
    proxies = getproxies_environment()
    url = proxies.get(scheme) or proxies.get("all") or ""
    return "" if not url or proxy_bypass(host) else url if "://" in url else f"http://{url}"


@cache
def tls_context() -> ssl.SSLContext:
    """Return the context that checks certificates like the user's machine, with the user's file or folder of
    certificates."""
    context, named = ssl.create_default_context(), ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
    if bundle := next(filter(None, map(os.environ.get, named)), ""):
        with contextlib.suppress(OSError):
            context.load_verify_locations(**{"capath" if Path(bundle).is_dir() else "cafile": bundle})
    return context


@dataclass(slots=True)
class Stream:
    """An open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def is_usable(self) -> bool:
        unasked = getattr(self.reader, "_buffer", b"")  # StreamReader has no public method for this
        return not (self.reader.at_eof() or self.writer.is_closing() or unasked)

    def close(self) -> None:
        """Close it at once."""
        with contextlib.suppress(Exception):
            self.writer.close()


async def resolve(host: str, port: int, lookups: asyncio.Semaphore | None = None,
                  seconds: float = CONNECT_TIMEOUT) -> list[str]:
    """Return the addresses of a host; UpstreamFailed if there is none.

    Args:
        lookups: limits an agent's share of the look-up threads. No time limit ends such a thread, so its slot stays
            taken until the name server has answered or the C library gives up.
        seconds: for which the answer is awaited.
    """
    if parse_address(host) is not None:
        return [host]
    try:
        async with asyncio.timeout(seconds):
            if lookups is not None:
                await lookups.acquire()
            looking = asyncio.get_running_loop().run_in_executor(None, partial(socket.getaddrinfo, host, port, type=1))
            looking.add_done_callback(partial(_end_lookup, lookups))
            # Cancelling it would only forget the running thread: its slot stays taken until it has ended.
            found = await asyncio.shield(looking)
    except (OSError, TimeoutError, UnicodeError) as error:
        raise UpstreamFailed(f"{host} cannot be resolved: {_describe(error)}") from error
    return [str(address[0]) for *_, address in found]


def _end_lookup(lookups: asyncio.Semaphore | None, looking: asyncio.Future[object]) -> None:
    if not looking.cancelled():
        looking.exception()  # its caller may be gone
    if lookups is not None:
        lookups.release()


async def open_checked(host: str, port: int, rule: HostRule, lookups: asyncio.Semaphore | None = None,
                       lookup_seconds: float = CONNECT_TIMEOUT) -> Stream:
    """Connect to an allowed host at a checked address; UpstreamRefused or UpstreamFailed if impossible."""
    proxy = user_proxy("https" if port == 443 else "http", host)
    try:
        found = await resolve(host, port, lookups, lookup_seconds)
        addresses, reason = permitted_addresses(found, rule)
    except UpstreamFailed:
        if proxy is None or parse_address(host) is not None:
            raise
        addresses, reason, found = [], "", []  # only the user's proxy can resolve it, and only it knows the addresses
    if reason:
        raise UpstreamRefused(reason, entry_for(host, port, private=True) if may_be_private(found) else "")
    if proxy is not None:
        return await _open_tunnel(proxy, host, port)
    return await open_first(addresses, port)


async def open_api(scheme: str, host: str, port: int) -> Stream:
    """Connect to a model API of the user's choice, with TLS for https."""
    proxy = user_proxy(scheme, host)
    stream = (await _open_tunnel(proxy, host, port) if proxy is not None
              else await open_first(await resolve(host, port), port))
    if scheme != "https":
        return stream
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await stream.writer.start_tls(tls_context(), server_hostname=host)
    except (OSError, TimeoutError) as error:
        stream.close()
        raise UpstreamFailed(f"no TLS with {host}: {_describe(error)}") from error
    return stream


async def open_first(addresses: Sequence[str], port: int) -> Stream:
    """Connect to the first of these addresses that answers; UpstreamFailed if none does."""
    failure: Exception | None = None
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return Stream(*await asyncio.open_connection(address, port, limit=BUFFER))
        except (OSError, TimeoutError) as error:
            failure = error
    raise UpstreamFailed(f"no connection: {_describe(failure)}") from failure


async def _open_tunnel(proxy: UserProxy, host: str, port: int) -> Stream:
    """Connect through the user's own proxy."""
    stream = await open_first(await resolve(proxy.host, proxy.port), proxy.port)
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    login = f"Proxy-Authorization: {proxy.credentials}\r\n" if proxy.credentials else ""
    stream.writer.write(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{login}\r\n".encode())
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            answer = await stream.reader.readuntil(b"\r\n\r\n")
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        stream.close()
        raise UpstreamFailed(f"the proxy {proxy.host}:{proxy.port} did not answer: {_describe(error)}") from error
    status = answer.split(b" ", 2)[1:2]
    if len(answer) > _MAX_ANSWER or status != [b"200"]:
        stream.close()
        line = answer.partition(b"\r\n")[0][:100].decode(errors="replace")
        raise UpstreamFailed(f"the proxy {proxy.host}:{proxy.port} refused {place}: {line}")
    return stream


def _describe(error: Exception | None) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200]
