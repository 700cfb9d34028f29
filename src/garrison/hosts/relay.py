"""Relay: one process of a home has the connection to the dispatcher; orchestrators reach it by a Unix socket.

An SDK costs 49 MiB and 0.3 s a process, so the orchestrators of many remote nodes load none. The socket is in
the home, which only its user can enter. Requests and replies are lines of JSON:

    {"op": "submit", "attempt": {…}}   {"op": "cancel", "id": "run/node/1", "why": "…"}
    {"op": "send", "id": "run/node/1", "message": {…}}   {"op": "watch", "id": "run/node/1", "seen": {…}, "timeout": 5}
    {"op": "follow", "id": "run/node/1"}

Each has one reply, `{"ok": …}` or `{"error": …, "why": …}`, except `follow`: its replies are the attempt's state, and
each later one as soon as the relay sees it. One thread polls the dispatcher for the followed attempts.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from garrison.errors import GarrisonError, Refused, UsageError
from garrison.hosts.attempts import (
    OVER,
    AttemptId,
    AttemptView,
    DispatcherLost,
    NodeAttempt,
    WorkerMessage,
)
from garrison.records import atomic
from garrison.records.record import Record, from_data
from garrison.system.unix_socket import listen, short_path
from garrison.values import asdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from garrison.hosts.attempts import Dispatcher

R = TypeVar("R")

MAX_BYTES = 4_000_000
"""Longest line of a request or of a reply."""
MAX_CONNECTIONS = 1024
"""Connections that are served at once."""
CALL_SECONDS = 20.0
"""Longest wait for a reply."""
FOLLOW_SECONDS = 0.25
"""Time between two polls of the followed attempts, while there are few."""
LOOKS_A_SECOND = 200
"""Most polls of attempts per second."""
UNREACHABLE, REFUSED = "unreachable", "refused"


def socket_path(home: Path) -> Path:
    return home / "hosts" / "keeper.sock"


# ---- records as JSON


class RelayRequest(Record):
    """A line from a client."""

    op: str
    id: str = ""
    why: str = ""
    attempt: dict[str, object] | None = None
    message: WorkerMessage | None = None
    seen: dict[str, object] | None = None
    timeout: float = 0.0


def to_json(record: AttemptView | NodeAttempt) -> dict[str, object]:
    return {**asdict(record), "id": str(record.id)}


def from_json(kind: type[R], body: Mapping[str, object]) -> R:
    """Return an attempt, or its state, from its JSON object; ValueError if it is invalid."""
    return from_data(kind, {**body, "id": AttemptId.parse(str(body["id"]))})


# ---- the process with the connection


class HostRelay:
    """Server of a home's socket, in front of any dispatcher."""

    def __init__(self, dispatcher: Dispatcher, path: Path) -> None:
        self.dispatcher, self.path = dispatcher, path
        self._followed: dict[AttemptId, _Followed] = {}
        self._lock = threading.Lock()
        self._wakeup = threading.Event()
        self._is_closed = False
        self._connections: set[socket.socket] = set()
        atomic.make_directory(path.parent)
        self._listener = listen(path, 128)
        self._threads = [threading.Thread(target=run, name=name, daemon=True)
                         for name, run in (("relay", self._accept), ("followed", self._look))]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop serving; clients that wait for a reply find the connection closed."""
        self._is_closed = True
        self._wakeup.set()
        with suppress(OSError):  # closing alone wakes no thread that waits in accept()
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with suppress(OSError):
            self.path.unlink()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5.0)

    @property
    def connections(self) -> int:
        return len(self._connections)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.1)  # no descriptor is free
                continue
            with self._lock:
                is_full = len(self._connections) >= MAX_CONNECTIONS
                if not is_full:
                    self._connections.add(connection)
            if is_full:
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="relayed", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        followed: list[AttemptId] = []
        sink = _Sink(connection)
        try:
            for line in read_lines(connection):
                request = from_data(RelayRequest, json.loads(line))
                if request.op == "follow":
                    followed.append(self._follow(AttemptId.parse(request.id), sink))
                else:
                    sink.send(self._answer(request))
        except (OSError, ValueError, KeyError, UsageError, RecursionError):
            pass  # it is gone, or not one of our clients
        finally:
            with self._lock:
                self._connections.discard(connection)
                for id_ in followed:
                    self._followed[id_].sinks.discard(sink)
                    if not self._followed[id_].sinks:
                        del self._followed[id_]
            connection.close()

    def _answer(self, request: RelayRequest) -> dict[str, object]:
        try:
            return {"ok": self._perform(request)}
        except DispatcherLost as error:
            return {"error": UNREACHABLE, "why": str(error)}
        except GarrisonError as error:
            return {"error": REFUSED, "why": str(error)}

    def _perform(self, request: RelayRequest) -> dict[str, object] | None:
        match request:
            case RelayRequest(op="submit", attempt=dict(attempt)):
                self.dispatcher.submit(from_json(NodeAttempt, attempt))
            case RelayRequest(op="cancel"):
                self.dispatcher.cancel(AttemptId.parse(request.id), request.why)
            case RelayRequest(op="send", message=WorkerMessage() as message):
                self.dispatcher.send(AttemptId.parse(request.id), message)
            case RelayRequest(op="watch", seen=seen):
                return to_json(self.dispatcher.watch(
                    AttemptId.parse(request.id), from_json(AttemptView, seen) if seen is not None else None,
                    min(CALL_SECONDS / 2, request.timeout)))
            case _:
                raise ValueError(f"no request: {request.op}")
        return None

    # ---- followed attempts

    def _follow(self, id_: AttemptId, sink: _Sink) -> AttemptId:
        with self._lock:
            self._followed.setdefault(id_, _Followed()).add(sink)
        self._wakeup.set()
        return id_

    def _look(self) -> None:
        while not self._is_closed:
            with self._lock:
                followed = list(self._followed.items())
            for id_, each in followed:
                reply = self._answer(RelayRequest("watch", str(id_)))
                with self._lock:
                    sinks = each.take_new(reply)
                for sink in sinks:  # without the lock: a slow reader must not keep others from connecting
                    with suppress(OSError):
                        sink.send(reply)
            self._wakeup.wait(max(FOLLOW_SECONDS, len(followed) / LOOKS_A_SECOND))
            self._wakeup.clear()


class _Sink:
    """A connection to which replies are written from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()
        connection.settimeout(None)

    def send(self, reply: Mapping[str, object]) -> None:
        with self._lock:
            self._connection.sendall(_line(reply))


class _Followed:
    """An attempt that clients follow, and the last reply to each."""

    def __init__(self) -> None:
        self.sinks: set[_Sink] = set()
        self._last: dict[_Sink, Mapping[str, object]] = {}

    def add(self, sink: _Sink) -> None:
        self.sinks.add(sink)

    def take_new(self, reply: Mapping[str, object]) -> list[_Sink]:
        """Return the clients for which this is new, and count it as sent to them."""
        found = [sink for sink in self.sinks if self._last.get(sink) != reply]
        self._last = {**{sink: last for sink, last in self._last.items() if sink in self.sinks},
                      **dict.fromkeys(found, reply)}
        return found


def read_lines(connection: socket.socket) -> Iterator[bytes]:
    """Yield the lines that a peer sends; ValueError for one that is too long."""
    buffer = b""
    while block := connection.recv(65536):
        buffer += block
        *lines, buffer = buffer.split(b"\n")
        yield from lines
        if len(buffer) > MAX_BYTES:
            raise ValueError("the line is too long")


# ---- the orchestrators' side


class RelayClient:
    """The run's side of a dispatcher, through the socket of a home's relay. DispatcherLost while it is not served."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def submit(self, attempt: NodeAttempt) -> None:
        """Offer an attempt; one that was already submitted is unchanged."""
        self._call(RelayRequest("submit", attempt=to_json(attempt)))

    def cancel(self, attempt: AttemptId, why: str) -> None:
        """Cancel an attempt."""
        self._call(RelayRequest("cancel", str(attempt), why))

    def send(self, attempt: AttemptId, message: WorkerMessage) -> None:
        """Send the attempt's worker a message."""
        self._call(RelayRequest("send", str(attempt), message=message))

    def watch(self, attempt: AttemptId, seen: AttemptView | None = None, timeout: float = 0.0) -> AttemptView:
        """Return the attempt's state; wait up to `timeout` seconds for one that differs from `seen`."""
        end = time.monotonic() + timeout
        while True:
            left = max(0.0, end - time.monotonic())
            view = _to_view(self._call(RelayRequest("watch", str(attempt), timeout=left,
                                                    seen=to_json(seen) if seen is not None else None)))
            if view != seen or view.state in OVER or time.monotonic() >= end:
                return view

    def follow(self, attempt: AttemptId) -> Following:
        """Follow an attempt's states without waiting for them."""
        connection = self._connect()
        try:
            connection.sendall(_line(RelayRequest("follow", str(attempt))))
        except OSError as error:
            connection.close()
            raise self._unreachable(error) from None
        return Following(connection)

    def _call(self, request: RelayRequest) -> object:
        with self._connect() as connection:
            try:
                connection.sendall(_line(request))
                reply = next(read_lines(connection), b"")
            except OSError as error:
                raise self._unreachable(error) from None
        return _read_reply(reply)

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.settimeout(CALL_SECONDS)
        try:
            with short_path(self.path) as name:
                connection.connect(name)
        except OSError as error:
            connection.close()
            raise self._unreachable(error) from None
        return connection

    def _unreachable(self, error: OSError) -> DispatcherLost:
        return DispatcherLost(
            f"the keeper of this home's hosts does not answer ({error.strerror or error}: {self.path})")


class Following:
    """States of one attempt as they come; `fileno` is readable when there is one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._buffer = connection, b""
        connection.setblocking(False)

    def fileno(self) -> int:
        return self._connection.fileno()

    def take(self) -> AttemptView | None:
        """Return the newest state that has arrived, None for none; DispatcherLost if dispatcher or relay is gone."""
        is_closed = False
        with suppress(BlockingIOError):
            while block := self._connection.recv(65536):
                self._buffer += block
            is_closed = True
        *lines, self._buffer = self._buffer.split(b"\n")
        if lines:  # each is a whole state, so earlier ones do not matter
            return _to_view(_read_reply(lines[-1]))
        if is_closed or len(self._buffer) > MAX_BYTES:
            raise DispatcherLost("the keeper of this home's hosts has ended the connection")
        return None

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def _line(message: object) -> bytes:
    return json.dumps(asdict(message)).encode() + b"\n"


def _read_reply(line: bytes) -> object:
    try:
        reply = json.loads(line)
        if "ok" in reply:
            return reply["ok"]
        error, why = str(reply["error"]), str(reply["why"])
    except (ValueError, KeyError, TypeError):
        raise DispatcherLost("the keeper of this home's hosts gave no answer") from None
    raise DispatcherLost(why) if error == UNREACHABLE else Refused(why)


def _to_view(body: object) -> AttemptView:
    try:
        return from_json(AttemptView, from_data(dict[str, object], body))
    except (ValueError, KeyError, UsageError):
        raise DispatcherLost("the keeper of this home's hosts gave an invalid answer") from None
