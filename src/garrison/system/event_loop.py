"""Event loop: sleep until a process ends, a file changes, a signal arrives, a descriptor is readable or a timer fires.

Every event is a hint: the caller rescans anyway, so a lost event costs one timer period, never a stall. Process ends
come through verified pidfds (also for non-children), file changes through inotify, signals through a wake-up fd.
`FolderChanges` gives the web server's own asyncio loop the same file events through a file descriptor.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import inotify_simple
from inotify_simple import INotify, flags

from garrison.system import processes
from garrison.system.processes import ProcessId
from garrison.values import Value

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1)
"""Signals that wake a process by default."""
_MASK = (flags.MOVED_TO | flags.CREATE | flags.CLOSE_WRITE | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR)
# The C library of this process; otherwise the package runs `ldconfig` to find its name, 4 ms of each process's start.
inotify_simple._libc = ctypes.CDLL(None, use_errno=True)
_FILE_MASK = flags.MODIFY | flags.ATTRIB | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONESHOT
"""A file replaced by renaming another over it shows as ATTRIB (it loses its last link)."""


class Wakeup(Value):
    """Reason why `wait` returned; all empty: timeout. `signals` are in order of arrival, with repetitions."""

    signals: tuple[int, ...] = ()
    processes: frozenset[ProcessId] = frozenset()
    directories: frozenset[Path] = frozenset()
    descriptors: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.signals or self.processes or self.directories or self.descriptors)


class EventLoop:
    """Waits for process ends, file changes and signals. Create it in the main thread, once per process.

    `close` restores the signal handlers that it replaced. If no inotify instance is left (a user has 128 by default),
    only the timer notices files, and `watches_files` is False.
    """

    def __init__(self, handled: Sequence[int] = SIGNALS) -> None:
        # Not epoll: its watches are limited per user, and an agent may have used them all.
        self._poll = select.poll()
        self._is_closed = False
        self._pidfds: dict[ProcessId, int] = {}
        self._by_fd: dict[int, ProcessId] = {}
        self._ended: set[ProcessId] = set()
        self._unreported: set[ProcessId] = set()
        self._watches: dict[int, Path] = {}
        self._questions: dict[int, Callable[[set[str]], object]] = {}
        """Watch → what decides whether a change concerns the caller."""
        self._descriptors: set[int] = set()
        self._inotify = _open_inotify()
        if self._inotify is not None:
            self._poll.register(self._inotify.fileno(), select.POLLIN)
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._read_end, select.POLLIN)
        self._old_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._old_handlers = {number: signal.signal(number, _on_signal) for number in handled}

    @property
    def watches_files(self) -> bool:
        """Return whether directories can be watched; if not, only the timer notices their changes."""
        return self._inotify is not None

    def watch_process(self, pid: int, ticks: int) -> bool:
        """Wake when exactly that process ends. Idempotent. Return False if it has ended; `wait` reports that once."""
        process = ProcessId(pid, ticks)
        if process in self._pidfds:
            return True
        if process in self._ended:
            return False
        pidfd = processes.open_verified(pid, ticks)
        if pidfd is None:
            self._ended.add(process)
            self._unreported.add(process)
            return False
        self._pidfds[process] = pidfd
        self._by_fd[pidfd] = process
        self._poll.register(pidfd, select.POLLIN)
        return True

    def watch_directory(self, path: Path, concerns: Callable[[set[str]], object] | None = None) -> bool:
        """Wake when a file appears, is moved in or written in `path`, or `path` is removed.

        Idempotent; call again after the directory was replaced. Return False if it cannot be watched
        (absent, or no watches left): then the timer notices changes.

        Args:
            concerns: called with the names of changed files; if it returns a false value, `wait` sleeps on.
        """
        if (watch := self._add_watch(path, _MASK)) is None:
            return False
        if concerns is not None:
            self._questions[watch] = concerns
        # A renamed folder keeps its watch, whose events no longer concern this path.
        for other in [number for number, watched in self._watches.items() if watched == path and number != watch]:
            self._unwatch(other)
        return True

    def watch_file(self, path: Path) -> bool:
        """Wake once when the file `path` is written, replaced or removed; call again for the next change.

        Return False if it cannot be watched (absent, or no watches left): then the timer notices changes.
        """
        return self._add_watch(path, _FILE_MASK) is not None

    def _add_watch(self, path: Path, mask: int) -> int | None:
        if self._inotify is not None:
            with suppress(OSError):  # the path is absent, or the user has no watch left
                watch: int = self._inotify.add_watch(path, mask)
                self._watches[watch] = path
                return watch
        return None

    def watch_descriptor(self, descriptor: int) -> None:
        """Wake while a descriptor of the caller's is readable. Idempotent; forget it before it is closed."""
        self._poll.register(descriptor, select.POLLIN)
        self._descriptors.add(descriptor)

    def forget_descriptor(self, descriptor: int) -> None:
        """Stop watching that descriptor, if it is watched."""
        if descriptor in self._descriptors:
            self._descriptors.discard(descriptor)
            self._poll.unregister(descriptor)

    def wait(self, timeout_s: float) -> Wakeup:
        """Sleep until something happens, at most `timeout_s` seconds; drain all pending events."""
        until = time.monotonic() + timeout_s
        while True:
            wakeup = self._wait_once(timeout_s)
            timeout_s = until - time.monotonic()
            if wakeup or timeout_s <= 0:
                return wakeup

    def _wait_once(self, timeout_s: float) -> Wakeup:
        """Sleep until the kernel reports something, which need not concern the caller."""
        # Rounded up: a loop that wakes a fraction of a millisecond early finds nothing due, and spins.
        ready = self._poll.poll(0 if self._unreported else math.ceil(max(0.0, timeout_s) * 1000))
        for fd in [fd for fd, events in ready if events & select.POLLNVAL]:  # closed since
            self._poll.unregister(fd)
            self._descriptors.discard(fd)
        fds = {fd for fd, events in ready if not events & select.POLLNVAL}
        directories = self._drain_inotify() if self._inotify and self._inotify.fileno() in fds else frozenset()
        ended = {self._by_fd[fd] for fd in fds if fd in self._by_fd}
        for process in ended:
            self._close_pidfd(process)
        self._ended |= ended
        reported, self._unreported = ended | self._unreported, set()
        signals = self._drain_signals()
        return Wakeup(signals, frozenset(reported), directories, frozenset(fds & self._descriptors))

    def close(self) -> None:
        """Close everything and restore the signal handlers. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for process in list(self._pidfds):
            self._close_pidfd(process)
        if self._inotify is not None:
            self._inotify.close()
        os.close(self._read_end)
        os.close(self._write_end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _close_pidfd(self, process: ProcessId) -> None:
        pidfd = self._pidfds.pop(process, None)
        if pidfd is not None:
            del self._by_fd[pidfd]
            self._poll.unregister(pidfd)
            os.close(pidfd)

    def _unwatch(self, watch: int) -> None:
        self._forget(watch)
        if self._inotify is not None:
            with suppress(OSError):  # the directory is gone, and so is its watch
                self._inotify.rm_watch(watch)

    def _forget(self, watch: int) -> None:
        del self._watches[watch]
        self._questions.pop(watch, None)

    def _drain_inotify(self) -> frozenset[Path]:
        assert self._inotify is not None
        touched: set[Path] = set()
        named: dict[int, set[str]] = {}
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:  # the kernel dropped events, of any folder
                touched.update(self._watches.values())
            elif event.wd not in self._watches or _is_temporary(event.name):
                continue
            elif event.name and event.wd in self._questions:
                named.setdefault(event.wd, set()).add(event.name)
            else:
                touched.add(self._watches[event.wd])
                if event.mask & flags.IGNORED:
                    self._forget(event.wd)
        touched.update(self._watches[watch] for watch, names in named.items()
                       if watch in self._watches and self._questions[watch](names))
        return frozenset(touched)

    def _drain_signals(self) -> tuple[int, ...]:
        received = b""
        with suppress(BlockingIOError):
            while chunk := os.read(self._read_end, 4096):
                received += chunk
        return tuple(received)


def _is_temporary(name: str) -> bool:
    """Return whether a file is one that `atomic.write` is about to rename, which is an event of its own."""
    return name.startswith(".") and name.endswith(".tmp")


def _open_inotify() -> INotify | None:
    try:
        return INotify(nonblocking=True)
    except OSError:
        return None


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python writes a signal's number to the wake-up fd only if a handler is installed."""


_CHANGES_MASK = flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.ONLYDIR


class FolderChanges:
    """File changes in folders, not in their subfolders. Without an inotify instance, nothing (`fileno` is None)."""

    def __init__(self) -> None:
        self._inotify = _open_inotify()
        self._folders: dict[int, Path] = {}

    def fileno(self) -> int | None:
        return self._inotify.fileno() if self._inotify is not None else None

    def watch(self, folder: Path) -> None:
        """Watch a folder. Idempotent; an absent one is ignored."""
        if self._inotify is not None:
            with suppress(OSError):
                self._folders[self._inotify.add_watch(folder, _CHANGES_MASK)] = folder

    def forget(self, folder: Path) -> None:
        """Stop watching a folder."""
        for number in [number for number, watched in self._folders.items() if watched == folder]:
            del self._folders[number]
            if self._inotify is not None:
                with suppress(OSError):  # the folder is gone, and so is its watch
                    self._inotify.rm_watch(number)

    def read(self) -> set[Path] | None:
        """Return the files written or created since the last call; None if events were lost."""
        changed: set[Path] = set()
        lost = False
        for event in self._inotify.read(timeout=0) if self._inotify is not None else []:
            if event.mask & flags.Q_OVERFLOW:
                lost = True
            elif event.wd in self._folders:
                changed.add(self._folders[event.wd] / event.name)
        return None if lost else changed

    def close(self) -> None:
        """Close the inotify instance. Idempotent."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
