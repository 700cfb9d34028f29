"""`garrison merge-queue`: inspect, control and configure the queue of branches that wait to land.

Every command prints what it did as JSON (or, for the listings, a table). The effect is the same whether or not a
processor is at work; `merge.commands` defines it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garrison.cli.commands import Command, LazyGroup
from garrison.cli.options import home_option, json_option, repo_root_option, target_option
from garrison.cli.output import align_columns, print_json, print_message, print_table
from garrison.cli.resolve import find_entry, find_entry_for_change, only_queue
from garrison.config import find_home, trees_root
from garrison.errors import Refused
from garrison.merge import commands
from garrison.merge.config import CLEANING, QueueConfig
from garrison.merge.entry import STRATEGIES
from garrison.merge.queue import list_queues, target_of_folder
from garrison.system.git import Git

if TYPE_CHECKING:
    from collections.abc import Iterator

    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import QueueReader
    from garrison.merge.state import QueueState


COMMANDS = {
    "list": ("merge_queue", "list_command", "Show entries: of one repository, or of all queues of the home."),
    "enqueue": ("merge_queue_process", "enqueue_command", "Put a branch in the queue, at the commit it is at now."),
    "process": ("merge_queue_process", "process_command", "Test and land what waits, or wait for whoever does."),
    "show": ("merge_queue", "show_command", "Show one entry."),
    "cancel": ("merge_queue", "cancel_command", "Withdraw an entry that has not begun to land."),
    "hold": ("merge_queue", "hold_command", "Keep an entry from being judged until it is released."),
    "release": ("merge_queue", "release_command", "Let a held entry go on."),
    "retry": ("merge_queue", "retry_command", "Try the commit of a failed entry again."),
    "pause": ("merge_queue", "pause_command", "Judge and land nobody until `resume`."),
    "resume": ("merge_queue", "resume_command", "Lift a pause, whoever began it."),
    "log": ("merge_queue", "log_command", "Show what landed, with what was tested."),
    "conflicts": ("merge_queue", "conflicts_command", "Show who conflicts with the target, and with whom."),
    "config": ("merge_queue", "config_command", "Show or record gate, set-up, strategy, guard and the rest."),
    "doctor": ("merge_queue", "doctor_command", "Repair what a crash left, and say what was done."),
}
"""Command → (module of garrison.cli, attribute, help line)."""


@click.group("merge-queue", cls=LazyGroup, table=COMMANDS)
def merge_queue() -> None:
    """Branches waiting to land, and the processor that tests and lands them."""


_SHOWN = 20
"""Landings that `log` shows to people, unless they say how many."""


@click.command("list", cls=Command, examples=(
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
    followers = list_queues(find_home(home), damaged.append)
    if repo_root:
        key = Git(Path(repo_root)).key
        followers = [one for one in followers if one.folder.parent.name == key]
    if as_json:
        print_json(listing(followers))
    else:
        for line in _lines(followers) if followers or not damaged else ():
            click.echo(line)
    for line in damaged[1:]:
        print_message(line)
    if damaged:
        raise Refused(f"{damaged[0]} (a queue: `garrison merge-queue doctor` in its repository)")


def listing(followers: list[QueueReader]) -> dict[str, Any]:
    """`{"entries", "queues", "last_updated"}`."""
    return {"entries": [entry.to_dict() for one in followers for entry in one.state.entries.values()],
            "queues": [_queue(one) for one in followers],
            "last_updated": max((one.state.updated_at for one in followers if one.state.updated_at), default=None)}


def _queue(one: QueueReader) -> dict[str, Any]:
    state = one.state
    paused = state.pause
    pause = {"reason": paused.reason, "detail": paused.detail, "log": paused.log} if paused else None
    return {"repository": one.folder.parent.name, "target": target_of_folder(one.folder), "pause": pause,
            "config": state.config.to_data() if state.config else None}


def _lines(followers: list[QueueReader]) -> Iterator[str]:
    if not followers:
        yield "no merge queue yet"
    for one in followers:
        state = one.state
        gate = state.config.describe() if state.config else "no gate recorded"
        yield f"{one.folder.parent.name} → {target_of_folder(one.folder)} ({gate})"
        if state.pause:
            yield f"  {state.pause.describe().splitlines()[0]}"
        rows = [[f"  {entry.status}", entry.id, entry.branch, explain_entry(state, entry)]
                for entry in state.entries.values()]
        yield from align_columns(["  STATUS", "ENTRY", "BRANCH", "WHY"], rows) if rows else ()


def explain_entry(state: QueueState, entry: MergeEntry) -> str:
    """In one line what keeps an entry, or what became of it, and its options where they are not the usual ones."""
    told = entry.reason.splitlines()[0] if entry.reason else ""
    if not entry.is_final:
        needs = [f"{other.id} ({other.status})" for other in state.unmet_dependencies(entry)]
        told = "; ".join(part for part in (told, f"waits for {', '.join(needs)}" if needs else "") if part)
    usual = [f"priority {entry.priority}"] if entry.priority else []
    usual += [entry.strategy] if entry.strategy != "merge" else []
    return " ".join(part for part in (f"[{', '.join(usual)}]" if usual else "", told) if part)


@click.command("show", cls=Command, examples=(
    ("garrison merge-queue show add_tests-1-0f3a9c21", "one entry, by the id that enqueue gave"),
    ("garrison merge-queue show add_tests", "the latest of that node"),
))
@click.argument("entry")
@json_option
@home_option
def show_command(entry: str, as_json: bool, home: str | None) -> None:
    """Show one entry as JSON."""
    follower, found = find_entry(entry, home)
    body = found.to_dict()
    if not found.is_final:
        body["waits_for"] = [other.id for other in follower.state.unmet_dependencies(found)]
    print_json(body)


@click.command("log", cls=Command, examples=(
    ("garrison merge-queue log", "the last landings of this repository, the youngest first"),
    ("garrison merge-queue log --json", "all of them, for programs"),
))
@json_option
@click.option("-n", "--limit", type=click.IntRange(1), help=f"So many (default: {_SHOWN}; with --json all).")
@repo_root_option
@target_option
@home_option
def log_command(as_json: bool, limit: int | None, repo_root: str | None, target: str | None, home: str | None) -> None:
    """Show what landed, the youngest first: commit, and the tree, gate and log that let it.

    `foreign` are moves of the target that the queue did not make.
    """
    from garrison.merge.history import read_history

    queue = only_queue(repo_root, target, home)
    rows = [*reversed(read_history(queue.path))]
    rows = rows[:limit or (None if as_json else _SHOWN)]
    if as_json:
        print_json({"target": queue.target, "landed": [row.to_dict() for row in rows]})
        return
    print_table(("AT", "ENTRY", "BRANCH", "COMMIT", "TESTED"),
               [(row.at[:19] + "Z", row.entry or "foreign", row.branch, row.commit[:10], row.describe())
                for row in rows],
               "nothing has landed yet")


@click.command("conflicts", cls=Command, examples=(
    ("garrison merge-queue conflicts", "each waiting branch against the target, and against each other"),
))
@json_option
@repo_root_option
@target_option
@home_option
def conflicts_command(as_json: bool, repo_root: str | None, target: str | None, home: str | None) -> None:
    """Show which waiting branches conflict with the target, and which with each other; nothing is changed."""
    from garrison.merge.conflicts import find_conflicts

    found = find_conflicts(only_queue(repo_root, target, home))
    if as_json:
        print_json(found.to_dict())
        return
    print_table(("ENTRY", "AGAINST", "FILES"),
                [(pair.entry, pair.against, pair.describe()) for pair in found.conflicts],
                f"no conflicts among {len(found.entries)} waiting entries and {found.target}")


_repo = click.option("--repo-root", type=click.Path(exists=True, file_okay=False), metavar="DIR",
                     help="The repository it is of, to be sure.")


@click.command("cancel", cls=Command, examples=(
    ("garrison merge-queue cancel add_tests-1-0f3a9c21", "its branch stays"),
))
@click.argument("entry")
@_repo
@json_option
@home_option
def cancel_command(entry: str, repo_root: str | None, as_json: bool, home: str | None) -> None:
    """Withdraw an entry: its branch stays and does not land, and its node, if it has one, fails.

    A test under way is ended. Refused for one that is landing, or over.
    """
    queue, found = find_entry_for_change(entry, repo_root, home)
    print_json({"status": "ok", "entry": commands.cancel(queue, found.id, "withdrawn by a person").to_dict()})


@click.command("hold", cls=Command, examples=(
    ('garrison merge-queue hold add_tests --reason "wait for the release"', "it keeps its place"),
))
@click.argument("entry")
@click.option("--reason", default="", help="Why, for whoever looks.")
@_repo
@json_option
@home_option
def hold_command(entry: str, reason: str, repo_root: str | None, as_json: bool, home: str | None) -> None:
    """Keep an entry from being judged until it is released; the others go on.

    A test under way is ended. What replaces it while it is held is held too.
    """
    queue, found = find_entry_for_change(entry, repo_root, home)
    print_json({"status": "ok", "entry": commands.hold(queue, found.id, " ".join(reason.split())).to_dict()})


@click.command("release", cls=Command, examples=(
    ("garrison merge-queue release add_tests", "it waits for its turn again"),
))
@click.argument("entry")
@_repo
@json_option
@home_option
def release_command(entry: str, repo_root: str | None, as_json: bool, home: str | None) -> None:
    """Let a held entry go on, from the place it had."""
    queue, found = find_entry_for_change(entry, repo_root, home)
    print_json({"status": "ok", "entry": commands.release(queue, found.id).to_dict()})


@click.command("retry", cls=Command, examples=(
    ("garrison merge-queue retry add_tests", "the same commit, after a flaky gate or a mended target"),
))
@click.argument("entry")
@_repo
@json_option
@home_option
def retry_command(entry: str, repo_root: str | None, as_json: bool, home: str | None) -> None:
    """Enqueue the commit of a failed entry again, as the next attempt at its node.

    For a branch with new commits say `enqueue`. Refused while the run that it is of goes on: that decides itself.
    """
    queue, found = find_entry_for_change(entry, repo_root, home)
    if found.recipient and found.run in _under_way(home):
        raise Refused(f"{found.id} is of run {found.run}, which goes on and decides itself about {found.node}; "
                      f"`garrison why {found.node} --run {found.run}` tells what it does")
    again = commands.retry(queue, found.id)
    tip = queue.git.branch_tip(found.branch)
    if tip and tip != again.oid:
        print_message(f"note: {found.branch} is at {tip[:10]} now and {again.id} at {again.oid[:10]}; "
                      "`enqueue` takes the former")
    print_json({"status": "ok", "entry": again.to_dict()})


def _under_way(home: str | None) -> set[str]:
    from garrison.processes.merge_client import running_runs
    from garrison.processes.runtime import Runtime

    return running_runs(Runtime.real(find_home(home)))


@click.command("pause", cls=Command, examples=(
    ('garrison merge-queue pause --reason "release day"', "enqueueing goes on"),
))
@click.option("--reason", default="", help="Why, for whoever looks.")
@repo_root_option
@target_option
@json_option
@home_option
def pause_command(reason: str, repo_root: str | None, target: str | None, as_json: bool, home: str | None) -> None:
    """Judge and land nobody until a person says `resume`; entries may still be enqueued.

    A test under way ends by itself, and its verdict is kept.
    """
    queue = only_queue(repo_root, target, home)
    pause = commands.pause(queue, " ".join(reason.split()))
    print_json({"status": "ok", "target": queue.target, "pause": {"reason": pause.reason, "detail": pause.detail}})


@click.command("resume", cls=Command, examples=(
    ("garrison merge-queue resume", "after `pause`, or once gate and target are mended"),
))
@repo_root_option
@target_option
@json_option
@home_option
def resume_command(repo_root: str | None, target: str | None, as_json: bool, home: str | None) -> None:
    """Lift whatever pause there is; what made the queue pause itself is tried again."""
    queue = only_queue(repo_root, target, home)
    pause = commands.resume(queue)
    if pause is None:
        print_message(f"the queue of {queue.target} was not paused")
    print_json({"status": "ok", "target": queue.target,
                "was": {"reason": pause.reason, "detail": pause.detail} if pause else None})


@click.command("config", cls=Command, examples=(
    ("garrison merge-queue config", "what is recorded"),
    ('garrison merge-queue config --gate "make test" --timeout 600', "what tests a merged tree, and how long at most"),
    ("garrison merge-queue config --strategy squash --guard", "one commit a branch, and nobody else moves the target"),
))
@repo_root_option
@target_option
@click.option("--gate", metavar="CMD", help="Command that tests a merged tree.")
@click.option("--no-gate", is_flag=True, help="Land without any test.")
@click.option("--setup", metavar="CMD", help="Command that makes a tree ready for the gate; '' for none.")
@click.option("--lock-file", "lock_files", multiple=True, metavar="PATH",
              help="File whose content decides when set-up runs again; repeatable.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="How long gate or set-up may take.")
@click.option("--strategy", type=click.Choice(STRATEGIES), help="How branches land that say nothing else.")
@click.option("--clean", type=click.Choice(CLEANING), help="What is removed from the tree before each test.")
@click.option("--keep", multiple=True, metavar="PATTERN", help="Files that stay whatever is cleaned; '' for none.")
@click.option("--gate-cores", type=click.IntRange(0), metavar="N",
              help="Cores that one run of the gate keeps busy; where more are idle, others go on beside it. 0: all.")
@click.option("--guard/--no-guard", default=None, help="Keep everybody else from moving the target, by a hook.")
@json_option
@home_option
def config_command(repo_root: str | None, target: str | None, as_json: bool, home: str | None, **said: Any) -> None:
    """Show what the queue of a target runs, or record it; without options nothing is changed.

    With another gate, what was begun is judged anew by that.
    """
    if said["gate"] and said["no_gate"]:
        raise click.UsageError("--gate and --no-gate exclude each other")
    queue = only_queue(repo_root, target, home)
    changes = _changes(said)
    config = commands.reconfigure(queue, **changes) if changes else queue.state.config or QueueConfig()
    if as_json or changes:
        print_json({"repository": str(queue.repo), "target": queue.target, "recorded": queue.state.config is not None,
                   **config.to_data()})
    else:
        print_table(("SETTING", "VALUE"), [(name, _plain(value)) for name, value in config.to_data().items()])


def _changes(said: dict[str, Any]) -> dict[str, Any]:
    """The settings that were said, as the record has them."""
    plain = ("timeout", "strategy", "clean", "gate_cores", "guard")
    found = {name: said[name] for name in plain if said[name] is not None}
    found |= {name: tuple(one for one in said[name] if one) for name in ("lock_files", "keep") if said[name]}
    if said["gate"]:
        found |= {"gate": said["gate"], "no_gate": False}
    if said["no_gate"]:
        found |= {"gate": None, "no_gate": True}
    if said["setup"] is not None:
        found["setup"] = said["setup"] or None
    return found


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else "" if value is None else str(value)


@click.command("doctor", cls=Command, examples=(
    ("garrison merge-queue doctor", "after a crash, or when something looks wrong; harmless at any time"),
))
@repo_root_option
@target_option
@json_option
@home_option
def doctor_command(repo_root: str | None, target: str | None, as_json: bool, home: str | None) -> None:
    """Repair what a crash left of a queue, and say what was done and what is left to a person.

    Exit code 1 if something is left. `garrison doctor` looks after the rest of the home.
    """
    from garrison.merge.recovery import repair

    queue = only_queue(repo_root, target, home)
    found = repair(queue, Path(trees_root()))
    if as_json:
        print_json({"target": queue.target, "findings": [one.to_dict() for one in found]})
    else:
        print_table(("DONE", "WHAT"), [("mended" if one.repaired else "left", one.what) for one in found],
                   f"nothing is wrong with the queue of {queue.target}")
    if any(not one.repaired for one in found):
        raise Refused("something is left to you; see above")
