"""`garrison`: the table of all commands, each imported when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from garrison import __version__
from garrison.cli.commands import LazyGroup, run_command
from garrison.cli.options import home_option, use_home
from garrison.cli.output import print_message
from garrison.errors import GarrisonError
from garrison.plugins import OWN_COMMANDS

SECTIONS = {
    "Most used": {
        "init": ("init", "init", "Prepare a repository: find and try its gate, write garrison.toml."),
        "run": ("run", "run", "Let an agent do one task, given in words, and land it."),
        "launch": ("launch", "launch", "Run a pipeline on a repository."),
        "status": ("status", "status", "Show runs, their nodes, and what failed; --watch redraws."),
        "logs": ("logs", "logs", "Show the output of a node's agent or of a process."),
        "attach": ("attach", "attach", "Watch a node's session, or type into it."),
        "answer": ("answer", "answer", "Answer a question of an agent or of a gate."),
        "review": ("review", "review", "Show work that waits to land; approve or reject it."),
        "stop": ("launch", "stop", "Stop a run gracefully; it can be resumed."),
        "resume": ("resume", "resume", "Continue a run or a workflow that stopped, failed or died."),
        "why": ("why", "why", "Explain what happened to a node, why, and what to do."),
    },
    "Runs": {
        "events": ("events", "events", "Print events as lines or JSON; -f follows."),
        "wait": ("wait", "wait", "Wait until a run is over or needs you; the exit code says which."),
        "tell": ("tell", "tell", "Send a message to a session at its next turn."),
        "add": ("change", "add", "Add a task to a run at work."),
        "edit": ("change", "edit", "Change a node that has not started: task, agent, budget."),
        "tick": ("tick", "tick", "Tick a run's landed tasks in its list."),
        "undo": ("undo", "undo", "Revert what a node or a run has landed."),
        "prompt": ("prompt", "prompt", "Print the prompts of a node's agent."),
        "cost": ("cost", "cost", "Show the cost of model calls."),
        "timeline": ("timeline", "timeline", "Show where a run's time and money went."),
        "rescue": ("rescue", "rescue", "List, inspect and restore saved work."),
        "setup": ("setup", "setup", "List and remove kept set-ups."),
        "schedule": ("schedule", "schedule", "Start runs at set times: add, list and control schedules."),
        "up": ("launch", "up", "Start missing launchers of unfinished runs, as after a boot."),
        "clean": ("clean", "clean", "Remove leftovers of finished runs."),
    },
    "Pipelines, queue and agents": {
        "new": ("new", "new", "Write a pipeline from a template."),
        "pipeline": ("pipeline", "pipeline", "Check, draw and try pipelines."),
        "merge-queue": ("merge_queue", "merge_queue", "Inspect, fill and control the merge queue."),
        "agents": ("agents", "agents", "List and control agents."),
        "signals": ("signals", "signals", "List and send signals."),
    },
    "Other machines": {},
    "Page and chat": {},
    "Inside an agent": {
        "report": ("agent_requests", "report", "Report the result of the calling agent's node."),
        "note": ("agent_requests", "note", "Leave a note for the calling agent's successor."),
        "phase": ("agent_requests", "phase", "Report the progress of the calling agent."),
        "ask-person": ("agent_requests", "ask_person", "Ask the user from inside an agent; print the answer."),
    },
    "This installation": {
        "doctor": ("doctor", "doctor", "Find problems in a home; --fix repairs them."),
        "import": ("import_original", "import_command", "Import records of the original's scripts."),
        "config": ("configuration", "config", "Show the configuration and the origin of its values."),
        "home": ("home", "home", "Print the state directory."),
        "install-service": ("service", "install_service", "Write the systemd units, or print cron's lines."),
        "find-stale": ("identities", "find_stale_command", "List silent or dead processes; --respawn for cron."),
        "completion": ("completion", "completion", "Print the completion script for bash, zsh or fish."),
        "uninstall": ("uninstall", "uninstall", "Remove garrison's data from this machine."),
        "demo": ("demo", "demo", "Watch agents work while each process is killed once."),
        "help": ("commands", "help_command", "Show the help of a command."),
        "version": ("commands", "version", "Show the version."),
    },
}
"""Heading → command → (module of garrison.cli, attribute, help line); those of extras are in `plugins.OWN_COMMANDS`."""

SCRIPTS = {
    "identity-registry": ("identities", "identity_registry"),
    "hook-manager": ("hooks", "hook_manager"),
    "signal-protocol": ("signals", "signal_protocol"),
}
"""Scripts of the checkout; an installed garrison has equal commands (`garrison prompt runner|guardian`)."""

_OTHER_WORDS = (
    ("ps ls list runs show", "`garrison status` shows the runs"),
    ("continue unpause restore", "`garrison resume RUN` continues a run"),
    ("retry restart respawn rerun", "`garrison agents retry NODE` tries a failed node again, `garrison resume RUN "
     "--retry-failed` all failed nodes of a run, `garrison agents respawn NODE` restarts a node's agent"),
    ("tasks todo", "`garrison run --tasks FILE` runs a list of tasks"),
    ("start exec", "`garrison run TASK` starts one task, `garrison launch PIPELINE` a pipeline"),
    ("cancel abort kill quit end", "`garrison stop RUN` stops a run, `garrison agents cancel NODE` a node"),
    ("pause hold park", "`garrison agents park NODE` pauses a node, `garrison merge-queue pause` the landing"),
    ("approve reject diff changes", "`garrison review` shows and approves work that waits to land"),
    ("merge land queue enqueue", "`garrison merge-queue` shows and controls the queue"),
    ("validate lint check", "`garrison pipeline validate FILE` checks a pipeline"),
    ("render graph draw", "`garrison pipeline render FILE` draws a pipeline"),
    ("web ui dashboard page", "`garrison serve` serves the web page"),
    ("ssh connect join enter", "`garrison attach NODE` shows a node's session"),
    ("log tail output", "`garrison logs NODE -f` follows a node's output"),
    ("watch monitor htop", "`garrison top` watches everything live"),
    ("usage costs budget spend", "`garrison cost` shows the cost of model calls"),
    ("gantt duration durations eta", "`garrison timeline RUN` shows where a run's time and money went"),
    ("explain history inspect", "`garrison why NODE` explains what happened to a node"),
    ("audit prove attest", "`garrison verify RUN` checks a run against git and its gates' attestations"),
    ("rm delete remove prune gc", "`garrison clean` removes leftovers of finished runs"),
    ("configure", "`garrison init` prepares a repository"),
    ("settings options", "`garrison config show` shows the configuration"),
    ("signal send", "`garrison signals send NAME` lets a waiting node continue"),
    ("cron timer nightly every", "`garrison schedule add TIMES -- run TASK` starts runs at set times"),
    ("reply respond", "`garrison answer NODE TEXT` answers a question"),
)
"""Commands of other tools → what to use."""
_HINTS = {word: hint for words, hint in _OTHER_WORDS for word in words.split()}


EPILOG = """\b
Examples:
  garrison init                                in your repository, once
  garrison run "fix the flaky test"            one task, in words
  garrison launch work.dot --gate "make test"  a pipeline of tasks
  garrison status --watch
  garrison COMMAND --help                      options and examples of a command
  garrison help --all                          all commands

\b
Completion:
  garrison completion bash >> ~/.bashrc      (zsh and fish: garrison completion --help)
"""


_FIRST_SCREEN = """\
Keep a crew of coding agents at work on one git repository.

  garrison demo                watch it for half a minute
  garrison init                in your repository, once
  garrison run "fix the bug"   one task, in words
  garrison run --tasks TODO.md each task of a list
  garrison status              what is at work
  garrison review              what waits to land
  garrison why NODE            what happened, what to do
  garrison doctor              what this machine lacks

garrison COMMAND --help: options and examples of a command
garrison help --all: all commands
"""
"""Output of `garrison` without arguments: fits into 24 lines of 60 columns."""


@click.group(cls=LazyGroup, sections=SECTIONS, unlisted=SCRIPTS, extras=OWN_COMMANDS, hints=_HINTS, epilog=EPILOG,
             invoke_without_command=True)
@click.version_option(__version__)
@home_option
@click.pass_context
def garrison(context: click.Context, home: str | None) -> None:
    """Keep a crew of coding agents at work on one git repository."""
    use_home(home)
    if context.invoked_subcommand is None:
        click.echo(_FIRST_SCREEN, err=True)
        print_message(_describe_place())
        context.exit(2)


def _describe_place() -> str:
    """Return a line on the current directory: what is missing, or the next step."""
    from garrison.config import PROJECT_FILE
    from garrison.system.git import validate_repository
    from garrison.system.git.repository import check_version

    try:
        check_version()
        repo = validate_repository(Path.cwd())
    except GarrisonError as error:
        return f"here: {error}"
    if not (repo / PROJECT_FILE).exists():
        return f"here: {repo} is not prepared yet; next: garrison init"
    return f"here: {repo} is prepared; next: garrison run TASK"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `garrison …`; returns the exit code."""
    return run_command(garrison, argv, "garrison")


if __name__ == "__main__":
    sys.exit(main())
