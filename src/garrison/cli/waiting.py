"""List what waits for the user: what `garrison answer` and `garrison review` print when no node is named."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from garrison.cli.output import print_json
from garrison.cli.resolve import existing_run
from garrison.ends import WaitKind
from garrison.records.run import list_runs
from garrison.system.terminal_text import clean
from garrison.values import asdict, project
from garrison.views.node_view import first_line
from garrison.views.run_view import RunReader
from garrison.views.waits import PersonWait, ShownWait


def show_waiting(home: Path, run: str | None, *, approvals: bool, as_json: bool = False) -> None:
    """Print the work to approve, or the open questions, of one run or of all."""
    reader = RunReader(home, os.environ)
    runs = [existing_run(home, run)] if run is not None else list_runs(home)
    found = [(each, [wait for wait in reader.read(each, details=False).waits if _is_meant(wait, approvals=approvals)])
             for each in runs]
    if as_json:
        print_json([{"run_id": each, **asdict(project(ShownWait, wait))} for each, waits in found for wait in waits])
        return
    for line in waiting_lines(found, approvals=approvals):
        click.echo(clean(line))


def waiting_lines(runs: Iterable[tuple[str, Sequence[PersonWait]]], *, approvals: bool) -> list[str]:
    """Return each thing that waits and the command that settles it, or that nothing does. Pure."""
    lines = []
    for run, waits in runs:
        for wait in waits:
            if not _is_meant(wait, approvals=approvals):
                continue
            if approvals:
                lines.append(f"{wait.node} of run {run} waits for your approval: "
                             f"garrison review {wait.node} --run {run}")
            else:
                lines += [f"{wait.node} of run {run} asks: {first_line(wait.text)}",
                          f"  garrison answer {wait.node} TEXT --run {run}"]
    nothing = "nothing waits for your approval" if approvals else "no question is open"
    return lines or [f"{nothing}; `garrison status` shows the runs"]


def _is_meant(wait: PersonWait, *, approvals: bool) -> bool:
    is_approval = wait.gate is not None and wait.gate.is_review
    return is_approval if approvals else not is_approval and wait.kind in (WaitKind.GATE, WaitKind.ASKS)
