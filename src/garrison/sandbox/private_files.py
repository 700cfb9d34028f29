"""Private files: find secrets in folders that agents see because of the programs there.

A program's folder rarely contains only programs: package managers keep tokens next to what they install. So a file is
private if it lacks a read bit that the folder's programs have, or has a known name. Bits count from the folder down: a
folder below a home of mode 0700, or installed with a umask of 077, is shown like any other. A system folder has
programs for everyone.

The walk takes about 2 microseconds per file. A launch repeats it (`walk_again`) in a child process while it checks
other things; later sandboxes read its result. They walk a folder themselves if its top has changed since, or the last
walk is more than an hour old.
"""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from garrison.directories import homes_list
from garrison.records import atomic
from garrison.values import Value, asdict

FILE = "private-files.json"
"""File next to the list of homes: folder → what was found in it."""
MAX_FOLDERS = 100
"""Most folders that are remembered."""
FRESH = 3600.0
"""Seconds that a walk is valid."""
KNOWN_NAMES = frozenset({
    ".npmrc", "npmrc", ".yarnrc", ".yarnrc.yml", ".pypirc", "pip.conf", "pip.ini", ".condarc", "condarc", ".netrc",
    "_netrc", "netrc", ".env", ".envrc", "credentials", "credentials.toml", "credentials.json", "credentials.xml",
    ".credentials", ".credentials.json", "auth.json", "auth.toml", ".git-credentials", "settings-security.xml",
    "gradle.properties", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".pgpass", ".my.cnf", ".boto", ".s3cfg",
    ".dockercfg", ".dockerconfigjson", "kubeconfig", "secrets", "secrets.toml", "secrets.json", "secrets.yml",
    "secrets.yaml",
    "token", "tokens", ".token", "access_token", ".vault-token", ".terraformrc", "hosts.yml", ".htpasswd"})
"""Names of files with credentials, with any mode."""
KNOWN_FOLDERS = frozenset({".git", ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".env.d"})
"""Names of folders with credentials: `.git/config` may have a token in an address."""
LOCKS = frozenset({".lock", "lock", "config.lock", "volta.lock", "juliaup.lock", ".juliaup-lock", ".package-cache",
                   ".package-cache-mutate", ".mamba_lock", ".conda_lock"})
"""Names of files that uv, opam, volta, juliaup, cargo and conda lock. A lock needs no write permission: any process
that sees the file could hold it, and block the user's own tools."""
MANY = 40
"""Number of private files above which the whole folder is hidden instead: each hidden path is a mount."""
PATIENCE = 1.0
"""Seconds that a launch waits for the walk after its other checks: larger folders are left to the agents."""
_PROGRAM_FOLDERS = frozenset({"bin", "sbin", "shims", "libexec"})
_ALL = 0o444
_walking: list[tuple[int, int]] = []
"""The child that walks for this process, and its pipe."""


class Found(Value):
    """Result of walking a folder."""

    changed: int
    """Modification time of the folder itself, in nanoseconds."""
    at: float
    private: tuple[str, ...]
    is_system: bool = False


class _Walk(msgspec.Struct):
    """What was seen below one folder."""

    programs: int = 0
    """Read bits of its programs, combined."""
    lacking: list[tuple[str, int]] = msgspec.field(default_factory=list)
    """Path → its read bits, if it has fewer than its parent."""
    named: list[str] = msgspec.field(default_factory=list)


def file_of_walks() -> Path:
    return homes_list(None).with_name(FILE)


def private_below(root: Path, kept: Path | None = None, *, is_system: bool = False) -> list[Path]:
    """Return what is private below a folder, with whole folders; from an earlier walk, if that is still valid.

    Args:
        kept: `file_of_walks`.
    """
    try:
        state = root.stat()
    except OSError:
        return []
    if not stat.S_ISDIR(state.st_mode):
        return []
    kept, key = kept or file_of_walks(), str(root)
    if (seen := _found(kept).get(key)) is None and _walking:
        _collect(kept, PATIENCE)
        seen = _found(kept).get(key)
    if seen is None or seen.changed != state.st_mtime_ns or not 0 <= time.time() - seen.at < FRESH:
        seen = _look(key, state.st_mtime_ns, is_system=is_system)
        _change(kept, lambda found: {**found, key: seen})
    return [Path(path) for path in seen.private]


@contextmanager
def walk_again(patience: float = PATIENCE) -> Iterator[None]:
    """Walk folders again at a launch, except those of garrison's own Python, which contain no tokens.

    Folders that earlier launches needed are walked in a child process while the caller continues; a caller that needs
    one of these folders waits for it, and so does the end.

    Args:
        patience: seconds to wait at most; then the walk is abandoned, and left to the sandboxes.
    """
    own = tuple(f"{prefix}/" for prefix in {sys.prefix, sys.base_prefix} - {"/usr"})
    kept = file_of_walks()
    gone = {path: each for path, each in _found(kept).items() if not path.startswith(own)}
    _change(kept, lambda found: {path: each for path, each in found.items() if path.startswith(own)})
    if gone and (child := _fork(gone)):
        _walking.append(child)
    try:
        yield
    except BaseException:
        patience = 0  # a refused launch needs no walk
        raise
    finally:
        _collect(kept, patience)


def _fork(gone: dict[str, Found]) -> tuple[int, int] | None:
    """Start the child that walks; return its pidfd and the pipe that it writes to, None if that is impossible."""
    # A forked child has only the calling thread, and locks of the other threads are never released.
    if threading.active_count() > 1:
        return None
    told, tell = os.pipe()
    try:
        child = os.fork()
    except OSError:  # no room for a process: the sandboxes walk
        os.close(told)
        os.close(tell)
        return None
    if child:
        os.close(tell)
        return os.pidfd_open(child), told
    try:
        sys.settrace(None)
        # The caller's locks live as long as any copy of their descriptors, and readers of its output would wait for
        # this process.
        os.dup2(tell, 0)
        os.closerange(1, os.sysconf("SC_OPEN_MAX"))
        walked = {path: _look(path, Path(path).stat().st_mtime_ns, is_system=each.is_system)
                  for path, each in gone.items() if Path(path).is_dir()}
        with open(0, "wb") as pipe:
            pipe.write(_to_json(walked))
    finally:
        os._exit(0)  # none of the caller's code may run here, whatever is raised


def _collect(kept: Path, patience: float) -> None:
    """Store the child's result, if there is a child and it ends in time; kill it in any case."""
    if not _walking:
        return
    child, told = _walking.pop()
    end, read = time.monotonic() + patience, bytearray()
    while select.select([told], [], [], max(0.0, end - time.monotonic()))[0] and (part := os.read(told, 1 << 16)):
        read += part
    os.close(told)
    with suppress(ProcessLookupError):  # it has ended and, if something collects all children, was collected
        signal.pidfd_send_signal(child, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, child, os.WEXITED)
    os.close(child)
    with suppress(ValueError):  # it did not finish
        walked = _from_json(bytes(read))
        _change(kept, lambda found: walked | found)


def _look(folder: str, changed: int, *, is_system: bool) -> Found:
    return Found(changed, time.time(), tuple(find_private(folder, is_system=is_system)), is_system)


def _change(kept: Path, change: Callable[[dict[str, Found]], dict[str, Found]]) -> None:
    with suppress(OSError):  # the next one walks too
        atomic.make_directory(kept.parent)
        with atomic.locked(kept.with_name(f"{FILE}.lock")):
            known = change(_found(kept))
            latest = sorted(known, key=lambda path: known[path].at)[-MAX_FOLDERS:]
            atomic.write(kept, _to_json({path: known[path] for path in latest}), durable=False)


def find_private(root: str, *, is_system: bool = False) -> list[str]:
    """Walk a folder and return what is private in it."""
    walk = _Walk()
    _walk(root, is_system, walk)
    wanted = _ALL if is_system else walk.programs or _bits(root)
    return _fold({*walk.named, *(path for path, bits in walk.lacking if wanted & ~bits)}, root)


def _walk(root: str, is_system: bool, walk: _Walk) -> None:
    """Inspect everything below a folder once without following links: their targets are shown only if listed
    themselves."""
    folders = [(root, _ALL, True)]
    while folders:
        folder, above, has_programs = folders.pop()
        for name, mode in _entries(folder):
            if stat.S_ISDIR(mode):
                bits = above & (mode & 0o111) << 2
                if name in KNOWN_FOLDERS and not is_system:
                    walk.named.append(f"{folder}/{name}")
                elif name != "__pycache__" and not (is_system and bits != above):
                    folders.append((f"{folder}/{name}", bits, name in _PROGRAM_FOLDERS))
            else:
                bits = above & mode
                if has_programs and mode & 0o111:
                    walk.programs |= bits
                if name in LOCKS or ((name in KNOWN_NAMES or name.startswith(".env.")) and not is_system):
                    walk.named.append(f"{folder}/{name}")
            if bits != above:
                walk.lacking.append((f"{folder}/{name}", bits))


def _entries(folder: str) -> Iterator[tuple[str, int]]:
    """Yield name and mode of the entries of a folder, without links; nothing if it is unreadable: agents cannot read it
    either."""
    with suppress(OSError):
        # By descriptor: the kernel looks up one name per file instead of a path.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for entry in os.scandir(descriptor):
                if not entry.is_symlink():
                    with suppress(FileNotFoundError):
                        yield entry.name, entry.stat(follow_symlinks=False).st_mode
        finally:
            os.close(descriptor)


def _bits(folder: str) -> int:
    """Return the read bits that a folder's own mode allows, which the content of a folder without programs should
    have."""
    return (Path(folder).stat().st_mode & 0o111) << 2 or _ALL


def _fold(found: Iterable[str], root: str) -> list[str]:
    """Return private paths without the content of private folders; one with many private files is private itself."""
    tops: list[str] = []
    for path in sorted(found, key=lambda path: path.split("/")):
        if not (tops and path.startswith(f"{tops[-1]}/")):
            tops.append(path)
    count: dict[str, int] = {}
    for path in tops:
        folder = path.rpartition("/")[0]
        count[folder] = count.get(folder, 0) + 1
    whole = {folder for folder, number in count.items() if number > MANY and folder != root}
    if not whole:
        return tops
    return _fold([*whole, *(path for path in tops if path.rpartition("/")[0] not in whole)], root)


def _found(kept: Path) -> dict[str, Found]:
    """Return the stored results of walks; nothing if the file is torn."""
    try:
        return _parse(kept, kept.stat().st_mtime_ns)
    except (OSError, ValueError, TypeError):
        return {}


@lru_cache(maxsize=1)
def _parse(kept: Path, _changed: int) -> dict[str, Found]:
    return _from_json(kept.read_bytes())


def _to_json(found: dict[str, Found]) -> bytes:
    return json.dumps({path: asdict(each) for path, each in found.items()}).encode()


def _from_json(text: bytes) -> dict[str, Found]:
    return {path: Found(body["changed"], body["at"], tuple(body["private"]), body.get("is_system", False))
            for path, body in json.loads(text).items()}
