"""A proxy in this process, servers for it to reach, and a raw client: for the contract of the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from garrison.records.json_io import read_json, read_lines
from garrison.sandbox.proxy import process
from garrison.sandbox.proxy.allowed_hosts import parse_rules
from garrison.sandbox.proxy.ledger import REFUSED, USAGE, Ledger
from garrison.sandbox.proxy.registration import Registration
from garrison.sandbox.proxy.relay import Access, Patience
from support import DEADLINE

SHORT = Patience(head=0.6, idle=5.0, body=2.0, answer=5.0, tunnel=5.0, upstream=5.0)


@dataclass
class RunningProxy:
    """A listener that is served by the proxy's code in a thread."""

    access: Access
    folder: Path
    port: int

    @property
    def usage(self) -> list[dict[str, Any]]:
        return read_lines(self.folder / USAGE)

    @property
    def refused(self) -> dict[str, dict[str, Any]]:
        return {each["place"]: each for each in read_json(self.folder / REFUSED) or ()}

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE)

    def send(self, data: bytes) -> bytes:
        """Send bytes on a new connection; return everything that comes back until it is closed."""
        with self.connect() as client:
            with contextlib.suppress(OSError):
                client.sendall(data)
            return read_all(client)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        """Send one plain request; return the whole answer."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Connection: close",
                 *([f"Content-Length: {len(body)}"] if body else []),
                 *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
        return self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def tunnel(self, place: str) -> tuple[socket.socket, bytes]:
        """Ask for a tunnel; return the connection and the head of the answer."""
        client = self.connect()
        client.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
        return client, read_head(client)


def read_all(client: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionError):
        while data := client.recv(65536):
            parts.append(data)
    return b"".join(parts)


def read_head(client: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and (data := client.recv(1)):
        head += data
    return head


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def body_of(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


@contextlib.contextmanager
def serving(home: Path, patience: Patience = SHORT, most: int = process.MAX_CONNECTIONS,
            **given: Any) -> Iterator[RunningProxy]:
    """Serve one listener with this registration, up to `most` connections."""
    folder = home / "runs" / "r1" / "nodes" / "a" / "1" / "network"
    registration = Registration("r1", "a", 1, str(folder), **given)
    access = Access(registration, parse_rules(registration.hosts), Ledger(home, registration), 0, patience)
    listener = socket.create_server(("127.0.0.1", 0))
    access.port = listener.getsockname()[1]
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(process.acceptor(access, most=most), sock=listener)
        ready.set()
        await stop.wait()
        server.close()
        tasks = list(access.connections)
        access.close()
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    loop.set_default_executor(ThreadPoolExecutor(process.LOOKUPS))
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    ready.wait(5)
    try:
        yield RunningProxy(access, folder, access.port)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def _read_body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("transfer-encoding") != "chunked":
        return request.rfile.read(int(request.headers.get("content-length") or 0))
    parts = []
    while size := int(request.rfile.readline(), 16):
        parts.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(parts)


@dataclass
class Web:
    """An HTTP or HTTPS server that records what reaches it; `answer` gives (status, headers, body parts)."""

    answer: Callable[[Any], tuple[int, dict[str, str], list[bytes]]]
    context: ssl.SSLContext | None = None
    seen: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                self.body = _read_body(self)
                web.seen.append(self)
                status, headers, parts = web.answer(self)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "content-length" not in headers:
                    self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for part in parts:
                    data = part if "content-length" in headers else b"%x\r\n%s\r\n" % (len(part), part)
                    self.wfile.write(data)
                    self.wfile.flush()
                if "content-length" not in headers:
                    self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if self.context is not None:
            self._server.socket = self.context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Web:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def plain(body: bytes = b"hello", status: int = 200, **headers: str) -> Callable[[Any], Any]:
    """Return an answer with a length."""
    return lambda _: (status, {"content-length": str(len(body)), **headers}, [body])


def send_in_pieces(client: socket.socket, data: bytes, pieces: int) -> None:
    """Send so many pieces; a pause after each lets the proxy read it before the next one joins it."""
    size = len(data) // pieces + 1
    for at in range(0, len(data), size):
        client.sendall(data[at:at + size])
        time.sleep(0.005 * (pieces > 1))


def hello(name: str | None) -> bytes:
    """Return the first message of Python's own TLS client."""
    context = ssl.create_default_context()
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return contexts of a server at 127.0.0.1 with a certificate of its own, and of a client that trusts it."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert),
                    "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"],
                   check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    client = ssl.create_default_context(cafile=str(cert))
    return server, client
