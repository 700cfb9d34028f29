"""`garrison events`: print everything that happens in a home's runs, as lines or as JSON.

An event is a whole journal record with writer and subject. Each is printed once; events of one read are sorted by time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import output_options, parse_age
from garrison.cli.output import print_message
from garrison.cli.resolve import existing_run
from garrison.errors import UsageError
from garrison.records import run as run_records
from garrison.records.names import launcher_key
from garrison.system.clock import iso
from garrison.system.terminal_text import clean
from garrison.values import asdict
from garrison.views.event_log import EventLog, LoggedEvent
from garrison.views.explain import describe

_POLL = 0.25
"""Seconds between two reads while following."""


@click.command(cls=Command, examples=(
    ("garrison events crew-1 -f", "everything that happens in a run, until it is over"),
    ("garrison events -f --json | jq 'select(.kind == \"death\")'", "every death in any run, as it happens"),
    ("garrison events --since 10m --kind node --kind landed", "what happened to each node in the last ten minutes"),
))
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option("-f", "--follow", is_flag=True, help="Continue with new events until RUN is over; without RUN, forever.")
@click.option("--since", metavar="AGE|TIME", help="Only events since then: 30s, 10m, 2h, 1d ago, or a UTC time.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only this kind of record (repeatable).")
@click.option("--node", metavar="NODE", help="Only events of a node.")
@output_options
def events(run: str | None, follow: bool, since: str | None, kinds: tuple[str, ...], node: str | None, as_json: bool,
           home: str | None) -> None:
    """Print what happened in RUN, or in all runs of the home: one line per event, or with --json one object per line.

    A JSON object has `at, run, journal, by, seq, kind, node, about, data` and `text`; (run, journal, seq) is its id.
    """
    store = resolve.open_store(home)
    chosen = existing_run(store.home, run) if run is not None else None
    oldest = _oldest(since, time.time())
    watcher = Watcher(store.home, chosen)
    while True:
        over = chosen is not None and not resolve.is_living(store, launcher_key(chosen))
        for event in watcher.read():
            if event.at >= oldest and (not kinds or event.kind in kinds) and node in (None, event.node):
                _show(event, as_json=as_json)
        if not follow or over:  # check before reading, so that the launcher's last records are read
            return
        time.sleep(_POLL)


class Watcher:
    """Events of one run, or of all current and future runs of the home."""

    def __init__(self, home: Path, run: str | None) -> None:
        self.home, self.run = home, run
        self._logs: dict[str, EventLog] = {}
        self._reported: set[str] = set()

    def read(self) -> list[LoggedEvent]:
        """Return the new events, sorted by time; an unreadable journal is reported once and skipped."""
        return sorted(self._new(), key=lambda event: event.at)

    def _new(self) -> Iterator[LoggedEvent]:
        for run in [self.run] if self.run is not None else run_records.list_runs(self.home):
            log = self._logs.setdefault(run, EventLog(self.home, run))
            yield from log.read()
            for problem in {*log.problems, *log.gaps} - self._reported:
                self._reported.add(problem)
                print_message(problem)


def _show(event: LoggedEvent, *, as_json: bool) -> None:
    line = describe(event)
    text = line.text if line is not None else ""
    if as_json:
        click.echo(json.dumps({**asdict(event), "text": text}, ensure_ascii=False))
    elif line is not None and line.about:  # its spawn covers the decision to start a new name
        about = line.about.partition("@")[0]
        click.echo(clean(f"{event.at[:19].replace('T', ' ')}  {event.run}  {about}: {text}"))


def _oldest(since: str | None, now: float) -> str:
    """Return the earliest wanted time in the format of records; '' for all. UsageError if invalid. Pure."""
    if since is None:
        return ""
    if (age := parse_age(since)) is not None:
        return iso(now - age)
    try:
        moment = datetime.fromisoformat(since)
        return iso((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except ValueError:
        raise UsageError(f"--since {since!r} is neither an age such as 10m nor a time such as 2026-01-31T12:00:00"
                         ) from None
