<<<<<<< HEAD
"""Who says what: the rules by which a request finds its turn, from a Python callable or a file.

A file holds `conversations`: the first whose `when` fits the request answers, with the turn at the request's `step`.
The one thing remembered is how often each fault has happened, for every conversation, key and step by itself. Whatever
cannot be answered raises `ScriptError`: the server sends its words back as HTTP 400, so that a mistake is loud.
=======
"""Who says what: the rules by which a request finds its turn, in a Python callable or in conversations from a file.

Of the conversations the first whose `when` fits the request answers, with the turn at the request's `step`.
The one thing remembered is how often each fault has happened, for every conversation (of a callable: prompt), key and
step by itself. Whatever cannot be answered raises `ScriptError`: the server sends its words back as HTTP 400, so that a
mistake is loud.
>>>>>>> d118251deee2e6697e23af0396445a70523a9bba
"""

from __future__ import annotations

<<<<<<< HEAD
import json
import re
import runpy
=======
import re
>>>>>>> d118251deee2e6697e23af0396445a70523a9bba
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
<<<<<<< HEAD
from pathlib import Path
from typing import Any

import yaml

from garrison.testing.asked import Asked
from garrison.testing.turn import Fault, ScriptError, Turn, read_turn, say
=======
from typing import Any

from garrison.testing.asked import Asked
from garrison.testing.turn import Fault, ScriptError, Turn, say
>>>>>>> d118251deee2e6697e23af0396445a70523a9bba

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
<<<<<<< HEAD
=======
    repeat: bool = False
    """Whether the last turn is said again for ever, however far the request's step is."""
>>>>>>> d118251deee2e6697e23af0396445a70523a9bba

    def fits(self, asked: Asked) -> bool:
        """Whether every expression is found in its field (for `tool`: in the name of one tool)."""
        return all(any(re.search(pattern, text, re.MULTILINE) for text in _field(asked, name))
                   for name, pattern in self.when.items())

    def turn(self, asked: Asked) -> Turn:
        """The turn at the request's step, with `{key}` filled in."""
<<<<<<< HEAD
        if asked.step >= len(self.turns):
            raise ScriptError(f"conversation {self.name!r} has {len(self.turns)} turns, "
                              f"but the model is asked for number {asked.step + 1}")
        turn = self.turns[asked.step]
=======
        step = min(asked.step, len(self.turns) - 1) if self.repeat else asked.step
        if step >= len(self.turns):
            raise ScriptError(f"conversation {self.name!r} has {len(self.turns)} turns, "
                              f"but the model is asked for number {asked.step + 1}")
        turn = self.turns[step]
>>>>>>> d118251deee2e6697e23af0396445a70523a9bba
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
<<<<<<< HEAD
        return self._turn("", said, asked)

    def _turn(self, name: str, turn: Turn, asked: Asked) -> Answer:
        with self._lock:
            for index, fault in enumerate(turn.faults):
                place = (name, asked.key, asked.step, index)
=======
        return self._turn(f"prompt {asked.prompt}", said, asked)

    def _turn(self, counted: str, turn: Turn, asked: Asked) -> Answer:
        name = counted if self._player is None else ""
        with self._lock:
            for index, fault in enumerate(turn.faults):
                place = (counted, asked.key, asked.step, index)
>>>>>>> d118251deee2e6697e23af0396445a70523a9bba
                if self._happened[place] < fault.times:
                    self._happened[place] += 1
                    return Answer(turn, fault, name, asked.step)
        return Answer(turn, None, name, asked.step)


<<<<<<< HEAD
def load(path: Path) -> Script:
    """The script in a file: `.py` defines `answer(asked)`, the others are YAML or JSON. ScriptError says what is wrong."""
    if not path.is_file():
        raise ScriptError(f"{path}: no such script")
    if path.suffix == ".py":
        found = runpy.run_path(str(path)).get("answer")
        if not callable(found):
            raise ScriptError(f"{path}: a script in Python defines answer(asked)")
        return Script(found)
    try:
        given = json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())
    except (yaml.YAMLError, ValueError) as error:
        raise ScriptError(f"{path}: {' '.join(str(error).split())}") from error
    return read(given, str(path))


def read(given: Any, where: str = "script") -> Script:
    """A script from what a file held. ScriptError names the conversation and turn that are wrong."""
    if not isinstance(given, dict) or not isinstance(given.get("conversations"), list):
        raise ScriptError(f"{where}: a script is a mapping with a list of `conversations`")
    if unknown := set(given) - {"conversations", "key"}:
        raise ScriptError(f"{where}: unknown {', '.join(map(str, unknown))}; known: conversations, key")
    found = tuple(_conversation(one, index, where) for index, one in enumerate(given["conversations"], 1))
    return Script(None, found, _expression(given.get("key", ""), f"{where}, key"))


def _conversation(given: Any, index: int, where: str) -> Conversation:
    where = f"{where}, conversation {index}"
    if not isinstance(given, dict) or not isinstance(given.get("turns"), list) or not given["turns"]:
        raise ScriptError(f"{where}: a conversation is a mapping with a list of `turns`")
    when = given.get("when", {})
    if unknown := (set(given) - {"name", "when", "turns"}) | (set(when) - set(FIELDS)):
        raise ScriptError(f"{where}: unknown {', '.join(map(str, sorted(unknown)))}; known: name, turns, "
                          f"when with {', '.join(FIELDS)}")
    turns = tuple(read_turn(turn, f"{where}, turn {number}") for number, turn in enumerate(given["turns"], 1))
    return Conversation(str(given.get("name", index)),
                        {name: _expression(pattern, where) for name, pattern in when.items()}, turns)


def _expression(pattern: Any, where: str) -> str:
    try:
        re.compile(str(pattern))
    except re.error as error:
        raise ScriptError(f"{where}: {pattern!r} is no regular expression: {error}") from error
    return str(pattern)


=======
>>>>>>> d118251deee2e6697e23af0396445a70523a9bba
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
