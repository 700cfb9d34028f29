"""Watch over the start of an agent's program: whether it does anything, until it has answered for the first time.

A program that hangs looks like one that is slow, but for its processes: they all sleep, none has run for an instant,
and none talks to anybody. Under load a process that wants to run is not asleep, and one that waits for a network has a
socket. So both are left the whole time that a start may take.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.system import processes

if TYPE_CHECKING:
    from garrison.system.processes import ProcessInfo

POLL = 0.5
"""Seconds between two looks."""
_SHOWN = 2.0
"""Seconds without anything done after which that is shown."""
_SLOW = 10.0
"""Seconds after which it is shown of a program that works, too."""
_HUNG = 10.0
"""Seconds without anything done, as seen in as many looks, after which the program counts as hung."""
_ASLEEP = frozenset("SIt")
_PROTOCOLS = ("tcp", "tcp6", "udp", "udp6")


class StartWatch:
    """Looks at the processes below this one while a program starts.

    Args:
        show: shows what is wrong, '' for nothing.
        waits_for_helpers: whether the program may wait for something that the user has it start, such as an MCP server;
            how long that takes is not known.
    """

    def __init__(self, show: Callable[[str], None] = lambda _text: None, *, waits_for_helpers: bool = False) -> None:
        self._show, self._waits_for_helpers = show, waits_for_helpers
        self._began, self._marker = time.monotonic(), os.environ.get(processes.MARKER, "")
        self._seen: object = None
        self._looks, self._is_shown = 0, False

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    def look(self) -> bool:
        """Look again, POLL after the last time; return whether the program hangs."""
        tree = processes.descendants(os.getpid(), self._marker)
        is_asleep = bool(tree) and all(info.state in _ASLEEP for info in tree)
        seen = processes.cpu_fingerprint(os.getpid(), self._marker) if is_asleep else None
        self._looks = self._looks + 1 if seen is not None and seen == self._seen else 0
        self._seen = seen
        idle = self._looks * POLL
        if idle >= _SHOWN or self.seconds >= _SLOW or self._is_shown:
            does = "has not answered and does nothing" if idle >= _SHOWN else "has not answered yet"
            self._show(f"its program, started {self.seconds:.0f} s ago, {does}")
            self._is_shown = True
        return idle >= _HUNG and not self._waits_for_helpers and not _has_peer(tree)

    def end(self) -> None:
        """Show nothing any more."""
        if self._is_shown:
            self._show("")


def _has_peer(tree: Iterable[ProcessInfo]) -> bool:
    """Return whether a process has a socket of a network open, as one that waits for an answer has."""
    return any(_sockets(info.pid) & _inodes(info.pid) for info in tree)


def _sockets(pid: int) -> set[str]:
    found: set[str] = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208  # names only
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))  # noqa: PTH115  # a text, no path
    return {link[len("socket:["):-1] for link in found if link.startswith("socket:[")}


def _inodes(pid: int) -> set[str]:
    """Return the inodes of all sockets in the network of a process."""
    found: set[str] = set()
    for protocol in _PROTOCOLS:
        with suppress(OSError, IndexError):
            found |= {line.split()[9] for line in Path(f"/proc/{pid}/net/{protocol}").read_text().splitlines()[1:]}
    return found
