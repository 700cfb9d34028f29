"""`garrison top`: a live screen of a home; without a terminal, with `--once` or `--json`, one frame of it.

The rule of this room: Textual is loaded only where there is a screen to draw.
"""

from __future__ import annotations

import sys
import time

import click

from garrison.cli import completion, top_render
from garrison.cli.commands import Command
from garrison.cli.home import report_no_runs
from garrison.cli.options import home_option, json_option
from garrison.cli.output import print_json
from garrison.cli.render import text
from garrison.cli.resolve import existing_run
from garrison.cli.terminal import show, stage
from garrison.config import find_home
from garrison.views.top_frame import Looker

BETWEEN = 0.25
"""Seconds between the two looks of one frame: CPU is what was used in between."""


@click.command(cls=Command, examples=(
    ("garrison top", "the runs under way; the last line names the keys"),
    ("garrison top --run crew-1 --interval 5", "one run, looked at every five seconds"),
    ("garrison top --once | grep -v merged", "one frame as text"),
    ("garrison top --json | jq '.rows[] | select(.state == \"asks\") | .name'", "for programs"),
))
@click.option("--run", metavar="RUN", shell_complete=completion.runs,
              help="Only this run (default: those under way, else the last).")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, metavar="SECONDS",
              help="Time between two looks; more is taken where looking costs more than 3 % of a core.")
@click.option("--once", is_flag=True, help="Print one frame as text and end; so it is without a terminal too.")
@json_option
@home_option
def top(run: str | None, interval: float, once: bool, as_json: bool, home: str | None) -> int:
    """Watch the layers of the home's runs: state, ages, CPU and memory of their processes, queue, costs and deaths.

    SIGN is the time since the last sign of life, LIVES are those of a node's runner and of its agent. Keys act through
    the commands of the same name: attach, logs, why, agents respawn, park and unpark.
    """
    place = find_home(home)
    looker = Looker(place, existing_run(place, run) if run is not None else None)
    here = stage()
    if as_json or once or not here.terminal or not sys.stdin.isatty():
        looker.look()
        time.sleep(BETWEEN)
        frame = looker.look()
        if as_json:
            print_json(frame)
        else:
            show(text(top_render.plain(frame, here.columns), colours=here.colours))
            if not frame["rows"]:
                report_no_runs(place)
        return 0
    from garrison.cli.top_app import Top  # Textual, of all garrison only here

    app = Top(looker, interval)
    app.run()
    return app.return_code or 0
