"""Files of a worktree that git does not create: submodules, included files, set-up output.

- `.worktreeinclude` at the top of the user's checkout has the syntax of `.gitignore`. Files that match it, and that git
  ignores, are copied into each worktree (`.env` files, for example). They are never overwritten and never committed: a
  file that git would not ignore is left out. Symbolic links out of the repository are not copied, and none is followed.
- Set-up runs once per worktree, and again when its key changes: a hash of its command and of the lock files. The owner
  of the worktree stores the key of the last successful set-up.
- What only the set-up made (an environment, installed modules, a lock file that it wrote) is not work. A directory gets
  a `.gitignore` with `*`, a single file is listed next to the worktree's index (`git.commits`), so that no commit and
  no snapshot contains it, without touching the settings of the user's repository.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.system import untrusted
from garrison.system.git import commits
from garrison.system.git.repository import split
from garrison.system.git.submodules import connect_as_user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.system.git import Git
    from garrison.system.git.submodules import Connect

INCLUDE = ".worktreeinclude"
"""File at the top of the user's checkout that lists what is copied into each worktree."""
LOCK_FILES = ("uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "requirements.txt", "pyproject.toml", "setup.py",
              "setup.cfg", "package.json", "package-lock.json", "yarn.lock", "pnpm-lock.yaml", "Cargo.lock", "go.sum",
              "Gemfile.lock", "composer.lock")
"""Files whose change makes set-up run again, unless the run names others."""
_MAX_LOCK_FILE = 64 << 20
"""Bytes of a lock file that are part of a set-up's key."""
_POINTER = b"version https://git-lfs.github.com/spec/"
_IGNORE_EVERYTHING = "\n*\n"


def complete_worktree(git: Git, tree: Path, *, force: bool = False,
                      connect: Connect = connect_as_user) -> list[str]:
    """Complete one of our worktrees; return notes for the user. Refused if a submodule cannot be fetched.

    Args:
        force: reset submodules to the tree's commits, whatever they contain.
        connect: how missing submodules are fetched (`sandbox.network.connect_for`).
    """
    git.populate_submodules(tree, force=force, connect=connect)
    return _copy_included(git, tree)


def _copy_included(git: Git, tree: Path) -> list[str]:
    if not (git.root / INCLUDE).is_file():
        return []
    listed = git.run("ls-files", "--others", "--ignored", "-z", f"--exclude-from={git.root / INCLUDE}", cwd=git.root)
    matching = [name for name in listed.out.split("\0") if name and not name.endswith("/")]
    names = [name for name in matching  # git check-ignore fails for files behind a link in the worktree
             if not any((tree / parent).is_symlink() for parent in Path(name).parents)]
    ignored = git.ignored_among(tree, names)
    notes = [f"{INCLUDE}: {name} is left out: git does not ignore it, so it could be committed; add it to .gitignore"
             for name in names if name not in ignored]
    notes += [f"{INCLUDE}: {name} is left out: the worktree has a link in its path" for name in matching
              if name not in names]
    return notes + [note for name in names if name in ignored for note in _copy(git.root, tree, name)]


def _copy(root: Path, tree: Path, name: str) -> list[str]:
    """Copy one file atomically; return a note if it is not copied."""
    source, target = root / name, tree / name
    if os.path.lexists(target):
        return []
    if not source.resolve().is_relative_to(root.resolve()):
        return [f"{INCLUDE}: {name} is left out: the link points out of the repository"]
    if not source.is_symlink() and not source.is_file():
        return [f"{INCLUDE}: {name} is left out: it is not a file"]
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = tree.with_name(f".{tree.name}.include-{os.getpid()}")  # not in the worktree: it could be committed
    try:
        shutil.copy2(source, temporary, follow_symlinks=False)
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        return [f"{INCLUDE}: {name} is left out: {error.strerror}"]
    return []


def count_lfs_pointers(git: Git, tree: Path) -> int:
    """Return how many files of the worktree are LFS pointers instead of the files they refer to."""
    names = git.run("ls-files", "-z", "--", ":(attr:filter=lfs)", cwd=tree).out.split("\0")
    return sum(1 for name in names if name and untrusted.read_begin(tree, name, len(_POINTER)) == _POINTER)


def hide_setup_output(git: Git, tree: Path) -> list[str]:
    """Make git ignore what is untracked in `tree`: directories without tracked files, and in our worktrees also single
    files; return the names, of directories with a final slash. GitError, OSError.
    """
    listed = split(git.list_files(tree, "ls-files", "--others", "--exclude-standard", "--directory",
                                  "--no-empty-directory", "-z"))
    folders = [name for name in listed if name.endswith("/")]
    for name in folders:
        with suppress(untrusted.UnsafeFile):  # code of the branch may have left a link or a pipe there
            untrusted.append(tree, f"{name}.gitignore", _IGNORE_EVERYTHING.encode())
    if git.git_dir(tree) == git.common:
        return folders
    files = [name for name in listed if not name.endswith("/")]
    commits.exclude_output(git, tree, files)
    return [*folders, *files]


def setup_key(command: str, tree: Path, lock_files: Sequence[str] = ()) -> str:
    """Return the key of a set-up by `command` in `tree` as it is now; `lock_files` are paths below the tree."""
    digest = hashlib.sha256(command.encode())
    for name in lock_files or LOCK_FILES:
        content = _read_lock_file(tree, name)
        if content is not None:
            digest.update(b"\0" + name.encode() + b"\0" + content)
    return digest.hexdigest()


def _read_lock_file(tree: Path, name: str) -> bytes | None:
    """Return the relevant part of a lock file: its start, and its size if it is larger; None if it is not a file of the
    tree. A link within the tree is followed."""
    root, real = os.path.realpath(tree), Path(os.path.realpath(tree / name))
    if not real.is_relative_to(root):
        return None
    content = untrusted.read_part(Path(root), str(real.relative_to(root)), _MAX_LOCK_FILE)
    if content is None or len(content) < _MAX_LOCK_FILE:
        return content
    return content + f"\0{real.stat().st_size}".encode()


def describe_unused_lock_files(tree: Path, lock_files: Sequence[str]) -> list[str]:
    """Return a line for each lock file whose changes would go unnoticed, since it is not a file of the tree."""
    return [f"{name}: " + ("it is not in this commit" if not os.path.lexists(tree / name) else
                           "it is not a file, or a link out of the repository")
            + ", so its changes do not make set-up run again; correct setup_key"
            for name in lock_files if _read_lock_file(tree, name) is None]


def due_setup_key(command: str | None, tree: Path, lock_files: Sequence[str], last: str) -> str | None:
    """Return the key of a set-up that must run, None if the `last` successful one had it or there is no set-up."""
    if not command:
        return None
    key = setup_key(command, tree, lock_files)
    return None if key == last else key
