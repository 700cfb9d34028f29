"""Scripts from files: YAML, JSON or Python in, a `Script` out.

Rule: whatever is wrong is refused at once, as a `ScriptError` of one line that names the file, the conversation and the
turn, and says what is known there. docs/testing-without-a-key.md lists the keys.
"""

from __future__ import annotations

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from garrison.testing.script import FIELDS, Conversation, Script
from garrison.testing.turn import ALWAYS, KINDS, Block, Fault, ScriptError, Turn, Usage, say, text, thinking, use

_TURN_KEYS = {"thinking", "text", "tool", "tools", "stop", "usage", "model", "piece", "delay", "faults", "fault",
              "empty"}
_FAULT_KEYS = {*KINDS, "times", "seconds", "retry_after", "type", "message", "headers"}


def load(path: Path) -> Script:
    """The script in a file: `.py` defines `answer(asked)`, every other one is YAML or JSON."""
    if not path.is_file():
        raise ScriptError(f"{path}: no such script")
    if path.suffix == ".py":
        return _program(path)
    try:
        given = json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())
    except (yaml.YAMLError, ValueError) as error:
        raise ScriptError(f"{path}: {' '.join(str(error).split())}") from error
    return read(given, str(path))


def _program(path: Path) -> Script:
    try:
        found = runpy.run_path(str(path)).get("answer")
    except Exception as error:  # whatever the author's module raises is told to the author
        raise ScriptError(f"{path}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ScriptError(f"{path}: a script in Python defines answer(asked)")
    return Script(found)


def read(given: Any, where: str = "script") -> Script:
    """A script from what a file held; `where` names it in messages."""
    known(given, {"conversations", "key"}, where)
    conversations = given.get("conversations")
    if not isinstance(conversations, list) or not conversations:
        raise ScriptError(f"{where}: a script is a mapping with a list of `conversations`")
    found = tuple(_conversation(one, index, where) for index, one in enumerate(conversations, 1))
    return Script(None, found, _expression(given.get("key", ""), f"{where}, key"))


def _conversation(given: Any, index: int, where: str) -> Conversation:
    where = f"{where}, conversation {index}"
    known(given, {"name", "when", "turns", "repeat"}, where)
    if not isinstance(given.get("turns"), list) or not given["turns"]:
        raise ScriptError(f"{where}: a conversation is a mapping with a list of `turns`")
    when = given.get("when", {})
    known(when, set(FIELDS), f"{where}, when")
    turns = tuple(_turn(turn, f"{where}, turn {number}") for number, turn in enumerate(given["turns"], 1))
    expressions = {name: _expression(pattern, f"{where}, when") for name, pattern in when.items()}
    return Conversation(str(given.get("name", index)), expressions, turns, bool(given.get("repeat")))


def _turn(given: Any, where: str) -> Turn:
    if isinstance(given, str):
        return say(given)
    known(given, _TURN_KEYS, where)
    faults = [_fault(one, where) for one in _listed(given, "faults", "fault")]
    blocks = _blocks(given, where)
    if not (blocks or given.get("empty")):
        faults = _for_ever(faults, where)
    options = {name: given[name] for name in ("stop", "model", "piece", "delay") if name in given}
    usage = given.get("usage", {})
    known(usage, set(Usage.__dataclass_fields__), f"{where}, usage")
    try:
        return Turn(tuple(blocks), usage=Usage(**usage), faults=tuple(faults), **options)
    except ScriptError as error:
        raise ScriptError(f"{where}: {error}") from error


def _for_ever(faults: list[Fault], where: str) -> list[Fault]:
    """Nothing is said after these faults, so the last one stays."""
    if not faults:
        raise ScriptError(f"{where}: a turn says something (text, thinking, tool), has faults, or is `empty: true`")
    return [*faults[:-1], replace(faults[-1], times=ALWAYS)]


def _blocks(given: dict[str, Any], where: str) -> list[Block]:
    blocks = [thinking(str(given["thinking"]))] if "thinking" in given else []
    blocks += [text(str(words)) for words in _listed(given, "text")]
    for tool in _listed(given, "tools", "tool"):
        known(tool, {"name", "input"}, f"{where}, tool")
        if not isinstance(tool.get("name"), str) or not isinstance(tool.get("input", {}), dict):
            raise ScriptError(f"{where}: a tool is {{name: Bash, input: {{command: …}}}}")
        blocks.append(use(tool["name"], **tool.get("input", {})))
    return blocks


def _fault(given: Any, where: str) -> Fault:
    known(given, _FAULT_KEYS, f"{where}, fault")
    kinds = [name for name in KINDS if name in given]
    if len(kinds) != 1:
        raise ScriptError(f"{where}: a fault is exactly one of {', '.join(KINDS)}")
    rest = {name: value for name, value in given.items() if name not in KINDS}
    if rest.get("times") == "always":
        rest["times"] = ALWAYS
    try:
        return Fault(kinds[0], given[kinds[0]], **rest)
    except ScriptError as error:
        raise ScriptError(f"{where}: {error}") from error


def _expression(pattern: Any, where: str) -> str:
    try:
        re.compile(str(pattern))
    except re.error as error:
        raise ScriptError(f"{where}: {pattern!r} is no regular expression: {error}") from error
    return str(pattern)


def _listed(given: dict[str, Any], *names: str) -> list[Any]:
    """The values under the first of `names` that is there, one value as a list of it."""
    for name in names:
        if name in given:
            return list(given[name]) if isinstance(given[name], list) else [given[name]]
    return []


def known(given: Any, names: set[str], where: str) -> None:
    """Refuse what is no mapping, or has a key that is not among `names`."""
    if not isinstance(given, dict):
        raise ScriptError(f"{where}: {given!r} is not a mapping; it has {', '.join(sorted(names))}")
    if unknown := sorted(set(map(str, given)) - names):
        raise ScriptError(f"{where}: unknown {', '.join(unknown)}; known: {', '.join(sorted(names))}")
