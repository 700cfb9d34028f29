"""`garrison resume`: continue whatever can be continued, by its name.

This can be a launched run, a run of `garrison pipeline run`, or a workflow session. `_kind_of` finds the kind of a
name, `OPTIONS` lists the options of each kind; the modules of the starting commands also resume.
"""

from __future__ import annotations

import os
import re
from enum import Enum
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from garrison.cli import completion, resolve
from garrison.cli.authority import require
from garrison.cli.commands import Command
from garrison.cli.options import gate_options, home_option, run_budget_option
from garrison.cli.sandbox import sandbox_option
from garrison.directories import find_home
from garrison.errors import UsageError
from garrison.records.names import check_run
from garrison.records.run import list_runs

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""Name of a run or a session of any kind, unless it is a path."""


class WorkKind(Enum):
    """Kind of work of a name."""

    LAUNCHED = "a launched run"
    PIPELINE = "a run of `garrison pipeline run`"
    WORKFLOW = "a workflow session"


_OF_LAUNCHED = ("retry_nodes", "budget_run", "target_dir", "accept_rewritten_target", "detach", "serve")
_OF_PIPELINE = ("changed_graph", "answers", "auto_approve", "stay", "agent", "quiet")
_OF_BOTH = ("retry_failed", "original_graph", "max_steps")
OPTIONS: dict[WorkKind, frozenset[str]] = {
    WorkKind.LAUNCHED: frozenset((*_OF_LAUNCHED, *_OF_BOTH)),
    WorkKind.PIPELINE: frozenset((*_OF_PIPELINE, *_OF_BOTH)),
    WorkKind.WORKFLOW: frozenset({"keep"}),
}
"""Kind → its parameters, in addition to the name, --home and --json."""


@click.command(cls=Command, option_groups={
    "Launched runs and pipeline runs": _OF_BOTH, "Launched runs": _OF_LAUNCHED, "Pipeline runs": _OF_PIPELINE,
    "Workflow sessions": ("keep",),
}, examples=(
    ("garrison resume crew-1", "continue a stopped or interrupted run"),
    ("garrison resume crew-1 --retry-failed --detach", "try its failed nodes again, in the background"),
    ("garrison resume work-1a2b3c --max-steps 2000", "continue a pipeline run that has used up its steps"),
    ("garrison resume 20260131_120000_1f2e3d4c", "continue a workflow where it failed or died"),
))
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option("--retry-failed", is_flag=True, help="Retry failed nodes, or the node at which the run ended.")
@click.option("--retry", "retry_nodes", metavar="NODE", multiple=True,
              help="Retry only this failed node (repeatable).")
@click.option("--original-graph", is_flag=True, help="Keep the graph of the start even if its file has changed.")
@click.option("--max-steps", type=click.IntRange(1), metavar="N", help="Maximum number of steps.")
@run_budget_option
@click.option("--accept-rewritten-target", is_flag=True, help="Continue even if the target branch was rewritten.")
@click.option("--target-dir", metavar="DIR", type=click.Path(path_type=Path),
              help="New folder of the run's repository.")
@click.option("--detach", is_flag=True, help="Return once the launcher is active.")
@click.option("--serve", is_flag=True, help="Also serve the run's web page while its launcher is alive.")
@click.option("--changed-graph", is_flag=True, help="Use the graph's file even if it has changed.")
@gate_options
@click.option("--agent", metavar="NAME", help="Agent of codergen nodes (default: the one of the start).")
@click.option("--quiet", "-q", is_flag=True, help="Do not print a line for each node.")
@click.option("--keep", is_flag=True, help="Keep the session's state even after success.")
@click.option("--json", "as_json", is_flag=True, help="Print progress or result as JSON.")
@sandbox_option
@home_option
@click.pass_context
def resume(ctx: click.Context, /, run: str | None, home: str | None, **options: Any) -> None:
    """Resume RUN: a launched run (default: the latest unfinished one of the repository you are in), a pipeline run (by
    id or directory), or a workflow session.

    It continues with its original options and does not repeat finished work. Exit codes are those of `garrison launch`,
    `pipeline run` and `workflow run`.
    """
    if run is None:
        run = ctx.params["run"] = resolve.resumable_run(
            resolve.open_store(find_home(home)), retry_failed=options["retry_failed"] or bool(options["retry_nodes"]))
    kind = _kind_of(run, home)
    given = [name for name in options if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    _check_options(run, kind, given)
    chosen = {name: options[name] for name in OPTIONS[kind]}
    match kind:
        case WorkKind.LAUNCHED:
            from garrison.cli.launch import resume_run

            require("resume RUN", ctx.params, home)
            resolve.existing_run(find_home(home), run)
            resume_run(run, home, as_json=options["as_json"], **chosen)
        case WorkKind.PIPELINE:
            from garrison.cli.pipeline_run import resume_pipeline_run

            resume_pipeline_run(run, home, as_json=options["as_json"], **chosen)
        case WorkKind.WORKFLOW:
            from garrison.cli.workflows import resume_session

            resume_session(run, home, as_json=options["as_json"], **chosen)


def _check_options(run: str, kind: WorkKind, given: list[str]) -> None:
    """Raise UsageError for an option that this kind of work does not have."""
    for name in given:
        if name not in OPTIONS[kind] and name != "as_json":
            named = {"stay": "--wait", "answers": "--answer", "retry_nodes": "--retry"}
            option = named.get(name, f"--{name.replace('_', '-')}")
            others = " or ".join(other.value for other, names in OPTIONS.items() if name in names)
            raise UsageError(f"{run} is {kind.value}; {option} is for {others}")


def _kind_of(run: str, home: str | None) -> WorkKind:
    """Return the kind of a name: a launched run first, as in `garrison answer`, and for unknown names."""
    from garrison.cli.pipeline_run import find_engine_run
    from garrison.cli.workflows import is_session

    place = find_home(home)
    if os.sep not in run and not _NAME.fullmatch(run) and run not in (os.curdir, os.pardir):
        check_run(run)
    if resolve.is_launched(place, run) or run in list_runs(place):
        return WorkKind.LAUNCHED
    if find_engine_run(run, home) is not None:
        return WorkKind.PIPELINE
    return WorkKind.WORKFLOW if is_session(place, run) else WorkKind.LAUNCHED
