"""`spawn_runner.py` and `spawn_orchestrator.py`: start one node's process by hand, without guardian and launcher.

Without `--run` an ad-hoc run is created: its runner enqueues the finished branch and ends, and `garrison merge-queue
process` lands it. With `--run` a node of an existing run is started again in its current attempt.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from garrison.agents import registry
from garrison.cli.commands import Command
from garrison.cli.options import combined, home_option
from garrison.cli.output import print_message
from garrison.cli.sandbox import sandbox_option, settle_mode
from garrison.directories import find_home
from garrison.errors import GarrisonError, NotFound, Refused
from garrison.launch import launch as launching
from garrison.node.policy import RunnerFacts
from garrison.processes import spawn
from garrison.processes.runtime import Runtime
from garrison.processes.spawn import close_sessions, worktree_path
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.journal import read_all
from garrison.records.names import Key, branch_name, check_node
from garrison.records.run import Launch, Task
from garrison.sandbox.network import connect_for
from garrison.system.git import Git
from garrison.system.terminal_choice import choose_terminal
from garrison.system.worktree_files import complete_worktree

_task_options = combined(
    click.option("--node", required=True, metavar="NAME", help="Name of the node."),
    click.option("--prd", "--prd-ref", "prd", required=True, metavar="REF",
                 help="Requirement document of the node."),
    click.option("--run", metavar="ID", help="Existing run (default: a new ad-hoc run)."),
    click.option("--prompt", default="", metavar="TEXT", help="Task for the agent."),
    click.option("--command", metavar="CMD", help="Command that the command agent runs."),
    click.option("--agent", metavar="NAME", help="Agent (default: command, if there is a --command)."),
    click.option("--terminal", type=click.Choice(["auto", "tmux", "process"]),
                 help="Where the agent works: in a tmux session, or as a plain process."),
)
"""Options that describe a node's task."""


@click.command(cls=Command, examples=(
    ('spawn_runner.py --node touch_up --prd PRD-1 --target-dir ~/src/project --command "make fmt" --wait',
     "one node in an ad-hoc run; exit code 0 once its branch is enqueued"),
))
@_task_options
@click.option("--target-dir", default=".", metavar="DIR", type=click.Path(path_type=Path),
              help="Repository (default: the one you are in).")
@click.option("--attempt", type=click.IntRange(1), default=1, show_default=True, metavar="N",
              help="Attempt in an existing run.")
@click.option("--acceptance", metavar="CMD", help="Command that accepts the work, run in its own worktree.")
@click.option("--setup", metavar="CMD", help="Command that prepares a fresh worktree.")
@click.option("--wait", is_flag=True, help="Return when the runner has ended; exit code 0 if the branch is enqueued.")
@sandbox_option
@home_option
def spawn_runner(node: str, prd: str, target_dir: Path, run: str | None, attempt: int, home: str | None, wait: bool,
                 **options: str | None) -> None:
    """Start the runner of one node; prints its pid and the paths of its records once it is active.

    Without --run it enqueues the finished branch and ends; `garrison merge-queue process` lands the branch.
    """
    runtime = Runtime.real(find_home(home))
    launch, task = _launch_and_task(runtime, node, prd, target_dir, run, attempt, options)
    key = Key("runner", node, launch.run_id)
    spawn.replace_dead(runtime, key)
    # the dead one's processes have ended: otherwise two runners of a node would work in one worktree
    leased = spawn.spawn_runner(runtime, launch, task, parent=_parent(launch))
    identity = _wait_active(runtime, leased)
    click.echo(json.dumps({
        "status": "ok", "runner_pid": identity.pid, "node_id": node, "run_id": launch.run_id,
        "incarnation": identity.incarnation, "state_file": str(runtime.files(launch.run_id).runner_state(node)),
        "identity_file": str(runtime.store.path(Identity, key)), "hook_file": str(runtime.store.path(Hook, key))}))
    if wait:
        sys.stdout.flush()
        _wait_end(runtime, identity, attempt)


@click.command(cls=Command, examples=(
    ('spawn_orchestrator.py --node touch_up --prd PRD-1 --repo-root ~/src/project --command "make fmt"',
     "the agent alone, in its worktree and terminal session"),
))
@_task_options
@click.option("--repo-root", default=".", metavar="DIR", type=click.Path(path_type=Path),
              help="Repository (default: the one you are in).")
@click.option("--session-name", metavar="NAME",
              help="Session name to print; the session itself is named after node and run.")
@click.option("--max-respawn", type=click.IntRange(0), default=10, show_default=True, metavar="N",
              help="Respawns allowed.")
@sandbox_option
@home_option
def spawn_orchestrator(node: str, prd: str, repo_root: Path, session_name: str | None, run: str | None,
                       home: str | None, **options: str | None) -> None:
    """Start the orchestrator of one node in the terminal; its prompt describes a dead predecessor's progress."""
    runtime = Runtime.real(find_home(home))
    launch, task = _launch_and_task(runtime, node, prd, repo_root, run, 1, options)
    key = Key("orchestrator", node, launch.run_id)
    terminal, note = choose_terminal(launch.terminal, runtime.home)
    if note:
        print_message(note)
    worktree = worktree_path(launch, node)
    git = Git(Path(launch.repo), home=runtime.home)
    worktree.parent.mkdir(parents=True, exist_ok=True)
    branch = branch_name(launch.run_id, node)
    git.add_worktree(worktree, branch, git.rev(f"refs/heads/{launch.base}") or launch.base_oid)
    for note in complete_worktree(git, worktree, connect=connect_for(git)):
        print_message(note)
    previous = spawn.replace_dead(runtime, key)
    if previous is not None:
        _check_respawns(previous, launch)
        close_sessions(terminal, previous, runtime.home)
        # only now: its processes have ended, so a lock file has no owner
        git.clear_locks(worktree, branch)
    leased = spawn.spawn_orchestrator(runtime, launch, task, worktree, terminal, parent=_parent(launch))
    identity = _wait_active(runtime, leased)
    click.echo(json.dumps({"status": "ok", "session": session_name or identity.session_id, "tmux": identity.tmux,
                           "run_id": launch.run_id, "node_id": node, "pid": identity.pid, "worktree": str(worktree),
                           "branch": identity.branch, "incarnation": identity.incarnation}))


def _launch_and_task(runtime: Runtime, node: str, prd: str, target: Path, run: str | None, attempt: int,
                     options: dict[str, str | None]) -> tuple[Launch, Task]:
    """Return launch record and task of an existing run, or create those of an ad-hoc run."""
    check_node(node)
    if run and (runtime.home / "runs" / run).is_dir():
        launch = runtime.launch(run)
        task = run_records.load(Task, runtime.files(run).attempt(node, attempt) / "task.json")
        if task is None:
            raise NotFound(f"run {run} has no attempt {attempt} of {node}; the guardian records it before it starts")
        return launch, task
    agent = options.pop("agent") or ("command" if options.get("command") else None)
    if agent is None:
        raise Refused(f"{node} has no agent: pass --command or --agent")
    settle_mode(runtime.home)
    registry.required_variables({agent}, runtime.home)
    registry.check_program(agent, runtime.home, runtime.environ)
    return launching.create_adhoc_run(runtime, node, prd, target, run=run, agent=agent,
                                      **{name: value for name, value in options.items() if value is not None})


def _parent(launch: Launch) -> Key | None:
    return None if launch.adhoc else Key("guardian", launch.pipeline_id, launch.run_id)


def _check_respawns(previous: Identity, launch: Launch) -> None:
    if previous.respawns >= launch.max_respawn:
        raise Refused(f"{previous.key.full} was respawned {previous.respawns} times, the limit is "
                      f"{launch.max_respawn}; find the cause in its log, then start a new run with a higher "
                      "--max-respawn")


def _wait_active(runtime: Runtime, leased: Identity) -> Identity:
    """Wait until the started incarnation has registered; GarrisonError if it does not in time."""
    deadline = time.monotonic() + runtime.timing.spawn_deadline
    while time.monotonic() < deadline:
        identity = runtime.store.get(Identity, leased.key)
        if identity.incarnation != leased.incarnation or identity.status != "starting":
            if identity.status == "crashed":
                raise GarrisonError(f"{leased.key.full} could not be started: {identity.reason}")
            return identity
        time.sleep(0.02)
    log = runtime.files(leased.run_id).process_log(f"{leased.role}-{leased.name}")
    raise GarrisonError(f"{leased.key.full} did not start within {runtime.timing.spawn_deadline:.0f} s; see {log}")


def _wait_end(runtime: Runtime, started: Identity, attempt: int) -> None:
    """Wait until an incarnation of a runner has ended; GarrisonError unless it succeeded."""
    while runtime.observer.judge(identity := runtime.store.get(Identity, started.key)).living:
        time.sleep(0.1)
    hint = f"`garrison logs {started.name} --run {started.run_id}` shows the output"
    if identity.status != "terminated":
        raise GarrisonError(f"{started.key.full} died; pass --run {started.run_id} to start it again ({hint})")
    if identity.exit:
        facts = RunnerFacts()
        for entry in read_all(runtime.files(started.run_id).process_journal(f"runner-{started.name}")):
            facts.apply(entry, attempt)
        raise GarrisonError(f"{started.name} failed: {facts.failed or identity.reason} ({hint})")
