"""`garrison review`: show a node's work that waits to land, and approve or reject it.

An approval or a rejection is one record in the queue's journal (`merge/commands.py`). Rejected work is reworked like
after a red gate: the reason is in the prompt of the next attempt (`run/plan.py change_after_failure`).
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import output_options, run_option
from garrison.cli.output import print_json, print_message, print_table
from garrison.cli.waiting import show_waiting
from garrison.directories import find_home
from garrison.errors import NotFound, UsageError
from garrison.merge import commands
from garrison.pipeline.node_status import LandingWord
from garrison.processes.runtime import Runtime
from garrison.run.branch import node_queue
from garrison.system.terminal_text import clean, clean_lines, spell_name
from garrison.views.changes import (
    SHORT,
    AttemptReview,
    change_of_entry,
    choose_judged,
    choose_shown,
    find_change,
    find_entries,
    read_review,
    read_unqueued,
)
from garrison.views.comments import CommentState, ShownComment, compose_reason, find_file, parse_comment, take_comments
from garrison.views.decision import ShownOutcome, read_candidates
from garrison.views.diff import CONTEXT, WHOLE_FILE, changed_files, read_diff

FILE_LINES = 20_000
"""Maximum number of diff lines printed by `--file`."""


@click.command(cls=Command, examples=(
    ("garrison review", "what waits for your approval"),
    ("garrison review add_tests", "its commits, diff and evidence"),
    ("garrison review add_tests --approve --attempt 2", "that attempt is tested and lands"),
    ('garrison review add_tests --reject -m "name the edge cases"', "its next attempt gets the reason"),
    ('garrison review add_tests --reject --comment calc.py:12 "round half up"', "with a comment on a line"),
))
@click.argument("node", required=False, shell_complete=completion.nodes)
@run_option
@click.option("--approve", is_flag=True, help="Let the work land once it has passed the gate.")
@click.option("--reject", is_flag=True, help="Send the work back, with the reason of -m.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N",
              help="Attempt to show or judge (default: the latest).")
@click.option("--commit", default="", metavar="OID", help="Judge it only if this is its commit.")
@click.option("-m", "--reason", metavar="REASON",
              help="Reason of a rejection, for the next attempt; note of an approval.")
@click.option("--comment", "comments", nargs=2, multiple=True, metavar="FILE:LINE TEXT",
              help="Comment on a line of any file, for the next attempt, or kept with the approval; FILE:LINE-LINE: "
                   "several lines; FILE:-LINE: a removed line (repeatable).")
@click.option("--file", "path", metavar="PATH", help="Show only the diff of this file.")
@click.option("--whole", is_flag=True, help="With --file: also its unchanged lines.")
@output_options
def review(node: str | None, run: str | None, attempt: int | None, commit: str, reason: str | None, home: str | None,
           comments: tuple[tuple[str, str], ...], path: str | None, *, whole: bool, approve: bool, reject: bool,
           as_json: bool) -> None:
    """Show the latest work of NODE: commits, changed files, diff, conflicts, checks, comments. Approve or reject it.

    Without NODE: list work that waits for approval. Work of NODE is shown at any time: while its agent works, while it
        waits, after it landed or was refused. A node with candidates shows them side by side until one lands.

    Work waits for approval if its node has approve=true, or the run was launched with --approve. From the second
    attempt on, pass --attempt with --approve and --reject, so that you judge the attempt you have seen.
    """
    _check_options(reason, comments, approve=approve, reject=reject)
    if node is None:
        if approve or reject or path is not None:
            raise UsageError("pass NODE; `garrison review` lists the nodes that wait for approval")
        show_waiting(find_home(home), run, approvals=True, as_json=as_json)
        return
    runtime = Runtime.real(find_home(home))
    chosen = resolve.run_of_node(runtime.store, node, run)
    if path is not None:
        _show_file(runtime, chosen, node, attempt, path, context=WHOLE_FILE if whole else CONTEXT, as_json=as_json)
        return
    if not (approve or reject) and attempt is None and (candidates := read_candidates(runtime, chosen, node)):
        if as_json:
            print_json(candidates)
        else:
            _show_candidates(chosen, node, candidates)
        return
    if not (approve or reject):
        found, waits = _read(runtime, chosen, node, attempt, commit)
        if as_json:
            print_json(found)
        else:
            _show(found, waits=waits)
        return
    queue, entries = find_entries(runtime, chosen, node)
    entry = choose_judged(entries, attempt, commit)
    taken = take_comments(queue.git, change_of_entry(queue.git, entry),
                          [parse_comment(place, text) for place, text in comments])
    told = compose_reason(reason or "", taken)
    if approve:
        commands.approve(queue, entry.id, told, taken)
        config = queue.state.config
        after = "it lands next" if config and config.no_gate else "it lands once it has passed the gate"
        print_message(f"{node} is approved; {after}" if entry.awaits_approval else
                      f"{node} no longer needs approval; it is {entry.landing}")
        return
    commands.reject(queue, entry.id, told, taken)
    print_message(f"{node} is rejected; its next attempt gets the reason" if entry.awaits_approval else
                  f"{node} was rejected before ({entry.reason.partition(chr(10))[0]}); nothing was changed")


def _show_candidates(run: str, node: str, candidates: Sequence[ShownOutcome]) -> None:
    """Print the candidates of a node side by side."""
    print_table(("candidate", "state", "change", "checks", "cost", "reason"), [
        (each.node, each.state, each.size, "; ".join(check.words for check in each.checked),
         None if each.usd is None else f"${each.usd:.2f}", each.reason.partition("\n")[0]) for each in candidates])
    kept = [each.node for each in candidates if each.state == LandingWord.KEPT]
    if kept:
        print_message(f"`garrison review {kept[0]} --run {run}` shows its commits and diff; `garrison answer {node} "
                      f"{kept[0]} --run {run}` lands it if the choice is yours")


def _check_options(reason: str | None, comments: tuple[tuple[str, str], ...], *, approve: bool, reject: bool) -> None:
    """Raise UsageError for options that cannot be combined."""
    if approve and reject:
        raise UsageError("pass --approve or --reject, not both")
    if reject and not (reason or "").strip() and not comments:
        raise UsageError("a rejection needs a reason for the next attempt: -m REASON")
    if reason and not (reject or approve):
        raise UsageError("-m is the reason of a rejection: also pass --reject")
    if comments and not (reject or approve):
        raise UsageError("--comment is part of a judgement: also pass --reject or --approve")


def _read(runtime: Runtime, run: str, node: str, attempt: int | None, commit: str) -> tuple[AttemptReview, bool]:
    """Return the work to show, and whether it waits for approval."""
    try:
        queue, entries = find_entries(runtime, run, node)
        entry = choose_shown(entries, attempt, commit)
    except NotFound as absent:
        if commit:
            raise
        try:
            return read_unqueued(runtime, run, node, attempt), False
        except NotFound:
            raise absent from None
    return read_review(runtime, queue, entry), entry.awaits_approval


def _show_file(runtime: Runtime, run: str, node: str, attempt: int | None, path: str, *, context: int,
               as_json: bool) -> None:
    """Print the diff of one file."""
    queue = node_queue(runtime, runtime.launch(run), "review")
    change = find_change(runtime, run, node, attempt, queue)
    file = find_file(queue.git, change, changed_files(queue.git, change.base, change.head), path)
    found = read_diff(queue.git, file, lines=FILE_LINES, context=context, big=True)
    if as_json:
        print_json(found)
        return
    click.echo(clean(f"{spell_name(file.path)}: {file.status}{f', {found.note}' if found.note else ''}"))
    for line in found.lines:
        number = line.new or line.old or ""
        more = f" … {line.more} characters more" if line.more else ""
        click.echo(f"{number:>6} {line.kind} {line.text}{more}" if line.kind != "@" else line.text)
    if found.next is not None:
        click.echo(f"… more than {FILE_LINES} lines; `git diff {change.base[:SHORT]} {change.head[:SHORT]}` shows all")


def _show(found: AttemptReview, *, waits: bool) -> None:
    earlier = [f"  … and {found.more_commits} earlier"] * bool(found.more_commits)
    state = found.landing or ("not committed yet" if found.uncommitted else "not in the merge queue")
    lines = [f"{found.node} of run {found.run}, attempt {found.attempt} at {found.commit[:SHORT]}: {state}, "
             f"onto {found.target}", "",
             "commits", *earlier, *(f"  {line}" for line in found.commits), "", *found.stat.splitlines(), "",
             "evidence", *(f"  {line}" for line in found.evidence), ""]
    for check in found.checks:
        if check.tail and check.result != "passed":
            lines += [f"end of the output of {check.what}", *(f"  {line}" for line in check.tail.splitlines()), ""]
    for conflict in found.conflicts:
        lines += [f"conflict in {conflict.path}{': ' * bool(conflict.note)}{conflict.note}",
                  *(f"{line.number:>6} {line.text}" for line in conflict.lines), ""]
    for comment in found.comments:
        lines += [*_comment_lines(comment), ""]
    lines += found.diff.split("\n")
    if waits:
        this = f"garrison review {found.node} --run {found.run} --attempt {found.attempt}"
        lines += ["", f"{this} --approve   lets it land", f"{this} --reject -m REASON   sends it back"]
    for line in clean_lines("\n".join(lines)):
        click.echo(line)


def _comment_lines(comment: ShownComment) -> list[str]:
    """Return a comment with its lines, its state, and the answer to it."""
    words = {CommentState.WAITING: "", CommentState.OPEN: ", open", CommentState.ANSWERED: ", answered",
             CommentState.OUTDATED: ", outdated: its lines changed"}[comment.state]
    answer = comment.answer.splitlines()
    return [f"comment on attempt {comment.attempt}, {comment.path}, {comment.place}{words}",
            *(f"  > {line}" for line in comment.quoted), *(f"  {line}" for line in comment.text.splitlines()),
            *(f"  {'answer: ' if not number else '        '}{line}" for number, line in enumerate(answer))]
