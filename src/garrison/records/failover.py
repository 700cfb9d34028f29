"""Failovers of an attempt: which agent took over from which, in `failover.jsonl` of the attempt's folder.

A failover is recorded after the last process of one agent has ended, and before the next agent starts. So if the
orchestrator is killed in between, its successor starts exactly one agent: the one in the last line. The files of
earlier agents' sessions are kept in `earlier/N` of the attempt's folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from garrison.records import atomic
from garrison.records.json_io import append_lines, read_lines
from garrison.records.record import from_data
from garrison.values import Value, asdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FILE, EARLIER = "failover.jsonl", "earlier"
_SESSION_FOLDERS = ("claude", "session", "stream")
"""Folders of an attempt that belong to its agent's session."""
_DONE = "agent"
"""File that marks an earlier agent's folder as complete; it contains the agent's name."""


class Failover(Value):
    """A change from one agent to another; a line of `failover.jsonl`."""

    at: float
    """Seconds since 1970."""
    previous: str = msgspec.field(name="from")
    agent: str = msgspec.field(name="to")
    """The agent that continues."""
    kind: str = ""
    """Class of the failure that ended the work of `previous`."""
    reason: str = ""
    until: float | None = None
    """Time, in seconds since 1970, at which the limit of `previous` is reset, if that is known."""
    started: bool = True
    """False if `previous` was skipped, because its limit was still in force."""

    def describe(self) -> str:
        return f"{self.previous} cannot continue ({self.cause}); {self.agent} takes over"

    @property
    def cause(self) -> str:
        words, line = self.kind.replace("_", " "), self.reason.partition("\n")[0]
        return words if not line or line.startswith(words) else f"{words}: {line}"


def read_failovers(attempt: Path) -> list[Failover]:
    """Return the failovers of an attempt, oldest first; a torn line, before which no agent started, is skipped."""
    return [from_data(Failover, body) for body in read_lines(attempt / FILE) if isinstance(body, dict)]


def add_failover(attempt: Path, failover: Failover) -> None:
    """Record a failover durably."""
    append_lines(attempt / FILE, [asdict(failover)], durable=True)


def present_agent(first: str, failovers: Sequence[Failover]) -> str:
    """Return the agent that works now; `first` is the attempt's own."""
    return failovers[-1].agent if failovers else first


def agent_at(first: str, failovers: Sequence[Failover], at: float) -> str:
    """Return the agent that worked at a time, in seconds since 1970; `first` is the attempt's own."""
    return next((each.agent for each in reversed(failovers) if each.at <= at), first)


def keep_earlier_sessions(attempt: Path, failovers: Sequence[Failover]) -> None:
    """Move the files of earlier agents' sessions aside, so that the current agent starts a new session.

    Safe to repeat after a kill at any point: a complete folder is left alone.
    """
    for number, failover in enumerate(failovers, 1):
        kept = attempt / EARLIER / str(number)
        if (kept / _DONE).exists():
            continue
        atomic.make_directory(kept)
        for name in _SESSION_FOLDERS:
            if (attempt / name).is_dir() and not (kept / name).exists():
                (attempt / name).rename(kept / name)
        # Last: its presence means that every folder is moved; the current agent may have made new ones of these names.
        atomic.write(kept / _DONE, failover.previous.encode())


def session_holders(attempt: Path) -> Iterator[Path]:
    """Yield the folders that contain an attempt's sessions, oldest first: those of earlier agents, then its own."""
    names = sorted((name for name in atomic.list_names(attempt / EARLIER) if name.isdecimal()), key=int)
    yield from (attempt / EARLIER / name for name in names)
    yield attempt
