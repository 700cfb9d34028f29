"""Starting a runner: one function for the guardian and for the door `spawn_runner.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key, branch_of
from garrison.records.run import RunnerState
from garrison.supervise.lease import Wish
from garrison.system.git import repository_key

if TYPE_CHECKING:
    from garrison.processes.runtime import World
    from garrison.records.run import Launch, Task


def worktree_of(launch: Launch, node: str) -> Path:
    """Where a node's worktree lies, outside every checkout."""
    return Path(launch.trees) / repository_key(Path(launch.repo)) / launch.run_id / node


def start_runner(world: World, launch: Launch, task: Task, *, parent: Key | None,
                 journal_incarnation: int = 0) -> Identity:
    """The seed's runner state, then identity and hook, all on disk before the process; returns the leased identity."""
    key = Key("runner", task.node, task.run_id)
    wish = Wish(key, parent, str(worktree_of(launch, task.node)), branch_of(task.run_id, task.node),
                session_id=f"runner-{task.node}", metadata={"attempt": task.attempt},
                journal_incarnation=journal_incarnation)
    write_state(world, launch, key, "starting", None)
    return world.start_layer(wish, launch, ["--attempt", str(task.attempt)])


def write_state(world: World, launch: Launch, key: Key, status: str, pid: int | None) -> Path:
    """Write `runs/<run>/runners/<node>.json`; its status follows the process."""
    path = world.files(key.run).runner_state(key.name)
    run_records.save(path, RunnerState(
        pid, key.name, launch.prd_ref, launch.repo, str(world.store.path(Identity, key)),
        str(world.store.path(Hook, key)), status, world.clock.utc()))
    return path
