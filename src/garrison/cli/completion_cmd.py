"""`garrison completion SHELL`: the script that teaches a shell to complete runs, nodes, commands and options."""

from __future__ import annotations

import click

from garrison.cli.helping import Explained

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
