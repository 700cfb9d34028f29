"""`garrison help` and `garrison version`: what other tools have as commands, too."""

from __future__ import annotations

from importlib.metadata import version as installed_version

import click

from garrison.cli.commands import SHOW_ALL, Command


@click.command("help", cls=Command, examples=(
    ("garrison help merge-queue enqueue", "the same as with --help"),
    ("garrison help --all", "all commands"),
))
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.option("--all", "everything", is_flag=True, help="All commands, or options, not only the everyday ones.")
@click.pass_context
def help_command(ctx: click.Context, words: tuple[str, ...], *, everything: bool) -> None:
    """Show the help of a command."""
    at = ctx.find_root()
    at.meta[SHOW_ALL] = everything
    arguments = list(words)
    while arguments and isinstance(at.command, click.Group):
        name, command, arguments = at.command.resolve_command(at, arguments)
        if command is None:
            break
        at = click.Context(command, info_name=name, parent=at)
    click.echo(at.get_help())


@click.command(cls=Command)
def version() -> None:
    """Show the version."""
    click.echo(f"garrison, version {installed_version('garrison')}")
