"""TCP forwarder that a test can cut: nothing passes any more, and neither side is told."""

from __future__ import annotations

import contextlib
import select
import socket
import threading


class Forwarder:
    """Forwards a port of the loopback interface to another."""

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
