"""`garrison demo`: seven command agents change a small real project while every layer is killed once.

Everything happens in a folder of its own (demo_stage), who dies when is a table (demo_chaos), and what came of it is
told at the end (demo_report). Exit 0 only if all that was promised was seen.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import click

from garrison.cli.demo_chaos import CHAOS, Blow, Chaos
from garrison.cli.demo_claude import demo_claude
from garrison.cli.demo_report import next_steps, report, reworks, shortfall
from garrison.cli.demo_stage import AGENTS, RUN, Stage, clear, listening, new_folder, prepare
from garrison.cli.output import INTERRUPTED
from garrison.config import checkout
from garrison.errors import Refused, UsageError

PATIENCE = 240.0
"""Seconds after which the demonstration is given up."""
POLL = 0.01
"""Seconds between two looks."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--no-chaos", is_flag=True, help="Kill nobody.")
@click.option("--keep", is_flag=True, help="Keep the demonstration's folder, to look around in it.")
@click.option("--terminal", type=click.Choice(["auto", "tmux", "process"]), default="auto", show_default=True)
@click.option("--claude", is_flag=True, help="Four sessions of the real Claude CLI; a script plays the model, offline.")
@click.option("--live", is_flag=True, help="With --claude: a real model answers, paid by your own key.")
def demo(no_chaos: bool, keep: bool, terminal: str, claude: bool, live: bool) -> None:
    """Watch a garrison work on a small real project while each of its layers is killed once.

    One of the tasks breaks the merged tree at first and one meets a conflict: both are done again, knowing why. The
    folder is removed at the end, unless --keep is given or something went wrong.
    """
    source = checkout()
    if source is None or not (source / "examples").is_dir():
        raise Refused("the demonstration needs garrison's source checkout; run scripts/demo there")
    if live and not claude:
        raise UsageError("--live goes with --claude")
    if claude:
        raise SystemExit(demo_claude(source, live=live, chaos=not no_chaos, keep=keep, terminal=terminal))
    code = 1
    with listening() as interrupts:
        folder = new_folder()
        try:
            code = play(prepare(source, folder, interrupts), source, () if no_chaos else CHAOS, terminal, keep=keep)
        except BrokenPipeError:
            code = INTERRUPTED  # nobody reads any more
            raise
        finally:
            clear(folder, keep=keep or (code not in (0, INTERRUPTED) and not interrupts.count))
    raise SystemExit(code)


def play(stage: Stage, source: Path, blows: tuple[Blow, ...], terminal: str, *, keep: bool) -> int:
    """The whole demonstration; the exit code."""
    chaos = Chaos(blows, lambda line, colour: click.secho(line, fg=colour))
    click.echo(f"A copy of examples/ledger is in {stage.repo}; seven agents are let loose on it.")
    try:
        stage.launch(str(source / "pipelines" / "demo.dot"), "--target-dir", str(stage.repo), "--run", RUN,
                     "--max-agents", str(AGENTS), "--terminal", terminal)
        code = watch(stage, chaos)
    finally:
        for one in stage.end():
            click.echo(f"had to be killed: {one}", err=True)
    stage.look()
    return conclude(source, stage, chaos, code, keep=keep)


def watch(stage: Stage, chaos: Chaos) -> int:
    """Strike when the time has come, bring a killed launcher back, wait for the end; returns the exit code."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if stage.interrupts.count:
            click.echo("stopping in order; again to hurry", err=True)
            return INTERRUPTED
        stage.look()
        chaos.step(stage)
        code = stage.launcher.poll() if stage.launcher else 0
        if code == -signal.SIGKILL:
            click.echo(f"          launch --resume {RUN}: the new launcher adopts them all and tells the run from its "
                       "beginning")
            stage.launch("--resume", RUN)
        elif code is not None:
            return code
        time.sleep(POLL)
    click.echo(f"the demonstration did not end within {PATIENCE:.0f} s", err=True)
    return 1


def conclude(source: Path, stage: Stage, chaos: Chaos, code: int, *, keep: bool) -> int:
    """Report, and judge: the exit code is 0 only for a whole demonstration."""
    done = reworks(stage)
    report(stage, done, chaos)
    lacking = [] if code == INTERRUPTED else shortfall(stage.state, done, chaos)
    for line in lacking:
        click.secho(f"NOT SHOWN: {line}", fg="red")
    code = code or int(bool(lacking))
    kept = keep or code not in (0, INTERRUPTED)
    click.echo("\nWhat to try next")
    for command in next_steps(source, stage, kept=kept, over=stage.state.status in ("done", "failed")):
        click.echo(f"  {command}")
    return code

