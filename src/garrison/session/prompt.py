"""Messages for a session's model: the conversation, and what the session knows besides it. Pure.

The knowledge (goals, working memory with its notes, results of background checks) is one message of the role `system`
before the conversation. Of earlier turns the latest messages are sent; older ones come back as memories, if they fit
the subject. The turn in progress is sent whole, since nothing else holds the results of its tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

KEPT_MESSAGES = 40
"""Messages of earlier turns that are sent."""
MAX_SECTION = 8_000
"""Characters of one part of the knowledge; the beginning of a longer one is left out."""
_TASKS: Mapping[str, str] = {
    "goal_pursuit": "Choose the goal that matters most now, and take the next step towards it.",
    "plan_execution": "Carry out the step of a goal's plan that is due, and mark it as done.",
    "reflection": "Think about what has happened and what follows from it; note what is worth remembering.",
    "consolidation": "Bring what you know into order; note what is worth keeping.",
}
"""Mode of a heartbeat → its task."""
_ANSWER = ('{"actions": [], "goal_updates": [{"id": "…", "progress": 0.5}], '
           '"new_goals": [{"id": "…", "description": "…"}], "memory_notes": ["…"]}')


def build_messages(context: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a run by its context."""
    messages = list(context.get("session.messages") or [])
    now = _current_turn(messages, is_heartbeat=bool(context.get("session.is_heartbeat")))
    earlier = messages[max(0, now - KEPT_MESSAGES):now]
    left_out = now - len(earlier)
    told = describe(context)
    if left_out:
        told = f"{told}\n\n{left_out} earlier messages of the conversation are left out.".strip()
    return [*([{"role": "system", "content": told}] if told else []), *earlier, *messages[now:]]


def _current_turn(messages: Sequence[Mapping[str, Any]], *, is_heartbeat: bool) -> int:
    if is_heartbeat:
        return len(messages)
    return max((index for index, message in enumerate(messages) if message.get("role") == "user"), default=0)


def describe(context: Mapping[str, Any]) -> str:
    """Return goals, working memory and results of background checks as text; '' if there are none."""
    memory = dict(context.get("session.working_memory") or {})
    notes = memory.pop("notes", None) or []
    parts = (("Your goals", [_describe_goal(goal) for goal in context.get("session.goals") or []]),
             ("Your notes", [_line(note) for note in (notes if isinstance(notes, list) else [notes])]),
             ("Your working memory", [f"{key}: {_line(value)}" for key, value in memory.items()]),
             ("Results of background checks", [f"{key}: {_line(value)}" for key, value in (
                 context.get("session.background_check_results") or {}).items()]))
    return "\n\n".join(_section(title, lines) for title, lines in parts if lines)


def _section(title: str, lines: Sequence[str]) -> str:
    body = "\n".join(f"- {line}" for line in lines)
    return f"{title}:\n{body if len(body) <= MAX_SECTION else '… ' + body[-MAX_SECTION:]}"


def _describe_goal(goal: Any) -> str:
    if not isinstance(goal, Mapping):
        return _line(goal)
    rest = {key: value for key, value in goal.items() if key not in ("id", "description")}
    words = [str(goal.get("id", "")), str(goal.get("description", ""))]
    text = ": ".join(word for word in words if word)
    return f"{text} {_line(rest)}" if rest else text


def _line(value: Any) -> str:
    return " ".join(value.split()) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def heartbeat_task(mode: str) -> dict[str, Any]:
    """Return the message that ends the prompt of a heartbeat, in which nobody has written."""
    return {"role": "system", "content": (
        f"This is a heartbeat: nobody has written to you. {_TASKS.get(mode, '')} Answer with one JSON object, with "
        f"empty lists for what you leave out: {_ANSWER}")}


def recall_query(context: Mapping[str, Any]) -> str:
    """Return what memories should be about: the person's message, in a heartbeat the goals."""
    text = context.get("session.input", "")
    if text:
        return text if isinstance(text, str) else _line(text)
    return "\n".join(_describe_goal(goal) for goal in context.get("session.goals") or [])
