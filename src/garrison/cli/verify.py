"""`garrison verify`: check a run by its events, git and the gates' attestations, with the independent checker.

The checker (`garrison.testing.checker`) imports nothing of the engine; this command only brings it what it reads. The
same events may come from a file, so that a run can be checked elsewhere, with the repository beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from garrison.cli import completion
from garrison.cli.commands import Command
from garrison.cli.options import home_option, json_option
from garrison.cli.output import print_json, print_message
from garrison.cli.resolve import existing_run
from garrison.config import find_home
from garrison.errors import UsageError
from garrison.merge.attestations import read_all
from garrison.testing.checker import (
    Attestations,
    Finding,
    History,
    Promise,
    Repository,
    UnreadableHistory,
    check,
    read_attestations,
    read_events,
)
from garrison.views.event_log import EventLog


@click.command(cls=Command, examples=(
    ("garrison verify crew-1", "compare what a run recorded with git and with what its gate runs attested"),
    ("garrison verify crew-1 --json", "the findings, for programs"),
    ("garrison events crew-1 --json > events.jsonl; garrison verify --events events.jsonl --repository clone",
     "check a run elsewhere, by its events alone"),
))
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option("--events", "events_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Read the events from FILE (`garrison events RUN --json`) instead of the home.")
@click.option("--repository", type=click.Path(path_type=Path), metavar="DIR",
              help="The repository. [default: the one that the launch recorded]")
@click.option("--attestations", "attestation_files", multiple=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="With --events: the file `attestations` of a queue (repeatable).")
@json_option
@home_option
def verify(run: str | None, events_file: Path | None, repository: Path | None, attestation_files: tuple[Path, ...],
           as_json: bool, home: str | None) -> int:
    """Check that RUN kept garrison's promises: each landed commit was tested, each node landed once or failed with a
    reason, no process had two lives at a time, no commit is lost, the limits held, nothing is left behind.

    It compares the run's events with git and with what the gate runs themselves attested. Each broken promise is one
    line; exit code 1 if there is one.
    """
    if (run is None) == (events_file is None):
        raise UsageError("name a run, or give its events with --events FILE")
    if attestation_files and events_file is None:
        raise UsageError("--attestations goes with --events; those of a run in the home are found")
    root: Path | None = None
    if events_file is not None:
        history = _history(events_file.read_text(encoding="utf-8", errors="replace").splitlines(), events_file)
        attestations = read_attestations(path.read_text(encoding="utf-8", errors="replace")
                                         for path in attestation_files)
    else:
        root = find_home(home)
        history = _history(_event_lines(root, existing_run(root, str(run))), root)
        attestations = read_attestations(map(read_all, sorted((root / "merge-queue").glob("*/*"))))
    place = Repository(repository or Path(str(history.launch.get("repo") or ".")))
    if not place.is_there:
        raise UsageError(f"{place.path} is no git repository; name the run's with --repository")
    findings = check(history, place, attestations, home=root)
    if as_json:
        print_json([{"promise": finding.promise.value, "text": finding.text} for finding in findings])
    else:
        _print(findings, history, attestations)
    return 1 if findings else 0


def _event_lines(home: Path, run: str) -> Iterator[str]:
    """Yield the run's events as `garrison events --json` prints them."""
    log = EventLog(home, run)
    yield from (json.dumps(asdict(event)) for event in log.read())
    for problem in sorted(log.problems):
        raise UsageError(f"{problem}; `garrison doctor` says how to repair it")


def _history(lines: Iterator[str] | list[str], source: Path) -> History:
    try:
        history = read_events(lines)
    except UnreadableHistory as error:
        raise UsageError(f"{source}: {error}") from error
    if not history.events:
        raise UsageError(f"{source} holds no event of the run")
    return history


def _print(findings: list[Finding], history: History, attestations: Attestations) -> None:
    for finding in findings:
        print_message(str(finding))
    landed = sum(len(event.entries) for event in history.of("landed"))
    runs = sum(1 for _ in history.of("test"))
    click.echo(f"{len(history.events)} events, {landed} landed, {runs} gate runs, "
               f"{len(attestations.runs)} attested in these queues")
    if not attestations.since:
        click.echo("no gate run attested what it tested; the queue's own verdicts were used")
    if not history.end:
        click.echo("the run has not ended: what only its end must bring was not checked")
    kept = [promise.value for promise in Promise if promise not in {finding.promise for finding in findings}]
    click.echo(f"{len(findings)} finding{'s' * (len(findings) != 1)}; kept: {', '.join(kept)}")
