"""Layers: what lies under a folder that a confined process tree may write, shared by many trees and changed by none.

A set-up leaves a home and untracked files (`setups.py`). Every tree that works on top of it has them as if they were
its own: it may change and remove them, and no other tree sees that. Three ways, the best that the machine has:

    overlay   The kernel reads through to the layer and writes into the tree's own folder. A few milliseconds, whatever
              the size. Made in a user and mount namespace round the sandbox, without privileges.
    reflink   Copied by `cp --reflink`: blocks are shared until they are written (btrfs, XFS, bcachefs).
    copy      Copied whole. Never hard links: a write in place would change everybody's.

The overlay's upper folder is the tree's own folder itself, so what is written there is found where it is without a
layer. A file that was removed from the layer is a character device 0:0 there, which git leaves alone.

What lies below must belong to the user and to the user's own group: the kernel cannot copy up what has another owner
(EOVERFLOW). It must not change while it is used: `setups.py` renames what it keeps into place whole.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path

from garrison.directories import homes_list
from garrison.errors import GarrisonError
from garrison.records import atomic
from garrison.system import processes, untrusted
from garrison.system.command import run
from garrison.values import Value

CACHES = {"pip": ".cache/pip", "uv": ".cache/uv", "npm": ".npm/_cacache", "pnpm": ".local/share/pnpm/store",
          "yarn": ".cache/yarn", "cargo": ".cargo/registry", "go": "go/pkg/mod"}
"""Caches of package managers → folder of the user's home; none holds credentials."""
CACHE_LAYERS = "caches"
"""Folder of a place, and of what a set-up left, with what was written into each cache."""


class LayerMethod(StrEnum):
    """How a layer comes to lie under a folder."""

    OVERLAY = "overlay"
    REFLINK = "reflink"
    COPY = "copy"


class Layer(Value):
    """Folders to be laid under a folder."""

    upper: Path
    """Folder that is written, and that shows the layer afterwards."""
    lowers: tuple[Path, ...]
    """The first lies over the others."""
    is_writable: bool = True


_PROGRAMS = ("unshare", "mount", "setpriv")
"""Programs of util-linux that make the namespace and the overlay."""
_LINKS = "layers"
"""Folder of a place, not shown inside, with the folders of each overlay under names without special characters."""
_WORK = "work"
_MOUNT = """
there=$PWD
cd "$1" || exit 126
number=0
while [ "$number" -lt "$2" ]; do
    read -r options < "$number/options" &&
        mount -n -t overlay -o "$options" overlay "$number/upper" || exit 126
    number=$((number + 1))
done
cd "$there" || cd /
shift 2
exec setpriv --ambient-caps=-all --inh-caps=-all -- "$@"
"""
"""Shell that mounts the overlays of a place and becomes the sandbox. Bubblewrap refuses to start with ambient
capabilities; without them it makes namespaces of its own."""
_TIMEOUT = 20.0


def overlay_words(layers: Sequence[Layer], folder: Path, *, as_root: bool = False) -> list[str]:
    """Return the words before a command that start it with overlays mounted; nothing without layers.

    Args:
        folder: private folder of the place, on the file system of every `upper`.
        as_root: without a user namespace, for an engine that has to be root outside.
    """
    if not layers:
        return []
    links = folder / _LINKS
    with suppress(OSError):
        remove_links(folder)
    for number, layer in enumerate(layers):
        # By short names: a comma in a path would end the option, a colon the layer.
        own = atomic.make_directory(links / str(number))
        (own / "upper").symlink_to(layer.upper)
        for at, lower in enumerate(layer.lowers):
            (own / f"lower{at}").symlink_to(lower)
        lowers = [f"{number}/lower{at}" for at in range(len(layer.lowers))]
        # userxattr: nobody in a user namespace may set the trusted.* attributes by which overlays mark opaque folders.
        if layer.is_writable:
            atomic.make_directory(own / _WORK)
            options = f"lowerdir={':'.join(lowers)},upperdir={number}/upper,workdir={number}/{_WORK},userxattr"
        else:
            options = f"lowerdir={':'.join([f'{number}/upper', *lowers])},userxattr"
        (own / "options").write_text(f"{options}\n")
    unshare = shutil.which(_PROGRAMS[0]) or _PROGRAMS[0]
    namespaces = ["--mount"] if as_root else ["--user", "--mount", "--map-current-user", "--keep-caps"]
    return [unshare, *namespaces, "--", "/bin/sh", "-c", _MOUNT,
            "garrison-layers", str(links), str(len(layers))]


def cache_layers(folder: Path, left: Path | None, user_home: Path) -> dict[str, Layer]:
    """Return folder of the home → layer of each cache that the user has: what is read, and not written, is theirs.

    Args:
        folder: private folder of the place.
        left: folder with what a set-up wrote into them.
    """
    found = {}
    for name, path in CACHES.items():
        own = user_home / path
        lowers = (*((left / name,) if left is not None and (left / name).is_dir() else ()),
                  *((own,) if _is_own_folder(own) else ()))
        if lowers:
            found[path] = Layer(atomic.make_directory(folder / CACHE_LAYERS / name), lowers)
    return found


def _is_own_folder(path: Path) -> bool:
    """Return whether a folder is this user's: the kernel cannot change files of others in an overlay."""
    try:
        state = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and os.access(path, os.R_OK | os.X_OK)


def remove_links(folder: Path) -> None:
    """Remove what overlays of a place left: the kernel's work folders, which not even their owner may look into."""
    links = folder / _LINKS
    for work in links.glob(f"*/{_WORK}/{_WORK}"):  # the kernel makes the second one
        with suppress(OSError):
            work.chmod(0o700)
    untrusted.remove(folder, _LINKS)


def copy_in(layers: Sequence[Layer], folder: Path, way: LayerMethod) -> None:
    """Copy what lies below into each upper folder, once for a place; a copy that was killed is made again.

    GarrisonError if there is no room.
    """
    for number, layer in enumerate(layers):
        done = folder / f"{_LINKS}-{number}.done"
        wanted = json.dumps([str(path) for path in layer.lowers])
        if (atomic.read(done) or b"").decode() == wanted:
            continue
        for lower in reversed(layer.lowers):  # the first lies over the others, so it is copied last
            copy_tree(lower, layer.upper, way)
        atomic.write(done, wanted.encode(), durable=False)


def copy_tree(source: Path, target: Path, way: LayerMethod = LayerMethod.COPY) -> None:
    """Copy the content of a folder into another one. GarrisonError if that fails, for lack of room say."""
    reflink = "always" if way is LayerMethod.REFLINK else "auto"
    done = run(["cp", "-a", f"--reflink={reflink}", "--", f"{source}/.", f"{target}/"], None)
    if not done.ok:
        raise GarrisonError(f"what the set-up left cannot be copied to {target}: {done.last_error}")


# ---- which way -------------------------------------------------------------------------------------------------------


class LayerMeans(Value):
    """Way of layers on one file system, and why it is not the overlay."""

    way: LayerMethod
    why: str = ""


def describe_means(means: LayerMeans) -> str:
    """Return a line that says how what a set-up left comes to many worktrees, and what that costs. Pure."""
    if means.way is LayerMethod.OVERLAY:
        return "set-up: an overlay lays what it left under each worktree: agents share its space on disk"
    cost = ("a copy that shares blocks: agents share its space on disk until they write"
            if means.way is LayerMethod.REFLINK else "a copy: each agent and gate takes as much space on disk again")
    return f"set-up: each worktree gets {cost}; no overlay here: {means.why}"


def way_at(folder: Path) -> LayerMeans:
    """Return the way that layers are laid under what lies in `folder`; it is tried once in a boot for a file system."""
    return _way_on(folder, folder.stat().st_dev)


@cache
def _way_on(folder: Path, device: int) -> LayerMeans:
    key = [processes.boot_id(), str(os.geteuid()), str(device), *map(_program_state, _PROGRAMS)]
    kept = homes_list(None).with_name("layers.json")
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(kept.read_text())
        if found["key"] == key:
            return LayerMeans(LayerMethod(found["way"]))
    means = examine(folder)
    if means.way is LayerMethod.OVERLAY:  # what is missing may come
        with suppress(OSError):
            atomic.make_directory(kept.parent)
            atomic.write(kept, json.dumps({"key": key, "way": means.way}).encode(), durable=False)
    return means


def _program_state(name: str) -> str:
    found = shutil.which(name)
    return "" if found is None else f"{found} {Path(found).stat().st_mtime_ns}"


def examine(folder: Path) -> LayerMeans:
    """Try the ways in `folder`, the best first."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".layers-") as name:
        place = Path(name)
        lower, upper = place / "lower", place / "upper"
        lower.mkdir()
        upper.mkdir()
        (lower / "file").write_text("lower\n")
        why = f"{', '.join(missing)} of util-linux is missing" if missing else _try_overlay(place, lower, upper)
        if not why:
            return LayerMeans(LayerMethod.OVERLAY)
        with suppress(GarrisonError):
            copy_tree(lower, place / "upper", LayerMethod.REFLINK)
            return LayerMeans(LayerMethod.REFLINK, why)
        return LayerMeans(LayerMethod.COPY, why)


def _try_overlay(place: Path, lower: Path, upper: Path) -> str:
    """Return why a file cannot be changed through an overlay, '' if it can."""
    words = [*overlay_words([Layer(upper, (lower,))], place), "/bin/sh", "-c", 'echo upper > "$0"', str(upper / "file")]
    try:
        done = run(words, _TIMEOUT)
    finally:
        with suppress(OSError):
            remove_links(place)
    is_held = (lower / "file").read_text() == "lower\n" and (upper / "file").is_file()
    return "" if done.ok and is_held else done.last_error


# ---- what was written through an overlay -----------------------------------------------------------------------------


def is_removed(path: Path) -> bool:
    """Return whether the file of an upper folder says that a tree removed what lies below."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def forget_written(upper: Path, names: Iterable[str]) -> None:
    """Remove what trees wrote over a layer at these paths, so that it shows again as it is; no link is followed."""
    names = list(names)
    untrusted.remove_below(upper, names)
    for name in names:
        folder, parent = name.rstrip("/").rpartition("/")[0], ""
        for part in folder.split("/") if folder else ():
            parent = f"{parent}/{part}" if parent else part
            with untrusted.open_directory(upper, parent) as directory, suppress(OSError):
                if directory is None:
                    if is_removed(upper / parent):
                        (upper / parent).unlink()
                    break
                # The mark of a folder that was removed and made again: it would hide what the layer has there.
                os.removexattr(directory, "user.overlay.opaque")
