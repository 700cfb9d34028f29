"""Remote work: the state of an attempt that runs on a host, in `remote.json` of the attempt's folder.

The node's orchestrator writes it; its successor takes over the open offer, and views read where the work is.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from garrison.errors import RecordError
from garrison.records import atomic, record
from garrison.values import Value

if TYPE_CHECKING:
    from pathlib import Path

FILE = "remote.json"
USAGE = "remote"
"""Folder of an attempt with the usage file of the hosts that worked on it."""


class RemotePhase(StrEnum):
    """Phase of an attempt on a host."""

    WAITING = "waiting"
    """No host has it yet."""
    WORKING = "working"
    COLLECTING = "collecting"
    """A host has done it; its commits are being fetched."""
    ENDED = "ended"
    """The offer is over: it has a result, its host was lost, or it was stopped."""


class RemoteWorkState(Value):
    """State of the latest offer of an attempt."""

    offer: int = 1
    placement: str = ""
    base: str = ""
    """Commit that it starts from."""
    payload: str = ""
    """What its worker receives; the same each time an offer is repeated."""
    queue: str = ""
    phase: str = RemotePhase.WAITING
    since: str = ""
    """Time of the phase."""
    host: str = ""
    """Host that has, or had, it."""
    claim: int = 0
    host_run: str = ""
    """Run that works on it in the home of the host."""
    work: str = ""
    """Phase that the host reports."""
    line: str = ""
    """Last line that its agent printed."""
    head: str = ""
    """Last commit that was fetched."""
    cancelled: str = ""
    """Why it was cancelled, '' if it was not."""
    trouble: str = ""
    """Why home gets no news of it: the server, or the connection to the host."""
    losses: int = 0
    """Consecutive offers of the node that ended for lack of heartbeats, including this one."""

    def __post_init__(self) -> None:
        RemotePhase(self.phase)


def read_remote(folder: Path) -> RemoteWorkState | None:
    """Return the state of the remote work of an attempt, None if there is none; RecordError if it is damaged."""
    data = atomic.read(folder / FILE)
    return None if data is None else record.decode(RemoteWorkState, data, folder / FILE)


def look_remote(folder: Path) -> RemoteWorkState | None:
    """Return the state of an attempt's remote work for a view; None if there is none, or it is damaged."""
    try:
        return read_remote(folder)
    except RecordError:
        return None


def write_remote(folder: Path, state: RemoteWorkState, *, durable: bool = True) -> None:
    """Write the state of the remote work of an attempt."""
    atomic.write(folder / FILE, record.encode(state), durable=durable)
