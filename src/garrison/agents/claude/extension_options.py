"""Extensions of a session as options of the SDK: tools, servers, subagents, skills, plugins, hooks, thinking."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.agents.claude.extensions import cli_settings, tool_of
from garrison.records import atomic

if TYPE_CHECKING:
    from garrison.agents.claude.settings import ClaudeSettings

SKILLS = "garrison"
"""Name of the plugin that holds the skills of the settings."""


def extension_options(settings: ClaudeSettings, config: str) -> dict[str, Any]:
    """Return the options; the skills become a plugin in the CLI's configuration folder `config`."""
    more = [*(["Agent"] if settings.subagents else []), *(["Skill"] if settings.skills else [])]
    names = list(dict.fromkeys(tool_of(pattern) for pattern in (*settings.tools, *more)))
    servers = {name: dict(server) for name, server in settings.mcp_servers.items()}
    allowed = [*(settings.allowed_tools or (*settings.tools, *(f"mcp__{name}" for name in servers))), *more]
    own = cli_settings(settings.hooks, attribution=settings.attribution)
    plugins = [*settings.plugins, *([link_skills(Path(config), settings.skills)] if settings.skills else [])]
    return {
        "tools": [name for name in names if not name.startswith("mcp__")], "allowed": allowed,
        "disallowed_tools": list(settings.disallowed_tools), "servers": servers, "agents": settings.subagents,
        "plugins": [{"type": "local", "path": path} for path in plugins], "add_dirs": list(settings.add_dirs),
        "betas": list(settings.betas), "thinking": _thinking(settings.thinking),
        "settings": json.dumps(own) if own else None}


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
