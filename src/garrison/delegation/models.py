"""Data passed between the butler and its specialists, validated at both ends, and the states of an agent. Pure.

Field names are the original's in Python spelling. JSON is read in both spellings and written in the original one
(`relevantEntities`). Agent names are defined by the crew, so they are plain text here and checked against it.

    idle -> initializing -> loading_context -> processing -> completing -> idle
    processing <-> waiting_for_tool | waiting_for_user | delegating          (delegating: the butler only)
    any but idle -> error -> idle | initializing
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from garrison.errors import ForbiddenTransition, GarrisonError

BUTLER = "butler"


class Model(BaseModel):
    """Base model: reads both spellings, writes the original one, and refuses unknown fields to catch typos."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    def as_json(self) -> dict[str, object]:
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Preference(Model):
    """Preference of the user; `confidence` is from 0 to 1."""

    key: str
    value: str
    confidence: float = Field(ge=0, le=1)


class ChatTurn(Model):
    """One entry of the conversation so far."""

    role: Literal["user", "assistant", "system"]
    content: str


class Interval(Model):
    """Time interval [start, end) with time zone; None is an open end."""

    words: str
    start: datetime | None = None
    end: datetime | None = None


class DelegationContext(Model):
    """Complete input of a specialist."""

    parent_agent: Literal["butler"] = "butler"
    target_agent: str
    original_user_message: str
    delegation_reasoning: str
    relevant_entities: tuple[str, ...] = ()
    time_constraints: str | None = None
    """In the user's words."""
    intervals: tuple[Interval, ...] = ()
    """Intervals meant by those words."""
    user_preferences: tuple[Preference, ...] = ()
    conversation_history: tuple[ChatTurn, ...] = ()
    history_cut: int = 0
    """Number of oldest history entries left out to fit the limit."""


class AgentResult(Model):
    """Result of a specialist."""

    agent_type: str
    success: bool
    summary: str
    data: dict[str, object] = Field(default_factory=dict)
    suggested_follow_up: str | None = None
    tools_used: tuple[str, ...] = ()
    tokens_used: int | None = None


class DelegationRequest(Model):
    """Delegation requested by the butler."""

    intent: str
    reasoning: str
    relevant_entities: tuple[str, ...] = ()
    time_constraints: str | None = None


class Classification(Model):
    """Delegations needed for a message; without any, the butler answers alone."""

    delegations: tuple[DelegationRequest, ...] = ()
    reasoning: str = ""
    confidence: float = Field(default=1.0, ge=0, le=1)


class Proposal(Model):
    """Command that stops or changes runs, run only once the user agrees."""

    words: tuple[str, ...]
    """Arguments of `garrison`."""

    def __str__(self) -> str:
        return shlex.join(("garrison", *self.words))


class ChatEntry(Model):
    """Entry of a conversation; delegations of a turn are inside the butler's entry."""

    role: Literal["user", "assistant"]
    content: str
    at: datetime
    agent: str = BUTLER
    delegations: tuple[Delegation, ...] = ()
    about: str | None = None
    """Run, or run and node, from whose page the user asked."""
    note: str = ""
    """Error, if anything went wrong."""
    proposals: tuple[Proposal, ...] = ()
    """Commands that wait for the user's approval; the next message decides."""


class Delegation(Model):
    """Delegation with context and result."""

    context: DelegationContext
    result: AgentResult
    started_at: datetime
    ended_at: datetime


ChatEntry.model_rebuild()


class AgentState(StrEnum):
    """State of an agent of the crew."""

    IDLE = "idle"
    INITIALIZING = "initializing"
    LOADING_CONTEXT = "loading_context"
    PROCESSING = "processing"
    WAITING_FOR_TOOL = "waiting_for_tool"
    WAITING_FOR_USER = "waiting_for_user"
    DELEGATING = "delegating"
    COMPLETING = "completing"
    ERROR = "error"


S = AgentState
TRANSITIONS: Mapping[AgentState, frozenset[AgentState]] = {
    S.IDLE: frozenset({S.INITIALIZING}),
    S.INITIALIZING: frozenset({S.LOADING_CONTEXT, S.ERROR}),
    S.LOADING_CONTEXT: frozenset({S.PROCESSING, S.ERROR}),
    S.PROCESSING: frozenset({S.WAITING_FOR_TOOL, S.WAITING_FOR_USER, S.DELEGATING, S.COMPLETING, S.ERROR}),
    S.WAITING_FOR_TOOL: frozenset({S.PROCESSING, S.ERROR}),
    S.WAITING_FOR_USER: frozenset({S.PROCESSING, S.ERROR}),
    S.DELEGATING: frozenset({S.PROCESSING, S.ERROR}),
    S.COMPLETING: frozenset({S.IDLE, S.ERROR}),
    S.ERROR: frozenset({S.IDLE, S.INITIALIZING}),
}
"""State → states that may follow it."""


def check_transition(agent: str, old: AgentState, new: AgentState) -> AgentState:
    """Return `new` if it may follow `old`; else raise ForbiddenTransition."""
    if new not in TRANSITIONS[old]:
        raise ForbiddenTransition(f"agent {agent}", old.value, new.value, [state.value for state in TRANSITIONS[old]])
    return new


# ---- events ----------------------------------------------------------------------------------------------------------

# Events of a message for clients: typed, numbered, timestamped, in a fixed order. Pure.
#
#     agent_start(butler)  text(butler)*
#     ( agent_delegate(butler -> x)  agent_start(x)  text(x)*  agent_complete(x) )*  [agent_resume(butler)]
#     text(butler)*  agent_complete(butler)  done
#
# Delegations of one message run concurrently, so their events interleave; each specialist's events are in order, and
# one `agent_resume` follows the last of all. A failure keeps the order: the butler reports it. A specialist cancelled
# before its start completes without a start event.


class ChatEvent(Model):
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
    """Commands that wait for the user's approval, on the text that asks for it."""

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

    def event(self, kind: str, at: datetime, **fields: object) -> ChatEvent:
        """Return the next event; OrderBroken if it is not allowed now."""
        self._check(kind, fields)
        self.last_id += 1
        return ChatEvent.model_validate({"id": self.last_id, "type": kind, "timestamp": at, **fields})

    def _check(self, kind: str, fields: dict[str, object]) -> None:
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
