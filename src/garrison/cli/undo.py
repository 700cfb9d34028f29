"""`garrison undo`: revert what a node or a run has landed; the revert is tested and landed like any entry."""

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
"""Trailer of a revert: the reverted entry."""


@click.command(cls=Command, examples=(
    ("garrison undo add_tests", "a commit that reverts add_tests, if it passes the gate"),
    ("garrison undo crew-1", "everything that crew-1 landed, in one commit"),
))
@click.argument("name", metavar="NODE|RUN", shell_complete=completion.runs)
@node_options
def undo(name: str, run: str | None, home: str | None) -> None:
    """Revert what NODE, or all of RUN, has landed, by a new commit that is tested like any other work.

    The history is not rewritten. Exit code 0 once it has landed; refused if later changes touch the same lines.
    """
    runtime = Runtime.real(find_home(home))
    settle_mode(runtime.home)
    is_run = run is None and name in list_runs(runtime.home)
    of = name if is_run else resolve.run_of_node(runtime.store, name, run)
    launch = runtime.launch(of)
    if launch.land not in (LAND_NODE, LAND_RUN) or (launch.land == LAND_RUN and not is_run):
        raise Refused(f"run {of} lands as a whole; `garrison undo {of}` reverts all of it"
                      if launch.land == LAND_RUN else f"run {of} has landed nothing here that could be reverted")
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
    """Enqueue one commit that reverts these entries, last first; Refused if later changes are in the way.

    Deterministic for the same tip, so that it can be repeated after a kill.
    """
    git = queue.git
    tip = git.branch_tip(queue.target)
    if tip is None:
        raise Refused(f"{queue.repo} has no branch {queue.target}")
    form = f"--format=%(trailers:key={UNDOES},valueonly)"
    undone = git.run("log", f"--grep=^{UNDOES}: ", form, tip, "--").out.split()
    landed = [entry for entry in landed if entry.id not in undone]
    if not landed:
        raise Refused(f"{name} is already undone")
    tree = git.tree_of(tip)
    date = int(from_iso(landed[-1].landed_at or landed[-1].updated_at))
    for entry in sorted(landed, key=lambda each: each.landed_at, reverse=True):
        # A three-way merge: the landing is the base, its inverse one side, the current branch the other. Unlike `git
        # revert` it needs no checkout, and names the conflicting files.
        commit, before = find_landing(git, entry, tip)
        inverse = git.commit_tree(git.tree_of(before), [commit], "inverse of a landing\n", date=date, signed=False)
        present = git.commit_tree(tree, [tip], "what is undone so far\n", date=date, signed=False)
        merged = git.merge_tree(present, inverse)
        if merged.tree is None:
            raise Refused(f"{entry.node} cannot be undone automatically, since later changes touch the same lines of "
                          f"{', '.join(merged.conflicts[:5])}; `git revert -m 1 {commit[:10]}` lets you resolve each")
        tree = merged.tree
    if tree == git.tree_of(tip):
        raise Refused(f"{name} is no longer on {queue.target}; there is nothing to undo")
    title = f"Undo {landed[0].title or name}" if len(landed) == 1 else f"Undo {name}"
    lines = "\n".join(f"{UNDOES}: {entry.id}" for entry in landed)
    revert = git.commit_tree(tree, [tip], f"{title}\n\n{lines}\n", date=date)
    return queue.enqueue_by_hand(f"undo_{name}".replace("-", "_"), f"undo/{name}", oid=revert, title=title)


def find_landing(git: Git, entry: MergeEntry, tip: str) -> tuple[str, str]:
    """Return the landing commit of an entry, and its predecessor, by its trailer.

    Refused for an entry that landed as separate commits, of which only the last has the trailer, and for one that the
    branch no longer contains.
    """
    if entry.strategy not in STRATEGIES[:2]:
        raise Refused(f"{entry.node} has landed by {entry.strategy}, as separate commits; revert them by hand")
    form = f"--format=%H %P%x09%(trailers:key={TRAILER},valueonly,separator=%x2C)"
    for line in git.run("log", f"--grep=^{TRAILER}: {entry.id}$", form, tip, "--").out.splitlines():
        commits, _, names = line.partition("\t")
        if names.strip() == entry.id:  # the merge of a batch names several
            commit, before = commits.split()[:2]
            return commit, before
    raise Refused(f"the commit of {entry.node} is no longer on the branch; there is nothing to undo")
