"""Which files of some folders were written, told to an event loop through a file descriptor.

As everywhere, what it tells is a hint: whoever acts on it looks at the files themselves, and again by a timer.
`waker` is the layers' own; it owns the process's signals, which a server leaves to its event loop.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from inotify_simple import INotify, flags

_MASK = flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.ONLYDIR


class Changes:
    """Watches folders, not what is below them. Without an inotify instance nothing is told (`fileno` is None)."""

    def __init__(self) -> None:
        try:
            self._inotify: INotify | None = INotify(nonblocking=True)
        except OSError:
            self._inotify = None
        self._folders: dict[int, Path] = {}

    def fileno(self) -> int | None:
        """What becomes readable when something was written."""
        return self._inotify.fileno() if self._inotify is not None else None

    def watch(self, folder: Path) -> None:
        """Watch a folder; again, and one that is not there, is no matter."""
        if self._inotify is not None:
            with suppress(OSError):
                self._folders[self._inotify.add_watch(folder, _MASK)] = folder

    def forget(self, folder: Path) -> None:
        """Watch it no longer."""
        for number in [number for number, known in self._folders.items() if known == folder]:
            del self._folders[number]
            if self._inotify is not None:
                with suppress(OSError):  # the folder is gone, and its watch with it
                    self._inotify.rm_watch(number)

    def read(self) -> set[Path] | None:
        """The files written or made since the last call; None if there were too many to tell."""
        found: set[Path] = set()
        lost = False
        for event in self._inotify.read(timeout=0) if self._inotify is not None else []:
            if event.mask & flags.Q_OVERFLOW:
                lost = True
            elif event.wd in self._folders:
                found.add(self._folders[event.wd] / event.name)
        return None if lost else found

    def close(self) -> None:
        """End it."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
