"""Spawn runners and orchestrators: one function each, for the process above and for the script of the same name.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import Fenced
from garrison.merge import slots
from garrison.processes.runtime import process_argv
from garrison.records import atomic
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key, branch_name
from garrison.records.run import RunnerState
from garrison.supervise.lease import SpawnRequest
from garrison.supervise.start import start_incarnation
from garrison.system.git import Git, repository_key
from garrison.system.terminal import Session, Terminal

if TYPE_CHECKING:
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Task


def worktree_path(launch: Launch, node: str) -> Path:
    """Where a node's worktree lies, outside every checkout."""
    return Path(launch.trees) / repository_key(Path(launch.repo)) / launch.run_id / node


def spawn_runner(world: Runtime, launch: Launch, task: Task, *, parent: Key | None,
                 journal_incarnation: int = 0) -> Identity:
    """The seed's runner state, then identity and hook, all on disk before the process; returns the leased identity."""
    key = Key("runner", task.node, task.run_id)
    wish = SpawnRequest(key, parent, str(worktree_path(launch, task.node)), branch_name(task.run_id, task.node),
                session_id=f"runner-{task.node}", metadata={"attempt": task.attempt},
                journal_incarnation=journal_incarnation)
    write_runner_state(world, launch, key, "starting", None)
    return world.start_layer(wish, launch, ["--attempt", str(task.attempt)])


def write_runner_state(world: Runtime, launch: Launch, key: Key, status: str, pid: int | None) -> Path:
    """Write `runs/<run>/runners/<node>.json`; its status follows the process."""
    path = world.files(key.run).runner_state(key.name)
    run_records.save(path, RunnerState(
        pid, key.name, launch.prd_ref, launch.repo, str(world.store.path(Identity, key)),
        str(world.store.path(Hook, key)), status, world.clock.utc()))
    return path


def worktree_environment(world: Runtime, launch: Launch, task: Task, tree: Path, life: str) -> dict[str, str]:
    """The one environment of set-up, acceptance and agents of a node, whose tree stands."""
    number = slots.claim_number(Git(Path(launch.repo)), tree.parent.parent, tree)
    return world.environment(launch, {
        "GARRISON_SLOT": str(number),
        "GARRISON_LIFE": life, "GARRISON_TREE": str(tree), "GARRISON_RUN": launch.run_id, "GARRISON_NODE": task.node,
        "GARRISON_ATTEMPT": str(task.attempt)})


def spawn_orchestrator(world: Runtime, launch: Launch, task: Task, tree: Path, terminal: Terminal, *,
                       parent: Key | None, journal_incarnation: int = 0) -> Identity:
    """Lease, then a session of that full name; returns the leased identity with the session's ids recorded."""
    key = Key("orchestrator", task.node, launch.run_id)
    wish = SpawnRequest(key, parent, str(tree), branch_name(launch.run_id, task.node), session_id=key.full,
                metadata={"attempt": task.attempt}, journal_incarnation=journal_incarnation)

    def open_session(leased: Identity, life: str) -> None:
        argv = process_argv(key, world.home, leased.incarnation, ["--attempt", str(task.attempt)])
        env = {**worktree_environment(world, launch, task, tree, life), "GARRISON_INCARNATION": str(leased.incarnation)}
        log = world.files(launch.run_id).layer_log(f"orchestrator-{task.node}")
        atomic.make_directory(log.parent)
        _remember(world, leased, terminal.open(key.full, argv, env=env, cwd=tree, log=log))

    return start_incarnation(world.observer, wish, world.timing.spawn_deadline, open_session)


def _remember(world: Runtime, leased: Identity, session: Session) -> None:
    def change(old: Identity | None) -> Identity:
        if old is None or old.incarnation != leased.incarnation:
            raise Fenced(f"{leased.key.full} has moved on")
        return replace(old, tmux=asdict(session))

    world.store.update(Identity, leased.key, change)


def close_sessions(terminal: Terminal, identity: Identity) -> None:
    """Close the recorded session of a life that is over, and any other of its full name."""
    if identity.tmux:
        terminal.close(Session(**identity.tmux))
    left = terminal.find(identity.key.full)
    if left is not None:
        terminal.close(left)
