"""Stamps: values that change whenever a file does, or anything below a folder, from a bounded walk."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from garrison.system import untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Stamp = tuple[int, int] | None

MAX_ENTRIES = 5000
"""Most entries of a folder that are counted."""


def file_stamp(path: str | Path) -> tuple[int, ...] | None:
    """Return a value that changes with a file; None if it cannot be read."""
    try:
        found = os.stat(path)  # noqa: PTH116  # at every heartbeat and git call; a Path each would double the cost
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def modified_at(path: Path, absent: float = 0.0) -> float:
    """Return when a file was last changed, in seconds since 1970; `absent` if it cannot be read."""
    try:
        return path.stat().st_mtime
    except OSError:
        return absent


def newest_entry(folder: Path, max_entries: int = MAX_ENTRIES) -> Stamp:
    """Return (newest modification time in ns, entries) below `folder`, up to `max_entries`; None if it is empty."""
    newest, count = 0, 0
    for modified in _walk(folder):
        newest, count = max(newest, modified), count + 1
        if count >= max_entries:
            break
    return (newest, count) if count else None


def _walk(folder: Path) -> Iterator[int]:
    """Yield the modification times of all entries below `folder`."""
    folders = [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    yield entry.stat(follow_symlinks=False).st_mtime_ns
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:  # removed during the walk
            continue


_NO_SOURCE = frozenset((".git", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".pytest_cache", ".mypy_cache",
                        ".ruff_cache"))
"""Folders of generated files, where changes are not work."""
_NO_SOURCES = (".pyc", ".log", ".coverage", ".swp", "~")
"""Suffixes of such files."""
_MAX_CONTENT = 1 << 20
"""Most bytes of a file that are compared."""
_COMMENT = re.compile(rb"(?:^|[ \t])(?:#|//|--)[ \t].*")
"""Comment up to the end of its line."""
_PROSE = (".md", ".rst", ".txt", ".adoc", ".tex")
"""Suffixes of files where it is not a comment."""
MAX_FILES = 50_000
"""Most files of a folder whose content is watched."""


class ContentWatch:
    """Watch the content of a folder that an agent works in: changing a file and changing it back is no change.

    Only files whose size or time differs from the start are read, and nothing outside the folder. A file that was
    changed before counts as changed again only if more than comments and empty lines differ.
    """

    def __init__(self, folder: Path, max_files: int = MAX_FILES) -> None:
        self._folder, self._max_files = folder, max_files
        self._first = self._list()
        self._known: dict[str, tuple[tuple[int, int], str]] = {}

    def state(self) -> object:
        """Return a value that differs whenever the content does; None if the folder has too many files."""
        present = self._list()
        if self._first is None or present is None:
            return None
        changed = {}
        for name in self._first.keys() | present.keys():
            if (stamp := present.get(name)) is None:
                changed[name] = ""
            elif stamp != self._first.get(name):
                if self._known.get(name, (None, ""))[0] != stamp:
                    self._known[name] = stamp, self._digest(name)
                changed[name] = self._known[name][1]
        return frozenset(changed.items())

    def _digest(self, name: str) -> str:
        try:
            data = untrusted.read(self._folder, name, _MAX_CONTENT)
        except (OSError, untrusted.UnsafeFile):
            return "?"  # a link or a pipe: only its existence counts
        data = data or b""
        if not name.endswith(_PROSE):
            data = b"\n".join(kept for line in data.split(b"\n") if (kept := _COMMENT.sub(b"", line).rstrip()))
        import hashlib  # imported late: it loads OpenSSL

        return hashlib.sha256(data).hexdigest()

    def _list(self) -> dict[str, tuple[int, int]] | None:
        """Return size and time of each file; None if there are too many."""
        found: dict[str, tuple[int, int]] = {}
        folders = [""]
        while folders:
            below = folders.pop()
            try:
                with os.scandir(self._folder / below) as entries:
                    for entry in entries:
                        name = f"{below}/{entry.name}" if below else entry.name
                        if entry.is_dir(follow_symlinks=False):
                            folders += [name] if entry.name not in _NO_SOURCE else []
                            continue
                        if name.endswith(_NO_SOURCES):
                            continue
                        stat = entry.stat(follow_symlinks=False)
                        found[name] = stat.st_size, stat.st_mtime_ns
            except OSError:  # removed during the walk
                continue
            if len(found) > self._max_files:
                return None
        return found
