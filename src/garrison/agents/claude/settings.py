"""How a node's sessions are run: from the profile in config.toml, then from the node's attributes. Pure.

A profile of kind `claude` may say everything that a node may; the node wins. A value that cannot be meant is refused
before the run begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from garrison.errors import UsageError

TOOLS = ("Bash", "Read", "Write", "Edit", "Glob", "Grep")
"""What an agent may use unless its profile or node names others; garrison's own tools come on top."""
READ_ONLY = ("Read", "Glob", "Grep")
"""What a validator may use."""
MODES = ("dontAsk", "acceptEdits", "plan", "default", "bypassPermissions", "auto")
EFFORTS = ("low", "medium", "high", "xhigh", "max")
ENVIRONMENT = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "API_TIMEOUT_MS")
"""Variables of the person's that a session needs; everything else stays out."""


@dataclass(frozen=True)
class ClaudeSettings:
    """One session's settings. Money in US dollars, times in seconds; None: not said."""

    model: str | None = None
    fallback_model: str | None = None
    tools: tuple[str, ...] = TOOLS
    permission_mode: str = "dontAsk"
    max_turns: int | None = None
    effort: str | None = None
    system_prompt: str | None = None
    """Added to what garrison says."""
    budget: float | None = None
    """Of the node, over all its attempts."""
    budget_run: float | None = None
    budget_day: float | None = None
    """Of the whole home, a calendar day in UTC."""
    stale: float = 240.0
    """Silence of a session, no tool under way, after which it is interrupted."""
    starts: int = 2
    """How many sessions may start at one time in the home."""
    cli: str | None = None
    """Another CLI than the SDK's own."""
    set: Mapping[str, str] = field(default_factory=dict)
    """Variables set for the CLI."""


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
    number = int(str(value))
    if number < 1:
        raise ValueError("a whole number above 0")
    return number


def _amount(value: Any) -> float:
    number = float(str(value).strip().lower().removesuffix("usd").strip("$ "))
    if not 0 < number < 1e9:
        raise ValueError("a number above 0")
    return number


def _one_of(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError("one of " + ", ".join(words))
        return str(value)

    return read


def _mapping(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise ValueError("a table of texts")
    return dict(value)


READERS: Mapping[str, Callable[[Any], Any]] = {
    "model": _text, "fallback_model": _text, "tools": _names, "permission_mode": _one_of(*MODES), "max_turns": _count,
    "effort": _one_of(*EFFORTS), "system_prompt": _text, "budget": _amount, "budget_run": _amount,
    "budget_day": _amount, "stale": _amount, "starts": _count, "cli": _text, "set": _mapping,
}
"""Setting → how its value is read."""
ATTRIBUTES = {"model": ("model", "llm_model"), "effort": ("effort", "reasoning_effort"), "tools": ("tools",),
              "permission_mode": ("permission_mode",), "max_turns": ("max_turns",), "budget": ("budget",),
              "system_prompt": ("system_prompt",), "fallback_model": ("fallback_model",)}
"""Setting → the node attributes that say it, the first found wins."""


def from_profile(where: str, values: Mapping[str, Any]) -> ClaudeSettings:
    """The settings of a profile's table; UsageError, beginning with `where`, for what cannot be meant."""
    unknown = sorted(set(values) - set(READERS))
    if unknown:
        raise UsageError(f"{where}: {unknown[0]} is not a setting; there are {', '.join(sorted(READERS))}")
    return _with(ClaudeSettings(), where, values)


def for_node(profile: ClaudeSettings, node: str, attributes: Mapping[str, Any]) -> ClaudeSettings:
    """The profile with what the node says; UsageError for what cannot be meant."""
    said = {}
    for name, spellings in ATTRIBUTES.items():
        found = next((attributes[word] for word in spellings if word in attributes), None)
        if found is not None:
            said[name] = found
    return _with(profile, f"node {node}", said)


def read_only(profile: ClaudeSettings) -> ClaudeSettings:
    """The profile for a validator: nothing that writes, whatever the profile allows."""
    kept = tuple(tool for tool in profile.tools if tool in READ_ONLY)
    return replace(profile, tools=kept or READ_ONLY, permission_mode="dontAsk")


def _with(settings: ClaudeSettings, where: str, values: Mapping[str, Any]) -> ClaudeSettings:
    read = {}
    for name, value in values.items():
        try:
            read[name] = READERS[name](value)
        except (ValueError, AttributeError) as error:
            wanted = str(error) if "literal" not in str(error) and "convert" not in str(error) else "a number"
            raise UsageError(f"{where}: {name}={value!r} should be {wanted}") from error
    return replace(settings, **read)


def to_json(settings: ClaudeSettings) -> dict[str, Any]:
    """For the order that a stretch is given."""
    values = {one.name: getattr(settings, one.name) for one in fields(settings)}
    return {**values, "tools": list(settings.tools), "set": dict(settings.set)}


def from_json(values: Mapping[str, Any]) -> ClaudeSettings:
    """The inverse of `to_json`."""
    return ClaudeSettings(**{**values, "tools": tuple(values["tools"])})
