"""Damage: what a killed git, a disk or the user's gc does to a repository, and its repair.

Abandoned locks are files of a killed git that would make every later git fail. git locks a ref, the packed refs or the
configuration by a file `<name>.lock` next to it, and removes that when it ends, unless it is killed. Such a lock is
abandoned once it is old and no git is running in the repository that already existed when the lock was made. Locks of
an index are left alone: the user's merge or commit may hold one for hours, and those of worktrees whose process died
are removed by `Worktrees.clear_locks`.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from garrison.errors import GarrisonError, Hindered
from garrison.system import untrusted
from garrison.system.git.neutral import find_git_dirs
from garrison.system.processes import TICKS_PER_SECOND, list_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

OWN_LOCK_SECONDS = 10.0
"""Age from which the lock of a ref that only garrison writes may be abandoned: its own git holds one for
milliseconds."""
LOCK_SECONDS = 60.0
"""The same for other locks: an editor's own git, or one in a container, is not visible among the processes."""
_MARGIN = 1.0
"""Seconds by which the times of a process and of a file may differ."""
_OWN = ("refs/heads/garrison", "refs/garrison")
_FILES = ("packed-refs.lock", "config.lock")
"""Locks in the common directory itself; the others are next to their refs."""
_NAMED = re.compile(r"Unable to create '([^'\n]+)\.lock': File exists|"
                    r"could not lock config file ([^:\n]+): File exists")


def remove_named(errors: str, root: Path, common: Path) -> bool:
    """Remove the abandoned locks named in the messages of a git that ran in `root`; return whether one was removed."""
    named = [root / f"{match[1] or match[2]}.lock" for match in _NAMED.finditer(errors)]
    left = [lock for lock in named if _may_remove(lock, common) and is_abandoned(lock, common)]
    return bool(left and remove_locks(left, common))


def find_locks(common: Path, at: float = LOCK_SECONDS) -> list[Path]:
    return [lock for lock in _locks(common) if is_abandoned(lock, common, at)]


def remove_locks(locks: Iterable[Path], common: Path, at: float = LOCK_SECONDS) -> list[Path]:
    """Remove the abandoned ones of these locks and return them."""
    removed: list[Path] = []
    directory = os.open(common, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # one process at a time: another one may have removed this lock, and a later git may have made it again
        fcntl.flock(directory, fcntl.LOCK_EX)
        for lock in locks:
            if is_abandoned(lock, common, at):
                with suppress(FileNotFoundError):
                    lock.unlink()
                    removed.append(lock)
    finally:
        os.close(directory)
    return removed


def is_abandoned(lock: Path, common: Path, at: float = LOCK_SECONDS) -> bool:
    """Return whether a lock is older than `at` seconds, and no running git in the repository can have made it."""
    try:
        age = time.time() - lock.stat().st_mtime
    except OSError:
        return False
    is_own = any(lock.is_relative_to(common / place) for place in _OWN)
    if age <= (OWN_LOCK_SECONDS if is_own else at):
        return False
    # Only a git that started before the lock can have made it; start ticks count from boot, like this clock.
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
    """Return whether a git process runs in the repository; True if it is another user's and cannot be inspected."""
    try:
        where = Path(f"/proc/{pid}/cwd").readlink()
        said = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has ended since
        return False
    except OSError:
        return True
    dirs = find_git_dirs(where)
    return os.fsencode(common) in said or where.is_relative_to(common) or (dirs is not None and dirs.common == common)


# ---- Registrations of worktrees, `.git/worktrees/NAME`: detect and repair damage.
#
# A power cut or a disk leaves zeroed or truncated files and flipped bits. The content of a file follows from the place
# of the entry (`commondir`), from the worktree that names it (`gitdir`), from its log or its branch (`HEAD`), or from
# the commit that is checked out (`index`). Files of the worktree are never touched. An entry that git is just creating
# is left alone.


_HEAD = re.compile(rb"(ref: refs/[^\0\n]+|[0-9a-f]{40}|[0-9a-f]{64})\n?\Z")
_INDEX = re.compile("index file|bad signature|bad index|unable to read [0-9a-f]{40}")
_MOVE = re.compile(rb"[0-9a-f]+ ([0-9a-f]{40,64}) ")


def find_damage(common: Path, entries: Iterable[Path] | None = None) -> Iterator[tuple[Path, str]]:
    """Yield each of these entries of a repository (None: all) with the name of a file in it that is damaged."""
    for entry in map(str, list_entries(common / "worktrees") if entries is None else entries):
        if not os.path.isdir(entry) or b"initializing" in _read(f"{entry}/locked"):  # noqa: PTH112  # of all worktrees
            continue
        is_usual = _read(f"{entry}/commondir") == b"../..\n" and not os.path.islink(entry)  # noqa: PTH114
        if not is_usual and _common_of(Path(entry)) != common:
            yield Path(entry), "commondir"
        link = _read(f"{entry}/gitdir")
        if not link.rstrip(b"\n").endswith(b"/.git") or b"\0" in link:
            yield Path(entry), "gitdir"
        if not _names_something(common, _read(f"{entry}/HEAD")):
            yield Path(entry), "HEAD"
        if _read(f"{entry}/index", 4) != b"DIRC" and os.path.exists(f"{entry}/index"):  # noqa: PTH110
            yield Path(entry), "index"


def list_entries(folder: Path, first: str = "") -> Iterator[Path]:
    """Yield the entries in a folder, none if it is not there; before, the one named `first`, which may be absent."""
    if first:
        yield folder / first
    with suppress(OSError):
        yield from (folder / name for name in sorted(os.listdir(folder)))  # noqa: PTH208  # names only


def _names_something(common: Path, head: bytes) -> bool:
    """Return whether a HEAD is complete: a truncated one may name a branch that does not exist."""
    found = _HEAD.match(head)
    ref = os.fsdecode(head.removeprefix(b"ref: ").rstrip(b"\n"))
    return found is not None and (not head.startswith(b"ref: refs/heads/garrison")
                                  or os.path.exists(f"{common}/{ref}")  # noqa: PTH110
                                  or f" {ref}\n".encode() in _read(common / "packed-refs", 1 << 26))


def mend_registration(common: Path, path: Path | None, told: str = "", *, others: bool = True) -> list[str]:
    """Repair the entry of the worktree `path` and, with `others`, the `commondir` of all others, since git fails on one
    that it cannot read; return what was repaired. `told`: git's message. The caller reads the index again if it is
    gone."""
    own, mended = _entry_of(common, path), list[str]()
    if own is not None and _INDEX.search(told):
        (own / "index").unlink(missing_ok=True)
        mended.append(f"{own.name}/index")
    damage = list(find_damage(common, None if others else filter(None, [own])))
    link = None if path is None else path.parent.resolve() / path.name / ".git"
    if own is not None and link is not None and not is_record_of(own, link):
        damage.append((own, "gitdir"))
    for entry, name in damage:
        content = b"../..\n" if name == "commondir" else b""
        if entry == own and link is not None and name == "gitdir":
            content = os.fsencode(link) + b"\n"
        elif entry == own and path is not None and name == "HEAD":
            content = _head_of(common, entry, path)
        if content:
            try:
                untrusted.write(entry, name, content)
            except untrusted.UnsafeFile:
                if entry.is_dir():
                    raise
                continue  # another process has removed this worktree since
        elif entry == own and name == "index":
            (entry / name).unlink(missing_ok=True)
        else:
            continue
        mended.append(f"{entry.name}/{name}")
    return mended


def _entry_of(common: Path, path: Path | None) -> Path | None:
    """Return the entry that the `.git` file of a worktree names; None if it is not in this repository."""
    if path is None:
        return None
    name = os.fsdecode(_read(path / ".git").removeprefix(b"gitdir: ").rstrip(b"\n"))
    entry = common / "worktrees" / os.path.basename(name)  # noqa: PTH119
    return entry if name and "\0" not in name and entry.is_dir() else None


def _head_of(common: Path, entry: Path, path: Path) -> bytes:
    """Return the correct HEAD: garrison's branch of that worktree, else the last commit in its log."""
    branch = f"refs/heads/garrison/{path.parent.name}/{path.name}"
    if _names_something(common, os.fsencode(f"ref: {branch}\n")):
        return os.fsencode(f"ref: {branch}\n")
    moves = _MOVE.findall(_read(entry / "logs/HEAD", 1 << 20))
    return moves[-1] + b"\n" if moves else b""


def is_record_of(entry: Path, link: Path) -> bool:
    """Return whether an entry belongs to the worktree with the `.git` file `link`, by git's records."""
    said = os.fsdecode(_read(f"{entry}/gitdir")).strip()
    if not said.endswith(f"/{link.parent.name}/.git"):  # another worktree's; resolving each takes milliseconds
        return False
    with suppress(OSError, ValueError):
        recorded = entry / said
        return recorded == link or recorded.parent.parent.resolve() / recorded.parent.name / ".git" == link
    return False


def _common_of(entry: Path) -> Path | None:
    with suppress(OSError, ValueError):
        return (entry / os.fsdecode(_read(entry / "commondir").rstrip(b"\n"))).resolve()
    return None


def _read(path: Path | str, size: int = 1 << 16) -> bytes:
    try:
        return read_beginning(path, size)
    except (OSError, ValueError):
        return b""


def read_beginning(path: Path | str, size: int = 1 << 16) -> bytes:
    """Return the first bytes of a file; OSError if it cannot be read. By descriptor: each git call reads several files,
    and a repository may have thousands of refs."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


# ---- Garbage collection by the user: a `git gc --prune=now` removes objects that had no ref when it scanned.
#
# What garrison writes has a ref within milliseconds, but a gc may scan in between: the ref then points to a missing
# object, and the user's `git gc` fails from then on. So after setting a ref, callers ask a `GcWatch` whether that is
# possible, and check; what is gone is written again while `hold_gc` blocks the next gc with git's own lock.
# `write_held` does all this. An automatic gc keeps what is younger than two weeks.


T = TypeVar("T")
_OURS = "garrison"
"""Third word in the lock that garrison holds; git reads only two."""
_POLL = 0.05
_EMPTY = 5.0
"""Seconds after which an empty lock counts as left by a killed process."""
HOLD_SECONDS = 20.0
"""Seconds to wait for the end of a gc, within one turn of a process."""


def is_gc_running(common: Path) -> bool:
    """Return whether a user's `git gc` is running in the repository with that common directory."""
    try:
        pid, *words = (common / "gc.pid").read_text().split()
        return _OURS not in words and b"--auto" not in Path(f"/proc/{int(pid)}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return False


class GcWatch:
    """Tells whether a `git gc` may have scanned the repository since this object was created."""

    def __init__(self, common: Path) -> None:
        self.common = common
        self._stamp = None if is_gc_running(common) else self._look()

    def _look(self) -> int:
        """Return a stamp that each gc changes: it writes a pack."""
        with suppress(OSError):
            return (self.common / "objects/pack").stat().st_mtime_ns
        return 0

    def has_seen_gc(self) -> bool:
        """Return whether one was running at creation, has run since, or is running."""
        return self._stamp is None or is_gc_running(self.common) or self._look() != self._stamp


@contextmanager
def hold_gc(common: Path, patience: float = HOLD_SECONDS) -> Iterator[None]:
    """Wait for a running `git gc` and block further ones; Hindered if that takes longer than `patience`.

    Only for short operations: git refuses the user's gc with "gc is already running".
    """
    path, end = common / "gc.pid", time.monotonic() + patience
    line = f"{os.getpid()} {socket.gethostname()} {_OURS}\n".encode()
    while (descriptor := _take(path, common)) is None:
        if time.monotonic() > end:
            raise Hindered(f"a git gc is running in {common.parent}, which might remove what is written now")
        time.sleep(_POLL)
    try:
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
        yield
    finally:
        with suppress(OSError):
            if line.startswith(path.read_bytes()):  # partial or empty, if the disk is full
                path.unlink()


def _take(path: Path, common: Path) -> int | None:
    """Create the lock, unless a gc or another garrison process has it; remove a killed one's."""
    if is_gc_running(common):
        return None
    with suppress(OSError, ValueError):
        words = path.read_text().split()
        # Empty: it is about to be written, or its creator was killed before that.
        if not Path("/proc", str(int(words[0]))).exists() if words else time.time() - path.stat().st_mtime > _EMPTY:
            path.unlink()
    with suppress(FileExistsError):
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    return None


def write_held(common: Path, write: Callable[[], T], is_whole: Callable[[T], bool], undo: Callable[[], None]) -> T:
    """Run a step that writes objects and sets a ref to them; if a gc removed them, repeat it while none can start.

    `is_whole` tells whether the repository has all of a result, `undo` removes a ref to what is gone.
    """
    watch = GcWatch(common)
    try:
        made = write()
        if not watch.has_seen_gc():
            return made
    except GarrisonError:  # git's error, or a missing commit
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
