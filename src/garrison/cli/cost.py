"""`garrison cost`: show the cost of model calls by node, run, day, model or agent."""

from __future__ import annotations

from pathlib import Path

import click

from garrison.cli import completion
from garrison.cli.commands import Command
from garrison.cli.options import output_options
from garrison.cli.output import print_json, print_message, print_table
from garrison.config import read_config
from garrison.directories import find_home
from garrison.errors import UsageError
from garrison.records.costs import PIPELINES, describe_windows
from garrison.records.names import check_run
from garrison.system.terminal_text import format_size
from garrison.views.usage import COSTS_BY, call_lines, cost_rows


@click.command(cls=Command, examples=(
    ("garrison cost crew-1", "a row for each node of a run"),
    ("garrison cost --by day --json", "all runs of the home by day, for programs"),
    ("garrison cost --disk", "disk space of worktrees, kept set-ups, gate slots and records"),
    ("garrison cost crew-1 --calls > costs.jsonl", "each call with its limits, for `garrison verify --costs`"),
))
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option("--by", type=click.Choice(COSTS_BY), default="node", show_default=True, help="What to group by.")
@click.option("--disk", is_flag=True, help="Show the disk space of RUN, or of the home, instead.")
@click.option("--calls", is_flag=True, help="Show each call of RUN with its limits instead, one JSON object per line.")
@output_options
def cost(run: str | None, by: str, disk: bool, calls: bool, as_json: bool, home: str | None) -> None:
    """Show model calls, tokens and US dollars of RUN, or of all runs of the home.

    RUN is also `pipelines/NAME`, a run of `garrison pipeline run`.

    Claude sessions record their calls; calls of other agents are recorded by the proxy, if their network has one. The
    cost of killed or running sessions is estimated from their tokens.
    """
    if disk:
        if by != "node" or calls:
            raise UsageError("--disk cannot be combined with --by or --calls")
        _show_disk(find_home(home), check_run(run) if run else "", as_json=as_json)
        return
    if calls:
        if run is None:
            raise UsageError("pass the RUN whose calls to print")
        for line in call_lines(find_home(home), check_run(run)):
            click.echo(line)
        return
    rows = cost_rows(find_home(home), run if not run or run.startswith(f"{PIPELINES}/") else check_run(run), by)
    if as_json:
        print_json(rows)
        return
    has_limits = by not in ("model", "agent")
    print_table((by.upper(), "CALLS", "INPUT", "OUTPUT", "USD", *(["LIMIT"] if has_limits else [])), [
        (row.of, row.calls, row.input, row.output, f"{row.usd:.4f}",
         *([f"{row.limit:.2f}" if isinstance(row.limit, int | float) else "-"] if has_limits else [])) for row in rows],
        "no model calls are recorded")
    if run and (windows := describe_windows(find_home(home), run)):
        print_message(f"paid by a subscription ({windows}); the dollars are the price without one")


def _show_disk(home: Path, run: str, *, as_json: bool) -> None:
    from garrison.launch.disk import measure
    from garrison.processes.runtime import Runtime

    held = sorted((each for each in measure(Runtime.real(home)) if run in ("", each.of)), key=lambda each: -each.bytes)
    if as_json:
        print_json([{"what": each.what, "of": each.of, "path": str(each.path), "bytes": each.bytes,
                     "removable": each.removable} for each in held])
        return
    print_table(("OF", "WHAT", "SIZE", "GOES", "PATH"), [
        (each.of, each.what, format_size(each.bytes), "yes" if each.removable else None, each.path) for each in held],
        "nothing uses disk space")
    limit = read_config(home).limits().disk
    print_message(f"{format_size(sum(each.bytes for each in held))} in all"
                  + (f" of {format_size(limit)} ([limits] disk)" if limit is not None and not run else ""))
