"""Abandoned locks: files that a killed git left in a repository, at which every later git would fail.

Git locks a ref, the packed refs or the configuration by a file `<name>.lock` beside it, and removes that when it ends;
one that is killed cannot. Such a lock is abandoned once it is old and no git works in the repository that was there
already when the lock was made. Locks of an index are left alone: a person's merge or commit may hold one for hours, and
those of worktrees whose process died are removed by `Worktrees.clear_locks`.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.system.git.configuration import find_git_dirs
from garrison.system.processes import TICKS_PER_SECOND, list_processes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OWN_SECONDS = 10.0
"""Age at which the lock of a ref that only garrison writes may be abandoned: its own git holds one for milliseconds."""
SECONDS = 60.0
"""Age at which another one may be: an editor's own git, or one in a container, is not seen among the processes."""
_MARGIN = 1.0
"""Seconds by which the times of a process and of a file may differ."""
_OWN = ("refs/heads/garrison", "refs/garrison")
_FILES = ("packed-refs.lock", "config.lock")
"""Locks in the common directory itself; the others lie beside their refs."""
_NAMED = re.compile(r"Unable to create '([^'\n]+)\.lock': File exists|"
                    r"could not lock config file ([^:\n]+): File exists")


def remove_named(errors: str, root: Path, common: Path) -> bool:
    """Remove the abandoned locks that git's messages name, which ran in `root`; return whether one was removed."""
    named = [root / f"{match[1] or match[2]}.lock" for match in _NAMED.finditer(errors)]
    left = [lock for lock in named if _may_remove(lock, common) and is_abandoned(lock, common)]
    return bool(left and remove(left, common))


def find(common: Path) -> list[Path]:
    return [lock for lock in _locks(common) if is_abandoned(lock, common)]


def remove(locks: Iterable[Path], common: Path) -> list[Path]:
    """Remove the abandoned ones of these locks, and return them."""
    removed: list[Path] = []
    directory = os.open(common, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # one process at a time: another one may have removed this lock since, and a later git may have made it again
        fcntl.flock(directory, fcntl.LOCK_EX)
        for lock in locks:
            if is_abandoned(lock, common):
                with suppress(FileNotFoundError):
                    lock.unlink()
                    removed.append(lock)
    finally:
        os.close(directory)
    return removed


def is_abandoned(lock: Path, common: Path) -> bool:
    """Return whether a lock is old, and no git works in the repository that may have made it."""
    try:
        age = time.time() - lock.stat().st_mtime
    except OSError:
        return False
    is_own = any(lock.is_relative_to(common / place) for place in _OWN)
    if age <= (OWN_SECONDS if is_own else SECONDS):
        return False
    booted = time.clock_gettime(time.CLOCK_BOOTTIME)
    return not any(booted - row.ticks / TICKS_PER_SECOND >= age - _MARGIN and _works_in(row.pid, common)
                   for row in list_processes() if row.comm == "git" or row.comm.startswith("git-"))


def _locks(common: Path) -> Iterator[Path]:
    yield from (path for name in _FILES if (path := common / name).exists())
    yield from sorted((common / "refs").rglob("*.lock"))


def _may_remove(lock: Path, common: Path) -> bool:
    """Return whether a path that git named is a lock of the repository's refs, packed refs or configuration."""
    place = lock.parent.resolve()
    return place.is_relative_to(common / "refs") or (place == common and lock.name in _FILES)


def _works_in(pid: int, common: Path) -> bool:
    """Return whether a git process works in the repository; True if it is another user's, and cannot be inspected."""
    try:
        where = Path(f"/proc/{pid}/cwd").readlink()
        said = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return False
    except OSError:
        return True
    dirs = find_git_dirs(where)
    return os.fsencode(common) in said or where.is_relative_to(common) or (dirs is not None and dirs.common == common)
