"""What a person may do from the page: each is one of garrison's own commands, and what that says is shown as said.

The rule of this room: which words make which command is a table, and pure; the command runs as it would on a terminal,
in a process of its own, so that nothing is possible here that is not possible there.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from garrison.errors import Refused, UsageError
from garrison.system.async_command import run_to_end
from garrison.system.terminal_text import clean

SECONDS = 120.0
"""How long a command may take."""
TEXT = 8000
"""Characters of an answer at most: it becomes an argument."""
_ENTRY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,80}\Z")

T = TypeVar("T")
Words = Callable[[str, str, str], list[str]]
RUN: Mapping[str, Callable[[str], list[str]]] = {
    "stop": lambda run: ["stop", run],
    "resume": lambda run: ["launch", "--resume", run, "--detach"],
    "again": lambda run: ["launch", "--resume", run, "--again", "--detach"],
}
NODE: Mapping[str, Words] = {
    "respawn": lambda run, node, text: ["agents", "respawn", "--run", run, "--", node],
    "park": lambda run, node, text: ["agents", "park", "--run", run, f"--why={text}", "--", node],
    "unpark": lambda run, node, text: ["agents", "unpark", "--run", run, "--", node],
    "cancel": lambda run, node, text: ["agents", "cancel", "--run", run, f"--why={text}", "--", node],
    "answer": lambda run, node, text: ["answer", "--run", run, "--", node, text],
}
ENTRY: Mapping[str, Callable[[str], list[str]]] = {
    "hold": lambda entry: ["merge-queue", "hold", "--", entry],
    "unhold": lambda entry: ["merge-queue", "release", "--", entry],
    "cancel": lambda entry: ["merge-queue", "cancel", "--", entry],
    "retry": lambda entry: ["merge-queue", "retry", "--", entry],
}
QUEUE: Mapping[str, Sequence[str]] = {"pause": ["merge-queue", "pause"], "resume": ["merge-queue", "resume"]}
"""Action → the command's words."""


def of_run(run: str, body: Mapping[str, object]) -> list[str]:
    """The command of a run's action; UsageError for what is none."""
    return _known(RUN, body)(run)


def of_node(run: str, node: str, body: Mapping[str, object]) -> list[str]:
    """The command of a node's action (`text` with an answer, and with a parking if one likes)."""
    text = text_of(body, "text", must=body.get("action") == "answer")
    return _known(NODE, body)(run, node, text)


def of_gate(run: str, node: str, body: Mapping[str, object]) -> list[str]:
    """The command that answers a gate: by the label of a choice, or in words."""
    text = text_of(body, "choice", must=False) or text_of(body, "text", must=True)
    return NODE["answer"](run, node, text)


def of_entry(entry: str, body: Mapping[str, object]) -> list[str]:
    """The command of a merge entry's action."""
    if not _ENTRY.match(entry):
        raise UsageError("that names no merge entry")
    return _known(ENTRY, body)(entry)


def of_queue(repo: str, target: str, body: Mapping[str, object]) -> list[str]:
    """The command of a whole queue's action."""
    return [*_known(QUEUE, body), f"--repo-root={repo}", f"--target={target}"]


def _known(table: Mapping[str, T], body: Mapping[str, object]) -> T:
    action = body.get("action")
    if not isinstance(action, str) or action not in table:
        raise UsageError(f"say action, one of {', '.join(table)}")
    return table[action]


def text_of(body: Mapping[str, object], key: str, *, must: bool) -> str:
    """A text of a request; UsageError where it is missing or none that can be passed on."""
    text = body.get(key, "")
    if not isinstance(text, str) or "\0" in text or len(text) > TEXT:
        raise UsageError(f"{key} should be a text of at most {TEXT} characters")
    if must and not text.strip():
        raise UsageError(f"say {key}")
    return text


async def run_command(home: Path, words: Sequence[str]) -> str:
    """Run one of our commands; its last line. Refused, with that line, where it did not end well."""
    argv = [sys.executable, "-P", "-m", "garrison.cli.main", "--home", str(home), *words]
    code, out, err = await run_to_end(argv, SECONDS, {**os.environ, "GARRISON_HOME": str(home)}, cwd=str(home))
    said = (last_line(err) or last_line(out)).removeprefix("garrison: ")
    if code:
        raise Refused(said or "it did not work, and did not say why")
    return said if said and not said.startswith("{") else "done"  # `launch --detach` speaks JSON, to programs


def last_line(text: str) -> str:
    """The last line that says something, fit to be shown."""
    lines = [line for line in text.splitlines() if line.strip()]
    return clean(lines[-1])[:500] if lines else ""
