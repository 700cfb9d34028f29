"""`garrison top`: live screen of a home; without a terminal, with `--once` or `--json`, a single frame.

Textual is imported only to draw a screen.
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
from garrison.cli.resolve import existing_run
from garrison.cli.terminal import show, stdout_terminal
from garrison.directories import find_home
from garrison.views.top_frame import FrameReader

BETWEEN = 0.25
"""Seconds between the two readings of one frame; CPU is the usage in between."""


@click.command(cls=Command, examples=(
    ("garrison top", "the active runs; the last line lists the keys"),
    ("garrison top --run crew-1 --interval 5", "one run, refreshed every five seconds"),
    ("garrison top --once | grep -v landed", "one frame as text"),
    ("garrison top --json | jq '.rows[] | select(.state == \"asks\") | .name'", "for programs"),
))
@click.option("--run", metavar="RUN", shell_complete=completion.runs,
              help="Only this run (default: the active ones, else the last).")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, metavar="SECONDS",
              help="Time between two refreshes; longer if refreshing takes more than 3 % of a core.")
@click.option("--once", is_flag=True, help="Print one frame as text and exit; this is the default without a terminal.")
@json_option
@home_option
def top(run: str | None, interval: float, once: bool, as_json: bool, home: str | None) -> int:
    """Watch the processes of the home's runs: state, ages, CPU and memory, and the queue, costs and deaths.

    BEAT is the time since the last heartbeat, STARTS the number of starts of a node's runner and agent. Keys run the
    commands of the same name: attach, logs, why, agents respawn, park and unpark.
    """
    place = find_home(home)
    reader = FrameReader(place, existing_run(place, run) if run is not None else None)
    here = stdout_terminal()
    if as_json or once or not here.interactive or not sys.stdin.isatty():
        reader.read()
        time.sleep(BETWEEN)
        frame = reader.read()
        if as_json:
            print_json(frame)
        else:
            show(top_render.plain(frame, here.columns), here)
            if not frame.rows:
                report_no_runs(place)
        return 0
    from garrison.cli.top_app import Top

    app = Top(reader, interval)
    app.run()
    return app.return_code or 0
