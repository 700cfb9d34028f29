"""Extensions of a session as options of the SDK: tools, servers, subagents, skills, plugins, hooks, thinking."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from garrison.agents.claude.extensions import EVENTS, cli_settings, tool_of
from garrison.agents.claude.tools import SERVER
from garrison.records import atomic
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.agents.claude.settings import ClaudeSettings

SKILLS = "garrison"
"""Name of the plugin that holds the skills of the settings."""


def extension_options(settings: ClaudeSettings, config: str, repository: Mapping[str, str]) -> dict[str, Any]:
    """Return the options; the skills become a plugin in the CLI's configuration folder `config`.

    Args:
        repository: the repository's own settings, where the profile takes them; the profile's win.
    """
    shared = repository_options(repository, config)
    more = [*(["Agent"] if settings.subagents or shared.plugins else []),
            *(["Skill"] if settings.skills or shared.plugins else [])]
    names = list(dict.fromkeys(tool_of(pattern) for pattern in (*settings.tools, *more)))
    servers = {**shared.servers, **{name: dict(server) for name, server in settings.mcp_servers.items()}}
    may = settings.allowed_tools or (*settings.tools, *(f"mcp__{name}" for name in servers))
    own = cli_settings(settings.hooks, attribution=settings.attribution)
    for event, matchers in shared.hooks.items():
        own.setdefault("hooks", {}).setdefault(event, []).extend(matchers)
    skills = [link_skills(Path(config), settings.skills)] if settings.skills else []
    plugins = [*shared.plugins, *settings.plugins, *skills]
    return {
        "tools": [name for name in names if not name.startswith("mcp__")], "allowed": [*may, *more, *shared.allowed],
        "disallowed_tools": [*settings.disallowed_tools, *shared.denied], "servers": servers,
        "agents": settings.subagents,
        "plugins": [{"type": "local", "path": path} for path in plugins], "add_dirs": list(settings.add_dirs),
        "betas": list(settings.betas), "thinking": _thinking(settings.thinking),
        "settings": json.dumps(own) if own else None}


class RepositoryOptions(Value):
    """What a repository's own `.claude/` and `.mcp.json` add."""

    servers: Mapping[str, Any] = msgspec.field(default_factory=dict)
    hooks: Mapping[str, list[Any]] = msgspec.field(default_factory=dict)
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()


def repository_options(files: Mapping[str, str], config: str) -> RepositoryOptions:
    """Return what a repository's settings add; what cannot be read adds nothing.

    Variables (`env`) are left out: they could lead the CLI past its proxy. Skills, commands and subagents become a
    plugin in the folder `config`.
    """
    if not files:
        return RepositoryOptions()
    servers, own = (_table(files.get(name, "")) for name in (".mcp.json", ".claude/settings.json"))
    rules, hooks = _dict(own.get("permissions")), _dict(own.get("hooks"))
    plugin = Path(config) / "repository"
    shutil.rmtree(plugin, ignore_errors=True)
    parts = {name.removeprefix(".claude/"): text for name, text in files.items() if name.count("/") > 1}
    for name, text in parts.items():
        atomic.make_directory((plugin / name).parent)
        (plugin / name).write_text(text)
    if parts:
        manifest = atomic.make_directory(plugin / ".claude-plugin") / "plugin.json"
        about = {"name": "repository", "version": "1.0.0", "description": "The repository's own"}
        manifest.write_text(json.dumps(about))
    return RepositoryOptions(
        {name: table for name, table in _dict(servers.get("mcpServers")).items()
         if isinstance(table, dict) and name != SERVER},
        {event: matchers for event, matchers in hooks.items() if event in EVENTS and isinstance(matchers, list)},
        _words(rules.get("allow")), _words(rules.get("deny")), (str(plugin),) if parts else ())


def _table(text: str) -> dict[str, Any]:
    try:
        return _dict(json.loads(text))
    except ValueError:
        return {}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _words(value: Any) -> tuple[str, ...]:
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()


def link_skills(config: Path, skills: tuple[str, ...]) -> str:
    """Make a plugin of folders with skills; return its folder."""
    plugin = config / "garrison-skills"
    shutil.rmtree(plugin, ignore_errors=True)
    for skill in map(Path, skills):  # copied: a sandbox does not have the original
        shutil.copytree(skill, plugin / "skills" / skill.name)
    manifest = atomic.make_directory(plugin / ".claude-plugin") / "plugin.json"
    manifest.write_text(json.dumps({"name": SKILLS, "version": "1.0.0", "description": "Skills of this agent"}))
    return str(plugin)


def _thinking(wanted: str | int | None) -> dict[str, Any] | None:
    if wanted is None:
        return None
    return {"type": "enabled", "budget_tokens": wanted} if isinstance(wanted, int) else {"type": wanted}
