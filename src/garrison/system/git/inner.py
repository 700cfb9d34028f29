"""Repositories inside a worktree: which of them garrison's git may work in.

Whoever works in the worktree chose where they lead: a `.git` file, a link or a `commondir` that names the user's
repository would have garrison move the user's branches, and a link inside would have it write anywhere.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_MAX_LINK = 1 << 16
"""Bytes of a `.git` file."""


def is_safe_name(name: str) -> bool:
    """Return whether a submodule's name, which .gitmodules chooses, stays below the folder that it names a part of."""
    return bool(name) and not name.startswith("/") and ".." not in name.replace("\\", "/").split("/")


def is_own(worktree: Path, name: str, modules: Path | None = None) -> bool:
    """Return whether the repository `name` in a worktree is one of its own: at `modules`, or whole in its folder."""
    folder = worktree
    for part in Path(name).parts:
        folder /= part
        if folder.is_symlink():
            return False
    link = folder / ".git"
    try:
        mode = link.lstat().st_mode
        if stat.S_ISDIR(mode):
            return _is_plain(link)
        if not stat.S_ISREG(mode) or modules is None:
            return False
        target = _read(link).removeprefix("gitdir: ").rstrip("\n")
    except OSError:
        return False
    return os.path.realpath(folder / target) == os.path.realpath(modules)


def _is_plain(git_dir: Path) -> bool:
    """Return whether a git directory is whole: no other one in its place, and no link out of it."""
    if os.path.lexists(git_dir / "commondir"):
        return False
    return not any(os.path.islink(os.path.join(folder, name)) for folder, folders, files in os.walk(git_dir)  # noqa: PTH114, PTH118
                   for name in (*folders, *files))


def _read(link: Path) -> str:
    descriptor = os.open(link, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.fsdecode(os.read(descriptor, _MAX_LINK))
    finally:
        os.close(descriptor)
