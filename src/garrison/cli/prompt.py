"""`garrison prompt`: print the section of a prompt that lets an agent act as runner or guardian.

garrison's own runners and guardians are code and need no prompt. The section has the commands with which an agent in
their place keeps the records true.
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
    ("garrison prompt guardian crew", "for an agent that leads a pipeline"),
))
@click.argument("role", type=click.Choice(["runner", "guardian"]))
@click.argument("name")
@click.option("--branch", metavar="BRANCH", help="Branch that a runner's node lands (default: the node's name).")
@click.option("--pipeline", default="pipeline", show_default=True, metavar="NAME",
              help="Name of the guardian to which a runner sends signals.")
@click.option("--repo-root", type=click.Path(path_type=Path), default=Path(), metavar="DIR",
              help="Repository (default: the current directory).")
def prompt(role: str, name: str, branch: str | None, pipeline: str, repo_root: Path) -> None:
    """Print the hook and merge-queue section of a prompt for ROLE; NAME is the node, or the pipeline."""
    source = checkout()
    if source is None:
        raise Refused("the section names scripts of garrison's source checkout; run it from there")
    text = resources.files("garrison.agents").joinpath(f"prompts/by_hand_{role}.md").read_text()
    click.echo(Template(text).safe_substitute(
        name=check_name(name), scripts=shlex.quote(str(source / "scripts")), branch=shlex.quote(branch or name),
        pipeline=check_name(pipeline), repo=shlex.quote(str(validate_repository(repo_root)))), nl=False)
