"""`garrison login`: the CLI's own log-in, into the home's folder. Nothing is read, copied or kept by garrison."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from garrison.agents import registry
from garrison.agents.claude import cli_process
from garrison.agents.claude.settings import ClaudeSettings
from garrison.cli.commands import Command
from garrison.cli.options import home_option
from garrison.config import find_home
from garrison.errors import Refused, UsageError
from garrison.records import atomic
from garrison.system.environment import child_environment

KEYS = frozenset({"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"})
"""What a log-in is instead of."""


@click.command(cls=Command, examples=(
    ("garrison login", "log in with a Claude subscription"),
    ("garrison login --console", "log in to the Anthropic Console (billed by use)"),
    ("garrison login --status", "say whether this home is logged in"),
))
@click.option("--agent", "name", default="claude", show_default=True, help="The profile whose CLI is used.")
@click.option("--console", is_flag=True, help="The Anthropic Console instead of a subscription.")
@click.option("--status", is_flag=True, help="Only say whether this home is logged in.")
@home_option
def login(name: str, console: bool, status: bool, home: str | None) -> None:
    """Log the home's Claude agents in, once for all of them.

    The CLI's own log-in is run in your terminal; what it keeps lies in the home's folder claude/, apart from your own
    ~/.claude. An ANTHROPIC_API_KEY in the environment of `garrison launch` does without.
    """
    place = find_home(home)
    profile = registry.find_profile(name, place)
    if not isinstance(profile, registry.ClaudeProfile):
        raise UsageError(f"agent {name} is no Claude agent; it has no log-in that garrison knows of")
    if not status and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused("login needs a terminal; without one set ANTHROPIC_API_KEY where you launch")
    words = ["auth", "status"] if status else ["auth", "login", *(["--console"] if console else [])]
    run_cli(place, profile.settings, profile.env, words)


def run_cli(home: Path, settings: ClaudeSettings, names: Sequence[str], words: Sequence[str]) -> None:
    """Become the CLI, with the home's folder and an environment as a session has it; does not return."""
    atomic.make_directory(cli_process.config_folder(home))
    argv = [cli_process.find_cli(settings), *words]
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(argv[0], argv, environment(home, settings, names, os.environ))
    except OSError as error:
        raise Refused(f"cannot start {argv[0]}: {error.strerror}; install claude-agent-sdk, or name the CLI in "
                      f"{home / 'config.toml'}") from error


def environment(home: Path, settings: ClaudeSettings, names: Sequence[str],
                source: Mapping[str, str]) -> dict[str, str]:
    """The CLI's environment: what a session has, but no key. Pure but for looking where the SDK lies."""
    wanted = [name for name in names if name not in KEYS]
    return child_environment(
        source, wanted, {"GARRISON_HOME": str(home), **cli_process.cli_environment(settings, home)})
