"""The states of an agent of the crew, as a table. Pure.

    idle -> initializing -> loading_context -> processing -> completing -> idle
    processing <-> waiting_for_tool | waiting_for_user | delegating          (delegating: the butler alone)
    any but idle -> error -> idle | initializing
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from garrison.errors import ForbiddenTransition


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
