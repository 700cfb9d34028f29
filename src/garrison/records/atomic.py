"""Atomic files: the only way to write a file, and the lock for changing a record.

`write` is atomic and durable: a reader sees the old bytes or the new ones, and after it returns the new ones survive a
power cut; with `named=False` a power cut leaves either, but always a whole one. `locked` is flock(2) on a file that is
never unlinked, so it and filelock's FileLock exclude each other on the same path.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING

from garrison.errors import LockLost, RecordUnreadable, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERIAL = count()
"""Serial numbers in the names of temporary files."""
_POLL = 0.002
"""Seconds between two tries for a lock with a timeout."""
_CHUNK = 1 << 16
_MISPLACED = frozenset({errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EEXIST,
                        errno.ENAMETOOLONG})
"""Errors that the user must fix: another kind of file has the name, or permission is missing. The rest are the
machine's."""


def read(path: Path) -> bytes | None:
    """Return the bytes of a record, None if it is absent; RecordUnreadable if it is not a file or may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise to_record_error(path, error) from error
    try:  # half the cost of `read_bytes`, which creates a file object; a scan reads hundreds of records
        chunks = []
        while chunk := os.read(descriptor, _CHUNK):
            chunks.append(chunk)
            # A regular file returns less than requested only at its end; this saves the second call.
            if len(chunk) < _CHUNK:
                break
        return b"".join(chunks)
    except OSError as error:
        raise to_record_error(path, error) from error
    finally:
        os.close(descriptor)


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder, unsorted; none if it is absent, RecordUnreadable as for `read`."""
    try:
        return os.listdir(folder)  # noqa: PTH208  # a Path for each name would double the cost of find-stale
    except FileNotFoundError:
        return []
    except OSError as error:
        raise to_record_error(folder, error) from error


def to_record_error(path: Path, error: OSError) -> Exception:
    """Return the exception to raise for `error` at `path`: RecordUnreadable if the user must act, else `error`."""
    # A full disk or an I/O error is the machine's and may pass: the process dies of it, and its successor retries.
    if error.errno not in _MISPLACED:
        return error
    owner = _describe_owner(path) if error.errno in (errno.EACCES, errno.EPERM) else ""
    return RecordUnreadable(path, os.strerror(error.errno).lower() + owner)


def _describe_owner(path: Path) -> str:
    """Describe the owner of the path, or of its nearest existing parent; '' if that is the user."""
    for each in (path, *path.parents):
        with suppress(OSError):
            owner = each.lstat().st_uid
            if owner == os.geteuid():
                return ""
            import pwd  # imported here: only this message needs it

            try:
                return f" ({each} belongs to {pwd.getpwuid(owner).pw_name})"
            except KeyError:
                return f" ({each} belongs to user {owner})"
    return ""


PROTECTED: list[str] = []
"""The home that this process must not create again, with a final slash; empty in a command."""


def forbid_recreating(home: Path) -> None:
    """Forbid this process to create anything in `home` once it is gone, which would leave half a home."""
    PROTECTED[:] = [os.path.join(home, "")]  # noqa: PTH118


def make_directory(path: Path) -> Path:
    """Create `path` and its parents with mode 0700, if absent; return it. LockLost if `forbid_recreating` forbids
    it."""
    try:
        if os.path.isdir(path):  # noqa: PTH112
            return path
        if PROTECTED and str(path).startswith(PROTECTED[0]):
            _make_within(PROTECTED[0], str(path))
        else:
            _make_with_parents(str(path))
    except OSError as error:
        if _is_directory(path, error):
            return path
        raise to_record_error(path, error) from error
    return path


def _make_with_parents(path: str) -> None:
    """Create a directory and its parents with mode 0700; `os.makedirs` gives the parents the umask's mode."""
    if os.path.isdir(path):  # noqa: PTH112
        return
    parent = os.path.dirname(path)  # noqa: PTH120
    if parent and parent != path:
        _make_with_parents(parent)
    try:
        os.mkdir(path, 0o700)  # noqa: PTH102
    except FileExistsError:
        if not os.path.isdir(path):  # noqa: PTH112
            raise


def _make_within(home: str, path: str) -> None:
    """Create each directory in turn, but never `home` itself."""
    at = home.rstrip("/")
    for part in path[len(home):].split("/"):
        at = f"{at}/{part}"
        try:
            os.mkdir(at, 0o700)  # noqa: PTH102
        except FileExistsError:
            if not os.path.isdir(at):  # noqa: PTH112
                raise
        except FileNotFoundError:
            raise LockLost(f"{home.rstrip('/')} was removed; stopping gracefully") from None


def _is_directory(path: Path, error: OSError) -> bool:
    """Return whether `path` really is a directory: makedirs reports any failed stat as "exists"."""
    if error.errno != errno.EEXIST:
        return False
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def sync_directory(path: Path) -> None:
    """Make renames and creations in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, data: bytes, *, durable: bool = True, named: bool = True) -> None:
    """Replace `path` with `data` (mode 0600): unique temporary file in the same directory, fsync, rename, fsync of the
    directory.

    Without `named` the directory is not synced, for a record that a later write of the same name makes durable before
    anything relies on it. The fsync before the rename stays: without it a power cut may leave an empty file.
    """
    with replacing(path) as descriptor:
        try:
            write_all(descriptor, data)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    if durable and named:
        sync_directory(path.parent)


@contextmanager
def replacing(path: Path, flags: int = 0) -> Iterator[int]:
    """Open a new file for writing that becomes `path` at the end of the block; remove it after an error.

    The block must write, and sync or close; the name is durable only after `sync_directory`.
    """
    temporary, descriptor = _temporary(str(path), flags)
    try:
        yield descriptor
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException as error:
        with suppress(OSError):
            os.close(descriptor)
        with suppress(OSError):  # a leftover is removed later; the first error must be raised
            os.unlink(temporary)  # noqa: PTH108
        if isinstance(error, OSError):
            raise to_record_error(path, error) from error
        raise


def _temporary(path: str, flags: int) -> tuple[str, int]:
    """Create a new file next to `path`; skip names that a killed writer of the same pid left."""
    at = path.rfind("/") + 1
    while True:
        # The dot hides it from code that lists the folder, which takes every `*.json` for a record.
        temporary = f"{path[:at]}.{path[at:]}.{os.getpid()}-{next(SERIAL)}.tmp"
        try:
            return temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | flags, 0o600)
        except FileExistsError:
            continue


TEMPORARY = re.compile(r"\..+\.(\d+)(?:-\d+)?\.tmp")
"""Name of a temporary file; its group is the pid of its writer."""


def clear_temporaries(folder: Path, before: float) -> list[str]:
    """Remove the temporary files below `folder` that are older than `before` (epoch s); return their paths.

    A writer needs its file for milliseconds. One that was suspended for longer fails without writing.
    """
    removed = []
    for parent, _, files in os.walk(folder):
        for name in filter(TEMPORARY.fullmatch, files):
            path = os.path.join(parent, name)  # noqa: PTH118
            with suppress(FileNotFoundError):
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode) and status.st_mtime < before:
                    os.unlink(path)  # noqa: PTH108
                    removed.append(path)
    return removed


def digest_of(data: bytes) -> str:
    """Return the SHA-256 of some bytes, which identifies copies of them."""
    import hashlib  # imported late: it loads OpenSSL, and most script commands hash nothing

    return hashlib.sha256(data).hexdigest()


def write_all(descriptor: int, data: bytes) -> None:
    """Call write(2) until all of `data` is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view):]


@contextmanager
def locked(path: Path, timeout: float | None = None) -> Iterator[None]:
    """Hold the lock file `path` (created 0600, never unlinked) for milliseconds; wait for other holders.

    Args:
        timeout: seconds to wait at most; then Refused. Without one the wait is in the kernel and unlimited, for locks
            that are only held while one record is written.
    """
    if timeout is not None:
        with _locked_in_time(path, timeout):
            yield
        return
    descriptor = _open_current(path)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _locked_in_time(path: Path, timeout: float) -> Iterator[None]:
    from filelock import FileLock, Timeout  # imported here: short commands do not need it

    try:
        # Without flock, filelock would fall back to a lock by the file's existence, which outlives its holder and does
        # not exclude ours; and if it unlinked the lock file, two processes could lock two files of the same name.
        lock = FileLock(path, timeout, 0o600, poll_interval=_POLL, fallback_to_soft=False, preserve_lock_file=True)
        lock.acquire()
    except Timeout:
        raise Refused(f"{path} stays locked after {timeout:g} s: the process that holds it hangs; `garrison doctor` "
                      "names processes that do not answer") from None
    except OSError as error:
        raise to_record_error(path, error) from error
    try:
        yield
    finally:
        lock.release()


def _open_current(path: Path) -> int:
    """Open and flock the file that has the name now; a file replaced during the wait protects nothing."""
    while True:
        descriptor = open_or_create(path)
        try:
            flock(descriptor, fcntl.LOCK_EX, path)
            if same_file(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def flock(descriptor: int, operation: int, path: Path) -> None:
    """Lock an open file; OSError with its path if the file system has no locks (flock(2) names no path)."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def open_or_create(path: Path, flags: int = 0) -> int:
    """Open `path` for reading and writing; create it with mode 0600 if absent. RecordUnreadable as for `read`."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        raise to_record_error(path, error) from error


def same_file(descriptor: int, path: Path | str) -> os.stat_result | None:
    """Return the status of the open `descriptor` if `path` still names the same file, else None."""
    try:
        named = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return None
    # By device and inode: the name may belong to another file by now, and a lock on that does not exclude holders of
    # this one.
    opened = os.fstat(descriptor)
    return opened if (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino) else None
