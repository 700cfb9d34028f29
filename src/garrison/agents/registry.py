"""Which agent a name means: those that are built in, and the profiles of the home's config.toml.

    [agents.aider]
    argv = ["aider", "--yes", "--message-file", "{prompt_file}"]
    env = ["OPENAI_API_KEY"]
    success = "exit_zero"

    [agents.reviewer]
    kind = "claude"
    model = "haiku"
    tools = ["Read", "Grep"]

A node with `session=true`, or a profile of kind `session`, has its Claude (or the scripted) agent run as a session: see
`as_session`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from garrison.agents import session_agent
from garrison.agents.base import Profile
from garrison.agents.claude.settings import ENVIRONMENT, ClaudeSettings, for_node, from_profile
from garrison.agents.command import SHELL, CommandAgent
from garrison.agents.session_agent import SessionAgent, SessionWish
from garrison.errors import Refused, UsageError
from garrison.records.config import config_path, read_config, words_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from garrison.agents.base import Agent

RULES = ("exit_zero", "result_file")
KINDS = ("command", "claude", "session")


@dataclass(frozen=True)
class ClaudeProfile:
    """A claude agent as the configuration names it."""

    name: str
    settings: ClaudeSettings = field(default_factory=ClaudeSettings)
    env: tuple[str, ...] = ENVIRONMENT


@dataclass(frozen=True)
class SessionProfile:
    """An agent that runs another one's mind as a session."""

    name: str
    of: str
    wish: SessionWish


Known = Profile | ClaudeProfile | SessionProfile


def profiles(home: Path) -> dict[str, Known]:
    """The agents a home knows, by name; UsageError if config.toml is malformed."""
    from garrison.agents.scripted import SCRIPTED

    found: dict[str, Known] = {
        "command": SHELL, "scripted": SCRIPTED, "claude": ClaudeProfile("claude")}
    path = config_path(home)
    agents = read_config(home).get("agents", {})
    if not isinstance(agents, dict):
        raise UsageError(f"{path}: agents should be a table of tables, [agents.NAME]")
    for name, values in agents.items():
        found[name] = _profile(f"{path}, [agents.{name}]", name, values)
    return found


def _profile(where: str, name: str, values: Any) -> Known:
    if not isinstance(values, dict):
        raise UsageError(f"{where} should be a table with argv, env and success, or with kind = \"claude\"")
    kind = values.get("kind", "claude" if name == "claude" else "command")
    if kind not in KINDS:
        raise UsageError(f"{where}: kind is {kind!r}; use one of {', '.join(KINDS)}")
    rest = {key: value for key, value in values.items() if key not in ("kind", "env")}
    env = words_of(where, "env", values.get("env", []))
    if kind == "session":
        return _session(where, name, rest)
    if kind == "claude":
        return ClaudeProfile(name, from_profile(where, rest), (*ENVIRONMENT, *env))
    return _command(where, name, rest, env)


def _session(where: str, name: str, rest: dict[str, Any]) -> SessionProfile:
    known = ("of", "tier", "turn_graph", "heartbeat_graph", "initiative")
    unknown = sorted(set(rest) - set(known))
    if unknown:
        raise UsageError(f"{where}: {unknown[0]} is not a setting of a session; there are {', '.join(known)}")
    of = rest.pop("of", "claude")
    if not isinstance(of, str) or of == name:
        raise UsageError(f"{where}: of should name another agent, one of kind claude or `scripted`")
    return SessionProfile(name, of, session_agent.wish(where, rest))


def _command(where: str, name: str, values: dict[str, Any], env: tuple[str, ...]) -> Profile:
    argv = words_of(where, "argv", values.get("argv"))
    if not argv or not argv[0]:
        raise UsageError(f"{where}: argv is empty; name the program to run")
    success = values.get("success", "exit_zero")
    if success not in RULES:
        raise UsageError(f"{where}: success is {success!r}; use one of {', '.join(RULES)}")
    return Profile(name, argv, env, success)


def known(name: str, home: Path) -> Known:
    """The profile of that name; UsageError with the names there are."""
    found = profiles(home)
    if name not in found:
        raise UsageError(f"no agent {name!r}; there are {', '.join(sorted(found))} (more in {config_path(home)})")
    return found[name]


def agent(name: str, home: Path, part: str = "worker", attributes: Mapping[str, Any] | None = None) -> Agent:
    """The agent of that name, as a worker or a validator; UsageError with the names there are.

    `attributes` are the node's: it may say that its worker runs as a session.
    """
    profile = known(name, home)
    if part == "worker" and (
            isinstance(profile, SessionProfile) or session_agent.is_wanted(attributes or {}, f"agent {name}")):
        return _as_session(profile, home)
    if isinstance(profile, ClaudeProfile):
        from garrison.agents.claude.attempt import ClaudeAgent

        return ClaudeAgent(profile.name, profile.settings, part)
    if part == "validator" or isinstance(profile, SessionProfile):
        raise UsageError(f"agent {name} cannot validate: it is no Claude agent; for a command say acceptance=")
    return CommandAgent(profile)


def session_wish(name: str, node: str, attributes: Mapping[str, Any], home: Path) -> SessionWish | None:
    """The session as which a node's agent runs, None if it runs as none; UsageError for what cannot be meant."""
    profile = known(name, home)
    if not isinstance(profile, SessionProfile) and not session_agent.is_wanted(attributes, f"node {node}"):
        return None
    return session_agent.wish(f"node {node}", attributes, _as_session(profile, home).begin)


def claude_of(name: str, home: Path) -> ClaudeSettings | None:
    """The settings of the Claude that an agent is, or that thinks for it; None if it is none."""
    mind = _mind(known(name, home), home)
    return mind.settings if isinstance(mind, ClaudeProfile) else None


def _as_session(profile: Known, home: Path) -> SessionAgent:
    """The agent as a session; UsageError where nobody in it could think turn by turn."""
    mind = _mind(profile, home)
    begin = profile.wish if isinstance(profile, SessionProfile) else SessionWish()
    if isinstance(mind, ClaudeProfile):
        return SessionAgent(profile.name, mind.settings, begin)
    if mind.name == session_agent.SCRIPTED:
        return SessionAgent(profile.name, None, begin)
    raise UsageError(f"agent {mind.name} cannot run as a session; a Claude agent can, and `scripted`")


def check(names: set[str], home: Path) -> list[str]:
    """Refuse unknown agents before a run begins; returns the variables the known ones ask for."""
    return sorted({variable for name in sorted(names) for variable in _mind(known(name, home), home).env})


def _mind(profile: Known, home: Path) -> Profile | ClaudeProfile:
    """Who thinks in an agent."""
    found = known(profile.of, home) if isinstance(profile, SessionProfile) else profile
    if isinstance(found, SessionProfile):
        raise UsageError(f"agent {profile.name} is a session of {found.name}, which is a session itself; name a Claude "
                         "agent, or `scripted`")
    return found


def check_node(name: str, node: str, attributes: Mapping[str, Any], home: Path) -> None:
    """Refuse what a node says of its agent and cannot be meant, before a run begins."""
    profile = known(name, home)
    session_wish(name, node, attributes, home)
    mind = _mind(profile, home)
    if isinstance(mind, ClaudeProfile):
        for_node(mind.settings, node, attributes)
        if find_spec("claude_agent_sdk") is None:
            raise Refused(f"node {node} wants a Claude agent, but claude-agent-sdk is not installed; run scripts/test "
                          "or scripts/demo once, or `pip install claude-agent-sdk`")
