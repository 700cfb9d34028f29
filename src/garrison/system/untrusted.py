"""Untrusted files: read files in places that an agent can write.

An agent may put a symbolic link, a FIFO, a device or a huge file anywhere it can write, and swap one for another while
it is being read. So every component of a path is opened relative to the previous directory without following links,
only regular files are read, none blocks, and no more than a limit is read. `folder` is a directory of garrison; its
content is not trusted.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.system import processes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TEXT_LIMIT = 1 << 20
"""Most bytes of a text that an agent leaves for garrison: a note, a result, a ref."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe without a writer would block. O_NOCTTY: a terminal would become ours.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_APPENDED = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
_CHUNK = 1 << 20
_OUTPUT = 0o644
_SET_ASIDE = ".gone-"
"""Prefix of names that will be removed."""
_REMOVE = 'rm -rf -- "$@" 2>/dev/null || { chmod -R u+rwX -- "$@"; rm -rf -- "$@"; }'
_WILD = frozenset("*?[")
_TRIES = 100
"""Most restarts of a tree's removal because another process also removes it."""


class UnsafeFile(GarrisonError):
    """A file of an agent is not a regular file, or is too large: garrison does not read it."""

    def __init__(self, folder: Path, name: str, why: str) -> None:
        super().__init__(f"{folder / name} {why}; garrison does not read it")
        self.why = why


@contextmanager
def open_directory(folder: Path, name: str = "") -> Iterator[int | None]:
    """Open the directory `name` below `folder`; None if it is absent, UnsafeFile if a link is in the way."""
    descriptor: int | None = None
    try:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for part in _parts(folder, name):
                following = os.open(part, _DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = following
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
                descriptor = None
            _raise_unless_absent(folder, name, error)
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_folder(folder: Path, name: str) -> bool:
    """Return whether the directory `name` is below `folder` without a link on the way, which would be followed."""
    try:
        with open_directory(folder, name) as directory:
            return directory is not None
    except (UnsafeFile, OSError):
        return False


def _parts(folder: Path, name: str) -> list[str]:
    parts = [part for part in name.split("/") if part]
    if ".." in parts or "\0" in name:
        raise UnsafeFile(folder, name.replace("\0", "?"), "leads out of its directory")
    return parts


def _raise_unless_absent(folder: Path, name: str, error: OSError) -> None:
    """Raise UnsafeFile for a link, the error itself for a machine problem; return if nothing is there.

    A directory opened with O_NOFOLLOW gives ENOTDIR for a link, which therefore counts as absent.
    """
    if error.errno in _ABSENT:
        return
    if error.errno == errno.ELOOP:
        raise UnsafeFile(folder, name, "is a symbolic link") from error
    if error.errno in (errno.ENXIO, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM):
        raise UnsafeFile(folder, name, f"cannot be opened ({os.strerror(error.errno).lower()})") from error
    raise error


def read(folder: Path, name: str, limit: int = TEXT_LIMIT, *, since: float = 0.0) -> bytes | None:
    """Return the content of the regular file `name` below `folder`; None if it is absent.

    UnsafeFile if it is anything else, if a link is in the way, or if it has more than `limit` bytes.

    Args:
        since: a file last written before this time counts as absent.
    """
    with _opened(folder, name) as descriptor:
        if descriptor is None or (found := os.fstat(descriptor)).st_ctime < since:
            return None
        # its size first: of a hole of a terabyte, all up to the limit would be read; it may still grow meanwhile
        data = _read_up_to(descriptor, limit + 1) if found.st_size <= limit else b""
    if max(len(data), found.st_size) > limit:
        raise UnsafeFile(folder, name, f"has more than {_size(limit)}")
    return data


def copy(folder: Path, name: str, target: Path, limit: int) -> bool:
    """Copy a regular file to a file of garrison, in parts; return whether there is one. UnsafeFile as for `read`."""
    with _opened(folder, name) as descriptor:
        if descriptor is None:
            return False
        if os.fstat(descriptor).st_size > limit:
            raise UnsafeFile(folder, name, f"has more than {_size(limit)}")
        with target.open("wb") as copied:
            while limit > 0 and (data := os.read(descriptor, min(limit, _CHUNK))):
                copied.write(data)
                limit -= len(data)
    return True


def read_text(folder: Path, name: str, limit: int = TEXT_LIMIT) -> str:
    """Return a text as `read` does, with undecodable bytes replaced; '' if it is absent or unsafe."""
    try:
        return (read(folder, name, limit) or b"").decode(errors="replace")
    except (UnsafeFile, OSError):
        return ""


def read_begin(folder: Path, name: str, limit: int) -> bytes:
    """Return the first `limit` bytes of a regular file; empty if there is none."""
    return read_part(folder, name, limit) or b""


def read_end(folder: Path, name: str, limit: int) -> str:
    """Return the last `limit` bytes of a regular file as text; '' if there is none."""
    return (read_part(folder, name, limit, is_end=True) or b"").decode(errors="replace")


def read_part(folder: Path, name: str, limit: int, *, is_end: bool = False) -> bytes | None:
    """Return the first, or last, `limit` bytes of a regular file; None if there is none."""
    with suppress(UnsafeFile, OSError), _opened(folder, name) as descriptor:
        if descriptor is None:
            return None
        if is_end:
            os.lseek(descriptor, max(0, os.fstat(descriptor).st_size - limit), os.SEEK_SET)
        return _read_up_to(descriptor, limit)
    return None


def write(folder: Path, name: str, data: bytes, *, as_edit: bool = False) -> None:
    """Replace a file in a folder that an agent can write, whatever is there; UnsafeFile if its directory is gone.

    Args:
        as_edit: make missing directories, and keep the mode of a file that is replaced, as an editor does.
    """
    *parents, last = _parts(folder, name)
    if as_edit:
        _make_directories(folder, parents)
    with open_directory(folder, "/".join(parents)) as directory:
        if directory is None:
            raise UnsafeFile(folder, name, "has no parent directory")
        # Removed and created, never opened in place: a link there would redirect the content.
        new = f".{last}.{threading.get_native_id()}"
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=directory)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=directory)
        try:
            with suppress(OSError):
                if as_edit and stat.S_ISREG((state := os.lstat(last, dir_fd=directory)).st_mode):
                    os.fchmod(descriptor, state.st_mode & 0o777)
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
        os.rename(new, last, src_dir_fd=directory, dst_dir_fd=directory)


def _make_directories(folder: Path, parts: list[str]) -> None:
    for number, part in enumerate(parts):
        with open_directory(folder, "/".join(parts[:number])) as directory, suppress(FileExistsError):
            if directory is not None:
                os.mkdir(part, dir_fd=directory)


def append(folder: Path, name: str, data: bytes) -> None:
    """Append to a regular file without another name, creating it if absent; UnsafeFile if it is anything else.

    An agent's link in its place would lead to a file of the user.
    """
    *parents, last = _parts(folder, name)
    with open_directory(folder, "/".join(parents)) as directory:
        if directory is None:
            raise UnsafeFile(folder, name, "has no parent directory")
        try:
            descriptor = os.open(last, _APPENDED, 0o600, dir_fd=directory)
        except OSError as error:
            raise UnsafeFile(folder, name, f"cannot be written ({os.strerror(error.errno or 0).lower()})") from error
        try:
            state = os.fstat(descriptor)
            # O_NOFOLLOW does not cover hard links: the file may be one of the user's.
            if not stat.S_ISREG(state.st_mode) or state.st_nlink != 1:
                raise UnsafeFile(folder, name, "is not a regular file with a single name")
            os.write(descriptor, data)
        finally:
            os.close(descriptor)


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[int | None]:
    """Open a regular file below `folder`; None if it is absent, UnsafeFile if it is anything else."""
    *parents, last = _parts(folder, name)
    with open_directory(folder, "/".join(parents)) as directory:
        descriptor = None if directory is None else _open_regular(folder, name, directory, last)
        try:
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _open_regular(folder: Path, name: str, directory: int, last: str) -> int | None:
    try:
        descriptor = os.open(last, _FILE, dir_fd=directory)
    except OSError as error:
        _raise_unless_absent(folder, name, error)
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafeFile(folder, name, "is not a regular file")
    return descriptor


def _read_up_to(descriptor: int, limit: int) -> bytes:
    chunks, left = [], limit
    while left > 0 and (chunk := os.read(descriptor, min(left, _CHUNK))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def _size(limit: int) -> str:
    return f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"


def list_names(folder: Path, name: str = "", limit: int = 1_000_000) -> list[str]:
    """Return the names in the directory `name` below `folder`, at most `limit`; none if it is absent."""
    with open_directory(folder, name) as directory:
        if directory is None:
            return []
        names = []
        with os.scandir(directory) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > limit:
                    raise UnsafeFile(folder, name, f"contains more than {limit} files")
        return names


def match(folder: Path, pattern: str, limit: int) -> Iterator[str]:
    """Yield the paths below `folder` that match names with wildcards; no link on the way is followed, and a directory
    of more than `limit` names, or one that cannot be listed, has none."""
    found = [""]
    for part in pattern.split("/"):
        if not _WILD.intersection(part):
            found = [f"{base}{part}/" for base in found]
            continue
        names: list[str] = []
        for base in found:
            with suppress(UnsafeFile, OSError):
                names += (f"{base}{name}/" for name in sorted(list_names(folder, base, limit))
                          if fnmatchcase(name, part))
        found = names
    yield from (name.removesuffix("/") for name in found)


def link_regular(directory: int, name: str, target: Path, room: int) -> int:
    """Hard-link the regular file `name` of an open directory to `target`; return its size, -1 if it is no such file.

    The link pins what was checked: the agent may swap the name, but not what another link refers to. UnsafeFile if it
    is larger than `room`.
    """
    try:
        os.link(name, target, src_dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return -1
    state = target.lstat()
    if not stat.S_ISREG(state.st_mode):
        target.unlink()
        return -1
    if state.st_size > room:
        target.unlink()
        raise UnsafeFile(target.parent, name, f"is larger than the {room} bytes that are left to import")
    return state.st_size


def remove(folder: Path, name: str) -> None:
    """Remove whatever has this path below a folder that an agent may write, whatever permissions it removed; a link
    itself, not its target, and no link on the way is followed."""
    *parents, last = _parts(folder, name)
    with open_directory(folder, "/".join(parents)) as directory, suppress(FileNotFoundError):
        if directory is None:
            return
        state = os.fstat(directory)
        if state.st_mode & stat.S_IRWXU != stat.S_IRWXU and state.st_uid == os.geteuid():
            os.fchmod(directory, stat.S_IMODE(state.st_mode) | stat.S_IRWXU)
        if stat.S_ISDIR(os.lstat(last, dir_fd=directory).st_mode):
            # The directory is the opened one, whatever its name refers to by now.
            remove_tree(Path(f"/proc/{os.getpid()}/fd/{directory}", last))
        else:
            os.unlink(last, dir_fd=directory)


def remove_below(tree: Path, names: Iterable[str]) -> None:
    """Remove these paths below a folder; no link on the way is followed."""
    for name in names:
        remove(tree, name)


def set_aside(folder: Path, name: str) -> None:
    """Rename whatever has this name, for `remove_set_aside`. `folder` itself does not belong to the agent."""
    with suppress(FileNotFoundError):
        (folder / name).rename(folder / f"{_SET_ASIDE}{os.urandom(4).hex()}")


def remove_set_aside(folder: Path) -> None:
    """Remove what was set aside in a background process: an agent may have created a million files."""
    left = [path.name for path in folder.glob(f"{_SET_ASIDE}*")]
    if not left:
        return
    try:
        processes.spawn(["/bin/sh", "-c", _REMOVE, "garrison-remove", *left], env={"PATH": os.defpath}, cwd=folder,
                        log=Path(os.devnull)).close()
    except GarrisonError:  # no room for another process
        for path in left:
            remove(folder, path)


def remove_tree(folder: Path) -> None:
    """Remove a tree that an agent wrote, whatever the modes of its directories and however deep, without following
    links."""
    import shutil  # these two are imported late: a script command removes nothing
    import subprocess

    for attempt in range(_TRIES):
        try:
            return shutil.rmtree(folder)
        except FileNotFoundError:  # the process of `remove_set_aside` was faster
            if not os.path.lexists(folder):
                return None
        except (OSError, RecursionError):  # it cannot be listed, or has more levels than there are descriptors
            if attempt:
                raise
            subprocess.run(["/bin/sh", "-c", _REMOVE, "garrison-remove", str(folder)], env={"PATH": os.defpath},
                           stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if not os.path.lexists(folder):
                return None
    raise UnsafeFile(folder.parent, folder.name, "changes while it is removed")


def mend_output(path: Path) -> None:
    """Remove permissions that no output needs from a file that a program had open: to execute it, and others' to write
    it."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        state = os.fstat(descriptor)
        mode = stat.S_IMODE(state.st_mode)
        # Through /proc: fchmod refuses an O_PATH descriptor, and a file without permissions cannot be opened otherwise.
        if stat.S_ISREG(state.st_mode) and mode & ~_OUTPUT and state.st_uid == os.geteuid():
            Path(f"/proc/self/fd/{descriptor}").chmod(mode & _OUTPUT)
    finally:
        os.close(descriptor)


def mend_folder(folder: Path) -> int:
    """Give the owner all permissions on a folder where an agent worked; return its previous mode, -1 if it is not a
    folder."""
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            Path(f"/proc/self/fd/{descriptor}").chmod(mode | stat.S_IRWXU)
        return mode
    finally:
        os.close(descriptor)
