"""`garrison setup`: list and remove kept set-ups of a repository."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from garrison.cli.commands import Group
from garrison.cli.options import output_options
from garrison.cli.output import print_json, print_message, print_table
from garrison.directories import find_home, trees_root
from garrison.errors import Refused
from garrison.sandbox import setups
from garrison.sandbox.setups import SetupLayer
from garrison.system.clock import format_age
from garrison.system.exit_info import quote_command
from garrison.system.git import Git, validate_repository
from garrison.system.terminal_text import format_size
from garrison.values import Value

_SHORT = 8
"""Characters of a digest shown as the set-up's name."""

target_dir_option = click.option("--target-dir", metavar="DIR", type=click.Path(path_type=Path),
                                 help="Repository (default: the one you are in).")


@click.group(cls=Group)
def setup() -> None:
    """List and remove kept set-ups of a repository.

    Set-up runs once; its output is kept and mounted under every worktree and gate slot. `--fresh-setup` of a launch
    runs it again.
    """


def _store(target_dir: Path | None, home: str | None) -> Path:
    """Return the folder of a repository's kept set-ups; Refused if this is not a repository."""
    repo = validate_repository(target_dir or Path.cwd())
    return setups.store_of(trees_root(os.environ) / Git(repo, home=find_home(home)).key)


class KeptSetup(Value):
    """Kept set-up for `show --json`; times are in seconds since 1970."""

    name: str
    command: str
    commit: str
    created: float
    last_use: float
    seconds: float
    size: int
    made: Sequence[str]
    used_by: Sequence[str]
    folder: str

    @classmethod
    def of(cls, layer: SetupLayer, users: Sequence[str]) -> KeptSetup:
        return cls(layer.digest, layer.command, layer.commit, layer.created, setups.last_use(layer), layer.seconds,
                   layer.size, layer.made, users, layer.folder)


@setup.command("show", examples=(
    ("garrison setup show", "kept set-ups of the repository you are in"),
    ("garrison setup show --target-dir ~/src/project --json", "of another one, for programs"),
))
@target_dir_option
@output_options
def show_command(target_dir: Path | None, as_json: bool, home: str | None) -> None:
    """List kept set-ups, latest used first.

    AGE: since the set-up ran. TOOK: its duration. USED BY: worktrees (RUN/NODE) and gate slots over it.
    """
    store = _store(target_dir, home)
    used, kept, now = setups.users_of(store.parent), setups.list_kept(store), time.time()
    if as_json:
        print_json([KeptSetup.of(layer, used.get(layer.folder, ())) for layer in kept])
        return
    print_table(("SET-UP", "AGE", "LAST USE", "TOOK", "SIZE", "USED BY", "COMMAND"),
                [(layer.digest[:_SHORT], format_age(now - layer.created), format_age(now - setups.last_use(layer)),
                  f"{layer.seconds:.0f} s", format_size(layer.size), ", ".join(used.get(layer.folder, ())) or None,
                  quote_command(layer.command).strip("`")) for layer in kept],
                "no set-up of this repository is kept")


@setup.command("clear", examples=(
    ("garrison setup clear", "all that no worktree uses"),
    ("garrison setup clear 1603a78d", "one, by its name in `garrison setup show`"),
))
@click.argument("names", metavar="[SET-UP]...", nargs=-1)
@target_dir_option
@output_options
def clear_command(names: tuple[str, ...], target_dir: Path | None, as_json: bool, home: str | None) -> None:
    """Remove all kept set-ups, or the named ones. Those used by a worktree or gate slot stay.

    The next launch runs the set-up again.
    """
    store = _store(target_dir, home)
    used, kept = setups.users_of(store.parent), setups.list_kept(store)
    for name in names:
        _check_name(name, kept, used)
    removed = setups.sweep(store, setups.read_limits(find_home(home)), everything=not names, names=names)
    gone = {layer.folder for layer in removed}
    left = [layer for layer in kept if layer.folder not in gone and not names]
    if as_json:
        print_json({"removed": [layer.digest for layer in removed], "used": [layer.digest for layer in left]})
        return
    for layer in left:
        print_message(f"{layer.digest[:_SHORT]} stays: used by {', '.join(used.get(layer.folder, ())) or 'a worktree'}")
    size = format_size(sum(layer.size for layer in removed))
    click.echo(f"removed {len(removed)} {'set-up' if len(removed) == 1 else 'set-ups'} ({size})" if removed else
               "nothing to remove")


def _check_name(name: str, kept: Sequence[SetupLayer], used: Mapping[str, Sequence[str]]) -> None:
    """Refuse a name that does not match exactly one set-up, or matches one in use."""
    found = [layer for layer in kept if name and layer.digest.startswith(name)]
    if not found:
        raise Refused(f"no set-up {name!r} of this repository is kept; `garrison setup show` lists the kept ones")
    if len(found) > 1:
        raise Refused(f"{name!r} matches {len(found)} set-ups; type more of the name (`garrison setup show`)")
    if users := used.get(found[0].folder):
        raise Refused(f"set-up {name} is used by {', '.join(users)}; stop that run first, or launch the next one with "
                      "--fresh-setup")
