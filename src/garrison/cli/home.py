"""`garrison home`: where state lives, and the `--home` that every command takes."""

from __future__ import annotations

from pathlib import Path

import click

from garrison.cli import completion
from garrison.cli.commands import Explained
from garrison.cli.output import say, show_json
from garrison.config import find_home, homes_list

home_option = click.option("--home", metavar="DIR", type=click.Path(file_okay=False),
                           help="Where state lives (default: GARRISON_HOME, the checkout's state/, the user's).")
run_option = click.option("--run", metavar="RUN", shell_complete=completion.runs,
                          help="The run, if several could be meant.")
json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")


@click.command(cls=Explained, examples=(
    ("garrison home --json", "this home, and the others that runs were launched in"),
))
@json_option
@home_option
def home(as_json: bool, home: str | None) -> None:
    """Print the home in use; `--json` also lists the other homes that runs were launched in."""
    place = find_home(home)
    if as_json:
        show_json({"home": str(place), "others": [str(other) for other in other_homes(place)]})
    else:
        click.echo(place)


def other_homes(place: Path) -> list[Path]:
    """The homes this user has launched in that are still there, without `place`."""
    try:
        lines = homes_list().read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    known = dict.fromkeys(Path(line) for line in lines if line)
    return [other for other in known if other.is_dir() and other.resolve() != place.resolve()]


def name_other_homes(place: Path) -> None:
    """Say on stderr that this home is empty and where else to look."""
    others = other_homes(place)
    say(f"no runs in {place}" + (f"; other homes (--home DIR): {', '.join(map(str, others))}" if others else
                                 "; `garrison launch PIPELINE --target-dir REPO` starts one"))
