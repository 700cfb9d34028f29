"""Runs that were begun through MCP: a request is recorded before its command starts, so that it begins one run.

A launch tests its target first, which takes as long as the gate, while a client waits a second. So the run's id is
chosen here, and a process of its own (`python -m garrison.mcp.beginnings`) runs the command and records why it began
nothing. The run's id is the request's: a request that is given twice, or again after the server was killed, begins
nothing new.
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
"""Command that begins no run by itself, and its exit code if it waits for the user."""
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
    """Why it began nothing."""
    said: str = ""
    """What the command printed, if it makes a plan."""
    is_cancelled: bool = False
    """True if the run is to be stopped as soon as it has begun."""


def begin(home: Path, request: str, words: Sequence[str], text: str, repo: str, name: str) -> RequestedRun:
    """Begin a run for a request, unless there is one already; return its record.

    Args:
        request: the client's id for it.
        words: command, without its `--run`.
        name: words from which the run's id is made.
    """
    # A client may count its requests from 1: without the repository, clients of two would share a run.
    digest = hashlib.sha256(f"{repo}\0{request}".encode(errors="surrogateescape")).hexdigest()
    path = atomic.make_directory(home / FOLDER) / f"{digest[:24]}.json"
    with atomic.locked(home / FOLDER / "lock"):
        if (known := load(RequestedRun, path)) is not None:
            return known
        begun = RequestedRun(request, f"{to_run_stem(name)}-{digest[:6]}", list(words), repo, text)
        save(path, begun)
    # A kill here leaves a request that begins nothing: `find` calls it lost after a minute, and never begins it twice.
    start_worker("garrison.mcp.beginnings", path.with_suffix(".log"), str(home), str(path))
    return begun


def find(home: Path, run: str) -> RequestedRun | None:
    """Return what began a run, or is about to; None if no client asked for it."""
    for path, begun in _read_all(home):
        if begun.run == run:
            # A minute covers the time between the record and the worker's lock, also on a busy machine.
            lost = not begun.problem and not RunFiles(home, run).launch.exists() and not is_held(
                path.with_suffix(".life")) and path.stat().st_mtime < time.time() - 60
            return replace(begun, problem="the command that was to begin it has died") if lost else begun
    return None


def unfinished(home: Path) -> Iterator[tuple[float, RequestedRun]]:
    """Yield what has begun no run (yet), with the time of its last change in seconds since 1970."""
    for path, begun in _read_all(home):
        if begun.words[0] != PLAN and not RunFiles(home, begun.run).launch.exists():
            yield path.stat().st_mtime, begun


def begun_by(home: Path, prefix: str) -> list[RequestedRun]:
    """Return what was begun by requests with a prefix, oldest first."""
    found = [(path.stat().st_mtime_ns, begun) for path, begun in _read_all(home) if begun.request.startswith(prefix)]
    return [begun for _, begun in sorted(found, key=lambda each: each[0])]


def cancel(home: Path, run: str) -> bool:
    """Let a run that has not begun yet be stopped once it has; return whether there is such a one."""
    with atomic.locked(atomic.make_directory(home / FOLDER) / "lock"):
        for path, begun in _read_all(home):
            if begun.run == run and not begun.problem and not RunFiles(home, run).launch.exists():
                save(path, replace(begun, is_cancelled=True))
                return True
    return False


def perform(home: Path, path: Path) -> None:
    """Run the command of a beginning; record why it began nothing, if so."""
    with hold(path.with_suffix(".life")) as lock:
        # Without the lock another worker has this request: its command must not run twice.
        begun = load(RequestedRun, path) if lock is not None else None
        if begun is None:
            return
        problem, said = ("", "") if begun.said else _run(home, begun)
        with atomic.locked(home / FOLDER / "lock"):
            begun = load(RequestedRun, path) or begun  # `cancel` may have written meanwhile
            if problem or said:
                save(path, replace(begun, problem=problem, said=said))
        if begun.is_cancelled and not problem:
            run_command(home, ["stop", begun.run], SECONDS, cwd=begun.repo)


def _run(home: Path, begun: RequestedRun) -> tuple[str, str]:
    """Run the command of a beginning; return why it began nothing, and what it printed if it makes a plan."""
    first, *rest = begun.words
    words = [first, *([] if first == PLAN else [f"--run={begun.run}"]), "--detach", "--json", *rest]
    if first != PLAN:
        return begin_run(home, begun.run, words, SECONDS, cwd=begun.repo, text=begun.text).problem, ""
    done = run_command(home, words, SECONDS, cwd=begun.repo, text=begun.text)
    if done.ok or done.code == PLAN_WAITS:
        return "", done.out
    return failure_of(done.code, done.err, why=done.why), ""


def _read_all(home: Path) -> Iterator[tuple[Path, RequestedRun]]:
    for name in atomic.list_names(home / FOLDER):
        path = home / FOLDER / name
        if name.endswith(".json") and (begun := load(RequestedRun, path)) is not None:
            yield path, begun


if __name__ == "__main__":
    perform(Path(sys.argv[1]), Path(sys.argv[2]))
