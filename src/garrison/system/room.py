"""Waiting for room on a full disk, for what has no loop around it. Light: a layer's start needs it."""

from __future__ import annotations

import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

PAUSE = 0.1
"""Seconds between two tries of what found no room."""


def when_there_is_room(step: Callable[[], T], wait: Callable[[float], None], over: Callable[[], bool]) -> T:
    """What `step` returns. While it finds no room it is tried again, after `wait(seconds)`; its OSError once `over()`.

    For what has no loop around it yet that waits. `step` must be one that can be done again after it failed.
    """
    while True:
        try:
            return step()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or over():
                raise
        wait(PAUSE)
