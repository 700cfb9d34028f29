"""What a fresh worktree gets that git does not put there: submodules, and files the user names in `.worktreeinclude`.

`.worktreeinclude` at the top of the user's checkout has lines as `.gitignore` has them. What it matches in the
checkout, and git ignores, is copied into each tree of ours (`.env` files, say). Never committed: what git would not
ignore is left out. Never overwritten; no link leads out of the repository or is written through.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from garrison.system.git import Git

INCLUDE = ".worktreeinclude"
_POINTER = b"version https://git-lfs.github.com/spec/"


def furnish(git: Git, tree: Path, *, force: bool = False) -> list[str]:
    """Complete a worktree of ours; notes for people. Refused if a submodule is nowhere to be had.

    `force`: submodules are brought to what the tree says, whatever is in them.
    """
    git.populate(tree, force=force)
    return _include(git, tree)


def _include(git: Git, tree: Path) -> list[str]:
    if not (git.root / INCLUDE).is_file():
        return []
    listed = git.run("ls-files", "--others", "--ignored", "-z", f"--exclude-from={git.root / INCLUDE}", cwd=git.root)
    found = [name for name in listed.out.split("\0") if name and not name.endswith("/")]
    names = [name for name in found if not _linked(tree, name)]  # about others git gives no answer at all
    ignored = set(git.run("check-ignore", "-z", "--stdin", cwd=tree, check=False,
                          text="".join(f"{name}\0" for name in names)).out.split("\0"))
    notes = [f"{INCLUDE}: {name} is left out: git does not ignore it, so it could be committed; add it to .gitignore"
             for name in names if name not in ignored]
    notes += [f"{INCLUDE}: {name} is left out: the worktree has a link in its way" for name in found
              if name not in names]
    return notes + [note for name in names if name in ignored for note in _copy(git.root, tree, name)]


def _linked(tree: Path, name: str) -> bool:
    """Whether a directory on the way to `name` is a link in the worktree."""
    return any((tree / above).is_symlink() for above in Path(name).parents)


def _copy(root: Path, tree: Path, name: str) -> list[str]:
    """Copy one file, whole or not at all; why not, in words."""
    source, target = root / name, tree / name
    if os.path.lexists(target):
        return []
    if not source.resolve().is_relative_to(root.resolve()):
        return [f"{INCLUDE}: {name} is left out: the link leads out of the repository"]
    if not source.is_symlink() and not source.is_file():
        return [f"{INCLUDE}: {name} is left out: it is no file"]
    target.parent.mkdir(parents=True, exist_ok=True)
    half = tree.with_name(f".{tree.name}.include-{os.getpid()}")  # beside the tree: in it, it could be committed
    try:
        shutil.copy2(source, half, follow_symlinks=False)
        half.replace(target)
    except OSError as error:
        half.unlink(missing_ok=True)
        return [f"{INCLUDE}: {name} is left out: {error.strerror}"]
    return []


def count_pointers(git: Git, tree: Path) -> int:
    """How many files of the worktree are LFS pointers instead of what they stand for."""
    names = git.run("ls-files", "-z", "--", ":(attr:filter=lfs)", cwd=tree).out.split("\0")
    return sum(1 for name in names if name and _is_pointer(tree / name))


def _is_pointer(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False
