"""`garrison verify`: check a run's events, git history, gate attestations and costs with the run checker.

The checker (`garrison.testing.checker`) is independent of the engine; this command only provides its input. The events
may come from a file, so that a run can be checked elsewhere, with a copy of the repository.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from garrison.cli import completion
from garrison.cli.commands import Command
from garrison.cli.options import output_options
from garrison.cli.output import print_json, print_message
from garrison.cli.resolve import latest_run, open_store
from garrison.directories import find_home
from garrison.errors import GarrisonError, RecordError, UsageError
from garrison.merge.gate import attestations_of
from garrison.merge.queue import find_unrecorded
from garrison.records.run import RunFiles, load_launch
from garrison.testing.checker import (
    Attestations,
    BrokenPromise,
    CheckedRepository,
    History,
    Promise,
    SpentCall,
    UnreadableAttestations,
    UnreadableHistory,
    UnreadableSpending,
    check,
    read_attestations,
    read_events,
    read_spending,
    since_whole,
)
from garrison.values import asdict
from garrison.views.event_log import EventLog
from garrison.views.usage import call_lines

EXIT_SECONDS = 5.0
"""Maximum wait for the exit of processes whose run has just ended."""
_LOOK_SECONDS = 0.2


@click.command(cls=Command, examples=(
    ("garrison verify crew-1", "compare a run's records with git and its gates' attestations"),
    ("garrison verify crew-1 --json", "the findings, for programs"),
    ("garrison events crew-1 --json > events.jsonl; garrison verify --events events.jsonl --repository clone",
     "check a run elsewhere, from its events alone"),
))
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option("--events", "events_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Read the events from FILE (`garrison events RUN --json`) instead of the home.")
@click.option("--repository", type=click.Path(path_type=Path), metavar="DIR",
              help="Repository (default: the recorded one).")
@click.option("--attestations", "attestation_files", multiple=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="With --events: the file `attestations` of a queue (repeatable).")
@click.option("--costs", "costs_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="With --events: the run's costs (`garrison cost RUN --calls`).")
@output_options
def verify(run: str | None, events_file: Path | None, repository: Path | None, attestation_files: tuple[Path, ...],
           costs_file: Path | None, as_json: bool, home: str | None) -> int:
    """Check that RUN kept garrison's promises: each landed commit was tested, each node landed once or failed with a
    reason, no process ran twice at a time, no commit is lost, limits were kept, nothing is left behind.

    It compares the run's events with git, with the gates' own attestations, and with session costs. Each broken promise
    is one line. Exit code 0: none is broken; 1: one is; 2: the input cannot be read.
    """
    if run is not None and events_file is not None:
        raise UsageError("pass either RUN or --events FILE")
    if (attestation_files or costs_file) and events_file is None:
        raise UsageError("--attestations and --costs need --events; a run in the home has its own")
    root: Path | None = None
    if events_file is not None:
        history = _history(_lines(events_file), events_file)
        attestations = read_attestations("\n".join(_lines(path)) for path in attestation_files)
        spending = _spending(_lines(costs_file) if costs_file is not None else (), costs_file)
    else:
        root = find_home(home)
        found = _run(root, run)
        history = _history(_event_lines(root, found), root)
        attestations = read_attestations(map(attestations_of, sorted((root / "merge-queue").glob("*/*"))))
        spending = _spending(call_lines(root, found), root)
    try:
        launch = None
        with contextlib.suppress(RecordError):  # the copy in the run's events is enough
            launch = load_launch(RunFiles(root, found)) if root is not None else None
        # its repository may have moved since the start
        recorded = launch.repo if launch is not None else history.launch.get("repo")
        place = CheckedRepository(repository or Path(recorded or "."))
        if not place.is_there:
            raise UsageError(f"{place.path} is not a git repository; pass the run's repository with --repository")
        findings = settle(lambda: check(history, place, attestations, home=root, spending=spending))
    except UnreadableAttestations as error:
        raise UsageError(f"{error} (`attestations` in a queue's folder of {root})" if root else str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{events_file or root}: an event lacks a field of its kind, or has a wrong form "
                         f"({type(error).__name__}: {error}); docs/proof.md describes the form") from error
    if as_json:
        print_json([{"promise": finding.promise.value, "text": finding.text} for finding in findings])
    else:
        _print(findings, history, attestations)
        _print_since_whole(history, place, attestations)
    return 1 if findings else 0


def settle(look: Callable[[], list[BrokenPromise]], wait: Callable[[float], None] = time.sleep) -> list[BrokenPromise]:
    """Return the findings, without transient ones caused by exiting processes.

    A run records its end before its guardian and launcher exit.
    """
    findings = look()
    for _ in range(round(EXIT_SECONDS / _LOOK_SECONDS)):
        if all(finding.promise is not Promise.CLEAN for finding in findings):
            break
        wait(_LOOK_SECONDS)
        findings = look()
    return findings


def _run(home: Path, run: str | None) -> str:
    """Return the run, by default the latest. An unknown run is a usage error here, since exit code 1 means a broken
    promise.
    """
    try:
        return latest_run(open_store(home), run)
    except GarrisonError as error:
        raise UsageError(str(error)) from error


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _spending(lines: Iterable[str], source: Path | None) -> tuple[SpentCall, ...]:
    try:
        return read_spending(lines)
    except UnreadableSpending as error:
        raise UsageError(f"{source}: {error}") from error


def _event_lines(home: Path, run: str) -> Iterator[str]:
    """Yield the run's events in the form of `garrison events --json`."""
    log = EventLog(home, run, find_unrecorded(home))
    yield from (json.dumps(asdict(event)) for event in log.read())
    for problem in sorted(log.problems):
        raise UsageError(f"{problem}; `garrison doctor` shows how to repair it")
    for gap in log.gaps:
        raise UsageError(f"{gap}, and some may have been about run {run}: without them it cannot be checked")


def _history(lines: Iterator[str] | list[str], source: Path) -> History:
    try:
        history = read_events(lines)
    except UnreadableHistory as error:
        raise UsageError(f"{source}: {error}") from error
    if not history.events:
        raise UsageError(f"{source} contains no event of the run")
    return history


def _print_since_whole(history: History, repository: CheckedRepository, attestations: Attestations) -> None:
    """Print what has landed on the run's target since it last passed the whole gate, if gates by path ran."""
    ref = repository.ref_of(str(history.launch.get("base", "")))
    if not ref or not any(run.gates for run in attestations.runs):
        return
    landed = since_whole(repository, ref, attestations)
    if landed is None:
        click.echo(f"no whole gate on {ref.rpartition('/')[2]} is attested")
    elif landed:
        click.echo(f"landed since the last whole gate, by gates of their paths: {', '.join(landed)}")
    else:
        click.echo("the whole gate has passed on the last landing")


def _print(findings: list[BrokenPromise], history: History, attestations: Attestations) -> None:
    for finding in findings:
        print_message(str(finding))
    landed = sum(len(event.entries) for event in history.of("landed"))
    runs = sum(1 for _ in history.of("test"))
    click.echo(f"{len(history.events)} events, {landed} landed, {runs} gate runs, "
               f"{len(attestations.runs)} attestations in these queues")
    undone = sum(len(event.entries) * (-1 if event.data.get("again") else 1) for event in history.of("undone"))
    if undone:
        click.echo(f"{undone} of the landings have since been undone: somebody moved the target back")
    if not attestations.since:
        click.echo("there are no attestations of gate runs; the queue's own verdicts were used")
    if not history.end:
        click.echo("the run has not ended: promises about its end were not checked")
    kept = [promise.value for promise in Promise if promise not in {finding.promise for finding in findings}]
    click.echo(f"{len(findings)} finding{'s' * (len(findings) != 1)}; promises kept: {', '.join(kept)}")
