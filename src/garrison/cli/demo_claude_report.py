"""What came of the demonstration with Claude sessions: a table of each kind, and what was promised but not seen."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from garrison.cli.demo_claude_deaths import Deaths
from garrison.cli.demo_claude_stage import ClaudeStage
from garrison.cli.demo_report import Rework, brief, near, reworks, show_landed, show_nodes, told_back
from garrison.cli.demo_stage import RUN
from garrison.cli.output import print_table

REFUSED = "the validator refused it"
"""How the reason of an attempt begins whose work another session did not accept."""


def report(crew: ClaudeStage, deaths: Deaths) -> None:
    """Print what happened."""
    show_nodes(crew.stage, reworks(crew.stage))
    if deaths.done:
        click.echo("\nKilled with -9, each while a tool ran")
        print_table(("node", "who", "resumed after"),
                   [(one.node, one.who, told_back(one.back)) for one in deaths.done])
    show_landed(crew.stage)
    click.echo(f"\nWhat it cost (garrison cost {RUN})" + ("" if crew.live else ", by the made-up tokens of the script"))
    click.echo(crew.stage.command("cost", RUN))


def shortfall(crew: ClaudeStage, deaths: Deaths) -> list[str]:
    """What was promised and did not happen, a line each. A real model promises less: it need not ask or err."""
    nodes = crew.stage.state.nodes
    lines = [f"{name} is {node.status}, not merged" + (f": {brief(node.reason)}" if node.reason else "")
             for name, node in nodes.items() if node.status != "validated"] or ([] if nodes else ["no run began"])
    return lines if crew.live or not nodes else [
        *lines, *unseen(reworks(crew.stage), list(crew.answered.values()), deaths.missing())]


def unseen(done: list[Rework], answered: list[str], missing: list[str]) -> list[str]:
    """What a script was to show and did not. Pure."""
    lines = [f"no session of {node} was killed and resumed" for node in missing]
    if not answered:
        lines.append("nobody asked a question")
    if not any(one.reason.startswith(REFUSED) for one in done):
        lines.append("the validator refused nothing")
    return lines


def next_steps(crew: ClaudeStage, source: Path, *, kept: bool) -> list[str]:
    """Commands to try now, each of which works as it stands."""
    scripts = near(source / "scripts")
    if not kept:
        return [f"{scripts}/demo --claude --keep", f"{scripts}/cli.py pipeline show "
                f"{near(source / 'pipelines/demo_claude.dot')}", f"{near(source / 'examples/scripted_model/try')}"]
    stage, folder = crew.stage, shlex.quote(str(crew.stage.folder))
    garrison = f"GARRISON_HOME={shlex.quote(str(stage.world.home))} {scripts}/cli.py"
    if not stage.state.nodes:
        return [f"{scripts}/demo --help", f"rm -r {folder}"]
    attempt = shlex.quote(str(stage.world.files(RUN).attempt("payees", 1) / "claude"))
    return [f"{garrison} status {RUN}", f"{garrison} logs payees", f"{garrison} cost {RUN} --by model",
            f"ls {attempt}", f"git -C {shlex.quote(str(stage.repo))} log --graph --oneline", f"rm -r {folder}"]
