"""Shell completion: the script for each shell, and the runs, nodes and names that TAB offers.

Every command imports this module, so it imports nothing heavy; on any failure nothing is offered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from garrison.cli.commands import Explained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Explained, examples=(
    ("garrison completion bash >> ~/.bashrc", "bash 4.4 or newer"),
    ("garrison completion zsh >> ~/.zshrc", "zsh, after compinit"),
    ("garrison completion fish > ~/.config/fish/completions/garrison.fish", "fish"),
))
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script for SHELL: TAB then completes commands, options, runs and nodes of the home."""
    from click.shell_completion import get_completion_class

    from garrison.cli.main import garrison

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(garrison, {}, "garrison", "_GARRISON_COMPLETE").source())


def runs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Run ids, the youngest first."""
    from garrison.records.run import runs as known

    return _begun(lambda home: list(reversed(known(home))), ctx, incomplete)


def nodes(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Nodes of the run on the command line, else of all runs."""
    from garrison.cli.resolve import nodes_of
    from garrison.records.run import runs as known

    run = ctx.params.get("run")
    return _begun(lambda home: [node for one in ([run] if run else reversed(known(home)))
                                for node in nodes_of(home, one)], ctx, incomplete)


def names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of identities, of the role on the command line if it is there."""
    from garrison.records.identity import Identity
    from garrison.records.store import Store

    role = ctx.params.get("role")
    return _begun(lambda home: [key.name for key in Store(home).keys(Identity) if role in (None, key.role)], ctx,
                  incomplete)


def _begun(known: Callable[[Path], list[str]], ctx: click.Context, incomplete: str) -> list[str]:
    from garrison.config import find_home
    from garrison.errors import GarrisonError

    home = ctx.params.get("home") or ctx.find_root().params.get("home")
    try:
        return [name for name in dict.fromkeys(known(find_home(home))) if name.startswith(incomplete)]
    except (GarrisonError, OSError):
        return []
