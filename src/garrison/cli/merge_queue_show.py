"""`garrison merge-queue list`, `show`, `log` and `conflicts`: what only looks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garrison.cli.helping import Explained
from garrison.cli.home_cmd import home_option, json_option
from garrison.cli.merge_queue_where import named, repo_option, target_option, the_queue
from garrison.cli.output import aligned, say, show_json, show_table
from garrison.errors import Refused
from garrison.merge.queue import queues_of, target_of
from garrison.settings import find_home
from garrison.system.git import Git

if TYPE_CHECKING:
    from collections.abc import Iterator

    from garrison.merge.entry import Entry
    from garrison.merge.queue import Follower
    from garrison.merge.state import QueueState

_SHOWN = 20
"""Landings that `log` shows to people, unless they say how many."""


@click.command("list", cls=Explained, examples=(
    ("garrison merge-queue list", "every queue of the home"),
    ("garrison merge-queue list --repo-root . --json", "this repository's, for programs"),
))
@json_option
@click.option("--repo-root", type=click.Path(exists=True, file_okay=False), metavar="DIR",
              help="Only this repository's queues.")
@home_option
def list_command(as_json: bool, repo_root: str | None, home: str | None) -> None:
    """Show entries: of one repository, or of all queues of the home. Exit code 1 if one cannot be read."""
    damaged: list[str] = []
    followers = queues_of(find_home(home), damaged.append)
    if repo_root:
        key = Git(Path(repo_root)).key
        followers = [one for one in followers if one.folder.parent.name == key]
    if as_json:
        show_json(listing(followers))
    else:
        for line in _lines(followers) if followers or not damaged else ():
            click.echo(line)
    for line in damaged[1:]:
        say(line)
    if damaged:
        raise Refused(f"{damaged[0]} (a queue: `garrison merge-queue doctor` in its repository)")


def listing(followers: list[Follower]) -> dict[str, Any]:
    """`{"entries", "queues", "last_updated"}`."""
    return {"entries": [entry.to_dict() for one in followers for entry in one.state.entries.values()],
            "queues": [_queue(one) for one in followers],
            "last_updated": max((one.state.updated_at for one in followers if one.state.updated_at), default=None)}


def _queue(one: Follower) -> dict[str, Any]:
    state = one.state
    why = state.pause
    pause = {"reason": why.reason, "detail": why.detail, "log": why.log} if why else None
    return {"repository": one.folder.parent.name, "target": target_of(one.folder), "pause": pause,
            "config": state.config.record() if state.config else None}


def _lines(followers: list[Follower]) -> Iterator[str]:
    if not followers:
        yield "no merge queue yet"
    for one in followers:
        state = one.state
        gate = state.config.told() if state.config else "no gate recorded"
        yield f"{one.folder.parent.name} → {target_of(one.folder)} ({gate})"
        if state.pause:
            yield f"  {state.pause.told().splitlines()[0]}"
        rows = [[f"  {entry.status}", entry.id, entry.branch, why(state, entry)] for entry in state.entries.values()]
        yield from aligned(["  STATUS", "ENTRY", "BRANCH", "WHY"], rows) if rows else ()


def why(state: QueueState, entry: Entry) -> str:
    """In one line what keeps an entry, or what became of it, and its wishes where they are not the usual ones."""
    told = entry.reason.splitlines()[0] if entry.reason else ""
    if not entry.final:
        needs = [f"{other.id} ({other.status})" for other in state.needs(entry)]
        told = "; ".join(part for part in (told, f"waits for {', '.join(needs)}" if needs else "") if part)
    usual = [f"priority {entry.priority}"] if entry.priority else []
    usual += [entry.strategy] if entry.strategy != "merge" else []
    return " ".join(part for part in (f"[{', '.join(usual)}]" if usual else "", told) if part)


@click.command("show", cls=Explained, examples=(
    ("garrison merge-queue show add_tests-1-0f3a9c21", "one entry, by the id that enqueue gave"),
    ("garrison merge-queue show add_tests", "the latest of that node"),
))
@click.argument("entry")
@json_option
@home_option
def show_command(entry: str, as_json: bool, home: str | None) -> None:
    """Show one entry as JSON."""
    follower, found = named(entry, home)
    body = found.to_dict()
    if not found.final:
        body["waits_for"] = [other.id for other in follower.state.needs(found)]
    show_json(body)


@click.command("log", cls=Explained, examples=(
    ("garrison merge-queue log", "the last landings of this repository, the youngest first"),
    ("garrison merge-queue log --json", "all of them, for programs"),
))
@json_option
@click.option("-n", "--limit", type=click.IntRange(1), help=f"So many (default: {_SHOWN}; with --json all).")
@repo_option
@target_option
@home_option
def log_command(as_json: bool, limit: int | None, repo_root: str | None, target: str | None, home: str | None) -> None:
    """Show what landed, the youngest first: commit, and the tree, gate and log that let it.

    `foreign` are moves of the target that the queue did not make.
    """
    from garrison.merge.history import read_history

    queue = the_queue(repo_root, target, home)
    rows = [*reversed(read_history(queue.path))]
    rows = rows[:limit or (None if as_json else _SHOWN)]
    if as_json:
        show_json({"target": queue.target, "landed": [row.to_dict() for row in rows]})
        return
    show_table(("AT", "ENTRY", "BRANCH", "COMMIT", "TESTED"),
               [(row.at[:19] + "Z", row.entry or "foreign", row.branch, row.commit[:10], row.told()) for row in rows],
               "nothing has landed yet")


@click.command("conflicts", cls=Explained, examples=(
    ("garrison merge-queue conflicts", "each waiting branch against the target, and against each other"),
))
@json_option
@repo_option
@target_option
@home_option
def conflicts_command(as_json: bool, repo_root: str | None, target: str | None, home: str | None) -> None:
    """Show which waiting branches conflict with the target, and which with each other; nothing is changed."""
    from garrison.merge.conflicts import matrix

    found = matrix(the_queue(repo_root, target, home))
    if as_json:
        show_json(found.to_dict())
        return
    show_table(("ENTRY", "AGAINST", "FILES"), [(pair.entry, pair.against, pair.told()) for pair in found.pairs],
               f"no conflicts among {len(found.entries)} waiting entries and {found.target}")
