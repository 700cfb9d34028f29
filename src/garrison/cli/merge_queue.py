"""`garrison merge-queue`: inspect, control and configure the queue of branches that wait to land.

`merge.commands` implements the controls; the effect is the same with and without a running processor.
`merge_queue_process` has `enqueue` and `process`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import click

from garrison import plugins
from garrison.cli import merge_queue_process
from garrison.cli.commands import Group, former
from garrison.cli.options import (
    PluginChoice,
    combined,
    home_option,
    json_option,
    output_options,
    repo_root_option,
    target_option,
)
from garrison.cli.output import align_columns, print_json, print_message, print_result, print_table
from garrison.cli.resolve import find_entry, find_entry_for_change, only_queue, state_of
from garrison.directories import find_home, trees_root
from garrison.errors import GarrisonError, Refused
from garrison.merge import commands, landing
from garrison.merge.config import BATCH_HISTORY, CLEANING, QueueConfig
from garrison.merge.decision import MAX_BATCH
from garrison.merge.entry import STRATEGIES, MergeEntry
from garrison.merge.explanation import describe_changes, describe_union
from garrison.merge.preflight import identify
from garrison.merge.queue import QueueReader, find_unrecorded, list_queues, target_of_folder
from garrison.merge.state import QueueState
from garrison.merge.turns import describe_wait
from garrison.system.git import Git
from garrison.system.terminal_text import clean_lines
from garrison.values import Value, asdict

_LOG_LIMIT = 20
"""Default number of landings printed by `log`."""
_queue_options = combined(repo_root_option, target_option, output_options)


@click.group("merge-queue", cls=Group)
def merge_queue() -> None:
    """Inspect, fill and control the merge queue: branches that wait to be tested and landed."""


# ------------------------------------------------------------------------------------------------------------- inspect


@merge_queue.command("list", examples=(
    ("garrison merge-queue list", "the queues of the repository you are in"),
    ("garrison merge-queue list --all", "every queue of the home"),
    ("garrison merge-queue list --repo-root . --json", "the queues of this repository, for programs"),
))
@json_option
@click.option("--repo-root", type=click.Path(exists=True, file_okay=False), metavar="DIR",
              help="Only this repository's queues (default: the one you are in if it has any, "
              "else all; with --json all).")
@click.option("--all", "everything", is_flag=True, help="Every queue of the home.")
@home_option
def list_command(as_json: bool, repo_root: str | None, home: str | None, *, everything: bool) -> None:
    """List entries of one repository, or of all queues of the home. Exit code 1 if a queue cannot be read."""
    problems: list[str] = []
    queues = list_queues(find_home(home), problems.append, find_unrecorded(find_home(home)))
    key = Git(Path(repo_root)).key if repo_root else "" if as_json or everything else _key_here()
    own = [queue for queue in queues if queue.folder.parent.name == key]
    queues = own if own or repo_root else queues
    if as_json:
        print_json(_list(queues))
    else:
        for line in _queue_lines(queues) if queues or not problems else ():
            click.echo(line)
    for problem in problems[1:]:
        print_message(problem)
    if problems:
        raise Refused(f"{problems[0]} (`garrison doctor --fix` repairs a queue)")


def _key_here() -> str:
    """Return the key of the current repository, '' outside of one."""
    try:
        return Git(Path.cwd()).key
    except GarrisonError:
        return ""


class QueuePause(Value):
    """Pause of a queue."""

    reason: str
    detail: str
    log: str
    retry_at: str | None


class ListedQueue(Value):
    """Queue without its entries."""

    repository: str
    target: str
    pause: QueuePause | None
    hindrance: str
    config: Mapping[str, object] | None


class Listing(Value):
    """Queues and their entries, for `list --json`."""

    entries: list[Mapping[str, object]]
    queues: list[ListedQueue]
    last_updated: str | None


def _list(queues: list[QueueReader]) -> Listing:
    return Listing([entry.to_dict() for queue in queues for entry in queue.state.entries.values()],
                   [_list_queue(queue) for queue in queues],
                   max((queue.state.updated_at for queue in queues if queue.state.updated_at), default=None))


def _list_queue(queue: QueueReader) -> ListedQueue:
    config, pause = queue.state.config, queue.state.pause
    return ListedQueue(queue.folder.parent.name, target_of_folder(queue.folder),
                       QueuePause(pause.reason, pause.detail, pause.log, pause.retry_at or None) if pause else None,
                       queue.state.hindrance, asdict(config) if config else None)


def _queue_lines(queues: list[QueueReader]) -> Iterator[str]:
    if not queues:
        yield "no merge queue yet"
    for queue in queues:
        state = queue.state
        gate = state.config.describe() if state.config else "no gate recorded"
        yield f"{queue.folder.parent.name} → {target_of_folder(queue.folder)} ({gate})"
        if state.pause:
            yield f"  {state.pause.describe().splitlines()[0]}"
        if state.hindrance:
            yield f"  held up: {state.hindrance.splitlines()[0]}; it tries again"
        rows = [[f"  {entry.status}", entry.id, entry.branch, describe_entry(state, entry)]
                for entry in state.entries.values()]
        yield from align_columns(["  STATUS", "ENTRY", "BRANCH", "REASON"], rows) if rows else ()


def describe_entry(state: QueueState, entry: MergeEntry) -> str:
    """Return one line with the entry's unusual options, its reason and dependencies."""
    options = [f"priority {entry.priority}"] if entry.priority else []
    if entry.strategy != "merge":
        options.append(entry.strategy)
    reasons = [entry.reason.splitlines()[0]] if entry.reason else []
    unmet = [] if entry.is_final else [f"{other.id} ({other.status})" for other in state.unmet_dependencies(entry)]
    if entry.status == "landed" and entry.together:
        reasons.append(f"green together with {', '.join(entry.together)}")
    if entry.status == "landed" and entry.united:
        reasons.append(describe_union(entry.united))
    if changes := describe_changes(entry.changes, most=2):
        reasons.append(changes)
    if entry.waits_for:
        reasons = [describe_wait(entry.waits_for[1], entry.files)]
    if unmet:
        reasons.append(f"waits for {', '.join(unmet)}")
    return " ".join([*([f"[{', '.join(options)}]"] if options else []), "; ".join(reasons)]).strip()


for _command in (merge_queue_process.enqueue_command, merge_queue_process.process_command):
    merge_queue.add_command(_command)


@merge_queue.command("show", examples=(
    ("garrison merge-queue show add_tests-1-0f3a9c21", "one entry, by the id that enqueue printed"),
    ("garrison merge-queue show add_tests", "the latest entry of that node"),
    ("garrison merge-queue show add_tests --why", "why it was tested with these others, in words and numbers"),
))
@click.argument("entry")
@click.option("--why", is_flag=True, help="Explain its estimated risk and each of its tests instead.")
@output_options
def show_command(entry: str, why: bool, as_json: bool, home: str | None) -> None:
    """Show one entry: its branch, state, and what it waits for."""
    queue, merge_entry = find_entry(entry, home)
    if why:
        lines = _explain(queue, merge_entry, find_home(home))
        if as_json:
            print_json({"entry": merge_entry.id, "why": lines})
        else:
            click.echo("\n".join(clean_lines("\n".join(lines))))
        return
    body = merge_entry.to_dict()
    if not merge_entry.is_final:
        body["waits_for"] = [other.id for other in queue.state.unmet_dependencies(merge_entry)]
    what = f"{merge_entry.id}: {merge_entry.branch} at {merge_entry.oid[:10]} for {merge_entry.target}"
    landed = f" as {merge_entry.commit[:10]}" if merge_entry.status == "landed" else ""
    reason = describe_entry(queue.state, merge_entry)
    print_result(body, "\n".join([what, f"{merge_entry.status}{landed}{f': {reason}' if reason else ''}",
                                  *([f"gate's log: {merge_entry.log}"] if merge_entry.log else [])]), as_json=as_json)


def _explain(queue: QueueReader, entry: MergeEntry, home: Path) -> list[str]:
    """Explain the tests of an entry, in lines."""
    from garrison.merge.beliefs import TrackRecord, count_flakes, estimate_flakes
    from garrison.merge.explanation import explain_tests, find_runs
    from garrison.merge.touched import TouchedFiles
    from garrison.records import journal
    from garrison.system.git import open_repository

    state = queue.state
    is_on = state.config is None or state.config.beliefs
    history = TrackRecord(queue.folder, TouchedFiles(open_repository(Path(entry.repo), home)))
    stored = journal.read_history(queue.path)
    return explain_tests(entry, history.explain(state, entry, state.tip) if is_on else None, count_flakes(state),
                         estimate_flakes(state), find_runs(stored, entry.id))


@merge_queue.command("log", examples=(
    ("garrison merge-queue log", "the last landings of this repository, newest first"),
    ("garrison merge-queue log --json", "all of them, for programs"),
))
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N",
              help=f"Print at most N (default: {_LOG_LIMIT}; with --json all).")
@_queue_options
def log_command(as_json: bool, limit: int | None, repo_root: str | None, target: str | None, home: str | None) -> None:
    """Show landings, newest first, with commit and tested tree, gate and log.

    `foreign` marks moves of the target by others.
    """
    from garrison.merge.history import read_history

    queue = only_queue(repo_root, target, home)
    landings = [*reversed(read_history(queue.path))][:limit or (None if as_json else _LOG_LIMIT)]
    if as_json:
        print_json({"target": queue.target, "landed": [landing.to_dict() for landing in landings]})
        return
    print_table(("AT", "ENTRY", "BRANCH", "COMMIT", "TESTED"),
                [(landing.at[:19] + "Z", landing.entry or "foreign", landing.branch, landing.commit[:10],
                  landing.describe()) for landing in landings],
                "nothing has landed yet")


@merge_queue.command("conflicts", examples=(
    ("garrison merge-queue conflicts", "each waiting branch against the target, and against each other"),
))
@_queue_options
def conflicts_command(as_json: bool, repo_root: str | None, target: str | None, home: str | None) -> None:
    """Show conflicts of waiting branches with the target and with each other. Nothing is changed."""
    from garrison.merge.conflicts import find_conflicts

    report = find_conflicts(only_queue(repo_root, target, home))
    if as_json:
        print_json(report)
        return
    print_table(("ENTRY", "AGAINST", "FILES"),
                [(conflict.entry, conflict.against, conflict.describe()) for conflict in report.conflicts],
                f"no conflicts among {len(report.entries)} waiting entries and {report.target}")


# ----------------------------------------------------------------------------------------------------- control entries


def _print_changed(entry: MergeEntry, words: str, *, as_json: bool) -> None:
    print_result({"status": "ok", "entry": entry.to_dict()}, f"{entry.branch} ({entry.id}) {words}", as_json=as_json)


_entry_options = combined(
    click.option("--repo-root", type=click.Path(exists=True, file_okay=False), metavar="DIR",
                 help="Repository of the entry; refused if the entry belongs to another."), output_options)


@merge_queue.command("cancel", examples=(
    ("garrison merge-queue cancel add_tests-1-0f3a9c21", "its branch stays"),
))
@click.argument("entry")
@_entry_options
def cancel_command(entry: str, repo_root: str | None, as_json: bool, home: str | None) -> None:
    """Withdraw an entry. Its branch stays and does not land, and its node, if it has one, fails.

    A running gate is ended. Refused for an entry that is landing or finished.
    """
    queue, merge_entry = find_entry_for_change(entry, repo_root, home)
    _print_changed(commands.cancel(queue, merge_entry.id, "withdrawn by hand"), "is withdrawn; its branch stays",
                   as_json=as_json)


@merge_queue.command("hold", examples=(
    ('garrison merge-queue hold add_tests --reason "wait for the release"', "it keeps its place"),
))
@click.argument("entry")
@click.option("--reason", default="", metavar="TEXT", help="Reason that the listings show.")
@_entry_options
def hold_command(entry: str, reason: str, repo_root: str | None, as_json: bool, home: str | None) -> None:
    """Hold an entry. It is not tested until it is released; the others continue.

    A running gate is ended. An entry that replaces it is also held.
    """
    queue, merge_entry = find_entry_for_change(entry, repo_root, home)
    _print_changed(commands.hold(queue, merge_entry.id, " ".join(reason.split())),
                   f"is held; `garrison merge-queue release {merge_entry.id}` lets it land", as_json=as_json)


@merge_queue.command("release", examples=(
    ("garrison merge-queue release add_tests", "it waits for its turn again"),
))
@click.argument("entry")
@_entry_options
def release_command(entry: str, repo_root: str | None, as_json: bool, home: str | None) -> None:
    """Release a held entry; it keeps its place in the queue."""
    queue, merge_entry = find_entry_for_change(entry, repo_root, home)
    _print_changed(commands.release(queue, merge_entry.id), "waits for its turn again", as_json=as_json)


@merge_queue.command("retry", examples=(
    ("garrison merge-queue retry add_tests", "the same commit, after a flaky gate or a repaired target"),
))
@click.argument("entry")
@_entry_options
def retry_command(entry: str, repo_root: str | None, as_json: bool, home: str | None) -> None:
    """Enqueue the commit of a failed entry again, as the next attempt of its node.

    For a branch with new commits use `enqueue`. Refused while the entry's run is active, or will continue with a later
    attempt of the node: then the run decides.
    """
    from garrison.processes.runtime import Runtime
    from garrison.run.status import running_runs

    queue, merge_entry = find_entry_for_change(entry, repo_root, home)
    of_run = bool(merge_entry.recipient) and merge_entry.status != "undone"  # landed by its run
    if of_run and merge_entry.run in running_runs(Runtime.real(queue.home)):
        node, run = merge_entry.node, merge_entry.run
        raise Refused(f"{merge_entry.id} belongs to run {run}, which is active and decides about {node}; `garrison why "
                      f"{node} --run {run}` explains what it does")
    if of_run and (attempt := _next_attempt(queue.home, merge_entry)):
        node, run = merge_entry.node, merge_entry.run
        raise Refused(f"run {run} continues with attempt {attempt} of {node}; `garrison resume {run}` resumes "
                      f"it, `garrison merge-queue enqueue {node} {merge_entry.branch}` lands the branch without it")
    retried = commands.retry(queue, merge_entry.id)
    tip = queue.git.branch_tip(merge_entry.branch)
    if tip and tip != retried.oid:
        print_message(f"note: {merge_entry.branch} is at {tip[:10]} now and {retried.id} at {retried.oid[:10]}; "
                      "`enqueue` enqueues the branch's commit")
    _print_changed(retried, f"waits to land on {retried.target}", as_json=as_json)


def _next_attempt(home: Path, entry: MergeEntry) -> int | None:
    """Return the attempt with which the unfinished run of an entry's node will continue, None if none."""
    from garrison.errors import RecordError
    from garrison.records.store import Store
    from garrison.run.guardian_view import UNFINISHED

    try:
        state = state_of(Store(home), entry.run)
    except RecordError:  # an unreadable run cannot be resumed either
        return None
    node = state.nodes.get(entry.node)
    return node.attempt if node is not None and node.status in UNFINISHED and not state.over else None


# --------------------------------------------------------------------------------------------- control the whole queue


@merge_queue.command("pause", examples=(
    ('garrison merge-queue pause --reason "release day"', "branches can still be enqueued"),
))
@click.option("--reason", default="", metavar="TEXT", help="Reason that the listings show.")
@_queue_options
def pause_command(reason: str, repo_root: str | None, target: str | None, as_json: bool, home: str | None) -> None:
    """Pause the queue. Nothing is tested or landed until `unpause`; entries can still be enqueued.

    A running gate finishes, and its verdict is kept.
    """
    queue = only_queue(repo_root, target, home)
    pause = commands.pause(queue, " ".join(reason.split()))
    print_result({"status": "ok", "target": queue.target, "pause": {"reason": pause.reason, "detail": pause.detail}},
                 f"nothing lands on {queue.target} until `garrison merge-queue unpause --target {queue.target}`",
                 as_json=as_json)


@merge_queue.command("unpause", examples=(
    ("garrison merge-queue unpause", "after `pause`, or once gate and target are repaired"),
))
@_queue_options
def unpause_command(repo_root: str | None, target: str | None, as_json: bool, home: str | None) -> None:
    """Resume a paused queue; if it paused itself, it retries what failed."""
    queue = only_queue(repo_root, target, home)
    pause = commands.resume(queue)
    if pause is None:
        print_message(f"the queue of {queue.target} was not paused")
    print_result({"status": "ok", "target": queue.target,
                  "was": {"reason": pause.reason, "detail": pause.detail} if pause else None},
                 f"landings on {queue.target} continue", as_json=as_json)


merge_queue.add_command(former(unpause_command, "resume", "garrison merge-queue unpause"))


@merge_queue.command("config", examples=(
    ("garrison merge-queue config", "print the recorded configuration"),
    ('garrison merge-queue config --gate "make test" --timeout 600', "the test of a merged tree and its time limit"),
    ("garrison merge-queue config --strategy squash --guard", "one commit per branch; only the queue moves the target"),
))
@repo_root_option
@target_option
@click.option("--gate", metavar="CMD", help="Command that tests a merged tree.")
@click.option("--no-gate", is_flag=True, help="Land without testing.")
@click.option("--setup", metavar="CMD", help="Command that prepares a worktree for the gate; '' for none.")
@click.option("--lock-file", "lock_files", multiple=True, metavar="PATH",
              help="File whose change makes set-up run again (repeatable).")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="How long gate or set-up may take.")
@click.option("--strategy", type=PluginChoice(STRATEGIES, plugins.PluginGroup.STRATEGIES),
              help="How branches land by default.")
@click.option("--clean", type=click.Choice(CLEANING), help="Files removed from the worktree before each test.")
@click.option("--keep", multiple=True, metavar="PATTERN", help="Files that are never removed; '' for none.")
@click.option("--gate-cores", type=click.IntRange(0), metavar="N",
              help="Cores that one gate uses; if more are idle, gates run in parallel. 0: all.")
@click.option("--batch-history", type=click.Choice(BATCH_HISTORY),
              help="History of a batch on the target: one merge with the tested tree (tip), or a commit per entry, of "
                   "which only the last one's tree was tested (chain).")
@click.option("--max-batch", type=click.IntRange(0, MAX_BATCH), metavar="N",
              help="Maximum number of entries tested together. 0: the queue chooses; 1: each alone.")
@click.option("--beliefs/--no-beliefs", default=None,
              help="Let the queue's history influence which entries are tested together, or not.")
@click.option("--gate-from-target", multiple=True, metavar="GLOB",
              help="Files that the gate sees in the target's version, not the branch's (repeatable); '' for none.")
@click.option("--with-hooks/--without-hooks", default=None,
              help="Run your current reference-transaction hook before each landing.")
@click.option("--sign/--no-sign", default=None, help="Sign landings like your git does, or leave them unsigned.")
@click.option("--guard/--no-guard", default=None, help="Prevent other moves of the target, with a git hook.")
@output_options
def config_command(repo_root: str | None, target: str | None, as_json: bool, home: str | None, **given: object) -> None:
    """Show a queue's configuration, or change it with options.

    When the gate changes, entries under test are tested again with the new gate.
    """
    if given["gate"] and given["no_gate"]:
        raise click.UsageError("--gate and --no-gate are mutually exclusive")
    queue = only_queue(repo_root, target, home)
    changes = _config_changes(given)
    if given["with_hooks"] is not None:
        changes["hooks"] = landing.record(queue.git) if given["with_hooks"] else ""
    if given["sign"] is not None:
        changes["signer"] = identify(queue.git, os.environ, print_message)[1] if given["sign"] else None
    config = commands.reconfigure(queue, **changes) if changes else queue.state.config or QueueConfig()
    if as_json or changes:
        print_json({"repository": str(queue.repo), "target": queue.target, "recorded": queue.state.config is not None,
                    **asdict(config)})
    else:
        print_table(("SETTING", "VALUE"), [(name, _plain(value)) for name, value in asdict(config).items()])


def _config_changes(given: Mapping[str, object]) -> dict[str, object]:
    """Return the settings changed by the options, by their names in the record."""
    changes = {name: given[name] for name in
               ("timeout", "strategy", "clean", "gate_cores", "batch_history", "max_batch", "beliefs", "guard")
               if given[name] is not None}
    changes |= {name: tuple(filter(None, value)) for name in ("lock_files", "keep", "gate_from_target")
                if isinstance(value := given[name], tuple) and value}
    if given["gate"]:
        changes |= {"gate": given["gate"], "no_gate": False}
    if given["no_gate"]:
        changes |= {"gate": None, "no_gate": True}
    if given["setup"] is not None:
        changes["setup"] = given["setup"] or None
    return changes


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, tuple) else "" if value is None else str(value)


@merge_queue.command("doctor", moved_to="garrison doctor --fix")
@_queue_options
def doctor_command(repo_root: str | None, target: str | None, as_json: bool, home: str | None) -> None:
    """Repair a queue after a crash, as `garrison doctor --fix` does for all queues; exit code 1 if problems remain.
    """
    from garrison.merge.recovery import repair
    from garrison.processes.runtime import Runtime
    from garrison.run.branch import restore_gate_of_runs

    queue = only_queue(repo_root, target, home)
    findings = repair(queue, Path(trees_root()), partial(restore_gate_of_runs, Runtime.real(queue.home)))
    if as_json:
        print_json({"target": queue.target, "findings": findings})
    else:
        print_table(("STATE", "FINDING"),
                    [("repaired" if finding.repaired else "by hand", finding.what) for finding in findings],
                    f"no problems in the queue of {queue.target}")
    if any(not finding.repaired for finding in findings):
        raise Refused("some problems need your attention; see above")
