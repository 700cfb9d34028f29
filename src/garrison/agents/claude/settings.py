"""Settings of Claude sessions: the profile in config.toml, overridden by the node's attributes.

A profile of kind `claude` may set all of them, a node those in `ATTRIBUTES`. An invalid value is refused before the run
starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from garrison.agents.base import ConnectionOrder
from garrison.agents.claude import extensions
from garrison.agents.conversation.loop_detector import MAX_REPEATS
from garrison.agents.profile import values_of
from garrison.config import PROFILE_KEYS, PROFILE_RIGHTS
from garrison.records.budget import Limits
from garrison.tables import (
    Nested,
    Table,
    as_amount,
    as_count,
    as_flag,
    as_mapping,
    as_names,
    as_text,
    empty_table,
    one_of,
    or_none,
    setting,
)
from garrison.values import Value, replace

TOOLS = ("Bash", "Read", "Write", "Edit", "Glob", "Grep")
"""Default tools of an agent, in addition to garrison's own."""
READ_ONLY = ("Read", "Glob", "Grep")
"""Tools of a validator."""
RUNNING = ("Bash",)
"""Additional tools if nothing that a command writes is kept."""
ASK = "ask"
"""Permission mode in which the user is asked before a tool call that is not allowed."""
MODES = ("dontAsk", ASK, "acceptEdits", "default", "bypassPermissions", "auto")
EFFORTS = ("low", "medium", "high", "xhigh", "max")
KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
"""Variables that replace the home's log-in; the last one is from `claude setup-token`."""
TOKEN = KEYS[-1]
FILE, PROXY = "file", "proxy"
ENVIRONMENT = (*KEYS, "ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "API_TIMEOUT_MS")
"""The only variables of the user's environment that a session gets."""


def _mode(value: object) -> str:
    if value == "plan":  # no one would see the plan, and the session could do nothing after it
        raise ValueError(f"{', '.join(MODES[:-1])} or {MODES[-1]}; to see a plan first, put a node before this that "
                         "writes it down, with approve=true")
    return one_of(*MODES)(value)


class ClaudeSettings(Value):
    """Settings of one session; money in US dollars, times in seconds, None for the default."""

    model: str | None = setting(None, as_text)
    fallback_model: str | None = setting(None, as_text)
    tools: tuple[str, ...] = setting(TOOLS, extensions.patterns)
    """Patterns of the available tools; the agent may use them without asking, unless `allowed_tools` says which.
    """
    allowed_tools: tuple[str, ...] = setting((), extensions.patterns)
    disallowed_tools: tuple[str, ...] = setting((), extensions.patterns)
    mcp_servers: Mapping[str, Mapping[str, Any]] = empty_table(Nested(extensions.mcp_servers))
    subagents: Mapping[str, Mapping[str, Any]] = empty_table(Nested(extensions.subagents))
    hooks: Mapping[str, list[dict[str, Any]]] = empty_table(Nested(extensions.hooks))
    skills: tuple[str, ...] = setting((), extensions.paths)
    """Folders of skills."""
    plugins: tuple[str, ...] = setting((), extensions.paths)
    """Folders of plugins."""
    add_dirs: tuple[str, ...] = setting((), extensions.paths)
    betas: tuple[str, ...] = setting((), as_names)
    thinking: str | int | None = setting(None, extensions.thinking)
    output_schema: Mapping[str, Any] | None = setting(None, extensions.schema)
    """JSON schema of the output that a report must have."""
    attribution: bool = setting(True, as_flag)
    """True if the CLI signs commits."""
    permission_mode: str = setting("dontAsk", _mode)
    max_turns: int | None = setting(300, or_none(as_count))
    """Responses of the model in one attempt."""
    effort: str | None = setting(None, one_of(*EFFORTS))
    system_prompt: str | None = setting(None, as_text)
    """Appended to garrison's own."""
    instructions: bool = setting(True, as_flag)
    """Also append the repository's own instructions (CLAUDE.md, AGENTS.md)."""
    repository: bool = setting(False, as_flag)
    """Also use the repository's own `.claude/` and `.mcp.json`: hooks, permissions, skills, subagents, servers."""
    budget: float | None = setting(10.0, or_none(as_amount))
    """Limit of the node, over all its attempts."""
    budget_run: float | None = setting(None, or_none(as_amount))
    budget_day: float | None = setting(None, or_none(as_amount))
    """Limit of the whole home for a calendar day in UTC."""
    stale: float = setting(240.0, as_amount)
    """Silence of a session outside tool calls after which it is interrupted."""
    max_response: float | None = setting(1800.0, or_none(as_amount))
    """Duration of one response after which the session is interrupted even while it writes."""
    max_repeats: int | None = setting(MAX_REPEATS, or_none(as_count))
    """Consecutive tool calls without anything new after which the session is warned, and then the user is asked."""
    max_idle: int | None = setting(80, or_none(as_count))
    """Consecutive responses without a change after which the same happens."""
    starts: int = setting(2, as_count)
    """Most sessions of the home that may start concurrently."""
    login: str = setting(PROXY, one_of(FILE, PROXY))
    """Where the home's log-in is while an agent works: PROXY: outside, like a key; FILE: a copy in its sandbox."""
    cli: str | None = setting(None, as_text)
    """Path of a CLI other than the SDK's own."""
    set: Mapping[str, str] = empty_table(as_mapping)
    """Variables set for the CLI."""

    @property
    def limits(self) -> Limits:
        return Limits(self.budget, self.budget_run, self.budget_day)

    def for_node(self, node: str, attributes: Mapping[str, object]) -> ClaudeSettings:
        """Return the profile with the node's attributes over it; UsageError for an invalid one."""
        return _read(Table(f"node {node}", values_of(attributes, ATTRIBUTES)), self)

    def read_only(self, *, can_run: bool = False) -> ClaudeSettings:
        """Return the profile for a validator: no tool that writes, whatever the profile allows.

        Args:
            can_run: it works where nothing that a command writes is kept.
        """
        tools = tuple(tool for tool in self.tools if extensions.tool_of(tool) in READ_ONLY) or READ_ONLY
        # Servers and subagents could write with tools whose names do not show it, and a required output is for the
        # worker.
        return replace(self, tools=(*tools, *(RUNNING if can_run else ())), permission_mode="dontAsk",
                       allowed_tools=(), repository=False, mcp_servers={}, subagents={}, output_schema=None)


ATTRIBUTES = {"model": ("model", "llm_model"), "effort": ("effort", "reasoning_effort"), "tools": ("tools",),
              "permission_mode": ("permission_mode",), "max_turns": ("max_turns",), "budget": ("budget",),
              "system_prompt": ("system_prompt",), "fallback_model": ("fallback_model",),
              "instructions": ("instructions",),
              "max_repeats": ("max_repeats",), "max_idle": ("max_idle",),
              **{name: (name,) for name in ("allowed_tools", "disallowed_tools", "skills", "plugins", "add_dirs",
                                            "betas", "thinking", "output_schema", "attribution")}}
"""Setting → node attributes that set it; the first one present wins."""


def from_profile(table: Table) -> ClaudeSettings:
    """Return the settings of a profile's table; UsageError for an invalid one."""
    return _read(table, ClaudeSettings())


def _read(table: Table, settings: ClaudeSettings) -> ClaudeSettings:
    made = table.read(ClaudeSettings, settings, others=(*PROFILE_KEYS, *PROFILE_RIGHTS))
    # Another CLI than the SDK's may have other tools.
    for key in ("tools", "allowed_tools", "disallowed_tools") if made.cli is None else ():
        if wrong := extensions.unknown_tool(getattr(made, key), made.mcp_servers):
            raise table.error(wrong, key)
    return made


def without_variables(settings: ClaudeSettings, names: Collection[str]) -> ClaudeSettings:
    return replace(settings, set={name: value for name, value in settings.set.items() if name not in names})


# ---- job of a connection, in order.json


class ConnectionJob(ConnectionOrder, frozen=True, kw_only=True):
    """One connection to Claude."""

    run: str
    node: str
    attempt: int
    resume: bool
    """True if the session is resumed, not started."""
    settings: ClaudeSettings = msgspec.field(default_factory=ClaudeSettings)
    parent_session: str = msgspec.field(default="", name="past")
    """Session of an earlier node that this one continues as its own session."""
    attempts: str = ""
    """Folder with the parent session's transcript."""
    config: str = ""
    """The CLI's configuration folder; '' for the home's, as in earlier versions."""
    folders: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Folder of the repository → its instructions, which the session gets on first access."""
    repository: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Files of the repository's `.claude/`, and its `.mcp.json`, if the profile uses them: path → text."""
    outages: tuple[str, ...] = ()
    """Files, one of which exists while an outage of the account is known."""

    @property
    def has_transcript(self) -> bool:
        """Return whether the CLI resumes a transcript: the session's own, or one forked from the parent session."""
        return self.resume or bool(self.parent_session)
