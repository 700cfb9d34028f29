"""`garrison attach`: show the tmux session in which an agent works, read-only by default."""

from __future__ import annotations

import os
import sys
import time

import click

from garrison.agents import registry
from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import home_option, run_option
from garrison.cli.output import print_message
from garrison.config import find_home
from garrison.errors import NotFound, Refused
from garrison.records import run as run_records
from garrison.records.failover import present_agent, read_failovers
from garrison.records.identity import KEYBOARD, Identity
from garrison.records.names import Key
from garrison.records.run import Launch, RunFiles, Task, list_runs
from garrison.records.store import Store
from garrison.system.terminal import Session
from garrison.system.terminal_choice import choose_terminal

_PATIENCE = 120.0
"""Seconds for which a session is waited for: a set-up may come first."""
_POLL = 0.2


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

    The agent continues when you detach or close the terminal. What you type with --write reaches the program of an
    agent whose profile says `tty = true`; no other one reads a keyboard. An agent that is a plain process has no
    session: `garrison logs NODE -f` follows its output.
    """
    store = Store(find_home(home))
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if has_terminal:
        _await_nodes(store, run)
    key = Key("orchestrator", node, resolve.run_of_node(store, node, run))
    if has_terminal:
        _await_session(store, key, write=write)
    argv = attach_command(store, key, write=write)
    if not has_terminal:
        raise Refused(f"attach needs a terminal; `garrison logs {node} -f` follows the agent's output")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(argv[0], argv)


def _await_nodes(store: Store, run: str | None) -> None:
    """Wait until a run that is being started has its nodes."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and any(
            not resolve.nodes_of(store.home, each) and resolve.is_run_supervised(store, each)
            for each in list_runs(store.home) if run in (None, each)):
        time.sleep(_POLL)


def _await_session(store: Store, key: Key, *, write: bool) -> None:
    """Wait, while the run goes on, until a node that is being started has its session, and its agent a keyboard."""
    end, is_told = time.monotonic() + _PATIENCE, False
    while time.monotonic() < end and not _is_ready(store, key, write=write):
        runner = Key("runner", key.name, key.run)
        if not resolve.is_run_supervised(store, key.run) and not resolve.is_node_worked_on(store, runner):
            return
        if not is_told:
            print_message(f"waiting for the session of {key.name}; Ctrl-C ends the wait")
            is_told = True
        time.sleep(_POLL)


def _is_ready(store: Store, key: Key, *, write: bool) -> bool:
    """Return whether there is a session to attach to, or no need to wait for one."""
    identity = store.read(Identity, key)
    if identity is None or not identity.tmux:
        return False
    if identity.status == "starting":
        return False
    return not (write and resolve.is_living(store, key) and not identity.metadata.get(KEYBOARD)
                and not _why_no_keyboard(store, identity))


def _why_no_keyboard(store: Store, identity: Identity) -> str:
    """Return why nothing reads what a person types to an agent, '' if its profile gives it a terminal."""
    attempt = int(identity.metadata.get("attempt", 1))
    folder = RunFiles(store.home, identity.run_id).attempt(identity.name, attempt)
    task = run_records.load(Task, folder / "task.json")
    failovers = read_failovers(folder)
    agent = present_agent(task.agent if task is not None else "command", failovers)
    if task is not None and registry.has_terminal(agent, store.home):
        return ""
    if task is not None and registry.claude_settings_of(agent, store.home) is not None:
        return (f"a Claude session reads no keyboard; `garrison tell {identity.name} TEXT` tells it something, "
                f"`garrison takeover {identity.name}` puts you in its place")
    if task is not None and registry.has_session(agent, store.home):
        return (f"the session of agent {agent} reads no keyboard; `garrison tell {identity.name} TEXT` tells it "
                "something")
    if agent == "command":
        return "its command reads no keyboard; a profile with tty = true gives a program a terminal"
    return f"agent {agent} reads no keyboard; tty = true in [agents.{agent}] gives a command agent a terminal"


def attach_command(store: Store, key: Key, *, write: bool = False) -> list[str]:
    """Return the command that shows an orchestrator's session.

    Raises:
        NotFound: there is no session yet.
        Refused: the session has ended, the agent is a plain process (the message names its log), or what a person
            types would reach nothing.
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
    if write and not identity.metadata.get(KEYBOARD):
        why = _why_no_keyboard(store, identity) or "its program has not started yet"
        raise Refused(f"{key.full} is read-only: {why}")
    title = (f"run {key.run} · {key.name} · attempt {identity.metadata.get('attempt', 1)} · "
             f"incarnation {identity.incarnation}")
    return terminal.attach_argv(session, write=write, title=title)
