"""`garrison launch`, `up` and `stop`: start, follow, continue and stop launched runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garrison.cli import completion, resolve
from garrison.cli.begin import OPTION_GROUPS, launch_options, make_request
from garrison.cli.commands import Command
from garrison.cli.options import home_option
from garrison.cli.output import INTERRUPTED, dumps, flush, interruptible, print_message
from garrison.cli.sandbox import settle_mode
from garrison.config import read_config
from garrison.directories import find_home
from garrison.errors import AlreadyAlive, GarrisonError, Refused, UsageError
from garrison.launch import launch as launching
from garrison.launch import preflight
from garrison.launch.claim import LaunchClaim
from garrison.launch.disk import keep_within_limit
from garrison.launch.launch import foreign_entries_note, tell_changed_defaults
from garrison.launch.preflight import PreparedLaunch
from garrison.processes.runtime import Runtime
from garrison.records import run as run_records
from garrison.records.budget import limit_run
from garrison.records.identity import Identity
from garrison.records.journal import Reader
from garrison.records.names import Key, check_run, launcher_key
from garrison.records.run import LAND_NODE, LAND_NONE, LAND_PR, LAND_RUN, Launch
from garrison.run.notifications import send_held
from garrison.run.progress import RunProgress, closing_lines
from garrison.run.request import LaunchRequest
from garrison.run.state import ENDED, EXIT, RunState, describe_landed
from garrison.run.status import FINAL, read_run_state
from garrison.system.clock import wait_until
from garrison.system.machine import garrison_argv
from garrison.system.terminal_text import clean
from garrison.values import fields_of

if TYPE_CHECKING:
    from garrison.system.forks import StartProcess

_FOLLOW_POLL = 0.2
"""Seconds between two reads of a followed run."""
STOP_SECONDS = 90.0
"""Seconds that a stop waits for the run's processes."""
LANDING_NOTES = {LAND_NODE: "", LAND_RUN: ", together at its exit", LAND_NONE: "; nothing lands, {branch} stays",
                 LAND_PR: ", by a pull request to {remote}"}
"""Word of `land` → its note in the first line of a launch."""


@click.command(cls=Command, option_groups=OPTION_GROUPS, everyday=(
    "target_dir", "run", "agent", "gate", "setup", "approve", "max_agents", "detach", "dry_run", "serve",
), renamed={
    "--again": "--retry-failed", "--as-begun": "--original-graph", "--onto": "--accept-rewritten-target",
}, examples=(
    ('garrison launch work.dot --target-dir ~/src/project --gate "make test"', "run work.dot; only passing work "
                                                                               "lands"),
    ('garrison launch work.dot --gate "make test" --dry-run', "in the repository: check everything, start nothing"),
    ("garrison launch work.dot --detach", "in the background, independent of this terminal"),
))
@click.argument("pipeline", required=False, type=click.Path(path_type=Path))
@click.option("--resume", metavar="RUN", shell_complete=completion.runs, hidden=True)
@click.option("--retry-failed", is_flag=True, hidden=True)
@click.option("--original-graph", is_flag=True, hidden=True)
@click.option("--accept-rewritten-target", is_flag=True, hidden=True)
@click.option("--max-steps", type=click.IntRange(1), metavar="N",
              help="Maximum number of steps (default: the graph's max_steps, else 500).")
@launch_options
def launch(pipeline: Path | None, target_dir: Path | None, resume: str | None, home: str | None, *, detach: bool,
           dry_run: bool, accept_rewritten_target: bool, serve: bool, retry_failed: bool, original_graph: bool,
           as_json: bool, **options: Any) -> None:
    """Run PIPELINE (a DOT graph) on the repository you are in, or on --target-dir.

    Exit code 0 when every node has landed, 1 when a node failed (the output names it and the reason), 130 when stopped.
    `garrison resume RUN` continues a stopped or failed run.
    """
    if serve and detach:
        raise UsageError("--serve ends with this terminal; with --detach, run `garrison serve` afterwards")
    if resume is not None:
        if pipeline or target_dir:
            raise UsageError("--resume RUN takes no PIPELINE and no --target-dir: the run keeps its own")
        print_message(f"note: `launch --resume` is now `garrison resume {resume}`; the old option still works")
        resume_run(resume, home, detach=detach, serve=serve, retry_failed=retry_failed, original_graph=original_graph,
                   accept_rewritten_target=accept_rewritten_target, as_json=as_json, max_steps=options["max_steps"])
        return
    if retry_failed or original_graph:
        raise UsageError(f"{'--retry-failed' if retry_failed else '--original-graph'} is an option of "
                         "`garrison resume RUN`")
    if pipeline is None:
        raise UsageError("launch needs PIPELINE; `garrison new` writes one from a template, `garrison resume RUN` "
                         "continues a run")
    runtime = Runtime.real(find_home(home))
    created = create(runtime, make_request(pipeline, target_dir, **options), dry_run=dry_run, as_json=as_json)
    if created is not None:
        _start(runtime, created, ["--json"] if as_json else [], detach=detach, serve=serve)


def resume_run(run: str, home: str | None, *, detach: bool, serve: bool, retry_failed: bool, original_graph: bool,
               accept_rewritten_target: bool, as_json: bool, max_steps: int | None,
               retry_nodes: tuple[str, ...] = (), target_dir: Path | None = None,
               budget_run: str | None = None) -> None:
    """Resume a launched run with its launch options; for an ended run, only exit with its code."""
    if serve and detach:
        raise UsageError("--serve ends with this terminal; with --detach, run `garrison serve` afterwards")
    if retry_failed and retry_nodes:
        raise UsageError("pass --retry-failed for all failed nodes, or --retry NODE for some of them")
    again = retry_failed or bool(retry_nodes)
    runtime = Runtime.real(find_home(home))
    settle_mode(runtime.home)
    if target_dir is not None and (moved := launching.check_move(runtime, run, target_dir)) is not None:
        stop_gracefully(runtime, runtime.launch(run), STOP_SECONDS)  # a living run waits for its repository
        launching.move_run(runtime, run, moved)
    resumed = preflight.check_resume(runtime, run, accept_rewritten_target=accept_rewritten_target,
                                     retry_failed=again, retry_nodes=retry_nodes)
    if budget_run is not None:
        # only when nothing can refuse the resume any more: a raised budget stays raised
        limit_run(runtime.home, run, budget_run)
    if resumed.sandbox:
        print_message(resumed.sandbox)
    if not original_graph:
        preflight.check_graph_unchanged(runtime, resumed)
    _print_foreign_entries(runtime, resumed)
    flags = [*(["--json"] if as_json else []), "--resume", *(["--again"] if again else []),
             *(["--only", ",".join(retry_nodes)] if retry_nodes else [])]
    _start(runtime, resumed, flags, detach=detach, serve=serve, steps=max_steps)


def create(runtime: Runtime, request: LaunchRequest, *, dry_run: bool, as_json: bool) -> Launch | None:
    """Check a launch and make its run durable; with `dry_run`, print the plan and return None."""
    settle_mode(runtime.home)
    if not dry_run:
        keep_within_limit(runtime, print_message)
    with LaunchClaim(runtime.home) as claim:
        with interruptible():  # the pre-flight ends its gate and removes its worktree
            prepared = preflight.prepare_launch(runtime, request, print_message, None if dry_run else claim)
        _print_foreign_entries(runtime, prepared.launch)
        if dry_run:
            _print_plan(prepared, as_json=as_json)
            return None
        for line in tell_changed_defaults(runtime.home):
            print_message(line)
        if note := launching.logout_note(runtime):
            print_message(note)
        created = launching.create_run(runtime, prepared, print_message)
    nodes = len(prepared.plan.tasks)
    print_message(f"run {created.run_id}: {nodes} node{'s' * (nodes != 1)} onto {created.base} of {created.repo}"
                  + LANDING_NOTES[created.land].format(branch=created.onto, remote=created.remote))
    return created


def _print_foreign_entries(runtime: Runtime, launch_: Launch) -> None:
    if note := foreign_entries_note(runtime, launch_):
        print_message(note)


def _start(runtime: Runtime, launch_: Launch, options: list[str], *, detach: bool, serve: bool = False,
           steps: int | None = None) -> None:
    """Become the run's launcher, or start it detached and wait until it is active."""
    if serve:
        serve_page(runtime, launch_.run_id)
    if not detach:
        flush()
        try:
            launching.exec_launcher(runtime, launch_, options, steps)
        except KeyboardInterrupt:  # before the launcher takes it as a request to stop
            run = launch_.run_id
            print_message(f"interrupted before run {run} started; `garrison resume {run}` starts it")
            raise
    pid = start_detached(runtime, launch_, options, steps)
    announce_detached(launch_.run_id, pid, as_json="--json" in options)


def announce_detached(run: str, pid: int, *, as_json: bool) -> None:
    """Print that a run has a launcher in the background."""
    if as_json:
        click.echo(json.dumps({"status": "ok", "run": run, "launcher_pid": pid}))
    else:
        click.echo(f"run {run} works in the background\n{how_to_follow(run)}")


def start_detached(runtime: Runtime, launch_: Launch, options: list[str], steps: int | None = None, *,
                   start: StartProcess | None = None) -> int:
    """Start the run's launcher in the background, wait until it is active, and return its pid; `start` as for
    `spawn_launcher`."""
    pid = launching.spawn_launcher(runtime, launch_, options, steps, start=start)
    key = launcher_key(launch_.run_id)
    wait_until(lambda: _status(runtime, key) != "starting", runtime.timing.spawn_deadline)
    return pid


def serve_page(runtime: Runtime, run: str) -> None:
    """Start the page's server, which ends with this process (soon the launcher)."""
    argv = garrison_argv("serve", "--port", "0", "--run", run, "--until", str(os.getpid()), home=runtime.home)
    subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)  # stdout belongs to the launcher


def _status(runtime: Runtime, key: Key) -> str:
    identity = runtime.store.read(Identity, key)
    return identity.status if identity else "absent"


def _print_plan(prepared: PreparedLaunch, *, as_json: bool) -> None:
    launch_, plan = prepared.launch, prepared.plan
    if as_json:
        click.echo(json.dumps({
            "pipeline": launch_.pipeline_id, "repository": launch_.repo, "base": launch_.base, "land": launch_.land,
            "gate": launch_.gate, "setup": launch_.setup, "max_agents": launch_.max_agents,
            "initial": dict(plan.initial),
            "tasks": {name: {"after": list(plan.predecessors[name]), "agent": task.agent or launch_.agent,
                             "acceptance": task.acceptance} for name, task in plan.tasks.items()}}, indent=2))
        return
    click.echo(f"{launch_.pipeline_id} onto {launch_.base} of {launch_.repo}, gate: {launch_.gate or 'none'}")
    for name, task in plan.tasks.items():
        click.echo(f"  {name} after {', '.join(plan.predecessors[name]) or 'nothing'}: {task.label}")
    click.echo("pre-flight passed; nothing was started")


# -------------------------------------------------------------------------------------------------------------- follow


def follow_run(runtime: Runtime, launch: Launch, *, as_json: bool = False) -> int:
    """Print the progress of a run until it is over; return its exit code.

    Ctrl-C only ends the output: the run continues, as a line reports. GarrisonError if the launcher dies before the run
    is over.
    """
    run = launch.run_id
    progress, state = RunProgress(as_json=as_json), RunState()
    progress.run_branch = launch.onto if launch.onto != launch.base else ""
    progress.begin(run)
    reader = Reader(runtime.files(run).journal)
    is_ticking, closing, told = False, runtime.files(run).process_log((launch.on_failure or ["tick"])[0]), 0
    try:
        while True:
            has_launcher = resolve.is_living(runtime.store, launcher_key(run))  # first: then its last records are read
            for entry in reader.read():
                state.apply(entry)
                progress.show(entry)
            if launch.on_failure:
                told = _show_log(closing, told)
            if not has_launcher:
                break
            # the launcher lives until the list is ticked, which may take as long as the gate
            if launch.tick and state.status in FINAL and not is_ticking:
                is_ticking = True
                print_message(f"ticking {Path(launch.tick).name}, by a commit that the gate tests if git tracks it")
            time.sleep(_FOLLOW_POLL)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        print_message(f"run {run} continues in the background; {how_to_follow(run)}")
        return INTERRUPTED
    if not state.over:
        from garrison.views.node_view import first_line  # imported late: every launch loads this module
        from garrison.views.run_view import RunReader

        view = RunReader(runtime.home, runtime.environ).read(run, details=False)
        why = [part for part in (first_line(view.reason), view.hint) if part]
        raise GarrisonError(f"run {run} is {view.status}, {view.progress}: "
                            f"{'; '.join(why) or f'`garrison status {run}` shows it'}")
    progress.end(state.status, state.reason, state,
                 describe_landed(state, launch.land, launch.base, launch.onto, state.own),
                 closing_lines(state, launch, runtime.files(run).process_log("tick")))
    return EXIT[state.status]


def _show_log(path: Path, told: int) -> int:
    """Print the complete lines of a log from an offset; return the offset after them."""
    with contextlib.suppress(OSError), path.open("rb") as log:
        log.seek(told)
        lines = log.read().splitlines(keepends=True)
        for line in lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]:
            print(clean(line.decode(errors="replace").rstrip("\n")), file=sys.stderr)
            told += len(line)
    return told


def how_to_follow(run: str) -> str:
    return f"`garrison status {run} --watch` shows it, `garrison stop {run}` stops it"


# ------------------------------------------------------------------------------------------------------------------ up


@click.command(cls=Command, examples=(("garrison up", "prints each resumed run"),))
@home_option
@click.option("--json", "as_json", is_flag=True, help="Print the result for every run as JSON.")
def up(home: str | None, as_json: bool) -> None:
    """Start a launcher for every unfinished run that has none (after a boot, from cron or a timer); safe to repeat.

    An ad-hoc run (spawn_runner.py) has no launcher: its runner is started if it died. Runs that the user stopped, that
    failed or that run elsewhere are left alone, with a message. A run with a parked guardian is retried after its
    cool-down. Due runs of `garrison schedule` start. Exit code 1 if a run cannot be resumed (for example, its
    repository is gone, or its guardian is parked); the others are still resumed.
    """
    from garrison.launch.resume import UNATTENDED, UNREMARKABLE, resume_all  # loads much

    state = find_home(home)
    results = resume_all(state)
    keep_within_limit(Runtime.real(state), print_message)
    if (state / "schedules").is_dir():
        from garrison.schedules.starts import tick  # no cost for a home without schedules

        tick(state)
    send_held(state, read_config(state).notify(), os.environ, time.time())
    if as_json:
        click.echo(dumps([fields_of(result) for result in results]))
    for result in results:
        if result.state == "started" and not as_json:
            click.echo(result.run)
        elif result.state not in (*UNREMARKABLE, "started"):
            print_message(result.line)
    if any(result.state in UNATTENDED for result in results):
        raise SystemExit(1)


# ---------------------------------------------------------------------------------------------------------------- stop


@click.command(cls=Command, examples=(
    ("garrison stop crew-1", "agents first, the launcher last; nothing is lost"),
    ("garrison resume crew-1", "resumes it"),
))
@click.argument("run", required=False, shell_complete=completion.runs)
@home_option
@click.option("--timeout", type=float, default=STOP_SECONDS, show_default=True, metavar="SECONDS",
              help="How long to wait.")
def stop(run: str | None, home: str | None, timeout: float) -> None:
    """Stop a run gracefully: agents, runners, guardian, launcher. `garrison resume RUN` continues it.

    Default RUN: the only one at work in the repository you are in. Stopping an ended run is not an error.
    """
    runtime = Runtime.real(find_home(home))
    if run is None:
        run = resolve.run_at_work(runtime.store, [each for each in run_records.list_runs(runtime.home)
                                                  if _living(runtime, each)], "name one")
        if resolve.is_elsewhere(repo := runtime.launch(run).repo):
            raise Refused(f"no run belongs to the repository you are in; `garrison stop {run}` stops the one of {repo}")
    check_run(run)
    launch_ = runtime.launch(run)
    if not _living(runtime, run) and (ended := read_run_state(runtime, run).status) in ENDED:
        click.echo(f"run {run}: already {ended}; nothing to stop")
        return
    if launch_.adhoc:
        _terminate_runners(runtime, run)
    stop_gracefully(runtime, launch_, timeout)
    status = "stopped" if launch_.adhoc else read_run_state(runtime, run).status
    click.echo(f"run {run}: {status}")


def stop_gracefully(runtime: Runtime, launch_: Launch, timeout: float) -> None:
    """Stop a run; GarrisonError if processes of it are still alive after `timeout` seconds."""
    run = launch_.run_id
    graceful = None if launch_.adhoc else _GracefulStop(runtime, launch_)
    if not wait_until(graceful.is_over if graceful else lambda: not _living(runtime, run), timeout):
        raise GarrisonError(f"run {run} has not stopped after {timeout:.0f} s; see `garrison status {run}`, and repeat "
                            "`garrison stop` to speed it up")


MAX_STOP_LAUNCHERS = 3
"""Maximum number of launchers started by one `garrison stop`; processes that outlive them cannot be stopped from
here."""


class _GracefulStop:
    """Graceful stop of a run: signals its topmost living process; if that ends before the others, the next one."""

    def __init__(self, runtime: Runtime, launch_: Launch) -> None:
        self.runtime, self.launch = runtime, launch_
        self.launchers = 0
        """Launchers started only to stop the run."""
        self.target = self._terminate()

    def is_over(self) -> bool:
        """Return whether every process of the run has ended."""
        living = _living(self.runtime, self.launch.run_id)
        # the signalled process died before the others ended, so nothing passes the stop on
        if living and self.target not in {identity.agent_id for identity in living}:
            if self.launchers >= MAX_STOP_LAUNCHERS:
                names = ", ".join(f"{identity.key.full} (pid {identity.pid} on {identity.host})" for identity in living)
                raise GarrisonError(f"run {self.launch.run_id} is not stopped: {names} could not be ended from here; "
                                    "end it on its machine, or with `identity_registry.py mark-terminated ROLE NAME "
                                    "--kill`")
            with contextlib.suppress(AlreadyAlive):  # a process is just starting; the next poll retries
                self.target = self._terminate()
        return not living

    def _terminate(self) -> str:
        """Send TERM to launcher or guardian; if neither is alive, start a launcher that only stops. Return its id."""
        runtime, run = self.runtime, self.launch.run_id
        for key in (launcher_key(run), Key("guardian", self.launch.pipeline_id, run)):
            identity = runtime.store.read(Identity, key)
            if identity and runtime.observer.judge(identity).state == "alive" and identity.pid and identity.start_ticks:
                runtime.processes.send(identity.pid, identity.start_ticks, signal.SIGTERM)
                return identity.agent_id
        launching.spawn_launcher(runtime, self.launch, ["--stop"])
        self.launchers += 1
        return runtime.store.get(Identity, launcher_key(run)).agent_id


def _living(runtime: Runtime, run: str) -> list[Identity]:
    """Return the living processes of a run, including those that have recorded their end but still exist."""
    identities, _ = runtime.store.list(Identity)
    return [identity for identity in identities if identity.run_id == run
            and (runtime.observer.judge(identity).living or runtime.observer.observe(identity).leaving is not None)]


def _terminate_runners(runtime: Runtime, run: str) -> None:
    for identity in _living(runtime, run):
        if identity.role == "runner" and identity.pid and identity.start_ticks:
            runtime.processes.send(identity.pid, identity.start_ticks, signal.SIGTERM)
