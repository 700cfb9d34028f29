"""State of a session, the values a run starts with, and how a run's result changes the state. Pure.

Keys of a run's context: `session.*` from here and from the session's nodes, `llm.*` from `session.llm_call`, `graph.*`
from the engine. A turn adds exactly two messages, the person's and the answer. Trust tier and goals do not change in a
turn; working memory changes only if the graph changed it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from garrison.errors import UsageError
from garrison.records.record import from_data
from garrison.values import asdict, field_names

MODES = ("reflection", "goal_pursuit", "plan_execution", "consolidation")
ROLES = ("user", "assistant", "tool", "system")
CONSOLIDATE_EVERY, REFLECT_EVERY = 30, 60
"""Heartbeats between identity consolidations, and between periodic reflections."""
Message = dict[str, Any]
"""`role` and `content`; for a tool's result also `tool_call_id` and `name`."""


@dataclass
class SessionState:
    """Everything that a session keeps between two runs."""

    session_id: str
    agent_id: str
    trust_tier: str = "established"
    turn_count: int = 0
    messages: list[Message] = field(default_factory=list)
    working_memory: dict[str, Any] = field(default_factory=dict)
    goals: list[dict[str, Any]] = field(default_factory=list)
    cognitive_mode: str = "reflection"
    heartbeat_count: int = 0

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Any) -> SessionState:
        """Return the state that `to_data` wrote; UsageError names what is wrong."""
        odd = data.keys() - {*field_names(cls)} if isinstance(data, dict) else {}
        if odd:
            raise UsageError(f"not the state of a session: it has no field {min(odd)!r:.60}")
        try:
            state = from_data(cls, data)
        except ValueError as error:
            raise UsageError(f"not the state of a session: {error}") from error
        if any(message.get("role") not in ROLES for message in state.messages):
            raise UsageError(f"not the state of a session: a message's role is one of {', '.join(ROLES)}")
        return state


def is_plan_due(goals: list[dict[str, Any]], now: datetime) -> bool:
    """Return whether a step of a goal's plan is due and not done: `plan: [{done, due}]`, `due` ISO 8601 or absent."""
    steps = [step for goal in goals for step in goal.get("plan") or [] if isinstance(step, Mapping)]
    return any(not step.get("done") and _is_past(step.get("due"), now) for step in steps)


def _is_past(due: Any, now: datetime) -> bool:
    if not due:
        return True
    try:
        moment = datetime.fromisoformat(str(due))
    except ValueError:
        return True
    return (moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)) <= now


def _common(state: SessionState, now: datetime) -> dict[str, Any]:
    return {"session.id": state.session_id, "session.agent_id": state.agent_id,
            "session.trust_tier": state.trust_tier, "session.turn_count": state.turn_count,
            "session.messages": copy.deepcopy(state.messages), "session.goals": copy.deepcopy(state.goals),
            "session.working_memory": copy.deepcopy(state.working_memory),
            "session.cognitive_mode": state.cognitive_mode, "session.plan_due": is_plan_due(state.goals, now)}


def build_turn_values(state: SessionState, text: Any, now: datetime) -> dict[str, Any]:
    """Return the context a turn starts with: the state and the person's message."""
    values = _common(state, now)
    content = text if isinstance(text, str) else copy.deepcopy(text)
    values["session.messages"] = [*values["session.messages"], {"role": "user", "content": content}]
    return {**values, "session.input": content, "session.is_heartbeat": False}


def apply_turn_result(state: SessionState, text: Any, context: Mapping[str, Any]) -> SessionState:
    """Return the state after a turn; the given one is not changed."""
    new = copy.deepcopy(state)
    new.turn_count += 1
    new.messages += [{"role": "user", "content": copy.deepcopy(text)},
                     {"role": "assistant", "content": str(context.get("session.response", ""))}]
    _apply_memory(new, context)
    return new


def build_heartbeat_values(state: SessionState, now: datetime, *, initiative: bool) -> dict[str, Any]:
    """Return the context a heartbeat starts with, and which periodic tasks are due."""
    count = state.heartbeat_count + 1
    return {**_common(state, now), "session.input": "", "session.is_heartbeat": True,
            "session.initiative": initiative, "session.heartbeat_count": count,
            "session.consolidation_due": count % CONSOLIDATE_EVERY == 0,
            "session.reflection_due": count % REFLECT_EVERY == 0}


def apply_heartbeat_result(state: SessionState, context: Mapping[str, Any]) -> SessionState:
    """Return the state after a heartbeat: mode, goals and memory may change, messages and turns do not."""
    new = copy.deepcopy(state)
    new.heartbeat_count += 1
    mode = context.get("session.cognitive_mode")
    if mode in MODES:
        new.cognitive_mode = str(mode)
    new.goals = apply_goal_changes(new.goals, context.get("session.goal_updates") or [],
                                   context.get("session.new_goals") or [])
    _apply_memory(new, context)
    return new


def _apply_memory(state: SessionState, context: Mapping[str, Any]) -> None:
    memory = context.get("session.working_memory")
    if isinstance(memory, Mapping):
        state.working_memory = copy.deepcopy(dict(memory))


def apply_goal_changes(goals: list[dict[str, Any]], updates: Any, new: Any) -> list[dict[str, Any]]:
    """Return the goals with updates merged by id and new ones added; entries that are not goals are ignored."""
    result = [dict(goal) for goal in goals]
    by_id = {goal.get("id"): goal for goal in result}
    for update in updates if isinstance(updates, list) else []:
        if isinstance(update, Mapping) and update.get("id") in by_id:
            by_id[update["id"]].update(copy.deepcopy(dict(update)))
    for goal in new if isinstance(new, list) else []:
        if isinstance(goal, Mapping) and goal.get("id") not in by_id:
            result.append(copy.deepcopy(dict(goal)))
            by_id[goal.get("id")] = result[-1]
    return result
