"""The program of every layer: `python -m garrison.processes.main ROLE --home H --run R --name N --incarnation I`.

Started only by a spawner that holds a lease; it becomes that life, recovers, says ready and enters the loop.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, NotFound
from garrison.processes.loop import BLOCKED_SIGNALS, FENCED_EXIT, WAKING_SIGNALS, Process, log_line, run
from garrison.processes.runtime import Runtime
from garrison.records import atomic
from garrison.records import run as run_records
from garrison.records.names import Key
from garrison.records.run import Task
from garrison.supervise.start import Incarnation, register
from garrison.system import failpoint, reaper
from garrison.system.disk_space import retry_until_space
from garrison.system.event_loop import EventLoop
from garrison.system.processes import become_subreaper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line of a layer."""
    parser = argparse.ArgumentParser(prog="garrison.processes.main", description="one layer's process")
    parser.add_argument("role", choices=["launch", "guardian", "runner", "orchestrator", "processor"])
    parser.add_argument("--home", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--incarnation", type=int, required=True)
    parser.add_argument("--attempt", type=int, default=1)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--stop", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    return parser.parse_args(argv)


def prepare_process(world: Runtime, options: argparse.Namespace) -> Callable[[Incarnation], Process]:
    """What makes the layer of a role, recovered from disk, once its life has begun.

    All that takes long and neither writes nor can change comes first, while the name is not held yet: a role's own
    modules (a runner parses no graph) and the run's plan. What goes wrong is said by the life that it happens to.
    """
    try:
        return _PREPARE[options.role](world, options)
    except Exception as error:  # its reason belongs into the identity, which is not ours yet
        wrong = error

    def fail(_life: Incarnation) -> Process:
        raise wrong

    return fail


def _launcher(world: Runtime, options: argparse.Namespace) -> Callable[[Incarnation], Process]:
    from garrison.processes.launcher.process import Launcher
    from garrison.processes.launcher.progress import Progress

    return lambda life: Launcher(world, life, world.launch(options.run),
                                 Progress(as_json=options.json, quiet=options.quiet), resume=options.resume,
                                 again=options.again)


def _guardian(world: Runtime, options: argparse.Namespace) -> Callable[[Incarnation], Process]:
    from garrison.processes.guardian.process import Guardian
    from garrison.processes.run_plan import read_plan
    from garrison.system.git import Git

    launch = world.launch(options.run)
    plan, git = read_plan(world.files(options.run), launch), Git(Path(launch.repo))
    with contextlib.suppress(GarrisonError, OSError):  # a repository that is gone is the guardian's to tell
        _ = git.common  # a git process's time
    return lambda life: Guardian(world, life, launch, plan, git)


def _processor(world: Runtime, options: argparse.Namespace) -> Callable[[Incarnation], Process]:
    from garrison.processes.merge_processor.process import Processor

    return lambda life: Processor(world, life, world.launch(options.run))


def _runner(world: Runtime, options: argparse.Namespace) -> Callable[[Incarnation], Process]:
    from garrison.processes.runner.process import Runner

    return lambda life: Runner(world, life, world.launch(options.run), _task(world, options))


def _orchestrator(world: Runtime, options: argparse.Namespace) -> Callable[[Incarnation], Process]:
    from garrison.processes.orchestrator.process import Orchestrator

    return lambda life: Orchestrator(world, life, world.launch(options.run), _task(world, options))


_PREPARE = {"launch": _launcher, "guardian": _guardian, "processor": _processor, "runner": _runner,
            "orchestrator": _orchestrator}


def _task(world: Runtime, options: argparse.Namespace) -> Task:
    path = world.files(options.run).attempt(options.name, options.attempt) / "task.json"
    task = run_records.load(Task, path)
    if task is None:
        raise NotFound(f"{path} is missing; it is written before a runner is started")
    return task


def main(argv: Sequence[str] | None = None) -> int:
    """Become the life the lease was for and live it; returns the exit code."""
    options = parse_arguments(sys.argv[1:] if argv is None else argv)
    failpoint.role = options.role
    if options.role == "orchestrator":
        reaper.fork_under_reaper()
    # What a launcher's shell had started before it became one is not ours, whoever's child it is.
    become_subreaper(adopting=options.role != "launch")
    # A user has few inotify instances, editors want them too, and what an agent's layer watches is nobody else's.
    waker = EventLoop(WAKING_SIGNALS)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_SIGNALS)
    key = Key(options.role, options.name, options.run)
    life = None
    try:
        world = Runtime.real(Path(options.home))
        atomic.forbid_recreating(world.home)
        make = prepare_process(world, options)
        life = register(world.observer, key, options.incarnation, time.sleep)
        layer = recover_process(world, life, make)
        if options.stop:
            layer.stop(signal.SIGTERM)
        return _told(options.role, run(layer, life, world, waker))
    except GarrisonError as error:
        return report_crash(life, f"{key.full}#{options.incarnation}", str(error), error.exit_code)
    except Exception as error:  # whatever it is: the log gets a line, and who counts the death gets the reason
        if os.environ.get("GARRISON_DEBUG") == "1":
            raise
        return report_crash(life, f"{key.full}#{options.incarnation}", describe_fault(error))


def recover_process(world: Runtime, life: Incarnation, make: Callable[[Incarnation], Process]) -> Process:
    """The layer of `life`, made and ready. On a full disk that waits, as its loop will, for as long as a start may
    take: what is recovered from disk can be recovered again, as by the next life."""
    until = world.clock.monotonic() + world.timing.spawn_deadline

    def over() -> bool:
        return world.clock.monotonic() > until

    def wait(seconds: float) -> None:
        with contextlib.suppress(OSError):  # who waits is not hung
            life.beat()
        time.sleep(seconds)

    layer = retry_until_space(lambda: make(life), wait, over)
    retry_until_space(life.ready, wait, over)
    return layer


def _told(role: str, code: int) -> int:
    """The exit code as its reader knows it: a person's launcher failed, where who counts lives is told of a fence."""
    return 1 if role == "launch" and code == FENCED_EXIT else code


def report_crash(life: Incarnation | None, who: str, why: str, code: int = 1) -> int:
    """Say why a layer cannot go on, in its log and in its identity; returns the exit code."""
    log_line(f"{who}: {why}")
    if life is not None:
        with contextlib.suppress(GarrisonError, OSError):  # fenced, or the record itself is what is damaged
            life.crash(why, code)
    return code


def describe_fault(error: Exception) -> str:
    """An error that nobody foresaw, in one line: what the machine refused, else the place in garrison."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.strerror}: {error.filename}; mend that, then go on"
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"
    return f"a fault in garrison ({type(error).__name__}: {error}, {where}); GARRISON_DEBUG=1 shows where"


if __name__ == "__main__":
    code = main()
    sys.exit(code)
