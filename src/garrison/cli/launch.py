"""`garrison launch`, `up` and `stop`: beginning, going on with and ending runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garrison.cli import completion
from garrison.cli.commands import Command
from garrison.config import find_home
from garrison.errors import AlreadyAlive, GarrisonError, Refused, UsageError
from garrison.processes import launch as launching
from garrison.processes import preflight
from garrison.processes.merge_client import foreign_entries_note
from garrison.processes.preflight import LaunchRequest
from garrison.processes.resume_all import UNREMARKABLE, resume_all
from garrison.processes.runtime import Runtime
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.names import Key, check_run, launcher_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOME = click.option("--home", metavar="DIR", help="Where state lives (`garrison home`).")


GROUPS = {
    "What runs, and where": ("target_dir", "base", "run", "pipeline_id", "new"),
    "Going on with a run": ("resume", "again", "as_begun", "onto"),
    "Trees, tests and landing": ("setup", "setup_key", "gate", "no_gate", "allow_foreign_imports"),
    "The way through the graph": ("auto_approve", "max_steps"),
    "Agents": ("agent", "env", "max_agents", "max_respawn", "max_rework", "terminal"),
}
"""Title in the help → options; the others follow under `Options`."""


@click.command(cls=Command, option_groups=GROUPS, examples=(
    ('garrison launch work.dot --target-dir ~/src/project --gate "make test"', "run work.dot; only what passes lands"),
    ('garrison launch work.dot --target-dir . --gate "make test" --dry-run', "check everything, start nothing"),
    ("garrison launch --resume crew-1 --detach", "go on with a run, without this terminal"),
))
@click.argument("pipeline", required=False, type=click.Path(path_type=Path))
@click.option("--target-dir", type=click.Path(path_type=Path), help="The repository to work on.")
@click.option("--resume", metavar="RUN", shell_complete=completion.runs,
              help="Go on with an unfinished run, as it was launched.")
@click.option("--run", metavar="ID", help="The new run's id (default: made from the pipeline's name).")
@click.option("--pipeline-id", metavar="NAME", help="The guardian's name (default: the graph's id, else the file's).")
@click.option("--base", metavar="BRANCH", help="The branch to land on (default: the one checked out).")
@click.option("--setup", metavar="CMD", help="Prepares a fresh tree, run in it before agents and tests.")
@click.option("--setup-key", multiple=True, metavar="FILE",
              help="A file whose change makes set-up run again (repeatable; default: the common lock files).")
@click.option("--gate", metavar="CMD", help="Tests a merged tree; only what passes lands.")
@click.option("--no-gate", is_flag=True, help="Land without testing.")
@click.option("--env", "env", multiple=True, metavar="NAME", help="A variable that agents and gate see (repeatable).")
@click.option("--agent", default="command", show_default=True, help="Who does nodes that name nobody.")
@click.option("--max-agents", type=click.IntRange(1), help="Nodes worked on at once (default: the cores, at least 2).")
@click.option("--max-respawn", type=click.IntRange(0), default=10, show_default=True, help="Deaths allowed an attempt.")
@click.option("--max-rework", type=click.IntRange(0), default=2, show_default=True, help="New attempts a node gets.")
@click.option("--terminal", type=click.Choice(["auto", "tmux", "process"]), default="auto", show_default=True,
              help="Where agents work: in tmux (`garrison attach` watches), or as plain processes.")
@HOME
@click.option("--detach", is_flag=True, help="Return once the launcher lives; `garrison status` shows how it goes.")
@click.option("--dry-run", is_flag=True, help="Check graph, repository and gate, say what would run, start nothing.")
@click.option("--again", is_flag=True, help="With --resume, of a run that failed: try the failed nodes once more.")
@click.option("--as-begun", is_flag=True, help="With --resume: go on with the graph as launched, not its file now.")
@click.option("--onto", is_flag=True, help="With --resume: go on although the target branch was rewritten.")
@click.option("--new", is_flag=True, help="A new run although one of this pipeline and repository is unfinished.")
@click.option("--auto-approve", is_flag=True, help="Gates for people take their default, else their first option.")
@click.option("--max-steps", type=click.IntRange(1),
              help="Nodes the flow may visit (default: the graph's max_steps, else 500); with --resume: from now on.")
@click.option("--allow-foreign-imports", is_flag=True, help="Launch although the gate imports a checkout.")
@click.option("--serve", "serve", is_flag=True, help="Serve the run's web page too, as long as its launcher lives.")
@click.option("--json", "as_json", is_flag=True, help="Progress as one JSON object a line.")
def launch(pipeline: Path | None, target_dir: Path | None, resume: str | None, home: str | None, detach: bool,
           dry_run: bool, onto: bool, serve: bool, again: bool, as_begun: bool, as_json: bool, env: tuple[str, ...],
           setup_key: tuple[str, ...], **options: Any) -> None:
    """Run PIPELINE (a DOT graph) on the repository --target-dir, or go on with --resume RUN.

    Exit 0 when every node is merged, 1 when a node failed (it says which and why), 130 when stopped.
    """
    world = Runtime.real(find_home(home))
    flags = ["--json"] if as_json else []
    if serve and detach:
        raise UsageError("--serve ends with the launcher's terminal; with --detach say `garrison serve` afterwards")
    if resume is not None:
        if pipeline or target_dir:
            raise UsageError("--resume RUN stands alone: the run keeps its pipeline and target")
        resumed = preflight.check_resume(world, resume, onto=onto, again=again)
        if not as_begun:
            preflight.check_graph_unchanged(world, resumed)
        _note_queue(world, resumed)
        _go(world, resumed, [*flags, "--resume", *(["--again"] if again else [])], detach=detach, serve=serve,
            steps=options["max_steps"])
        return
    if again or as_begun:
        raise UsageError(f"{'--again' if again else '--as-begun'} goes with --resume RUN")
    if pipeline is None or target_dir is None:
        raise UsageError("say PIPELINE and --target-dir REPO, or --resume RUN")
    request = LaunchRequest(pipeline, target_dir, env=list(env), setup_key=list(setup_key), **options)
    with _interruptible():
        prepared = preflight.prepare_launch(world, request, _say)
    _note_queue(world, prepared.launch)
    if dry_run:
        _describe(prepared, as_json=as_json)
        return
    if note := launching.logout_note(world):
        _say(note)
    created = launching.create_run(world, prepared)
    _say(f"run {created.run_id}: {len(prepared.plan.tasks)} nodes onto {created.base} of {created.repo}")
    _go(world, created, flags, detach=detach, serve=serve)


@contextmanager
def _interruptible() -> Iterator[None]:
    """TERM, and a terminal that closes, end the pre-flight as Ctrl-C does: its gate ends, its slot is removed."""
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _note_queue(world: Runtime, launch_: run_records.Launch) -> None:
    if note := foreign_entries_note(world, launch_):
        _say(note)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _go(world: Runtime, launch_: run_records.Launch, options: list[str], *, detach: bool, serve: bool = False,
        steps: int | None = None) -> None:
    if serve:
        _serve(world, launch_.run_id)
    if not detach:
        sys.stdout.flush()
        sys.stderr.flush()
        launching.exec_launcher(world, launch_, options, steps)
    pid = launching.spawn_launcher(world, launch_, options, steps)
    _await(lambda: _status(world, launcher_key(launch_.run_id)) != "starting", world.timing.spawn_deadline)
    click.echo(json.dumps({"status": "ok", "run": launch_.run_id, "launcher_pid": pid}))


def _serve(world: Runtime, run: str) -> None:
    """Start the page's server beside what this process is about to become; it ends when this process has."""
    argv = [sys.executable, "-P", "-m", "garrison.cli.main", "--home", str(world.home), "serve", "--port", "0",
            "--run", run, "--until", str(os.getpid())]
    subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)  # stdout is the launcher's own


def _await(done: Callable[[], bool], seconds: float) -> bool:
    """Poll until `done` or the time is over; a command that waits for others has no loop to wake it."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _status(world: Runtime, key: Key) -> str:
    identity = world.store.read(Identity, key)
    return identity.status if identity else "absent"


def _describe(prepared: preflight.PreparedLaunch, *, as_json: bool) -> None:
    launch_, plan = prepared.launch, prepared.plan
    body = {"pipeline": launch_.pipeline_id, "repository": launch_.repo, "base": launch_.base, "gate": launch_.gate,
            "setup": launch_.setup, "max_agents": launch_.max_agents, "initial": dict(plan.initial),
            "tasks": {name: {"after": list(plan.predecessors[name]), "agent": task.agent or launch_.agent,
                             "acceptance": task.acceptance} for name, task in plan.tasks.items()}}
    if as_json:
        click.echo(json.dumps(body, indent=2))
        return
    click.echo(f"{launch_.pipeline_id} onto {launch_.base} of {launch_.repo}, gate: {launch_.gate or 'none'}")
    for name, task in plan.tasks.items():
        click.echo(f"  {name} after {', '.join(plan.predecessors[name]) or 'nothing'}: {task.label}")
    click.echo("pre-flight passed; nothing was started")


@click.command(cls=Command, examples=(("garrison up", "each run that goes on is printed"),))
@HOME
@click.option("--json", "as_json", is_flag=True, help="A word on every run, as JSON.")
def up(home: str | None, as_json: bool) -> None:
    """Start a launcher for every unfinished run that has none (after a boot, from cron or a timer); safe to repeat.

    Runs that a person stopped, that were given up or that run elsewhere are left alone, and it says so. Exit 1 if a run
    should go on and cannot (its repository is gone, say); the others are brought up all the same.
    """
    words = resume_all(find_home(home))
    if as_json:
        click.echo(json.dumps([vars(word) for word in words], indent=2))
    for word in words:
        if word.state == "started" and not as_json:
            click.echo(word.run)
        elif word.state not in (*UNREMARKABLE, "started"):
            _say(word.line)
    if any(word.state == "refused" for word in words):
        raise SystemExit(1)


@click.command(cls=Command, examples=(
    ("garrison stop crew-1", "agents first, launcher last; nothing is lost"),
    ("garrison launch --resume crew-1", "goes on with it"),
))
@click.argument("run", required=False, shell_complete=completion.runs)
@HOME
@click.option("--timeout", type=float, default=90.0, show_default=True, help="Seconds to wait for the end.")
def stop(run: str | None, home: str | None, timeout: float) -> None:
    """Stop a run in order: agents, runners, guardian, launcher. `launch --resume RUN` goes on later."""
    world = Runtime.real(find_home(home))
    run = _only_running(world) if run is None else check_run(run)
    launch_ = world.launch(run)
    if launch_.adhoc:
        _stop_adhoc(world, run)
    over = (lambda: not _living(world, run)) if launch_.adhoc else _Stopping(world, launch_).over
    if not _await(over, timeout):
        raise GarrisonError(f"run {run} has not stopped after {timeout:.0f} s; see `garrison status {run}`, "
                            "and say `garrison stop` again to hurry")
    state = preflight.read_run_state(world, run)
    click.echo(f"run {run}: {'stopped' if launch_.adhoc else state.status}")


class _Stopping:
    """A run that was asked to stop; where the one who heard it dies before all is over, the next one is asked."""

    def __init__(self, world: Runtime, launch_: run_records.Launch) -> None:
        self.world, self.launch = world, launch_
        self.asked = self._ask()

    def over(self) -> bool:
        """Whether nobody lives any more."""
        living = _living(self.world, self.launch.run_id)
        if living and self.asked not in {one.agent_id for one in living}:
            with contextlib.suppress(AlreadyAlive):  # one is just beginning, and is asked when it has begun
                self.asked = self._ask()
        return not living

    def _ask(self) -> str:
        """TERM to the highest living layer; if neither launcher nor guardian lives, a launcher that only stops."""
        world, run = self.world, self.launch.run_id
        for key in (launcher_key(run), Key("guardian", self.launch.pipeline_id, run)):
            identity = world.store.read(Identity, key)
            if identity and world.observer.judge(identity).state == "alive" and identity.pid and identity.start_ticks:
                world.processes.send(identity.pid, identity.start_ticks, signal.SIGTERM)
                return identity.agent_id
        status = preflight.read_run_state(world, run).status
        if status in ("done", "failed", "stopped") and not _living(world, run):
            raise Refused(f"run {run} is {status} already")
        launching.spawn_launcher(world, self.launch, ["--stop"])
        return world.store.get(Identity, launcher_key(run)).agent_id


def _only_running(world: Runtime) -> str:
    living = [run for run in run_records.list_runs(world.home) if _living(world, run)]
    if len(living) != 1:
        raise Refused("say which run: " + (", ".join(living) if living else "none is running"))
    return living[0]


def _living(world: Runtime, run: str) -> list[Identity]:
    records, _ = world.store.list(Identity)
    return [one for one in records if one.run_id == run and world.observer.judge(one).living]


def _stop_adhoc(world: Runtime, run: str) -> None:
    for identity in _living(world, run):
        if identity.role == "runner" and identity.pid and identity.start_ticks:
            world.processes.send(identity.pid, identity.start_ticks, signal.SIGTERM)
