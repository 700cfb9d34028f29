"""State of a session, the initial values of a run, and how a run's result changes the state. Pure.

Keys of a run's context: `session.*` from here and from the session's nodes, `llm.*` from `session.llm_call`, `graph.*`
from the engine. A turn adds exactly two messages, the user's and the answer. Trust tier and goals do not change in a
turn; working memory changes only if the graph changed it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any, Required, TypedDict

from garrison.errors import UsageError
from garrison.records.record import from_data
from garrison.tables import Table, as_flag, as_strings, number, setting
from garrison.values import Value, field_names, replace

MODES = ("reflection", "goal_pursuit", "plan_execution", "consolidation")
ROLES = ("user", "assistant", "tool", "system")
CONSOLIDATE_EVERY, REFLECT_EVERY = 30, 60
"""Heartbeats between identity consolidations, and between periodic reflections."""


class ToolCall(TypedDict, total=False):
    """A tool call requested by a model."""

    id: str
    name: str
    arguments: Mapping[str, object]


class Message(TypedDict, total=False):
    """A message of the conversation; one with a tool's result has the id of its call and the tool's name."""

    role: Required[str]
    content: object
    tool_calls: list[ToolCall]
    tool_call_id: str
    name: str


@dataclass
class SessionState:
    """Everything that a session keeps between two runs."""

    session_id: str
    agent_id: str
    trust_tier: str = "established"
    turn_count: int = 0
    messages: list[Message] = field(default_factory=list)
    working_memory: dict[str, object] = field(default_factory=dict)
    goals: list[dict[str, object]] = field(default_factory=list)
    """Each has an `id`, and fields of its owner."""
    cognitive_mode: str = "reflection"
    heartbeat_count: int = 0

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> SessionState:
        """Return the state in JSON data; UsageError names what is wrong."""
        odd = data.keys() - {*field_names(cls)}
        if odd:
            raise UsageError(f"not the state of a session: it has no field {min(odd)!r:.60}")
        try:
            state = from_data(cls, data)
        except ValueError as error:
            raise UsageError(f"not the state of a session: {error}") from error
        if any(message["role"] not in ROLES for message in state.messages):
            raise UsageError(f"not the state of a session: a message's role is one of {', '.join(ROLES)}")
        return replace(state, messages=[*data.get("messages", ())])  # with further fields of their writer


def is_plan_due(goals: Sequence[Mapping[str, object]], now: datetime) -> bool:
    """Return whether a step of a goal's plan is due and not done: `plan: [{done, due}]`, `due` ISO 8601 or absent."""
    plans = [plan for goal in goals if isinstance(plan := goal.get("plan"), list)]
    steps = [step for plan in plans for step in plan if isinstance(step, Mapping)]
    return any(not step.get("done") and _is_past(step.get("due"), now) for step in steps)


def _is_past(due: object, now: datetime) -> bool:
    if not due:
        return True
    try:
        moment = datetime.fromisoformat(str(due))
    except ValueError:
        return True
    return (moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)) <= now


def _common(state: SessionState, now: datetime) -> dict[str, object]:
    """Return the initial values of a run of either kind; the run copies them."""
    return {"session.id": state.session_id, "session.agent_id": state.agent_id,
            "session.trust_tier": state.trust_tier, "session.turn_count": state.turn_count,
            "session.messages": state.messages, "session.goals": state.goals,
            "session.working_memory": state.working_memory,
            "session.cognitive_mode": state.cognitive_mode, "session.plan_due": is_plan_due(state.goals, now)}


def build_turn_values(state: SessionState, text: object, now: datetime) -> dict[str, object]:
    """Return the initial context of a turn: the state and the user's message."""
    return {**_common(state, now), "session.messages": [*state.messages, {"role": "user", "content": text}],
            "session.input": text, "session.is_heartbeat": False}


def apply_turn_result(state: SessionState, text: object, context: Mapping[str, object]) -> SessionState:
    """Return the state after a turn; the given one is not changed."""
    answer = str(context.get("session.response", ""))
    added: list[Message] = [{"role": "user", "content": copy.deepcopy(text)}, {"role": "assistant", "content": answer}]
    return replace(state, turn_count=state.turn_count + 1, messages=[*state.messages, *added],
                   working_memory=_memory_after(state, context))


def build_heartbeat_values(state: SessionState, now: datetime, *, initiative: bool) -> dict[str, object]:
    """Return the initial context of a heartbeat, with the periodic tasks that are due."""
    count = state.heartbeat_count + 1
    return {**_common(state, now), "session.input": "", "session.is_heartbeat": True,
            "session.initiative": initiative, "session.heartbeat_count": count,
            "session.consolidation_due": count % CONSOLIDATE_EVERY == 0,
            "session.reflection_due": count % REFLECT_EVERY == 0}


def apply_heartbeat_result(state: SessionState, context: Mapping[str, object]) -> SessionState:
    """Return the state after a heartbeat: mode, goals and memory may change, messages and turns do not."""
    mode = context.get("session.cognitive_mode")
    goals = apply_goal_changes(state.goals, context.get("session.goal_updates"), context.get("session.new_goals"))
    return replace(state, heartbeat_count=state.heartbeat_count + 1, goals=goals,
                   cognitive_mode=str(mode) if mode in MODES else state.cognitive_mode,
                   working_memory=_memory_after(state, context))


def add_notes(memory: Mapping[str, object], notes: Sequence[object], most: int) -> dict[str, object]:
    """Return a working memory with notes added, at most so many; a repeated note is kept once, as the latest."""
    before = memory.get("notes")
    kept = [note for note in before if note not in notes] if isinstance(before, list) else []
    new = [note for at, note in enumerate(notes) if note not in notes[:at]]
    return {**memory, "notes": [*kept, *new][-most:]}


def _memory_after(state: SessionState, context: Mapping[str, object]) -> dict[str, object]:
    memory = context.get("session.working_memory")
    return copy.deepcopy(dict(memory)) if isinstance(memory, Mapping) else state.working_memory


def apply_goal_changes(goals: Sequence[Mapping[str, object]], updates: object, new: object) -> list[dict[str, object]]:
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


# ---- trust -----------------------------------------------------------------------------------------------------------

# Trust tiers: rights of a session, from the shipped file or the caller's. Pure except for reading the file.


class Tier(Value):
    """One trust tier; see trust.toml for the fields."""

    name: str
    tool_dispatch: bool = setting(False, as_flag)
    tools: tuple[str, ...] = setting((), as_strings)
    heartbeat: float = setting(0.0, number("seconds", 0))
    commands: bool = setting(False, as_flag)

    def allows(self, tool: str) -> bool:
        return self.tool_dispatch and ("*" in self.tools or tool in self.tools)


def read_tiers(path: Path | None = None) -> dict[str, Tier]:
    """Return the tiers of a file, by default the shipped ones; UsageError if it is invalid."""
    shipped = resources.files("garrison.session").joinpath("trust.toml")
    file = Table.parse(path or "trust.toml", (path or shipped).read_bytes())
    return {name: file.below(name).read(Tier, Tier(name)) for name in file.values}


def require_working_tier(name: str, tiers: dict[str, Tier]) -> Tier:
    """Return the tier of that name for a session with a task; UsageError for one that could not report on it."""
    tier = find_tier(name, tiers)
    if not tier.tool_dispatch:
        usable = ", ".join(other.name for other in tiers.values() if other.tool_dispatch)
        raise UsageError(f"a session of trust tier {name} has no tools and could not report; use one of {usable}")
    return tier


def check_working_tier(name: str) -> None:
    """Refuse a session with a task whose trust tier could not report on it, before a run starts."""
    require_working_tier(name, read_tiers())


def find_tier(name: str, tiers: dict[str, Tier]) -> Tier:
    """Return the tier of that name; UsageError with the existing names."""
    if name not in tiers:
        raise UsageError(f"no trust tier {name!r:.60}; available: {', '.join(tiers)}")
    return tiers[name]
