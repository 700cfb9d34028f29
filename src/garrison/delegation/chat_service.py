"""Chat service of a home: its crew with garrison commands as tools, its conversations, preferences and limits.

A tool runs a command in its own process and returns its output. The cost of the sessions is recorded
(`records.budget.Purse`) and limited by `[chat]` of config.toml.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from garrison.agents.graph.graph import claude, graph_settings
from garrison.config import read_config
from garrison.delegation.butler import AgentOrchestrator
from garrison.delegation.conversation import Conversation
from garrison.delegation.specialist_tools import SpecialistTools
from garrison.delegation.specialists import read_crew
from garrison.errors import Refused
from garrison.records.budget import Allowance, Purse
from garrison.system.command import run_to_end
from garrison.system.machine import garrison_argv

COMMAND_SECONDS = 120.0
"""Time limit of a tool's command, in seconds."""
RUN_SECONDS = 7200.0
"""The same for a command that starts a run: its pre-flight may run a set-up and a gate."""


def open_chat(home: Path, conversation: str, repo_root: Path | None = None) -> AgentOrchestrator:
    """Return the orchestrator of a home's conversation, with its crew, tools and preferences; UsageError for an
    invalid crew.
    """
    settings, metadata = graph_settings(home)
    limits = read_config(home).chat()
    purse = Purse(home, "chat", conversation, Allowance(limits.budget, limits.budget_day, settings.budget_day))
    crew = read_crew(home)
    tools = SpecialistTools(home, _command_runner(home, repo_root))
    for specialist in crew.specialists.values():
        tools.of(specialist)  # refuse a crew with unknown tools before calling a model
    return AgentOrchestrator(crew, Conversation(home / "conversations", conversation), tools=tools.of,
                             preferences=tools.preferences.all, known=lambda: _run_and_node_names(home),
                             metadata={**metadata, "max_turns": limits.max_turns}, model=settings.model,
                             confirm=tools.confirmations, connect=partial(claude, purse=purse),
                             on_message=purse.begin)


def _run_and_node_names(home: Path) -> list[str]:
    """Return the names that a message may mention: runs and their nodes."""
    from garrison.records.run import list_runs

    runs = list_runs(home)
    return [*runs, *(node.name for run in runs for node in (home / "runs" / run / "nodes").glob("*"))]


def _command_runner(home: Path, repo_root: Path | None) -> Any:
    """Return a function that runs a tool's command: garrison's on this home, or git in the repository."""
    async def run(argv: Sequence[str]) -> str:
        environment, seconds = dict(os.environ), COMMAND_SECONDS
        if argv[0] == "git":
            words = ["git", "-C", str(_repository(repo_root)), *argv[1:]]
        elif argv[0] == "run":  # its agent needs the keys
            words = garrison_argv("run", f"--target-dir={_repository(repo_root)}", *argv[1:], home=home)
            seconds = RUN_SECONDS
        else:
            words = garrison_argv(*argv, home=home)
        # a model reads a command's output, so only the command that needs the keys gets them
        if argv[0] != "run":
            environment = {name: value for name, value in environment.items() if not name.startswith("ANTHROPIC_")}
        code, out, err = await run_to_end(words, seconds, environment)
        # `git grep` exits with 1 if it finds nothing, which is an answer
        if code and not (argv[0] == "git" and code == 1):
            raise Refused(err.strip() or f"`{argv[0]}` ended with exit code {code}")
        return (out + err).strip() or "(nothing)"
    return run


def _repository(given: Path | None) -> Path:
    from garrison.system.git.repository import top_directory

    return top_directory(given or Path.cwd())
