"""The demonstration's stage: one folder with everything it touches, the launcher in it, and the way out.

The rule of this room: nothing of the person's own garrison, git variables or directories is used or seen, and whatever
happens (Ctrl-C, a closed terminal, a fault), nothing is left running. What must be killed for that is told.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from garrison.merge.queue import MergeQueue
from garrison.processes.run_state import RunState
from garrison.processes.runtime import Runtime
from garrison.records.identity import Identity
from garrison.records.journal import Reader
from garrison.records.names import Key
from garrison.supervise.verdict import Verdict
from garrison.system import processes
from garrison.system.git import Git
from garrison.system.terminal import choose_terminal

RUN = "demo"
AGENTS = 4
"""Agents at work at once, on every machine: fewer would make the two pairs of the graph wait for each other longer."""
STOPPING = 90.0
"""Seconds that an orderly stop may take."""
_PROGRAM = (sys.executable, "-P", "-m", "garrison.cli.main")


@dataclass
class Interrupts:
    """How often somebody asked to stop."""

    count: int = 0


@dataclass
class Stage:
    """The folder and what happens in it."""

    folder: Path
    world: Runtime
    interrupts: Interrupts
    launcher: subprocess.Popen[bytes] | None = None
    state: RunState = field(default_factory=RunState)
    """The run as its journal told it when `look` was last called."""

    def __post_init__(self) -> None:
        self._reader = Reader(self.world.files(RUN).journal)
        self.queue = MergeQueue(self.world.home, self.repo)

    @property
    def repo(self) -> Path:
        """The copy of the example project."""
        return self.folder / "ledger"

    def look(self) -> None:
        """Read on in the run's journal."""
        for entry in self._reader.read():
            self.state.apply(entry)

    def identity(self, key: Key) -> tuple[Identity, Verdict] | None:
        """An identity and the verdict on it, None if it never lived."""
        found = self.world.store.read(Identity, key)
        return (found, self.world.observer.judge(found)) if found else None

    def launch(self, *arguments: str) -> None:
        """Start a launcher whose progress the person sees.

        In a session of its own: Ctrl-C shall reach it once, through `end`, since the second time means to hurry.
        """
        self.launcher = self._start("launch", *arguments)

    def command(self, *arguments: str) -> str:
        """One garrison command to its end; what it printed."""
        return subprocess.run([*_PROGRAM, *arguments], env=dict(self.world.environ), cwd=self.folder, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False).stdout.rstrip()

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*_PROGRAM, *arguments], env=dict(self.world.environ), cwd=self.folder,
                                stdin=subprocess.DEVNULL, start_new_session=True)

    # ------------------------------------------------------------------------------------------------ the way out

    def end(self) -> list[str]:
        """Leave nothing running, in order if possible; returns who had to be killed for it."""
        if self.launcher is not None and self.launcher.poll() is None:
            self._wait(self.launcher)
        if self._somebody_lives():  # the launcher was dead just then
            self._wait(self._start("stop", RUN), by_term=False)
        killed = self._sweep()
        terminal, _ = choose_terminal("auto", self.world.home)
        for session in terminal.sessions():
            terminal.close(session)
        terminal.shutdown()
        return killed

    def _wait(self, child: subprocess.Popen[bytes], *, by_term: bool = True) -> None:
        """Until it has ended; it is asked at first (`by_term`), and again at each further interrupt, which hurries."""
        asked = self.interrupts.count
        if by_term:
            child.send_signal(signal.SIGTERM)
        until = time.monotonic() + STOPPING
        while child.poll() is None and time.monotonic() < until:
            if self.interrupts.count > asked:
                asked = self.interrupts.count
                child.send_signal(signal.SIGTERM)
            time.sleep(0.02)

    def _somebody_lives(self) -> bool:
        records, _ = self.world.store.list(Identity)
        return any(self.world.observer.judge(one).living for one in records)

    def _sweep(self) -> list[str]:
        """Kill whoever bears a marker of this home; whoever just ends by itself is given a moment."""
        until = time.monotonic() + 2
        while (left := self._bearers()) and time.monotonic() < until:
            time.sleep(0.05)
        for one in left:
            self.world.processes.send(one.pid, one.ticks, signal.SIGKILL)
        return [f"{one.comm} (pid {one.pid}, {one.marker})" for one in left]

    def _bearers(self) -> list[processes.Row]:
        return [row for row in processes.table() if row.marker and row.marker.startswith(f"{self.world.home}:")]


@contextmanager
def listening() -> Iterator[Interrupts]:
    """Count interrupts instead of dying of them: Ctrl-C, TERM, and the terminal that is closed."""
    interrupts = Interrupts()

    def count(_signum: int, _frame: object) -> None:
        interrupts.count += 1

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before: list[tuple[int, Callable[..., object] | int | None]] = [(one, signal.signal(one, count)) for one in signals]
    try:
        yield interrupts
    finally:
        for signum, handler in before:
            signal.signal(signum, handler)


def new_folder() -> Path:
    """A fresh folder in the temporary directory."""
    return Path(tempfile.mkdtemp(prefix="garrison-demo-")).resolve()


def prepare(source: Path, folder: Path, interrupts: Interrupts, more: Mapping[str, str] | None = None) -> Stage:
    """The stage with a fresh repository; `source` is garrison's checkout, `more` is added to the environment."""
    repo = folder / "ledger"
    shutil.copytree(source / "examples" / "ledger", repo, ignore=shutil.ignore_patterns("__pycache__", "*.crew-tmp"))
    git = Git(repo)
    git.run("init", "-q", "-b", "main")
    git.run("add", "-A")
    git.run("-c", "user.name=demo", "-c", "user.email=demo@localhost", "commit", "--no-verify", "-qm", "Begin")
    return Stage(folder, Runtime.real(folder / "home", {**environment(source, folder), **(more or {})}), interrupts)


def environment(source: Path, folder: Path) -> dict[str, str]:
    """What the demonstration's processes get; its python3 is the one that runs garrison, since a PATH may have none."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("GARRISON_", "GIT_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    return {**kept, "PATH": path, "GARRISON_HOME": str(folder / "home"), "GARRISON_TREES": str(folder / "trees"),
            "XDG_STATE_HOME": str(folder / "xdg"), "GARRISON_DEMO_CREW": str(source / "examples" / "crew")}


def remove(folder: Path) -> bool:
    """Remove the folder; False if something of it could not be."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def clear(folder: Path, *, keep: bool) -> None:
    """Remove the folder, or say where it is kept."""
    if keep:
        click.echo(f"\nKept: {folder} (ledger: the project; home: what garrison remembers, see state/README.md)")
    elif remove(folder):
        click.echo("\nThe folder with the project, garrison's records and the agents' output is removed; "
                   "--keep leaves it.")
    else:
        click.echo(f"\n{folder} could not be removed whole; remove it by hand", err=True)
