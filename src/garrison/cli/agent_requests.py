"""`garrison report`, `note`, `phase` and `ask-person`: what an agent tells its orchestrator through its socket.

They work only in an agent's processes, also in a sandbox. `agents/channel.py` is the other end.
"""

from __future__ import annotations

import os

import click

from garrison.agents import channel_client
from garrison.agents.channel_client import ReplyBody
from garrison.cli.commands import Command
from garrison.cli.options import json_or_text, parse_pairs


def _send(**request: object) -> ReplyBody:
    return channel_client.send(channel_client.find_socket(os.environ), request)


@click.command(cls=Command, examples=(
    ("garrison report --status success --notes 'parser rewritten'", "the node succeeds if the command exits with 0"),
    ("garrison report --label ship --context tests.red=0", "the edge to follow, and a value for later nodes"),
))
@click.option("--status", metavar="STATUS", help="success, partial_success, retry, fail or skipped, or a word that an "
                                                "edge of the node asks for.")
@click.option("--label", metavar="LABEL", help="Label of the edge to follow.")
@click.option("--next", "next_nodes", metavar="NODE", multiple=True,
              help="Next node if no edge decides (repeatable).")
@click.option("--context", metavar="KEY=VALUE", multiple=True,
              help="Value for conditions, prompts and later nodes; JSON, else a text (repeatable).")
@click.option("--notes", metavar="TEXT", help="Notes for the pipeline.")
@click.option("--reason", metavar="TEXT", help="Why it failed.")
def report(status: str | None, label: str | None, next_nodes: tuple[str, ...], context: tuple[str, ...],
           notes: str | None, reason: str | None) -> None:
    """Report the result of the calling agent's node; the last report counts.

    The report has the content of a result file (GARRISON_RESULT_FILE), and takes precedence over it.
    """
    body = {"status": status, "preferred_label": label, "suggested_next_ids": list(next_nodes),
            "context_updates": {key: json_or_text(value) for key, value in parse_pairs(context, "--context").items()},
            "notes": notes, "failure_reason": reason}
    given = {name: value for name, value in body.items() if value}
    if not given:
        raise click.UsageError("nothing to report; pass --status, --label, --context, --notes, …")
    _send(type="report", **given)


@click.command(cls=Command, examples=(("garrison note 'the parser is done, the printer is not'", "its successor reads "
                                                                                               "it"),))
@click.argument("text")
def note(text: str) -> None:
    """Leave a note for a successor of the calling agent, in addition to earlier notes."""
    _send(type="note", text=text)


@click.command(cls=Command, examples=(("garrison phase impl_complete", "the work is finished; checks remain"),))
@click.argument("phase")
def phase(phase: str) -> None:
    """Report the progress of the calling agent: planning, executing or impl_complete."""
    _send(type="phase", phase=phase)


@click.command("ask-person", cls=Command, examples=(
    ('colour=$(garrison ask-person "Which colour?")', "waits until the user runs `garrison answer NODE TEXT`"),
))
@click.argument("text")
def ask_person(text: str) -> None:
    """Ask the user, wait for the answer and print it.

    The node's timeout continues to run. A restarted agent that asks the same question gets an answer that has arrived
    since.
    """
    click.echo(_send(type="question", text=text).get("answer", ""))
