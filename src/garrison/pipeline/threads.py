"""Plain functions called from the event loop: each in a daemon thread of its own, so that none holds up the others.

A thread cannot be ended: when nobody waits for its result any more, the result is dropped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


class _Interrupted(Exception):
    """What a KeyboardInterrupt is while it is carried from a thread to who waits for it."""


async def in_thread(work: Callable[[], T]) -> T:
    """The result of `work()`, called in a new thread with the caller's context variables."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def body() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = context.run(work)
        except (StopIteration, SystemExit) as error:  # a future cannot carry them
            failure = RuntimeError(f"{type(error).__name__}: {error}")
        except KeyboardInterrupt:
            failure = _Interrupted()
        except BaseException as error:  # it is the caller's to judge
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=body, daemon=True, name="garrison-handler").start()
    try:
        return await future
    except _Interrupted:
        raise KeyboardInterrupt from None
