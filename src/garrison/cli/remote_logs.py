"""Output of an agent on a host, for `garrison logs`: read there over ssh, and shown as that of a local agent.

What a host sends is as foreign as what an agent prints: on a terminal it passes the same filter.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING

from garrison.cli.output import print_message
from garrison.errors import GarrisonError
from garrison.hosts.access import HostAccess
from garrison.records.hosts import read_host
from garrison.records.remote import RemoteWorkState, look_remote

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Protocol

    class Printer(Protocol):
        """Prints logs (`garrison.cli.logs`)."""

        def print_block(self, block: bytes) -> None:
            """Print what came from elsewhere."""
            ...

        def print_from(self, path: Path, offset: int) -> int:
            """Copy a file from `offset`, and return the end."""
            ...

_POLL = 0.25
_BLOCK = 65536
_READ_SECONDS = 120.0


def print_remote_log(printer: Printer, home: Path, node: str, latest: Callable[[], Path],
                     has_ended: Callable[[], bool], tail: int | None, *, follow: bool) -> None:
    """Print what the agent of a node printed on its host, and what home noted if that cannot be reached.

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
                _follow(printer, home, node, state, folder, partial(_is_over, folder, latest, has_ended))
            else:
                _print(printer, home, node, state, folder, tail)
        elif state is not None and follow and not ended and not is_told:
            is_told = True
            print_message("no host has it yet; waiting for one")
        if not follow or ended:
            return
        time.sleep(_POLL)


def _is_over(folder: Path, latest: Callable[[], Path], has_ended: Callable[[], bool]) -> bool:
    return has_ended() or latest() != folder


def _tail_argv(home: Path, node: str, state: RemoteWorkState, *options: str) -> tuple[HostAccess, list[str]]:
    host = read_host(home, state.host)
    path = f"{host.home}/runs/{state.host_run}/nodes/{node}/1/output.log"
    return HostAccess.of(home, host), ["tail", *options, path]


def _print(printer: Printer, home: Path, node: str, state: RemoteWorkState, folder: Path, tail: int | None) -> None:
    try:
        access, argv = _tail_argv(home, node, state, "-n", "+1" if tail is None else str(tail))
        done = access.run(argv, timeout=_READ_SECONDS)
        if done.code == 0:
            printer.print_block(done.out)
            return
        why = done.last_error
    except GarrisonError as error:
        why = str(error)
    print_message(f"its output is on {state.host}: {why}; this is what is known here:")
    printer.print_from(folder / "output.log", 0)


def _follow(printer: Printer, home: Path, node: str, state: RemoteWorkState, folder: Path,
            is_over: Callable[[], bool]) -> None:
    """Print what is added on the host until the offer is over."""
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
                if time.monotonic() - over_since > 4 * _POLL:  # what was written last has come
                    return
    finally:
        child.kill()
        child.wait()
