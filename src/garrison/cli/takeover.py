"""`garrison takeover NODE`: a person goes on in a node's session; its agent waits meanwhile."""

from __future__ import annotations

import signal
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from garrison.agents import registry
from garrison.agents.claude import cli_process
from garrison.agents.claude import takeover as session
from garrison.agents.claude.attempt_files import AttemptFiles
from garrison.agents.claude.settings import ClaudeSettings, for_node
from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import home_option, run_option
from garrison.cli.output import print_message
from garrison.config import find_home
from garrison.errors import NotFound, Refused
from garrison.processes.runtime import Runtime
from garrison.processes.spawn import worktree_environment
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.run import Launch, Task
from garrison.system.git import Git


@click.command(cls=Command, examples=(
    ("garrison takeover add_tests", "its session stops, you go on in it; when you leave (/exit), the agent goes on"),
))
@click.argument("node", shell_complete=completion.nodes)
@run_option
@home_option
def takeover(node: str, run: str | None, home: str | None) -> int:
    """Go on in the session of NODE's Claude agent yourself, with the interactive CLI in the node's worktree.

    The agent's turn is interrupted and nothing of it runs while you are there. When you leave, it goes on, knowing what
    was said and that a person was there. You have the CLI's own tools; report_result is the agent's alone.

    A node that works as a session (`session=true`) can be taken over too: your CLI is told its conversation, what you
    say there the agent does not hear, what you do stands in its tree. It does the step that was interrupted once more.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused(f"takeover needs a terminal; `garrison answer {node} TEXT` answers what the agent asked")
    world = Runtime.real(find_home(home))
    key = Key("orchestrator", node, resolve.run_of_node(world.store, node, run))
    task, tree = _task(world, key)
    settings, beside = _settings(world, task)
    files = AttemptFiles(world.files(key.run).attempt(node, task.attempt))
    (session.conversation_of if beside else session.session_of)(node, files)
    lock = files.garrison_session / "session.lock" if beside else files.lock
    with _keeping_the_terminal(), session.taken_over(node, files, world.clock.utc(), lambda: _say_pause(world, key),
                                                     lock):
        environment = _environment(world, world.launch(key.run), task, tree, settings)
        code = session.run_beside(node, files, settings, environment, tree, session.run_in_terminal) if beside else \
            session.resume_cli(node, files, cli_process.config_folder(world.home), settings, environment, tree,
                              session.run_in_terminal)
    goes_on = "goes on" if resolve.is_living(world.store, key) else (
        f"goes on when its run does: `garrison launch --resume {key.run}`")
    print_message(f"{node} {goes_on}" + (f"; the CLI ended with exit code {code}" if code else ""))
    return 1 if code else 0


def _task(world: Runtime, key: Key) -> tuple[Task, Path]:
    identity = world.store.read(Identity, key)
    if identity is None or not identity.worktree:
        raise NotFound(f"{key.name} of run {key.run} has not begun; `garrison status {key.run}` shows what it does")
    attempt = int(identity.metadata.get("attempt", 1))
    task = run_records.load(Task, world.files(key.run).attempt(key.name, attempt) / "task.json")
    tree = Path(identity.worktree)
    if task is None or not tree.is_dir():
        raise Refused(f"{key.name} of run {key.run} has no worktree any more; there is nothing to take over")
    return task, tree


def _settings(world: Runtime, task: Task) -> tuple[ClaudeSettings, bool]:
    """Those of its Claude, and whether that is a session of garrison's own."""
    beside = registry.session_options(task.agent, task.node, task.attributes, world.home) is not None
    settings = registry.claude_settings_of(task.agent, world.home)
    if settings is None:
        raise Refused(f"the agent of {task.node} is {task.agent}, no Claude agent; `garrison attach {task.node} "
                      "--write` types into its terminal")
    return for_node(settings, task.node, task.attributes), beside


def _environment(world: Runtime, launch: Launch, task: Task, tree: Path, settings: ClaudeSettings) -> Mapping[str, str]:
    """The agent's, without the mark of its life: what bears that is ended with it."""
    own = {**worktree_environment(world, launch, task, tree, ""), **Git(Path(launch.repo)).author(tree),
           **cli_process.cli_environment(settings, world.home)}
    return {name: value for name, value in own.items() if name != "GARRISON_LIFE"}


def _say_pause(world: Runtime, key: Key) -> None:
    if resolve.is_living(world.store, key):
        print_message(f"{key.name} is put down; it waits while you are in its session")


@contextmanager
def _keeping_the_terminal() -> Iterator[None]:
    """Ctrl-C is the CLI's while it runs; one that is killed may leave the terminal in a state of its own."""
    kept = termios.tcgetattr(sys.stdin)
    # A handler, for what is ignored would be ignored by the CLI too.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, kept)
