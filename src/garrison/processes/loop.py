"""The one loop of all layers: turn (observe, decide, act) → beat → wait. Short enough to read at once.

A turn that did something is followed by another at once; a quiet one waits for a process exit, a file, a signal or the
slow timer. When only the timer woke it, a layer may first glance at what the turn would read; while that is unchanged
(and for a few seconds at most) the turn is spared. Beats come only from here, after a finished look: a thread would
beat for a dead loop.
"""

from __future__ import annotations

import contextlib
import errno
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from garrison.errors import Fenced, GarrisonError, LockLost, RecordError
from garrison.processes.fingerprint import check_interval, max_age
from garrison.system import disk_space
from garrison.system.event_loop import EventLoop

if TYPE_CHECKING:
    from garrison.processes.fingerprint import Fingerprint
    from garrison.processes.runtime import Runtime
    from garrison.supervise.start import Incarnation

TRANSIENT_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
                              errno.EAGAIN})
"""Errors of the machine, not of ours: said, and tried again at the next timer."""

FENCED_EXIT = 75

VANISHING = 1.0
"""Seconds within which a home whose life files are gone is gone itself."""

WAKING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""What wakes a layer."""

BLOCKED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Held back by a command that becomes a layer, until that layer's waker hears them: a Ctrl-C meanwhile stops it."""


class Process(Protocol):
    """What the loop drives."""

    def turn(self) -> bool:
        """Observe, decide, act once; True if anything was done (another turn follows at once)."""

    naps: bool
    """Whether everything that matters to it wakes it; else it glances at each rescan."""

    def glance(self) -> Fingerprint | None:
        """What would look different if a turn had anything to do, time apart (`next_wake` tells that) and the ends of
        watched processes; None if only a whole turn can tell."""

    def watch(self, waker: EventLoop) -> None:
        """Register what should wake the loop early."""

    def stop(self, signum: int) -> None:
        """A request to end in order arrived."""

    def abandon(self, why: str) -> None:
        """The life is fenced: kill own children, write nothing."""

    def trouble(self, why: str) -> None:
        """The same refusal (git, a corrupt record) has spoiled every turn for longer than is waited for; told again
        each time that has passed once more. The turn is tried again anyway."""

    @property
    def exit_code(self) -> int | None:
        """Set when the layer is done."""

    def next_wake(self) -> float | None:
        """Seconds until something is due, None if only the timer matters."""


def run(layer: Process, life: Incarnation, world: Runtime, waker: EventLoop | None = None) -> int:
    """Drive `layer` to its end; returns the process's exit code."""
    waker = waker or EventLoop(WAKING_SIGNALS)
    complaints = RepeatedErrors()
    try:
        while True:
            seen = layer.glance()  # before the turn: what changes while it looks must differ afterwards
            again = _guarded_turn(layer, life, world, complaints)
            if layer.exit_code is not None:
                return layer.exit_code
            world.processes.reap()
            layer.watch(waker)
            if again:
                heard = waker.wait(0.0).signals
            elif complaints.last:  # the end of its own git must not wake us: it would be tried without a pause
                heard = (*waker.wait(0.0).signals, *waker.wait(_pause(layer, world)).signals)
            else:
                heard = _rest(layer, life, world, waker, seen)
            for number in heard:
                _hear(layer, number)
    except (Fenced, LockLost) as error:
        log_line(str(error))
        if isinstance(error, LockLost):
            _let_vanish(world.home)
        layer.abandon(str(error))
        return FENCED_EXIT
    finally:
        waker.close()


def _let_vanish(home: Path) -> None:
    """A home is removed file by file: who is woken by the first must not take it for one that stays."""
    end = time.monotonic() + VANISHING
    while (home / "identities").is_dir() and time.monotonic() < end:
        time.sleep(0.02)


def _pause(layer: Process, world: Runtime) -> float:
    due = layer.next_wake()
    return world.timing.rescan if due is None else max(0.0, min(due, world.timing.rescan))


def _rest(layer: Process, life: Incarnation, world: Runtime, waker: EventLoop, seen: Fingerprint | None) -> tuple[int,
                                                                                                                  ...]:
    """Sleep until an event, or until the timer finds that something may be to do; returns the signals heard.

    The first sleep is a rescan's, so that an event lost while the watches were set costs no more; later ones are naps,
    unless files cannot be watched.
    """
    due, pause = layer.next_wake(), _pause(layer, world)
    end = world.clock.monotonic() + (max_age(world.timing) if due is None else min(due, max_age(world.timing)))
    while True:
        wake = waker.wait(pause)
        now = world.clock.monotonic()
        if wake or seen is None or now >= end or layer.glance() != seen:
            return wake.signals
        life.beat()
        if waker.sees_files and layer.naps:
            pause = min(check_interval(world.timing), end - now)


class RepeatedErrors:
    """What went wrong turn after turn: said once, and timed while it lasts."""

    def __init__(self) -> None:
        self.last, self.since = "", 0.0

    def clear(self) -> None:
        """A turn went well."""
        self.last = ""

    def hear(self, text: str, now: float) -> None:
        """Say `text` unless it was the last one too; `since` is when it began, monotonic seconds."""
        if text != self.last:
            log_line(f"{text}; going on, will try again")
            self.last, self.since = text, now

    def outlasts(self, patience: float, now: float) -> bool:
        """Whether the last one has lasted longer than `patience` seconds; if so it is timed anew."""
        if now - self.since <= patience:
            return False
        self.since = now
        return True


def _guarded_turn(layer: Process, life: Incarnation, world: Runtime, complaints: RepeatedErrors) -> bool:
    """One turn between two looks at the life lock: a life whose home was removed must not make it anew.

    A damaged record that nobody mends in time is raised: it would keep the layer from ending, too.
    """
    now = world.clock.monotonic()
    if not _beat(life, world, complaints, now):
        return False
    try:
        again = layer.turn()
    except (Fenced, LockLost):
        raise
    except GarrisonError as error:
        complaints.hear(str(error), now)
        damaged = isinstance(error, RecordError)
        if not damaged and _no_room(error, world):
            complaints.since = now  # whatever failed for want of it: it is waited for, as the launcher tells
            return False
        if complaints.outlasts(world.timing.damage_patience if damaged else world.timing.git_patience, now):
            if damaged:
                raise  # the life ends with it, not the node: whoever mends the record lets it go on
            layer.trouble(str(error))
        return False
    except OSError as error:
        if error.errno not in TRANSIENT_ERRNOS:
            raise
        complaints.hear(f"{error.strerror}: {error.filename or world.home}", now)
        return False
    complaints.clear()
    if layer.exit_code is None:
        _beat(life, world, complaints, now)
    return again


def _no_room(error: GarrisonError, world: Runtime) -> bool:
    """Whether git failed because a disk is full; its first line often names only what it could not write."""
    places = (world.home, Path(world.environ.get("GARRISON_TREES", world.home)))
    return disk_space.reports_no_space(getattr(error, "stderr",
                                               "")) or any(disk_space.is_full(place) for place in places)


def _beat(life: Incarnation, world: Runtime, complaints: RepeatedErrors, now: float) -> bool:
    """Whether a life sign could be given; LockLost if the home will take none any more (read-only, unmounted)."""
    try:
        life.beat()
    except OSError as error:
        if error.errno not in TRANSIENT_ERRNOS:
            raise LockLost(f"{world.home} takes no life sign any more ({error.strerror}); stopping in order") from error
        complaints.hear(f"{error.strerror}: {world.home}", now)
        return False
    return True


def _hear(layer: Process, number: int) -> None:
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        layer.stop(number)


def exit_gracefully(life: Incarnation, reason: str, code: int = 0) -> int:
    """End in order; returns `code`. An own record that is damaged is said, and keeps nobody from going."""
    try:
        life.end(reason, code)
    except RecordError as error:
        log_line(str(error))
    return code


def log_line(text: str) -> None:
    """A line in the layer's log; one that finds no room (or no terminal) any more is kept for the next."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
