"""`garrison tick`: tick a run's landed tasks in its list. The launcher calls it at the run's end.

A list tracked by the target branch is ticked by a commit through the merge queue, tested like any entry. Other lists,
and lists with uncommitted changes, are ticked in place. Every step can be repeated: ticked tasks are not ticked again,
and a commit that lost to another change of the list is rebuilt on top of it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.merge_queue_process import land_commit
from garrison.cli.options import home_option
from garrison.cli.sandbox import settle_mode
from garrison.cli.task_list import task_name, tick_tasks, words_of
from garrison.directories import find_home
from garrison.errors import GarrisonError, Refused, UsageError
from garrison.merge.entry import WITHDRAWABLE
from garrison.pipeline.parser import parse_file
from garrison.processes.runtime import Runtime
from garrison.records import atomic
from garrison.records.run import LAND_NODE, LAND_RUN, list_runs
from garrison.run.status import FINAL, read_run_state

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from garrison.merge.queue import MergeQueue
    from garrison.records.run import Launch
    from garrison.run.state import RunState

_TRIES = 5
"""Number of consecutive changes of a list by others after which ticking is given up."""
_FILES = ("100644", "100755")
"""git's modes of files; links, which an agent may have created, are not followed."""


@click.command(cls=Command, examples=(
    ("garrison tick", "the latest run with a list, if it ended without ticking it"),
))
@click.argument("run", required=False, metavar="[RUN]", shell_complete=completion.runs)
@home_option
def tick(run: str | None, home: str | None) -> None:
    """Tick landed tasks in the list from which RUN (default: the latest) was started with --tick.

    A run does this itself at its end. A list tracked by git is ticked by a commit that the gate tests.
    """
    runtime = Runtime.real(find_home(home))
    settle_mode(runtime.home)
    launch = runtime.launch(run or _latest_run_with_list(runtime))
    if not launch.tick:
        raise Refused(f"run {launch.run_id} was started without --tick; `garrison run --tasks FILE --tick` ticks "
                      "landed tasks")
    click.echo(tick_landed(runtime, launch, Path(launch.tick)))


def _latest_run_with_list(runtime: Runtime) -> str:
    """Return the latest run started with --tick in the current repository, else of all."""
    for run in reversed(list_runs(runtime.home)):
        with contextlib.suppress(GarrisonError, OSError):  # a damaged run is doctor's
            launch = runtime.launch(run)
            if launch.tick and resolve.is_of_this_folder(launch.repo):
                return run
    return resolve.latest_run(runtime.store, None)


def landed_words(runtime: Runtime, repo: str, base: str = "") -> set[str]:
    """Return the words of all tasks that runs of this home have landed, or found done, in a repository.

    With a `base`, only work on that branch counts, not work on a run's own branch.
    """
    words: set[str] = set()
    for launch, state, prompts in _runs_of(runtime, repo):
        is_there = launch.base == base and (launch.land == LAND_NODE or (
            launch.land == LAND_RUN and state.status == "done"))
        if is_there or not base:
            words |= {prompts[name] for name, node in state.nodes.items()
                      if name in prompts and (node.has_landed or node.is_unchanged)}
    return words


def words_under_way(runtime: Runtime, repo: str) -> dict[str, str]:
    """Return the words of all tasks of runs at work in a repository → run."""
    return {words: launch.run_id for launch, state, prompts in _runs_of(runtime, repo, at_work=True)
            if state.status not in FINAL for words in prompts.values()}


def _runs_of(runtime: Runtime, repo: str, *,
             at_work: bool = False) -> Iterator[tuple[Launch, RunState, dict[str, str]]]:
    """Yield each run in a repository (or only those `at_work`), with its state and the words of its nodes' tasks."""
    for run in list_runs(runtime.home):
        with contextlib.suppress(GarrisonError, OSError):  # a damaged run is doctor's
            launch = runtime.launch(run)
            if launch.repo == repo and not launch.adhoc and (not at_work
                                                             or resolve.is_run_supervised(runtime.store, run)):
                state, graph = read_run_state(runtime, run), parse_file(runtime.files(run).graph)
                yield launch, state, {name: words_of(node.attrs["prompt"]) for name, node in graph.nodes.items()
                                      if node.attrs.get("prompt")}


def tick_landed(runtime: Runtime, launch: Launch, path: Path) -> str:
    """Tick landed tasks of a run's repository in a list; return a line on the result.

    GarrisonError if the list is gone, is no longer text, or its commit does not pass the gate.
    """
    words, name = landed_words(runtime, launch.repo, launch.base), path.name
    queue = resolve.open_queue(launch.repo, launch.base, str(runtime.home))
    again = f"`garrison tick {launch.run_id}` tries again"
    for _ in range(_TRIES):
        rest = _tracked_name(queue, path)
        if not rest or _is_edited(queue, rest):
            beside = f", next to your uncommitted changes; `git commit {rest}` commits both" if rest else ""
            titles = _tick_in_place(path, words)
            return f"{name}: {_count(titles)} ticked{beside}" if titles else f"{name}: nothing to tick"
        made = _commit_ticks(queue, rest, words)
        if made is None:
            return f"{name}: nothing to tick"
        commit, titles = made
        entry = land_commit(queue, f"tick_{task_name(path.stem)}", f"tick/{launch.run_id}", commit,
                            f"Tick {_count(titles)} of {rest}")
        if entry.status == "landed":
            return f"{name}: {_count(titles)} ticked by {entry.commit[:10]} on {queue.target}"
        if entry.status in WITHDRAWABLE:  # the checkout cannot be updated: somebody edits the list
            if not _is_edited(queue, rest):
                raise GarrisonError(f"{name} is not ticked: {entry.reason or 'its commit waits'}; {again}")
        # a conflict means that others committed to the list: the next round ticks theirs
        elif entry.status != "conflict":
            raise GarrisonError(f"{name} is not ticked: {entry.reason or entry.status}; {again}")
    raise GarrisonError(f"{name} is not ticked, since others keep changing it; {again}")


def _count(titles: Collection[str]) -> str:
    return f"{len(titles)} task{'s' * (len(titles) != 1)}"


def _tracked_name(queue: MergeQueue, path: Path) -> str:
    """Return a file's name in the repository if the target branch contains it as a file, else ''."""
    path = path.resolve()
    if not path.is_relative_to(queue.repo):
        return ""
    name = str(path.relative_to(queue.repo))
    listed = queue.git.run("ls-tree", "-z", "--full-tree", f"refs/heads/{queue.target}", "--", name).out
    return name if listed.startswith(_FILES) else ""


def _is_edited(queue: MergeQueue, name: str) -> bool:
    tree = next((tree.path for tree in queue.git.worktrees() if tree.branch == queue.target), None)
    return tree is not None and (tree / name).is_relative_to(queue.repo) and bool(queue.git.run(
        "status", "--porcelain", "--", f":(literal){name}", cwd=tree).out)


def _commit_ticks(queue: MergeQueue, name: str, words: Collection[str]) -> tuple[str, list[str]] | None:
    """Return a commit on top of the target that ticks a list, with the ticked tasks; None if there are none.

    Deterministic for the same tip, so that it can be repeated after a kill.
    """
    git = queue.git
    tip = git.branch_tip(queue.target)
    found = git.find_text(tip, name) if tip is not None else None
    if tip is None or found is None:
        raise Refused(f"{queue.target} no longer has {name}; nothing is ticked")
    mode, text = found
    data, titles = tick_tasks(text.encode(errors="surrogateescape"), words, name)
    if not titles:
        return None
    body = "\n".join(f"- {title}" for title in titles)
    return git.commit_text(tip, name, mode, data.decode(), f"Tick {_count(titles)} of {name}\n\n{body}\n"), titles


def _tick_in_place(path: Path, words: Collection[str]) -> list[str]:
    """Tick a list in place, and return the ticked tasks; concurrent changes are read again, never overwritten."""
    path = path.resolve()
    for _ in range(_TRIES):
        try:
            before = path.stat()
            data, titles = tick_tasks(read := path.read_bytes(), words, path.name)
            if not titles:
                return titles
            with atomic.replacing(path) as descriptor:
                atomic.write_all(descriptor, data)
                # the new file takes the old one's name and mode
                os.fchmod(descriptor, before.st_mode & 0o777)
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
                os.fsync(descriptor)
                os.close(descriptor)
                # check again before the rename: editors take no lock, and their changes would be lost
                if path.read_bytes() != read:
                    raise _ChangedError
        except _ChangedError:
            continue
        except OSError as error:
            raise UsageError(f"{path} cannot be ticked: {error.strerror}") from error
        return titles
    raise GarrisonError(f"{path} is not ticked, since others keep changing it")


class _ChangedError(Exception):
    """A list was changed while it was being ticked."""
