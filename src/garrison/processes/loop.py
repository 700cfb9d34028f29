"""The one loop of all processes: turn (observe, decide, act) → heartbeat → wait. Short enough to read at once.

A turn that did something is followed by another at once; a quiet one waits for a process exit, a file, a signal or the
slow timer. When only the timer fires, the process's fingerprint is compared first: while it is unchanged (and for a few
seconds at most) the turn is spared. Heartbeats come only from here, after a finished check: a thread would beat for a
dead loop.
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
"""Errors of the machine, not of garrison: logged, and tried again at the next timer."""

FENCED_EXIT = 75
"""Exit code of a process that was fenced or lost its life lock (EX_TEMPFAIL)."""

HOME_REMOVAL = 1.0
"""Seconds within which a home whose life files are gone is gone itself."""

WAKING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""Signals that wake the loop."""

BLOCKED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Blocked by a command that becomes a process of a run, until that process's event loop handles them: a Ctrl-C in
between is not lost."""


class Process(Protocol):
    """A process of a run, as the loop drives it."""

    is_event_driven: bool
    """Whether an event announces everything that matters to it; else its fingerprint is compared at each rescan."""

    def turn(self) -> bool:
        """Observe, decide, act once; return True if another turn should follow at once."""

    def fingerprint(self) -> Fingerprint | None:
        """Return what would differ if a turn had anything to do, except for time (`next_wake`) and the ends of watched
        processes; None if only a whole turn can tell."""

    def watch(self, event_loop: EventLoop) -> None:
        """Register what should wake the loop early."""

    def next_wake(self) -> float | None:
        """Return the seconds until something is due, None if only the timer matters."""

    def stop(self, signum: int) -> None:
        """Stop gracefully: the process was asked to by a signal."""

    def abandon(self, why: str) -> None:
        """Kill one's own children and write nothing: the incarnation is fenced."""

    def handle_persistent_error(self, why: str) -> None:
        """Handle an error (git, a corrupt record) that has spoiled every turn for longer than is waited for.

        The turn is tried again anyway; this is called again each time that has passed once more.
        """

    @property
    def exit_code(self) -> int | None:
        """The exit code, once the process is done."""


def run(process: Process, me: Incarnation, runtime: Runtime, event_loop: EventLoop | None = None) -> int:
    """Drive `process` to its end; returns its exit code."""
    event_loop = event_loop or EventLoop(WAKING_SIGNALS)
    errors = RepeatedErrors()
    try:
        while True:
            seen = process.fingerprint()  # before the turn: what changes during it must differ afterwards
            again = _guarded_turn(process, me, runtime, errors)
            if process.exit_code is not None:
                return process.exit_code
            runtime.processes.reap()
            process.watch(event_loop)
            if again:
                received = event_loop.wait(0.0).signals
            elif errors.last:
                # The end of the git that failed must not wake the loop: it would retry without a pause.
                received = (*event_loop.wait(0.0).signals, *event_loop.wait(_pause(process, runtime)).signals)
            else:
                received = _wait(process, me, runtime, event_loop, seen)
            for signum in received:
                if signum in BLOCKED_SIGNALS:
                    process.stop(signum)
    except (Fenced, LockLost) as error:
        log_line(str(error))
        if isinstance(error, LockLost):
            _await_removal(runtime.home)
        process.abandon(str(error))
        return FENCED_EXIT
    finally:
        event_loop.close()


def _await_removal(home: Path) -> None:
    """Wait while a home is removed file by file: the process that the first removal wakes must not take it for one
    that stays."""
    end = time.monotonic() + HOME_REMOVAL
    while (home / "identities").is_dir() and time.monotonic() < end:
        time.sleep(0.02)


def _pause(process: Process, runtime: Runtime) -> float:
    due = process.next_wake()
    return runtime.timing.rescan if due is None else max(0.0, min(due, runtime.timing.rescan))


def _wait(process: Process, me: Incarnation, runtime: Runtime, event_loop: EventLoop,
          seen: Fingerprint | None) -> tuple[int, ...]:
    """Sleep until an event, or until the timer finds that something may be due; returns the signals received.

    The first sleep is a rescan's, so that an event that was lost while the watches were set costs no more; later ones
    are longer, unless files cannot be watched.
    """
    due, pause = process.next_wake(), _pause(process, runtime)
    longest = max_age(runtime.timing)
    end = runtime.clock.monotonic() + (longest if due is None else min(due, longest))
    while True:
        wakeup = event_loop.wait(pause)
        now = runtime.clock.monotonic()
        if wakeup or seen is None or now >= end or process.fingerprint() != seen:
            return wakeup.signals
        me.beat()
        if event_loop.sees_files and process.is_event_driven:
            pause = min(check_interval(runtime.timing), end - now)


class RepeatedErrors:
    """An error that spoils turn after turn: logged once, and timed while it lasts."""

    def __init__(self) -> None:
        self.last, self.since = "", 0.0

    def clear(self) -> None:
        """Forget it: a turn succeeded."""
        self.last = ""

    def add(self, text: str, now: float) -> None:
        """Log `text` unless it is the same as before; `now` is monotonic seconds."""
        if text != self.last:
            log_line(f"{text}; trying again")
            self.last, self.since = text, now

    def has_lasted(self, patience: float, now: float) -> bool:
        """Return whether the error has lasted longer than `patience` seconds; if so, its time begins again."""
        if now - self.since <= patience:
            return False
        self.since = now
        return True


def _guarded_turn(process: Process, me: Incarnation, runtime: Runtime, errors: RepeatedErrors) -> bool:
    """Do one turn between two checks of the life lock: a process whose home was removed must not create it again.

    A damaged record that is not repaired in time is raised: it would keep the process from ending, too.
    """
    now = runtime.clock.monotonic()
    if not _beat(me, runtime, errors, now):
        return False
    try:
        again = process.turn()
    except (Fenced, LockLost):
        raise
    except GarrisonError as error:
        errors.add(str(error), now)
        is_damage = isinstance(error, RecordError)
        if not is_damage and _is_disk_full(error, runtime):
            errors.since = now  # it is waited for, however long it lasts; the launcher tells the person
            return False
        if errors.has_lasted(runtime.timing.damage_patience if is_damage else runtime.timing.git_patience, now):
            if is_damage:
                raise  # this incarnation ends, the node does not: once the record is repaired, a successor goes on
            process.handle_persistent_error(str(error))
        return False
    except OSError as error:
        if error.errno not in TRANSIENT_ERRNOS:
            raise
        errors.add(f"{error.strerror}: {error.filename or runtime.home}", now)
        return False
    errors.clear()
    if process.exit_code is None:
        _beat(me, runtime, errors, now)
    return again


def _is_disk_full(error: GarrisonError, runtime: Runtime) -> bool:
    """Return whether git failed for want of space; its first line often names only what it could not write."""
    places = (runtime.home, Path(runtime.environ.get("GARRISON_TREES", runtime.home)))
    return disk_space.reports_no_space(getattr(error, "stderr", "")) or any(map(disk_space.is_full, places))


def _beat(me: Incarnation, runtime: Runtime, errors: RepeatedErrors, now: float) -> bool:
    """Return whether a heartbeat was written; LockLost if the home cannot take one any more (read-only, unmounted)."""
    try:
        me.beat()
    except OSError as error:
        if error.errno not in TRANSIENT_ERRNOS:
            raise LockLost(f"no heartbeat can be written to {runtime.home} any more ({error.strerror}); stopping") \
                from error
        errors.add(f"{error.strerror}: {runtime.home}", now)
        return False
    return True


def exit_gracefully(me: Incarnation, reason: str, code: int = 0) -> int:
    """Record the end of one's own incarnation; returns `code`. A damaged record is logged and stops nothing."""
    try:
        me.end(reason, code)
    except RecordError as error:
        log_line(str(error))
    return code


def log_line(text: str) -> None:
    """Write a line to the process's log; one that finds no space, or no terminal any more, is lost."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
