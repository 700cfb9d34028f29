"""Run garrison's own commands for its page, schedules and MCP server, and read their output.

Each runs as a separate process on a home, as in a terminal, so that none can do more than a terminal can.

An external trigger of a run (a due time, a request of an MCP client) is a record with the run's id, and a process with
the record's life lock (`start_worker`). If that dies, another process takes over and finds the run by its id, or the
command that is still launching it (`begin_run`): each record starts one run.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from garrison.launch.claim import is_being_launched
from garrison.records.run import RunFiles
from garrison.system.command import Done, run, start_detached
from garrison.system.machine import garrison_argv
from garrison.system.terminal_text import clean
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LONGEST = 500
"""Maximum length of a message."""


class PlanRow(Value):
    """A task of a plan, as `garrison plan` shows and prints it."""

    node: str
    title: str
    needs: str
    files: str
    agent: str
    budget: float | None
    cost: str
    time: str


def program(home: Path, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and environment of one of our commands on a home."""
    return garrison_argv(*words, home=home), {**os.environ, "GARRISON_HOME": str(home)}


def run_command(home: Path, words: Sequence[str], seconds: float, *, cwd: str, text: str | None = None,
                variables: Mapping[str, str] | None = None) -> Done:
    """Run one of our commands on a home to its end, or for at most `seconds`.

    Args:
        text: its standard input; None: nothing.
        variables: environment variables in addition to ours.
    """
    argv, environment = program(home, words)
    return run(argv, seconds, env={**environment, **(variables or {})}, cwd=cwd, text=text)


class RunBegun(Value):
    """Result of a command that should start a run."""

    runs: tuple[str, ...] = ()
    problem: str = ""
    """Why it started none; '' if it did, or had nothing to start."""
    is_launching: bool = False
    """True if a command of a dead predecessor is launching the run."""


def begin_run(home: Path, run_id: str, words: Sequence[str], seconds: float, *, cwd: str, text: str | None = None,
              variables: Mapping[str, str] | None = None) -> RunBegun:
    """Start a run with one of our commands, whose arguments contain its id, unless a predecessor of this process has
    started it; other arguments: see `run_command`."""
    launch = RunFiles(home, run_id).launch
    if launch.exists():
        return RunBegun((run_id,))
    done = run_command(home, words, seconds, cwd=cwd, text=text, variables=variables)
    if (runs := runs_in(done.out)) or done.ok:
        return RunBegun(tuple(runs))
    # check again: a command that was killed, or timed out, may have created the run first
    if launch.exists():
        return RunBegun((run_id,))
    if is_being_launched(home, run_id):
        return RunBegun(is_launching=True)
    return RunBegun(problem=failure_of(done.code, done.err, why=done.why))


def start_worker(module: str, log: Path, *arguments: str) -> None:
    """Start the process of a module that completes a record; it outlives us."""
    start_detached([sys.executable, "-P", "-m", module, *arguments], log)


def last_message(err: str, out: str = "") -> str:
    """Return the last line of a command's messages, else of its output, without our name; '' for none."""
    lines = [line for line in err.splitlines() if line.strip()] or [line for line in out.splitlines() if line.strip()]
    return clean(lines[-1])[:LONGEST].removeprefix("garrison: ") if lines else ""


def failure_of(code: int | None, err: str, out: str = "", why: str = "") -> str:
    """Return why a command failed: why it was ended, else its last message, else its exit code."""
    return why or last_message(err, out) or f"exit code {code} and no message"


def runs_in(out: str) -> list[str]:
    """Return the started runs from the JSON output of a command."""
    try:
        found = json.loads(out)
    except ValueError:
        return []
    return [str(each["run"]) for each in (found if isinstance(found, list) else [found])
            if isinstance(each, dict) and each.get("run")]
