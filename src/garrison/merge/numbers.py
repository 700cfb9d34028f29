"""A small number for each tree of a repository, for ports and databases: GARRISON_SLOT.

Gate slots and nodes' trees share one row of numbers, so no two that stand at one time have the same. A node's claim is
a link `number-<n>` to its tree, in the repository's folder of trees; a claim whose tree is gone is none, so that a
crash leaves nothing to be given back. Claims are made one at a time, under a lock beside the queues' locks.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.records import atomic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from garrison.system.git import Git

HIGHEST = 999
"""Beyond that something is wrong with the trees."""


@contextmanager
def locked(git: Git) -> Iterator[None]:
    """Hold the row of numbers."""
    atomic.make_directory(git.common / "garrison")
    with atomic.locked(git.common / "garrison" / "numbers.lock"):
        yield


def claim(git: Git, folder: Path, tree: Path) -> int:
    """The number of `tree`, which stands below `folder`; the same one as long as it stands."""
    wanted = str(tree.relative_to(folder))
    with locked(git):
        owners = _owners(folder)
        for number, owner in owners.items():
            if owner == wanted:
                return number
        free = next((number for number in range(1, HIGHEST + 1)
                     if number not in owners and not (folder / f"slot-{number}.lock").exists()), None)
        if free is None:
            raise Refused(f"no number is free for {tree}; remove the trees of runs that are over from {folder}")
        link = folder / f"number-{free}"
        link.unlink(missing_ok=True)
        link.symlink_to(wanted)
        return free


def taken(folder: Path, number: int) -> bool:
    """Whether a node's tree has that number."""
    return number in _owners(folder)


def tidy(git: Git, folder: Path) -> None:
    """Remove the claims of trees that are gone."""
    with locked(git):
        for link in folder.glob("number-*"):
            if not link.exists():
                link.unlink(missing_ok=True)


def _owners(folder: Path) -> dict[int, str]:
    """Number → tree of every claim that holds."""
    found = {}
    for link in folder.glob("number-*"):
        with suppress(OSError, ValueError):
            if link.exists():
                found[int(link.name.removeprefix("number-"))] = str(link.readlink())
    return found
