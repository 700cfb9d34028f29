"""The loop of every process: turn (observe, decide, act) → heartbeat → wait.

A turn that did something is followed by another at once; a quiet one waits for a process exit, a file, a signal or the
slow timer. Heartbeats come only from here, after a finished check: a thread would beat for a dead loop.

Fingerprints save turns: a hundred waiting nodes are two hundred processes, and a full turn of each every second would
cost a fifth of a core. When only the timer fires, a process compares the state of its relevant files, and the
heartbeats of its children, with those before its last turn; while nothing changed (and for some seconds at most) it
skips the turn. The fingerprint is taken before a turn, so that a change during the turn counts as a change after it.
All these times are small fractions of the heartbeat timeout: with a short one every timer causes a full turn.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from garrison.errors import Fenced, GarrisonError, LockLost, RecordError
from garrison.records import atomic
from garrison.system import machine, untrusted
from garrison.system.clock import wait_until
from garrison.system.event_loop import EventLoop
from garrison.system.stamps import file_stamp
from garrison.system.terminal_text import clean_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from garrison.config import Timing
    from garrison.ends import Departure
    from garrison.processes.runtime import Runtime
    from garrison.supervise.incarnation import Incarnation
    from garrison.system.event_loop import Wakeup


_TEMPORARY = re.compile(
    r"(?<=\.)\d+(?:-\d+)?(?=\.tmp)|(?<=/tmp_obj_)\w+|(?<=/tmp_pack_)\w+|(?<=/objects-)\d+-\w+")
"""Unique parts of the names of temporary files, garrison's and git's."""
OF_ATTEMPT = ("runner", "orchestrator")
"""Roles whose processes work on one attempt."""
HINDERED = {"runner": "hindered-runner", "orchestrator": "hindered-agent", "guardian": "hindered-guardian",
            "processor": "hindered-processor", "launch": "hindered-launch"}
"""Role → file of its attempt's, or its run's, folder with the hindrance: git, a disk or the repository."""
TELL_SECONDS = 2.0
"""Seconds after which that file also reports an error that is not the machine's, in a process that keeps retrying."""
FENCED_EXIT = 75
"""Exit code of a process that was fenced or lost its life lock (EX_TEMPFAIL)."""

UNWATCHED_RESCANS = 5
"""Rescans between two fingerprints of an idle process without inotify: a user has 128 instances by default, a hundred
agents have two hundred processes, and one fingerprint a second of each would cost 3 % of a core."""

HOME_REMOVAL = 1.0
"""Seconds in which the removal of a home completes after its life files are gone."""

WAKING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""Signals that wake the loop."""

BLOCKED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a command blocks before it becomes a process of a run, until that process's event loop handles them: a
Ctrl-C in between is not lost."""


class Process(Protocol):
    """A process of a run, driven by the loop."""

    is_event_driven: bool
    """True if events announce every relevant change; else its fingerprint is compared at each rescan."""

    def turn(self) -> bool:
        """Observe, decide, act once; return whether another turn should follow at once."""

    def fingerprint(self) -> Fingerprint | None:
        """Return a value that changes whenever a turn would have something to do, except for time (`next_wake`) and the
        exits of watched processes; None if only a full turn can tell."""

    def watch(self, event_loop: EventLoop) -> None:
        """Register the processes and files that wake the loop early."""

    def next_wake(self) -> float | None:
        """Return the seconds until something is due; None if only the timer matters."""

    def stop(self, signum: int) -> None:
        """Stop gracefully, on a Unix signal."""

    def abandon(self, why: str) -> None:
        """Kill its own children and write nothing: the incarnation is fenced."""

    def handle_persistent_error(self, why: str) -> None:
        """Handle an error (git, a corrupt record) that made every turn fail for longer than the patience allows.

        The turn is retried anyway; this is called again each time the patience runs out.
        """

    @property
    def exit_code(self) -> int | None:
        """Return the exit code once the process is done."""


def run(process: Process, incarnation: Incarnation, runtime: Runtime, event_loop: EventLoop | None = None,
        told: Path | None = None) -> int:
    """Drive `process` to its end; return its exit code. `told`: file for the reason of its waits."""
    event_loop = event_loop or EventLoop(WAKING_SIGNALS)
    errors, watch_errors = RepeatedErrors(told), RepeatedErrors()
    try:
        while True:
            fingerprint = process.fingerprint()  # before the turn: a change during it must show afterwards
            is_busy = _guarded_turn(process, incarnation, runtime, errors)
            if process.exit_code is not None:
                return process.exit_code
            # As a subreaper it is the parent of its dead children's descendants: if not reaped, they stay as
            # zombies.
            runtime.processes.reap()
            is_watching = _watch(process, event_loop, watch_errors, runtime)
            if is_busy:
                received = event_loop.wait(0.0).signals
            elif errors.last or not is_watching:
                # The exit of the git that failed must not wake the loop: it would retry without a pause.
                received = (*event_loop.wait(0.0).signals, *event_loop.wait(_pause(process, runtime)).signals)
            elif is_more_than_own_children(during := event_loop.wait(0.0)):
                received = during.signals
            else:
                received = _wait(process, incarnation, runtime, event_loop, fingerprint)
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


def is_more_than_own_children(during: Wakeup) -> bool:
    """Return whether the events during a turn require another one. Pure.

    A turn that runs git gets its SIGCHLD. If that caused the next turn, such a process would never sleep. The end
    of a watched process is known by its pidfd, not by the signal.
    """
    others = during.processes or during.directories or during.descriptors
    return bool(others) or any(signum != signal.SIGCHLD for signum in during.signals)


def _await_removal(home: Path) -> None:
    """Wait while a home is removed file by file: the first removal wakes this process, which must not take the home for
    an intact one."""
    wait_until(lambda: not (home / "identities").is_dir(), HOME_REMOVAL, 0.02)


def _watch(process: Process, event_loop: EventLoop, errors: RepeatedErrors, runtime: Runtime) -> bool:
    """Register what wakes the loop; False if there is no descriptor left: then every rescan causes a turn."""
    try:
        process.watch(event_loop)
    except OSError as error:
        if error.errno not in machine.ERRNOS:
            raise
        errors.add(f"cannot watch processes and files: {error.strerror}", runtime.clock.monotonic())
        return False
    errors.clear()
    return True


def _pause(process: Process, runtime: Runtime) -> float:
    due = process.next_wake()
    return runtime.timing.rescan if due is None else max(0.0, min(due, runtime.timing.rescan))


def _wait(process: Process, incarnation: Incarnation, runtime: Runtime, event_loop: EventLoop,
          fingerprint: Fingerprint | None) -> tuple[int, ...]:
    """Sleep until an event, or until a timer finds that something may be due; return the received Unix signals.

    The first sleep is as long as a rescan, so that an event lost while the watches were set costs no more; later ones
    are longer. Where files cannot be watched, they grow more slowly, to a few rescans at most.
    """
    due, pause = process.next_wake(), _pause(process, runtime)
    longest = max_age(runtime.timing)
    end = runtime.clock.monotonic() + (longest if due is None else min(due, longest))
    while True:
        wakeup = event_loop.wait(pause)
        now = runtime.clock.monotonic()
        if wakeup or fingerprint is None or now >= end or process.fingerprint() != fingerprint:
            return wakeup.signals
        # A comparison without a difference is a complete check: it beats like a turn.
        incarnation.beat()
        if process.is_event_driven:
            slower = (check_interval(runtime.timing) if event_loop.watches_files
                      else min(2 * pause, UNWATCHED_RESCANS * runtime.timing.rescan))
            pause = min(slower, end - now)


def read_hindrance(folder: Path) -> str:
    """Return what hinders the processes of an attempt, or of a run (git, a disk, the repository); '' for nothing.

    `folder` is the attempt's, or the run's.
    """
    return next((text for name in HINDERED.values() if (text := untrusted.read_text(folder, name).strip())), "")


class RepeatedErrors:
    """An error that makes consecutive turns fail: logged once, and timed while it lasts."""

    def __init__(self, told: Path | None = None) -> None:
        """Start without one. `told`: file for the reason of the wait, for `status`."""
        self.last, self.since, self._told = "", 0.0, told
        self._tells_all = told is not None and told.name not in map(HINDERED.get, OF_ATTEMPT)
        self._logged: set[str] = set()
        """Errors that were logged since the last success: two may alternate."""

    def clear(self) -> None:
        """Forget the error: a turn succeeded."""
        if self.last and self._told is not None:
            with contextlib.suppress(OSError):
                self._told.unlink(missing_ok=True)
        self.last = ""
        self._logged.clear()

    def tell(self, why: str) -> None:
        """Write the reason of the wait, unless it is already there: the file's age is the duration of the wait."""
        if self._told is not None:
            with contextlib.suppress(OSError):
                if not self._told.exists():
                    atomic.write(self._told, f"{strip_temporary_names(why)}\n".encode(), durable=False)

    def add(self, text: str, now: float) -> None:
        """Log `text` unless the same was logged before; `now` is monotonic seconds."""
        meaning = strip_temporary_names(text)
        if meaning not in self._logged:
            log_line(f"{text}; trying again")
            self._logged.add(meaning)
        if meaning != self.last:
            self.last, self.since = meaning, now
        if self._tells_all and now - self.since > TELL_SECONDS:
            self.tell(text)

    def has_lasted(self, patience: float, now: float) -> bool:
        """Return whether the error has lasted longer than `patience` seconds; if so, restart the timer."""
        if now - self.since <= patience:
            return False
        self.since = now
        return True


def strip_temporary_names(text: str) -> str:
    """Return a message without the parts that differ between tries: random parts of temporary files' names. Pure."""
    return _TEMPORARY.sub("", text)


def _guarded_turn(process: Process, incarnation: Incarnation, runtime: Runtime, errors: RepeatedErrors) -> bool:
    """Take one turn between two checks of the life lock: a process whose home was removed must not create it again.

    The error of a damaged record that is not repaired in time is raised: it would also keep the process from ending.
    """
    now = runtime.clock.monotonic()
    if not _beat(incarnation, runtime, errors, now):
        return False
    try:
        is_busy = process.turn()
    except (Fenced, LockLost):
        raise
    except GarrisonError as error:
        errors.add(str(error), now)
        is_damage = isinstance(error, RecordError)
        if not is_damage and (machine.is_shortage(error) or machine.passes(error) or _is_disk_full(runtime)):
            errors.since = now  # wait however long it takes; status and the launcher report it
            errors.tell(str(error))
            return False
        if errors.has_lasted(runtime.timing.damage_patience if is_damage else runtime.timing.git_patience, now):
            if is_damage:
                raise  # ends this incarnation, not its node: once the record is repaired, a successor continues
            process.handle_persistent_error(str(error))
        return False
    except (ImportError, OSError) as error:
        if not _passes(error, errors, runtime, now):
            raise
        return False
    errors.clear()
    # Again after the turn, which may have taken minutes (a checkout): else the heartbeat would be as old as its start.
    if process.exit_code is None:
        _beat(incarnation, runtime, errors, now)
    return is_busy


def _passes(error: ImportError | OSError, errors: RepeatedErrors, runtime: Runtime, now: float) -> bool:
    """Record an error that is not this process's fault: the machine's, or an upgrade that has removed garrison."""
    if machine.is_own(error):
        # The import system caches the listing of a folder by its mtime: a file that pip restores within the same tick
        # of the clock would stay missing for this process.
        importlib.invalidate_caches()
        errors.add(f"a part of garrison is missing ({error}; is an upgrade under way?)", now)
        is_replaced = machine.is_replaced(error)
        return not errors.has_lasted(machine.REPLACED_PATIENCE if is_replaced else machine.LONG_PATIENCE, now)
    if not isinstance(error, OSError) or not machine.passes(error):
        return False
    errors.add(f"{error.strerror}: {error.filename or runtime.home}", now)
    errors.tell(f"{error.strerror}: {error.filename or runtime.home}")
    return True


def _is_disk_full(runtime: Runtime) -> bool:
    """Return whether a disk is full; the error itself does not always show it."""
    return any(map(machine.is_full, (runtime.home, Path(runtime.environ.get("GARRISON_TREES", runtime.home)))))


def _beat(incarnation: Incarnation, runtime: Runtime, errors: RepeatedErrors, now: float) -> bool:
    """Return whether a heartbeat was written; LockLost if the home is no longer writable (read-only, unmounted)."""
    try:
        incarnation.beat()
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) or not machine.passes(error):
            raise LockLost(f"{runtime.home} is no longer writable ({error.strerror}); stopping") \
                from error
        errors.add(f"{error.strerror}: {runtime.home}", now)
        return False
    return True


def exit_gracefully(incarnation: Incarnation, reason: str, departure: Departure, code: int = 0,
                    death_class: str = "") -> int:
    """Record the end of this incarnation; return `code`. A damaged record is logged and stops nothing."""
    try:
        incarnation.end(reason, departure, code, death_class)
    except RecordError as error:
        log_line(str(error))
    return code


def log_line(text: str) -> None:
    """Write a line to the process's log; without space or a terminal the line is lost.

    Its text may be an agent's, and the launcher's log may be the user's terminal.
    """
    with contextlib.suppress(OSError):
        print("\n".join(clean_lines(text)), file=sys.stderr, flush=True)


# ---- fingerprints ----------------------------------------------------------------------------------------------------

Fingerprint = tuple[tuple[int, ...] | None, ...]
"""Stamps of files; equal ones mean that nothing has changed."""

_LONGEST = 60.0
"""Most seconds between two full turns."""


def max_age(timing: Timing) -> float:
    """Return the seconds for which equal fingerprints may replace full turns."""
    return min(_LONGEST, timing.beat_timeout / 5)


def check_interval(timing: Timing) -> float:
    """Return the seconds between two fingerprints of an event-driven process; its heartbeat may be that old."""
    return max(timing.rescan, max_age(timing) / 2)


def heartbeat_limit(timing: Timing) -> float:
    """Return the age of a heartbeat (seconds) after which a child is observed every second: it may hang."""
    return 2.5 * check_interval(timing)


def fingerprint_of(paths: Iterable[str]) -> Fingerprint:
    """Return stamps that change when any of these files or directories does; None for an absent one."""
    return tuple(file_stamp(path) for path in paths)


def identify_folders(paths: Iterable[str]) -> Fingerprint:
    """Return stamps that change when one of these folders is removed or replaced, unless the new one gets the same
    inode number, but not with its content."""
    return tuple(stamp and stamp[:1] for stamp in map(file_stamp, paths))


def all_beating(life_files: Iterable[str], monotonic: float, limit: float) -> bool:
    """Return whether each of these life files has a heartbeat within the last `limit` seconds of this boot's clock."""
    try:
        # `LifeLock.beat` writes CLOCK_MONOTONIC as the access time, so that no step of the wall clock ages a heartbeat.
        # Below zero it is one of an earlier boot.
        return all(0.0 <= monotonic - os.stat(path).st_atime <= limit for path in life_files)  # noqa: PTH116
    except OSError:
        return False
