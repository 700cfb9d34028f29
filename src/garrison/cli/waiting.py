"""Lists of waits for the user, printed by `garrison answer` and `garrison review` without a node."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from garrison.cli.output import print_json
from garrison.cli.resolve import existing_run
from garrison.ends import WaitKind
from garrison.errors import GarrisonError, Refused
from garrison.pipeline.questions import Question
from garrison.processes.runtime import Runtime
from garrison.records.run import list_runs
from garrison.system.clock import age_of
from garrison.system.terminal_text import clean
from garrison.values import Value, asdict, project
from garrison.views.decision import ShownOutcome, read_decision
from garrison.views.node_view import first_line
from garrison.views.run_view import RunReader
from garrison.views.waits import PersonWait, ShownWait


class ListedWait(Value):
    """Wait in a run; for work to approve with its outcome, if readable."""

    run: str
    wait: PersonWait
    outcome: ShownOutcome | None = None


def show_waiting(home: Path, run: str | None, *, approvals: bool, as_json: bool = False) -> None:
    """Print the work to approve, or the open questions, of one run or of all, oldest first."""
    reader, runtime = RunReader(home, os.environ), Runtime.real(home)
    runs = [existing_run(home, run)] if run is not None else [
        each for each in list_runs(home) if not reader.is_done(each)]
    found = [ListedWait(view.run_id, wait, _outcome(runtime, view.run_id, wait.node) if approvals else None)
             for view in reader.read_each(runs) for wait in view.waits if is_meant(wait, approvals=approvals)]
    found.sort(key=lambda each: each.wait.since)
    if as_json:
        print_json([{"run_id": each.run, **asdict(project(ShownWait, each.wait)),
                     **({"work": asdict(each.outcome)} if each.outcome is not None else {})} for each in found])
        return
    for line in waiting_lines(found, approvals=approvals):
        click.echo(f"{'  ' * line.startswith('  ')}{clean(line)}")


def _outcome(runtime: Runtime, run: str, node: str) -> ShownOutcome | None:
    with suppress(GarrisonError, OSError):
        return next(iter(read_decision(runtime, run, "", node).outcomes), None)
    return None


def waiting_lines(found: Sequence[ListedWait], *, approvals: bool) -> list[str]:
    """Return each wait and the command that settles it, or a line that there is none. Pure except for the clock."""
    lines = []
    for run, wait, outcome in ((each.run, each.wait, each.outcome) for each in found):
        age = f" ({age})" if (age := age_of(wait.since)) else ""
        if approvals:
            size = f", {outcome.size}" if outcome is not None and outcome.size else ""
            lines.append(f"{wait.node} of run {run} waits for your approval{age}{size}: "
                         f"garrison review {wait.node} --run {run}")
            lines += [f"  {each.words}" for each in (outcome.checked if outcome is not None else ())]
        else:
            lines += [f"{wait.node} of run {run} asks{age}: {first_line(wait.text)}",
                      f"  garrison answer {wait.node} TEXT --run {run}"]
    nothing = "nothing waits for your approval" if approvals else "no question is open"
    return lines or [f"{nothing}; `garrison status` shows the runs"]


def is_meant(wait: PersonWait, *, approvals: bool) -> bool:
    is_approval = wait.gate is not None and wait.gate.is_review
    return is_approval if approvals else not is_approval and wait.kind in (WaitKind.GATE, WaitKind.ASKS)


def confirm_irreversible(question: Question, text: str, *, yes: bool) -> None:
    """Ask before choosing an irreversible option; Refused without a terminal, or if the answer is no.

    `yes`: already confirmed.
    """
    labels = question.irreversible_labels(text)
    if not labels or yes:
        return
    if not sys.stdin.isatty():
        raise Refused(f"{labels} cannot be undone: pass --yes to answer {question.node} with it")
    if not click.confirm(f"{labels} cannot be undone. Answer {question.node} with it?", err=True):
        raise Refused("nothing was answered")
