"""What goes from the butler to a specialist and back, checked at both ends. Pure.

Field names are those of the seed in Python's spelling; in JSON both spellings are read and the seed's is written
(`relevantEntities`). Agent names are a crew's own, so they are text here and checked against the crew.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

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
