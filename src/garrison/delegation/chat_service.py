"""The desk of a home: its crew with garrison's own commands as tools, the conversation, what its person prefers.

The rule of this room: a tool is a command in a process of its own; what it says is the tool's result.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from garrison.delegation.butler import AgentOrchestrator
from garrison.delegation.conversation import Conversation
from garrison.delegation.specialist_tools import Desk
from garrison.delegation.specialists import read_crew
from garrison.errors import Refused, UsageError
from garrison.system.jobs import run_to_end

COMMAND_SECONDS = 120.0
"""Seconds that a tool's command may take."""


def desk_of(home: Path, conversation: str, repo_root: Path | None = None) -> AgentOrchestrator:
    """The desk of a home: its crew, its tools, what its person prefers. UsageError for a crew that cannot be meant."""
    model, metadata = claude_node(home)
    crew = read_crew(home)
    desk = Desk(home, _runner(home, repo_root))
    for one in crew.specialists.values():
        desk.of(one)  # a crew that wants what nobody has is refused before anybody is asked
    return AgentOrchestrator(crew, Conversation(home / "conversations", conversation), tools=desk.of,
                             preferences=desk.preferences.all, known=lambda: _names(home), metadata=metadata,
                             model=model)


def claude_node(home: Path) -> tuple[str | None, dict[str, Any]]:
    """(model, metadata) of a Claude node of an agent graph with the home's settings and log-in."""
    from garrison.agents.claude import cli_process
    from garrison.agents.registry import ClaudeProfile, find_profile
    from garrison.records import atomic

    profile = find_profile("claude", home)
    if not isinstance(profile, ClaudeProfile):
        raise UsageError("the agent `claude` of config.toml is no Claude agent, and this needs one")
    atomic.make_directory(cli_process.config_folder(home))
    return profile.settings.model, cli_process.graph_metadata(profile.settings, home, home)


def _names(home: Path) -> list[str]:
    """The names a message may mean: runs and their nodes."""
    from garrison.records.run import list_runs

    found = list_runs(home)
    return [*found, *(node.name for run in found for node in (home / "runs" / run / "nodes").glob("*"))]


def _runner(home: Path, repo_root: Path | None) -> Any:
    """Runs a tool's command: garrison's on this home, or git in the repository."""
    async def run(argv: Sequence[str]) -> str:
        if argv[0] == "git":
            words = ["git", "-C", str(_repository(repo_root)), *argv[1:]]
        else:
            words = [sys.executable, "-P", "-m", "garrison.cli.main", "--home", str(home), *argv]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTHROPIC_")}
        code, out, err = await run_to_end(words, COMMAND_SECONDS, environment)
        if code and not (argv[0] == "git" and code == 1):
            raise Refused(err.strip() or f"`{argv[0]}` ended with {code}")
        return (out + err).strip() or "(nothing)"
    return run


def _repository(given: Path | None) -> Path:
    from garrison.system.git.repository import top_directory

    return top_directory(given or Path.cwd())
