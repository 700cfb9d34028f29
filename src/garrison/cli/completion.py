"""Shell completion: the script for each shell, and the runs, nodes and names that TAB offers.

`options` imports this module for every command, so modules that read the home are imported late. Failures offer
nothing: completion must never print an error.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from garrison.cli.commands import Command

SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Command, examples=(
    ("garrison completion bash >> ~/.bashrc", "bash 4.4 or later"),
    ("garrison completion zsh >> ~/.zshrc", "zsh, after compinit"),
    ("garrison completion fish > ~/.config/fish/completions/garrison.fish", "fish"),
))
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL, which completes commands, options, runs and nodes."""
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    assert completer is not None
    click.echo(completer(ctx.find_root().command, {}, "garrison", "_GARRISON_COMPLETE").source())


def runs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete run ids, newest first."""
    from garrison.records.run import list_runs as run_ids

    return _complete(lambda home: list(reversed(run_ids(home))), ctx, incomplete)


def nodes(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete nodes of the run given on the command line, else of all runs."""
    from garrison.cli.resolve import nodes_of
    from garrison.records.run import list_runs as run_ids

    run = ctx.params.get("run")
    return _complete(lambda home: [node for run_id in ([run] if run else reversed(run_ids(home)))
                                   for node in nodes_of(home, run_id)], ctx, incomplete)


def names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of identities, of the role given on the command line, if any."""
    from garrison.records.identity import Identity
    from garrison.records.store import Store

    role = ctx.params.get("role")
    return _complete(lambda home: [key.name for key in Store(home).keys(Identity) if role in (None, key.role)], ctx,
                     incomplete)


def _complete(names_in: Callable[[Path], list[str]], ctx: click.Context, incomplete: str) -> list[str]:
    from garrison.directories import find_home
    from garrison.errors import GarrisonError

    # completion does not call commands, so the root's --home has not become a variable
    home = ctx.params.get("home") or ctx.find_root().params.get("home")
    try:
        return [name for name in dict.fromkeys(names_in(find_home(home))) if name.startswith(incomplete)]
    except (GarrisonError, OSError):
        return []
