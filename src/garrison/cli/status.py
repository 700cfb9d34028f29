"""`garrison status`: runs, how far each is, which processes are alive, what failed and where to look.

Reads through `views.run_view`; shows through `status_render` and `terminal`, or as JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import click

from garrison.cli import completion, status_render, terminal
from garrison.cli.commands import Command
from garrison.cli.home import report_no_runs
from garrison.cli.options import home_option, json_option
from garrison.cli.output import print_json, print_message
from garrison.cli.render import Line
from garrison.cli.resolve import existing_run
from garrison.cli.terminal import Terminal, show, stdout_terminal
from garrison.config import find_home
from garrison.errors import NotFound, UsageError
from garrison.processes.launcher.policy import EXIT
from garrison.system.terminal_text import clean
from garrison.views.run_view import RunReader, RunView, shown_in_full

FINISHED = 8
"""Finished runs that are listed while watching all."""


@click.command(cls=Command, examples=(
    ("garrison status", "all runs, and those under way in full"),
    ("garrison status crew-1 --watch", "redrawn each second until the run is over, with its exit code"),
    ("garrison status --json | jq '.[].counts'", "for programs"),
))
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option("-w", "--watch", "every", is_flag=False, flag_value="1", metavar="[SECONDS]",
              help="Redraw every SECONDS (default 1) until the run is over; on a pipe, print a line whenever something "
                   "happened. Exits with the run's exit code.")
@click.option("--limits", "with_limits", is_flag=True,
              help="Show the nested limits and the timeouts, and what is used of them (always for RUN).")
@json_option
@home_option
def status(run: str | None, every: str | None, with_limits: bool, as_json: bool, home: str | None) -> int:
    """Show all runs of the home, the unfinished ones in full; or RUN alone.

    STARTS counts how often a node's runner and agent were started; ATTEMPT is its attempt, and how many it may have.
    """
    place = find_home(home)
    seconds, run = _interval(every, run)
    command = _Status(RunReader(place), existing_run(place, run) if run is not None else None,
                      with_limits or (run is not None and seconds is None))
    if seconds is not None:
        return command.watch(seconds, as_json=as_json)
    views = command.read(details=as_json)
    if as_json:
        print_json(views[0].to_json() if run else [view.to_json() for view in views])
    elif views:
        here = stdout_terminal()
        show(command.picture(views, here.columns), here)
    else:
        command.show_empty_home()
    for problem in dict.fromkeys(problem for view in views for problem in view.problems):
        print_message(problem)
    return 0


def _interval(every: str | None, run: str | None) -> tuple[float | None, str | None]:
    """Return the seconds between two refreshes, None without --watch, and the run: `--watch RUN` names one too."""
    if every is None:
        return None, run
    try:
        seconds = float(every)
    except ValueError:
        if run is not None:
            raise UsageError(f"--watch {every!r} is not a number of seconds; use `--watch` or `--watch 2`") from None
        return 1.0, every
    if not 0.1 <= seconds <= 3600:
        raise UsageError(f"--watch {every} is not between 0.1 and 3600 seconds")
    return seconds, run


class _Status:
    """One call of the command, and while watching, what was read last."""

    def __init__(self, reader: RunReader, run: str | None, with_limits: bool) -> None:
        self.reader, self.run, self.with_limits = reader, run, with_limits
        self.last: dict[str, RunView] = {}
        self.watched: dict[str, int | None] = {}
        """Run that is or was shown in full → its exit code, None while it is under way."""

    def read(self, *, details: bool = False) -> list[RunView]:
        """Read the run asked for, or all: in full those under way (else the last), or with `details` each."""
        if self.run is not None:
            return [self.reader.read(self.run)]
        views = [self.reader.read(run, details=details) for run in self.reader.runs()]
        if details:
            return views
        in_full = shown_in_full(views, self.watched)
        return [self.reader.read(view.run_id) if view.run_id in in_full else view for view in views]

    def picture(self, views: Sequence[RunView], columns: int | None) -> list[Line]:
        """Render what people see."""
        lines = [] if self.run is not None else [*status_render.overview(views, columns), []]
        for number, view in enumerate(view for view in views if view.details):
            lines += [*([[]] if number else []),
                      *status_render.in_full(view, columns, with_limits=self.with_limits)]
        return lines

    def show_empty_home(self) -> None:
        """Say that the home has no runs."""
        report_no_runs(self.reader.home)
        if self.with_limits:
            here = stdout_terminal()
            show(status_render.limits(self.reader.default_limits(), here.columns), here)

    def watch(self, seconds: float, *, as_json: bool) -> int:
        """Watch until the run, or all runs that were shown in full, are over; return the highest exit code."""
        if not self.reader.runs():
            raise NotFound(f"no run in {self.reader.home} to watch; `garrison launch` starts one")
        if stdout_terminal().interactive and not as_json:
            return terminal.redraw(self._picture, self._exit_code, seconds)
        return terminal.follow(lambda: self._new_lines(as_json=as_json), self._exit_code, seconds)

    def _read_watched(self) -> list[RunView]:
        views = self.read()
        self.watched |= {view.run_id: _exit_code(view) for view in views if view.details}
        return views

    def _picture(self, here: Terminal) -> list[Line]:
        views = self._read_watched()
        finished = [view for view in views if not view.details]
        return self.picture([view for view in views if view not in finished[:-FINISHED]], here.columns)

    def _new_lines(self, *, as_json: bool) -> list[str]:
        lines = []
        for view in self._read_watched():
            if not view.details:
                continue
            changed = status_render.changes(self.last.get(view.run_id), view)
            self.last[view.run_id] = view
            if as_json:
                lines += [json.dumps(view.to_json(), ensure_ascii=False)] if changed else []
            else:
                lines += [f"{time.strftime('%H:%M:%S')}  {clean(line)}" for line in changed]
        return lines

    def _exit_code(self) -> int | None:
        codes = list(self.watched.values())
        return None if None in codes else max((code for code in codes if code is not None), default=0)


def _exit_code(view: RunView) -> int | None:
    """Return the exit code of a run that is over and of which nothing is alive; None while something may happen."""
    if view.adhoc:
        runner = view.layer("runner")
        return None if runner is None or runner.living else int(runner.why != "done")
    if view.status == "corrupt":
        return 1
    if view.status not in EXIT or view.living:
        return None
    return EXIT[view.status]
