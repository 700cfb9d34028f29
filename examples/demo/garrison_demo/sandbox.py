"""Sandbox of the demonstration: one temporary folder with the project, the home and the worktrees, and its launcher.

Nothing of the user's own garrison, git variables or directories is used. However the demonstration ends (Ctrl-C, a
closed terminal, an error), no process is left; a process that had to be killed for that is reported.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garrison.directories import checkout
from garrison.merge.queue import MergeQueue
from garrison.processes.runtime import Runtime
from garrison.records.identity import Identity
from garrison.records.journal import Reader
from garrison.run.state import RunState
from garrison.sandbox.place import MODE_VARIABLE
from garrison.system import processes
from garrison.system.git import Git
from garrison.system.terminal_choice import choose_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from garrison.records.names import Key
    from garrison.supervise.verdict import Verdict

DEMO = Path(__file__).resolve().parent.parent
"""Folder of the demonstration: pipelines, project, agents and the scripted model."""
RUN = "demo"
MAX_AGENTS = 4
"""Concurrent agents, on every machine: with fewer, the two pairs of the pipeline wait longer for each other."""
STOP_TIMEOUT = 90.0
"""Seconds that a graceful stop may take."""
GARRISON = (sys.executable, "-P", "-m", "garrison.cli.main")


@dataclass
class Interrupts:
    """Count of the user's requests to stop."""

    count: int = 0


@dataclass
class Sandbox:
    """Folder of one demonstration, its run and its launcher."""

    folder: Path
    runtime: Runtime
    interrupts: Interrupts
    launcher: subprocess.Popen[bytes] | None = None
    state: RunState = field(default_factory=RunState)
    """State of the run as of the last `refresh`."""

    def __post_init__(self) -> None:
        self._journal = Reader(self.runtime.files(RUN).journal)
        self.queue = MergeQueue(self.runtime.home, self.repo)

    @property
    def repo(self) -> Path:
        """Copy of the example project."""
        return self.folder / "ledger"

    def refresh(self) -> None:
        """Apply new records of the run's journal to `state`."""
        for entry in self._journal.read():
            self.state.apply(entry)

    def identity(self, key: Key) -> tuple[Identity, Verdict] | None:
        """Return an identity and the verdict on it, None if it does not exist."""
        identity = self.runtime.store.read(Identity, key)
        return (identity, self.runtime.observer.judge(identity)) if identity else None

    def launch(self, *arguments: str) -> None:
        """Start a launcher whose progress the user sees.

        It gets a session of its own, so that Ctrl-C reaches it once, through `close`: a second one means to hurry.
        """
        self.launcher = self._start("launch", *arguments)

    def resume(self, run: str) -> None:
        """Start another launcher of a run."""
        self.launcher = self._start("resume", run)

    def command(self, *arguments: str) -> str:
        """Run a garrison command and return its stdout."""
        return subprocess.run([*GARRISON, *arguments], env=dict(self.runtime.environ), cwd=self.folder, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False).stdout.rstrip()

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*GARRISON, *arguments], env=dict(self.runtime.environ), cwd=self.folder,
                                stdin=subprocess.DEVNULL, start_new_session=True)

    # --------------------------------------------------------------------------------------------------- ending

    def close(self) -> list[str]:
        """Leave nothing running, gracefully if possible; returns the processes that had to be killed."""
        if self.launcher is not None and self.launcher.poll() is None:
            self._wait(self.launcher)
        if self._is_any_alive():  # the launcher was dead just then
            self._wait(self._start("stop", RUN), terminate=False)
        killed = self._kill_remaining()
        terminal, _ = choose_terminal("auto", self.runtime.home)
        for session in terminal.sessions():
            terminal.close(session)
        terminal.shutdown()
        return killed

    def _wait(self, child: subprocess.Popen[bytes], *, terminate: bool = True) -> None:
        """Wait for a child; TERM is sent first (`terminate`), and again at each further interrupt, which hurries it."""
        interrupts = self.interrupts.count
        if terminate:
            child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT
        while child.poll() is None and time.monotonic() < deadline:
            if self.interrupts.count > interrupts:
                interrupts = self.interrupts.count
                child.send_signal(signal.SIGTERM)
            time.sleep(0.02)

    def _is_any_alive(self) -> bool:
        identities, _ = self.runtime.store.list(Identity)
        return any(self.runtime.observer.judge(identity).living for identity in identities)

    def _kill_remaining(self) -> list[str]:
        """Kill every process with a marker of this home, after two seconds in which it may end by itself."""
        deadline = time.monotonic() + 2
        while (remaining := self._marked_processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for row in remaining:
            self.runtime.processes.send(row.pid, row.ticks, signal.SIGKILL)
        return [f"{row.comm} (pid {row.pid}, {row.marker})" for row in remaining]

    def _marked_processes(self) -> list[processes.ProcessRow]:
        return [row for row in processes.list_processes()
                if row.marker and row.marker.startswith(f"{self.runtime.home}:")]


@contextmanager
def counted_interrupts() -> Iterator[Interrupts]:
    """Count Ctrl-C, TERM and HUP (a closed terminal) instead of dying of them."""
    interrupts = Interrupts()

    def count(_signum: int, _frame: object) -> None:
        interrupts.count += 1

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous: list[tuple[int, Callable[..., object] | int | None]] = [
        (signum, signal.signal(signum, count)) for signum in signals]
    try:
        yield interrupts
    finally:
        for signum, handler in previous:
            signal.signal(signum, handler)


NEWS = "news"
"""Link to the repository's git directory, through which agents in the sandbox see what has started and landed."""


def new_folder() -> Path:
    """Create a folder in the temporary directory."""
    return Path(tempfile.mkdtemp(prefix="garrison-demo-")).resolve()


def create_sandbox(folder: Path, interrupts: Interrupts, variables: Mapping[str, str] | None = None) -> Sandbox:
    """Create a sandbox in `folder` with a fresh repository; `variables` are added to the environment."""
    repo = folder / "ledger"
    shutil.copytree(DEMO / "ledger", repo, ignore=shutil.ignore_patterns("__pycache__", "*.crew-tmp"))
    git = Git(repo)
    git.run("init", "-q", "-b", "main")
    git.run("add", "-A")
    git.run("-c", "user.name=demo", "-c", "user.email=demo@localhost", "commit", "--no-verify", "-qm", "Begin")
    (folder / NEWS).symlink_to(repo / ".git")
    (folder / "home").mkdir(mode=0o700)
    read = ", ".join(json.dumps(str(path)) for path in (DEMO, folder / NEWS))
    (folder / "home/config.toml").write_text(f"[sandbox]\nread = [{read}]\n")
    return Sandbox(folder, Runtime.real(folder / "home", {**environment(folder), **(variables or {})}), interrupts)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of the demonstration's processes.

    Its `python3` is the one that runs garrison, since the user's PATH may have none.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("GARRISON_", "GIT_"))
                 or name == MODE_VARIABLE}
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])
    return {**inherited, "PATH": path, "GARRISON_HOME": str(folder / "home"), "GARRISON_TREES": str(folder / "trees"),
            "XDG_STATE_HOME": str(folder / "xdg"), "GARRISON_DEMO_CREW": str(DEMO / "agents"),
            "GARRISON_DEMO_NEWS": str(folder / NEWS)}


def remove_or_report(folder: Path, *, keep: bool) -> None:
    """Remove the folder, or say where it is kept."""
    if keep:
        click.echo(f"\nKept: {folder} (ledger: the project; home: garrison's state, see state/README.md)")
        return
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        click.echo(f"\n{folder} could not be removed completely; remove it by hand", err=True)
    else:
        click.echo("\nThe folder with the project, garrison's records and the agents' output is removed; "
                   "--keep leaves it.")


# ------------------------------------------------------------------------------------------ commands to type next


def garrison_command(*, elsewhere: bool = False) -> str:
    """Return how to type `garrison` here, or `elsewhere`: the checkout's script, else the installed program."""
    source = checkout()
    if source is not None:
        scripts = source / "scripts"
        return f"{shlex.quote(str(scripts)) if elsewhere else shell_path(scripts)}/cli.py"
    return "garrison" if shutil.which("garrison") else f"{shlex.quote(sys.executable)} -P -m garrison.cli.main"


def demo_command() -> str:
    """Return how to type the demonstration itself here."""
    source = checkout()
    return f"{shell_path(source / 'scripts')}/demo" if source is not None else f"{garrison_command()} demo"


def shell_path(path: Path) -> str:
    """Return a path as one would type it in the current directory."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
