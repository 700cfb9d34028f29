"""Starting an orchestrator in the terminal: one function for the runner and for the door `spawn_orchestrator.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import Fenced
from garrison.light import asdict, replace
from garrison.merge import slots
from garrison.processes.runtime import layer_argv
from garrison.records import atomic
from garrison.records.identity import Identity
from garrison.records.names import Key, branch_of
from garrison.supervise.lease import Wish
from garrison.supervise.start import start_life
from garrison.system.git import Git
from garrison.system.terminal import Session, Terminal

if TYPE_CHECKING:
    from garrison.processes.runtime import World
    from garrison.records.run import Launch, Task


def tree_environment(world: World, launch: Launch, task: Task, tree: Path, life: str) -> dict[str, str]:
    """The one environment of set-up, acceptance and agents of a node, whose tree stands."""
    number = slots.claim(Git(Path(launch.repo)), tree.parent.parent, tree)
    return world.environment(launch, {
        "GARRISON_SLOT": str(number),
        "GARRISON_LIFE": life, "GARRISON_TREE": str(tree), "GARRISON_RUN": launch.run_id, "GARRISON_NODE": task.node,
        "GARRISON_ATTEMPT": str(task.attempt)})


def start_orchestrator(world: World, launch: Launch, task: Task, tree: Path, terminal: Terminal, *,
                       parent: Key | None, journal_incarnation: int = 0) -> Identity:
    """Lease, then a session of that full name; returns the leased identity with the session's ids recorded."""
    key = Key("orchestrator", task.node, launch.run_id)
    wish = Wish(key, parent, str(tree), branch_of(launch.run_id, task.node), session_id=key.full,
                metadata={"attempt": task.attempt}, journal_incarnation=journal_incarnation)

    def open_session(leased: Identity, life: str) -> None:
        argv = layer_argv(key, world.home, leased.incarnation, ["--attempt", str(task.attempt)])
        env = {**tree_environment(world, launch, task, tree, life), "GARRISON_INCARNATION": str(leased.incarnation)}
        log = world.files(launch.run_id).layer_log(f"orchestrator-{task.node}")
        atomic.make_directory(log.parent)
        _remember(world, leased, terminal.open(key.full, argv, env=env, cwd=tree, log=log))

    return start_life(world.observer, wish, world.timing.spawn_deadline, open_session)


def _remember(world: World, leased: Identity, session: Session) -> None:
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
