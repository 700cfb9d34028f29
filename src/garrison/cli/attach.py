"""`garrison attach`: the session in which an agent works, read-only unless asked otherwise."""

from __future__ import annotations

import os
import sys

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import home_option, run_option
from garrison.cli.resolve import run_of_node
from garrison.config import find_home
from garrison.errors import NotFound, Refused
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.run import Launch, RunFiles
from garrison.records.store import Store
from garrison.system.terminal import Session, choose_terminal


@click.command(cls=Command, examples=(
    ("garrison attach add_tests", "watch; the status line names the key that detaches, and the agent goes on"),
    ("garrison attach add_tests --write", "type into its session"),
))
@click.argument("node", shell_complete=completion.nodes)
@run_option
@click.option("--write", is_flag=True, help="Type into the session (default: watch only).")
@home_option
def attach(node: str, run: str | None, write: bool, home: str | None) -> None:
    """Watch the tmux session in which the agent of NODE works.

    Detaching, or closing the terminal, leaves the agent at work. An agent that is a plain process has no session:
    `garrison logs NODE -f` follows it.
    """
    store = Store(find_home(home))
    argv = attach_argv(store, Key("orchestrator", node, run_of_node(store, node, run)), write=write)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused(f"attach needs a terminal; `garrison logs {node} -f` follows what the agent prints")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(argv[0], argv)


def attach_argv(store: Store, key: Key, *, write: bool = False) -> list[str]:
    """The command that shows a living session; NotFound or Refused, saying where its log is, if there is none."""
    identity = store.read(Identity, key)
    logs_line = f"`garrison logs {key.name} --run {key.run}` shows what it printed"
    if identity is None or not identity.tmux:
        raise NotFound(f"{key.full} has no session yet; {logs_line}")
    session = Session(**identity.tmux)
    launch = run_records.load(Launch, RunFiles(store.home, key.run).launch)
    terminal, _ = choose_terminal(session.kind or (launch.terminal if launch else "auto"), store.home)
    if not resolve.is_living(store, key) or not terminal.is_alive(session):
        raise Refused(f"{key.full} is {identity.status}, its session is over; {logs_line}")
    if terminal.kind == "process":
        raise Refused(f"{key.full} is a plain process and has no session to watch; "
                      f"`garrison logs {key.name} --run {key.run} -f` follows what it prints")
    title = (f"run {key.run} · {key.name} · attempt {identity.metadata.get('attempt', 1)} · "
             f"life {identity.incarnation}")
    return terminal.attach_argv(session, write=write, title=title)
