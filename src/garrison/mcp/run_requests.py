"""Requests of MCP clients to start a run: each is recorded before its command starts, so that it starts one run.

A launch first tests its target, which takes as long as the gate, while a client waits a second. So the run's id is
chosen here, and a separate process (`python -m garrison.mcp.run_requests`) runs the command and records why it failed,
if it did. The run's id follows from the request: repeating a request, even after the server was killed, starts nothing.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.launch.own_command import begin_run, failure_of, run_command, start_worker
from garrison.records import atomic
from garrison.records.life_lock import hold, is_held
from garrison.records.names import to_run_stem
from garrison.records.record import Record
from garrison.records.run import RunFiles, load, save
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FOLDER = "mcp"
PLAN, PLAN_WAITS = "plan", 3
"""Command that does not start a run by itself, and its exit code while it waits for the user."""
SECONDS = 7200.0
"""Time limit of a command: its pre-flight may run a set-up and a gate."""


class RequestedRun(Record):
    """A run that a client asked for."""

    request: str
    run: str
    words: list[str]
    """Command of garrison, without `garrison`."""
    repo: str
    text: str = ""
    """Standard input of the command."""
    problem: str = ""
    """Why no run started."""
    said: str = ""
    """Output of the command, if it makes a plan."""
    is_cancelled: bool = False
    """True if the run is stopped as soon as it has started."""


def start(home: Path, request: str, words: Sequence[str], text: str, repo: str, name: str) -> RequestedRun:
    """Start a run for a request, unless there is one already; return its record.

    Args:
        request: the client's id for it.
        words: command, without `--run`.
        name: words from which the run's id is made.
    """
    # A client may number its requests from 1: without the repository, clients of two repositories would share a run.
    digest = hashlib.sha256(f"{repo}\0{request}".encode(errors="surrogateescape")).hexdigest()
    path = atomic.make_directory(home / FOLDER) / f"{digest[:24]}.json"
    with atomic.locked(home / FOLDER / "lock"):
        if (known := load(RequestedRun, path)) is not None:
            return known
        requested = RequestedRun(request, f"{to_run_stem(name)}-{digest[:6]}", list(words), repo, text)
        save(path, requested)
    # A kill here leaves a request without a command: `find` reports it as lost after a minute, and never starts it
    # twice.
    start_worker("garrison.mcp.run_requests", path.with_suffix(".log"), str(home), str(path))
    return requested


def find(home: Path, run: str) -> RequestedRun | None:
    """Return the request of a run that has started or is about to; None if no client requested it."""
    for path, requested in _read_all(home):
        if requested.run == run:
            # A minute covers the time between the record and the worker's lock, also on a busy machine.
            lost = not requested.problem and not RunFiles(home, run).launch.exists() and not is_held(
                path.with_suffix(".life")) and path.stat().st_mtime < time.time() - 60
            return replace(requested, problem="the command that should start it was killed") if lost else requested
    return None


def unfinished(home: Path) -> Iterator[tuple[float, RequestedRun]]:
    """Yield the requests without a run (yet), with the time of their last change in seconds since 1970."""
    for path, requested in _read_all(home):
        if requested.words[0] != PLAN and not RunFiles(home, requested.run).launch.exists():
            yield path.stat().st_mtime, requested


def list_by_prefix(home: Path, prefix: str) -> list[RequestedRun]:
    """Return the requests whose id has a prefix, oldest first."""
    found = [(path.stat().st_mtime_ns, each) for path, each in _read_all(home) if each.request.startswith(prefix)]
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def cancel(home: Path, run: str) -> bool:
    """Have a run that has not started yet stopped once it has; return whether there is one."""
    with atomic.locked(atomic.make_directory(home / FOLDER) / "lock"):
        for path, requested in _read_all(home):
            if requested.run == run and not requested.problem and not RunFiles(home, run).launch.exists():
                save(path, replace(requested, is_cancelled=True))
                return True
    return False


def perform(home: Path, path: Path) -> None:
    """Run the command of a request; record why no run started, if so."""
    with hold(path.with_suffix(".life")) as lock:
        # Without the lock, another worker has this request: its command must not run twice.
        requested = load(RequestedRun, path) if lock is not None else None
        if requested is None:
            return
        problem, said = ("", "") if requested.said else _run(home, requested)
        with atomic.locked(home / FOLDER / "lock"):
            requested = load(RequestedRun, path) or requested  # `cancel` may have written since
            if problem or said:
                save(path, replace(requested, problem=problem, said=said))
        if requested.is_cancelled and not problem:
            run_command(home, ["stop", requested.run], SECONDS, cwd=requested.repo)


def _run(home: Path, requested: RequestedRun) -> tuple[str, str]:
    """Run the command of a request; return why no run started, and the output if it makes a plan."""
    first, *rest = requested.words
    words = [first, *([] if first == PLAN else [f"--run={requested.run}"]), "--detach", "--json", *rest]
    if first != PLAN:
        return begin_run(home, requested.run, words, SECONDS, cwd=requested.repo, text=requested.text).problem, ""
    done = run_command(home, words, SECONDS, cwd=requested.repo, text=requested.text)
    if done.ok or done.code == PLAN_WAITS:
        return "", done.out
    return failure_of(done.code, done.err, why=done.why), ""


def _read_all(home: Path) -> Iterator[tuple[Path, RequestedRun]]:
    for name in atomic.list_names(home / FOLDER):
        path = home / FOLDER / name
        if name.endswith(".json") and (requested := load(RequestedRun, path)) is not None:
            yield path, requested


if __name__ == "__main__":
    perform(Path(sys.argv[1]), Path(sys.argv[2]))
