"""The one loop of all layers: turn (observe, decide, act) → beat → wait. Short enough to read at once.

A turn that did something is followed by another at once; a quiet one waits for a process exit, a file, a signal or the
slow timer. Beats come only from here, after a finished turn: a thread would beat for a dead loop.
"""

from __future__ import annotations

import errno
import signal
import sys
from typing import TYPE_CHECKING, Protocol

from garrison.errors import Fenced, GarrisonError, LockLost
from garrison.system.waker import Waker

if TYPE_CHECKING:
    from garrison.layers.world import World
    from garrison.supervise.start import Life

PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""Errors of the machine, not of ours: said, and tried again at the next timer."""

FENCED_EXIT = 75


class Layer(Protocol):
    """What the loop drives."""

    def turn(self) -> bool:
        """Observe, decide, act once; True if anything was done (another turn follows at once)."""

    def watch(self, waker: Waker) -> None:
        """Register what should wake the loop early."""

    def stop(self, signum: int) -> None:
        """A request to end in order arrived."""

    def abandon(self, why: str) -> None:
        """The life is fenced: kill own children, write nothing."""

    def trouble(self, why: str, times: int) -> None:
        """A turn was refused (git, a corrupt record) for the `times`-th time running; it is tried again anyway."""

    @property
    def exit_code(self) -> int | None:
        """Set when the layer is done."""

    def next_wake(self) -> float | None:
        """Seconds until something is due, None if only the timer matters."""


def run(layer: Layer, life: Life, world: World, waker: Waker | None = None) -> int:
    """Drive `layer` to its end; returns the process's exit code."""
    waker = waker or Waker((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD))
    complaints = Complaints()
    try:
        while True:
            again = _guarded_turn(layer, life, complaints)
            if layer.exit_code is not None:
                return layer.exit_code
            world.processes.reap()
            layer.watch(waker)
            due = layer.next_wake()
            timeout = world.timing.rescan if due is None else max(0.0, min(due, world.timing.rescan))
            # After a turn that failed, the end of its own git must not wake us: it would be tried without a pause.
            waits = [0.0] if again else [0.0, timeout] if complaints.times else [timeout]
            for number in [number for wait in waits for number in waker.wait(wait).signals]:
                _hear(layer, number)
    except (Fenced, LockLost) as error:
        say(str(error))
        layer.abandon(str(error))
        return FENCED_EXIT
    finally:
        waker.close()


class Complaints:
    """What went wrong turn after turn: said once, counted while it lasts."""

    def __init__(self) -> None:
        self.last, self.times = "", 0

    def clear(self) -> None:
        """A turn went well."""
        self.last, self.times = "", 0

    def hear(self, text: str) -> int:
        """Say `text` unless it was the last one too; returns how often running it was heard."""
        if text != self.last:
            say(f"{text}; going on, will try again")
            self.last, self.times = text, 0
        self.times += 1
        return self.times


def _guarded_turn(layer: Layer, life: Life, complaints: Complaints) -> bool:
    """One turn between two looks at the life lock: a life whose home was removed must not make it anew."""
    life.beat()
    try:
        again = layer.turn()
    except (Fenced, LockLost):
        raise
    except GarrisonError as error:
        layer.trouble(str(error), complaints.hear(str(error)))
        return False
    except OSError as error:
        if error.errno not in PASSING:
            raise
        complaints.hear(str(error))
        return False
    complaints.clear()
    if layer.exit_code is None:
        life.beat()
    return again


def _hear(layer: Layer, number: int) -> None:
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        layer.stop(number)


def say(text: str) -> None:
    """A line in the layer's log."""
    print(text, file=sys.stderr, flush=True)
