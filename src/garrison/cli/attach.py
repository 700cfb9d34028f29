"""`garrison attach`: show the tmux session in which an agent works, read-only by default."""

from __future__ import annotations

import os
import sys

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import home_option, run_option
from garrison.config import find_home
from garrison.errors import NotFound, Refused
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.run import Launch, RunFiles
from garrison.records.store import Store
from garrison.system.terminal import Session
from garrison.system.terminal_choice import choose_terminal


@click.command(cls=Command, examples=(
    ("garrison attach add_tests", "watch; the status line names the key that detaches, and the agent continues"),
    ("garrison attach add_tests --write", "type into its session"),
))
@click.argument("node", shell_complete=completion.nodes)
@run_option
@click.option("--write", is_flag=True, help="Type into the session instead of only watching.")
@home_option
def attach(node: str, run: str | None, write: bool, home: str | None) -> None:
    """Watch the tmux session in which the agent of NODE works.

    The agent continues when you detach or close the terminal. An agent that is a plain process has no session:
    `garrison logs NODE -f` follows its output.
    """
    store = Store(find_home(home))
    argv = attach_command(store, Key("orchestrator", node, resolve.run_of_node(store, node, run)), write=write)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused(f"attach needs a terminal; `garrison logs {node} -f` follows the agent's output")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(argv[0], argv)


def attach_command(store: Store, key: Key, *, write: bool = False) -> list[str]:
    """Return the command that shows an orchestrator's session.

    Raises:
        NotFound: there is no session yet.
        Refused: the session has ended, or the agent is a plain process; the message names its log.
    """
    identity = store.read(Identity, key)
    logs_hint = f"`garrison logs {key.name} --run {key.run}` shows its output"
    if identity is None or not identity.tmux:
        raise NotFound(f"{key.full} has no session yet; {logs_hint}")
    session = Session(**identity.tmux)
    launch = run_records.load(Launch, RunFiles(store.home, key.run).launch)
    terminal, _ = choose_terminal(session.kind or (launch.terminal if launch else "auto"), store.home)
    if not resolve.is_living(store, key) or not terminal.is_alive(session):
        raise Refused(f"{key.full} is {identity.status}, its session has ended; {logs_hint}")
    if terminal.kind == "process":
        raise Refused(f"{key.full} is a plain process and has no session to watch; "
                      f"`garrison logs {key.name} --run {key.run} -f` follows its output")
    title = (f"run {key.run} · {key.name} · attempt {identity.metadata.get('attempt', 1)} · "
             f"incarnation {identity.incarnation}")
    return terminal.attach_argv(session, write=write, title=title)
