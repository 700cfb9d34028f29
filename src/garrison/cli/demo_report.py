"""What the demonstration showed: nodes, attempts, deaths, history, what to try next; and what it failed to show.

The rule of this room: everything is read from the records and from git after the end, and what was promised but did
not happen is said first.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import click

from garrison.cli.demo_chaos import Chaos, who
from garrison.cli.demo_stage import RUN, Stage
from garrison.cli.output import print_table
from garrison.processes.run_state import RunState
from garrison.records.identity import Identity
from garrison.records.journal import read_all
from garrison.records.names import Key
from garrison.system.git import Git

PROMISED = {"gate": "no attempt broke the merged tree", "conflict": "no attempt met a conflict"}
"""Kind of rework that must be seen → what to say where it was not."""
_EXPLAINS = ("Error:", "error:")
"""What the line of a log that explains a failure holds."""


@dataclass(frozen=True)
class Rework:
    """An attempt that was not good enough: `kind` is acceptance, gate or conflict."""

    node: str
    attempt: int
    kind: str
    reason: str


def reworks(stage: Stage) -> list[Rework]:
    """Every attempt that ended in a new one, as the runners' journals tell it."""
    found = []
    for name in stage.state.nodes:
        for entry in read_all(stage.world.files(RUN).layer_journal(f"runner-{name}")):
            if entry.kind == "fact" and entry.data["name"] == "failed":
                found.append(Rework(name, entry.data["attempt"], entry.data.get("kind", ""), entry.data["value"]))
    return found


def shortfall(state: RunState, done: list[Rework], chaos: Chaos) -> list[str]:
    """What was promised and did not happen, a line each; none is a demonstration as it should be. Pure."""
    lines = [f"{name} is {node.status}, not merged" + (f": {brief(node.reason)}" if node.reason else "")
             for name, node in state.nodes.items() if node.status != "validated"]
    lines += [words for kind, words in PROMISED.items() if all(one.kind != kind for one in done)]
    for blow in chaos.missing():
        struck = any(death.moment == blow.moment for death in chaos.deaths)
        lines.append(f"the {blow.role} was killed, but no successor was needed" if struck else
                     f"the {blow.role} was not killed: the moment ({blow.moment}) was not found")
    return lines if state.nodes else ["no run began"]


def brief(reason: str) -> str:
    """A reason in one line: its first, and of a log's tail the last that names an error. Pure."""
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    errors = [line for line in lines[1:] if any(word in line for word in _EXPLAINS)]
    return " … ".join([*lines[:1], *errors[-1:]])


def report(stage: Stage, done: list[Rework], chaos: Chaos) -> None:
    """Print what happened."""
    show_nodes(stage, done)
    if chaos.deaths:
        click.echo("\nKilled with -9")
        print_table(("layer", "when", "back after"), (
            (who(death.key), death.moment, told_back(death.back)) for death in chaos.deaths))
    show_landed(stage)


def show_nodes(stage: Stage, done: list[Rework]) -> None:
    """The nodes, and the attempts that were done again."""
    click.echo("\nNodes")
    print_table(("node", "status", "attempts", "lives", "merged as"), (
        (name, "merged" if node.status == "validated" else node.status, node.attempt, _lives(stage, name),
         node.commit[:10]) for name, node in stage.state.nodes.items()), empty="none was begun")
    if done:
        click.echo("\nAttempts that were not good enough")
        print_table(("node", "attempt", "stopped by", "because"),
                   ((one.node, one.attempt, one.kind or "its agent", brief(one.reason)) for one in done))


def show_landed(stage: Stage) -> None:
    """The target branch."""
    click.echo("\nWhat is on main (git log --first-parent)")
    for line in Git(stage.repo).run("log", "--first-parent", "--oneline", "main").out.splitlines():
        click.echo(f"  {line}")


def told_back(seconds: float | None) -> str:
    """How long somebody was gone. Pure."""
    return "never" if seconds is None else f"{seconds:.2f} s"


def _lives(stage: Stage, node: str) -> str:
    seen = {role: stage.world.store.read(Identity, Key(role, node, RUN)) for role in ("runner", "orchestrator")}
    return ", ".join(f"{role} {found.incarnation}" for role, found in seen.items() if found)


def next_steps(source: Path, stage: Stage, *, kept: bool, over: bool) -> list[str]:
    """Commands to try now, each of which works as it stands; `over`: the run has ended and cannot go on."""
    scripts = near(source / "scripts")
    if not kept:
        return [f"{scripts}/demo --keep", f"{scripts}/cli.py pipeline show {near(source / 'pipelines/demo.dot')}",
                f"{scripts}/cli.py launch --help"]
    home, repo = shlex.quote(str(stage.world.home)), shlex.quote(str(stage.repo))
    garrison = f"GARRISON_HOME={home} {scripts}/cli.py"
    crew = f"GARRISON_DEMO_CREW={shlex.quote(stage.world.environ['GARRISON_DEMO_CREW'])}"
    if not stage.state.nodes:
        return [f"{scripts}/demo --help", f"rm -r {shlex.quote(str(stage.folder))}"]
    if not over:
        return [f"{garrison} status {RUN}", f"{crew} {garrison} launch --resume {RUN}"]
    return [f"git -C {repo} log --graph --oneline", f"git -C {repo} for-each-ref refs/garrison/rescue",
            f"{garrison} status {RUN}", f"{garrison} logs add_monthly",
            f"(cd {repo} && python3 -m ledger -f sample.journal monthly expenses)",
            f"rm -r {shlex.quote(str(stage.folder))}"]


def near(path: Path) -> str:
    """A path as one would type it here."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
