"""Settings of Claude sessions: the profile in config.toml, overridden by the node's attributes.

A profile of kind `claude` may set all of them, a node those in `ATTRIBUTES`. An invalid value is refused before the run
begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from garrison.agents.claude import extensions
from garrison.errors import UsageError
from garrison.frozen import frozen

TOOLS = ("Bash", "Read", "Write", "Edit", "Glob", "Grep")
"""Default tools of an agent, in addition to garrison's own."""
READ_ONLY = ("Read", "Glob", "Grep")
"""Tools of a validator."""
RUNNING = ("Bash",)
"""Its further tools where nothing that a command writes is kept."""
ASK = "ask"
"""Permission mode in which the person is asked before a tool call that is not allowed."""
MODES = ("dontAsk", ASK, "acceptEdits", "default", "bypassPermissions", "auto")
MAX_REPEATS = 12
"""Times in a row that the same call may bring nothing new, where an agent has no setting of its own."""
EFFORTS = ("low", "medium", "high", "xhigh", "max")
KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
"""Variables with which the CLI needs no log-in of the home; the last one is what `claude setup-token` prints."""
TOKEN = KEYS[-1]
FILE, PROXY = "file", "proxy"
ENVIRONMENT = (*KEYS, "ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "API_TIMEOUT_MS")
"""Variables of the person's environment that a session gets; it gets no others."""


@frozen
class ClaudeSettings:
    """Settings of one session; money in US dollars, times in seconds, None for the default."""

    model: str | None = None
    fallback_model: str | None = None
    tools: tuple[str, ...] = TOOLS
    """Patterns of the tools that there are; the agent may use them without asking, unless `allowed_tools` says which.
    """
    allowed_tools: tuple[str, ...] = ()
    disallowed_tools: tuple[str, ...] = ()
    mcp_servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    subagents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hooks: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    skills: tuple[str, ...] = ()
    """Folders of skills."""
    plugins: tuple[str, ...] = ()
    """Folders of plugins."""
    add_dirs: tuple[str, ...] = ()
    betas: tuple[str, ...] = ()
    thinking: str | int | None = None
    output_schema: Mapping[str, Any] | None = None
    """JSON schema of the output that a report must have."""
    attribution: bool = True
    """Whether the CLI signs commits."""
    permission_mode: str = "dontAsk"
    max_turns: int | None = 300
    """Responses of the model in one attempt."""
    effort: str | None = None
    system_prompt: str | None = None
    """Appended to garrison's own."""
    instructions: bool = True
    """Append the repository's own instructions (CLAUDE.md, AGENTS.md), too."""
    repository: bool = False
    """Take the repository's own `.claude/` and `.mcp.json`, too: hooks, permissions, skills, subagents, servers."""
    budget: float | None = 10.0
    """Limit of the node, over all its attempts."""
    budget_run: float | None = None
    budget_day: float | None = None
    """Limit of the whole home, a calendar day in UTC."""
    stale: float = 240.0
    """Silence of a session outside of tool calls, after which it is interrupted."""
    max_response: float | None = 1800.0
    """Duration of one response, after which the session is interrupted though it still speaks."""
    max_repeats: int | None = MAX_REPEATS
    """Tool calls in a row that bring nothing new after which the session is told, and then a person is asked."""
    max_idle: int | None = 80
    """Responses in a row that change nothing, after which the same happens."""
    starts: int = 2
    """Sessions that may start at one time in the home."""
    login: str = PROXY
    """Where a log-in of the home is while an agent works: PROXY, outside, as a key is; FILE, a copy in its sandbox."""
    cli: str | None = None
    """Path of another CLI than the SDK's own."""
    set: Mapping[str, str] = field(default_factory=dict)
    """Variables set for the CLI."""


# ---- values; a ValueError says what is expected


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text")
    return value


def _names(value: Any) -> tuple[str, ...]:
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) and word for word in words):
        raise ValueError("a list of names")
    return tuple(words)


def _count(value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise ValueError("a number") from None
    if number < 1:
        raise ValueError("a whole number above 0")
    return number


def _amount(value: Any) -> float:
    try:
        number = float(str(value).strip().lower().removesuffix("usd").strip("$ "))
    except ValueError:
        raise ValueError("a number") from None
    if not 0 < number < 1e9:
        raise ValueError("a number above 0")
    return number


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the reader of a limit that can be switched off."""
    def read_limit(value: Any) -> Any:
        if value is False or str(value).strip().lower() == "none":
            return None
        try:
            return read(value)
        except ValueError as error:
            raise ValueError(f"{error}, or none") from None

    return read_limit


def _one_of(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError("one of " + ", ".join(words))
        return str(value)

    return read


def _mode(value: Any) -> str:
    if value == "plan":  # nobody would see the plan, and the session could do nothing after it
        raise ValueError(f"{', '.join(MODES[:-1])} or {MODES[-1]}; to see a plan first, put a node before this that "
                         "writes it down, with approve=true")
    return _one_of(*MODES)(value)


def _mapping(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("a table of texts")
    return dict(value)


BUDGETS = ("budget", "budget_run", "budget_day")
"""Settings that limit what an agent may cost: its node, its run, the home in a day."""
LIMITS = (*BUDGETS, "max_turns")
"""Settings of every agent that limit it."""
READERS: Mapping[str, Callable[[Any], Any]] = {
    **extensions.READERS, "betas": _names, "model": _text, "fallback_model": _text, "permission_mode": _mode,
    "max_turns": _or_none(_count), "effort": _one_of(*EFFORTS), "system_prompt": _text, "instructions": extensions.flag,
    "repository": extensions.flag,
    "budget": _or_none(_amount), "budget_run": _or_none(_amount), "budget_day": _or_none(_amount), "stale": _amount,
    "max_response": _or_none(_amount), "max_repeats": _or_none(_count), "max_idle": _or_none(_count),
    "starts": _count, "login": _one_of(FILE, PROXY), "cli": _text, "set": _mapping,
}
"""Setting → reader of its value."""
ATTRIBUTES = {"model": ("model", "llm_model"), "effort": ("effort", "reasoning_effort"), "tools": ("tools",),
              "permission_mode": ("permission_mode",), "max_turns": ("max_turns",), "budget": ("budget",),
              "system_prompt": ("system_prompt",), "fallback_model": ("fallback_model",),
              "instructions": ("instructions",),
              "max_repeats": ("max_repeats",), "max_idle": ("max_idle",),
              **{name: (name,) for name in ("allowed_tools", "disallowed_tools", "skills", "plugins", "add_dirs",
                                            "betas", "thinking", "output_schema", "attribution")}}
"""Setting → node attributes that set it; the first one present wins."""


def from_profile(where: str, values: Mapping[str, Any]) -> ClaudeSettings:
    """Return the settings of a profile's table; UsageError, beginning with `where`, for an invalid one."""
    unknown = sorted(set(values) - set(READERS))
    if unknown:
        raise UsageError(f"{where}: {unknown[0]} is not a setting; there are {', '.join(sorted(READERS))}")
    return _override(ClaudeSettings(), where, values)


def for_node(profile: ClaudeSettings, node: str, attributes: Mapping[str, Any]) -> ClaudeSettings:
    """Return the profile with the node's attributes over it; UsageError for an invalid one."""
    return _override(profile, f"node {node}", values_of(attributes, ATTRIBUTES))


def values_of(attributes: Mapping[str, Any], spellings: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the settings that a node's attributes set; of several spellings, the first one present wins."""
    values = {}
    for name, known in spellings.items():
        value = next((attributes[spelling] for spelling in known if spelling in attributes), None)
        if value is not None:
            values[name] = value
    return values


def read_values(where: str, values: Mapping[str, Any], readers: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return what the readers make of settings; UsageError, beginning with `where`, for the first invalid one."""
    read = {}
    for name, value in values.items():
        try:
            read[name] = readers[name](value)
        except ValueError as error:
            raise UsageError(f"{where}: {name}={value!r} should be {error}") from error
    return read


def read_only(profile: ClaudeSettings, *, can_run: bool = False) -> ClaudeSettings:
    """Return the profile for a validator: no tool that writes, whatever the profile allows.

    Args:
        can_run: it works where nothing that a command writes is kept.
    """
    tools = tuple(tool for tool in profile.tools if extensions.tool_of(tool) in READ_ONLY) or READ_ONLY
    return replace(profile, tools=(*tools, *(RUNNING if can_run else ())), permission_mode="dontAsk", allowed_tools=(),
                   repository=False, mcp_servers={}, subagents={}, output_schema=None)


def without_variables(settings: ClaudeSettings, names: Collection[str]) -> ClaudeSettings:
    """Return the settings without the variables with these names."""
    return replace(settings, set={name: value for name, value in settings.set.items() if name not in names})


def _override(settings: ClaudeSettings, where: str, values: Mapping[str, Any]) -> ClaudeSettings:
    made = replace(settings, **read_values(where, values, READERS))
    named = (*made.tools, *made.allowed_tools, *made.disallowed_tools)
    if made.cli is None and (wrong := extensions.unknown_tool(named, made.mcp_servers)):
        raise UsageError(f"{where}: {wrong}")
    return made


def to_json(settings: ClaudeSettings) -> dict[str, Any]:
    """Return the settings for order.json."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(settings).items()}


def from_json(values: Mapping[str, Any]) -> ClaudeSettings:
    """Invert `to_json`."""
    read: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return ClaudeSettings(**read)
