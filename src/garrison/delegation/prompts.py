"""What the butler is asked to decide, and what is made of its words. Pure.

The butler answers with one JSON object, which is checked against its model and against the crew: an intent that nobody
of the crew has is an error that the butler is told of once. What still cannot be read means that it answers itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from garrison.agents.json_io import extract_object
from garrison.delegation.models import AgentResult, Classification, DelegationContext, Turn
from garrison.delegation.specialists import Crew

_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_FENCED = re.compile(r"```json\s*(\{.*?\})\s*```\s*\Z", re.DOTALL)
REMEMBERED = 20
"""Turns of the conversation that the butler is shown while it classifies; its own session has the rest."""


class Unreadable(Exception):
    """The butler's classification cannot be read; the text says what is wrong with it."""


def question(crew: Crew, message: str, history: Sequence[Turn]) -> str:
    """What the butler is asked first of each message."""
    who = "\n".join(f"- {one.intent}: {one.name}, {one.about or one.name}" for one in crew.specialists.values())
    said = "\n".join(f"{turn.role}: {turn.content}" for turn in history[-REMEMBERED:]) or "(nothing yet)"
    return (f"CLASSIFY. Which specialists should work on the person's message before you answer it?\n\n{who}\n\n"
            'Answer with one JSON object and nothing else: {"delegations": [{"intent": "...", "reasoning": "why, and '
            'what exactly is to be found or done", "relevantEntities": ["..."], "timeConstraints": "their words, or '
            'leave it out"}], "reasoning": "...", "confidence": 0.0 to 1.0}. An empty list means that you answer '
            f"yourself.\n\n<conversation>\n{said}\n</conversation>\n\n<message>\n{message}\n</message>")


def again(error: str) -> str:
    """What the butler is told when its classification could not be read."""
    return f"CLASSIFY. That could not be read: {error}\nAnswer once more, with the JSON object alone."


def read(said: str, crew: Crew) -> Classification:
    """The classification in the butler's words; Unreadable if there is none."""
    given = extract_object(said, "delegations") or extract_object(said)
    found = _OBJECT.search(said)
    if found is None:
        raise Unreadable("there is no JSON object in it")
    try:
        body = Classification.model_validate_json(found.group(0) if given is None else json.dumps(_without_null(given)))
    except ValidationError as error:
        first = error.errors()[0]
        raise Unreadable(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error
    for order in body.delegations:
        if crew.of_intent(order.intent) is None:
            known = ", ".join(one.intent for one in crew.specialists.values())
            raise Unreadable(f"nobody has the intent {order.intent!r:.60}; there are {known}")
    once = {order.intent: order for order in reversed(body.delegations)}
    return body.model_copy(update={"delegations": tuple(once[intent] for intent in
                                                        dict.fromkeys(order.intent for order in body.delegations))})


def _without_null(given: Any) -> Any:
    """What is null is what was left out."""
    if isinstance(given, dict):
        return {key: _without_null(value) for key, value in given.items() if value is not None}
    return [_without_null(one) for one in given] if isinstance(given, list) else given


def handed_over(context: DelegationContext) -> str:
    """What a specialist is told."""
    return ("You are asked by the butler to help with a person's message. Everything known stands in this object; the "
            "conversation in it is background, the message is the task.\n\n"
            f"```json\n{json.dumps(context.as_json(), ensure_ascii=False, indent=1)}\n```\n\n"
            "Answer in a few sentences for the butler. If there is data worth passing on, end with one fenced json "
            'object: {"summary": "...", "data": {...}, "suggestedFollowUp": "..."}.')


def result_of(agent: str, said: str, tools: Sequence[str], tokens: int | None) -> AgentResult:
    """A specialist's words as a result: the object at their end if there is a sound one, else the words alone."""
    found = _FENCED.search(said)
    body: dict[str, object] = {}
    if found is not None:
        try:
            loaded = json.loads(found.group(1))
        except ValueError:
            loaded = {}
        body = {key: loaded[key] for key in ("summary", "data", "suggestedFollowUp") if isinstance(loaded, dict)
                and loaded.get(key)}
    words = said[:found.start()].strip() if found is not None and body else said.strip()
    try:
        return AgentResult.model_validate({"summary": words, **body, "agentType": agent, "success": True,
                                           "toolsUsed": list(tools), "tokensUsed": tokens})
    except ValidationError:
        return AgentResult(agent_type=agent, success=True, summary=said.strip(), tools_used=tuple(tools),
                           tokens_used=tokens)


def to_answer(message: str, results: Sequence[AgentResult]) -> str:
    """What the butler is asked at the end."""
    if not results:
        return f"ANSWER the person's message.\n\n<message>\n{message}\n</message>"
    body = json.dumps([one.as_json() for one in results], ensure_ascii=False, indent=1)
    return ("ANSWER the person's message from what your specialists found. Say so plainly where one failed, and what "
            f"that leaves open; add nothing that is not there.\n\n```json\n{body}\n```\n\n"
            f"<message>\n{message}\n</message>")
