"""Crew: the specialists available to the butler, read from `delegation.toml` and its prompts.

    [butler]
    prompt = "butler.md"
    model = "sonnet"

    [agents.triage]
    intent = "delegate_triage"
    about = "what died, hangs or waits"
    prompt = "triage.md"          # next to the file, or text = "…"
    tools = ["agents", "stale"]
    timeout = 120                 # seconds

The shipped crew is in this package; a home's own `delegation.toml` replaces it as a whole. The butler cannot be
delegated to.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path

import msgspec

from garrison.delegation.models import BUTLER
from garrison.errors import NotFound, UsageError
from garrison.tables import Table, as_strings, as_text, number, setting
from garrison.values import Value, replace

FILE = "delegation.toml"
TIMEOUT = 180.0
"""Default time limit of a specialist, in seconds."""


class Specialist(Value):
    """One agent of the crew; `tools` are names of `specialist_tools`."""

    name: str
    prompt: str
    intent: str = setting("", as_text)
    about: str = setting("", as_text)
    model: str | None = setting(None, as_text)
    tools: tuple[str, ...] = setting((), as_strings)
    timeout: float = setting(TIMEOUT, number("seconds", 0, above=True))


class Crew(Value):
    """A butler and its specialists, in the order of the file."""

    butler: Specialist
    specialists: dict[str, Specialist] = msgspec.field(default_factory=dict)

    def of_intent(self, intent: str) -> Specialist | None:
        """Return the specialist for an intent; None if there is none."""
        return next((agent for agent in self.specialists.values() if agent.intent == intent), None)

    @property
    def names(self) -> tuple[str, ...]:
        return (BUTLER, *self.specialists)


def read_crew(home: Path | None = None) -> Crew:
    """Return the home's crew, by default the shipped one; UsageError names the file and the invalid key."""
    path = home / FILE if home is not None else None
    if path is not None and path.is_file():
        return _parse_crew(Table.parse(path, path.read_bytes()), lambda name: _read_prompt(path, name))
    shipped = resources.files("garrison.delegation")
    return _parse_crew(Table.parse(FILE, shipped.joinpath(FILE).read_bytes()),
                       lambda name: shipped.joinpath("prompts", name).read_text())


def _read_prompt(path: Path, name: str) -> str:
    file = path.parent / name
    if not file.is_file():
        raise NotFound(f"{path} names the prompt {name}, but {file} does not exist")
    return file.read_text()


def _parse_crew(file: Table, read: Callable[[str], str]) -> Crew:
    for wrong, _ in file.unknown((BUTLER, "agents")):
        raise UsageError(wrong)
    agents = file.below("agents")
    if not agents.require(("NAME",)):
        raise file.error("define at least one specialist, [agents.NAME]")
    if BUTLER in agents.values:
        raise agents.error(f"the butler cannot be a specialist; rename [agents.{BUTLER}]", BUTLER)
    crew = Crew(_parse_specialist(file.below(BUTLER), read),
                {name: _parse_specialist(agents.below(name), read) for name in agents.values})
    intents = [agent.intent for agent in crew.specialists.values()]
    for name, agent in crew.specialists.items():
        if intents.count(agent.intent) > 1:
            raise agents.error(f"two specialists have intent = \"{agent.intent}\"; give each its own", name, "intent")
    return crew


def _parse_specialist(table: Table, read: Callable[[str], str]) -> Specialist:
    name = table.keys[-1]
    agent = table.read(Specialist, Specialist(name, "", f"delegate_{name}"), others=("prompt", "text"))
    text, file = table.value("text", as_text, None), table.value("prompt", as_text, None)
    prompt = text if text is not None else read(file) if file is not None else ""
    if not prompt.strip():
        raise table.error('give prompt = "FILE" or text = "…"')
    return replace(agent, prompt=prompt)
