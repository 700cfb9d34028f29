"""Start a launcher: make the run durable, lease the launcher's identity, and become or spawn its process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.config import homes_list, trees_root
from garrison.errors import AlreadyAlive, Fenced, Refused
from garrison.processes.launcher.policy import resume_id, resume_payload
from garrison.processes.loop import BLOCKED_SIGNALS
from garrison.processes.preflight import LOCALE, read_run_state, run_exists
from garrison.processes.run_plan import graph_hash
from garrison.processes.runtime import Runtime, process_argv
from garrison.records import atomic, signals
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.names import check_node, check_run, launcher_key, to_run_stem
from garrison.records.run import Launch
from garrison.records.signals import Signal
from garrison.supervise.lease import SpawnRequest, format_marker
from garrison.supervise.observer import Inspection, judge_now
from garrison.supervise.replace import replace_incarnation
from garrison.supervise.start import acquire_lease
from garrison.system import systemd
from garrison.system.environment import list_withheld
from garrison.system.git import Git, validate_repository

if TYPE_CHECKING:
    from garrison.processes.preflight import PreparedLaunch
    from garrison.processes.runtime import Runtime
    from garrison.records.identity import Identity
    from garrison.supervise.verdict import Verdict


def create_run(world: Runtime, prepared: PreparedLaunch) -> Launch:
    """Claim a run id and make launch.json and graph.dot durable; returns the launch with its id."""
    run, root = _claim(world, prepared.launch)
    launch = replace(prepared.launch, run_id=run, graph_hash=graph_hash(prepared.text, prepared.plan))
    files = world.files(run)
    for name, text in prepared.plan.texts.items():
        atomic.write(atomic.make_directory(files.graphs) / f"{name}.dot", text.encode())
    atomic.write(files.graph, prepared.text.encode())
    run_records.save(files.launch, launch)
    atomic.sync_directory(root.parent)
    register_home(world)
    return launch


def _claim(world: Runtime, launch: Launch) -> tuple[str, Path]:
    """A run id of its own: the one asked for, else the pipeline's name with the next free number."""
    folder = atomic.make_directory(world.home / "runs")
    stem = to_run_stem(launch.pipeline_id)
    number = 1
    while True:
        run = launch.run_id or f"{stem}-{number}"
        try:
            os.mkdir(folder / run, 0o700)  # noqa: PTH102  # the exclusive creation is the claim
            return check_run(run), folder / run
        except FileExistsError:
            if launch.run_id:
                raise run_exists(run) from None
            number += 1


def register_home(world: Runtime) -> None:
    """Add this home to the user's list of homes; a list that cannot be written is no reason to stop."""
    path = homes_list(world.environ)
    with contextlib.suppress(OSError):
        known = path.read_text().splitlines() if path.exists() else []
        if str(world.home) not in known:
            atomic.make_directory(path.parent)
            with path.open("a") as file:
                file.write(f"{world.home}\n")


def lease_launcher(world: Runtime, run: str) -> Identity:
    """The launcher's lease, by itself; a dead predecessor is replaced first. AlreadyAlive if one lives."""
    key, why = launcher_key(run), {}
    old = world.store.read(Identity, key)
    if old is not None:
        looked = judge_launcher(world, old)
        verdict = looked.verdict
        if verdict.state == "elsewhere":
            raise AlreadyAlive(f"run {run} is led by a launcher that is {verdict.why}; go there to follow or stop it")
        if verdict.living:
            raise AlreadyAlive(f"run {run} is looked after by its launcher already (pid {old.pid}); "
                               f"`garrison status {run}` shows it")
        why = {"succeeds": _succession(old, verdict)}
        if verdict.state != "ended" or old.status == "crashed":
            try:
                replace_incarnation(world.observer, old, verdict.why, world.timing.sweep_grace, looked.evidence)
            except Fenced as error:
                raise AlreadyAlive(f"another launcher of run {run} is alive by now; `garrison status {run}` shows it"
                                   ) from error
    return acquire_lease(world.observer, SpawnRequest(key, metadata=why), world.timing.spawn_deadline)


def _tell_guardian(world: Runtime, launch: Launch, id_: str, payload: dict[str, Any]) -> None:
    signals.post(world.home, Signal(
        id_, {"role": "launch", "name": "launch", "incarnation": 0},
        {"role": "guardian", "name": launch.pipeline_id}, "GUIDANCE", launch.run_id, world.clock.utc(), None, 0,
        payload))


def _leased(world: Runtime, launch: Launch, options: list[str], steps: int | None) -> Identity:
    """The launcher's lease; a person's word to resume, and how many nodes the flow may visit from then on, is durable
    with it, whatever becomes of that launcher."""
    identity = lease_launcher(world, launch.run_id)
    if steps:
        _tell_guardian(world, launch, f"{launch.run_id}-budget-{identity.incarnation}",
                       {"action": "budget", "max_steps": steps})
    again = "--again" in options
    if "--resume" in options and (again or not read_run_state(world, launch.run_id).over):
        _tell_guardian(world, launch, resume_id(launch.run_id, identity.incarnation), resume_payload(again=again))
    return identity


def _succession(old: Identity, verdict: Verdict) -> str:
    """What became of the launcher before, for whoever asks why there is another."""
    ended = f"had ended ({old.reason or old.status})"
    return f"life {old.incarnation} {ended if verdict.state == 'ended' else f'was {verdict.state}: {verdict.why}'}"


MANAGER = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""How a service manager that started us is told."""


def launcher_command(world: Runtime, launch: Launch, identity: Identity,
                     options: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command line and environment of the launcher's process."""
    key = launcher_key(launch.run_id)
    own = {"GARRISON_LIFE": format_marker(str(world.home), key, identity.incarnation),
           "GARRISON_INCARNATION": str(identity.incarnation)}
    own |= {name: world.environ[name] for name in MANAGER if world.environ.get(name)}
    if manager := systemd.find_manager(world.environ):
        own["XDG_RUNTIME_DIR"] = manager.runtime  # cron names none, and tmux's server wants a scope too
    return process_argv(key, world.home, identity.incarnation, options), world.environment(launch, own)


def systemd_scope(world: Runtime) -> list[str]:
    """The prefix that puts a launcher into a scope of its own, where that keeps it alive; empty elsewhere."""
    manager = systemd.find_manager(world.environ)
    in_unit = bool(world.environ.get("NOTIFY_SOCKET"))
    chosen = systemd.choose_start_method(in_unit=in_unit, unit=False, manager=manager is not None,
                              lingering=systemd.is_lingering(manager))
    return systemd.scope_prefix(manager) if chosen == "scope" and systemd.can_start_scope(manager) else []


def logout_note(world: Runtime) -> str:
    """One line for who launches where systemd would end the run at logout; empty elsewhere."""
    if systemd.is_lingering(systemd.find_manager(world.environ)) is not False:
        return ""
    return "note: systemd may end this run when you log out; `loginctl enable-linger` lets it go on"


def exec_launcher(world: Runtime, launch: Launch, options: list[str], steps: int | None = None) -> None:
    """Lease the launcher's life and re-execute this process as it; does not return. `steps`: see `start_detached`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    prefix = systemd_scope(world)
    argv, env = launcher_command(world, launch, _leased(world, launch, options, steps), options)
    argv = [*prefix, *argv]
    os.execve(argv[0], argv, env)


def spawn_launcher(world: Runtime, launch: Launch, options: list[str], steps: int | None = None) -> int:
    """Start the launcher in a session of its own, its output in the run's launch.log; returns its pid. `steps`: how
    many nodes the flow of a run that is resumed may visit from now on."""
    prefix = systemd_scope(world)
    identity = _leased(world, launch, options, steps)
    argv, env = launcher_command(world, launch, identity, [*options, "--quiet"])
    log = world.files(launch.run_id).layer_log("launch")
    atomic.make_directory(log.parent)
    child = world.processes.spawn([*prefix, *argv], env=env, cwd=str(world.home), log=log)
    child.close()
    return child.pid


def create_adhoc_run(world: Runtime, node: str, prd: str, target: Path, **task: object) -> tuple[Launch,
                                                                                                 run_records.Task]:
    """A run of one node by hand: launch.json and task.json, without graph, guardian and launcher."""
    repo = validate_repository(target)
    git = Git(repo)
    git.check_branch_space()
    base = git.current_branch()
    if base is None:
        raise Refused(f"{repo} has a detached HEAD; check a branch out, it is what the work will land on")
    asked = str(task.pop("run", "") or "")
    launch = Launch(
        run_id=asked, pipeline_id=f"adhoc-{check_node(node)}", repo=str(repo), base=base,
        created_at=world.clock.utc(), trees=str(trees_root(world.environ)),
        base_oid=git.rev(f"refs/heads/{base}") or "", agent=str(task.get("agent") or "command"),
        path=world.environ.get("PATH", os.defpath), prd_ref=prd, adhoc=True,
        locale={name: world.environ[name] for name in LOCALE if name in world.environ},
        max_respawn=int(str(task.pop("max_respawn", None) or 10)), terminal=str(task.pop("terminal", None) or "auto"),
        held_back=list_withheld(world.environ, []))
    run, _ = _claim(world, launch)
    launch = replace(launch, run_id=run)
    made = run_records.Task(run_id=run, node=node, attempt=1, prd_ref=prd, **task)  # type: ignore[arg-type]
    run_records.save(world.files(run).attempt(node, 1) / "task.json", made)
    run_records.save(world.files(run).launch, launch)
    register_home(world)
    return launch, made


PAUSE = 2.0
"""Seconds between the two looks, at least: who works beats within the slow timer."""


def judge_launcher(world: Runtime, identity: Identity) -> Inspection:
    """One look at a life whose beat is fresh; a late one is given a moment to beat again."""
    pause = max(PAUSE, 3 * world.timing.rescan)
    return judge_now(world.observer, identity, world.timing.beat_timeout, time.sleep, pause)
