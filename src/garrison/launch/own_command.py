"""garrison's own commands, as its page, its schedules and its MCP server give them, and what is read of their output.

Each is a process of its own that works on a home as it would in a terminal, so that none of them can do what the
terminal cannot.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from garrison.system.command import Done, run
from garrison.system.machine import garrison_argv
from garrison.system.terminal_text import clean
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LONGEST = 500
"""Characters of a message."""


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
    """Return the words and the environment with which one of our commands works on a home."""
    return garrison_argv(*words, home=home), {**os.environ, "GARRISON_HOME": str(home)}


def run_command(home: Path, words: Sequence[str], seconds: float, *, cwd: str, text: str | None = None,
                variables: Mapping[str, str] | None = None) -> Done:
    """Run one of our commands on a home to its end, or for at most `seconds`.

    Args:
        text: its standard input; None: nothing.
        variables: variables that it has besides ours.
    """
    argv, environment = program(home, words)
    return run(argv, seconds, env={**environment, **(variables or {})}, cwd=cwd, text=text)


def last_message(err: str, out: str = "") -> str:
    """Return the last line of a command's messages, or else of its output, without our name; '' for none."""
    lines = [line for line in err.splitlines() if line.strip()] or [line for line in out.splitlines() if line.strip()]
    return clean(lines[-1])[:LONGEST].removeprefix("garrison: ") if lines else ""


def failure_of(code: int | None, err: str, out: str = "", why: str = "") -> str:
    """Return why a command failed: why it was ended, else its last message, else its exit code."""
    return why or last_message(err, out) or f"exit code {code} and no message"


def runs_in(out: str) -> list[str]:
    """Return the runs that the JSON of a command says it began."""
    try:
        found = json.loads(out)
    except ValueError:
        return []
    return [str(each["run"]) for each in (found if isinstance(found, list) else [found])
            if isinstance(each, dict) and each.get("run")]
