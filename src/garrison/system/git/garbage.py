"""Garbage collection of the user's: a `git gc --prune=now` takes objects that no ref had yet when it looked.

What garrison writes has a ref within milliseconds, but a gc may look in between: the ref then points to what is gone,
and the user's own `git gc` fails from then on. So whoever has set a ref asks a `GcWatch` whether that can have been,
and looks; what is gone is written again while `hold_gc` keeps the next one out, by git's own lock. `write_held` does
that. An automatic gc spares what is younger than two weeks.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from garrison.errors import GarrisonError, Hindered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
_OURS = "garrison"
"""Third word in the lock that garrison holds; git reads two."""
_POLL = 0.05
HOLD_SECONDS = 20.0
"""Seconds to wait for the end of a gc, within one turn of a process."""


def is_gc_running(common: Path) -> bool:
    """Return whether a `git gc` that a user started runs in the repository with that common directory."""
    try:
        pid, *words = (common / "gc.pid").read_text().split()
        return _OURS not in words and b"--auto" not in Path(f"/proc/{int(pid)}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return False


class GcWatch:
    """Tells whether a `git gc` can have looked at the repository since it was made."""

    def __init__(self, common: Path) -> None:
        self.common = common
        self._stamp = None if is_gc_running(common) else self._look()

    def _look(self) -> int:
        """Return a stamp that each gc changes: it writes a pack."""
        with suppress(OSError):
            return (self.common / "objects/pack").stat().st_mtime_ns
        return 0

    def has_seen_gc(self) -> bool:
        """Return whether one ran when it was made, has run since, or runs."""
        return self._stamp is None or is_gc_running(self.common) or self._look() != self._stamp


@contextmanager
def hold_gc(common: Path, patience: float = HOLD_SECONDS) -> Iterator[None]:
    """Keep every `git gc` from starting, after the end of one that runs; Hindered if that takes longer than `patience`.

    Only for what takes moments: git refuses the user's gc with "gc is already running".
    """
    path, end = common / "gc.pid", time.monotonic() + patience
    line = f"{os.getpid()} {socket.gethostname()} {_OURS}\n".encode()
    while (descriptor := _take(path, common)) is None:
        if time.monotonic() > end:
            raise Hindered(f"a git gc runs in {common.parent}, which might take what is written meanwhile")
        time.sleep(_POLL)
    try:
        os.write(descriptor, line)
        os.close(descriptor)
        yield
    finally:
        with suppress(OSError):
            if path.read_bytes() == line:
                path.unlink()


def _take(path: Path, common: Path) -> int | None:
    """Create the lock, unless a gc or another process of garrison's has it; what a killed one left is removed."""
    if is_gc_running(common):
        return None
    with suppress(OSError, ValueError, IndexError):
        if not Path(f"/proc/{int(path.read_text().split()[0])}").exists():
            path.unlink()
    with suppress(FileExistsError):
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    return None


def write_held(common: Path, write: Callable[[], T], is_whole: Callable[[T], bool], undo: Callable[[], None]) -> T:
    """Do what writes objects and sets a ref to them; again while no gc can start, if one took what it wrote.

    `is_whole` tells whether the repository has all of a result, `undo` takes back a ref to what is gone.
    """
    watch = GcWatch(common)
    try:
        made = write()
        if not watch.has_seen_gc():
            return made
    except GarrisonError:  # git's, or that a commit is not there
        if not watch.has_seen_gc():
            raise
        with hold_gc(common):
            undo()
            return write()
    with hold_gc(common):
        if is_whole(made):
            return made
        undo()
        return write()
