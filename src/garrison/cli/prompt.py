"""`garrison prompt ROLE NAME`: the section of a prompt that lets an agent play runner or guardian by hand.

The layers are code and need none of it; whoever wants a session of their own in a layer's place finds here the commands
that keep garrison's records true.
"""

from __future__ import annotations

import shlex
from importlib import resources
from pathlib import Path
from string import Template

import click

from garrison.cli.commands import Command
from garrison.config import checkout
from garrison.errors import Refused
from garrison.records.names import check_name
from garrison.system.git import validate_repository


@click.command(cls=Command, examples=(
    ("garrison prompt runner impl_auth --branch feature/auth", "for an agent that looks after one node"),
    ("garrison prompt guardian crew", "for one that leads a pipeline"),
))
@click.argument("role", type=click.Choice(["runner", "guardian"]))
@click.argument("name")
@click.option("--branch", help="What a runner's node lands (default: the node's name).")
@click.option("--pipeline", default="pipeline", show_default=True, help="The guardian that a runner tells.")
@click.option("--repo-root", type=click.Path(path_type=Path), default=Path(), help="The repository (default: here).")
def prompt(role: str, name: str, branch: str | None, pipeline: str, repo_root: Path) -> None:
    """Print the hook and merge-queue section of a prompt for ROLE; NAME is the node, or the pipeline."""
    source = checkout()
    if source is None:
        raise Refused("the doors that the section names are in garrison's source checkout; run it from there")
    text = resources.files("garrison.agents").joinpath(f"prompts/by_hand_{role}.md").read_text()
    click.echo(Template(text).safe_substitute(
        name=check_name(name), scripts=shlex.quote(str(source / "scripts")), branch=shlex.quote(branch or name),
        pipeline=check_name(pipeline), repo=shlex.quote(str(validate_repository(repo_root)))), nl=False)
