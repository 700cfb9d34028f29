"""`garrison home`: print the state directory, and find the user's other ones."""

from __future__ import annotations

from pathlib import Path

import click

from garrison.cli.commands import Command
from garrison.cli.options import output_options
from garrison.cli.output import print_json, print_message
from garrison.directories import find_home, homes_list


@click.command(cls=Command, examples=(
    ("garrison home --json", "this home, and the other homes in which runs were launched"),
))
@output_options
def home(as_json: bool, home: str | None) -> None:
    """Print the home, where garrison keeps its state; `--json` also lists the user's other homes."""
    place = find_home(home)
    if as_json:
        print_json({"home": str(place), "others": [str(other) for other in other_homes(place)]})
    else:
        click.echo(place)


def other_homes(place: Path) -> list[Path]:
    """Return the existing homes in which this user has launched runs, except `place`."""
    try:
        lines = homes_list().read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    homes = dict.fromkeys(Path(line) for line in lines if line)
    return [other for other in homes if other.is_dir() and other.resolve() != place.resolve()]


def report_no_runs(place: Path) -> None:
    """Print on stderr that this home has no runs, and which other homes exist."""
    others = other_homes(place)
    print_message(f"no runs in {place}" + (
        f"; other homes (--home DIR): {', '.join(map(str, others))}" if others else
        "; in a repository, `garrison run TASK` starts one"))
