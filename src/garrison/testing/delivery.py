"""Deliver an answer: plan the bytes with the places to pause or break off (pure), then send them.

The parts of a plan are the first half of the head, its second half, then the body piece by piece; so `before`,
`headers` and `stream` are positions in one list, for streams and plain JSON alike.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from garrison.testing.model_apis import MESSAGES, ModelApi
from garrison.testing.request import Request
from garrison.testing.script import Answer
from garrison.testing.turn import MANY_BYTES, Fault, Turn, text
from garrison.values import Value, replace

_POSITION = {"before": 0, "headers": 1, "stream": 5}
_END = b"0\r\n\r\n"


class Plan(Value):
    """Parts to send, and where sending pauses (a hang) or ends with a reset."""

    parts: tuple[bytes, ...]
    pause_at: int | None = None
    cut_at: int | None = None
    seconds: float | None = None
    """Length of the pause; None = until released."""
    delay: float = 0.0


def plan(answer: Answer, asked: Request, token: str, api: ModelApi = MESSAGES) -> Plan:
    """Return the plan for an answer."""
    fault = answer.fault
    if fault is not None and fault.status is not None:
        return refusal(fault.status, fault.error, token, _fault_headers(fault), api)
    turn = _oversize(answer.turn, fault)
    parts = _stream_parts(turn, asked, token, fault, api) if asked.stream else \
        _json(200, api.message(turn, asked.model, token), token, {})
    planned = Plan(tuple(parts), delay=turn.delay)
    if fault is None or fault.kind not in {"drop", "hang"}:
        return planned
    position = min(_POSITION[str(fault.value)], len(parts) - 1)
    if fault.kind == "drop":
        return replace(planned, cut_at=position)
    return replace(planned, pause_at=position, seconds=fault.seconds)


def refusal(status: int, error: dict[str, str], token: str, headers: dict[str, str] | None = None,
            api: ModelApi = MESSAGES) -> Plan:
    return reply(status, api.error(error, status, token), token, headers)


def reply(status: int, body: dict[str, Any], token: str, headers: dict[str, str] | None = None) -> Plan:
    return Plan(tuple(_json(status, body, token, headers or {})))


def _oversize(turn: Turn, fault: Fault | None) -> Turn:
    if fault is None or fault.kind != "oversize":
        return turn
    size = MANY_BYTES if fault.value is True else int(fault.value)
    return replace(turn, blocks=(text("x" * size), *turn.blocks), piece=max(size, turn.piece))


def _fault_headers(fault: Fault) -> dict[str, str]:
    wait = {} if fault.retry_after is None else {"retry-after": f"{fault.retry_after:g}"}
    return {**wait, **fault.headers}


def _head(status: int, token: str, headers: dict[str, str]) -> list[bytes]:
    """Return the head in two halves."""
    reason = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Scripted"
    lines = [f"HTTP/1.1 {status} {reason}", f"request-id: req_{token}", *(f"{a}: {b}" for a, b in headers.items())]
    whole = ("\r\n".join(lines) + "\r\n\r\n").encode()
    return [whole[:len(whole) // 2], whole[len(whole) // 2:]]


def _json(status: int, body: dict[str, Any], token: str, headers: dict[str, str]) -> list[bytes]:
    data = json.dumps(body).encode()
    head = {"content-type": "application/json", "content-length": str(len(data)), **headers}
    size = max(1, len(data) // 6)
    return [*_head(status, token, head), *(data[at:at + size] for at in range(0, len(data), size))]


def _stream_parts(turn: Turn, asked: Request, token: str, fault: Fault | None, api: ModelApi) -> list[bytes]:
    head = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache",
            "transfer-encoding": "chunked"}
    lines = list(api.events(turn, asked.model, token))
    return [*_head(200, token, head), *map(_chunk, _distort(lines, fault, token, api)), _END]


def _distort(lines: list[bytes], fault: Fault | None, token: str, api: ModelApi) -> Iterable[bytes]:
    if fault is not None and fault.kind == "malformed":
        return [*lines[:3], api.malformed[str(fault.value)], *lines[3:]]
    if fault is not None and fault.kind == "stream_error":
        return [*lines[:3], api.stream_error(fault.error, token)]
    return lines


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


# ------------------------------------------------------------------------------------------------ sending


def deliver(plan: Plan, connection: socket.socket, released: Callable[[float], bool]) -> str:
    """Send a plan; return how it ended: "sent", "cut" (by a fault) or "gone" (the client left).

    `released(seconds)` waits that long and returns whether hangs are to end.
    """
    try:
        for index, part in enumerate(plan.parts):
            if index == plan.cut_at:
                reset(connection)
                return "cut"
            if index == plan.pause_at and not _pause(plan, connection, released):
                return "gone"
            connection.sendall(part)
            if plan.delay and index > 1:
                time.sleep(plan.delay)
    except OSError:
        return "gone"
    return "sent"


def reset(connection: socket.socket) -> None:
    """Drop the connection so that the peer gets a reset."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def _pause(plan: Plan, connection: socket.socket, released: Callable[[float], bool]) -> bool:
    """Wait in silence; return False if the client left meanwhile."""
    deadline = None if plan.seconds is None else time.monotonic() + plan.seconds
    while deadline is None or time.monotonic() < deadline:
        if released(0.05):
            return True
        if select.select([connection], [], [], 0)[0] and not connection.recv(1, socket.MSG_PEEK):
            return False
    return True
