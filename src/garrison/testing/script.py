"""Who says what: the rules by which a request finds its turn, in a Python callable or in conversations from a file.

Of the conversations the first whose `when` fits the request answers, with the turn at the request's `step`.
The one thing remembered is how often each fault has happened, for every conversation (of a callable: prompt), key and
step by itself. Whatever cannot be answered raises `ScriptError`: the server sends its words back as HTTP 400, so that a
mistake is loud.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from garrison.testing.request import Asked
from garrison.testing.turn import Fault, ScriptError, Turn, say

Player = Callable[[Asked], "Turn | Fault | str"]
"""A script in Python: what it returns is said; a string is text."""
FIELDS = ("prompt", "system", "result", "model", "key", "tool")


@dataclass(frozen=True)
class Answer:
    """What a request is answered, and by which part of the script."""

    turn: Turn
    fault: Fault | None = None
    conversation: str = ""
    step: int = 0


@dataclass(frozen=True)
class Conversation:
    """A list of turns for the requests that fit `when`: field of `FIELDS` → regular expression."""

    name: str
    when: dict[str, str]
    turns: tuple[Turn, ...]
    repeat: bool = False
    """Whether the last turn is said again for ever, however far the request's step is."""

    def fits(self, asked: Asked) -> bool:
        """Whether every expression is found in its field (for `tool`: in the name of one tool)."""
        return all(any(re.search(pattern, text, re.MULTILINE) for text in _field(asked, name))
                   for name, pattern in self.when.items())

    def turn(self, asked: Asked) -> Turn:
        """The turn at the request's step, with `{key}` filled in."""
        step = min(asked.step, len(self.turns) - 1) if self.repeat else asked.step
        if step >= len(self.turns):
            raise ScriptError(f"conversation {self.name!r} has {len(self.turns)} turns, "
                              f"but the model is asked for number {asked.step + 1}")
        turn = self.turns[step]
        return replace(turn, blocks=tuple(_filled(block, asked.key) for block in turn.blocks))


class Script:
    """A script that is being played: a callable, or conversations with what has happened so far."""

    def __init__(self, player: Player | None = None, conversations: tuple[Conversation, ...] = (),
                 key: str = "") -> None:
        self._player, self._conversations, self._key = player, conversations, key
        self._happened: Counter[tuple[str, str, int, int]] = Counter()
        self._lock = threading.Lock()

    def answer(self, number: int, body: dict[str, Any]) -> Answer:
        """What the request is answered; ScriptError where the script has no answer."""
        asked = Asked(number, body)
        asked = Asked(number, body, _key(self._key, asked))
        if self._player is not None:
            return self._said(self._player(asked), asked)
        for conversation in self._conversations:
            if conversation.fits(asked):
                return self._turn(conversation.name, conversation.turn(asked), asked)
        raise ScriptError(f"no conversation fits; prompt: {asked.prompt[:200]!r}, key: {asked.key!r}, "
                          f"model: {asked.model!r}")

    def _said(self, said: Turn | Fault | str, asked: Asked) -> Answer:
        if isinstance(said, Fault):
            return Answer(say("after the fault"), said, step=asked.step)
        if isinstance(said, str):
            said = say(said)
        if not isinstance(said, Turn):
            raise ScriptError(f"the script returned {said!r} instead of a Turn, a Fault or a string")
        return self._turn(f"prompt {asked.prompt}", said, asked)

    def _turn(self, counted: str, turn: Turn, asked: Asked) -> Answer:
        name = counted if self._player is None else ""
        with self._lock:
            for index, fault in enumerate(turn.faults):
                place = (counted, asked.key, asked.step, index)
                if self._happened[place] < fault.times:
                    self._happened[place] += 1
                    return Answer(turn, fault, name, asked.step)
        return Answer(turn, None, name, asked.step)


def _key(pattern: str, asked: Asked) -> str:
    if not pattern:
        return ""
    for words in (asked.system, *asked.prompts):
        if found := re.search(pattern, words, re.MULTILINE):
            return found.group(1) if found.groups() else found.group()
    return ""


def _field(asked: Asked, name: str) -> tuple[str, ...]:
    return asked.tools if name == "tool" else (str(getattr(asked, name)),)


def _filled(value: Any, key: str) -> Any:
    if isinstance(value, str):
        return value.replace("{key}", key)
    if isinstance(value, dict):
        return {name: _filled(item, key) for name, item in value.items()}
    return [_filled(item, key) for item in value] if isinstance(value, list) else value
