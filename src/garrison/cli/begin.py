"""Shared by the commands that start work: launch options, the task in words, and its agent.

Imports only what such a command needs until it launches.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garrison.agents.registry import find_profile, installed_agents
from garrison.cli.options import PluginChoice, combined, home_option, run_budget_option
from garrison.cli.output import print_message
from garrison.cli.sandbox import sandbox_option
from garrison.cli.task_list import MAX_BYTES, decode_text
from garrison.errors import Refused, UsageError
from garrison.extras import install_line
from garrison.plugins import PluginGroup
from garrison.records import atomic
from garrison.run.request import LaunchRequest, find_subfolder, read_defaults
from garrison.spelling import nearest
from garrison.system.git import validate_repository

if TYPE_CHECKING:
    from garrison.processes.runtime import Runtime

OPTION_GROUPS = {
    "Run and repository": ("target_dir", "base", "run", "pipeline_id", "new"),
    "Worktrees, tests and landing": ("setup", "setup_key", "fresh_setup", "gate", "no_gate", "gate_from_target",
                                     "with_hooks", "land", "approve", "allow_foreign_imports", "trust_git_config"),
    "Flow": ("auto_approve", "max_steps"),
    "Agents": ("agent", "failover", "hosts", "env", "max_agents", "max_respawn", "max_rework", "budget_run",
               "terminal", "sandbox"),
}
"""Heading of the help → parameters."""

launch_options = combined(
    click.option("--target-dir", metavar="DIR", type=click.Path(path_type=Path),
                 help="Repository to work on (default: the one you are in)."),
    click.option("--run", metavar="ID", help="Id of the new run (default: made from the name)."),
    click.option("--pipeline-id", metavar="NAME",
                 help="Name of the guardian (default: the graph's id, else the file's)."),
    click.option("--base", metavar="BRANCH",
                 help="Branch to land on (default: the one checked out); REMOTE:BRANCH with --land pr."),
    click.option("--setup", metavar="CMD", help="Command that prepares a fresh worktree for agents and tests; '' for "
                 "none, even if the last launch had one."),
    click.option("--setup-key", multiple=True, metavar="FILE",
                 help="File whose change makes set-up run again (repeatable; default: the common lock files)."),
    click.option("--fresh-setup", is_flag=True,
                 help="Run set-up again, even if the result of an earlier one is kept."),
    click.option("--gate", metavar="CMD", help="Command that tests a merged tree; only passing trees land."),
    click.option("--no-gate", is_flag=True, help="Land without testing."),
    click.option("--gate-from-target", multiple=True, metavar="GLOB",
                 help="Files that the gate sees in the target's version, not the branch's (repeatable)."),
    click.option("--with-hooks", is_flag=True,
                 help="Run your current reference-transaction hook before each landing."),
    click.option("--trust-git-config", is_flag=True,
                 help="Let garrison's git use settings that appeared while agents were at work."),
    click.option("--land", type=click.Choice(["node", "run", "none", "pr"]),
                 help="What lands on the branch: each finished node, the whole run once at its exit, the same by a "
                      "pull request, or nothing (default: the graph's land=, garrison.toml's or config.toml's, else "
                      "node for flow=dag, run for others)."),
    click.option("--approve", is_flag=True,
                 help="Hold the work of every node until you approve it (`garrison review NODE`)."),
    click.option("--env", "env", multiple=True, metavar="NAME", help="Variable that agents and gate get (repeatable)."),
    click.option("--agent", metavar="NAME",
                 help="Agent of the nodes that name none (default: garrison.toml's or config.toml's, else command)."),
    click.option("--failover", metavar="NAMES",
                 help="Agents that take over, in this order, when a node's agent cannot continue: codex,claude "
                      "(default: failover= of the graph, garrison.toml or config.toml, else of the agent's profile)."),
    click.option("--hosts", metavar="NAMES",
                 help="Hosts for the nodes that name none: box2,box3, one label, or any (`garrison host list`; "
                      "default: this machine)."),
    click.option("--max-agents", "--agents", type=click.IntRange(1), metavar="N",
                 help="Concurrent agents (default: the number of cores, at least 2, and the slots of the hosts)."),
    click.option("--max-respawn", type=click.IntRange(0), default=10, show_default=True, metavar="N",
                 help="Deaths allowed in one attempt."),
    click.option("--max-rework", type=click.IntRange(0), default=2, show_default=True, metavar="N",
                 help="New attempts allowed for one node."),
    click.option("--terminal", type=PluginChoice(["auto", "tmux", "process"], PluginGroup.TERMINALS),
                 default="auto", show_default=True,
                 help="Where agents work: in tmux sessions (`garrison attach` shows them), or as plain processes."),
    run_budget_option,
    sandbox_option,
    home_option,
    click.option("--detach", is_flag=True,
                 help="Return once the launcher is active; `garrison status` shows progress."),
    click.option("--dry-run", is_flag=True, help="Check graph, repository and gate; print the plan, start nothing."),
    click.option("--new", is_flag=True,
                 help="Start another run even if one of this pipeline and repository is unfinished."),
    click.option("--auto-approve", is_flag=True,
                 help="Answer each question of the graph with its default or first option, unless irreversible."),
    click.option("--allow-foreign-imports", is_flag=True,
                 help="Launch even if the gate imports from another checkout."),
    click.option("--serve", "serve", is_flag=True, help="Also serve the run's web page while its launcher is alive."),
    click.option("--json", "as_json", is_flag=True, help="Print progress as one JSON object per line."),
)


def make_request(pipeline: Path, target: Path | None, *, text: str | None = None, **options: Any) -> LaunchRequest:
    """Return the request of these options; the default target is the repository of the current directory."""
    values: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value
                              for name, value in options.items()}
    return LaunchRequest(pipeline, Path.cwd() if target is None else target, text=text, **values)


def choose_agent(runtime: Runtime, here: Path, agent: str | None, otherwise: str = ", or --command CMD") -> str:
    """Return the agent of tasks that name none; Refused if none is configured, UsageError for an unknown one.

    Args:
        here: the repository, or a folder of it.
        otherwise: alternative to naming one, for the refusal.
    """
    who = agent
    if who is None:
        target = validate_repository(here)
        who = read_defaults(runtime.home, target, find_subfolder(here, target)).agent
    if who in (None, "command") and agent is None:
        raise Refused(f"which agent? {_installed(runtime, otherwise)}; `garrison init` keeps your choice")
    find_profile(str(who), runtime.home)  # report a misspelt one before asking questions
    return str(who)


def _installed(runtime: Runtime, otherwise: str) -> str:
    names = installed_agents(runtime.home, runtime.environ.get("PATH", ""))
    if not names:
        return ("none that garrison knows is installed here: `garrison agents presets` lists them, "
                f"`{install_line('claude')}` brings Claude{otherwise}")
    return f"pass --agent {' or --agent '.join(names)}{otherwise}"


def read_task(words: tuple[str, ...], file: Path | None, what: str = "task") -> str:
    """Return the task: these words, or the content of a file or standard input (`-`); UsageError if invalid.

    Args:
        what: the user's word for it.
    """
    if words and file is not None:
        raise UsageError(f"give the {what} in words or with --file, not both")
    source = Path("-") if words == ("-",) else file
    task = (" ".join(words) if source is None else read_text(source)).strip()
    if len(task) < 2:
        raise UsageError(f"the {what} is {f'one character: {task}' if task else 'empty'}; describe in words what to do")
    # bytes of the command line that are not UTF-8 become lone surrogates, which a JSON record in UTF-8 cannot contain
    # isprintable() decides most tasks, faster than the search
    if not task.isprintable() and any("\ud800" <= character <= "\udfff" for character in task):
        raise UsageError(f"the {what} is not text in UTF-8; write it with --file FILE, saved as UTF-8")
    if len(words) == 1 and task.endswith(".dot"):
        raise UsageError(f"{task} is a pipeline's file; `garrison launch {task}` runs it")
    if len(words) == 1 and source is None and not task.count(" ") and _is_file(task):
        raise UsageError(f"{task} is a file: `garrison run --tasks {task}` does the tasks of its list, --file {task} "
                         "takes all of it as one")
    return task


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except (OSError, ValueError):  # the task cannot be a file's name
        return False


def read_text(source: Path) -> str:
    """Return the text of a file, or of standard input for `-`; UsageError if unreadable or not text."""
    try:
        if str(source) == "-":
            if sys.stdin.isatty():
                print_message("type it here; Ctrl-D on its own line ends it")
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with source.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except OSError as error:
        near = nearest(source.name, atomic.list_names(source.parent)) if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"cannot read {source}: {error.strerror}"
                         + (f"; did you mean {source.with_name(near)}?" if near else "")) from error
    return decode_text(data, name_of(source))


def name_of(source: Path) -> str:
    """Return the name of a source of text for messages."""
    return "standard input" if str(source) == "-" else str(source)
