"""Limit of concurrent session starts in a home: a start costs half a second of a core and 200 MiB.

Each start holds one of the lock files `run/claude-start-<n>` until the session has answered; if it dies, the kernel
releases the lock. This is a module of its own because asyncio would delay the start of every orchestrator by 14 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from garrison.records import atomic
from garrison.records.life_lock import LifeLock

_POLL_INTERVAL = 0.1
_MAX_HOLD = 30.0
"""Seconds after which a start releases its slot even if the session has not answered."""


@asynccontextmanager
async def start_slot(home: Path, slots: int, on_wait: Callable[[str], None],
                     stop: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """Wait for a slot, unless `stop` is set meanwhile; yield the event that releases the slot."""
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
