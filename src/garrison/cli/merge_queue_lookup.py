"""Which queue, which entry: what the commands of `merge-queue` share to find what a person means.

The rule of this room: an entry is named by its id, or by its node if only one queue of the home knows that; a queue by
repository (default: the current directory's) and target (default: the only one there is, else `main`, else the branch
that is checked out).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garrison.cli.output import say, show_json
from garrison.config import find_home
from garrison.errors import NotFound, Refused
from garrison.merge.queue import MergeQueue, list_queues, target_of_folder
from garrison.system.git import Git, open_repository

if TYPE_CHECKING:
    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import QueueReader

    Where = str | os.PathLike[str] | None

repo_option = click.option("--repo-root", type=click.Path(exists=True, file_okay=False), metavar="DIR",
                           help="Repository (default: the current directory's).")
target_option = click.option("--target", metavar="BRANCH", help="Branch to land on, `origin:main` for a remote's "
                                                                "(default: main, else the one checked out).")


def open_queue(repo_root: Where = None, target: str | None = None, home: Where = None, *, busy: bool = False,
               ) -> MergeQueue:
    """The queue of a repository and target; with `busy` rather the one whose first unfinished entry waits longest."""
    git, place = open_repository(Path(repo_root) if repo_root else Path.cwd()), _home(home)
    if target is None and busy:
        waiting = [one for one in _of_repository(place, git) if one.state.unfinished()]
        if waiting:
            target = target_of_folder(min(waiting, key=lambda one: one.state.unfinished()[0].enqueued_at).folder)
    return MergeQueue(place, git.root, target or _usual_target(git), git=git)


def the_queue(repo_root: Where = None, target: str | None = None, home: Where = None) -> MergeQueue:
    """The queue that a command about a whole queue means. Refused if the repository has several and none was named."""
    git, place = open_repository(Path(repo_root) if repo_root else Path.cwd()), _home(home)
    if target is None:
        journals = sorted((place / "merge-queue" / git.key).glob("*/journal.jsonl"))
        known = [target_of_folder(path.parent) for path in journals]
        if len(known) > 1:
            raise Refused(f"{git.root} has queues for {', '.join(known)}; name one with --target")
        target = known[0] if known else _usual_target(git)
    return MergeQueue(place, git.root, target, git=git)


def _home(home: Where) -> Path:
    return find_home(None if home is None else os.fspath(home))


def _of_repository(home: Path, git: Git) -> list[QueueReader]:
    return [one for one in list_queues(home, say) if one.folder.parent.name == git.key]


def _usual_target(git: Git) -> str:
    return "main" if git.branch_exists("main") else git.current_branch(git.root) or "main"


def named(word: str, home: Where = None) -> tuple[QueueReader, MergeEntry]:
    """The entry of that id, or the latest of that node; NotFound, or Refused if several queues know such a node."""
    followers = list_queues(_home(home), say)
    for one in followers:
        if word in one.state.entries:
            return one, one.state.entries[word]
    latest: dict[tuple[str, str], tuple[QueueReader, MergeEntry]] = {}
    for one in followers:
        for entry in one.state.entries.values():
            if entry.node == word:
                latest[str(one.folder), entry.run] = (one, entry)
    if len(latest) > 1:
        ids = ", ".join(entry.id for _, entry in latest.values())
        raise Refused(f"{word} is the node of several entries; name one by its id: {ids}")
    for found in latest.values():
        return found
    raise NotFound(f"no merge entry {word}; `garrison merge-queue list` shows them")


def queue_of(word: str, repo_root: Where = None, home: Where = None) -> tuple[MergeQueue, MergeEntry]:
    """The entry that a word names, with its queue, for whoever changes it. Refused if it is not of `repo_root`."""
    follower, entry = named(word, home)
    git = open_repository(Path(repo_root or entry.repo))
    if git.key != follower.folder.parent.name:
        raise Refused(f"{entry.id} waits to land on {entry.repo}, not on {git.root}; leave --repo-root out")
    return MergeQueue(_home(home), git.root, entry.target, git=git), entry


def show_ok(**body: Any) -> None:
    """What a change came to, as JSON."""
    show_json({"status": "ok", **body})
