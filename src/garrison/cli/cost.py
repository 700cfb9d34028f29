"""`garrison cost`: what the sessions of Claude agents have cost, by run and node, by day, or by model."""

from __future__ import annotations

import click

from garrison.cli.options import home_option, json_option
from garrison.cli.output import print_json, print_table
from garrison.config import find_home
from garrison.records.names import check_run
from garrison.views.usage import COSTS_BY, cost_rows


@click.command()
@click.argument("run", required=False)
@click.option("--by", type=click.Choice(COSTS_BY), default="node", show_default=True)
@json_option
@home_option
def cost(run: str | None, by: str, as_json: bool, home: str | None) -> None:
    """Show calls, tokens and US dollars of RUN, or of all runs of the home.

    What the CLI has not billed yet (a session that was killed, or is under way) is estimated from its tokens.
    """
    rows = cost_rows(find_home(home), check_run(run) if run else None, by)
    if as_json:
        print_json(rows)
        return
    print_table((by.upper(), "CALLS", "INPUT", "OUTPUT", "USD"), [
        (row["of"], row["calls"], row["input"], row["output"], f"{row['usd']:.4f}") for row in rows],
        "no session of a Claude agent has cost anything here")
