"""Runs that were begun through MCP: a request is recorded before its command starts, so that it begins one run.

A launch tests its target first, which takes as long as the gate, while a client waits a second. So the run's id is
chosen here, and a process of its own (`python -m garrison.mcp.beginnings`) runs the command and records why it began
nothing. The run's id is the request's: a request that is given twice, or again after the server was killed, begins
nothing new.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.launch.own_command import last_message, run_command
from garrison.records import atomic, record
from garrison.records.life_lock import LifeLock, is_held
from garrison.records.names import to_run_stem
from garrison.records.record import Record
from garrison.records.run import RunFiles
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FOLDER = "mcp"
SECONDS = 7200.0
"""Time limit of a command: its pre-flight may run a set-up and a gate."""


class Beginning(Record):
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


def begin(home: Path, request: str, words: Sequence[str], text: str, repo: str, name: str) -> Beginning:
    """Begin a run for a request, unless there is one already; return its record.

    Args:
        request: the client's id for it.
        words: command, without its `--run`.
        name: words from which the run's id is made.
    """
    digest = hashlib.sha256(f"{repo}\0{request}".encode(errors="surrogateescape")).hexdigest()
    path = atomic.make_directory(home / FOLDER) / f"{digest[:24]}.json"
    with atomic.locked(home / FOLDER / "lock"):
        if (data := atomic.read(path)) is not None:
            return record.decode(Beginning, data, path)
        begun = Beginning(request, f"{to_run_stem(name)}-{digest[:6]}", list(words), repo, text)
        atomic.write(path, record.encode(begun))
    with path.with_suffix(".log").open("ab") as log:
        subprocess.Popen([sys.executable, "-P", "-m", "garrison.mcp.beginnings", str(home), str(path)], cwd="/",
                         stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return begun


def find(home: Path, run: str) -> Beginning | None:
    """Return what began a run, or is about to; None if no client asked for it."""
    for path, begun in _read_all(home):
        if begun.run == run:
            lost = not begun.problem and not RunFiles(home, run).launch.exists() and not is_held(
                path.with_suffix(".life")) and path.stat().st_mtime < time.time() - 60
            return replace(begun, problem="the command that was to begin it has died") if lost else begun
    return None


def begun_by(home: Path, prefix: str) -> list[Beginning]:
    """Return what was begun by requests with a prefix, oldest first."""
    found = [(path.stat().st_mtime_ns, begun) for path, begun in _read_all(home) if begun.request.startswith(prefix)]
    return [begun for _, begun in sorted(found, key=lambda each: each[0])]


def _read_all(home: Path) -> Iterator[tuple[Path, Beginning]]:
    for name in atomic.list_names(home / FOLDER):
        path = home / FOLDER / name
        if name.endswith(".json") and (data := atomic.read(path)) is not None:
            yield path, record.decode(Beginning, data, path)


def perform(home: Path, path: Path) -> None:
    """Run the command of a beginning; record why it began nothing, if so."""
    lock = LifeLock.try_acquire(path.with_suffix(".life"))
    data = atomic.read(path)
    if lock is None or data is None:
        return
    begun = record.decode(Beginning, data, path)
    if not RunFiles(home, begun.run).launch.exists():
        first, *rest = begun.words
        done = run_command(home, [first, f"--run={begun.run}", "--detach", "--json", *rest], SECONDS, cwd=begun.repo,
                           text=begun.text)
        if not done.ok:
            problem = done.why or last_message(done.err) or f"exit code {done.code} and no message"
            atomic.write(path, record.encode(replace(begun, problem=problem)))
    lock.release()


if __name__ == "__main__":
    perform(Path(sys.argv[1]), Path(sys.argv[2]))
