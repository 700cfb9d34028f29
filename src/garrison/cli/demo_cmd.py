"""`garrison demo`: four command agents change a small real project while every layer is killed once.

Everything happens in a folder of its own: a copy of examples/ledger as a fresh repository, a home, worktrees. At the
end it tells what died, how fast it came back, what was merged, and where to look.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from garrison.errors import Refused
from garrison.layers.launching import state_of
from garrison.layers.world import World
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key, launcher
from garrison.settings import checkout
from garrison.supervise.verdict import Verdict
from garrison.system.git import Git

RUN = "demo"
PATIENCE = 120.0
"""Seconds after which the demonstration is given up."""


@dataclass
class Death:
    """One kill: who, of which life, when, and how long until a successor was active (seconds)."""

    key: Key
    incarnation: int
    at: float
    back: float | None = None


@dataclass
class Stage:
    """The demonstration's folder and what happens in it."""

    folder: Path
    world: World
    deaths: list[Death] = field(default_factory=list)
    launcher: subprocess.Popen[bytes] | None = None

    @property
    def repo(self) -> Path:
        """The copy of the example project."""
        return self.folder / "ledger"

    def identity(self, key: Key) -> tuple[Identity, Verdict] | None:
        """An identity and the verdict on it, None if it never lived."""
        found = self.world.store.read(Identity, key)
        return (found, self.world.observer.judge(found)) if found else None

    def launch(self, *arguments: str) -> None:
        """Start a launcher whose progress the person sees."""
        argv = [sys.executable, "-m", "garrison.cli.main", "launch", *arguments]
        self.launcher = subprocess.Popen(argv, env=dict(self.world.environ), cwd=self.folder)


@click.command()
@click.option("--no-chaos", is_flag=True, help="Kill nobody.")
@click.option("--clean", is_flag=True, help="Remove the demonstration's folder at the end.")
@click.option("--terminal", type=click.Choice(["auto", "tmux", "process"]), default="auto", show_default=True)
def demo(no_chaos: bool, clean: bool, terminal: str) -> None:
    """Watch a garrison work on a small real project while each of its layers is killed once."""
    source = checkout()
    if source is None or not (source / "examples").is_dir():
        raise Refused("the demonstration needs garrison's source checkout; run scripts/demo there")
    folder = Path(tempfile.mkdtemp(prefix="garrison-demo-"))
    stage = prepare(source, folder)
    console = Console()
    console.print(f"A copy of examples/ledger is in {stage.repo}; four agents are let loose on it.")
    graph = source / "pipelines" / "demo.dot"
    try:
        stage.launch(str(graph), "--target-dir", str(stage.repo), "--run", RUN, "--terminal", terminal)
        code = watch(stage, [] if no_chaos else list(CHAOS), console)
    finally:
        _end(stage)
    report(stage, console)
    if clean:
        shutil.rmtree(folder, ignore_errors=True)
    raise SystemExit(code)


def prepare(source: Path, folder: Path) -> Stage:
    """The folder with a fresh repository, and an environment in which nothing of the person's garrison is seen."""
    shutil.copytree(source / "examples" / "ledger", folder / "ledger", ignore=shutil.ignore_patterns("__pycache__"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GARRISON_")}
    environ |= {"GARRISON_HOME": str(folder / "home"), "GARRISON_TREES": str(folder / "trees"),
                "XDG_STATE_HOME": str(folder / "xdg"), "GARRISON_DEMO_CREW": str(source / "examples" / "crew")}
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"],
                      ["-c", "user.name=demo", "-c", "user.email=demo@localhost", "commit", "-qm", "Begin"]):
        subprocess.run(["git", *arguments], cwd=folder / "ledger", check=True)
    return Stage(folder, World.real(folder / "home", environ))


@dataclass(frozen=True)
class Blow:
    """One planned kill: whom, and when it may fall."""

    key: Key
    when: Callable[[Stage], bool]


def _committed(node: str) -> Callable[[Stage], bool]:
    """When the node's agent has committed something that a successor must not lose."""

    def ready(stage: Stage) -> bool:
        hook = stage.world.store.read(Hook, Key("orchestrator", node, RUN))
        return hook is not None and hook.last_committed_node is not None

    return ready


def _always(stage: Stage) -> bool:
    return True


CHAOS = (
    Blow(Key("orchestrator", "add_csv_export", RUN), _committed("add_csv_export")),
    Blow(Key("runner", "add_currency", RUN), _committed("add_currency")),
    Blow(Key("guardian", "demo", RUN), _committed("add_currency")),
    Blow(launcher(RUN), _committed("annotate_returns")),
    Blow(Key("processor", "demo", RUN), _always),
)


def watch(stage: Stage, blows: list[Blow], console: Console) -> int:
    """Strike when the time has come, bring a killed launcher back, wait for the end; returns the exit code."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        _notice_successors(stage, console)
        if blows and all(death.back is not None for death in stage.deaths):
            blows = _strike(stage, blows, console)
        code = stage.launcher.poll() if stage.launcher else 0
        if code == -signal.SIGKILL:
            stage.launch("--resume", RUN)
        elif code is not None:
            return code
        time.sleep(0.005)
    console.print("the demonstration did not end in time", style="red")
    return 1


def _strike(stage: Stage, blows: list[Blow], console: Console) -> list[Blow]:
    """Kill the first one whose time has come; returns the blows that are left."""
    for blow in blows:
        seen = stage.identity(blow.key)
        if seen is None or seen[1].state != "alive" or seen[0].status != "active" or not blow.when(stage):
            continue
        identity = seen[0]
        assert identity.pid is not None
        assert identity.start_ticks is not None
        stage.world.processes.send(identity.pid, identity.start_ticks, signal.SIGKILL)
        stage.deaths.append(Death(blow.key, identity.incarnation, time.monotonic()))
        console.print(f"          kill -9 {blow.key.full.partition('@')[0]} (pid {identity.pid})", style="bold red")
        return [other for other in blows if other is not blow]
    return blows


def _notice_successors(stage: Stage, console: Console) -> None:
    for death in stage.deaths:
        if death.back is None:
            found = stage.world.store.read(Identity, death.key)
            if found and found.incarnation > death.incarnation and found.status != "starting":
                death.back = time.monotonic() - death.at
                who = death.key.full.partition("@")[0]
                console.print(f"          {who} is back as life {found.incarnation} after {death.back:.2f} s",
                              style="green")


def _end(stage: Stage) -> None:
    """Leave nothing running, whatever happened."""
    if stage.launcher is not None and stage.launcher.poll() is None:
        stage.launcher.send_signal(signal.SIGTERM)
        stage.launcher.wait(60)


def report(stage: Stage, console: Console) -> None:
    """Nodes, deaths, history, and where to look."""
    state = state_of(stage.world, RUN)
    nodes = Table("node", "status", "attempt", "lives of its orchestrator", "merged as", title="Nodes")
    for name, node in state.nodes.items():
        seen = stage.world.store.read(Identity, Key("orchestrator", name, RUN))
        nodes.add_row(name, node.status, str(node.attempt), str(seen.incarnation if seen else 0), node.commit[:10])
    deaths = Table("killed", "life", "back after", title="Deaths")
    for death in stage.deaths:
        back = f"{death.back:.2f} s" if death.back is not None else "not needed any more"
        deaths.add_row(death.key.full.partition("@")[0], str(death.incarnation), back)
    console.print(nodes)
    console.print(deaths)
    console.print("What is on main:")
    for line in Git(stage.repo).run("log", "--graph", "--oneline", "main").out.splitlines():
        console.print("  " + line, markup=False, highlight=False)
    home = stage.folder / "home"
    console.print(f"\nThe project: {stage.repo}\nWhat garrison remembers: {home} (state/README.md explains each file)\n"
                  f"What the agents printed: {home / 'runs' / RUN / 'nodes'}")
