"""Laboratories for the contract suite of dispatchers: a run's side, and workers that a test cuts off or kills."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from doubles.clock import FakeClock
from doubles.dispatch import MemoryDispatcher, MemoryEngine
from garrison.errors import NotFound
from garrison.hosts.attempts import (
    AttemptId,
    AttemptResult,
    Claim,
    ClaimToken,
    Completion,
    Dispatcher,
    HeartbeatReply,
    NodeAttempt,
    WorkerMessage,
)
from garrison.hosts.keeper import LocalServer
from garrison.hosts.lease import worker_clock
from garrison.hosts.relay import HostRelay, RelayClient
from go_betweens import Forwarder
from support import wait_for


class Worker(Protocol):
    """A worker in the hands of a test."""

    def claim(self, timeout: float) -> Claim | None: ...

    def heartbeat(self, token: ClaimToken, progress: str = "") -> HeartbeatReply: ...

    def is_called(self, token: ClaimToken) -> bool: ...

    def complete(self, token: ClaimToken, result: AttemptResult) -> None: ...

    def cut(self) -> None:
        """Cut it off from the dispatcher, both ways and without a word."""

    def heal(self) -> None: ...

    def kill(self) -> None: ...


class Lab(Protocol):
    """A dispatcher of one kind, with workers."""

    @property
    def dispatcher(self) -> Dispatcher: ...

    lease: float
    poll: float
    """Seconds that a claim waits."""

    def worker(self, name: str) -> Worker: ...

    def until(self, what: str, condition: Callable[[], object]) -> None:
        """Let time pass until a condition holds."""

    def now(self) -> float:
        """Return the time on the worker's clock."""


def attempt(lab: Lab, node: str = "work", *, run: str = "r1", max_claims: int = 1, payload: str = "do it",
            number: int = 1) -> NodeAttempt:
    return NodeAttempt(AttemptId(run, node, number), payload, lease=lab.lease, max_claims=max_claims)


class MemoryWorker(MemoryDispatcher):
    def cut(self) -> None:
        self.is_cut = True

    def heal(self) -> None:
        self.is_cut = False

    def kill(self) -> None:
        self.is_cut = True


class MemoryLab:
    lease = 5.0
    poll = 0.0

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.engine = MemoryEngine(self.clock)
        self.dispatcher: Dispatcher = MemoryDispatcher(self.engine)

    def worker(self, name: str) -> MemoryWorker:
        return MemoryWorker(self.engine, name)

    def until(self, what: str, condition: Callable[[], object]) -> None:
        for _ in range(1000):
            if condition():
                return
            self.clock.advance(0.05)
        raise AssertionError(f"never: {what}")

    def now(self) -> float:
        return self.clock.monotonic()


class ProcessWork:
    """A process that runs until it gets a line."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.heard: list[WorkerMessage] = []

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-ISc", "input()"], stdin=subprocess.PIPE, text=True)

    def poll(self) -> AttemptResult | None:
        code = self.process.poll()
        return None if code is None else AttemptResult(Completion.DONE, f"exit code {code}")

    def progress(self) -> str:
        return "at it"

    def deliver(self, message: WorkerMessage) -> None:
        assert self.is_running
        self.heard.append(message)

    def finish(self) -> None:
        self.process.communicate("\n")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class RelayLab(MemoryLab):
    """The in-memory dispatcher, which the run reaches through the socket of a relay."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.relay = HostRelay(self.dispatcher, path)
        self.dispatcher = RelayClient(self.relay.path)  # the run's side of one

    def close(self) -> None:
        self.relay.close()


class TemporalServer(LocalServer):
    """A real Temporal server that a test kills and starts again; what was submitted stays in its database."""

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                             cwd=self.folder)
        wait_for("the server answers", self.is_answering)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def temporal_server(folder: Path) -> Iterator[TemporalServer]:
    """Yield a running server; the test is skipped where there is no program for it."""
    server = TemporalServer(folder)
    try:
        server.start()
    except NotFound as error:
        pytest.skip(str(error))
    try:
        yield server
    finally:
        server.kill()


class TemporalWorker:
    """Worker with a connection of its own to the Temporal server, which a test can cut."""

    def __init__(self, lab: TemporalLab, name: str) -> None:
        from garrison.hosts.temporal import TemporalDispatcher

        self.forwarder = Forwarder(lab.port)
        self.dispatcher = TemporalDispatcher(f"127.0.0.1:{self.forwarder.port}", lab.crew, worker=name)
        self.claim, self.heartbeat = self.dispatcher.claim, self.dispatcher.heartbeat
        self.complete, self.is_called = self.dispatcher.complete, self.dispatcher.is_called
        self.cut, self.heal, self.kill = self.forwarder.cut, self.forwarder.heal, self.forwarder.close

    def close(self) -> None:
        self.dispatcher.close()
        self.forwarder.close()


class TemporalLab:
    """A real Temporal server."""

    lease = 6.0  # a busy machine keeps a heartbeat waiting for more than two
    poll = 0.3

    def __init__(self, address: str, crew: str) -> None:
        from garrison.hosts.temporal import TemporalDispatcher

        self.crew = crew
        self.port = int(address.rpartition(":")[2])
        self.dispatcher: Dispatcher = TemporalDispatcher(address, crew, serves_workflows=True)
        self.workers: list[TemporalWorker] = []

    def worker(self, name: str) -> TemporalWorker:
        self.workers.append(TemporalWorker(self, name))
        return self.workers[-1]

    def until(self, what: str, condition: Callable[[], object]) -> None:
        wait_for(what, condition)

    def now(self) -> float:
        return worker_clock()

    def close(self) -> None:
        for each in (*self.workers, self.dispatcher):
            each.close()
