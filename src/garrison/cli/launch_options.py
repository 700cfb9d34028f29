"""Options that `garrison launch` and `garrison run` share, and the request that they make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from garrison.cli.options import PluginChoice, home_option
from garrison.cli.sandbox import sandbox_option
from garrison.plugins import Group
from garrison.processes.launch_request import LaunchRequest

OPTION_GROUPS = {
    "Run and repository": ("target_dir", "base", "run", "pipeline_id", "new"),
    "Worktrees, tests and landing": ("setup", "setup_key", "fresh_setup", "gate", "no_gate", "gate_from_target",
                                     "with_hooks", "land", "approve", "allow_foreign_imports", "trust_git_config"),
    "Flow": ("auto_approve", "max_steps"),
    "Agents": ("agent", "failover", "hosts", "env", "max_agents", "max_respawn", "max_rework", "terminal", "sandbox"),
}
"""Heading of the help → parameters."""

_OPTIONS = (
    click.option("--target-dir", metavar="DIR", type=click.Path(path_type=Path),
                 help="Repository to work on (default: the one you are in)."),
    click.option("--run", metavar="ID", help="Id of the new run (default: made from the name)."),
    click.option("--pipeline-id", metavar="NAME",
                 help="Name of the guardian (default: the graph's id, else the file's)."),
    click.option("--base", metavar="BRANCH",
                 help="Branch to land on (default: the one checked out); REMOTE:BRANCH with --land pr."),
    click.option("--setup", metavar="CMD", help="Command that prepares a fresh worktree for agents and tests; '' for "
                 "none, whatever the last launch had."),
    click.option("--setup-key", multiple=True, metavar="FILE",
                 help="File whose change makes set-up run again (repeatable; default: the common lock files)."),
    click.option("--fresh-setup", is_flag=True,
                 help="Run set-up again even if what an earlier one left is kept."),
    click.option("--gate", metavar="CMD", help="Command that tests a merged tree; only what passes lands."),
    click.option("--no-gate", is_flag=True, help="Land without testing."),
    click.option("--gate-from-target", multiple=True, metavar="GLOB",
                 help="Files that the gate sees as the target has them, not as the branch does (repeatable)."),
    click.option("--with-hooks", is_flag=True,
                 help="Ask your reference-transaction hook, as it is now, before each landing."),
    click.option("--trust-git-config", is_flag=True,
                 help="Let garrison's git use settings that appeared while agents were at work."),
    click.option("--land", type=click.Choice(["node", "run", "none", "pr"]),
                 help="What lands on the branch: each finished node, the whole run once at its exit, the same by a "
                      "pull request, or nothing (default: the graph's land=, garrison.toml's or config.toml's, else "
                      "node for flow=dag, run for others)."),
    click.option("--approve", is_flag=True,
                 help="Hold the work of every node until a person approves it (`garrison review NODE`)."),
    click.option("--env", "env", multiple=True, metavar="NAME", help="Variable that agents and gate get (repeatable)."),
    click.option("--agent", metavar="NAME",
                 help="Agent of the nodes that name none (default: garrison.toml's or config.toml's, else command)."),
    click.option("--failover", metavar="NAMES",
                 help="Agents that go on, in this order, when a node's agent cannot: codex,claude (default: the "
                      "graph's failover=, garrison.toml's or config.toml's, else that of the agent's profile)."),
    click.option("--hosts", metavar="NAMES",
                 help="Hosts that do the nodes which name none: box2,box3, one label, or any (`garrison host list`; "
                      "default: this machine)."),
    click.option("--max-agents", "--agents", type=click.IntRange(1), metavar="N",
                 help="Concurrent agents (default: the number of cores, at least 2, and the slots of the hosts)."),
    click.option("--max-respawn", type=click.IntRange(0), default=10, show_default=True, metavar="N",
                 help="Deaths allowed in one attempt."),
    click.option("--max-rework", type=click.IntRange(0), default=2, show_default=True, metavar="N",
                 help="New attempts allowed for one node."),
    click.option("--terminal", type=PluginChoice(["auto", "tmux", "process"], Group.TERMINALS),
                 default="auto", show_default=True,
                 help="Where agents work: in tmux sessions (`garrison attach` shows them), or as plain processes."),
    sandbox_option,
    home_option,
    click.option("--detach", is_flag=True,
                 help="Return once the launcher is active; `garrison status` shows progress."),
    click.option("--dry-run", is_flag=True, help="Check graph, repository and gate; print the plan, start nothing."),
    click.option("--new", is_flag=True,
                 help="Start another run although one of this pipeline and repository is unfinished."),
    click.option("--auto-approve", is_flag=True, help="Answer every gate for people with its default or first option."),
    click.option("--allow-foreign-imports", is_flag=True,
                 help="Launch although the gate imports from another checkout."),
    click.option("--serve", "serve", is_flag=True, help="Also serve the run's web page while its launcher is alive."),
    click.option("--json", "as_json", is_flag=True, help="Print progress as one JSON object a line."),
)


def make_request(pipeline: Path, target: Path | None, *, text: str | None = None, **options: Any) -> LaunchRequest:
    """Return what these options ask for; the target is the repository of the current directory, unless it is named."""
    values: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value
                              for name, value in options.items()}
    return LaunchRequest(pipeline, Path.cwd() if target is None else target, text=text, **values)


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a launch."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
