"""Data passed between the butler and its specialists, validated at both ends, and the states of an agent. Pure.

Field names are the seed's in Python spelling. JSON is read in both spellings and written in the seed's
(`relevantEntities`). Agent names are defined by the crew, so they are plain text here and checked against the crew.

    idle -> initializing -> loading_context -> processing -> completing -> idle
    processing <-> waiting_for_tool | waiting_for_user | delegating          (delegating: the butler only)
    any but idle -> error -> idle | initializing
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from garrison.errors import ForbiddenTransition

BUTLER = "butler"


class Model(BaseModel):
    """Both spellings in, the seed's out; an unknown field is refused, so that a slip is seen."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    def as_json(self) -> dict[str, Any]:
        """As JSON's shapes, without what is not said."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Preference(Model):
    """What the person likes: `confidence` from 0 to 1."""

    key: str
    value: str
    confidence: float = Field(ge=0, le=1)


class Turn(Model):
    """One entry of what was said so far."""

    role: Literal["user", "assistant", "system"]
    content: str


class Interval(Model):
    """A stretch of time, [start, end); an end that is open is None. With time zone."""

    words: str
    start: datetime | None = None
    end: datetime | None = None


class DelegationContext(Model):
    """Everything a specialist is given."""

    parent_agent: Literal["butler"] = "butler"
    target_agent: str
    original_user_message: str
    delegation_reasoning: str
    relevant_entities: tuple[str, ...] = ()
    time_constraints: str | None = None
    """The person's own words."""
    intervals: tuple[Interval, ...] = ()
    """What those words mean."""
    user_preferences: tuple[Preference, ...] = ()
    conversation_history: tuple[Turn, ...] = ()
    history_cut: int = 0
    """How many of the oldest entries of the history were left out, so that the rest fits."""


class AgentResult(Model):
    """What came back from a specialist."""

    agent_type: str
    success: bool
    summary: str
    data: dict[str, Any] = Field(default_factory=dict)
    suggested_follow_up: str | None = None
    tools_used: tuple[str, ...] = ()
    tokens_used: int | None = None


class Order(Model):
    """One delegation the butler wants."""

    intent: str
    reasoning: str
    relevant_entities: tuple[str, ...] = ()
    time_constraints: str | None = None


class Classification(Model):
    """What a message wants: nothing to delegate means that the butler answers itself."""

    delegations: tuple[Order, ...] = ()
    reasoning: str = ""
    confidence: float = Field(default=1.0, ge=0, le=1)


class Said(Model):
    """One entry of a conversation; a delegated turn's delegations stand inside the butler's entry."""

    role: Literal["user", "assistant"]
    content: str
    at: datetime
    agent: str = BUTLER
    delegations: tuple[Delegated, ...] = ()
    note: str = ""
    """What went wrong on the way, if anything did."""


class Delegated(Model):
    """A delegation as it is kept: what was given and what came of it."""

    context: DelegationContext
    result: AgentResult
    started_at: datetime
    ended_at: datetime


Said.model_rebuild()


class AgentState(StrEnum):
    """Where an agent of the crew is."""

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
"""From each state, those that may follow."""


def step(agent: str, old: AgentState, new: AgentState) -> AgentState:
    """`new`, if it may follow; ForbiddenTransition if not."""
    if new not in TRANSITIONS[old]:
        raise ForbiddenTransition(f"agent {agent}", old.value, new.value, [one.value for one in TRANSITIONS[old]])
    return new
