"""Go-betweens on the way to a server: one with TLS, as a team's Temporal server has, and one that a test can cut."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import subprocess
import threading
from pathlib import Path


def make_certificates(folder: Path) -> None:
    """Make an authority, and the certificates `server` and `client` that it signed."""
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *new_key, "-keyout", "authority.key", "-out", "authority.pem", "-days", "2", "-subj",
            "/CN=authority")
    (folder / "names").write_text("subjectAltName=DNS:temporal.team.example\n")
    for name in ("server", "client"):
        openssl("req", "-new", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.request", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.request", "-CA", "authority.pem", "-CAkey", "authority.key", "-out",
                f"{name}.pem", "-days", "2", "-extfile", "names")


class TlsFront:
    """Passes connections with TLS on to a port of the loopback interface; asks for the certificate of its client."""

    def __init__(self, port: int, folder: Path, address: str = "127.0.0.1", own_port: int = 0) -> None:
        self._to = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self._context.load_verify_locations(folder / "authority.pem")
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.set_alpn_protocols(["h2"])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, address, own_port, ssl=self._context), self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to)
        await asyncio.gather(self._copy(reader, there_writer), self._copy(there_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Forwarder:
    """Forwards a port of the loopback interface to another, until cut: nothing passes, and neither side is told."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.is_cut = False
        self._is_over = False
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self.is_cut = True
        self._waker.send(b"x")

    def heal(self) -> None:
        self.is_cut = False
        self._waker.send(b"x")

    def close(self) -> None:
        """End all connections, as the death of a process at either end does."""
        if not self._is_over:
            self._is_over = True
            self._waker.send(b"x")
            self._thread.join()

    def _run(self) -> None:
        while not self._is_over:
            watched = [self._wake] if self.is_cut else [self._wake, self._listener, *self._pairs]
            for ready in select.select(watched, [], [])[0]:
                if ready is self._wake:
                    self._wake.recv(100)
                elif ready is self._listener:
                    self._accept()
                elif ready in self._pairs and not self.is_cut:
                    self._pass_on(ready)
        for each in (self._listener, self._wake, self._waker, *self._pairs):
            each.close()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._to, 5)
        except OSError:
            client.close()
            return
        self._pairs[client], self._pairs[server] = server, client

    def _pass_on(self, source: socket.socket) -> None:
        other = self._pairs[source]
        with contextlib.suppress(OSError):
            if data := source.recv(65536):
                other.sendall(data)
                return
        for each in (source, other):
            del self._pairs[each]
            each.close()
