"""Tools of the specialists: garrison commands, a search, and the user's preferences.

A tool is a row of a table. Everything that reads or changes runs is a garrison command, run as the user would type it,
so that no tool can do more than the user. A model's arguments are argv words, never shell text, and none may start with
a dash. A tool that stops or changes runs only proposes its command (`confirmations`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from garrison.agents.base import Function
from garrison.delegation.confirmations import Confirmations
from garrison.delegation.models import Preference
from garrison.delegation.specialists import Specialist
from garrison.errors import NotFound, RecordCorrupt, UsageError
from garrison.records import atomic
from garrison.system import untrusted
from garrison.values import Value

Run = Callable[[Sequence[str]], Awaitable[str]]
"""Runs `garrison ARGS` or, if the first word is `git`, git in the repository; returns the output."""
MAX_ANSWER = 20_000
"""Maximum length of a tool's answer; the rest is replaced by a note."""
MAX_HITS = 100
MAX_TRANSCRIPT = 8 << 20
"""Number of bytes searched at the end of a transcript."""
_TEXT = {"type": "string"}


class ToolCommand(Value):
    """Tool that runs a command: its words, with {name} for an argument; `optional` arguments add words when given."""

    about: str
    argv: tuple[str, ...]
    arguments: Mapping[str, str] | None = None
    optional: Mapping[str, tuple[str, tuple[str, ...]]] | None = None
    asks: bool = False
    """True if it stops or changes runs: the user is asked first."""


_RUN = {"run": ("the run's id", ("--run", "{run}"))}
COMMANDS: Mapping[str, ToolCommand] = {
    "runs": ToolCommand("Every run of this garrison with its nodes and open questions.", ("status", "--json")),
    "agents": ToolCommand("Every agent process with incarnation, verdict and last heartbeat.",
                      ("agents", "list", "--json")),
    "stale_agents": ToolCommand("Agents without a fresh heartbeat, and dead ones.",
                            ("agents", "list", "--stale-only", "300", "--json")),
    "open_signals": ToolCommand("Signals not handled yet.", ("signals", "list", "--json")),
    "why": ToolCommand("Why a node or agent is in its state: observations, rule, action.",
                   ("why", "{name}", "--all"), {"name": "node or agent"}, _RUN),
    "start_run": ToolCommand("Start a run: an agent does a task on the repository; it lands if it passes the gate.",
                         ("run", "--detach", "{task}"), {"task": "the whole task, in the user's words"}, asks=True),
    "hold_node": ToolCommand("Hold a node: its agents stop and are not restarted until it is released.",
                         ("agents", "park", "{node}"), {"node": "the node's name"}, _RUN, asks=True),
    "release_node": ToolCommand("Release a held or parked node.", ("agents", "unpark", "{node}"),
                            {"node": "the node's name"}, _RUN, asks=True),
    "stop_run": ToolCommand("Stop a run gracefully; its work is kept and it can be resumed.", ("stop", "{run}"),
                        {"run": "the run's id"}, asks=True),
    "resume_run": ToolCommand("Resume a stopped run.", ("resume", "{run}", "--detach"),
                          {"run": "the run's id"}, asks=True),
    "run_report": ToolCommand("One run: nodes, attempts, landed work, failure reasons.",
                          ("status", "{run}", "--json"), {"run": "the run's id"}),
    "merge_log": ToolCommand("Entries of the merge queue: landed, rejected and queued.",
                             ("merge-queue", "list", "--json")),
    "costs": ToolCommand("Cost of the sessions.", ("cost", "--json")),
    "search_repository": ToolCommand("Lines of the repository's files that contain a text, as path:line:text.",
                                 ("git", "grep", "-nIF", "-e", "{text}"), {"text": "what to look for, literally"}),
}


class SpecialistTools:
    """Create the functions of a specialist; `run` runs commands, `home` is garrison's home."""

    def __init__(self, home: Path, run: Run) -> None:
        self._home, self._run = home, run
        self.confirmations = Confirmations(run)
        self.preferences = Preferences(home)

    def of(self, specialist: Specialist) -> list[Function]:
        """Return the functions named in a specialist's table; UsageError for an unknown one."""
        unknown = [name for name in specialist.tools if name not in COMMANDS and name not in _BUILTIN]
        if unknown:
            raise UsageError(f"specialist {specialist.name} uses the unknown tool {unknown[0]!r:.60}; available: "
                             f"{', '.join(sorted([*COMMANDS, *_BUILTIN]))}")
        return [_BUILTIN[name](self) if name in _BUILTIN else self._command(name, COMMANDS[name])
                for name in specialist.tools]

    def _command(self, name: str, command: ToolCommand) -> Function:
        required, optional = dict(command.arguments or {}), command.optional or {}
        schema = _schema({**required, **{key: about for key, (about, _) in optional.items()}}, required)

        async def call(**given: Any) -> str:
            words = list(command.argv)
            for key, (_, extra) in optional.items():
                words += extra if given.get(key) else ()
            filled = [_fill(word, given) for word in words]
            return self.confirmations.propose(filled) if command.asks else truncate(await self._run(filled))

        asks = " The user is asked first." if command.asks else ""
        return Function(name, command.about + asks, schema, call)

    def _transcripts(self) -> Function:
        def call(text: str) -> str:
            hits = []
            for path in sorted(self._home.glob("runs/*/nodes/*/*/output.log"), reverse=True):
                transcript = untrusted.read_end(path.parent, path.name, MAX_TRANSCRIPT)
                hits += [f"{'/'.join(path.parts[-5:-1])}: {line.strip()[:300]}"
                         for line in transcript.splitlines() if text.lower() in line.lower()]
                if len(hits) >= MAX_HITS:
                    break
            return truncate("\n".join(hits[:MAX_HITS])) or f"nothing in any transcript contains {text!r:.80}"

        return Function("search_transcripts", "Lines of past agents' transcripts that contain a text, the newest run "
                        "first, as runs/RUN/nodes/NODE/ATTEMPT: line.", _schema({"text": "what to look for"}, ["text"]),
                        call)

    def _preferences(self) -> Function:
        return Function("preferences", "Known preferences of the user.", _schema({}, []),
                        lambda: json.dumps([preference.as_json() for preference in self.preferences.all()],
                                           ensure_ascii=False))

    def _remember(self) -> Function:
        schema = _schema({"key": "what it is about", "value": "what they prefer"}, ["key", "value"])
        schema["properties"]["confidence"] = {"type": "number", "minimum": 0, "maximum": 1}
        return Function("remember_preference", "Store a preference.", schema, lambda **given: json.dumps(
            self.preferences.remember(**given).as_json(), ensure_ascii=False))

    def _forget(self) -> Function:
        def call(key: str) -> str:
            self.preferences.forget(key)
            return "forgotten"
        return Function("forget_preference", "Remove a preference.", _schema({"key": "its key"}, ["key"]), call)


_BUILTIN: Mapping[str, Callable[[SpecialistTools], Function]] = {
    "search_transcripts": SpecialistTools._transcripts, "preferences": SpecialistTools._preferences,
    "remember_preference": SpecialistTools._remember, "forget_preference": SpecialistTools._forget}


def _schema(arguments: Mapping[str, str], required: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "additionalProperties": False,
            "properties": {name: {**_TEXT, "description": about} for name, about in arguments.items()}}


def _fill(word: str, given: Mapping[str, object]) -> str:
    """Fill the argument into an argv word; UsageError if it is missing or looks like an option."""
    match = re.fullmatch(r"\{(\w+)\}", word)
    if match is None:
        return word
    value = given.get(match.group(1))
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise UsageError(f"give {match.group(1)}")
    # otherwise a model could pass an option, such as another home, in place of a name
    if value.startswith("-"):
        raise UsageError(f"{match.group(1)} may not start with a dash")
    return value


def truncate(text: str) -> str:
    return text if len(text) <= MAX_ANSWER else f"{text[:MAX_ANSWER]}\n… {len(text) - MAX_ANSWER} characters left out"


# ---- preferences -----------------------------------------------------------------------------------------------------

# Preferences of the user, in `preferences.json` of the home: key → value and confidence.


MAX_KEPT = 200
MAX_CHARACTERS = 500


class Preferences:
    """Preferences of one home, written atomically."""

    def __init__(self, home: Path) -> None:
        self.path = home / "preferences.json"

    def all(self) -> list[Preference]:
        """Return all preferences, most certain first."""
        try:
            body = json.loads(self.path.read_bytes())
            preferences = [Preference(key=key, **value) for key, value in body.items()]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, AttributeError, ValidationError) as error:
            raise RecordCorrupt(self.path, "not a preferences file") from error
        return sorted(preferences, key=lambda preference: (-preference.confidence, preference.key))

    def remember(self, key: str, value: str, confidence: float = 0.9) -> Preference:
        """Store a preference, replacing an earlier one with that key."""
        if not key.strip() or len(key) > 80 or len(value) > MAX_CHARACTERS or not 0 <= confidence <= 1:
            raise UsageError(f"a preference has a key of 1 to 80 characters, a value of at most {MAX_CHARACTERS} and a "
                             "confidence from 0 to 1")
        stored = {preference.key: preference for preference in self.all()}
        if key not in stored and len(stored) >= MAX_KEPT:
            raise UsageError(f"{MAX_KEPT} preferences are stored, which is the limit; forget one first")
        stored[key] = Preference(key=key, value=value, confidence=confidence)
        self._write(list(stored.values()))
        return stored[key]

    def forget(self, key: str) -> None:
        """Remove a preference; NotFound if there is none with that key."""
        stored = {preference.key: preference for preference in self.all()}
        if key not in stored:
            raise NotFound(f"no preference {key!r:.80}; stored: {', '.join(stored) or 'none'}")
        self._write([preference for preference in stored.values() if preference.key != key])

    def _write(self, preferences: list[Preference]) -> None:
        atomic.make_directory(self.path.parent)
        body = {preference.key: {"value": preference.value, "confidence": preference.confidence}
                for preference in preferences}
        atomic.write(self.path, json.dumps(body, ensure_ascii=False, indent=1, sort_keys=True).encode())
