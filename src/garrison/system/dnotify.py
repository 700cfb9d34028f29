"""Directories watched through dnotify: for who finds no inotify instance, or leaves them to others.

A user has 128 inotify instances by default, and every editor wants one; a hundred agents would take them all. dnotify
knows no such limit. It tells by a signal (SIGIO) that something changed, not what and not where: enough for a hint.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_ENTRIES = fcntl.DN_CREATE | fcntl.DN_RENAME | fcntl.DN_DELETE | fcntl.DN_MULTISHOT
_CONTENT = fcntl.DN_CREATE | fcntl.DN_RENAME | fcntl.DN_DELETE | fcntl.DN_MODIFY


class DirectoryNotes:
    """The directories that one process watches; its own SIGIO handler must stand before the first of them."""

    def __init__(self) -> None:
        self._open: dict[tuple[Path, bool], int] = {}

    @classmethod
    def of_kernel(cls) -> DirectoryNotes | None:
        """None where the kernel was built without it, or has it switched off."""
        descriptor = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.fcntl(descriptor, fcntl.F_NOTIFY, 0)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return cls()

    @property
    def paths(self) -> frozenset[Path]:
        """What is watched."""
        return frozenset(path for path, _ in self._open)

    def watch(self, path: Path, *, once: bool = False) -> bool:
        """Tell of entries that come and go in directory `path`; `once`: of the next change of any kind, contents too.

        Idempotent, and needed again after the directory was replaced. False if it is not there.
        """
        try:
            descriptor = self._descriptor(path, once)
            fcntl.fcntl(descriptor, fcntl.F_NOTIFY, _CONTENT if once else _ENTRIES)
        except OSError:
            self._close(path, once)
            return False
        return True

    def _descriptor(self, path: Path, once: bool) -> int:
        now, known = path.stat(), self._open.get((path, once))
        if known is not None and os.path.samestat(os.fstat(known), now):
            return known
        self._close(path, once)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open[path, once] = descriptor
        return descriptor

    def forget(self, path: Path) -> None:
        """Stop watching `path`, if it is watched."""
        for once in (False, True):
            self._close(path, once)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        for path in self.paths:
            self.forget(path)

    def _close(self, path: Path, once: bool) -> None:
        descriptor = self._open.pop((path, once), None)
        if descriptor is not None:
            os.close(descriptor)
