"""Scripts: decide which turn answers a request, by a Python callable or by conversations read from a file.

The first conversation whose `when` matches the request answers, with the turn at the request's `step`. The only state
is how often each fault has occurred, per conversation (for a callable: prompt), key and step. A request without an
answer, and every mistake in a script, raises a one-line `ScriptError` that names the place; the server returns it as
HTTP 400. docs/testing-without-a-key.md lists the keys of a file (YAML, JSON or Python).
"""

from __future__ import annotations

import json
import re
import runpy
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import overload

import yaml

from garrison.records.record import from_data
from garrison.testing import misbehaviour
from garrison.testing.request import Request
from garrison.testing.turn import ALWAYS, KINDS, Block, Fault, ScriptError, Turn, Usage, say, text, thinking, use
from garrison.values import Value, field_names, replace

Player = Callable[[Request], "Turn | Fault | str"]
"""Script in Python: returns the answer; a string is text."""
FIELDS = ("prompt", "system", "result", "model", "key", "tool")


class Answer(Value):
    """Answer to a request, and the part of the script that it comes from."""

    turn: Turn
    fault: Fault | None = None
    conversation: str = ""
    step: int = 0


class ScriptedConversation(Value):
    """Turns for the requests that match `when`: field of `FIELDS` → regular expression."""

    name: str
    when: dict[str, str]
    turns: tuple[Turn, ...]
    repeat: bool = False
    """True if the last turn answers every later step."""
    misbehaves: str = ""
    """Name of a misbehaviour that plays the turns."""

    def matches(self, asked: Request) -> bool:
        """Return whether every expression is found in its field (for `tool`: in the name of one tool)."""
        return all(any(re.search(pattern, text, re.MULTILINE) for text in _field(asked, name))
                   for name, pattern in self.when.items())

    def turn(self, asked: Request) -> Turn:
        """Return the turn at the request's step, with `{key}` filled in."""
        if self.misbehaves:
            turn = misbehaviour.BY_NAME[self.misbehaves](*self.turns)(asked)
            return replace(turn, blocks=tuple(_filled(block, asked.key) for block in turn.blocks))
        step = min(asked.step, len(self.turns) - 1) if self.repeat else asked.step
        if step >= len(self.turns):
            raise ScriptError(f"conversation {self.name!r} has {len(self.turns)} turns, "
                              f"but turn {asked.step + 1} was requested")
        turn = self.turns[step]
        return replace(turn, blocks=tuple(_filled(block, asked.key) for block in turn.blocks))


class Script:
    """A script being played: a callable, or conversations, with the faults that have occurred."""

    def __init__(self, player: Player | None = None, conversations: tuple[ScriptedConversation, ...] = (),
                 key: str = "") -> None:
        self._player, self._conversations, self._key = player, conversations, key
        self._fault_counts: Counter[tuple[str, str, int, int]] = Counter()
        self._lock = threading.Lock()

    def answer(self, asked: Request) -> Answer:
        """Return the answer to a request; ScriptError if the script has none."""
        asked = replace(asked, key=_key(self._key, asked))
        if self._player is not None:
            return self._from_player(self._player(asked), asked)
        for conversation in self._conversations:
            if conversation.matches(asked):
                return self._turn(conversation.name, conversation.turn(asked), asked)
        raise ScriptError(f"no conversation matches; prompt: {asked.prompt[:200]!r}, key: {asked.key!r}, "
                          f"model: {asked.model!r}")

    def _from_player(self, result: Turn | Fault | str, asked: Request) -> Answer:
        if isinstance(result, Fault):
            return Answer(say("after the fault"), result, step=asked.step)
        if isinstance(result, str):
            result = say(result)
        if not isinstance(result, Turn):
            raise ScriptError(f"the script returned {result!r} instead of a Turn, a Fault or a string")
        return self._turn(f"prompt {asked.prompt}", result, asked)

    def _turn(self, counted: str, turn: Turn, asked: Request) -> Answer:
        name = counted if self._player is None else ""
        with self._lock:  # the server asks from a thread for each connection, and a fault occurs once
            for index, fault in enumerate(turn.faults):
                place = (counted, asked.key, asked.step, index)
                if self._fault_counts[place] < fault.times:
                    self._fault_counts[place] += 1
                    return Answer(turn, fault, name, asked.step)
        return Answer(turn, None, name, asked.step)


def _key(pattern: str, asked: Request) -> str:
    if not pattern:
        return ""
    for words in (asked.system, *asked.prompts):
        if found := re.search(pattern, words, re.MULTILINE):
            return found.group(1) if found.groups() else found.group()
    return ""


def _field(asked: Request, name: str) -> tuple[str, ...]:
    return asked.tools if name == "tool" else (str(getattr(asked, name)),)


def _filled(block: Block, key: str) -> Block:
    given = {name: _fill(value, key) for name, value in block.input.items()}
    return replace(block, text=_fill(block.text, key), name=_fill(block.name, key), input=given)


@overload
def _fill(value: str, key: str) -> str: ...
@overload
def _fill(value: object, key: str) -> object: ...
def _fill(value: object, key: str) -> object:
    """Fill in the key in all nested texts that name it."""
    if isinstance(value, str):
        return value.replace("{key}", key)
    if isinstance(value, dict):
        return {name: _fill(item, key) for name, item in value.items()}
    return [_fill(item, key) for item in value] if isinstance(value, list) else value


# ---- scripts from files -----------------------------------------------------------------------------------------

_TURN_KEYS = {"thinking", "text", "tool", "tools", "stop", "usage", "model", "piece", "delay", "faults", "fault",
              "empty"}
_FAULT_KEYS = {*KINDS, "times", "seconds", "retry_after", "type", "message", "headers"}


def load_script(path: Path) -> Script:
    """Read a script: a `.py` file defines `answer(asked)`, any other file is YAML or JSON."""
    if not path.is_file():
        raise ScriptError(f"{path}: no such script")
    if path.suffix == ".py":
        return _load_python(path)
    try:
        given = json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())
    except (yaml.YAMLError, ValueError) as error:
        raise ScriptError(f"{path}: {' '.join(str(error).split())}") from error
    return parse_script(given, str(path))


def _load_python(path: Path) -> Script:
    try:
        player = runpy.run_path(str(path)).get("answer")
    except Exception as error:  # report whatever the author's module raises
        raise ScriptError(f"{path}: {type(error).__name__}: {error}") from error
    if not callable(player):
        raise ScriptError(f"{path}: a script in Python defines answer(asked)")
    return Script(player)


def parse_script(given: object, where: str = "script") -> Script:
    """Return the script in a file's contents; `where` names the file in messages."""
    table = check_keys(given, {"conversations", "key"}, where)
    conversations = table.get("conversations")
    if not isinstance(conversations, list) or not conversations:
        raise ScriptError(f"{where}: a script is a mapping with a list of `conversations`")
    parsed = tuple(_conversation(item, index, where) for index, item in enumerate(conversations, 1))
    return Script(None, parsed, _expression(table.get("key", ""), f"{where}, key"))


def _conversation(given: object, index: int, where: str) -> ScriptedConversation:
    where = f"{where}, conversation {index}"
    table = check_keys(given, {"name", "when", "turns", "repeat", "misbehaves"}, where)
    misbehaves = str(table.get("misbehaves", ""))
    if misbehaves and misbehaves not in misbehaviour.BY_NAME:
        raise ScriptError(f"{where}: no misbehaviour {misbehaves!r}; there are {', '.join(misbehaviour.BY_NAME)}")
    said = table.get("turns", [] if misbehaves else None)
    if not isinstance(said, list) or not (said or misbehaves):
        raise ScriptError(f"{where}: a conversation is a mapping with a list of `turns`")
    when = check_keys(table.get("when", {}), set(FIELDS), f"{where}, when")
    turns = tuple(_turn(turn, f"{where}, turn {number}") for number, turn in enumerate(said, 1))
    expressions = {name: _expression(pattern, f"{where}, when") for name, pattern in when.items()}
    name = str(table.get("name", index))
    return ScriptedConversation(name, expressions, turns, bool(table.get("repeat")), misbehaves)


def _turn(given: object, where: str) -> Turn:
    if isinstance(given, str):
        return say(given)
    table = check_keys(given, _TURN_KEYS, where)
    faults = [_fault(item, where) for item in _as_list(table, "faults", "fault")]
    blocks = _blocks(table, where)
    if not (blocks or table.get("empty")):
        faults = _repeat_last(faults, where)
    options = {name: table[name] for name in ("stop", "model", "piece", "delay") if name in table}
    usage = check_keys(table.get("usage", {}), set(field_names(Usage)), f"{where}, usage")
    try:
        return say(*blocks, usage=replace(Usage(), **usage), faults=tuple(faults), **options)
    except ScriptError as error:
        raise ScriptError(f"{where}: {error}") from error


def _repeat_last(faults: list[Fault], where: str) -> list[Fault]:
    """Make the last fault permanent, since the turn has no content after its faults."""
    if not faults:
        raise ScriptError(f"{where}: a turn needs content (text, thinking, tool) or faults, or `empty: true`")
    return [*faults[:-1], replace(faults[-1], times=ALWAYS)]


def _blocks(given: Mapping[str, object], where: str) -> list[Block]:
    blocks = [thinking(str(given["thinking"]))] if "thinking" in given else []
    blocks += [text(str(words)) for words in _as_list(given, "text")]
    for tool in _as_list(given, "tools", "tool"):
        table = check_keys(tool, {"name", "input"}, f"{where}, tool")
        name, put_in = table.get("name"), table.get("input", {})
        if not isinstance(name, str) or not isinstance(put_in, dict):
            raise ScriptError(f"{where}: a tool is {{name: Bash, input: {{command: …}}}}")
        blocks.append(use(name, **put_in))
    return blocks


def _fault(given: object, where: str) -> Fault:
    table = check_keys(given, _FAULT_KEYS, f"{where}, fault")
    kinds = [name for name in KINDS if name in table]
    if len(kinds) != 1:
        raise ScriptError(f"{where}: a fault is exactly one of {', '.join(KINDS)}")
    rest = {name: value for name, value in table.items() if name not in KINDS}
    if rest.get("times") == "always":
        rest["times"] = ALWAYS
    try:
        return from_data(Fault, {"kind": kinds[0], "value": table[kinds[0]], **rest})
    except (ScriptError, ValueError) as error:
        raise ScriptError(f"{where}: {error}") from error


def _expression(pattern: object, where: str) -> str:
    try:
        re.compile(str(pattern))
    except re.error as error:
        raise ScriptError(f"{where}: {pattern!r} is not a regular expression: {error}") from error
    return str(pattern)


def _as_list(given: Mapping[str, object], *names: str) -> list[object]:
    """Return the values under the first existing name, a single value as a list."""
    found = next((given[name] for name in names if name in given), [])
    return found if isinstance(found, list) else [found]


def check_keys(given: object, names: set[str], where: str) -> Mapping[str, object]:
    """Return a mapping; ScriptError if it is not one, or has keys outside `names`."""
    if not isinstance(given, dict):
        raise ScriptError(f"{where}: {given!r} is not a mapping with the keys {', '.join(sorted(names))}")
    if unknown := sorted(set(map(str, given)) - names):
        raise ScriptError(f"{where}: unknown {', '.join(unknown)}; known: {', '.join(sorted(names))}")
    return given
