"""Which agent a name means: the two that are built in, and the profiles of the home's config.toml.

    [agents.aider]
    argv = ["aider", "--yes", "--message-file", "{prompt_file}"]
    env = ["OPENAI_API_KEY"]
    success = "exit_zero"
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

from garrison.agents.command import SHELL, CommandAgent
from garrison.agents.seam import Profile
from garrison.errors import UsageError
from garrison.records import atomic

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.agents.seam import Agent

RULES = ("exit_zero", "result_file")
BUILT_IN = ("command", "scripted")


def profiles(home: Path) -> dict[str, Profile]:
    """The agents a home knows, by name; UsageError if config.toml is malformed."""
    from garrison.agents.scripted import SCRIPTED

    found = {"command": SHELL, "scripted": SCRIPTED}
    path = home / "config.toml"
    text = atomic.read(path)
    if text is None:
        return found
    try:
        body = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    agents = body.get("agents", {})
    if not isinstance(agents, dict):
        raise UsageError(f"{path}: agents should be a table of tables, [agents.NAME]")
    for name, values in agents.items():
        found[name] = _profile(path, name, values)
    return found


def _profile(path: Path, name: str, values: Any) -> Profile:
    where = f"{path}, [agents.{name}]"
    if not isinstance(values, dict):
        raise UsageError(f"{where} should be a table with argv, env and success")
    argv, env = values.get("argv"), values.get("env", [])
    for key, words in (("argv", argv), ("env", env)):
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UsageError(f"{where}: {key} should be a list of strings")
    if not argv or not argv[0]:
        raise UsageError(f"{where}: argv is empty; name the program to run")
    success = values.get("success", "exit_zero")
    if success not in RULES:
        raise UsageError(f"{where}: success is {success!r}; use one of {', '.join(RULES)}")
    return Profile(name, tuple(argv), tuple(env), success)


def agent(name: str, home: Path) -> Agent:
    """The agent of that name; UsageError with the names there are."""
    known = profiles(home)
    if name not in known:
        raise UsageError(f"no agent {name!r}; there are {', '.join(sorted(known))} (more in {home / 'config.toml'})")
    return CommandAgent(known[name])


def check(names: set[str], home: Path) -> list[str]:
    """Refuse unknown agents before a run begins; returns the variables the known ones ask for."""
    known = profiles(home)
    for name in sorted(names):
        agent(name, home)
    return sorted({variable for name in names for variable in known[name].env})
