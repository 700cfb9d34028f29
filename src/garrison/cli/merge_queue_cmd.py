"""`garrison merge-queue`: list, enqueue, process, cancel and show, by hand. Data on stdout, everything else on stderr.

`enqueue` and `process_next` are the same as Python functions, under the names the seeds' prompts use.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from garrison.cli.adhoc_tidy import tidy_landed
from garrison.cli.output import say
from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.merge.entry import FAILED, Entry
from garrison.merge.processor import MergeProcessor, Progress, Wait
from garrison.merge.queue import Follower, MergeQueue, queues_of, target_of
from garrison.merge.state import Config, Outcome
from garrison.merge.tell import signal_of
from garrison.records import signals
from garrison.records.names import check_run
from garrison.settings import Timing, find_home, trees_root
from garrison.system.environment import child_environment
from garrison.system.git import Git, validate_repository

EMPTY: dict[str, Any] = {"success": True, "entry": None, "error": None}
"""What processing an empty queue gives."""
_PATIENCE = 10.0
"""Seconds a locked target ref is waited for."""

# -------------------------------------------------------------------------------------------------------- as functions


def enqueue(node: str, branch: str, repo_root: str | os.PathLike[str] | None = None, target: str | None = None,
            run: str = "", home: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Enqueue a branch: `{"status": "ok", "entry": {…}}`. Refused if the branch or the target is missing."""
    if run:
        check_run(run)
    queue = _queue(repo_root, target, home)
    if not queue.git.branch_exists(queue.target):
        raise Refused(f"{queue.repo} has no branch {queue.target} to land on; name one with --target")
    return {"status": "ok", "entry": queue.enqueue_by_hand(node, branch, run=run).to_dict()}


def process_next(repo_root: str | os.PathLike[str] | None = None, *, gate: str | None = None, no_gate: bool = False,
                 setup: str | None = None, target: str | None = None, wait: bool = True,
                 home: str | os.PathLike[str] | None = None, say: Callable[[str], None] | None = None,
                 ) -> dict[str, Any]:
    """Work the queue until its next verdict: `{"success", "entry", "error"}`; empty is a success without entry.

    A living processor is waited for instead (not with `wait=False`). `gate`, `setup` and `no_gate` are recorded.
    What garrison refuses is told in `error`.
    """
    try:
        queue = _queue(repo_root, target, home, busy=True)
        if gate or no_gate or setup:
            recorded = queue.state.config
            queue.configure(Config(gate or (recorded.gate if recorded and not no_gate else None),
                                   setup or (recorded.setup if recorded else None), no_gate,
                                   Timing.read(os.environ).gate_timeout))
        result = _Hand(queue, say or _to_stderr).next(wait)
    except UsageError:
        raise
    except GarrisonError as error:
        return {"success": False, "entry": None, "error": str(error)}
    _tidy(queue, say or _to_stderr)
    return result


def _tidy(queue: MergeQueue, say: Callable[[str], None]) -> None:
    """What landed has landed, whatever becomes of its branch."""
    try:
        tidy_landed(queue)
    except GarrisonError as error:
        say(f"note: what an ad-hoc run left is not tidied: {error}")


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def _queue(repo_root: str | os.PathLike[str] | None, target: str | None, home: str | os.PathLike[str] | None, *,
           busy: bool = False) -> MergeQueue:
    """The queue of a repository (default: the current directory's) and target.

    Without a target: with `busy` the queue that has unfinished entries, else `main`, else the branch checked out.
    """
    root = validate_repository(Path(repo_root) if repo_root else Path.cwd())
    git, place = Git(root), find_home(None if home is None else os.fspath(home))
    if target is None and busy:
        known = [follower for follower in queues_of(place, say) if follower.folder.parent.name == git.key]
        waiting = [follower for follower in known if follower.state.unfinished()]
        if waiting:
            target = target_of(min(waiting, key=lambda one: one.state.unfinished()[0].enqueued_at).folder)
    if target is None:
        target = "main" if git.branch_exists("main") else git.current_branch(root) or "main"
    return MergeQueue(place, root, target, git=git)


class _Hand:
    """Somebody who processes by hand."""

    def __init__(self, queue: MergeQueue, say: Callable[[str], None]) -> None:
        self.queue, self.say = queue, say

    def next(self, wait: bool) -> dict[str, Any]:
        """The next verdict, our own or that of the processor that lives."""
        start = self.queue.state.seq
        if not self.queue.state.unfinished():
            return EMPTY
        processor = MergeProcessor(self.queue, trees=trees_root(), environment=child_environment(os.environ))
        try:
            while not processor.take():
                if not wait:
                    raise Refused(f"{self.queue.state.holder or 'another processor'} works this queue; leave it to it")
                found = self._others(start)
                if found:
                    return found
            processor.recover()
            self.queue.resume("asked for by hand")
            return self._own(processor, start)
        finally:
            processor.close()

    def _others(self, start: int) -> dict[str, Any] | None:
        """What the living processor comes to; None if it died meanwhile."""
        self.say(f"{self.queue.state.holder} works this queue; waiting for its next verdict")
        while self.queue.processor_alive():
            outcome = _verdict(self.queue, start)
            if outcome:
                return _result(outcome.entry)
            state = self.queue.state
            if not state.unfinished():
                return EMPTY
            if state.pause:
                why = f"the queue is paused: {state.pause.reason}: {state.pause.detail}"
                return _failure(state.unfinished()[0], why)
            time.sleep(0.05)
        return None

    def _own(self, processor: MergeProcessor, start: int) -> dict[str, Any]:
        told = start
        patience = time.monotonic() + _PATIENCE
        while True:
            done = processor.step()
            for outcome in processor.outcomes_since(told):
                _signal(self.queue.home, outcome)
                told = max(told, outcome.seq)
            found = _verdict(self.queue, start)
            if found:
                return _result(found.entry)
            if isinstance(done, Progress):
                self.say(f"{done.what} {done.entry}".rstrip())
            elif done.kind == "gate" or (done.kind == "ref_locked" and time.monotonic() < patience):
                _sleep(done)
                processor.beat()
            elif done.kind == "empty":
                return EMPTY
            else:
                return _failure(self.queue.state.unfinished()[0], done.reason)


def _sleep(wait: Wait) -> None:
    poller = select.poll()
    if wait.fd >= 0:
        poller.register(wait.fd, select.POLLIN)
    poller.poll(wait.seconds * 1000)


def _verdict(queue: MergeQueue, start: int) -> Outcome | None:
    return next((one for one in queue.state.outcomes if one.seq > start and one.type.startswith("MERGE_")), None)


def _signal(home: Path, outcome: Outcome) -> None:
    signal = signal_of(outcome)
    if signal:
        signals.post(home, signal, outcome.seq)


def _result(entry: Entry) -> dict[str, Any]:
    if entry.status in FAILED:
        return _failure(entry, entry.reason)
    return {"success": True, "entry": entry.to_dict(), "error": None}


def _failure(entry: Entry, why: str) -> dict[str, Any]:
    return {"success": False, "entry": entry.to_dict(), "error": why}


# --------------------------------------------------------------------------------------------------------- as commands


@click.group("merge-queue")
def merge_queue() -> None:
    """Branches waiting to land, and the processor that tests and lands them."""


_repo_root = click.option("--repo-root", type=click.Path(exists=True, file_okay=False), help="Repository (default: the "
                                                                                             "current directory's).")
_home = click.option("--home", type=click.Path(file_okay=False), help="Home that holds the queue.")


@merge_queue.command("list")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@_repo_root
@_home
def list_command(as_json: bool, repo_root: str | None, home: str | None) -> None:
    """Show entries: of one repository, or of all queues of the home."""
    place = find_home(home)
    followers = queues_of(place, say)
    if repo_root:
        key = Git(Path(repo_root)).key
        followers = [one for one in followers if one.folder.parent.name == key]
    entries = [entry for one in followers for entry in one.state.entries.values()]
    updated = max((one.state.updated_at for one in followers if one.state.updated_at), default=None)
    if as_json:
        _print({"entries": [entry.to_dict() for entry in entries], "last_updated": updated})
        return
    for line in _table(followers):
        click.echo(line)


def _table(followers: list[Follower]) -> Iterator[str]:
    if not followers:
        yield "no merge queue yet"
    for one in followers:
        state = one.state
        gate = state.config.told() if state.config else "no gate recorded"
        yield f"{one.folder.parent.name} → {target_of(one.folder)} ({gate})"
        if state.pause:
            yield f"  paused: {state.pause.reason}: {state.pause.detail.splitlines()[0]}"
        for entry in state.entries.values():
            why = f"  {entry.reason.splitlines()[0]}" if entry.reason else ""
            yield f"  {entry.status:<16}{entry.id:<32}{entry.branch}{why}"


@merge_queue.command("enqueue")
@click.argument("node")
@click.argument("branch")
@_repo_root
@click.option("--target", help="Branch to land on (default: main, else the one checked out).")
@click.option("--run", default="", help="Run the node belongs to.")
@_home
def enqueue_command(node: str, branch: str, repo_root: str | None, target: str | None, run: str, home: str | None,
                    ) -> None:
    """Put BRANCH of NODE in the queue, at the commit it is at now."""
    _print(enqueue(node, branch, repo_root, target, run, home))


@merge_queue.command("process")
@click.option("--once", is_flag=True, help="Work one entry (the default).")
@click.option("--drain", is_flag=True, help="Work until the queue is empty; one JSON object a verdict.")
@_repo_root
@click.option("--target", help="Branch whose queue to work (default: the one with waiting entries).")
@click.option("--gate", help="Command that tests a merged tree; recorded.")
@click.option("--no-gate", is_flag=True, help="Land without any test; recorded.")
@click.option("--setup", help="Command that makes a tree ready for the gate; recorded.")
@click.option("--no-wait", is_flag=True, help="Exit 1 at once if a living processor works the queue.")
@_home
def process_command(once: bool, drain: bool, repo_root: str | None, target: str | None, gate: str | None,
                    no_gate: bool, setup: str | None, no_wait: bool, home: str | None) -> None:
    """Test and land the next entry, or wait for the processor that does."""
    if once and drain:
        raise click.UsageError("--once and --drain exclude each other")
    if gate and no_gate:
        raise click.UsageError("--gate and --no-gate exclude each other")

    def work() -> dict[str, Any]:
        return process_next(repo_root, gate=gate, no_gate=no_gate, setup=setup, target=target, wait=not no_wait,
                            home=home)

    result = work()
    _print(result)
    failed = not result["success"]
    while drain and result["entry"] is not None and (result["success"] or result["entry"]["status"] in FAILED):
        result = work()
        if result["entry"] is not None:
            _print(result)
            failed = failed or not result["success"]
    if failed:
        raise Refused(str(result["error"] or "an entry did not land").splitlines()[0])


@merge_queue.command("show")
@click.argument("entry")
@_home
def show_command(entry: str, home: str | None) -> None:
    """Show one entry."""
    _print(_named(entry, home)[1].to_dict())


@merge_queue.command("cancel")
@click.argument("entry")
@click.option("--repo-root", type=click.Path(exists=True, file_okay=False), help="The repository it is of, to be sure.")
@_home
def cancel_command(entry: str, repo_root: str | None, home: str | None) -> None:
    """Withdraw a queued entry: its branch stays and does not land, and its node, if it has one, fails.

    Refused for one that is landing, or over.
    """
    follower, found = _named(entry, home)
    repo = validate_repository(Path(repo_root or found.repo))
    if Git(repo).key != follower.folder.parent.name:
        raise Refused(f"{entry} waits to land on {found.repo}, not on {repo}; leave --repo-root out")
    queue = MergeQueue(find_home(home), repo, found.target)
    _print({"status": "ok", "entry": queue.cancel(entry, "withdrawn by a person").to_dict()})


def _named(entry: str, home: str | None) -> tuple[Follower, Entry]:
    for one in queues_of(find_home(home), say):
        if entry in one.state.entries:
            return one, one.state.entries[entry]
    raise NotFound(f"no merge entry {entry}; `garrison merge-queue list` shows them")


def _print(body: dict[str, Any]) -> None:
    click.echo(json.dumps(body, ensure_ascii=False, indent=2))
