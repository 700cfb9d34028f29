"""How many sessions may start at one time in a home: a start costs half a second of a core and 200 MiB.

Each start holds one of the files `run/claude-start-<n>` until the session has answered; the kernel frees it at a death.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from garrison.records import atomic
from garrison.records.life_lock import LifeLock

_LOOK = 0.1
"""Seconds between two looks for a free place."""
_HELD = 30.0
"""Seconds after which a start no longer counts as one, answered or not."""


@asynccontextmanager
async def start_slot(home: Path, places: int, note: Callable[[str], None],
                     stop: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """Wait for a place, unless `stop` is set meanwhile; give the event that says the start is over."""
    folder = atomic.make_directory(home / "run")
    lock, told = None, False
    while not stop.is_set() and (lock := _try(folder, places)) is None:
        if not told:
            note(f"for its turn: {places} at a time start")
            told = True
        await asyncio.sleep(_LOOK)
    started = asyncio.Event()
    keeper = asyncio.ensure_future(_keep(lock, started))
    try:
        yield started
    finally:
        started.set()
        await keeper


async def _keep(lock: LifeLock | None, started: asyncio.Event) -> None:
    """Hold the place until the start is over."""
    try:
        await asyncio.wait_for(started.wait(), _HELD)
    except TimeoutError:
        pass
    finally:
        if lock is not None:
            lock.release()


def _try(folder: Path, places: int) -> LifeLock | None:
    for number in range(1, places + 1):
        lock = LifeLock.try_acquire(folder / f"claude-start-{number}")
        if lock is not None:
            return lock
    return None
