"""Settings of ACP agents: the profile in config.toml, overridden by the node's attributes.

    [agents.codex]
    kind = "acp"
    argv = ["codex-acp"]
    env = ["OPENAI_API_KEY"]
    allow = ["read", "edit", "search", "execute"]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from garrison.agents.base import ConnectionOrder
from garrison.agents.claude import extensions
from garrison.agents.profile import LIMITS, as_program, values_of
from garrison.config import PROFILE_KEYS, PROFILE_RIGHTS
from garrison.tables import Nested, Table, as_amount, as_count, as_flag, as_mapping, as_text, empty_table, setting
from garrison.values import Value, replace

KINDS = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")
"""Kinds of tool calls for which an agent may ask permission."""
READING = ("read", "search", "think", "fetch")
"""Kinds that change nothing; `fetch` reaches what the sandbox's network allows."""
RUNNING = "execute"
SESSION = "{session}"
"""Placeholder in `takeover` for the session's id."""
ANYTHING = "*"
"""Word for all kinds."""


def _opener(value: object) -> tuple[str, ...]:
    try:
        words = as_program(value)
    except ValueError:
        words = ()
    if not any(SESSION in word for word in words):
        raise ValueError(f'a list of strings, a program and its words, with "{SESSION}" in one of them')
    return words


def _servers(table: Table) -> dict[str, dict[str, Any]]:
    from garrison.agents.conversation.tools import SERVER  # imported late: few profiles have servers

    servers = extensions.mcp_servers(table)
    if SERVER in servers:
        raise table.error(f"should have further servers: {SERVER} is garrison's own", SERVER)
    return servers


def _kinds(value: object) -> tuple[str, ...]:
    words = tuple(value) if isinstance(value, (list, tuple)) else ()
    if not isinstance(value, (list, tuple)) or not all(word in (*KINDS, ANYTHING) for word in words):
        raise ValueError(f"a list of kinds of tool calls: {', '.join(KINDS)}, or \"{ANYTHING}\" for all")
    return words


class AcpSettings(Value):
    """Settings of one ACP agent; None for the agent's own default."""

    argv: tuple[str, ...] = setting((), as_program)
    model: str | None = setting(None, as_text)
    mode: str | None = setting(None, as_text)
    """The agent's own mode, by its id."""
    auth: str | None = setting(None, as_text)
    """Id of the log-in method that the agent requires; it takes its key from its environment."""
    mcp: bool = setting(True, as_flag)
    """Offer garrison's tools as an MCP server."""
    mcp_servers: Mapping[str, Mapping[str, Any]] = empty_table(Nested(_servers))
    """Further MCP servers for the agent to start or call, by name."""
    allow: tuple[str, ...] = setting((ANYTHING,), _kinds)
    """Kinds of tool calls that are allowed when the agent asks; the user is asked about all others."""
    deny: tuple[str, ...] = setting((), _kinds)
    """Kinds that are refused without asking."""
    stale: float = setting(300.0, as_amount)
    """Seconds of silence outside tool calls after which the agent counts as hung."""
    starts: int = setting(2, as_count)
    """Most sessions of the home that may start concurrently."""
    set: Mapping[str, str] = empty_table(as_mapping)
    """Variables set for the agent's program."""
    takeover: tuple[str, ...] = setting((), _opener)
    """Command that opens a session, `{session}`, for the user; empty if there is none."""

    def for_node(self, node: str, attributes: Mapping[str, object]) -> AcpSettings:
        """Return the profile with the node's attributes over it; UsageError for an invalid one."""
        return Table(f"node {node}", values_of(attributes, ATTRIBUTES)).read(AcpSettings, self)

    def read_only(self, *, can_run: bool = False) -> AcpSettings:
        """Return the profile for a validator: only reading is allowed, whatever the profile allows.

        Args:
            can_run: it works where nothing that a command writes is kept.
        """
        may = (*READING, *((RUNNING,) if can_run else ()))
        # "other" is neither denied nor allowed: calls of garrison's own server have this kind, and a validator uses one
        # to report.
        denied = {*self.deny, *(kind for kind in KINDS if kind not in (*may, "other"))}
        return replace(self, allow=may, mcp_servers={}, deny=tuple(denied))


ATTRIBUTES = {"model": ("model", "llm_model")}
"""Setting → node attributes that set it; the first one present wins."""


def from_profile(table: Table) -> AcpSettings:
    """Return the settings of a profile's table; UsageError for an invalid one."""
    settings = table.read(AcpSettings, others=(*LIMITS, *PROFILE_KEYS, *PROFILE_RIGHTS))
    if not settings.argv:
        raise table.error("argv is missing; name the program that speaks ACP, such as [\"codex-acp\"]")
    return settings


# ---- job of a connection, in order.json


MAX_LOST_SESSIONS = 5
"""Most sessions that an attempt may lose because its agent does not continue them."""


class AcpJob(ConnectionOrder, frozen=True, kw_only=True):
    """One connection to an ACP agent, whose protocol has no system prompt; without a session it starts one."""

    begun: int
    """Number of the attempt's connection that starts the session."""
    prompt_anew: str
    """Prompt of the new session if the agent does not continue its own; '' if there is none to continue."""
    lost: int
    """Sessions of the attempt that were not continued."""
    program: tuple[str, ...]
    """Command that starts the agent's program, in its sandbox if it has one."""
    mcp: tuple[str, ...] = ()
    """Command that starts garrison's MCP server at the agent's side; empty if the socket is not reachable from
    there."""
    mcp_environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    words: tuple[str, ...] | None = None
    """Words that edges of the node test for, as for `result.parse_report`."""
    settings: AcpSettings = msgspec.field(default_factory=AcpSettings)
