"""Crew: the specialists that the butler may delegate to, read from `delegation.toml` and the prompts beside it.

    [butler]
    prompt = "butler.md"
    model = "sonnet"

    [agents.triage]
    intent = "delegate_triage"
    about = "what died, hangs or waits"
    prompt = "triage.md"          # beside the file, or text = "…"
    tools = ["agents", "stale"]
    timeout = 120                 # seconds

The shipped crew is in this package; a home's own `delegation.toml` replaces it as a whole. The butler delegates and is
never delegated to.
"""

from __future__ import annotations

import tomllib
from dataclasses import field
from importlib import resources
from pathlib import Path
from typing import Any

from garrison.delegation.models import BUTLER
from garrison.errors import NotFound, UsageError
from garrison.frozen import frozen

FILE = "delegation.toml"
TIMEOUT = 180.0
"""Default time limit of a specialist, in seconds."""
_KEYS: dict[str, Any] = {"prompt": str, "text": str, "model": str, "about": str, "intent": str, "tools": list,
                         "timeout": (int, float)}


@frozen
class Specialist:
    """One agent of the crew; `tools` are names of `specialist_tools`."""

    name: str
    prompt: str
    intent: str = ""
    about: str = ""
    model: str | None = None
    tools: tuple[str, ...] = ()
    timeout: float = TIMEOUT


@frozen
class Crew:
    """A butler and its specialists, in the order of the file."""

    butler: Specialist
    specialists: dict[str, Specialist] = field(default_factory=dict)

    def of_intent(self, intent: str) -> Specialist | None:
        """Return the specialist for an intent; None if there is none."""
        return next((agent for agent in self.specialists.values() if agent.intent == intent), None)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all agents, the butler first."""
        return (BUTLER, *self.specialists)


def read_crew(home: Path | None = None) -> Crew:
    """Return the home's crew, by default the shipped one; UsageError names the file and the invalid key."""
    path = home / FILE if home is not None else None
    if path is not None and path.is_file():
        return _parse_crew(path.read_text(), str(path), lambda name: _read_prompt(path, name))
    shipped = resources.files("garrison.delegation")
    return _parse_crew(shipped.joinpath(FILE).read_text(), FILE,
                       lambda name: shipped.joinpath("prompts", name).read_text())


def _read_prompt(path: Path, name: str) -> str:
    file = path.parent / name
    if not file.is_file():
        raise NotFound(f"{path} names the prompt {name}, but {file} does not exist")
    return file.read_text()


def _parse_crew(text: str, where: str, read: Any) -> Crew:
    try:
        body = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: {error}") from error
    unknown = set(body) - {"butler", "agents"}
    if unknown:
        raise UsageError(f"{where}: unknown table {sorted(unknown)[0]}; known: butler, agents.NAME")
    agents = body.get("agents", {})
    if not isinstance(agents, dict) or not agents:
        raise UsageError(f"{where}: define at least one specialist, [agents.NAME]")
    if BUTLER in agents:
        raise UsageError(f"{where}: the butler cannot be a specialist; rename [agents.{BUTLER}]")
    butler = _parse_specialist(where, BUTLER, body.get("butler", {}), read)
    crew = Crew(butler, {name: _parse_specialist(where, name, values, read) for name, values in agents.items()})
    intents = [agent.intent for agent in crew.specialists.values()]
    for intent in intents:
        if intents.count(intent) > 1:
            raise UsageError(f"{where}: two specialists have intent = \"{intent}\"; give each its own")
    return crew


def _parse_specialist(where: str, name: str, values: Any, read: Any) -> Specialist:
    table = name if name == BUTLER else f"agents.{name}"
    if not isinstance(values, dict):
        raise UsageError(f"{where}: [{table}] must be a table")
    for key, value in values.items():
        if key not in _KEYS:
            raise UsageError(f"{where}, [{table}]: unknown key {key}; known: {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]) or isinstance(value, bool):
            raise UsageError(f"{where}, [{table}]: {key} has the wrong type")
    prompt = values["text"] if "text" in values else read(values["prompt"]) if "prompt" in values else ""
    if not prompt.strip():
        raise UsageError(f"{where}, [{table}]: give prompt = \"FILE\" or text = \"…\"")
    if values.get("timeout", 1) <= 0:
        raise UsageError(f"{where}, [{table}]: timeout must be above 0 seconds")
    return Specialist(name, prompt, values.get("intent", f"delegate_{name}"), values.get("about", ""),
                      values.get("model"), tuple(str(tool) for tool in values.get("tools", ())),
                      float(values.get("timeout", TIMEOUT)))
