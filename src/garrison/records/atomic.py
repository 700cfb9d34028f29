"""The one way a file is written, and the lock a record is changed under.

`write` is atomic and durable: a reader sees the old bytes or the new ones, and after it returns the new ones survive a
power cut. `locked` is flock(2) on a file that is never unlinked, the same lock that filelock's UnixFileLock takes on
that path; it waits in the kernel, not by polling.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from itertools import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_serial = count()


def make_directory(path: Path) -> Path:
    """Create `path` and its parents with mode 0700, if absent; return it."""
    os.makedirs(path, mode=0o700, exist_ok=True)  # noqa: PTH103  # Path.mkdir gives parents the umask's mode
    return path


def sync_directory(path: Path) -> None:
    """Make renames and creations in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` with `data` (mode 0600): unique temporary beside it, fsync, rename, fsync of the directory."""
    temporary, descriptor = _temporary(path)
    try:
        try:
            write_all(descriptor, data)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def _temporary(path: Path) -> tuple[Path, int]:
    """A new file beside `path`. A killed writer of the same pid may have left one of that name: it is passed over."""
    while True:
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{next(_serial)}.tmp")
        try:
            return temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue


def write_all(descriptor: int, data: bytes) -> None:
    """write(2) until all of `data` is out."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view):]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the record lock `path` (created 0600, never unlinked) for milliseconds; waits for other holders."""
    descriptor = _open_current(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _open_current(path: Path) -> int:
    """Open and flock the file that bears the name now; a file replaced while we waited guards nothing."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if same_file(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def same_file(descriptor: int, path: Path) -> bool:
    """Whether the open `descriptor` is still the file called `path`."""
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
