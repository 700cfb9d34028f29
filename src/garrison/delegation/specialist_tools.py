"""What the specialists can do: garrison's own commands, a search, and the person's preferences.

The rules of this room: a tool is a row of a table. What looks at or changes runs is a command of garrison, run as a
person would type it and given back as it answers, so that no tool can do more, or otherwise, than a person. Arguments
of a model are words of an argv, never of a shell, and none may look like an option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from garrison.agents.base import Function
from garrison.delegation.preferences import Preferences
from garrison.delegation.specialists import Specialist
from garrison.errors import UsageError

Run = Callable[[Sequence[str]], Awaitable[str]]
"""Runs `garrison ARGS` or, for an argv whose first word is `git`, git in the repository; what it says."""
MAX_SAID = 20_000
"""Characters of a tool's answer; the rest is left out, and that is said."""
MAX_HITS = 100
_TEXT = {"type": "string"}


@dataclass(frozen=True)
class Command:
    """A tool that is a command: its words, with {name} for an argument; `optional` arguments add words when given."""

    about: str
    argv: tuple[str, ...]
    arguments: Mapping[str, str] | None = None
    optional: Mapping[str, tuple[str, tuple[str, ...]]] | None = None


_RUN = {"run": ("the run's id", ("--run", "{run}"))}
COMMANDS: Mapping[str, Command] = {
    "runs": Command("Every run of this garrison with its nodes and what waits.", ("status", "--json")),
    "agents": Command("Every agent (layer) with life, verdict and last beat.", ("agents", "list", "--json")),
    "stale_agents": Command("The agents that are silent or gone.", ("agents", "list", "--stale-only", "300", "--json")),
    "open_signals": Command("Signals that wait to be taken.", ("signals", "list", "--json")),
    "why": Command("Why a node or agent is as it is: what was seen, which rule fired, what was done.",
                   ("why", "{name}"), {"name": "node or agent"}, _RUN),
    "hold_node": Command("Hold a node: its agents stop and are not restarted until it is released.",
                         ("agents", "park", "{node}"), {"node": "the node's name"}, _RUN),
    "release_node": Command("Let a held or parked node go on.", ("agents", "unpark", "{node}"),
                            {"node": "the node's name"}, _RUN),
    "stop_run": Command("Stop a run in order; its work is kept and it can be resumed.", ("stop", "{run}"),
                        {"run": "the run's id"}),
    "resume_run": Command("Let a stopped run go on.", ("launch", "--resume", "{run}", "--detach"),
                          {"run": "the run's id"}),
    "run_report": Command("One run: nodes, attempts, what landed, reasons of failure.",
                          ("pipeline", "status", "{run}", "--json"), {"run": "the run's id"}),
    "merge_log": Command("What the merge queue landed, refused or holds.", ("merge-queue", "list", "--json")),
    "costs": Command("What the sessions cost.", ("cost", "--json")),
    "search_repository": Command("Lines of the repository's files that contain a text, as path:line:text.",
                                 ("git", "grep", "-nIF", "-e", "{text}"), {"text": "what to look for, literally"}),
}


class Desk:
    """Makes a specialist's functions: `run` runs commands, `home` is the garrison's."""

    def __init__(self, home: Path, run: Run) -> None:
        self._home, self._run = home, run
        self.preferences = Preferences(home)

    def of(self, specialist: Specialist) -> list[Function]:
        """The functions a specialist's table names; UsageError for one that nobody has."""
        unknown = [name for name in specialist.tools if name not in COMMANDS and name not in _OWN]
        if unknown:
            raise UsageError(f"specialist {specialist.name} wants the tool {unknown[0]!r:.60}; there are "
                             f"{', '.join(sorted([*COMMANDS, *_OWN]))}")
        return [_OWN[name](self) if name in _OWN else self._command(name, COMMANDS[name]) for name in specialist.tools]

    def _command(self, name: str, command: Command) -> Function:
        needed, optional = dict(command.arguments or {}), command.optional or {}
        schema = _schema({**needed, **{key: about for key, (about, _) in optional.items()}}, needed)

        async def call(**given: Any) -> str:
            words = list(command.argv)
            for key, (_, more) in optional.items():
                words += more if given.get(key) else ()
            return cut(await self._run([_filled(word, given) for word in words]))

        return Function(name, command.about, schema, call)

    def _transcripts(self) -> Function:
        def call(text: str) -> str:
            hits = []
            for path in sorted(self._home.glob("runs/*/nodes/*/*/output.log"), reverse=True):
                hits += [f"{'/'.join(path.parts[-5:-1])}: {line.strip()[:300]}"
                         for line in path.read_text(errors="replace").splitlines() if text.lower() in line.lower()]
                if len(hits) >= MAX_HITS:
                    break
            return cut("\n".join(hits[:MAX_HITS])) or f"nothing in any transcript contains {text!r:.80}"

        return Function("search_transcripts", "Lines of past agents' transcripts that contain a text, the newest run "
                        "first, as runs/RUN/nodes/NODE/ATTEMPT: line.", _schema({"text": "what to look for"}, ["text"]),
                        call)

    def _preferences(self) -> Function:
        return Function("preferences", "What the person prefers, as far as it is known.", _schema({}, []),
                        lambda: json.dumps([one.as_json() for one in self.preferences.all()], ensure_ascii=False))

    def _remember(self) -> Function:
        schema = _schema({"key": "what it is about", "value": "what they prefer"}, ["key", "value"])
        schema["properties"]["confidence"] = {"type": "number", "minimum": 0, "maximum": 1}
        return Function("remember_preference", "Keep a preference.", schema, lambda **given: json.dumps(
            self.preferences.remember(**given).as_json(), ensure_ascii=False))

    def _forget(self) -> Function:
        def call(key: str) -> str:
            self.preferences.forget(key)
            return "forgotten"
        return Function("forget_preference", "Drop a preference.", _schema({"key": "its key"}, ["key"]), call)


_OWN: Mapping[str, Callable[[Desk], Function]] = {
    "search_transcripts": Desk._transcripts, "preferences": Desk._preferences,
    "remember_preference": Desk._remember, "forget_preference": Desk._forget}


def _schema(arguments: Mapping[str, str], required: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "additionalProperties": False,
            "properties": {name: {**_TEXT, "description": about} for name, about in arguments.items()}}


def _filled(word: str, given: Mapping[str, Any]) -> str:
    """An argv word with its argument put in; UsageError for one that is missing or could be taken for an option."""
    match = re.fullmatch(r"\{(\w+)\}", word)
    if match is None:
        return word
    value = given.get(match.group(1))
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise UsageError(f"say {match.group(1)}")
    if value.startswith("-"):
        raise UsageError(f"{match.group(1)} may not begin with a dash")
    return value


def cut(text: str) -> str:
    """The text, or its beginning with a word about the rest."""
    return text if len(text) <= MAX_SAID else f"{text[:MAX_SAID]}\n… {len(text) - MAX_SAID} characters left out"
