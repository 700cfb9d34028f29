"""Watch the start of an agent's program: whether it does anything, until its first answer.

A hung program differs from a slow one in its processes: all sleep, none has run at all, and none has a connection.
Under load a runnable process does not sleep, and one that waits for the network has a socket. So both get the whole
time limit of a start.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.records import atomic
from garrison.records.life_lock import LifeLock
from garrison.system import processes

if TYPE_CHECKING:
    from garrison.system.processes import ProcessInfo

POLL = 0.5
"""Seconds between two checks."""
_SHOWN = 2.0
"""Seconds of inactivity after which it is shown."""
_SLOW = 10.0
"""Seconds after which it is also shown for a working program."""
HUNG = 10.0
"""Seconds of inactivity, with as many checks, after which the program counts as hung."""
_ASLEEP = frozenset("SIt")
_PROTOCOLS = ("tcp", "tcp6", "udp", "udp6")


class StartWatch:
    """Checks the processes below this one while a program starts.

    Args:
        show: shows what is wrong, '' for nothing.
        waits_for_helpers: whether the program may wait for something that the user makes it start, such as an MCP
            server, which takes an unknown time.
    """

    def __init__(self, show: Callable[[str], None] = lambda _text: None, *, waits_for_helpers: bool = False,
                 hung: float = HUNG) -> None:
        self._show, self._waits_for_helpers, self._hung = show, waits_for_helpers, hung
        self._began, self._marker = time.monotonic(), os.environ.get(processes.MARKER, "")
        self._seen: object = None
        self._looks, self._is_shown = 0, False

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    def look(self) -> bool:
        """Check again, POLL seconds after the last time; return whether the program hangs."""
        tree = processes.descendants(os.getpid(), self._marker)
        is_asleep = bool(tree) and all(info.state in _ASLEEP for info in tree)
        seen = processes.cpu_fingerprint(os.getpid(), self._marker) if is_asleep else None
        # It changes with any CPU time and any process.
        self._looks = self._looks + 1 if seen is not None and seen == self._seen else 0
        self._seen = seen
        idle = self._looks * POLL
        if idle >= _SHOWN or self.seconds >= _SLOW or self._is_shown:
            does = "has not answered and does nothing" if idle >= _SHOWN else "has not answered yet"
            self._show(f"its program, started {self.seconds:.0f} s ago, {does}")
            self._is_shown = True
        return idle >= self._hung and not self._waits_for_helpers and not _has_peer(tree)

    def end(self) -> None:
        """Stop showing anything."""
        if self._is_shown:
            self._show("")


def _has_peer(tree: Iterable[ProcessInfo]) -> bool:
    """Return whether a process has a network socket open, like one that waits for an answer."""
    return any(_sockets(info.pid) & _inodes(info.pid) for info in tree)


def _sockets(pid: int) -> set[str]:
    found: set[str] = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208  # names only
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))  # noqa: PTH115  # a text, not a path
    return {link[len("socket:["):-1] for link in found if link.startswith("socket:[")}


def _inodes(pid: int) -> set[str]:
    """Return the inodes of all sockets in the network of a process."""
    found: set[str] = set()
    for protocol in _PROTOCOLS:
        with suppress(OSError, IndexError):
            found |= {line.split()[9] for line in Path(f"/proc/{pid}/net/{protocol}").read_text().splitlines()[1:]}
    return found


# ---- start limiter ---------------------------------------------------------------------------------------------------

# Limit of concurrent session starts in a home: a start costs half a second of a core and 200 MiB.
#
# Each start holds one of the lock files `run/claude-start-<n>` until the session has answered; if it dies, the kernel
# releases the lock. This is its own module because asyncio would delay the start of every orchestrator by 14 ms.


_POLL_INTERVAL = 0.1
_MAX_HOLD = 30.0
"""Seconds after which a start releases its slot even if the session has not answered."""


@asynccontextmanager
async def start_slot(home: Path, slots: int, on_wait: Callable[[str], None],
                     stop: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """Wait for a slot, unless `stop` is set first; yield the event that releases the slot."""
    # Locks instead of a counter: a process that dies while starting releases its slot.
    folder = atomic.make_directory(home / "run")
    lock, waiting = None, False
    while not stop.is_set() and (lock := _try_lock(folder, slots)) is None:
        if not waiting:
            on_wait(f"for a start slot: at most {slots} sessions start at a time")
            waiting = True
        await asyncio.sleep(_POLL_INTERVAL)
    started = asyncio.Event()
    holder = asyncio.ensure_future(_hold(lock, started))
    try:
        yield started
    finally:
        started.set()
        await holder


async def _hold(lock: LifeLock | None, started: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(started.wait(), _MAX_HOLD)
    except TimeoutError:
        pass
    finally:
        if lock is not None:
            lock.release()


def _try_lock(folder: Path, slots: int) -> LifeLock | None:
    for number in range(1, slots + 1):
        lock = LifeLock.try_acquire(folder / f"claude-start-{number}")
        if lock is not None:
            return lock
    return None
