"""Spawn processes: any process of a run as a detached one, a node's runner, and a node's orchestrator in a terminal.

Both the parent process and the script of the same name use these functions. `start_incarnation`
(`supervise/incarnation.py`) leases the incarnation first and calls back to start its process.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import Fenced, GarrisonError
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key, branch_name
from garrison.records.record import from_data
from garrison.records.run import RunnerState
from garrison.supervise.incarnation import (
    SpawnRequest,
    kill_incarnation,
    replace_incarnation,
    start_incarnation,
)
from garrison.system import forks, machine
from garrison.system.machine import module_argv
from garrison.system.processes import ProcessId
from garrison.system.terminal import Terminal, TerminalSession
from garrison.system.terminal_choice import choose_terminal
from garrison.values import asdict, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Task


PROGRAMS = {"guardian": "garrison.run.guardian", "runner": "garrison.node.runner",
            "orchestrator": "garrison.node.orchestrator", "processor": "garrison.run.merge_processor"}
"""Role → the module of its process, which `main.py` imports; by name, since it imports this module."""
_LATER = ("tomllib", "garrison.merge.gates_by_path", "garrison.node.diff_check", "garrison.node.unfinished")
"""Modules that runners and orchestrators use once an agent works."""


def process_argv(key: Key, home: Path, incarnation: int, options: list[str] | None = None) -> list[str]:
    return [*module_argv("garrison.processes.main"), key.role, "--home", str(home), "--run", key.run,
            "--name", key.name, "--incarnation", str(incarnation), *(options or [])]


def spawn_process(runtime: Runtime, launch: Launch, request: SpawnRequest,
                  options: list[str] | None = None, variables: Mapping[str, str] | None = None) -> Identity:
    """Start a process in its own session, with its output in its log and these variables in addition to a run's; return
    the leased identity.

    OSError (ENOSPC) on a full disk: the process could not register there, and would count as a death.
    """
    machine.require_space(runtime.home)
    key = request.key

    def spawn(identity: Identity, marker: str) -> ProcessId:
        # Under the lease, unlike the check of the disk: a lack of room is a separate class of death, which delays the
        # next try; a full disk is waited for before anything is leased.
        machine.require_room()
        argv = process_argv(key, runtime.home, identity.incarnation, options)
        log = runtime.begin_log(key.run, f"{key.role}-{key.name}")
        env = {**runtime.environment(launch, {"GARRISON_LIFE": marker,
                                              "GARRISON_INCARNATION": str(identity.incarnation)}), **(variables or {})}
        forks.load(PROGRAMS[key.role])
        child = runtime.processes.start(argv, env=env, cwd=str(runtime.home), log=log)
        child.close()
        return child.id

    return start_incarnation(runtime.observer, request, runtime.timing.spawn_deadline, spawn)


def replace_dead(runtime: Runtime, key: Key) -> Identity | None:
    """Fence and clean up a dead predecessor, and return it; a living one will make the start fail."""
    old = runtime.store.read(Identity, key)
    if old is None:
        return None
    verdict = runtime.observer.judge(old)
    if verdict.state in ("dead", "lapsed"):
        return replace_incarnation(runtime.observer, old, verdict.why, runtime.timing.sweep_grace)
    if old.status == "crashed":
        kill_incarnation(runtime.observer, old, runtime.timing.sweep_grace)
    return old


# ---- runner ----------------------------------------------------------------------------------------------------------


def worktree_path(launch: Launch, node: str) -> Path:
    from garrison.system.git import repository_key  # a launcher also spawns, and needs no git

    return Path(launch.trees) / repository_key(Path(launch.repo)) / launch.run_id / node


def spawn_runner(runtime: Runtime, launch: Launch, task: Task, *, parent: Key | None,
                 journal_incarnation: int = 0) -> Identity:
    """Start a node's runner for the attempt of `task`; return the leased identity."""
    key = Key("runner", task.node, task.run_id)
    request = SpawnRequest(key, parent, str(worktree_path(launch, task.node)), branch_name(task.run_id, task.node),
                           session_id=f"runner-{task.node}", metadata={"attempt": task.attempt},
                           journal_incarnation=journal_incarnation)
    write_runner_state(runtime, launch, key, "starting", None, runtime.clock.utc())
    for module in first_modules(launch.terminal, task.agent, runtime.home):
        forks.load(module)
    forks.load_for_later(_LATER)
    return spawn_process(runtime, launch, request, ["--attempt", str(task.attempt)])


def first_modules(terminal: str, agent: str, home: Path) -> Iterator[str]:
    """Yield what the processes of a run load before its first agent begins."""
    from garrison.agents.registry import model_profile  # as the orchestrator does
    from garrison.system.tmux_server import supported_version  # a launcher opens no terminal

    yield from (PROGRAMS["guardian"], PROGRAMS["orchestrator"], PROGRAMS["runner"], "platformdirs.unix")
    if terminal in ("auto", "tmux") and supported_version():
        yield from ("garrison.system.tmux", "garrison.system.tmux_client")
    with suppress(GarrisonError):  # the orchestrator reports it
        yield from model_profile(agent, home).modules


def write_runner_state(runtime: Runtime, launch: Launch, key: Key, status: str, pid: int | None,
                       started_at: str) -> Path:
    """Write `runs/<run>/runners/<node>.json`; its status follows the process, `started_at` is constant."""
    path = runtime.files(key.run).runner_state(key.name)
    run_records.save(path, RunnerState(
        pid, key.name, launch.prd_ref, launch.repo, str(runtime.store.path(Identity, key)),
        str(runtime.store.path(Hook, key)), status, started_at))
    return path


# ---- orchestrator ----------------------------------------------------------------------------------------------------


def spawn_orchestrator(runtime: Runtime, launch: Launch, task: Task, worktree: Path, terminal: Terminal, *,
                       parent: Key | None, journal_incarnation: int = 0) -> Identity:
    """Start a node's orchestrator in a terminal session of its full name; return the leased identity.

    The session's ids are in its record.
    """
    key = Key("orchestrator", task.node, launch.run_id)
    request = SpawnRequest(key, parent, str(worktree), branch_name(launch.run_id, task.node), session_id=key.full,
                           metadata={"attempt": task.attempt}, journal_incarnation=journal_incarnation)

    def open_session(leased: Identity, marker: str) -> ProcessId | None:
        machine.require_room()
        argv = process_argv(key, runtime.home, leased.incarnation, ["--attempt", str(task.attempt)])
        env = {**worktree_environment(runtime, launch, task, worktree, marker),
               "GARRISON_INCARNATION": str(leased.incarnation)}
        log = runtime.begin_log(launch.run_id, f"orchestrator-{task.node}")
        forks.load(PROGRAMS[key.role])
        session = terminal.open(key.full, argv, env=env, cwd=worktree, log=log)
        _record_session(runtime, leased, session)
        return ProcessId(session.pid, session.ticks) if session.ticks else None

    return start_incarnation(runtime.observer, request, runtime.timing.spawn_deadline, open_session)


def _record_session(runtime: Runtime, leased: Identity, session: TerminalSession) -> None:
    def change(old: Identity | None) -> Identity:
        if old is None or old.incarnation != leased.incarnation:
            raise Fenced(f"{leased.key.full} has a later incarnation; its session is not recorded")
        return replace(old, tmux=asdict(session))

    runtime.store.update(Identity, leased.key, change)


def worktree_environment(runtime: Runtime, launch: Launch, task: Task, worktree: Path, marker: str) -> dict[str, str]:
    """Return the environment that set-up, acceptance and agents of a node share."""
    from garrison.merge import slots
    from garrison.system.git import Git

    number = slots.claim_number(Git(Path(launch.repo), home=runtime.home), worktree.parent.parent, worktree)
    from garrison.sandbox.services import variables

    return runtime.environment(launch, {
        **variables(runtime.home),
        "GARRISON_SLOT": str(number), "GARRISON_LIFE": marker, "GARRISON_TREE": str(worktree),
        "GARRISON_RUN": launch.run_id, "GARRISON_NODE": task.node, "GARRISON_ATTEMPT": str(task.attempt)})


def close_sessions(terminal: Terminal, identity: Identity, home: Path) -> None:
    """Close the recorded session of an incarnation that is over, and any other session of its full name."""
    if identity.tmux:
        session = from_data(TerminalSession, identity.tmux)
        holder = _holder_of(session, terminal, home)
        if holder is not None:
            holder.close(session)
    # A spawner that died between the session and its record left a session without a record.
    found = terminal.find(identity.key.full)
    if found is not None:
        terminal.close(found)


def _holder_of(session: TerminalSession, terminal: Terminal, home: Path) -> Terminal | None:
    """Return the terminal in which a session was opened, None if this machine no longer has it.

    An earlier incarnation may have chosen another one: tmux was missing, or did not answer.
    """
    if session.kind == terminal.kind:
        return terminal
    try:
        return choose_terminal(session.kind, home)[0]
    except GarrisonError:
        return None
