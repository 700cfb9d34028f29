"""`garrison undo`: take back what a node or a run has landed, by a revert that is tested and landed like any entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.merge_queue_process import process_entry
from garrison.cli.options import node_options
from garrison.cli.output import print_message
from garrison.cli.sandbox import settle_mode
from garrison.directories import find_home
from garrison.errors import GarrisonError, Refused
from garrison.merge.entry import STRATEGIES, TRAILER, MergeEntry
from garrison.processes.runtime import Runtime
from garrison.records.run import LAND_NODE, LAND_RUN, list_runs
from garrison.system.clock import from_iso

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.merge.queue import MergeQueue
    from garrison.system.git import Git

UNDOES = "Garrison-Undoes"
"""Trailer of a revert: the entry that it takes back."""


@click.command(cls=Command, examples=(
    ("garrison undo add_tests", "a commit that takes back what add_tests has landed, if it passes the gate"),
    ("garrison undo crew-1", "all that run crew-1 has landed, in one commit"),
))
@click.argument("name", metavar="NODE|RUN", shell_complete=completion.runs)
@node_options
def undo(name: str, run: str | None, home: str | None) -> None:
    """Take back what NODE, or all of RUN, has landed: by a commit on top, tested by the gate like any other work.

    Nothing is rewritten. Exit code 0 once it has landed; refused where later changes touch the same lines.
    """
    runtime = Runtime.real(find_home(home))
    settle_mode(runtime.home)
    is_run = run is None and name in list_runs(runtime.home)
    of = name if is_run else resolve.run_of_node(runtime.store, name, run)
    launch = runtime.launch(of)
    if launch.land not in (LAND_NODE, LAND_RUN) or (launch.land == LAND_RUN and not is_run):
        raise Refused(f"run {of} lands as a whole; `garrison undo {of}` takes all of it back"
                      if launch.land == LAND_RUN else f"run {of} has landed nothing here that could be taken back")
    queue = resolve.open_queue(launch.repo, launch.base, str(runtime.home))
    landed = [entry for entry in queue.entries() if entry.run == of and entry.status == "landed"
              and (is_run or entry.node == name)]
    if not landed:
        raise Refused(f"{name} has landed nothing; `garrison status {of}` shows what it did")
    entry = enqueue_revert(queue, landed, name)
    print_message(f"undoing {name}: {entry.id} waits for the gate")
    entry = process_entry(queue, entry, print_message)
    if entry.status != "landed":
        raise GarrisonError(f"{name} is not undone: {entry.reason or f'the revert is {entry.status}'}; "
                            f"`garrison merge-queue show {entry.id}` says more")
    click.echo(f"{name} is undone by {entry.commit[:10]} on {queue.target}")


def enqueue_revert(queue: MergeQueue, landed: Sequence[MergeEntry], name: str) -> MergeEntry:
    """Enqueue one commit that takes back these entries, the last first; Refused where later changes are in its way.

    The same call on the same tip makes the same entry, so that one that was killed can be repeated.
    """
    git = queue.git
    tip = git.branch_tip(queue.target)
    if tip is None:
        raise Refused(f"{queue.repo} has no branch {queue.target}")
    form = f"--format=%(trailers:key={UNDOES},valueonly)"
    undone = git.run("log", f"--grep=^{UNDOES}: ", form, tip, "--").out.split()
    landed = [entry for entry in landed if entry.id not in undone]
    if not landed:
        raise Refused(f"{name} is undone already")
    tree = git.tree_of(tip)
    date = int(from_iso(landed[-1].landed_at or landed[-1].updated_at))
    for entry in sorted(landed, key=lambda each: each.landed_at, reverse=True):
        # A merge of three: the landing is the base, its inverse one side, what the branch is now the other. Unlike `git
        # revert` it needs no checkout, and says which files conflict.
        commit, before = find_landing(git, entry, tip)
        inverse = git.commit_tree(git.tree_of(before), [commit], "inverse of a landing\n", date=date, signed=False)
        present = git.commit_tree(tree, [tip], "what is undone so far\n", date=date, signed=False)
        merged = git.merge_tree(present, inverse)
        if merged.tree is None:
            raise Refused(f"{entry.node} cannot be undone by itself, since later changes touch the same lines of "
                          f"{', '.join(merged.conflicts[:5])}; `git revert -m 1 {commit[:10]}` lets you decide each")
        tree = merged.tree
    if tree == git.tree_of(tip):
        raise Refused(f"{name} is not on {queue.target} any more; there is nothing to undo")
    title = f"Undo {landed[0].title or name}" if len(landed) == 1 else f"Undo {name}"
    lines = "\n".join(f"{UNDOES}: {entry.id}" for entry in landed)
    revert = git.commit_tree(tree, [tip], f"{title}\n\n{lines}\n", date=date)
    return queue.enqueue_by_hand(f"undo_{name}".replace("-", "_"), f"undo/{name}", oid=revert, title=title)


def find_landing(git: Git, entry: MergeEntry, tip: str) -> tuple[str, str]:
    """Return the commit with which an entry landed, and the one before it, by its trailer.

    Refused for one that landed as commits of its own, of which only the last bears the trailer, and for one that the
    branch no longer has.
    """
    if entry.strategy not in STRATEGIES[:2]:
        raise Refused(f"{entry.node} has landed by {entry.strategy}, as commits of its own; revert these by hand")
    form = f"--format=%H %P%x09%(trailers:key={TRAILER},valueonly,separator=%x2C)"
    for line in git.run("log", f"--grep=^{TRAILER}: {entry.id}$", form, tip, "--").out.splitlines():
        commits, _, names = line.partition("\t")
        if names.strip() == entry.id:  # the merge of a batch names several
            commit, before = commits.split()[:2]
            return commit, before
    raise Refused(f"the commit of {entry.node} is no longer on the branch; there is nothing to undo")
