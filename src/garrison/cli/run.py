"""`garrison run`: one task, in words, as a run without a pipeline file."""

from __future__ import annotations

import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import click

from garrison.agents.claude.extra import INSTALL
from garrison.agents.registry import installed_agents
from garrison.cli.commands import Command
from garrison.cli.follow import follow_run
from garrison.cli.launch import announce_detached, create, serve_page, start_detached
from garrison.cli.launch_options import OPTION_GROUPS, launch_options, make_request
from garrison.cli.output import print_message
from garrison.config import find_home
from garrison.errors import Refused, UsageError
from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.graph import Edge, Graph, Node
from garrison.processes.launch_request import read_defaults
from garrison.processes.runtime import Runtime
from garrison.system.git import validate_repository

MAX_NAME = 32
"""Characters of a name made of a task's words."""
MAX_LABEL = 72
_TERMINALS = ("start", "exit")


_TASK = ("file", "command", "acceptance", "allow_empty")


@click.command(cls=Command, option_groups={"Task": _TASK, **OPTION_GROUPS}, everyday=(
    "file", "tasks", "command", "acceptance", "agent", "gate", "setup", "approve", "max_agents", "detach", "serve",
), examples=(
    ('garrison run "fix the flaky test in test_cache.py" --agent codex', "prints progress until it has landed"),
    ('garrison run "update the changelog" --detach', "the same in the background, with the configured agent"),
    ('garrison run "format the code" --command "ruff format ."', "a command does it"),
))
@click.argument("words", nargs=-1, metavar="TASK...|-")
@click.option("--file", "file", metavar="FILE", type=click.Path(path_type=Path),
              help="File with the task, for a long one; `-` reads it from standard input.")
@click.option("--command", metavar="CMD", help="Command that does the task, in place of an agent.")
@click.option("--acceptance", metavar="CMD", help="Command that accepts the work before it is queued.")
@click.option("--allow-empty", is_flag=True, help="Count a task that changes nothing as done, such as a question.")
@launch_options
def run(words: tuple[str, ...], file: Path | None, command: str | None, acceptance: str | None, home: str | None,
        target_dir: Path | None, agent: str | None, *, allow_empty: bool, detach: bool, dry_run: bool, serve: bool,
        as_json: bool, **options: Any) -> int | None:
    """Let one agent do TASK on the repository you are in, in a worktree of its own; land it if it passes the gate.

    Prints progress until the task has landed (exit code 0) or failed (1). Ctrl-C leaves the run in the background.
    """
    task = read_task(words, file)
    if not task:
        raise UsageError("the task is empty; say in words what the agent is to do")
    if len(words) == 1 and task.endswith(".dot"):
        raise UsageError(f"{task} is a pipeline's file; `garrison launch {task}` runs it")
    if serve and detach:
        raise UsageError("--serve ends with this command; with --detach, run `garrison serve` afterwards")
    runtime = Runtime.real(find_home(home))
    target = validate_repository(target_dir or Path.cwd())
    if agent is None and command is None and (read_defaults(runtime.home, target).agent or "command") == "command":
        raise Refused(f"which agent? {_installed(runtime)}; `garrison init` keeps your choice")
    text = task_graph(task, command, acceptance, allow_empty=allow_empty)
    created = create(runtime, make_request(Path(task_name(task)), target, text=text, agent=agent, **options),
                     dry_run=dry_run, as_json=as_json)
    if created is None:
        return None
    if serve:
        serve_page(runtime, created.run_id)
    pid = start_detached(runtime, created, ["--json"] if as_json else [])
    if detach:
        announce_detached(created.run_id, pid, as_json=as_json)
        return None
    print_message("Ctrl-C leaves it running in the background")
    return follow_run(runtime, created, as_json=as_json)


def read_task(words: tuple[str, ...], file: Path | None) -> str:
    """Return the task: these words, or what a file or standard input (`-`) holds."""
    if words and file is not None:
        raise UsageError("give the task in words or with --file, not both")
    source = Path("-") if words == ("-",) else file
    if source is None:
        return " ".join(words).strip()
    try:
        data = sys.stdin.buffer.read() if str(source) == "-" else source.read_bytes()
        return data.decode("utf-8-sig").strip()
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{'standard input' if str(source) == '-' else source} is not text in UTF-8") from error


def _installed(runtime: Runtime) -> str:
    names = installed_agents(runtime.home, runtime.environ.get("PATH", ""))
    if not names:
        return (f"none that garrison knows is installed here: `garrison agents presets` lists them, `{INSTALL}` brings "
                "Claude; or pass --command CMD")
    return f"pass --agent {' or --agent '.join(names)}, or --command CMD"


def task_name(task: str) -> str:
    """Return a node's name made of a task's first words. Pure."""
    plain = unicodedata.normalize("NFKD", task).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9]+", plain.lower())
    name = ""
    for word in words:
        longer = f"{name}_{word}" if name else word[:MAX_NAME]
        if len(longer) > MAX_NAME:
            break
        name = longer
    if not name or not name[0].isalpha() or name in _TERMINALS:
        name = f"task_{name}".rstrip("_")
    return name


def task_graph(task: str, command: str | None = None, acceptance: str | None = None, *, allow_empty: bool = False,
               ) -> str:
    """Return the graph of a run that does one task. Pure."""
    name = task_name(task)
    label = task if len(task) <= MAX_LABEL else f"{task[:MAX_LABEL - 1]}…"
    attributes = {"shape": "box", "label": label, "prompt": task, "command": command, "acceptance": acceptance,
                  "allow_empty": "true" if allow_empty else ""}
    start, end = _TERMINALS
    nodes = {start: {"shape": "Mdiamond"}, name: {key: value for key, value in attributes.items() if value},
             end: {"shape": "Msquare"}}
    return to_dot(Graph(id=name, attrs={"flow": "dag"},
                        nodes={node: Node(node, attrs) for node, attrs in nodes.items()},
                        edges=(Edge(start, name), Edge(name, end))))
