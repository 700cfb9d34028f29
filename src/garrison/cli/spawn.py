"""`spawn_runner.py` and `spawn_orchestrator.py`: one node by hand, without guardian and launcher.

Without `--run` an ad-hoc run is made: its runner enqueues the finished branch and ends, and `merge-queue process` lands
it. With `--run` a node of an existing run is started again in its current attempt.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from garrison.agents import registry
from garrison.cli.launch import HOME
from garrison.config import find_home
from garrison.errors import GarrisonError, NotFound, Refused
from garrison.processes import launch as launching
from garrison.processes import spawn
from garrison.processes.runner.policy import RunnerFacts
from garrison.processes.runtime import Runtime
from garrison.processes.spawn import close_sessions, worktree_path
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.journal import read_all
from garrison.records.names import Key, branch_name, check_node
from garrison.records.run import Launch, Task
from garrison.supervise.replace import kill_incarnation, replace_incarnation
from garrison.system.git import Git
from garrison.system.terminal import choose_terminal
from garrison.system.worktree_files import complete_worktree

CONTEXT = {"help_option_names": ["-h", "--help"]}


@click.command(context_settings=CONTEXT)
@click.option("--node", required=True, metavar="N", help="The node's name.")
@click.option("--prd", "--prd-ref", "prd", required=True, metavar="REF", help="The requirement document it serves.")
@click.option("--target-dir", required=True, type=click.Path(path_type=Path), help="The repository.")
@click.option("--run", metavar="ID", help="An existing run (default: an ad-hoc run of its own).")
@click.option("--attempt", type=click.IntRange(1), default=1, show_default=True)
@click.option("--acceptance", metavar="CMD", help="Proves the work in its own tree.")
@click.option("--prompt", default="", help="What to do.")
@click.option("--command", metavar="CMD", help="What the command agent runs.")
@click.option("--agent", default=None, help="Who does it (default: command, or scripted where there is no command).")
@click.option("--setup", metavar="CMD")
@click.option("--terminal", type=click.Choice(["auto", "tmux", "process"]), default=None)
@click.option("--wait", is_flag=True, help="Return when the runner is done: exit 0 if the branch is enqueued.")
@HOME
def spawn_runner(node: str, prd: str, target_dir: Path, run: str | None, attempt: int, home: str | None, wait: bool,
                 **options: Any) -> None:
    """Start the runner of one node; prints its pid and where its records lie, once it lives.

    Without --run it enqueues the finished branch and ends; `garrison merge-queue process` lands it.
    """
    world = Runtime.real(find_home(home))
    launch, task = _launch_and_task(world, node, prd, target_dir, run, attempt, options)
    key = Key("runner", node, launch.run_id)
    _clear(world, key)
    leased = spawn.spawn_runner(world, launch, task, parent=_parent(launch))
    identity = _await_active(world, leased)
    click.echo(json.dumps({
        "status": "ok", "runner_pid": identity.pid, "node_id": node, "run_id": launch.run_id,
        "incarnation": identity.incarnation, "state_file": str(world.files(launch.run_id).runner_state(node)),
        "identity_file": str(world.store.path(Identity, key)), "hook_file": str(world.store.path(Hook, key))}))
    if wait:
        sys.stdout.flush()
        _await_end(world, identity, attempt)


@click.command(context_settings=CONTEXT)
@click.option("--node", required=True, metavar="N", help="The node's name.")
@click.option("--prd", "--prd-ref", "prd", required=True, metavar="REF", help="The requirement document it serves.")
@click.option("--repo-root", required=True, type=click.Path(path_type=Path), help="The repository.")
@click.option("--session-name", help="Kept as the identity's session_id (the session is named after node and run).")
@click.option("--max-respawn", type=click.IntRange(0), default=10, show_default=True)
@click.option("--run", metavar="ID", help="An existing run (default: an ad-hoc run of its own).")
@click.option("--prompt", default="", help="What to do.")
@click.option("--command", metavar="CMD", help="What the command agent runs.")
@click.option("--agent", default=None, help="Who does it (default: command, or scripted where there is no command).")
@click.option("--terminal", type=click.Choice(["auto", "tmux", "process"]), default=None)
@HOME
def spawn_orchestrator(node: str, prd: str, repo_root: Path, session_name: str | None, run: str | None,
                       home: str | None, **options: Any) -> None:
    """Start the orchestrator of one node in the terminal, with the wisdom of its dead predecessor if there is one."""
    world = Runtime.real(find_home(home))
    launch, task = _launch_and_task(world, node, prd, repo_root, run, 1, options)
    key = Key("orchestrator", node, launch.run_id)
    terminal, note = choose_terminal(launch.terminal, world.home)
    if note:
        click.echo(note, err=True)
    tree = worktree_path(launch, node)
    git = Git(Path(launch.repo))
    tree.parent.mkdir(parents=True, exist_ok=True)
    git.add_worktree(tree, branch_name(launch.run_id, node), git.rev(f"refs/heads/{launch.base}") or launch.base_oid)
    for note in complete_worktree(git, tree):
        click.echo(note, err=True)
    previous = _clear(world, key)
    if previous is not None:
        _check_respawns(previous, launch)
        close_sessions(terminal, previous)
        git.clear_locks(tree, branch_name(launch.run_id, node))
    leased = spawn.spawn_orchestrator(world, launch, task, tree, terminal, parent=_parent(launch))
    identity = _await_active(world, leased)
    click.echo(json.dumps({"status": "ok", "session": session_name or identity.session_id, "tmux": identity.tmux,
                           "run_id": launch.run_id, "node_id": node, "pid": identity.pid, "worktree": str(tree),
                           "branch": identity.branch, "incarnation": identity.incarnation}))


def _launch_and_task(world: Runtime, node: str, prd: str, target: Path, run: str | None, attempt: int,
                     options: dict[str, Any]) -> tuple[Launch, Task]:
    """An existing run's, or new ones of an ad-hoc run."""
    check_node(node)
    if run and (world.home / "runs" / run).is_dir():
        launch = world.launch(run)
        task = run_records.load(Task, world.files(run).attempt(node, attempt) / "task.json")
        if task is None:
            raise NotFound(f"run {run} has no attempt {attempt} at {node}; its guardian writes that before it starts")
        return launch, task
    agent = options.pop("agent") or ("command" if options.get("command") else None)
    if agent is None:
        raise Refused(f"say what {node} does: --command 'CMD', or --agent NAME")
    registry.required_variables({agent}, world.home)
    return launching.create_adhoc_run(world, node, prd, target, run=run or _fresh_run(world, node), agent=agent,
                           **{name: value for name, value in options.items() if value is not None})


def _fresh_run(world: Runtime, node: str) -> str:
    stem = "adhoc-" + "".join(letter if letter.isalnum() else "-" for letter in node.lower()).strip("-")[:18]
    number = 1
    while (world.home / "runs" / f"{stem}-{number}").exists():
        number += 1
    return f"{stem}-{number}"


def _parent(launch: Launch) -> Key | None:
    return None if launch.adhoc else Key("guardian", launch.pipeline_id, launch.run_id)


def _clear(world: Runtime, key: Key) -> Identity | None:
    """Replace a dead predecessor, so that the name is free; a living one is left to refuse the start."""
    old = world.store.read(Identity, key)
    if old is None:
        return None
    verdict = world.observer.judge(old)
    if verdict.state in ("dead", "lapsed"):
        return replace_incarnation(world.observer, old, verdict.why, world.timing.sweep_grace)
    if old.status == "crashed":
        kill_incarnation(world.observer, old, world.timing.sweep_grace)
    return old


def _check_respawns(previous: Identity, launch: Launch) -> None:
    if previous.respawns >= launch.max_respawn:
        raise Refused(f"{previous.key.full} was respawned {previous.respawns} times, the limit is "
                      f"{launch.max_respawn}; see why in its log, then say --max-respawn in a new run")


def _await_active(world: Runtime, leased: Identity) -> Identity:
    """Wait until the started life has registered; GarrisonError if it does not in time."""
    until = time.monotonic() + world.timing.spawn_deadline
    while time.monotonic() < until:
        now = world.store.get(Identity, leased.key)
        if now.incarnation != leased.incarnation or now.status != "starting":
            if now.status == "crashed":
                raise GarrisonError(f"{leased.key.full} could not be started: {now.reason}")
            return now
        time.sleep(0.02)
    log = world.files(leased.run_id).layer_log(f"{leased.role}-{leased.name}")
    raise GarrisonError(f"{leased.key.full} did not come up in {world.timing.spawn_deadline:.0f} s; see {log}")


def _await_end(world: Runtime, begun: Identity, attempt: int) -> None:
    """Wait until that life of a runner is over; GarrisonError unless it ended well."""
    while world.observer.judge(now := world.store.get(Identity, begun.key)).living:
        time.sleep(0.1)
    look = f"`garrison logs {begun.name} --run {begun.run_id}` shows what was printed"
    if now.status != "terminated":
        raise GarrisonError(f"{begun.key.full} died; say --run {begun.run_id} to start it again ({look})")
    if now.exit:
        facts = RunnerFacts()
        for entry in read_all(world.files(begun.run_id).layer_journal(f"runner-{begun.name}")):
            facts.apply(entry, attempt)
        raise GarrisonError(f"{begun.name} failed: {facts.failed or now.reason} ({look})")
