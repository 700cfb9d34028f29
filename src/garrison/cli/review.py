"""`garrison review`: show a node's work that waits to land, and approve or reject it.

An approval or a rejection is one record of the queue's journal (`merge/commands.py`). Rejected work is reworked as
after a red gate: the reason is in the prompt of the next attempt (`guardian/policy.py _after_failure`).
"""

from __future__ import annotations

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import home_option, json_option, run_option
from garrison.cli.output import print_json, print_message
from garrison.config import find_home
from garrison.errors import UsageError
from garrison.merge import commands
from garrison.processes.runtime import Runtime
from garrison.records.store import Store
from garrison.system.terminal_text import clean_lines
from garrison.views.review import SHORT, Review, choose_judged, choose_shown, find_entries, read_review


@click.command(cls=Command, examples=(
    ("garrison review add_tests", "its commits, diff and evidence"),
    ("garrison review add_tests --approve --attempt 2", "that attempt is tested and lands"),
    ('garrison review add_tests --reject -m "name the edge cases"', "its next attempt is told the reason"),
))
@click.argument("node", shell_complete=completion.nodes)
@run_option
@click.option("--approve", is_flag=True, help="Let the work land once it has passed the gate.")
@click.option("--reject", is_flag=True, help="Send the work back, with the reason of -m.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N",
              help="The attempt that is shown or judged, by default the latest.")
@click.option("--commit", default="", metavar="OID", help="Judge it only if this is its commit.")
@click.option("-m", "--reason", metavar="REASON", help="Reason of a rejection, for the next attempt.")
@json_option
@home_option
def review(node: str, run: str | None, attempt: int | None, commit: str, reason: str | None, home: str | None, *,
           approve: bool, reject: bool, as_json: bool) -> None:
    """Show the latest work of NODE in the merge queue: commits, diff, evidence. Approve or reject it.

    Work waits for approval if its node has approve=true, or the run was launched with --approve. Once a second attempt
    has waited for it, --approve and --reject need --attempt, so that no attempt is judged that you have not seen.
    """
    if approve and reject:
        raise UsageError("pass --approve or --reject, not both")
    if reject and not (reason or "").strip():
        raise UsageError("a rejection needs a reason for the next attempt: -m REASON")
    if reason and not reject:
        raise UsageError("-m is the reason of a rejection: pass --reject, too")
    runtime = Runtime.real(find_home(home))
    queue, entries = find_entries(runtime, resolve.run_of_node(Store(runtime.home), node, run), node)
    entry = (choose_judged if approve or reject else choose_shown)(entries, attempt, commit)
    if approve:
        commands.approve(queue, entry.id)
        config = queue.state.config
        after = "it lands next" if config and config.no_gate else "it lands once it has passed the gate"
        print_message(f"{node} is approved; {after}" if entry.awaits_approval else
                      f"{node} needs no approval any more; it is {entry.landing}")
    elif reject:
        commands.reject(queue, entry.id, (reason or "").strip())
        print_message(f"{node} is rejected; its next attempt is told the reason" if entry.awaits_approval else
                      f"{node} was rejected before ({entry.reason}); nothing was changed")
    else:
        found = read_review(runtime, queue, entry)
        if as_json:
            print_json(found.to_json())
        else:
            _show(found, waits=entry.awaits_approval)


def _show(found: Review, *, waits: bool) -> None:
    earlier = [f"  … and {found.more_commits} earlier"] * bool(found.more_commits)
    lines = [f"{found.node} of run {found.run}, attempt {found.attempt} at {found.commit[:SHORT]}: {found.landing}, "
             f"onto {found.target}", "",
             "commits", *earlier, *(f"  {line}" for line in found.commits), "", *found.stat.splitlines(), "",
             "evidence", *(f"  {line}" for line in found.evidence), "", *found.diff.splitlines()]
    if waits:
        this = f"garrison review {found.node} --run {found.run} --attempt {found.attempt}"
        lines += ["", f"{this} --approve   lets it land", f"{this} --reject -m REASON   sends it back"]
    for line in clean_lines("\n".join(lines)):
        click.echo(line)
