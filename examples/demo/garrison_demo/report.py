"""Report of the demonstration: nodes, attempts, kills, history, what to try next, and what it failed to show.

Everything is read from the records and from git after the end.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import click

from garrison.cli.output import print_table
from garrison.ends import RefusedBy
from garrison.records.identity import Identity
from garrison.records.journal import read_all
from garrison.records.names import Key
from garrison.run.state import RunState
from garrison.system.git import Git
from garrison_demo.chaos import Chaos, display_name
from garrison_demo.sandbox import DEMO, RUN, Sandbox, demo_command, garrison_command, shell_path

PROMISED_REWORK = {"gate": "no attempt broke the merged tree", "conflict": "no attempt met a conflict"}
"""Kind of rework that must happen → what to report where it did not."""
_ERROR_WORDS = ("Error:", "error:")
"""Marks of the log line that explains a failure."""


@dataclass(frozen=True)
class Rework:
    """Failed attempt that was followed by another; `kind` is acceptance, gate or conflict."""

    node: str
    attempt: int
    kind: str
    reason: str


def list_rework(sandbox: Sandbox) -> list[Rework]:
    """Return every failed attempt in the runners' journals."""
    rework = []
    for node in sandbox.state.nodes:
        for entry in read_all(sandbox.runtime.files(RUN).process_journal(f"runner-{node}")):
            if entry.kind == "fact" and entry.data["name"] == "failed":
                kind = entry.data.get("kind", "")
                rework.append(Rework(node, entry.data["attempt"], "conflict" if kind == RefusedBy.MOVED else kind,
                                     entry.data["value"]))
    return rework


def list_failed_nodes(state: RunState) -> list[str]:
    """Return a line for each node that did not land."""
    if not state.nodes:
        return ["no run started"]
    return [f"{name} is {node.status}, not landed" + (f": {summarize(node.reason)}" if node.reason else "")
            for name, node in state.nodes.items() if node.status != "validated"]


def list_shortfalls(state: RunState, rework: list[Rework], chaos: Chaos) -> list[str]:
    """Return a line for each promise that was not kept; none for a complete demonstration."""
    lines = list_failed_nodes(state)
    if not state.nodes:
        return lines
    lines += [text for kind, text in PROMISED_REWORK.items() if all(each.kind != kind for each in rework)]
    for planned in chaos.missing():
        killed = any(kill.moment == planned.moment for kill in chaos.kills)
        lines.append(f"the {planned.role} was killed, but no successor was needed" if killed else
                     f"the {planned.role} was not killed: its moment ({planned.moment}) did not occur")
    return lines


def summarize(reason: str) -> str:
    """Return a reason as one line: its first line, and the last one that names an error."""
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    errors = [line for line in lines[1:] if any(word in line for word in _ERROR_WORDS)]
    return " … ".join([*lines[:1], *errors[-1:]])


def print_report(sandbox: Sandbox, rework: list[Rework], chaos: Chaos) -> None:
    """Print what happened."""
    print_nodes(sandbox, rework)
    if chaos.kills:
        click.echo("\nKilled with -9")
        print_table(("process", "when", "back after"), (
            (display_name(kill.key), kill.moment, format_seconds(kill.back_after)) for kill in chaos.kills))
    print_history(sandbox)


def print_nodes(sandbox: Sandbox, rework: list[Rework]) -> None:
    """Print the nodes, and the attempts that failed."""
    click.echo("\nNodes")
    print_table(("node", "status", "attempts", "incarnations", "commit"), (
        (name, "landed" if node.status == "validated" else node.status, node.attempt, _incarnations(sandbox, name),
         node.commit[:10]) for name, node in sandbox.state.nodes.items()), empty="no node started")
    if rework:
        click.echo("\nFailed attempts")
        print_table(("node", "attempt", "failed at", "reason"),
                    ((each.node, each.attempt, each.kind or "its agent", summarize(each.reason)) for each in rework))


def print_history(sandbox: Sandbox) -> None:
    """Print the history of the target branch."""
    click.echo("\nHistory of main (git log --first-parent)")
    for line in Git(sandbox.repo).run("log", "--first-parent", "--oneline", "main").out.splitlines():
        click.echo(f"  {line}")


def format_seconds(seconds: float | None) -> str:
    """Return a duration; None is never."""
    return "never" if seconds is None else f"{seconds:.2f} s"


def _incarnations(sandbox: Sandbox, node: str) -> str:
    identities = {role: sandbox.runtime.store.read(Identity, Key(role, node, RUN))
                  for role in ("runner", "orchestrator")}
    return ", ".join(f"{role} {identity.incarnation}" for role, identity in identities.items() if identity)


OWN_PROJECT = "\nIn a project of your own\n  cd PROJECT && {garrison} init"
"""Offer at the end of a demonstration; apart from the commands that work as printed, for PROJECT is the reader's."""


def next_steps(sandbox: Sandbox, *, kept: bool, over: bool) -> list[str]:
    """Return commands to try, each of which works as printed.

    Args:
        kept: the demonstration's folder was kept.
        over: the run has ended and cannot be resumed.
    """
    garrison = garrison_command()
    if not kept:
        return [f"{demo_command()} --keep", f"{garrison} pipeline show {shell_path(DEMO / 'demo.dot')}",
                f"{garrison} launch --help"]
    home, repo = shlex.quote(str(sandbox.runtime.home)), shlex.quote(str(sandbox.repo))
    in_home = f"GARRISON_HOME={home} {garrison}"
    remove = f"rm -r {shlex.quote(str(sandbox.folder))}"
    if not sandbox.state.nodes:
        return [f"{demo_command()} --help", remove]
    if not over:
        agents = f"GARRISON_DEMO_CREW={shlex.quote(sandbox.runtime.environ['GARRISON_DEMO_CREW'])}"
        return [f"{in_home} status {RUN}", f"{agents} {in_home} resume {RUN}"]
    return [f"git -C {repo} log --graph --oneline", f"git -C {repo} for-each-ref refs/garrison/rescue",
            f"{in_home} status {RUN}", f"{in_home} logs add_monthly",
            f"(cd {repo} && python3 -m ledger -f sample.journal monthly expenses)", remove]
