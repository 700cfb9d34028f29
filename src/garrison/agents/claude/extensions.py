"""Extensions of a Claude session: read the settings for additional tools, knowledge and rules.

Tool patterns are the CLI's: `Bash`, `Bash(git status:*)`, `mcp__server__tool`. A missing tool is refused before the run
starts: the CLI would silently ignore it, and the agent would lack it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from garrison.errors import UsageError
from garrison.spelling import nearest
from garrison.tables import Table, as_text

TOOLS = frozenset((
    "Agent", "AskUserQuestion", "Bash", "BashOutput", "Edit", "EnterPlanMode", "ExitPlanMode", "Glob", "Grep",
    "KillShell", "ListMcpResourcesTool", "LSP", "MultiEdit", "NotebookEdit", "NotebookRead", "Read",
    "ReadMcpResourceTool", "Skill", "SlashCommand", "StructuredOutput", "Task", "TaskOutput", "TaskStop", "TodoWrite",
    "ToolSearch", "WebFetch", "WebSearch", "Write"))
"""Tools of the CLI."""
EVENTS = ("PreToolUse", "PostToolUse", "PostToolUseFailure", "UserPromptSubmit", "Stop", "SubagentStart",
          "SubagentStop", "PreCompact", "Notification", "SessionStart", "SessionEnd")
"""Events of the CLI's hooks."""
_SERVER_KEYS = ("type", "command", "args", "env", "url", "headers")
_SUBAGENT_KEYS = ("description", "prompt", "tools", "model")
_HOOK_KEYS = frozenset(("matcher", "command", "timeout"))
_BETWEEN = re.compile(r"[,\s]+(?![^(]*\))")
"""Separator of patterns, outside parentheses."""
_PATTERN = re.compile(r"([A-Za-z_][\w-]*)(\(.*\))?", re.DOTALL)


# ---- tools


def patterns(value: object) -> tuple[str, ...]:
    """Read tool patterns: a list, or a text that separates them with commas or blanks outside parentheses."""
    words = [word for word in _BETWEEN.split(value) if word] if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError("a list of names")
    for word in words:
        if not _PATTERN.fullmatch(word.strip()):
            raise ValueError(f"tools such as Bash or Bash(git status:*), not {word!r}")
    return tuple(word.strip() for word in words)


def tool_of(pattern: str) -> str:
    """Return the tool of a pattern. Pure."""
    return pattern.partition("(")[0]


def unknown_tool(found: Collection[str], servers: Collection[str]) -> str:
    """Return the problem of the first pattern whose tool does not exist; '' if all do. Pure.

    Args:
        found: the patterns.
        servers: names of the MCP servers, whose tools are unknown before they run.
    """
    for pattern in found:
        tool = tool_of(pattern)
        if tool.startswith("mcp__"):
            server = tool.removeprefix("mcp__").partition("__")[0]
            if server not in (*servers, "garrison"):
                return f"there is no MCP server {server} for {tool}; there are {', '.join(sorted(servers)) or 'none'}"
        elif tool not in TOOLS:
            near = nearest(tool, TOOLS)
            return f"there is no tool {tool}; " + (f"did you mean {near}?" if near else
                                                   f"there are {', '.join(sorted(TOOLS))}")
    return ""


# ---- tables


def mcp_servers(table: Table) -> dict[str, dict[str, Any]]:
    """Read MCP servers by name: a command with its arguments, or a url."""
    servers = {}
    for server, values in _tables(table, _SERVER_KEYS):
        if bool(values.get("command")) == bool(values.get("url")):
            raise server.error("should have either a command or a url")
        servers[server.keys[-1]] = {**({"type": "http"} if values.get("url") else {}), **values}
    return servers


def subagents(table: Table) -> dict[str, dict[str, object]]:
    """Read subagents by name: description, prompt, tools and model of each."""
    found = {}
    for subagent, values in _tables(table, _SUBAGENT_KEYS):
        for key in ("description", "prompt"):
            if not subagent.value(key, as_text, ""):
                raise subagent.error("should have a description and a prompt")
        found[subagent.keys[-1]] = {**values, **(
            {"tools": list(subagent.value("tools", patterns, ()))} if "tools" in values else {})}
    return found


def hooks(table: Table) -> dict[str, list[dict[str, object]]]:
    """Read hooks by event: commands, each with a matcher."""
    for wrong, _ in table.unknown(EVENTS):
        raise UsageError(wrong)
    return {event: table.value(event, _hooks, []) for event in table.values}


def _hooks(value: object) -> list[dict[str, object]]:
    if not isinstance(value, list) or not all(
            isinstance(entry, dict) and isinstance(entry.get("command"), str) and not set(entry) - _HOOK_KEYS
            for entry in value):
        raise ValueError("a list of tables with command and, if wanted, matcher and timeout")
    return [dict(entry) for entry in value]


def _tables(table: Table, known: Collection[str]) -> Iterator[tuple[Table, dict[str, object]]]:
    """Yield the subtables of a table with their values; UsageError for an unknown key."""
    for name in table.require(("NAME",)):
        below = table.below(name)
        for wrong, _ in below.unknown(known):
            raise UsageError(wrong)
        yield below, {key: value for key, value in below.values.items() if not key.startswith("x_")}


# ---- other values


def paths(value: object) -> tuple[str, ...]:
    """Read existing absolute paths; `~` is the user's home."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError("a list of paths")
    found = [Path(word.strip()).expanduser() for word in words]
    for path in found:
        if not path.is_absolute() or not path.exists():
            raise ValueError(f"existing absolute paths, not {path}")
    return tuple(map(str, found))


def thinking(value: Any) -> str | int:
    """Read how the model thinks: `adaptive`, `disabled`, or a number of tokens."""
    if value in ("adaptive", "disabled"):
        return str(value)
    if str(value).isdigit() and int(value) >= 1024:
        return int(value)
    raise ValueError("adaptive, disabled or a number of tokens from 1024")


def schema(value: object) -> dict[str, object]:
    """Read a JSON schema of an object: a table, a JSON text, or the absolute path of a JSON file."""
    if isinstance(value, str):
        try:
            text = value if value.lstrip().startswith("{") else Path(value).expanduser().read_text()
            value = json.loads(text)
        except (OSError, ValueError) as error:
            raise ValueError(f"a JSON schema, or a file with one ({error})") from None
    if not isinstance(value, dict) or value.get("type") != "object":
        raise ValueError("a JSON schema of type object")
    return value


# ---- for the CLI


def cli_settings(wanted: Mapping[str, list[dict[str, object]]], *, attribution: bool,
                 more: Mapping[str, list[object]] = MappingProxyType({})) -> dict[str, object]:
    """Return the CLI's own settings for hooks and for signing commits. Pure.

    Args:
        more: further hooks by event, in the CLI's format.
    """
    settings: dict[str, object] = {}
    if wanted or more:
        settings["hooks"] = {event: [*map(_matcher, wanted.get(event, ())), *more.get(event, ())]
                             for event in dict.fromkeys((*wanted, *more))}
    if not attribution:
        settings |= {"includeCoAuthoredBy": False, "attribution": {"commit": "", "pr": ""}}
    return settings


def _matcher(entry: Mapping[str, object]) -> dict[str, object]:
    command = {"type": "command", **{key: entry[key] for key in ("command", "timeout") if key in entry}}
    return {**({"matcher": entry["matcher"]} if "matcher" in entry else {}), "hooks": [command]}
