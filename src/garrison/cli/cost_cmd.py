"""`garrison cost`: what the sessions of Claude agents have cost, by run and node, by day, or by model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from garrison.agents.claude import budget
from garrison.cli.home_cmd import home_option, json_option
from garrison.cli.output import show_json, show_table
from garrison.records.names import check_run
from garrison.settings import find_home

BY = ("node", "run", "day", "model")


@click.command()
@click.argument("run", required=False)
@click.option("--by", type=click.Choice(BY), default="node", show_default=True)
@json_option
@home_option
def cost(run: str | None, by: str, as_json: bool, home: str | None) -> None:
    """Show calls, tokens and US dollars of RUN, or of all runs of the home.

    What the CLI has not billed yet (a session that was killed, or is under way) is estimated from its tokens.
    """
    rows = gather(find_home(home), check_run(run) if run else None, by)
    if as_json:
        show_json(rows)
        return
    show_table((by.upper(), "CALLS", "INPUT", "OUTPUT", "USD"), [
        (row["of"], row["calls"], row["input"], row["output"], f"{row['usd']:.4f}") for row in rows],
        "no session of a Claude agent has cost anything here")


def gather(home: Path, run: str | None, by: str) -> list[dict[str, Any]]:
    """One row a node, run, day or model: `of, calls, input, output, usd`."""
    groups: dict[str, list[budget.Spent]] = {}
    for name, node, path in budget.files_of(home, run):
        calls = budget.read(path)
        for key, part in _parts(calls, by, name, node):
            groups.setdefault(key, []).append(part)
    return [{"of": key, "calls": sum(one.calls for one in parts), "input": sum(one.input for one in parts),
             "output": sum(one.output for one in parts), "usd": sum(one.usd for one in parts)}
            for key, parts in sorted(groups.items())]


def _parts(calls: list[budget.Call], by: str, run: str, node: str) -> list[tuple[str, budget.Spent]]:
    whole = budget.spent(calls)
    if by == "node":
        return [(f"{run}/{node}", whole)]
    if by == "run":
        return [(run, whole)]
    if by == "day":
        return [(day, _with_usd([one for one in calls if one.at[:10] == day], budget.spent_on(calls, day)))
                for day in sorted({one.at[:10] for one in calls})]
    models = sorted({one.model for one in calls if one.model})
    estimates = {model: budget.spent(one for one in calls if one.model == model) for model in models}
    total = sum(part.usd for part in estimates.values())
    share = whole.usd / total if total else 0.0  # what the CLI billed, divided as the estimates are
    return [(model, budget.Spent(part.usd * share, part.calls, part.input, part.output))
            for model, part in estimates.items()]


def _with_usd(calls: list[budget.Call], usd: float) -> budget.Spent:
    part = budget.spent(one for one in calls if one.kind == "call")
    return budget.Spent(usd, part.calls, part.input, part.output)
