"""`garrison logs`: print the output of an agent or of one of garrison's processes.

In a pipe, bytes are printed unchanged. On a terminal, colours pass and all other escape sequences are removed: an agent
must not write to the clipboard or move the cursor. Colours left on are reset when the command ends.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import home_option, run_option
from garrison.cli.output import print_message, trusted_stdout
from garrison.errors import GarrisonError, NotFound, Refused
from garrison.records.identity import Identity
from garrison.records.log_retention import find_data
from garrison.records.names import ROLES, Key, check_run
from garrison.records.remote import RemotePhase, RemoteWorkState, look_remote
from garrison.records.run import RunFiles
from garrison.records.store import Store
from garrison.system.terminal_text import OutputFilter

if TYPE_CHECKING:
    from garrison.views.remote import HostWay

_POLL = 0.25
"""Seconds between two reads while following."""
_BLOCK = 65536
_READ_SECONDS = 120.0
"""Time limit in seconds for a host to send a log."""
_MAX_TAIL = 64 << 20
"""Bytes at the end of a file in which lines are counted."""
_FINAL = ("validated", "failed")
"""Node statuses without further output."""
RESET = (b"\x18\x1b\\"  # ends an unfinished sequence or string
         b"\x1b[!p\x1b[0m\x0f\x1b(B"  # soft reset, no colours, plain characters
         b"\x1b[?7h\x1b[?25h\x1b[?1047l"  # lines wrap, cursor visible, normal screen
         b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1004l")  # mouse, paste and focus reports off
"""Resets a terminal to the state that a shell expects."""


@click.command(cls=Command, renamed={"--layer": "--process"}, examples=(
    ("garrison logs add_tests -f", "follow its agent over all attempts and restarts, until the node ends"),
    ("garrison logs add_tests --tail 20", "the last lines"),
    ("garrison logs --process guardian", "the guardian's log of the only or the living run"),
))
@click.argument("node", required=False, shell_complete=completion.nodes)
@run_option
@click.option("-f", "--follow", is_flag=True, help="Follow, also into later attempts, until the node ends.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Start with the last N lines.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="An earlier attempt (default: the latest).")
@click.option("--process", type=click.Choice(ROLES), help="Print this process's log instead of the agent's output.")
@home_option
def logs(node: str | None, run: str | None, follow: bool, tail: int | None, attempt: int | None, process: str | None,
         home: str | None) -> None:
    """Print the output of NODE's agent in its latest attempt. NODE can be omitted for a run with one node."""
    store = resolve.open_store(home)
    printer = LogPrinter()
    try:
        if process in ("launch", "guardian", "processor"):
            chosen, path = _process_log(store, process, run)
            _print_log(printer, lambda: path, lambda: not resolve.is_run_supervised(store, chosen), tail, follow=follow)
            return
        if node is None:
            node, run = resolve.only_node(store, run)
        chosen = resolve.run_of_node(store, node, run)
        if not RunFiles(store.home, chosen).latest_attempt(node) and (not follow or has_ended(store, chosen, node)):
            raise NotFound(f"node {node} has not started in run {chosen}; `garrison logs {node} --run {chosen} -f` "
                           "waits for it while the run continues")
        if process is None and _is_on_host(store, chosen, node, attempt):
            print_remote_log(printer, store.home, node, lambda: _node_log(store, chosen, node, attempt, None).parent,
                             lambda: attempt not in (None, RunFiles(store.home, chosen).latest_attempt(node))
                             or has_ended(store, chosen, node), tail, follow=follow)
            return
        _print_log(printer, lambda: _node_log(store, chosen, node, attempt, process),
                   lambda: attempt not in (None, RunFiles(store.home, chosen).latest_attempt(node))
                   or has_ended(store, chosen, node), tail, follow=follow)
    finally:
        printer.reset_terminal()


def _print_log(printer: LogPrinter, latest_log: Callable[[], Path], has_ended: Callable[[], bool], tail: int | None, *,
               follow: bool) -> None:
    path = latest_log()
    offset = tail_offset(path, tail) if tail is not None and path.exists() else 0
    if follow:
        _follow(printer, latest_log, has_ended, offset)
    elif not printer.print_from(_existing(path), offset):
        print_message(f"nothing was printed yet: {path} is empty")


def _node_log(store: Store, run: str, node: str, attempt: int | None, process: str | None) -> Path:
    files = RunFiles(store.home, run)
    if process:
        return files.process_log(f"{process}-{node}")
    return files.attempt(node, attempt or RunFiles(store.home, run).latest_attempt(node) or 1) / "output.log"


def _is_on_host(store: Store, run: str, node: str, attempt: int | None) -> bool:
    state = look_remote(_node_log(store, run, node, attempt, None).parent)
    return state is not None and (bool(state.host) or state.phase != RemotePhase.ENDED)


def _process_log(store: Store, role: str, run: str | None) -> tuple[str, Path]:
    """Return the run, and the log of its launcher, guardian or processor."""
    keys = [key for key in store.keys(Identity) if key.role == role and (run is None or key.run == check_run(run))]
    if len({key.run for key in keys}) > 1:
        living = [key for key in keys if resolve.is_living(store, key)]
        if len(living) != 1:
            raise Refused(f"choose a run with --run: {', '.join(sorted({key.run for key in keys}))}")
        keys = living
    if not keys:
        raise NotFound(f"no {role} in {store.home}; `garrison status` lists the runs")
    stem = "launch" if role == "launch" else f"{role}-{keys[0].name}"
    return keys[0].run, _existing(RunFiles(store.home, keys[0].run).process_log(stem))


def _existing(path: Path) -> Path:
    if not path.exists():
        raise NotFound(f"{path} does not exist; nothing was printed yet, or pass another --attempt or --process")
    return path


def has_ended(store: Store, run: str, node: str) -> bool:
    """Return whether a node's output is complete."""
    state = resolve.state_of(store, run)
    if node in state.nodes and state.nodes[node].status in _FINAL:
        return True
    return not resolve.is_node_worked_on(store, Key("runner", node, run)) and not resolve.is_run_supervised(store, run)


def tail_offset(path: Path, lines: int) -> int:
    """Return the byte offset of the last `lines` lines of a file; an unfinished line counts."""
    with path.open("rb") as file:
        at = end = file.seek(0, os.SEEK_END)
        if not lines:
            return end
        file.seek(max(0, end - 1))
        breaks = lines + (file.read(1) == b"\n")  # the final line break of the file is not a separator
        while at > 0:
            start = max(0, at - _BLOCK)
            file.seek(start)
            block = file.read(at - start)
            place = len(block)
            while breaks and (place := block.rfind(b"\n", 0, place)) >= 0:
                breaks -= 1
            if not breaks:
                return start + place + 1
            if end - start > _MAX_TAIL:
                return start
            at = start
    return 0


class LogPrinter:
    """Copies files to stdout, and tracks whether the output may have changed the terminal's state."""

    def __init__(self) -> None:
        self.needs_reset = False
        self._filter = OutputFilter() if sys.stdout.isatty() else None

    def print_from(self, path: Path, offset: int) -> int:
        """Copy a file from `offset` and return the end; a file that has shrunk is printed from its start.

        For parts that were freed on disk (`records.log_retention.bound_log`), or never written, the length is shown.
        """
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError:
            return offset
        with file:
            size = os.fstat(file.fileno()).st_size
            if size < offset:
                offset = 0
            while offset < size:
                begin, end = find_data(file.fileno(), offset, size)
                if begin > offset:
                    self._write(f"[{begin - offset} bytes omitted]\n".encode())
                file.seek(begin)
                while begin < end and (block := file.read(min(_BLOCK, end - begin))):
                    self._write(block.strip(b"\0"))  # the rest of a disk block
                    begin += len(block)
                if begin == offset:
                    break  # it has shrunk
                offset = begin
        sys.stdout.flush()
        return offset

    def print_block(self, block: bytes) -> None:
        """Print a block from elsewhere."""
        self._write(block)
        sys.stdout.flush()

    def _write(self, block: bytes) -> None:
        self.needs_reset = self.needs_reset or has_control_sequences(block)
        trusted_stdout().buffer.write(self._filter.filter(block) if self._filter else block)

    def reset_terminal(self) -> None:
        """Reset the terminal, if stdout is one and control sequences went there."""
        if self.needs_reset and sys.stdout.isatty():
            trusted_stdout().buffer.write(RESET)
            sys.stdout.flush()


def has_control_sequences(block: bytes) -> bool:
    """Return whether bytes may change a terminal's state: escape, shift out, or a C1 introducer.

    A needless reset costs nothing, so a UTF-8 character that contains such a byte also counts.
    """
    return any(byte in block for byte in (b"\x1b", b"\x0e", b"\x90", b"\x9b", b"\x9d"))


def _follow(printer: LogPrinter, latest_log: Callable[[], Path], has_ended: Callable[[], bool], offset: int) -> None:
    """Print additions to the latest log until the node ends, moving on to later attempts."""
    path = latest_log()
    if not path.exists():
        print_message("no output yet; waiting for it")
    ended = False
    while True:
        offset = printer.print_from(path, offset)
        latest = latest_log()
        if latest != path:
            offset = printer.print_from(path, offset)
            print_message(f"--- attempt {latest.parent.name}: {latest}")
            path, offset = latest, 0
        elif ended:
            return
        else:
            ended = has_ended()  # read again after the end, for output written in between
            if not ended:
                time.sleep(_POLL)


# ---- on a host: as untrusted as an agent's output, so the same filter applies on a terminal -------


def print_remote_log(printer: LogPrinter, home: Path, node: str, latest: Callable[[], Path],
                     has_ended: Callable[[], bool], tail: int | None, *, follow: bool) -> None:
    """Print the output of a node's agent on its host, or the local notes if the host is unreachable.

    Args:
        latest: returns the folder of the attempt to show.
    """
    shown: tuple[Path, int] | None = None
    is_told = False
    while True:
        folder, ended = latest(), has_ended()
        state = look_remote(folder)
        if state is not None and state.host and shown != (folder, state.offer):
            shown = (folder, state.offer)
            if follow:
                print_message(f"--- {node} on {state.host}")
                _follow_there(printer, home, node, state, folder, partial(_is_over, folder, latest, has_ended))
            else:
                _print_there(printer, home, node, state, folder, tail)
        elif state is not None and follow and not ended and not is_told:
            is_told = True
            print_message("no host has it yet; waiting for one")
        if not follow or ended:
            return
        time.sleep(_POLL)


def _is_over(folder: Path, latest: Callable[[], Path], has_ended: Callable[[], bool]) -> bool:
    return has_ended() or latest() != folder


def _tail_argv(home: Path, node: str, state: RemoteWorkState, *options: str) -> tuple[HostWay, list[str]]:
    from garrison.records.hosts import read_host  # few nodes are on a host
    from garrison.views.remote import way_to

    host = read_host(home, state.host)
    path = f"{host.home}/runs/{state.host_run}/nodes/{node}/1/output.log"
    return way_to(home, host), ["tail", *options, path]


def _print_there(printer: LogPrinter, home: Path, node: str, state: RemoteWorkState, folder: Path,
                 tail: int | None) -> None:
    try:
        access, argv = _tail_argv(home, node, state, "-n", "+1" if tail is None else str(tail))
        done = access.run(argv, timeout=_READ_SECONDS)
        if done.code == 0:
            printer.print_block(done.out)
            return
        why = done.last_error
    except GarrisonError as error:
        why = str(error)
    print_message(f"its output is on {state.host}: {why}; known here:")
    printer.print_from(folder / "output.log", 0)


def _follow_there(printer: LogPrinter, home: Path, node: str, state: RemoteWorkState, folder: Path,
                  is_over: Callable[[], bool]) -> None:
    """Print additions on the host until the offer is over."""
    # -F waits for a missing file, and follows a replaced one
    access, argv = _tail_argv(home, node, state, "-n", "+1", "-F")
    child = access.popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    over_since: float | None = None
    try:
        while True:
            ready, _, _ = select.select([child.stdout], [], [], _POLL)
            if ready:
                block = os.read(child.stdout.fileno(), _BLOCK)
                if not block:
                    print_message(f"the connection to {state.host} has ended")
                    return
                printer.print_block(block)
                continue
            now = look_remote(folder)
            if is_over() or now is None or now.offer != state.offer:
                over_since = over_since if over_since is not None else time.monotonic()
                if time.monotonic() - over_since > 4 * _POLL:  # the last output has arrived
                    return
    finally:
        child.kill()
        child.wait()
