"""Channel: the Unix socket through which the processes of an attempt's agent reach their orchestrator, and nothing
else.

A connection carries one request (`requests`, sent by `channel_client`) and its reply. The orchestrator's event loop
watches one descriptor, `fileno`, and calls `poll`, which never blocks. An agent is not trusted, so everything is
bounded: who may connect (processes of this user below the orchestrator), how many at once, how long a request may take,
its size, and how often the orchestrator is woken. Only a client that sends too many requests waits, since each agent
has its own socket.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from typing import TYPE_CHECKING

import msgspec

from garrison.agents.requests import QuestionRequest, Reply, parse_request
from garrison.agents.result import MAX_BYTES
from garrison.errors import Shortage
from garrison.system import unix_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container
    from pathlib import Path

    from garrison.agents.requests import Request
    from garrison.system.processes import ProcessId

MAX_CONNECTIONS = 16
"""Most concurrent connections; further ones wait in the kernel's queue."""
REQUEST_SECONDS = 10.0
"""Seconds for sending a request, and for reading its reply."""
RATE, BURST = 20.0, 60.0
"""Events per second that may wake the orchestrator, and the largest burst."""
_CHUNK = 1 << 16
"""Bytes per read; each read costs an event."""


class TokenBucket:
    """Token bucket: `RATE` events per second, bursts of `BURST`. Pure; times are monotonic seconds."""

    def __init__(self, rate: float = RATE, burst: float = BURST) -> None:
        self.rate, self.burst = rate, burst
        self._tokens, self._at = burst, 0.0

    def take(self, now: float) -> bool:
        """Take a token; False if there is none."""
        self._tokens = min(self.burst, self._tokens + max(0.0, now - self._at) * self.rate)
        self._at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def next_at(self) -> float:
        """Return when there will be tokens for about half a second."""
        return self._at + max(0.0, self.rate / 2 - self._tokens) / self.rate


class _Connection(msgspec.Struct):
    """A client with one request; `question` is the id of the question whose answer it waits for."""

    socket: socket.socket
    deadline: float | None
    received: bytearray = msgspec.field(default_factory=bytearray)
    to_send: bytes = b""
    question: str = ""


class Channel:
    """Socket of one attempt's agent, made by `open_channel`.

    Args:
        listener: the listening socket.
        path: its path.
        roots: returns the processes whose descendants may send requests.
        handle: carries out a request and returns its reply; for a question its id.
        log: receives lines about refusals, each once.
        asked: words that edges of the node test for.
        seconds: time for a request, and for reading its reply.
    """

    def __init__(self, listener: socket.socket, path: Path, roots: Callable[[], Collection[ProcessId]],
                 handle: Callable[[Request], Reply | str], log: Callable[[str], None],
                 asked: Container[str] | None = (), seconds: float = REQUEST_SECONDS) -> None:
        self.path, self._listener, self.seconds = path, listener, seconds
        self._roots, self._handle, self._log, self._asked = roots, handle, log, asked
        self._epoll = select.epoll()
        self._registered: set[int] = set()
        self._connections: dict[int, _Connection] = {}
        self._limit = TokenBucket()
        self._file = _file_id(path)
        self._paused_until: float | None = None
        self._logged = False
        self._arm()

    def fileno(self) -> int:
        return self._epoll.fileno()

    def wake_at(self) -> float | None:
        """Return the monotonic time by which `poll` must be called even if nothing happens."""
        due = [self._paused_until, *(connection.deadline for connection in self._connections.values())]
        return min((at for at in due if at is not None), default=None)

    def poll(self, now: float) -> bool:
        """Serve what is ready, without blocking; return whether a request was carried out."""
        if self._paused_until is not None:
            if now < self._paused_until:
                return False
            self._paused_until = None
            self._arm()
        has_request = False
        for fd, _ in self._epoll.poll(0):
            # Per event, not per request: half a request, a connect or a hang-up also wakes the loop.
            if not self._limit.take(now):
                self._pause()
                break
            if fd == self._listener.fileno():
                self._accept(now)
            elif fd in self._connections:
                has_request |= self._serve(self._connections[fd], now)
        for connection in list(self._connections.values()):
            if connection.deadline is not None and now >= connection.deadline:
                self._close(connection)
        return has_request

    def answer(self, question: str, text: str, now: float) -> bool:
        """Send the answer to the clients that wait for it; return whether there was one."""
        waiting = [each for each in self._connections.values() if each.question == question]
        for connection in waiting:
            self._reply(connection, Reply(answer=text), now)
        return bool(waiting)

    def close(self) -> None:
        """Close everything and remove the socket. Idempotent."""
        if self._epoll.closed:
            return
        for connection in list(self._connections.values()):
            self._close(connection)
        self._epoll.close()
        self._listener.close()
        if _file_id(self.path) == self._file:  # unless it is a successor's
            self.path.unlink(missing_ok=True)

    # ---- what is watched

    def _arm(self) -> None:
        """Watch the connections, and the listener while another connection is allowed."""
        wanted = {fd: select.EPOLLOUT if connection.to_send else select.EPOLLIN
                  for fd, connection in self._connections.items()}
        # epoll is level-triggered: at the limit, clients in the listener's queue would wake us endlessly.
        if len(self._connections) < MAX_CONNECTIONS:
            wanted[self._listener.fileno()] = select.EPOLLIN
        for fd in self._registered - set(wanted):
            self._epoll.unregister(fd)
        self._registered &= set(wanted)
        for fd, events in wanted.items():
            try:
                (self._epoll.modify if fd in self._registered else self._epoll.register)(fd, events)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                raise Shortage("no watch is left for the agent's socket: programs of this user have used all that "
                               "fs.epoll.max_user_watches allows; retrying") from error
            self._registered.add(fd)

    def _pause(self) -> None:
        """Watch nothing for a while: a hang-up would wake the loop even without requested events."""
        self._paused_until = self._limit.next_at()
        for fd in self._registered:
            self._epoll.unregister(fd)
        self._registered = set()

    # ---- connections

    def _accept(self, now: float) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError:  # already gone, or no descriptor left: it stays in the queue
            return
        # accept(2) on Linux: the new socket does not inherit O_NONBLOCK from the listener.
        accepted.setblocking(False)
        connection = _Connection(accepted, now + self.seconds)
        self._connections[accepted.fileno()] = connection
        # On connect, since it may be gone, and its pid reused, by the time it has sent its request.
        if objection := unix_socket.find_objection(accepted, os.getuid(), self._roots()):
            self._log_once(f"a request to the agent's socket was refused: {objection}")
            self._reply(connection, Reply(f"refused: {objection}"), now)
            return
        self._arm()

    def _serve(self, connection: _Connection, now: float) -> bool:
        """Read or write what is ready on a connection; return whether a request was carried out."""
        if connection.to_send:
            self._flush(connection)
            return False
        try:
            data = connection.socket.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if connection.question or not (data or connection.received):
            self._close(connection)  # it has hung up, or sends more than one request
            return False
        connection.received += data
        # A client may also end its request by shutting down its side instead of ending the line.
        is_whole = not data or b"\n" in data
        if not is_whole and len(connection.received) <= MAX_BYTES:
            return False
        return self._carry_out(connection, bytes(connection.received).partition(b"\n")[0], now)

    def _carry_out(self, connection: _Connection, line: bytes, now: float) -> bool:
        # Before it is carried out: from here on any more input from the client closes its connection.
        connection.received.clear()
        try:
            request = parse_request(line, self._asked)
        except ValueError as error:
            self._reply(connection, Reply(str(error)), now)
            return False
        reply = self._handle(request)
        if isinstance(reply, Reply):
            self._reply(connection, reply, now)
        else:
            assert isinstance(request, QuestionRequest)
            connection.question, connection.deadline = reply, None  # the user may take any time
        return True

    def _reply(self, connection: _Connection, reply: Reply, now: float) -> None:
        connection.question, connection.deadline = "", now + self.seconds
        connection.to_send = reply.encode()
        self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        """Send what the client accepts now; close the connection when it has everything."""
        try:
            connection.to_send = connection.to_send[connection.socket.send(connection.to_send):]
        except BlockingIOError:
            pass
        except OSError:
            connection.to_send = b""
        if connection.to_send:
            self._arm_unless_paused()
        else:
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        fd = connection.socket.fileno()
        del self._connections[fd]
        if fd in self._registered:
            self._epoll.unregister(fd)
            self._registered.discard(fd)
        connection.socket.close()
        self._arm_unless_paused()

    def _arm_unless_paused(self) -> None:
        if self._paused_until is None:
            self._arm()

    def _log_once(self, line: str) -> None:
        if not self._logged:
            self._logged = True
            self._log(line)


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def open_channel(path: Path, roots: Callable[[], Collection[ProcessId]], handle: Callable[[Request], Reply | str],
                 log: Callable[[str], None], asked: Container[str] | None = (), *,
                 seconds: float = REQUEST_SECONDS) -> Channel:
    """Open a channel at `path`, replacing a predecessor's socket; OSError if that is impossible.

    Arguments as for `Channel`.
    """
    listener = unix_socket.listen(path, MAX_CONNECTIONS, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    return Channel(listener, path, roots, handle, log, asked, seconds)
