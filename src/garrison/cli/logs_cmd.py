"""`garrison logs` and `garrison attach`: what an agent printed, and its session while it works."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from garrison.cli import resolve
from garrison.cli.home_cmd import home_option, run_option
from garrison.cli.output import say
from garrison.errors import NotFound, Refused, UsageError
from garrison.layers.run_state import fold
from garrison.records import journal
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.names import ROLES, Key, check_run
from garrison.records.run import Launch, RunFiles
from garrison.records.store import Store
from garrison.settings import find_home
from garrison.system.terminal import Session, choose_terminal

_POLL = 0.25
"""Seconds between two looks while following."""
_BLOCK = 65536
_OVER = ("validated", "failed")
"""Node statuses after which nothing more is printed."""


@click.command()
@click.argument("node", required=False)
@run_option
@click.option("-f", "--follow", is_flag=True, help="Go on until the node ends.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="An earlier attempt (default: the latest).")
@click.option("--layer", type=click.Choice(ROLES), help="What that layer printed, instead of the agent's output.")
@home_option
def logs(node: str | None, run: str | None, follow: bool, attempt: int | None, layer: str | None,
         home: str | None) -> None:
    """Print what the agent of NODE printed in its latest attempt."""
    store = Store(find_home(home))
    if layer in ("launch", "guardian", "processor"):
        chosen, path = _upper_log(store, layer, run)
        _print_from(path, 0)
        if follow:
            _follow(lambda: path, lambda: not _run_lives(store, chosen))
        return
    if node is None:
        raise UsageError("say which NODE; `garrison status` shows them")
    chosen = resolve.run_of_node(store, node, run)

    def path_now() -> Path:
        return _node_log(store, chosen, node, attempt, layer)

    if not follow:
        _print_from(_existing(path_now()), 0)
        return
    _follow(path_now, lambda: attempt not in (None, resolve.latest_attempt(store.home, chosen, node))
            or _is_over(store, chosen, node))


def _node_log(store: Store, run: str, node: str, attempt: int | None, layer: str | None) -> Path:
    files = RunFiles(store.home, run)
    if layer:
        return files.layer_log(f"{layer}-{node}")
    return files.attempt(node, attempt or resolve.latest_attempt(store.home, run, node)) / "output.log"


def _upper_log(store: Store, layer: str, run: str | None) -> tuple[str, Path]:
    """The run that is meant, and the log of its launcher, guardian or processor."""
    keys = [key for key in store.keys(Identity) if key.role == layer and (run is None or key.run == check_run(run))]
    if len({key.run for key in keys}) > 1:
        living = [key for key in keys if resolve.is_living(store, key)]
        if len(living) != 1:
            raise Refused(f"say which run with --run: {', '.join(sorted({key.run for key in keys}))}")
        keys = living
    if not keys:
        raise NotFound(f"no {layer} in {store.home}; `garrison status` lists the runs")
    stem = "launch" if layer == "launch" else f"{layer}-{keys[0].name}"
    return keys[0].run, _existing(RunFiles(store.home, keys[0].run).layer_log(stem))


def _existing(path: Path) -> Path:
    if not path.exists():
        raise NotFound(f"{path} is not there; nothing was printed yet, or another attempt or layer is meant")
    return path


def _print_from(path: Path, offset: int) -> int:
    """Copy a file's bytes from `offset` to stdout; returns where it ended. A file that shrank is printed anew."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return offset
    with file:
        if os.fstat(file.fileno()).st_size < offset:
            offset = 0
        file.seek(offset)
        while block := file.read(_BLOCK):
            sys.stdout.buffer.write(block)
            offset += len(block)
    sys.stdout.flush()
    return offset


def _follow(path_now: Callable[[], Path], over: Callable[[], bool]) -> None:
    """Print what is added, in whichever file is the latest, until it is over; what was last written is printed too."""
    path, offset = path_now(), 0
    last = False
    while True:
        offset = _print_from(path, offset)
        latest = path_now()
        if latest != path:
            offset = _print_from(path, offset)
            say(f"--- {latest.parent.name}: {latest}")
            path, offset = latest, 0
        elif last:
            return
        else:
            last = over()  # once over, one more look: its last words may have come in between
            if not last:
                time.sleep(_POLL)


def _is_over(store: Store, run: str, node: str) -> bool:
    """Whether a node will print no more."""
    state = fold(journal.read_all(RunFiles(store.home, run).journal))
    if node in state.nodes and state.nodes[node].status in _OVER:
        return True
    lives = [Key("runner", node, run), Key("orchestrator", node, run)]
    return not any(resolve.is_living(store, key) for key in lives) and not _run_lives(store, run)


def _run_lives(store: Store, run: str) -> bool:
    """Whether anybody is there who could go on with a run."""
    return any(key.run == run and key.role in ("launch", "guardian") and resolve.is_living(store, key)
               for key in store.keys(Identity))


@click.command()
@click.argument("node")
@run_option
@click.option("--write", is_flag=True, help="Type into the session (default: watch only).")
@home_option
def attach(node: str, run: str | None, write: bool, home: str | None) -> None:
    """Watch the session in which the agent of NODE works."""
    store = Store(find_home(home))
    argv = attach_argv(store, Key("orchestrator", node, resolve.run_of_node(store, node, run)), write=write)
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
    if not resolve.is_living(store, key) or not terminal.alive(session):
        raise Refused(f"{key.full} is {identity.status}, its session is over; {logs_line}")
    return terminal.attach_argv(session, write=write)
