"""`garrison demo --claude`: four Claude sessions on a small real project, two of them killed in the middle of a tool.

The real CLI works; a script plays the model, and no network is in reach: the program runs itself again inside
`garrison.testing.isolation` (a program of its own, like the model's server). With `live` a real model answers instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import click

from garrison.cli.demo_claude_deaths import Deaths
from garrison.cli.demo_claude_report import next_steps, report, shortfall
from garrison.cli.demo_claude_stage import ClaudeStage, configure, has_key, served
from garrison.cli.demo_stage import RUN, Interrupts, Stage, clear, listening, new_folder, prepare
from garrison.cli.output import INTERRUPTED
from garrison.config import find_home
from garrison.errors import Refused

ISOLATION = (sys.executable, "-P", "-m", "garrison.testing.isolation")
FOLDER = "GARRISON_DEMO_FOLDER"
"""Tells the program inside the isolation which folder the one outside has made."""
PATIENCE = {False: 240.0, True: 1800.0}
"""Seconds after which the demonstration is given up, by whether a real model answers."""
POLL = 0.02


def demo_claude(source: Path, *, live: bool, chaos: bool, keep: bool, terminal: str) -> int:
    """The whole demonstration; the exit code. Refused where nothing can be isolated, or a key is missing."""
    if live:
        return _live(source, chaos=chaos, keep=keep, terminal=terminal)
    if FOLDER not in os.environ:
        return _isolated(source, chaos=chaos, keep=keep, terminal=terminal)
    with listening() as interrupts:
        folder = Path(os.environ.pop(FOLDER))
        with served(source / "examples/claude_crew/model.yaml", folder / "requests.jsonl") as url:
            stage = prepare(source, folder, interrupts, {"ANTHROPIC_BASE_URL": url})
            configure(stage.world.home, {"set": {"CLAUDE_CODE_MAX_RETRIES": "1"}})
            return play(ClaudeStage(stage, live=False), source, chaos=chaos, terminal=terminal, keep=keep)


def _isolated(source: Path, *, chaos: bool, keep: bool, terminal: str) -> int:
    """Run this demonstration again where only the loopback device is."""
    probe = subprocess.run([*ISOLATION, "--", "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        raise Refused(f"the demonstration with the Claude CLI runs only without a network: {probe.stderr.strip()}")
    options = [*([] if chaos else ["--no-chaos"]), *(["--keep"] if keep else []), "--terminal", terminal]
    with listening() as interrupts:
        folder, code = new_folder(), 1
        try:
            code = _wait(subprocess.Popen([
                *ISOLATION, "--folder", str(folder / "isolated"), "--env", f"{FOLDER}={folder}", "--", sys.executable,
                "-P", "-m", "garrison.cli.main", "demo", "--claude", *options], start_new_session=True), interrupts)
        finally:
            clear(folder, keep=keep or (code not in (0, INTERRUPTED) and not interrupts.count))
    return code


def _wait(child: subprocess.Popen[bytes], interrupts: Interrupts) -> int:
    """Until it has ended. It is in a session of its own: each interrupt reaches it once, through us."""
    told = 0
    while child.poll() is None:
        if interrupts.count > told:
            told += 1
            child.terminate()
        time.sleep(POLL)
    return child.returncode


def _live(source: Path, *, chaos: bool, keep: bool, terminal: str) -> int:
    """With the person's own key, or the log-in in their garrison's home."""
    home = find_home()
    if not has_key(os.environ, home):
        raise Refused("--live asks a real model: set ANTHROPIC_API_KEY, or log in with `garrison login`")
    with listening() as interrupts:
        folder, code = new_folder(), 1
        try:
            stage = prepare(source, folder, interrupts, {})
            own = {} if os.environ.get("ANTHROPIC_API_KEY") else {"set": {"CLAUDE_CONFIG_DIR": str(home / "claude")}}
            configure(stage.world.home, {"budget_run": 5.0, **own})
            code = play(ClaudeStage(stage, live=True), source, chaos=chaos, terminal=terminal, keep=keep)
        finally:
            clear(folder, keep=keep or (code not in (0, INTERRUPTED) and not interrupts.count))
    return code


def play(crew: ClaudeStage, source: Path, *, chaos: bool, terminal: str, keep: bool) -> int:
    """Launch, watch, report; the exit code is 0 only for a whole demonstration."""
    stage, deaths = crew.stage, Deaths(crew, planned=chaos)
    click.echo(crew.introduction)
    try:
        stage.launch(str(source / "pipelines/demo_claude.dot"), "--target-dir", str(stage.repo), "--run", RUN,
                     "--max-agents", "3", "--terminal", terminal)
        code = watch(crew, deaths)
    finally:
        for one in stage.end():
            click.echo(f"had to be killed: {one}", err=True)
    stage.look()
    report(crew, deaths)
    lacking = [] if code == INTERRUPTED else shortfall(crew, deaths)
    for line in lacking:
        click.secho(f"NOT SHOWN: {line}", fg="red")
    code = code or int(bool(lacking))
    click.echo("\nWhat to try next")
    for command in next_steps(crew, source, kept=keep or code not in (0, INTERRUPTED)):
        click.echo(f"  {command}")
    return code


def watch(crew: ClaudeStage, deaths: Deaths) -> int:
    """Kill and answer when the time has come, until the launcher's end; its exit code."""
    stage: Stage = crew.stage
    until = time.monotonic() + PATIENCE[crew.live]
    while time.monotonic() < until:
        if stage.interrupts.count:
            click.echo("stopping in order; again to hurry", err=True)
            return INTERRUPTED
        stage.look()
        deaths.step()
        crew.answer_questions()
        code = stage.launcher.poll() if stage.launcher else 0
        if code is not None:
            return code
        time.sleep(POLL)
    click.echo(f"the demonstration did not end within {PATIENCE[crew.live]:.0f} s", err=True)
    return 1
