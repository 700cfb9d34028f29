"""Files that are never committed from one worktree: patterns that its agent's profile names.

git knows lists of ignored files for a repository and for a user, none for a worktree. So the patterns are written
beside the worktree's index, after those of the user, and named to each git that looks at the worktree.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from garrison.system.git import Git

NAME = "garrison-exclude"
"""File in a worktree's own git directory."""
SETTING = "core.excludesFile"


def write_excludes(git: Git, worktree: Path, patterns: Sequence[str]) -> Path | None:
    """Write the patterns of a worktree's agent, or remove those of another one; return the file, None without any."""
    path = git.git_dir(worktree) / NAME
    if not patterns or path.parent == git.common:
        if path.parent != git.common:
            path.unlink(missing_ok=True)
        return None
    named = git.run("config", "--path", SETTING, cwd=worktree, check=False).out.removesuffix("\n")
    config = os.environ.get("XDG_CONFIG_HOME") or str(Path(os.environ.get("HOME", "/"), ".config"))
    own = Path(named) if named else Path(config, "git", "ignore")
    kept = (worktree / own).read_bytes() if (worktree / own).is_file() else b""
    text = "".join(f"{pattern}\n" for pattern in patterns).encode(errors="surrogateescape")
    path.write_bytes(kept + (b"" if kept.endswith(b"\n") or not kept else b"\n") + text)
    return path


def options(git_dir: Path) -> tuple[str, ...]:
    """Return the options of git that name the patterns of a worktree with this git directory."""
    path = git_dir / NAME
    return ("-c", f"{SETTING}={path}") if path.is_file() else ()
