"""Client of an agent's socket: send one request to the orchestrator, wait for its reply.

It only needs the socket: in a sandbox there is no home. It imports nothing slow of garrison, since agents call it from
shell scripts.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypedDict, cast

from garrison.errors import GarrisonError, NotFound, Refused
from garrison.system.unix_socket import short_path

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "GARRISON_AGENT_SOCKET"
"""Variable of an agent's environment with the path of its socket."""
INSIDE = "/run/garrison/agent.sock"
"""Path of the socket in a sandbox."""
LAST_SECONDS = 10.0
"""Seconds that a request waits after the orchestrator is gone, for the agent to be killed."""


def find_socket(environ: Mapping[str, str]) -> str:
    """Return the path of the caller's agent socket; NotFound outside an agent."""
    path = environ.get(VARIABLE) or INSIDE
    if not os.path.exists(path):  # noqa: PTH110  # pathlib would not shorten a start of some ten milliseconds
        raise NotFound(f"no garrison agent runs here: {VARIABLE} names no socket; only a node's own processes may "
                       "report, and only while it runs")
    return path


class ReplyBody(TypedDict, total=False):
    """A received reply (`requests.Reply`)."""

    ok: bool
    error: str
    answer: str


def send(path: str, request: Mapping[str, object], patience: float = LAST_SECONDS) -> ReplyBody:
    """Send a request and return the reply, however long it takes; GarrisonError if it is refused or there is none.

    Args:
        patience: seconds to wait if the orchestrator is gone. The kernel closes a dying process's sockets before it
            signals the processes that die with it: an agent that learned of the end at once would fail because of it,
            and so would its attempt.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            with short_path(path) as name:
                connection.connect(name)
        except OSError as error:
            time.sleep(patience)
            raise GarrisonError(f"the orchestrator does not answer at {path} ({error.strerror}); its successor starts "
                                "the agent again") from error
        received = _exchange(connection, json.dumps(request).encode() + b"\n")
    try:
        reply = cast("ReplyBody", json.loads(received))
    except ValueError:
        time.sleep(patience)
        raise GarrisonError("the orchestrator ended before it replied; its successor starts the agent again") from None
    if not reply.get("ok"):
        raise Refused(str(reply.get("error") or "refused"))
    return reply


def _exchange(connection: socket.socket, line: bytes) -> bytes:
    """Send a line and return the whole reply; a refusal may arrive before the line is sent."""
    received = b""
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(line)
    # Linux resets a Unix socket whose peer closes with bytes unread, but first lets us read what the peer had sent.
    with suppress(ConnectionResetError):
        while chunk := connection.recv(1 << 16):
            received += chunk
    return received
