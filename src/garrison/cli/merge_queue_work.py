"""`garrison merge-queue enqueue` and `process`."""

from __future__ import annotations

from typing import Any

import click

from garrison.cli.helping import Explained
from garrison.cli.home_cmd import home_option, json_option
from garrison.cli.merge_queue_hand import EMPTY, enqueue, is_verdict, process
from garrison.cli.merge_queue_where import repo_option, target_option
from garrison.cli.output import show_json
from garrison.errors import Refused
from garrison.merge.batch import CAP
from garrison.merge.entry import PRIORITIES, STRATEGIES


@click.command("enqueue", cls=Explained, examples=(
    ("garrison merge-queue enqueue add_tests work/tests", "from inside the repository; nothing is waited for"),
    ("garrison merge-queue enqueue docs work/docs --depends-on add_tests --strategy squash",
     "after another, as one commit"),
    ("garrison merge-queue enqueue fix work/fix --target origin:main --priority 5", "onto a remote's branch, soon"),
))
@click.argument("node")
@click.argument("branch")
@repo_option
@target_option
@click.option("--run", default="", help="Run the node belongs to.")
@click.option("--priority", type=click.IntRange(PRIORITIES[0], PRIORITIES[-1]), metavar="N",
              help="Higher goes first, 0 is the default; who waits makes up for it.")
@click.option("--depends-on", multiple=True, metavar="ENTRY", help="Entry or node that must land first; repeatable.")
@click.option("--strategy", type=click.Choice(STRATEGIES), help="How the branch lands (default: the queue's, merge).")
@json_option
@home_option
def enqueue_command(node: str, branch: str, repo_root: str | None, target: str | None, run: str, priority: int | None,
                    depends_on: tuple[str, ...], strategy: str | None, as_json: bool, home: str | None) -> None:
    """Put BRANCH of NODE in the queue, at the commit it is at now; prints the entry as JSON.

    The same node and commit is the same entry, whose priority, dependencies and strategy may be said anew. Another
    commit takes the place of the one that waits.
    """
    show_json(enqueue(node, branch, repo_root, target, run, home, priority=priority, depends_on=depends_on or None,
                      strategy=strategy))


@click.command("process", cls=Explained, examples=(
    ('garrison merge-queue process --gate "make test"', "the first time: the gate is recorded"),
    ("garrison merge-queue process --drain", "until the queue is empty"),
    ("garrison merge-queue process --watch", "as a service, until it is interrupted"),
))
@click.option("--once", is_flag=True, help="Until the next verdict (the default).")
@click.option("--drain", is_flag=True, help="Work until the queue is empty; one JSON object a verdict.")
@click.option("--watch", is_flag=True, help="Work for ever; one JSON object a verdict.")
@repo_option
@click.option("--target", metavar="BRANCH", help="Branch whose queue to work (default: the one with waiting entries).")
@click.option("--gate", metavar="CMD", help="Command that tests a merged tree; recorded.")
@click.option("--no-gate", is_flag=True, help="Land without any test; recorded.")
@click.option("--setup", metavar="CMD", help="Command that makes a tree ready for the gate; recorded.")
@click.option("--no-wait", is_flag=True, help="Exit 1 at once if a living processor works the queue.")
@json_option
@home_option
def process_command(once: bool, drain: bool, watch: bool, repo_root: str | None, target: str | None, gate: str | None,
                    no_gate: bool, setup: str | None, no_wait: bool, as_json: bool, home: str | None) -> None:
    """Test and land the next entry, or wait for the processor that does; prints JSON."""
    if once + drain + watch > 1:
        raise click.UsageError("--once, --drain and --watch exclude each other")
    if gate and no_gate:
        raise click.UsageError("--gate and --no-gate exclude each other")
    if watch and no_wait:
        raise click.UsageError("--watch stands by while another processor works; leave --no-wait out")
    failures: list[dict[str, Any]] = []
    printed = False
    for result in process(repo_root, gate=gate, no_gate=no_gate, setup=setup, target=target, wait=not no_wait,
                          watch=watch, most=CAP if drain or watch else 1, home=home):
        if result is not EMPTY or not printed:
            show_json(result)
            printed = True
        if not (result["success"] or watch):
            failures.append(result)
        if not (drain or watch) or not (is_verdict(result)):
            break
    if failures:
        raise Refused(_why(failures))


def _why(failures: list[dict[str, Any]]) -> str:
    """One line about all that went wrong; the reasons of several entries are in their own results."""
    names = [result["entry"]["id"] for result in failures if is_verdict(result)]
    told = [str(result["error"] or "an entry did not land").splitlines()[0] for result in failures]
    if len(names) < 2:
        return told[0]
    return f"{len(names)} entries did not land: {', '.join(names)}" + ("" if is_verdict(failures[-1]) else
                                                                      f"; {told[-1]}")
