"""`garrison login`: run the Claude CLI's log-in for the home's agents. garrison itself stores no credentials."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from garrison import extras
from garrison.agents import registry
from garrison.agents.claude import cli_process
from garrison.agents.claude.profile import ClaudeProfile
from garrison.agents.claude.settings import FILE, PROXY, ClaudeSettings
from garrison.cli.commands import Command
from garrison.cli.configuration import write_setting
from garrison.cli.options import home_option
from garrison.cli.output import flush
from garrison.directories import find_home
from garrison.errors import Refused, UsageError
from garrison.records import atomic


@click.command(cls=Command, examples=(
    ("garrison login", "log in with a Claude subscription"),
    ("garrison login --console", "log in to the Anthropic Console (billed by use)"),
    ("garrison login --status", "print whether this home is logged in"),
    ("garrison login --where file", "give agents a copy of it, instead of keeping it outside"),
))
@click.option("--agent", "name", default="claude", show_default=True, metavar="NAME",
              help="Agent profile whose CLI is used.")
@click.option("--console", is_flag=True, help="Use the Anthropic Console instead of a subscription.")
@click.option("--status", is_flag=True, help="Only print whether this home is logged in.")
@click.option("--where", type=click.Choice((PROXY, FILE)), metavar="PLACE",
              help="Only choose the place of the log-in while an agent of the profile works: proxy, outside; file, a "
              "copy in its sandbox.")
@home_option
def login(name: str, console: bool, status: bool, where: str | None, home: str | None) -> None:
    """Log in the home's Claude agents, once for all of them.

    This runs the CLI's log-in in your terminal. The result is kept in the home's folder claude/, separate from your
    ~/.claude. You do not need it if ANTHROPIC_API_KEY, or CLAUDE_CODE_OAUTH_TOKEN from `claude setup-token`, is set for
    `garrison launch`.
    """
    place = find_home(home)
    profile = registry.find_profile(name, place)
    if not isinstance(profile, ClaudeProfile):
        raise UsageError(f"agent {name} is not a Claude agent and needs no log-in")
    if where is not None:
        path = write_setting(place, ("agents", name, "login"), where)
        click.echo(f'agent {name} has login = "{where}" in {path}; it applies to agents started from now on')
        return
    if not profile.settings.cli:
        extras.require("claude", "`garrison login`")
    if not status and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused("login needs a terminal; without one, set ANTHROPIC_API_KEY for the launch")
    arguments = ["auth", "status"] if status else ["auth", "login", *(["--console"] if console else [])]
    exec_cli(place, profile.settings, profile.env, arguments)


def exec_cli(home: Path, settings: ClaudeSettings, names: Sequence[str], arguments: Sequence[str]) -> None:
    """Replace this process with the CLI, with the home's folder and a session's environment."""
    atomic.make_directory(cli_process.config_folder(home))
    argv = [cli_process.find_cli(settings), *arguments]
    flush()
    try:
        # exec: the CLI's log-in needs the terminal and its signals to itself
        os.execvpe(argv[0], argv, cli_process.log_in_environment(home, settings, names, os.environ))
    except OSError as error:
        raise Refused(f"cannot start {argv[0]}: {error.strerror}; install claude-agent-sdk, or name the CLI in "
                      f"{home / 'config.toml'}") from error
