"""Kept set-ups: the output of a set-up, as a layer for every worktree and gate slot of its repository.

    <trees>/<repository key>/setups/<digest>/   home/       what it left in its home
                                                caches/     what it wrote into caches of package managers
                                                tree/       untracked files that it made in its worktree
                                                setup.json  what, when, how long
    <trees>/<repository key>/setups/<digest>.lock           held by the process that makes it
    <worktree's sandbox folder>/layer.json                  which layer lies under that worktree: what uses one

Set-up runs once for a digest (of its command, the lock files, the files and programs that the command names, the
platform and the path inside), by the first process that needs it. Its output is moved, renamed into place as a whole,
and never changed afterwards; so a partial layer is never used, whenever a process is killed. No sandbox can write
there.

**The output of one branch is never used by another.** A layer is kept only if set-up ran in a sandbox on a commit of
the target, in a worktree where no agent had worked. On any other tree it is private to that worktree, in its sandbox
folder, and removed with it.

Kept layers are removed by age and size (`[setup]` in config.toml), and when the disk is nearly full; never while a
worktree uses one.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from garrison.config import read_config
from garrison.errors import GarrisonError
from garrison.records import atomic
from garrison.records.life_lock import LifeLock
from garrison.records.record import from_data
from garrison.sandbox.confine import MOUNT_POINTS
from garrison.sandbox.file_system import named_programs, words_of
from garrison.sandbox.git_config import NAME as GIT_CONFIG
from garrison.sandbox.layers import CACHE_LAYERS, copy_tree, forget_written, is_removed
from garrison.sandbox.place import sandbox_folder
from garrison.system import failpoint, untrusted
from garrison.system.git import Git
from garrison.system.git.commits import literal_pattern
from garrison.system.stamps import modified_at
from garrison.values import Value, asdict, replace

STORE = "setups"
"""Folder of a repository's worktrees with the kept layers."""
LAYER = "layer.json"
"""File of a worktree's sandbox folder that names the layer under it."""
PRIVATE = "setup-layer"
"""Folder of a worktree's sandbox folder with its own layer."""
_RECORD, _HOME, _TREE, _GENERATION, _NEW = "setup.json", "home", "tree", "generation", ".new-"
_RUNTIMES = ("python3", "node")
"""Programs whose version affects the output of every set-up, even if its command does not name them."""
_MAX_NAMED = 1 << 20
"""Bytes of a file named in the command that are part of the digest."""
DAY = 86400.0


class SetupLayer(Value):
    """Output of one set-up."""

    folder: str
    digest: str
    command: str = ""
    made: tuple[str, ...] = ()
    """The topmost paths that it created in its worktree."""
    shown: tuple[str, ...] = ()
    """The ones that git does not ignore: they are never committed for an agent."""
    changed: tuple[str, ...] = ()
    """Tracked files that it changed; the changes are not part of the layer."""
    created: float = 0.0
    """Time in seconds since 1970."""
    seconds: float = 0.0
    """Duration of the set-up."""
    size: int = 0
    """Bytes on disk."""
    kept: bool = False
    """True if other worktrees may also use it."""
    commit: str = ""
    """Commit that it was created on."""

    @property
    def home(self) -> Path:
        return Path(self.folder) / _HOME

    @property
    def caches(self) -> Path:
        return Path(self.folder) / CACHE_LAYERS

    @property
    def tree(self) -> Path:
        return Path(self.folder) / _TREE


class SetupLimits(Value):
    """Limits of kept set-ups: `[setup]` of config.toml."""

    days: float = 14.0
    """Longest time since the last use."""
    bytes: int = 10 << 30
    """Most bytes per repository."""
    free: float = 0.10
    """Part of the disk that stays free."""


def read_limits(home: Path) -> SetupLimits:
    config = read_config(home).setup()
    return SetupLimits(config.keep_days, int(config.keep_gb * 1e9), config.keep_free / 100)


def store_of(repository_folder: Path) -> Path:
    """Return the folder with the kept layers of a repository, whose worktrees are in `repository_folder`."""
    return repository_folder / STORE


# ---- digest -------------------------------------------------------------------------------------------------------


def digest_of(key: str, command: str, worktree: Path, environ: Mapping[str, str], checkout: Path, store: Path) -> str:
    """Return the name of a set-up's result.

    Args:
        key: key of the command and the lock files in this worktree (`system.worktree_files.setup_key`).
        environ: its environment, whose PATH is searched for its programs.
        checkout: path of the worktree inside.
    """
    digest = hashlib.sha256("\0".join([key, str(checkout), platform.machine(), "/".join(platform.libc_ver()),
                                       str(os.geteuid())]).encode(errors="surrogateescape"))
    for word in words_of(command):
        content = _read_named(worktree, word)
        if content is not None:
            digest.update(b"\0" + os.fsencode(word) + b"\0" + content)
    for name in dict.fromkeys([*named_programs(command), *_RUNTIMES]):
        found = shutil.which(name, path=environ.get("PATH", os.defpath))
        if found is not None:
            with suppress(OSError):
                real = os.path.realpath(found)
                state = os.stat(real)  # noqa: PTH116  # a string
                digest.update(f"\0{name}\0{real}\0{state.st_size}\0{state.st_mtime_ns}".encode(errors="surrogateescape"))
    digest.update(b"\0" + (atomic.read(store / _GENERATION) or b""))
    return digest.hexdigest()[:32]


def _read_named(worktree: Path, word: str) -> bytes | None:
    """Return the content of a worktree's file named by a word of the command; None if it names none."""
    name = word.removeprefix("./")
    if not name or name.startswith("/") or ".." in name.split("/"):
        return None
    with suppress(GarrisonError, OSError):
        return untrusted.read(worktree, name, _MAX_NAMED)
    return None


def find_kept(store: Path, digest: str) -> SetupLayer | None:
    layer = _read(store / digest / _RECORD)
    return layer if layer is not None and layer.kept and Path(layer.folder) == store / digest else None


def list_kept(store: Path) -> list[SetupLayer]:
    found = [layer for path in store.glob(f"*/{_RECORD}") if (layer := find_kept(store, path.parent.name)) is not None]
    return sorted(found, key=last_use, reverse=True)


def last_use(layer: SetupLayer) -> float:
    """Return when a worktree last started to use a layer, in seconds since 1970."""
    return modified_at(Path(layer.folder) / _RECORD, layer.created)


def make_anew(store: Path) -> None:
    """Make every set-up of a repository run again; kept layers stay for their current users."""
    atomic.make_directory(store)
    atomic.write(store / _GENERATION, os.urandom(8).hex().encode())


def lock_of(store: Path, digest: str) -> LifeLock | None:
    """Lock a digest for the process that creates it; None while another one does."""
    atomic.make_directory(store)
    return LifeLock.try_acquire(store / f"{digest}.lock")


def _read(path: Path) -> SetupLayer | None:
    try:
        return decode(path.read_bytes())
    except (OSError, ValueError):
        return None


def encode(layer: SetupLayer) -> bytes:
    return json.dumps(asdict(layer)).encode()


def decode(data: bytes) -> SetupLayer:
    """Invert `encode`; ValueError for anything else."""
    return from_data(SetupLayer, json.loads(data))


# ---- under a worktree ------------------------------------------------------------------------------------------------


def layer_of(worktree: Path) -> SetupLayer | None:
    layer = _read(sandbox_folder(worktree) / LAYER)
    return layer if layer is not None and layer.home.is_dir() else None


def is_lost(worktree: Path) -> bool:
    """Return whether the layer under a worktree was removed elsewhere: its set-up must run again."""
    return (sandbox_folder(worktree) / LAYER).is_file() and layer_of(worktree) is None


def patterns_of(worktree: Path) -> list[str]:
    """Return patterns, as in .gitignore, of a set-up's output that git would not ignore."""
    layer = layer_of(worktree)
    return [] if layer is None else [f"/{literal_pattern(name)}" for name in layer.shown]


def lay(worktree: Path, layer: SetupLayer, store: Path) -> bool:
    """Put a layer under a worktree from now on; False if the layer has been removed."""
    atomic.make_directory(store)
    with atomic.locked(store / ".lock"):  # `sweep` holds it too: no layer is removed while it is put in place
        if not layer.home.is_dir():
            return False
        atomic.make_directory(sandbox_folder(worktree))
        atomic.write(sandbox_folder(worktree) / LAYER, encode(layer))
        with suppress(OSError):
            os.utime(Path(layer.folder) / _RECORD)
    return True


def copy_out(worktree: Path) -> None:
    """Copy a set-up's output into its worktree, without overwriting, for a user who works there without a sandbox."""
    layer = layer_of(worktree)
    if layer is None:
        return
    for name in layer.made:
        source, target = layer.tree / name, worktree / name
        if os.path.lexists(target) or not target.parent.is_dir():
            continue
        if source.is_dir() and not source.is_symlink():
            target.mkdir()
            copy_tree(source, target)
        else:
            shutil.copy2(source, target, follow_symlinks=False)


def take_away(worktree: Path) -> None:
    """Remove the layer from under a worktree, with what was written over it; delete a private one."""
    layer = layer_of(worktree)
    folder = sandbox_folder(worktree)
    if layer is not None:
        forget_written(worktree, layer.made)
    (folder / LAYER).unlink(missing_ok=True)
    if (folder / PRIVATE).is_dir():
        untrusted.remove(folder, PRIVATE)


def capture(git: Git, worktree: Path, home: Path, before: Iterable[str], layer: SetupLayer, store: Path) -> SetupLayer:
    """Move a set-up's output out of its worktree and home, and put it under the worktree as a layer; return the layer.

    Tracked files that it changed are restored. GarrisonError if it cannot be kept, for example on a full disk.

    Args:
        before: untracked paths, including ignored ones, when it started.
        layer: its known fields; `kept` if other worktrees may also use it, from `store`.
    """
    try:
        return _capture(git, worktree, home, before, layer, store)
    except OSError as error:
        raise GarrisonError(f"what the set-up left cannot be kept in {store}: {error.strerror}: {error.filename}"
                            ) from error


def _capture(git: Git, worktree: Path, home: Path, before: Iterable[str], layer: SetupLayer,
             store: Path) -> SetupLayer:
    known = set(before)
    made = tuple(name.rstrip("/") for name in list_untracked(git, worktree) if name not in known)
    shown = tuple(name for name in _not_ignored(git, worktree, made))
    changed = tuple(name for name in git.run("diff", "--name-only", "-z", "--ignore-submodules=all",
                                              cwd=worktree).out.split("\0") if name)
    if changed:
        git.run("checkout", "-q", "--pathspec-from-file=-", "--pathspec-file-nul", cwd=worktree,
                text="".join(f"{name}\0" for name in changed), extra={"GIT_LITERAL_PATHSPECS": "1"})
    parent, name = (store, layer.digest) if layer.kept else (sandbox_folder(worktree), PRIVATE)
    new = atomic.make_directory(parent / f"{_NEW}{os.getpid()}-{name}")
    untrusted.remove(new.parent, new.name)
    atomic.make_directory(new / _TREE)
    _clean_home(home, _read_mount_points(home))
    for path in made:
        target = new / _TREE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not is_removed(worktree / path):
            _move(worktree / path, target)
    failpoint.here("setup:moved")
    if home.is_dir():
        home.rename(new / _HOME)
    if (caches := home.with_name(CACHE_LAYERS)).is_dir():
        caches.rename(new / CACHE_LAYERS)
    atomic.make_directory(new / _HOME)
    folder = parent / name
    done = SetupLayer(str(folder), layer.digest, layer.command, made, shown, changed, time.time(), layer.seconds,
                      size_of(new), layer.kept, layer.commit)
    atomic.write(new / _RECORD, encode(done))
    failpoint.here("setup:recorded")
    if layer.kept:
        found = _put(new, done, store)
        if found != done:
            untrusted.remove(new.parent, new.name)
        done = found
    else:
        untrusted.remove(parent, name)
        new.rename(folder)
    if not lay(worktree, done, store):
        raise GarrisonError(f"the output of the set-up was removed from {folder}; running it again")
    return done


def _move(source: Path, target: Path) -> None:
    """Rename; a read-only folder is made writable for it, since its `..` entry is rewritten."""
    mode = source.lstat().st_mode
    is_locked = stat.S_ISDIR(mode) and not mode & stat.S_IWUSR
    if is_locked:
        source.chmod(stat.S_IMODE(mode) | stat.S_IWUSR)
    source.rename(target)
    if is_locked:
        target.chmod(stat.S_IMODE(mode))


def _put(new: Path, done: SetupLayer, store: Path) -> SetupLayer:
    """Rename a layer into its shared place, unless another process was first; return the one in place."""
    with atomic.locked(store / ".lock"):
        found = find_kept(store, done.digest)
        if found is None:
            untrusted.set_aside(store, done.digest)  # a rename; the slow removal is outside the lock
            # The record before the rename: a folder in place without one would be neither found nor recreated.
            atomic.write(new / _RECORD, encode(done))
            new.rename(done.folder)
    untrusted.remove_set_aside(store)
    return found or done


def keep(worktree: Path, layer: SetupLayer, store: Path) -> SetupLayer:
    """Keep a worktree's private layer for other worktrees too; return the layer to use from now on."""
    atomic.make_directory(store)
    counts = _put(Path(layer.folder), replace(layer, folder=str(store / layer.digest), kept=True), store)
    return counts if lay(worktree, counts, store) else layer


def list_untracked(git: Git, worktree: Path) -> list[str]:
    """Return the topmost untracked paths of a worktree, including ignored ones; a folder ends with `/`."""
    listed = git.list_files(worktree, "ls-files", "--others", "--directory", "-z")
    return [name for name in listed.split("\0") if name]


def _not_ignored(git: Git, worktree: Path, names: Sequence[str]) -> list[str]:
    """Return the untracked paths that git does not ignore by their names.

    A `.gitignore` inside of one does not count: it is part of the layer, so files that an agent adds next to it are in
    a folder without it.
    """
    ignored = git.ignored_among(worktree, names)
    return [name for name in names if name not in ignored]


def _read_mount_points(home: Path) -> list[str]:
    """Return the paths below its home where something was mounted while a set-up ran."""
    return [str(name) for name in json.loads(atomic.read(home.with_name(MOUNT_POINTS)) or b"[]")]


def _clean_home(home: Path, points: Sequence[str]) -> None:
    """Remove from a set-up's home what is not its output: mount points, and git settings that garrison put there.

    Bubblewrap creates a missing mount point as an empty folder or file.
    """
    if not home.is_dir():
        return
    with suppress(OSError, untrusted.UnsafeFile):
        (home / GIT_CONFIG).unlink(missing_ok=True)
    for point in points:
        parts = point.split("/")
        for depth in range(len(parts), 0, -1):
            _remove_empty(home, "/".join(parts[:depth]))


def _remove_empty(home: Path, name: str) -> None:
    """Remove a link, an empty file or an empty folder, without following links on the way."""
    folder, _, last = name.rpartition("/")
    with suppress(OSError, untrusted.UnsafeFile), untrusted.open_directory(home, folder) as directory:
        if directory is None:
            return
        state = os.lstat(last, dir_fd=directory)
        if stat.S_ISDIR(state.st_mode):
            os.rmdir(last, dir_fd=directory)
        elif stat.S_ISLNK(state.st_mode) or state.st_size == 0:
            os.unlink(last, dir_fd=directory)


def size_of(folder: Path) -> int:
    """Return the disk usage of a folder, 0 if there is none."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(f"{path}/{name}").st_blocks * 512
    return total


# ---- removal -------------------------------------------------------------------------------------------------


def users_of(repository_folder: Path) -> dict[str, list[str]]:
    """Return folder of a layer → worktrees that use it, by their paths below the repository's folder."""
    used: dict[str, list[str]] = {}
    for path in [*repository_folder.glob(f".*.sandbox/{LAYER}"), *repository_folder.glob(f"*/.*.sandbox/{LAYER}")]:
        layer = _read(path)
        if layer is not None:
            tree = path.parent.with_name(path.parent.name[1:].removesuffix(".sandbox"))
            if tree.is_dir():
                used.setdefault(layer.folder, []).append(str(tree.relative_to(repository_folder)))
    return used


def expired(layers: Sequence[SetupLayer], uses: Mapping[str, float], limits: SetupLimits, now: float,
            shortfall: int) -> list[SetupLayer]:
    """Return the layers to remove. Pure.

    Args:
        layers: most recently used first.
        uses: folder of each → its last use.
        shortfall: bytes to free on the disk.
    """
    gone, total = [], 0
    for layer in layers:
        total += layer.size
        if now - uses[layer.folder] > limits.days * DAY or total > limits.bytes:
            gone.append(layer)
    freed = sum(layer.size for layer in gone)
    for layer in reversed(layers):
        if freed >= shortfall:
            break
        if layer not in gone:
            gone.append(layer)
            freed += layer.size
    return gone


def sweep(store: Path, limits: SetupLimits, *, everything: bool = False, names: Sequence[str] = ()) -> list[SetupLayer]:
    """Remove kept layers beyond the limits, all of them, or named ones; never one in use. Return the removed ones."""
    if not store.is_dir():
        return []
    with atomic.locked(store / ".lock"):
        used = users_of(store.parent)
        free = [layer for layer in list_kept(store) if layer.folder not in used]
        if everything or names:
            gone = [layer for layer in free if everything or any(layer.digest.startswith(name) for name in names)]
        else:
            disk = shutil.disk_usage(store)
            shortfall = max(0, int(disk.total * limits.free) - disk.free)
            gone = expired(free, {layer.folder: last_use(layer) for layer in free}, limits, time.time(), shortfall)
        for layer in gone:
            untrusted.set_aside(store, layer.digest)
        _remove_rests(store)
    untrusted.remove_set_aside(store)
    return gone


def _remove_rests(store: Path) -> None:
    """Remove leftovers of killed processes: unfinished layers, and locks of deleted layers."""
    for path in store.glob(f"{_NEW}*"):
        pid = path.name.removeprefix(_NEW).partition("-")[0]
        if not Path("/proc", pid).exists():
            untrusted.set_aside(store, path.name)
    for path in store.glob("*.lock"):
        if path.name != ".lock" and not (store / path.stem).exists() and (lock := LifeLock.try_acquire(path)):
            path.unlink(missing_ok=True)
            lock.release()
