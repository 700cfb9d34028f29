"""`garrison logs`: what an agent, or a layer, printed.

The rule of this room: bytes are printed as they are, piped or not: it is the output of the user's own agent. But on a
terminal no escape sequence outlives the command: what was left open is closed at the end, whatever ended it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import home_option, run_option
from garrison.cli.output import print_message
from garrison.cli.resolve import is_node_worked_on, is_run_supervised, run_of_node
from garrison.config import find_home
from garrison.errors import NotFound, Refused, UsageError
from garrison.processes.run_state import replay_run
from garrison.records import journal
from garrison.records.identity import Identity
from garrison.records.names import ROLES, Key, check_run
from garrison.records.run import RunFiles
from garrison.records.store import Store

_POLL = 0.25
"""Seconds between two looks while following."""
_BLOCK = 65536
_OVER = ("validated", "failed")
"""Node statuses after which nothing more is printed."""
CALM = (b"\x18\x1b\\"  # ends an unfinished sequence or string
        b"\x1b[!p\x1b[0m\x0f\x1b(B"  # soft reset, no colours, plain characters
        b"\x1b[?7h\x1b[?25h\x1b[?1047l"  # lines wrap, the cursor is seen, the ordinary screen
        b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1004l")  # mouse, paste and focus reports off
"""Brings a terminal back to what a shell expects, whatever was sent to it."""


@click.command(cls=Command, examples=(
    ("garrison logs add_tests -f", "what its agent prints, over all attempts and lives, until the node ends"),
    ("garrison logs add_tests --tail 20", "the end of it"),
    ("garrison logs --layer guardian", "what the guardian of the only (or the living) run said"),
))
@click.argument("node", required=False, shell_complete=completion.nodes)
@run_option
@click.option("-f", "--follow", is_flag=True, help="Go on, into later attempts too, until the node ends.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Begin with the last N lines.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="An earlier attempt (default: the latest).")
@click.option("--layer", type=click.Choice(ROLES), help="What that layer printed, instead of the agent's output.")
@home_option
def logs(node: str | None, run: str | None, follow: bool, tail: int | None, attempt: int | None, layer: str | None,
         home: str | None) -> None:
    """Print what the agent of NODE printed in its latest attempt."""
    store = Store(find_home(home))
    printer = Printer()
    try:
        if layer in ("launch", "guardian", "processor"):
            chosen, path = _upper_log(store, layer, run)
            _show(printer, lambda: path, lambda: not is_run_supervised(store, chosen), tail, follow=follow)
            return
        if node is None:
            raise UsageError("say which NODE; `garrison status` shows them")
        chosen = run_of_node(store, node, run)
        if not (follow and _may_begin(store, chosen, node)):
            _check_begun(store, chosen, node)
        _show(printer, lambda: _node_log(store, chosen, node, attempt, layer),
              lambda: attempt not in (None, resolve.latest_attempt(store.home, chosen, node))
              or _is_over(store, chosen, node), tail, follow=follow)
    finally:
        printer.calm()


def _show(printer: Printer, path_now: Callable[[], Path], over: Callable[[], bool], tail: int | None, *,
          follow: bool) -> None:
    path = path_now()
    begin = offset_of(path, tail) if tail is not None and path.exists() else 0
    if follow:
        _follow(printer, path_now, over, begin)
    else:
        printer.print_from(_existing(path), begin)


def _check_begun(store: Store, run: str, node: str) -> None:
    if not resolve.latest_attempt(store.home, run, node):
        raise NotFound(f"node {node} has not begun in run {run}; `garrison logs {node} --run {run} -f` waits for it "
                       "while the run goes on")


def _may_begin(store: Store, run: str, node: str) -> bool:
    """Whether following a node that has no log yet has a point."""
    return not _is_over(store, run, node)


def _node_log(store: Store, run: str, node: str, attempt: int | None, layer: str | None) -> Path:
    files = RunFiles(store.home, run)
    if layer:
        return files.layer_log(f"{layer}-{node}")
    return files.attempt(node, attempt or resolve.latest_attempt(store.home, run, node) or 1) / "output.log"


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


def offset_of(path: Path, lines: int) -> int:
    """Where the last `lines` lines of a file begin, in bytes; an unfinished line counts."""
    with path.open("rb") as file:
        at = end = file.seek(0, os.SEEK_END)
        if not lines:
            return end
        file.seek(max(0, end - 1))
        breaks = lines + (file.read(1) == b"\n")  # the last line's own end is none before it
        while at > 0:
            start = max(0, at - _BLOCK)
            file.seek(start)
            block = file.read(at - start)
            place = len(block)
            while breaks and (place := block.rfind(b"\n", 0, place)) >= 0:
                breaks -= 1
            if not breaks:
                return start + place + 1
            at = start
    return 0


class Printer:
    """Copies files to stdout and remembers whether that may have left a terminal in disorder."""

    def __init__(self) -> None:
        self.wild = False

    def print_from(self, path: Path, offset: int) -> int:
        """Copy a file's bytes from `offset`; returns where it ended. A file that shrank is printed anew."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return offset
        with file:
            if os.fstat(file.fileno()).st_size < offset:
                offset = 0
            file.seek(offset)
            while block := file.read(_BLOCK):
                self.wild = self.wild or is_wild(block)
                sys.stdout.buffer.write(block)
                offset += len(block)
        sys.stdout.flush()
        return offset

    def calm(self) -> None:
        """Bring the terminal to rest, if stdout is one and anything but plain text went there."""
        if self.wild and sys.stdout.isatty():
            sys.stdout.buffer.write(CALM)
            sys.stdout.flush()


def is_wild(block: bytes) -> bool:
    """Whether bytes hold something that may change a terminal: escape, shift out, or a C1 introducer in UTF-8 or alone.

    A reset too many costs nothing, so a character that only holds such a byte counts too.
    """
    return any(byte in block for byte in (b"\x1b", b"\x0e", b"\x90", b"\x9b", b"\x9d"))


def _follow(printer: Printer, path_now: Callable[[], Path], over: Callable[[], bool], offset: int) -> None:
    """Print what is added, in whichever file is the latest, until it is over; what was last written is printed too."""
    path = path_now()
    if not path.exists():
        print_message("nothing was printed yet; waiting for it")
    last = False
    while True:
        offset = printer.print_from(path, offset)
        latest = path_now()
        if latest != path:
            offset = printer.print_from(path, offset)
            print_message(f"--- attempt {latest.parent.name}: {latest}")
            path, offset = latest, 0
        elif last:
            return
        else:
            last = over()  # once over, one more look: its last words may have come in between
            if not last:
                time.sleep(_POLL)


def _is_over(store: Store, run: str, node: str) -> bool:
    """Whether a node will print no more."""
    state = replay_run(journal.read_all(RunFiles(store.home, run).journal))
    if node in state.nodes and state.nodes[node].status in _OVER:
        return True
    return not is_node_worked_on(store, Key("runner", node, run)) and not is_run_supervised(store, run)
