"""The program of every process of a run: `python -m garrison.processes.main ROLE --home H --run R --name N
--incarnation I`.

Only a process with a lease for it starts it (`supervise/incarnation.py`). It registers as that incarnation,
recovers its state from disk, records that it is ready, and enters the loop.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.errors import GarrisonError, NotFound, RecordCorrupt, UsageError
from garrison.plugins import PluginGroup, load
from garrison.processes.loop import BLOCKED_SIGNALS, FENCED_EXIT, HINDERED, OF_ATTEMPT, WAKING_SIGNALS, log_line, run
from garrison.processes.runtime import Runtime
from garrison.records import atomic
from garrison.records import run as run_records
from garrison.records.names import Key
from garrison.records.run import Task
from garrison.supervise.death_classes import CRASH, SHORTAGE
from garrison.supervise.incarnation import register
from garrison.system import failpoint, process_control
from garrison.system.environment import seal_path
from garrison.system.event_loop import EventLoop
from garrison.system.machine import begin_again, is_shortage, retry_until_space
from garrison.system.processes import become_subreaper
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from garrison.processes.loop import Process
    from garrison.records.run import Launch
    from garrison.supervise.incarnation import Incarnation

    MakeProcess = Callable[[Incarnation], Process]


FLAGS = frozenset({"resume", "again", "stop", "json", "quiet"})
"""Options without a value."""
USAGE = ("usage: python -m garrison.processes.main ROLE --home DIR --run RUN --name NAME --incarnation N [--attempt N] "
         "[--resume] [--again] [--only NODES] [--stop] [--json] [--quiet]\n\n"
         "One process of a run; `garrison launch` starts a run.")


class Options(Value):
    """Command line of a process. Only `spawn.process_argv` and the launch write it, so no parser library is loaded."""

    role: str
    home: str
    run: str
    name: str
    incarnation: int
    attempt: int = 1
    resume: bool = False
    again: bool = False
    only: str = ""
    """Failed nodes to which `again` applies, separated by commas; '': all."""
    stop: bool = False
    json: bool = False
    quiet: bool = False


def parse_arguments(argv: Sequence[str]) -> Options:
    """Return the options of a process; UsageError if they are incomplete or malformed."""
    words = iter(argv)
    role, values = next(words, ""), dict[str, Any]()
    for word in words:
        name = word.removeprefix("--")
        values[name] = name in FLAGS or next(words, "")
    try:
        for name in ("incarnation", "attempt"):
            if name in values:
                values[name] = int(values[name])
        options = Options(role, **values)
    except (TypeError, ValueError) as error:
        raise UsageError(f"garrison.processes.main: wrong arguments: {error}; use `garrison launch`") from None
    if role not in _PREPARE:
        raise UsageError(f"garrison.processes.main: unknown role {role!r}; there are {', '.join(_PREPARE)}")
    return options


def prepare_process(runtime: Runtime, options: Options) -> MakeProcess:
    """Return a function that makes the process of a role once its incarnation is registered.

    Slow steps that only read come first, before registering: importing the role's own modules (a runner parses no
    graph) and reading the run's plan. Their error is raised by the incarnation, which can record it.
    """
    try:
        return _PREPARE[options.role](runtime, options)
    except Exception as error:  # the reason belongs in the identity, which is not ours yet
        if isinstance(error, ImportError):
            begin_again()  # an upgrade is replacing the package, and nothing is done yet
        failure = error

    def fail(_incarnation: Incarnation) -> Process:
        raise failure

    return fail


def _launcher(runtime: Runtime, options: Options) -> MakeProcess:
    from garrison.run.launcher import Launcher
    from garrison.run.progress import RunProgress

    return lambda incarnation: Launcher(
        runtime, incarnation, _launch(runtime, options), RunProgress(as_json=options.json, quiet=options.quiet),
        resume=options.resume, retry_failed=options.again,
        retry_nodes=tuple(options.only.split(",")) if options.only else None)


def _guardian(runtime: Runtime, options: Options) -> MakeProcess:
    from garrison.run.guardian import Guardian
    from garrison.run.plan import read_plan
    from garrison.system.git import Git

    launch = _launch(runtime, options)
    try:
        plan = read_plan(runtime.files(options.run), launch, as_launched=True)
    except (GarrisonError, OSError, ValueError):
        from garrison.run.repair import load_plan

        plan = load_plan(runtime, launch)
    git = Git(Path(launch.repo), home=runtime.home)
    with contextlib.suppress(GarrisonError, OSError):  # the guardian reports a repository that is gone
        _ = git.common  # costs a git process
    return lambda incarnation: Guardian(runtime, incarnation, launch, plan, git)


def _processor(runtime: Runtime, options: Options) -> MakeProcess:
    from garrison.run.merge_processor import Processor

    return lambda incarnation: Processor(runtime, incarnation, _launch(runtime, options))


def _runner(runtime: Runtime, options: Options) -> MakeProcess:
    from garrison.node.runner import Runner

    return lambda incarnation: Runner(runtime, incarnation, _launch(runtime, options), _task(runtime, options).here)


def _orchestrator(runtime: Runtime, options: Options) -> MakeProcess:
    from garrison.node.orchestrator import Orchestrator

    def make(incarnation: Incarnation) -> Process:
        task = _task(runtime, options)
        kind: type[Orchestrator] = Orchestrator
        if task.hosts:
            kind = load(PluginGroup.PARTS, "hosts.orchestrator")
        return kind(runtime, incarnation, _launch(runtime, options), task)

    return make


_PREPARE = {"launch": _launcher, "guardian": _guardian, "runner": _runner, "orchestrator": _orchestrator,
            "processor": _processor}


def _launch(runtime: Runtime, options: Options) -> Launch:
    """Return the run's launch; restored from a journal if launch.json is damaged or lost."""
    try:
        return runtime.launch(options.run)
    except (NotFound, RecordCorrupt):
        from garrison.run.repair import repair_launch

        repair_launch(runtime, options.run)
        return runtime.launch(options.run)


def _task(runtime: Runtime, options: Options) -> Task:
    path = runtime.files(options.run).attempt(options.name, options.attempt) / "task.json"
    task = run_records.load(Task, path)
    if task is None:
        raise NotFound(f"{path} is missing; it is written before a runner is started")
    return task


def main(argv: Sequence[str] | None = None) -> int:
    """Become the leased incarnation, and run; return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    seal_path()
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    try:
        options = parse_arguments(arguments)
    except UsageError as error:
        log_line(str(error))
        return error.exit_code
    failpoint.role = options.role
    if options.role == "orchestrator":
        process_control.fork_under_reaper()
    # Children of the launcher's shell from before it became the launcher are not adopted.
    become_subreaper(adopting=options.role != "launch")
    # Handlers before the signals are unblocked: a pending one is delivered at that moment.
    event_loop = EventLoop(WAKING_SIGNALS)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_SIGNALS)
    key = Key(options.role, options.name, options.run)
    incarnation = None
    try:
        runtime = Runtime.real(Path(options.home))
        atomic.forbid_recreating(runtime.home)
        gc.disable()  # a start creates no garbage
        try:
            make = prepare_process(runtime, options)
            incarnation = register(runtime.observer, key, options.incarnation, time.sleep)
            process = recover_process(runtime, incarnation, make)
        finally:
            # Objects of the start are permanent: collections need not walk them, which would also copy the pages that
            # forks of this process share with it.
            gc.freeze()
            gc.enable()
        if options.stop:
            process.stop(signal.SIGTERM)
        files = runtime.files(options.run)
        folder = files.attempt(options.name, files.latest_attempt(options.name)) \
            if options.role in OF_ATTEMPT else files.root
        told = folder / HINDERED[options.role] if options.role in HINDERED else None
        return _exit_code(options.role, run(process, incarnation, runtime, event_loop, told))
    except GarrisonError as error:
        return report_crash(incarnation, f"{key.full}#{options.incarnation}", str(error), error.exit_code,
                            SHORTAGE if is_shortage(error) else CRASH)
    except Exception as error:  # a bug: the log and the identity get one line, the supervisor counts a death
        if os.environ.get("GARRISON_DEBUG") == "1":
            raise
        return report_crash(incarnation, f"{key.full}#{options.incarnation}", describe_fault(error),
                            death_class=SHORTAGE if is_shortage(error) else CRASH)


def recover_process(runtime: Runtime, incarnation: Incarnation, make: MakeProcess) -> Process:
    """Make the process and record that it is ready.

    Its damaged journal is repaired first. On a full disk this waits, as the loop does, up to the time limit of a start;
    recovery can be repeated.
    """
    until = runtime.clock.monotonic() + runtime.timing.spawn_deadline

    def is_over() -> bool:
        return runtime.clock.monotonic() > until

    def wait(seconds: float) -> None:
        with contextlib.suppress(OSError):  # it waits, it does not hang
            incarnation.beat()
        time.sleep(seconds)

    def make_repaired() -> Process:
        try:
            return make(incarnation)
        except RecordCorrupt as error:
            from garrison.run.repair import repair_own

            if not repair_own(runtime, incarnation.key, error):
                raise
            return make(incarnation)

    process = retry_until_space(make_repaired, wait, is_over)
    retry_until_space(incarnation.ready, wait, is_over)
    return process


def _exit_code(role: str, code: int) -> int:
    """Return the exit code: it reports a fence to the supervisor, and a failed launcher to the user."""
    return 1 if role == "launch" and code == FENCED_EXIT else code


def report_crash(incarnation: Incarnation | None, who: str, why: str, code: int = 1, death_class: str = CRASH) -> int:
    """Record in the log and the identity why a process cannot continue; return the exit code.

    A shortage at its start is waited for, and does not count as its own fault.
    """
    log_line(f"{who}: {why}")
    if incarnation is not None:
        with contextlib.suppress(GarrisonError, OSError):  # fenced, or the record itself is damaged
            incarnation.crash(why, code, death_class)
    return code


def describe_fault(error: Exception) -> str:
    """Return an unexpected error in one line: the machine's error, or the line of garrison's code."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.strerror}: {error.filename}; fix that, then try again"
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"
    return f"internal error ({type(error).__name__}: {error}, {where}); GARRISON_DEBUG=1 shows the traceback"


if __name__ == "__main__":
    sys.exit(main())
