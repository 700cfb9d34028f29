"""Layers: lower layers of folders that confined process trees may write, shared by many trees and changed by none.

A set-up leaves a home and untracked files (`setups.py`). Every tree on top of it may change and remove them, invisibly
to other trees. There are three ways, and the best available is used:

    overlay   The kernel reads through to the layer and writes into the tree's own folder. A few milliseconds, whatever
    the size. Made in a user and mount namespace around the sandbox, without privileges. reflink   Copied by `cp
    --reflink`: blocks are shared until they are written (btrfs, XFS, bcachefs). copy      Copied completely. Never hard
    links: a write in place would change all copies.

The overlay's upper folder is the tree's own folder itself, so written files are where they would be without a layer. A
file that was removed from the layer is a character device 0:0 there, which git ignores.

A layer must belong to the user and the user's own group: the kernel cannot copy up files with another owner
(EOVERFLOW). It must not change while it is used: `setups.py` renames complete layers into place.
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
"""Caches of package managers → folder of the user's home; none contains credentials."""
CACHE_LAYERS = "caches"
"""Folder of a place, and of a set-up's output, with what was written into each cache."""


class LayerMethod(StrEnum):
    """How a layer is put under a folder."""

    OVERLAY = "overlay"
    REFLINK = "reflink"
    COPY = "copy"


class Layer(Value):
    """Folders to put under a folder."""

    upper: Path
    """Folder that is written, and that shows the layer afterwards."""
    lowers: tuple[Path, ...]
    """The first covers the others."""
    is_writable: bool = True


_PROGRAMS = ("unshare", "mount", "setpriv")
"""Programs of util-linux that create the namespace and the overlay."""
_LINKS = "layers"
"""Folder of a place, invisible inside, with the folders of each overlay under names without special characters."""
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
"""
"""Shell that mounts the overlays of a place."""
_BECOME = 'exec setpriv --ambient-caps=-all --inh-caps=-all -- "$@"\n'
"""Ends that shell: it becomes the sandbox. Bubblewrap refuses to start with ambient capabilities; without them it
creates its own namespaces."""
_TIMEOUT = 20.0


def overlay_words(layers: Sequence[Layer], folder: Path, *, as_root: bool = False, then: str = "") -> list[str]:
    """Return the prefix that starts a command with overlays mounted; empty without layers.

    Args:
        folder: private folder of the place, on the file system of every `upper`.
        as_root: without a user namespace, for an engine that must be root outside.
        then: commands of the shell after the mounts, each ended.
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
        # userxattr: in a user namespace, the trusted.* attributes with which overlays mark opaque folders cannot be
        # set.
        if layer.is_writable:
            atomic.make_directory(own / _WORK)
            options = f"lowerdir={':'.join(lowers)},upperdir={number}/upper,workdir={number}/{_WORK},userxattr"
        else:
            options = f"lowerdir={':'.join([f'{number}/upper', *lowers])},userxattr"
        (own / "options").write_text(f"{options}\n")
    unshare = shutil.which(_PROGRAMS[0]) or _PROGRAMS[0]
    namespaces = ["--mount"] if as_root else ["--user", "--mount", "--map-current-user", "--keep-caps"]
    return [unshare, *namespaces, "--", "/bin/sh", "-c", f"{_MOUNT}{then}{_BECOME}",
            "garrison-layers", str(links), str(len(layers))]


def cache_layers(folder: Path, left: Path | None, user_home: Path) -> dict[str, Layer]:
    """Return folder of the home → layer of each cache that the user has: reads come from the user's cache, writes do
    not reach it.

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
    """Return whether a folder belongs to this user: the kernel cannot change others' files in an overlay."""
    try:
        state = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and os.access(path, os.R_OK | os.X_OK)


def remove_links(folder: Path) -> None:
    """Remove the leftovers of a place's overlays: the kernel's work folders, which even their owner cannot read."""
    links = folder / _LINKS
    for work in links.glob(f"*/{_WORK}/{_WORK}"):  # the kernel makes the second one
        with suppress(OSError):
            work.chmod(0o700)
    untrusted.remove(folder, _LINKS)


def copy_in(layers: Sequence[Layer], folder: Path, way: LayerMethod) -> None:
    """Copy the lower folders into each upper folder, once for a place; repeat a copy that was killed.

    GarrisonError if there is no room.
    """
    for number, layer in enumerate(layers):
        done = folder / f"{_LINKS}-{number}.done"
        wanted = json.dumps([str(path) for path in layer.lowers])
        if (atomic.read(done) or b"").decode() == wanted:
            continue
        for lower in reversed(layer.lowers):  # the first covers the others, so it is copied last
            copy_tree(lower, layer.upper, way)
        atomic.write(done, wanted.encode(), durable=False)


def copy_tree(source: Path, target: Path, way: LayerMethod = LayerMethod.COPY) -> None:
    """Copy the content of a folder into another one. GarrisonError if that fails, for example on a full disk."""
    reflink = "always" if way is LayerMethod.REFLINK else "auto"
    done = run(["cp", "-a", f"--reflink={reflink}", "--", f"{source}/.", f"{target}/"], None)
    if not done.ok:
        raise GarrisonError(f"what the set-up left cannot be copied to {target}: {done.last_error}")


# ---- choice of the way
# -------------------------------------------------------------------------------------------------------


class LayerMeans(Value):
    """Way of layers on one file system, and why it is not the overlay."""

    way: LayerMethod
    why: str = ""


def describe_means(means: LayerMeans) -> str:
    """Return a line about how worktrees get the output of a set-up, and what that costs. Pure."""
    if means.way is LayerMethod.OVERLAY:
        return "set-up: each worktree gets its output through an overlay: agents share the disk space"
    cost = ("a copy that shares blocks: agents share the disk space until they write"
            if means.way is LayerMethod.REFLINK else "a copy: each agent and gate takes as much disk space again")
    return f"set-up: each worktree gets {cost}; no overlay here: {means.why}"


def way_at(folder: Path) -> LayerMeans:
    """Return the way of layers for content of `folder`; it is tried once per boot and file system."""
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
    if means.way is LayerMethod.OVERLAY:  # what is missing may be installed later
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


# ---- writes through an overlay -----------------------------------------------------------------------------


def is_removed(path: Path) -> bool:
    """Return whether the file of an upper folder marks a removal from the layer."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def forget_written(upper: Path, names: Iterable[str]) -> None:
    """Remove what trees wrote over a layer at these paths, so that the layer shows again; no link is followed."""
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
                # The mark of a folder that was removed and recreated: it would hide the layer's content.
                os.removexattr(directory, "user.overlay.opaque")
