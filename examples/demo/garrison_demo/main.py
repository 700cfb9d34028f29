"""Demonstration with command agents: seven agents change a small project while each process is killed once.

The exit code is 0 only if everything that was promised happened.
"""

from __future__ import annotations

import signal
import time

import click

from garrison.cli.output import INTERRUPTED
from garrison_demo.chaos import PLAN, Chaos, PlannedKill
from garrison_demo.report import OWN_PROJECT, list_rework, list_shortfalls, next_steps, print_report
from garrison_demo.sandbox import (
    DEMO,
    MAX_AGENTS,
    RUN,
    Sandbox,
    counted_interrupts,
    create_sandbox,
    garrison_command,
    new_folder,
    remove_or_report,
)

TIMEOUT = 240.0
"""Seconds after which the demonstration fails."""
POLL = 0.01
"""Seconds between two steps."""


def run_demo(*, chaos: bool, keep: bool, terminal: str) -> int:
    """Run the demonstration in a new folder; returns the exit code."""
    code = 1
    with counted_interrupts() as interrupts:
        folder = new_folder()
        try:
            code = play(create_sandbox(folder, interrupts), PLAN if chaos else (), terminal, keep=keep)
        except BrokenPipeError:
            code = INTERRUPTED  # the reader of our output has gone
            raise
        finally:
            remove_or_report(folder, keep=keep or (code not in (0, INTERRUPTED) and not interrupts.count))
    return code


def play(sandbox: Sandbox, plan: tuple[PlannedKill, ...], terminal: str, *, keep: bool) -> int:
    """Launch the run, watch it to its end and report; returns the exit code."""
    chaos = Chaos(plan, lambda line, colour: click.secho(line, fg=colour))
    click.echo(f"{sandbox.repo} is a copy of examples/demo/ledger; seven agents work on it.")
    try:
        sandbox.launch(str(DEMO / "demo.dot"), "--target-dir", str(sandbox.repo), "--run", RUN,
                       "--max-agents", str(MAX_AGENTS), "--terminal", terminal)
        code = watch(sandbox, chaos)
    finally:
        for process in sandbox.close():
            click.echo(f"had to be killed: {process}", err=True)
    sandbox.refresh()
    return conclude(sandbox, chaos, code, keep=keep)


def watch(sandbox: Sandbox, chaos: Chaos) -> int:
    """Carry out the planned kills, start a new launcher for a killed one, wait for the end; returns the exit code."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        if sandbox.interrupts.count:
            click.echo("stopping gracefully; Ctrl-C again to hurry", err=True)
            return INTERRUPTED
        sandbox.refresh()
        chaos.step(sandbox)
        code = sandbox.launcher.poll() if sandbox.launcher else 0
        if code == -signal.SIGKILL:
            click.echo(f"          resume {RUN}: the new launcher adopts every process and prints the run "
                       "from its start")
            sandbox.resume(RUN)
        elif code is not None:
            return code
        time.sleep(POLL)
    click.echo(f"the demonstration did not end within {TIMEOUT:.0f} s", err=True)
    return 1


def conclude(sandbox: Sandbox, chaos: Chaos, code: int, *, keep: bool) -> int:
    """Print the report; returns `code`, or 1 where a promise was not kept."""
    rework = list_rework(sandbox)
    print_report(sandbox, rework, chaos)
    shortfalls = [] if code == INTERRUPTED else list_shortfalls(sandbox.state, rework, chaos)
    for line in shortfalls:
        click.secho(f"NOT SHOWN: {line}", fg="red")
    code = code or int(bool(shortfalls))
    kept = keep or code not in (0, INTERRUPTED)
    click.echo("\nWhat to try next")
    for command in next_steps(sandbox, kept=kept, over=sandbox.state.status in ("done", "failed")):
        click.echo(f"  {command}")
    click.echo(OWN_PROJECT.format(garrison=garrison_command(elsewhere=True)))
    return code
