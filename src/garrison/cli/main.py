"""`garrison`: the group of all commands, and the one place where an error becomes a line and an exit code.

Commands are loaded when they are called: `garrison agents list` loads neither lark nor rich. The table names each
command's module, attribute and help line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from garrison.cli.commands import LazyGroup
from garrison.cli.options import home_option
from garrison.cli.output import INTERRUPTED, print_error, print_message, run_guarded
from garrison.errors import Refused

COMMANDS = {
    "launch": ("launch", "launch", "Run a pipeline on a repository, or go on with an unfinished run."),
    "up": ("launch", "up", "Start a launcher for every unfinished run that has none."),
    "stop": ("launch", "stop", "Stop a run in order; it can be resumed."),
    "status": ("status", "status", "Show runs, their nodes and layers, what failed; `--watch` redraws."),
    "top": ("top", "top", "Watch layers, queue, costs and deaths live, and act on them with a key."),
    "serve": ("serve", "serve", "Serve the web page: runs live, with what one may do about them."),
    "why": ("why", "why", "Explain what was done about a node or an agent, from what was observed."),
    "events": ("events", "events", "Print what happens, as lines or JSON; `-f` goes on."),
    "metrics": ("metrics", "metrics", "Print the home's numbers for Prometheus."),
    "logs": ("logs", "logs", "Show what a node's agent, or a layer, printed."),
    "attach": ("attach", "attach", "Watch a node's session, or type into it."),
    "answer": ("answer", "answer", "Answer what an agent asked."),
    "workflow": ("workflows", "workflow", "Named tools in dependency order, with results that flow."),
    "session": ("sessions", "session", "Speak with a session whose flow is a graph."),
    "ask": ("chat", "ask", "Ask the butler something; specialists work with garrison's own commands."),
    "chat": ("chat", "chat", "Speak with the butler."),
    "takeover": ("takeover", "takeover", "Go on in a Claude agent's session yourself; it waits meanwhile."),
    "login": ("login", "login", "Log the home's Claude agents in."),
    "cost": ("cost", "cost", "Show what Claude sessions have cost."),
    "rescue": ("rescue", "rescue", "Work that was kept: list it, look at it, have it again."),
    "clean": ("clean", "clean", "Remove what finished runs left."),
    "doctor": ("doctor", "doctor", "Find what is wrong with a home; `--fix` mends it."),
    "agents": ("agents", "agents", "Who exists."),
    "prompt": ("prompt", "prompt", "Print what to tell an agent that plays a layer by hand."),
    "signals": ("signals", "signals", "Messages between the layers."),
    "merge-queue": ("merge_queue", "merge_queue", "Branches waiting to land."),
    "pipeline": ("pipeline", "pipeline", "Look at pipelines before they run."),
    "demo": ("demo_cmd", "demo", "Watch agents work while each layer is killed once."),
    "home": ("home", "home", "Print where state lives."),
    "completion": ("completion", "completion", "Print the script for completion in bash, zsh or fish."),
}
"""Command → (module of garrison.cli, attribute, help line)."""


EPILOG = """\b
Examples:
  garrison launch work.dot --target-dir ~/src/project --gate "make test"
  garrison status --watch
  garrison COMMAND --help      each command's options, with examples

\b
Completion:
  garrison completion bash >> ~/.bashrc      (zsh and fish: garrison completion --help)
"""


@click.group(cls=LazyGroup, table=COMMANDS, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="garrison")
@home_option
def garrison(home: str | None) -> None:
    """Keep a crew of coding agents at work on one git repository."""
    if home:
        os.environ["GARRISON_HOME"] = os.path.abspath(home)  # noqa: PTH100  # find_home's own rule


def main(argv: Sequence[str] | None = None) -> int:
    """`garrison …`; returns the exit code."""
    return run(garrison, argv, "garrison")


def run_command(command: click.Command) -> NoReturn:
    """Run one click command with this process's arguments and exit with its code; for doors."""
    sys.exit(run(command))


def run(command: click.Command, argv: Sequence[str] | None = None, name: str | None = None) -> int:
    """Run one click command (default: with this process's arguments); returns the exit code, never raises.

    0 done, 1 refused or failed, 2 usage, 130 interrupted; one line on stderr says what to do.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_guarded(lambda: _invoke(command, arguments, name), print_error)


def _invoke(command: click.Command, arguments: list[str], name: str | None) -> int:
    if sys.platform != "linux":
        raise Refused(f"garrison runs on Linux, this is {sys.platform}; use a Linux machine, container or VM")
    try:
        code: Any = command.main(args=arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        error.show(sys.stderr)
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except SystemExit as error:
        return _exit_code(error)
    return code if isinstance(code, int) else 0


def _exit_code(error: SystemExit) -> int:
    if isinstance(error.code, int) or error.code is None:
        return error.code or 0
    print_message(str(error.code))
    return 1


if __name__ == "__main__":
    sys.exit(main())
