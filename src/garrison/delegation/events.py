"""Events of a message, as sent to clients: typed, numbered, timestamped, in a fixed order. Pure.

    agent_start(butler)  text(butler)*
    ( agent_delegate(butler -> x)  agent_start(x)  text(x)*  agent_complete(x) )*  [agent_resume(butler)]
    text(butler)*  agent_complete(butler)  done

Delegations of one message run concurrently, so their events interleave; each specialist's own are in order, and one
`agent_resume` follows the last of them. A failure keeps the order: the butler reports it. A specialist that was
cancelled before it started completes without a start.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from garrison.delegation.models import Model
from garrison.errors import GarrisonError


class Event(Model):
    """One event; `id` increases by one within a conversation."""

    model_config = ConfigDict(populate_by_name=True, extra="forbid", frozen=True)

    id: int
    type: Literal["agent_start", "agent_delegate", "text", "agent_complete", "agent_resume", "done"]
    timestamp: datetime
    agent: str | None = None
    from_: str | None = Field(default=None, alias="from")
    to: str | None = None
    content: str | None = None
    success: bool | None = None
    proposals: tuple[str, ...] | None = None
    """Commands that wait for the person's word, on the text that asks for it."""

    def as_sse(self) -> str:
        return f"id: {self.id}\ndata: {self.model_dump_json(by_alias=True, exclude_none=True)}\n\n"


class OrderBroken(GarrisonError):
    """An event is not allowed at this point: a bug in this program."""


class EventSequence:
    """Number the events of a conversation and enforce their order within each message."""

    def __init__(self, last_id: int = 0) -> None:
        self.last_id = last_id
        self._open: set[str] = set()
        self._started: set[str] = set()
        self._stage = "out"

    @property
    def at_work(self) -> list[str]:
        return sorted(self._open)

    def event(self, kind: str, at: datetime, **fields: Any) -> Event:
        """Return the next event; OrderBroken if it is not allowed now."""
        self._check(kind, fields)
        self.last_id += 1
        return Event.model_validate({"id": self.last_id, "type": kind, "timestamp": at, **fields})

    def _check(self, kind: str, fields: dict[str, Any]) -> None:
        agent = fields.get("agent") or fields.get("to")
        butler = fields.get("agent") == "butler"
        allowed = {
            "agent_start": (self._stage == "out" and butler) or agent in self._open - self._started,
            "agent_delegate": self._stage == "butler" and agent not in self._open,
            "text": (agent in self._started) or (butler and self._stage in ("butler", "resumed") and not self._open),
            "agent_complete": (agent in self._open) or (butler and self._stage in ("butler", "resumed")
                                                        and not self._open),
            "agent_resume": self._stage == "butler" and butler and not self._open,
            "done": self._stage == "completed",
        }[kind]
        if not allowed:
            raise OrderBroken(f"{kind} of {agent} is not allowed now (stage {self._stage}, open {sorted(self._open)})")
        self._move(kind, agent, butler=butler)

    def _move(self, kind: str, agent: Any, *, butler: bool) -> None:
        if kind == "agent_delegate":
            self._open.add(agent)
        elif kind == "agent_start" and not butler:
            self._started.add(agent)
        elif kind == "agent_complete" and not butler:
            self._open.discard(agent)
            self._started.discard(agent)
        else:
            self._stage = {"agent_start": "butler", "agent_resume": "resumed", "agent_complete": "completed",
                           "done": "out"}.get(kind, self._stage)
