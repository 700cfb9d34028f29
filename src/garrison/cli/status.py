"""`garrison status`: what runs there are, how far each is, which layers live, what failed and where to look.

The rule of this room: it asks `status.gather`, and shows through `status_view`, `watch` or as JSON; it knows nothing of
either.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import click

from garrison.cli import completion, status_render
from garrison.cli import terminal as watch
from garrison.cli.commands import Command
from garrison.cli.home import report_no_runs
from garrison.cli.options import home_option, json_option
from garrison.cli.output import print_json, print_message
from garrison.cli.render import Line, text
from garrison.cli.resolve import existing_run
from garrison.cli.terminal import Stage, show, stage
from garrison.config import find_home
from garrison.errors import NotFound, UsageError
from garrison.processes.launcher.policy import EXIT
from garrison.views.run_view import Gatherer, shown

SHOWN = 8
"""Finished runs listed above those shown in full while watching all."""


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
              help="Show the limits that nest, the time-outs and what is used of them (always for RUN).")
@json_option
@home_option
def status(run: str | None, every: str | None, with_limits: bool, as_json: bool, home: str | None) -> int:
    """Show all runs of the home, and those unfinished in full; or RUN alone.

    LIVES are those of a node's runner and of its agent; TRY is the attempt and how many there may be.
    """
    place = find_home(home)
    pace, run = _pace(every, run)
    asked = _Asked(Gatherer(place), existing_run(place, run) if run is not None else None,
                   with_limits or (run is not None and pace is None))
    if pace is not None:
        return asked.watch(pace, as_json=as_json)
    bodies = asked.bodies(full=as_json)
    if as_json:
        print_json(bodies[0] if run else bodies)
    elif bodies:
        here = stage()
        show(text(asked.picture(bodies, here.columns), colours=here.colours))
    else:
        asked.nothing()
    for problem in dict.fromkeys(problem for body in bodies for problem in body["problems"]):
        print_message(problem)
    return 0


def _pace(every: str | None, run: str | None) -> tuple[float | None, str | None]:
    """Seconds between two looks, None without --watch, and the run: `--watch RUN` names one too."""
    if every is None:
        return None, run
    try:
        seconds = float(every)
    except ValueError:
        if run is not None:
            raise UsageError(f"--watch {every!r} is not a number of seconds; say `--watch` or `--watch 2`") from None
        return 1.0, every
    if not 0.1 <= seconds <= 3600:
        raise UsageError(f"--watch {every} is not between 0.1 and 3600 seconds")
    return seconds, run


class _Asked:
    """One call: what is asked about, and what was seen last."""

    def __init__(self, gather: Gatherer, run: str | None, with_limits: bool) -> None:
        self.gather, self.run, self.with_limits = gather, run, with_limits
        self.seen: dict[str, dict[str, Any]] = {}
        self.watched: dict[str, int | None] = {}

    def bodies(self, *, full: bool = False) -> list[dict[str, Any]]:
        """The run asked about, or all: those under way (else the last) in full, the others as their line needs."""
        if self.run is not None:
            return [self.gather.run(self.run)]
        bodies = [self.gather.run(name, whole=full) for name in self.gather.runs()]
        if full:
            return bodies
        chosen = shown(bodies, self.watched)
        return [self.gather.run(body["run_id"]) if body["run_id"] in chosen else body for body in bodies]

    def picture(self, bodies: Sequence[dict[str, Any]], columns: int | None) -> list[Line]:
        """What a person sees."""
        lines = [] if self.run is not None else [*status_render.overview(bodies, columns), []]
        for number, body in enumerate(body for body in bodies if "nodes" in body):
            lines += [*([[]] if number else []),
                      *status_render.whole(body, columns, with_limits=self.with_limits)]
        return lines

    def nothing(self) -> None:
        """Of a home without runs."""
        report_no_runs(self.gather.home)
        if self.with_limits:
            here = stage()
            show(text(status_render.limits(self.gather.no_run(), here.columns), colours=here.colours))

    # -------------------------------------------------------------------------------------------------- watching

    def watch(self, every: float, *, as_json: bool) -> int:
        """Until the run, or all that are watched, are over; the highest of their exit codes."""
        if not self.gather.runs():
            raise NotFound(f"no run in {self.gather.home} to watch; `garrison launch` starts one")
        if stage().terminal and not as_json:
            return watch.redraw(self._picture, self._over, every)
        return watch.follow(lambda: self._told(as_json=as_json), self._over, every)

    def _look(self) -> list[dict[str, Any]]:
        bodies = self.bodies()
        self.watched |= {body["run_id"]: _exit(body) for body in bodies if "nodes" in body}
        return bodies

    def _picture(self, here: Stage) -> list[Line]:
        bodies = self._look()
        others = [body for body in bodies if "nodes" not in body]
        return self.picture([body for body in bodies if body not in others[:-SHOWN]], here.columns)

    def _told(self, *, as_json: bool) -> list[str]:
        lines = []
        for body in self._look():
            if "nodes" not in body:
                continue
            changed = status_render.changes(self.seen.get(body["run_id"]), body)
            self.seen[body["run_id"]] = body
            if as_json:
                lines += [json.dumps(body, ensure_ascii=False)] if changed else []
            else:
                lines += [f"{time.strftime('%H:%M:%S')}  {status_render.one_line(line)}" for line in changed]
        return lines

    def _over(self) -> int | None:
        codes = list(self.watched.values())
        return None if None in codes else max((code for code in codes if code is not None), default=0)


def _exit(body: dict[str, Any]) -> int | None:
    """The exit code of a run that is over and left by everybody; None while something may happen."""
    if body["adhoc"]:
        runner = next((layer for layer in body["layers"] if layer["role"] == "runner"), None)
        return None if runner is None or runner["living"] else int(runner["why"] != "done")
    if body["status"] == "corrupt":
        return 1
    if body["status"] not in EXIT or any(layer["living"] for layer in body["layers"]):
        return None
    return EXIT[body["status"]]
