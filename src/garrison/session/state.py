"""A session's state, what of it a run begins with, and what a run's end makes of it. Pure.

Keys of a run's context: `session.*` from here and from the session's nodes, `llm.*` from `session.llm_call`,
`graph.*` from the engine. A turn adds exactly two messages, what the person said and what was answered; trust tier
and goals leave a turn as they came, working memory only changes if the graph changed it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from garrison.errors import UsageError

MODES = ("reflection", "goal_pursuit", "plan_execution", "consolidation")
ROLES = ("user", "assistant", "tool", "system")
CONSOLIDATE_EVERY, REFLECT_EVERY = 30, 60
"""Heartbeats between two consolidations of identity, and between two periodic reflections."""
Message = dict[str, Any]
"""`role` and `content`; of a tool's result `tool_call_id` and `name` too."""


@dataclass
class SessionState:
    """Everything a session is between two runs."""

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
        """As JSON's shapes."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Any) -> SessionState:
        """The inverse of `to_data`; UsageError that names what is wrong."""
        try:
            state = cls(**data)
        except TypeError as error:
            raise UsageError(f"this is no session's state: {error}") from error
        kinds = {"session_id": str, "agent_id": str, "trust_tier": str, "turn_count": int, "messages": list,
                 "working_memory": dict, "goals": list, "cognitive_mode": str, "heartbeat_count": int}
        for name, kind in kinds.items():
            if not isinstance(getattr(state, name), kind):
                raise UsageError(f"this is no session's state: {name} is no {kind.__name__}")
        if any(message.get("role") not in ROLES for message in state.messages):
            raise UsageError(f"this is no session's state: a message's role is one of {', '.join(ROLES)}")
        return state


def plan_due(goals: list[dict[str, Any]], now: datetime) -> bool:
    """Whether a step of a goal's plan is not done and due: `plan: [{done, due}]`, `due` ISO 8601 or absent."""
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
            "session.cognitive_mode": state.cognitive_mode, "session.plan_due": plan_due(state.goals, now)}


def build_turn_values(state: SessionState, text: Any, now: datetime) -> dict[str, Any]:
    """What a turn begins with: the state, and what the person said."""
    values = _common(state, now)
    content = text if isinstance(text, str) else copy.deepcopy(text)
    values["session.messages"] = [*values["session.messages"], {"role": "user", "content": content}]
    return {**values, "session.input": content, "session.is_heartbeat": False}


def apply_turn_result(state: SessionState, text: Any, context: Mapping[str, Any]) -> SessionState:
    """The state after a turn; the old one is left as it was."""
    new = copy.deepcopy(state)
    new.turn_count += 1
    new.messages += [{"role": "user", "content": copy.deepcopy(text)},
                     {"role": "assistant", "content": str(context.get("session.response", ""))}]
    _remember(new, context)
    return new


def build_heartbeat_values(state: SessionState, now: datetime, *, initiative: bool) -> dict[str, Any]:
    """What a heartbeat begins with; what is due every so many heartbeats stands in it."""
    count = state.heartbeat_count + 1
    return {**_common(state, now), "session.input": "", "session.is_heartbeat": True,
            "session.initiative": initiative, "session.heartbeat_count": count,
            "session.consolidation_due": count % CONSOLIDATE_EVERY == 0,
            "session.reflection_due": count % REFLECT_EVERY == 0}


def apply_heartbeat_result(state: SessionState, context: Mapping[str, Any]) -> SessionState:
    """The state after a heartbeat: its mode, its goals, its memory; messages and turns are as they were."""
    new = copy.deepcopy(state)
    new.heartbeat_count += 1
    mode = context.get("session.cognitive_mode")
    if mode in MODES:
        new.cognitive_mode = str(mode)
    new.goals = changed_goals(new.goals, context.get("session.goal_updates") or [],
                              context.get("session.new_goals") or [])
    _remember(new, context)
    return new


def _remember(state: SessionState, context: Mapping[str, Any]) -> None:
    memory = context.get("session.working_memory")
    if isinstance(memory, Mapping):
        state.working_memory = copy.deepcopy(dict(memory))


def changed_goals(goals: list[dict[str, Any]], updates: Any, new: Any) -> list[dict[str, Any]]:
    """Goals with updates put over those of the same id, and the new ones added; what is no goal is left out."""
    found = [dict(goal) for goal in goals]
    by_id = {goal.get("id"): goal for goal in found}
    for update in updates if isinstance(updates, list) else []:
        if isinstance(update, Mapping) and update.get("id") in by_id:
            by_id[update["id"]].update(copy.deepcopy(dict(update)))
    for goal in new if isinstance(new, list) else []:
        if isinstance(goal, Mapping) and goal.get("id") not in by_id:
            found.append(copy.deepcopy(dict(goal)))
            by_id[goal.get("id")] = found[-1]
    return found
