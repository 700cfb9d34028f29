"""Prompts of a planner, and the schema of its proposal. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from garrison.agents.quotation import quote

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from garrison.plan.store import PlanAnswer

_TEXT = {"type": "string"}
_TASK = {"type": "object", "required": ["name", "title", "prompt"], "properties": {
    "name": {**_TEXT, "description": "Short, in lower case with underscores: fix_parser."},
    "title": {**_TEXT, "description": "One line for users."},
    "prompt": {**_TEXT, "description": "The whole task, for an agent that sees the repository but not this "
                                       "conversation."},
    "needs": {"type": "array", "description": "Tasks whose landed work this one uses.", "items": {
        "type": "object", "required": ["task", "what"], "properties": {
            "task": _TEXT, "what": {**_TEXT, "description": "What it uses of that task: a function, a file, a "
                                                            "format."},
        }}},
    "files": {"type": "array", "items": _TEXT, "description": "Paths, or patterns, that it is expected to change."},
    "acceptance": {**_TEXT, "description": "How to see that it is done, in words."},
    "command": {**_TEXT, "description": "Command that accepts the work; run only if the user's settings list it."},
    "agent": {**_TEXT, "description": "Most suitable agent; used only if the user's settings list it."},
    "budget": {"type": "number", "description": "Maximum cost in US dollars."},
    "reason": {**_TEXT, "description": "Why this is a separate task."},
    "replaces": {**_TEXT, "description": "Only when repairing a plan: the failed task that it replaces."}}}
SCHEMA = json.dumps({"type": "object", "properties": {
    "tasks": {"type": "array", "items": _TASK},
    "questions": {"type": "array", "items": _TEXT, "description": "Questions that only the user can decide, and that "
                                                                  "are costly to get wrong. Usually none."},
    "check": {**_TEXT, "description": "How to check, at the end, that the goal is reached."}}})
_REQUEST = """\
You plan work for a crew of coding agents, and do none of it: change nothing. The repository is here, at the commit from
which they will start. Read what you need of it.

{goal}

Divide it into tasks, each for one agent in its own branch. Independent tasks run at the same time, and each is merged,
tested and landed separately. So:

- A task waits for another only if it uses that task's result, and says what it uses. Never add a dependency just for
  order.
- Two tasks that change the same file wait for each other, or are one task.
- A goal that one agent can do in one go is one task. Do not invent work that the goal does not ask for.
- Each prompt is self-contained: what to do, where, and how to see that it is done. Name files and functions that you
  have seen.
- The goal itself is checked at the end; that is not a task of yours.

Submit the plan as one JSON object of the schema below: as `output` of the tool `report_result` if it takes one; else in
the file `{file}` if you can write it; else at the end of your last message.

{schema}"""
_MEND = """\
A plan for the goal above was carried out, and part of it failed. What has landed is in the repository and stays. Plan
replacements for the failed tasks, and nothing else: each new task names in `replaces` the failed task that it replaces,
and each failed task is replaced by at least one. New tasks may depend on landed ones. Do not reuse existing names.

{landed}

{failed}"""


def goal_of(goal: str) -> str:
    """Return the part of a request that states the goal."""
    return f"The goal, in the user's words:\n\n{quote(goal, len(goal) * 2 + 100, wraps=True)}"


def mending(goal: str, titles: Iterable[tuple[str, str]], failures: Iterable[tuple[str, str, str]]) -> str:
    """Return the request to a planner after a failure.

    Args:
        titles: name and title of each task that has landed.
        failures: name, title and reason of each that failed.
    """
    landed = "\n".join(f"- {name}: {title}" for name, title in titles) or "- nothing"
    failed = "\n".join(f"- {name}: {title}\n{quote(reason, 4000)}" for name, title, reason in failures)
    return f"{goal_of(goal)}\n\n" + _MEND.format(landed=f"Landed:\n{landed}", failed=f"Failed:\n{failed}")


def request(asked: str, answers: Sequence[PlanAnswer], file: str) -> str:
    """Return the prompt of an attempt.

    Args:
        asked: the goal, or the plan to repair.
        answers: the user's answers to questions.
        file: path at which the agent may leave the plan.
    """
    said = "\n".join(f"- {each.question}\n  {each.answer}" for each in answers)
    whole = f"{asked}\n\nThe user has answered:\n{said}" if said else asked
    return _REQUEST.format(goal=whole, file=file, schema=SCHEMA)


def go_back(reasons: Collection[str]) -> str:
    """Return the message that sends a proposal back."""
    return ("The plan that you submitted cannot be used:\n" + "\n".join(f"- {each}" for each in reasons)
            + "\n\nSubmit the whole plan again, with that corrected.")
