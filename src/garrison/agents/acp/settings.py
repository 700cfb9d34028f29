"""Settings of ACP agents: the profile in config.toml, overridden by the node's attributes.

    [agents.codex]
    kind = "acp"
    argv = ["codex-acp"]
    env = ["OPENAI_API_KEY"]
    allow = ["read", "edit", "search", "execute"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from garrison.agents.claude import extensions
from garrison.agents.claude.settings import LIMITS, READERS, read_values, values_of
from garrison.errors import UsageError
from garrison.frozen import frozen

KINDS = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")
"""Kinds of tool calls for which an agent may ask leave."""
READING = ("read", "search", "think", "fetch")
"""Kinds that change nothing; `fetch` reaches what the sandbox's network allows."""
RUNNING = "execute"
SESSION = "{session}"
"""Placeholder in `takeover` for the session's id."""
ANYTHING = "*"
"""Word that stands for all kinds."""


@frozen
class AcpSettings:
    """Settings of one ACP agent; None for the agent's own default."""

    argv: tuple[str, ...] = ()
    model: str | None = None
    mode: str | None = None
    """The agent's own mode, by its id."""
    auth: str | None = None
    """Log-in method, by its id, that the agent wants to be asked for; it takes its key from its environment."""
    mcp: bool = True
    """Offer garrison's tools as an MCP server."""
    mcp_servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further MCP servers that the agent is to start or to call, by name."""
    allow: tuple[str, ...] = (ANYTHING,)
    """Kinds of tool calls that are allowed when the agent asks; a person is asked about all others."""
    deny: tuple[str, ...] = ()
    """Kinds that are refused without a question."""
    stale: float = 300.0
    """Seconds of silence outside of tool calls after which the agent counts as hung."""
    starts: int = 2
    """Sessions that may start at one time in the home."""
    set: Mapping[str, str] = field(default_factory=dict)
    """Variables set for the agent's program."""
    takeover: tuple[str, ...] = ()
    """Words of a program that opens a session, `{session}`, for a person; none if there is no such program."""


# ---- values; a ValueError says what is expected


def _argv(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(word, str) for word in value) \
            or not value[0]:
        raise ValueError("a list of strings that begins with the program to run")
    return tuple(value)


def _opener(value: Any) -> tuple[str, ...]:
    try:
        words = _argv(value)
    except ValueError:
        words = ()
    if not any(SESSION in word for word in words):
        raise ValueError(f'a list of strings, a program and its words, with "{SESSION}" in one of them')
    return words


def _servers(value: Any) -> dict[str, dict[str, Any]]:
    from garrison.agents.claude.tools import SERVER  # late: few profiles have servers

    servers = extensions.mcp_servers(value)
    if SERVER in servers:
        raise ValueError(f"further servers: {SERVER} is garrison's own")
    return servers


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004  # as every reader of a setting
    return value


def _kinds(value: Any) -> tuple[str, ...]:
    words = tuple(value) if isinstance(value, (list, tuple)) else ()
    if not isinstance(value, (list, tuple)) or not all(word in (*KINDS, ANYTHING) for word in words):
        raise ValueError(f"a list of kinds of tool calls: {', '.join(KINDS)}, or \"{ANYTHING}\" for all")
    return words


SETTINGS: Mapping[str, Callable[[Any], Any]] = {
    "argv": _argv, "model": READERS["model"], "mode": READERS["model"], "auth": READERS["model"], "mcp": _flag,
    "allow": _kinds, "deny": _kinds, "stale": READERS["stale"], "starts": READERS["starts"], "set": READERS["set"],
    "takeover": _opener, "mcp_servers": _servers}
"""Setting → reader of its value."""
ATTRIBUTES = {"model": ("model", "llm_model")}
"""Setting → node attributes that set it; the first one present wins."""


def from_profile(where: str, values: Mapping[str, Any]) -> AcpSettings:
    """Return the settings of a profile's table; UsageError, beginning with `where`, for an invalid one."""
    if unknown := sorted(set(values) - set(SETTINGS) - set(LIMITS)):
        raise UsageError(f"{where}: {unknown[0]} is not a setting; there are {', '.join([*SETTINGS, *LIMITS])}")
    own = {name: value for name, value in values.items() if name in SETTINGS}
    settings = AcpSettings(**read_values(where, own, SETTINGS))
    if not settings.argv:
        raise UsageError(f"{where}: argv is missing; name the program that speaks ACP, such as [\"codex-acp\"]")
    return settings


def for_node(profile: AcpSettings, node: str, attributes: Mapping[str, Any]) -> AcpSettings:
    """Return the profile with the node's attributes over it; UsageError for an invalid one."""
    return replace(profile, **read_values(f"node {node}", values_of(attributes, ATTRIBUTES), SETTINGS))


def read_only(profile: AcpSettings, *, can_run: bool = False) -> AcpSettings:
    """Return the profile for a validator: what it asks for is allowed if it only reads, whatever the profile allows.

    Args:
        can_run: it works where nothing that a command writes is kept.
    """
    may = (*READING, *((RUNNING,) if can_run else ()))
    return replace(profile, allow=may, mcp_servers={}, deny=tuple({*profile.deny, *(kind for kind in KINDS
                                                                     if kind not in (*may, "other"))}))


def to_json(settings: AcpSettings) -> dict[str, Any]:
    """Return the settings for order.json."""
    return {**vars(settings), "argv": list(settings.argv), "allow": list(settings.allow), "deny": list(settings.deny),
            "takeover": list(settings.takeover), "set": dict(settings.set),
            "mcp_servers": {name: dict(server) for name, server in settings.mcp_servers.items()}}


def from_json(values: Mapping[str, Any]) -> AcpSettings:
    """Invert `to_json`."""
    return AcpSettings(**{**values, **{name: tuple(values.get(name, ())) for name in (
        "argv", "allow", "deny", "takeover")}})
