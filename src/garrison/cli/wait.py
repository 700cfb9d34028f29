"""`garrison wait`: wait for a run without using a model's turn; the exit code is the result."""

from __future__ import annotations

import time

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import SECONDS, output_options
from garrison.cli.output import print_json, print_message
from garrison.directories import find_home
from garrison.run.state import EXIT
from garrison.run.status import Status
from garrison.views.run_view import RunReader, show_run
from garrison.views.waits import describe_wait

NEEDED, TIMED_OUT = 3, 124
"""Exit codes: something waits for you; time-out. 0, 1 and 130 are the run's: done, failed, stopped."""
POLL = 0.5
_BROKEN = frozenset({Status.CORRUPT, Status.INTERRUPTED, Status.PARKED})


@click.command(cls=Command, examples=(
    ("garrison wait crew-1", "0 done, 1 failed, 130 stopped; 3: something waits for you"),
    ("garrison wait crew-1 --timeout 600 || garrison why crew-1", "124 after ten minutes"),
))
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option("--timeout", type=SECONDS, metavar="SECONDS", help="Time limit (default: none).")
@click.option("--over", "until_over", is_flag=True, help="Keep waiting even if something waits for you.")
@output_options
def wait(run: str | None, timeout: float | None, *, until_over: bool, as_json: bool, home: str | None) -> int:
    """Wait until RUN (default: the latest here) is over or needs you; the exit code says which.

    0 done, 1 failed or interrupted, 130 stopped, 3 something waits for you, 124 time-out.
    """
    place = find_home(home)
    chosen = resolve.latest_run(resolve.open_store(home), run)
    reader, begun = RunReader(place), time.monotonic()
    while True:
        view = reader.read(chosen, details=False)
        code = EXIT.get(view.status, 1 if view.status in _BROKEN else NEEDED if view.waits and not until_over else None)
        if code is None and timeout is not None and time.monotonic() - begun >= timeout:
            code = TIMED_OUT
        if code is not None:
            break
        time.sleep(POLL)
    if as_json:
        print_json(show_run(view))
    else:
        print_message(f"run {chosen} is {view.status}, {view.progress}" + (f": {view.hint}" if view.hint else ""))
        for each in view.waits:
            print_message(describe_wait(each, chosen))
    return code
