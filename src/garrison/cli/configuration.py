"""`garrison config`: show the effective configuration and the origin of values; write a command's choice."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from garrison.cli.commands import Group
from garrison.cli.options import output_options, repo_root_option
from garrison.cli.output import print_json, print_table
from garrison.config import PROJECT_FILE, config_path, read_config
from garrison.directories import find_home
from garrison.errors import GarrisonError, Refused


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def config(context: click.Context) -> None:
    """Show the configuration: the home's config.toml, a repository's garrison.toml, and the environment.

    Without a command it shows all values that are set.
    """
    if context.invoked_subcommand is None:
        context.invoke(show_command)


@config.command("show", examples=(
    ("garrison config show", "all values that are set"),
    ("garrison config show --origin launch", "launch options, with file and line"),
))
@click.argument("prefix", required=False, default="")
@click.option("--origin", is_flag=True, help="Also show defaults, and the origin of each value.")
@repo_root_option
@output_options
def show_command(prefix: str, repo_root: str | None, home: str | None, *, origin: bool, as_json: bool) -> None:
    """Show settings whose names start with PREFIX, by default all that are set.

    Precedence: command line, graph, garrison.toml, config.toml. Values of variables that look like secrets are hidden.
    """
    from garrison.run.request import find_subfolder
    from garrison.system.git import validate_repository
    from garrison.views.settings import read_settings

    place = find_home(home)
    repo, here = None, Path(repo_root or os.curdir)
    try:
        repo = validate_repository(here)
    except GarrisonError:
        if repo_root is not None:
            raise
    subfolder = find_subfolder(here, repo) if repo else ""
    settings = [setting for setting in read_settings(place, os.environ, repo, subfolder)
                if setting.key.startswith(prefix)]
    if as_json:
        print_json([{"key": each.key, "value": each.value, "origin": each.origin} for each in settings])
        return
    shown = settings if origin else [each for each in settings if each.is_set]
    print_table(("SETTING", "VALUE", "FROM"), [(each.key, each.text, each.origin) for each in shown],
                f"nothing is set in {config_path(place)}" + (f" or {repo / PROJECT_FILE}" if repo else "")
                + "; --origin shows the defaults")


def write_setting(home: Path, keys: Sequence[str], value: str, then: str = "") -> Path:
    """Set one key in a home's config.toml to a text; return its path.

    Raises:
        Refused: the file's form does not allow it, for example an inline table; the message contains the line to write,
            and `then`.
    """
    from garrison.records import atomic

    path = config_path(home)
    text = read_config(home).table.text_with(keys, value)
    if text is None:
        raise Refused(f'write {keys[-1]} = "{value}" into [{".".join(keys[:-1])}] of {path}{then}')
    atomic.make_directory(home)
    # the file is replaced by a rename: a link to a user's dotfiles must stay a link
    atomic.write(path.resolve(), text.encode())
    return path
