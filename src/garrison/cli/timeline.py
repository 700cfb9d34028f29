"""`garrison timeline`: where the time and the money of a run went, as bars, as a picture or as JSON."""

from __future__ import annotations

from pathlib import Path

import click

from garrison.cli import completion
from garrison.cli.commands import Command
from garrison.cli.home import report_no_runs
from garrison.cli.options import home_option, json_option
from garrison.cli.output import print_json, print_message
from garrison.cli.resolve import latest_run, open_store
from garrison.cli.terminal import show, stdout_terminal
from garrison.cli.timeline_render import render
from garrison.cli.timeline_svg import to_svg
from garrison.config import find_home
from garrison.errors import GarrisonError
from garrison.records.run import list_runs
from garrison.views.run_timeline import TimelineReader


@click.command(cls=Command, examples=(
    ("garrison timeline", "the latest run: a bar for each node, then durations, queue and costs"),
    ("garrison timeline crew-1 --svg crew-1.svg", "the same as a picture"),
    ("garrison timeline crew-1 --json | jq '.estimate.seconds'", "for programs; times are seconds since the epoch"),
))
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write it as a picture to FILE.")
@json_option
@home_option
def timeline(run: str | None, svg: Path | None, as_json: bool, home: str | None) -> None:
    """Show when each node of RUN (default: the latest) worked, waited for people, queue, limits or an agent, and died.

    Also: how long the rest may take (without waits for people), how fast the merge queue is, and what was spent.
    """
    place = find_home(home)
    runs = list_runs(place)
    if run is None and not runs:
        report_no_runs(place)
        return
    reader = TimelineReader(place, latest_run(open_store(place), run))
    made = reader.read()
    if svg is not None:
        try:
            svg.write_text(to_svg(made), encoding="utf-8")
        except OSError as error:
            raise GarrisonError(f"cannot write {svg}: {error.strerror}; name another FILE") from None
    if as_json:
        print_json(made)
    elif svg is not None:
        print_message(f"wrote {svg}")
    else:
        here = stdout_terminal()
        show(render(made, here.columns), here)
