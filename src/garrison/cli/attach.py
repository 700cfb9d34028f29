"""`garrison attach`: show the tmux session in which an agent works, read-only by default."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, NoReturn

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import home_option, run_option
from garrison.cli.output import flush, print_message
from garrison.errors import Refused
from garrison.records.identity import KEYBOARD, Identity
from garrison.records.names import Key
from garrison.records.remote import FILE as REMOTE
from garrison.records.run import RunFiles
from garrison.records.store import Store
from garrison.views.agent_session import open_session, why_no_keyboard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.records.remote import RemoteWorkState
    from garrison.views.remote import HostWay

_PATIENCE = 120.0
"""Seconds to wait for a session: a set-up may come first."""
_POLL = 0.2
_USUAL_TERM = "xterm-256color"
"""Terminal type that nearly every terminal supports."""


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

    The agent continues when you detach or close the terminal. --write only works for agents whose profile has `tty =
    true`; others ignore the keyboard. An agent that is a plain process has no session: `garrison logs NODE -f` follows
    its output.
    """
    store = resolve.open_store(home)
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if has_terminal:
        resolve.await_nodes(store, run, _PATIENCE)
    key = Key("orchestrator", node, resolve.run_of_node(store, node, run))
    if remote := _on_host(store, key):
        _attach_on_host(remote, node, write=write, has_terminal=has_terminal)
    if has_terminal:
        _await_session(store, key, write=write)
    # before the refusal below: a missing session is reported even without a terminal
    argv = attach_command(store, key, write=write)
    if not has_terminal:
        raise Refused(f"attach needs a terminal; `garrison logs {node} -f` follows the agent's output")
    flush()
    os.execvpe(argv[0], argv, _with_known_terminal(os.environ))


def _with_known_terminal(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with a TERM that tmux knows on this machine: an unknown one is replaced by xterm."""
    import curses  # imported late: needed by few commands

    term = environ.get("TERM", "")
    try:
        curses.setupterm(term or "unknown", sys.stdout.fileno())
    except curses.error:
        print_message(f"note: this machine does not know TERM={term}; {_USUAL_TERM} is shown instead")
        return {**environ, "TERM": _USUAL_TERM}
    return dict(environ)


def _on_host(store: Store, key: Key) -> tuple[HostWay, list[str], RemoteWorkState] | None:
    """Return access to the host that works on a node, None if none does."""
    attempt = RunFiles(store.home, key.run).latest_attempt(key.name)
    folder = RunFiles(store.home, key.run).attempt(key.name, attempt)
    if not attempt or not (folder / REMOTE).exists():
        return None
    from garrison.views.remote import on_host  # imported late: few nodes are on a host

    found = on_host(store.home, folder, key.name)
    if found is None:
        raise Refused(f"{key.name} waits for a host; `garrison status {key.run}` shows it")
    return found


def _attach_on_host(remote: tuple[HostWay, list[str], RemoteWorkState], node: str, *, write: bool,
                    has_terminal: bool) -> NoReturn:
    """Show the session on the host; does not return."""
    access, command, state = remote
    argv = access.command_line([*command, "attach", node, "--run", state.host_run, *(["--write"] if write else [])],
                               tty=True)
    if not has_terminal:
        raise Refused(f"attach needs a terminal; `garrison logs {node} -f` follows the agent's output")
    print_message(f"{node} is on {state.host}")
    flush()
    os.execvp(argv[0], argv)


def _await_session(store: Store, key: Key, *, write: bool) -> None:
    """Wait, while the run continues, until a starting node has its session, and its agent reads the keyboard."""
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
                and not why_no_keyboard(store, identity))


def attach_command(store: Store, key: Key, *, write: bool = False) -> list[str]:
    """Return the command that shows an orchestrator's session.

    Raises:
        NotFound: there is no session yet.
        Refused: the session has ended, the agent is a plain process (the message names its log), or it ignores the
            keyboard.
    """
    found = open_session(store, key)
    if write and found.read_only:
        raise Refused(f"{key.full} is read-only: {found.read_only}")
    return found.terminal.attach_argv(found.session, write=write, title=found.title)
