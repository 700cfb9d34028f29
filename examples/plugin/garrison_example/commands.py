"""A command of `garrison`."""

from __future__ import annotations

import click

from garrison.cli.commands import Command
from garrison.cli.options import home_option
from garrison.directories import find_home
from garrison.records.run import list_runs


@click.command("example-count", cls=Command)
@home_option
def count_runs(home: str | None) -> None:
    """Print how many runs the home has."""
    click.echo(len(list_runs(find_home(home))))
