"""Context of a delegation: entities, times, preferences, and the history that fits. Pure.

A context that is too large is cut to 4,000 tokens: first whole entries of the history, the oldest first, then
preferences, the least certain first. Message, entities and times are never cut; the context records how many entries
were left out. A token is counted as four characters of the JSON sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from garrison.delegation.models import DelegationContext, DelegationRequest, Preference, Turn
from garrison.delegation.time_phrases import intervals

MAX_TOKENS = 4_000
_QUOTED = re.compile(r"[\"“'`]([^\"“”'`\n]{2,80})[\"”'`]")
_PATH = re.compile(r"(?<![\w/.-])(?:[\w.-]+/)+[\w.-]+"
                   r"|(?<![\w-])[\w-]+\.(?:py|dot|toml|md|json|ya?ml|rs|go|ts|js|c|h|sh)\b")
_HASH = re.compile(r"\b[0-9a-f]{7,40}\b")


def tokens(context: DelegationContext) -> int:
    """Return about how many tokens the context costs in a prompt."""
    return len(context.model_dump_json(by_alias=True, exclude_none=True)) // 4 + 1


def entities(message: str, known: Iterable[str] = ()) -> tuple[str, ...]:
    """Return what the message names: quoted words, paths, commits, and the `known` names that occur in it."""
    names = [match.group(1) for match in _QUOTED.finditer(message)]
    names += [match.group(0) for match in _PATH.finditer(message)]
    names += [match.group(0) for match in _HASH.finditer(message) if not match.group(0).isdigit()]
    words = set(re.findall(r"[\w@.-]+", message))
    names += [name for name in known if name in words]
    return tuple(dict.fromkeys(names))


def build(target: str, request: DelegationRequest, message: str, history: Sequence[Turn], now: datetime, *,
          preferences: Sequence[Preference] = (), known: Iterable[str] = (),
          limit: int = MAX_TOKENS) -> DelegationContext:
    """Return the context of one delegation, cut to `limit` tokens."""
    phrase = request.time_constraints
    times = intervals(phrase, now) if phrase else intervals(message, now)
    whole = DelegationContext(
        target_agent=target, original_user_message=message, delegation_reasoning=request.reasoning,
        relevant_entities=tuple(dict.fromkeys([*request.relevant_entities, *entities(message, known)])),
        time_constraints=phrase or ("; ".join(interval.words for interval in times) or None), intervals=times,
        user_preferences=tuple(sorted(preferences, key=lambda preference: -preference.confidence)),
        conversation_history=tuple(history))
    return cut(whole, limit)


def cut(context: DelegationContext, limit: int = MAX_TOKENS) -> DelegationContext:
    """Return the context with as much of its history, then of its preferences, as fits."""
    total = len(context.conversation_history)
    low, high = 0, total
    while low < high:  # find the smallest number of oldest entries to leave out
        middle = (low + high) // 2
        if tokens(_without(context, middle)) <= limit:
            high = middle
        else:
            low = middle + 1
    smaller = _without(context, low)
    while smaller.user_preferences and tokens(smaller) > limit:
        smaller = smaller.model_copy(update={"user_preferences": smaller.user_preferences[:-1]})
    return smaller


def _without(context: DelegationContext, oldest: int) -> DelegationContext:
    return context.model_copy(update={"conversation_history": context.conversation_history[oldest:],
                                      "history_cut": oldest})
