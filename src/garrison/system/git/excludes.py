"""Files that are never committed from one worktree: patterns that its agent's profile names.

git knows lists of ignored files for a repository and for a user, none for a worktree. So the patterns are written
beside the worktree's index, after those of the user, and named to each git that looks at the worktree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from garrison.system.git import Git

NAME = "garrison-exclude"
"""File in a worktree's own git directory."""
SETTING = "core.excludesFile"


def literal_pattern(name: str) -> str:
    """Return a path as a pattern that matches it alone."""
    return re.sub(r"([\\*?\[\] ])", r"\\\1", name)


def write_excludes(git: Git, worktree: Path, patterns: Sequence[str]) -> Path | None:
    """Write the patterns of a worktree's agent, or remove those of another one; return the file, None without any."""
    path = git.git_dir(worktree) / NAME
    if not patterns or path.parent == git.common:
        if path.parent != git.common:
            path.unlink(missing_ok=True)
        return None
    path.write_bytes(_with_own(git, worktree, patterns))
    return path


def exclude_in_checkout(git: Git, checkout: Path, folder: Path, patterns: Sequence[str],
                        environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep files out of the commits of a program in a person's own checkout; nothing there is
    changed.

    Args:
        folder: folder of the program, for the list.
        environ: its variables, whose settings of git are kept.
    """
    path = folder / NAME
    path.write_bytes(_with_own(git, checkout, patterns))
    count = environ.get("GIT_CONFIG_COUNT", "")
    number = int(count) if count.isdecimal() else 0
    return {f"GIT_CONFIG_KEY_{number}": SETTING, f"GIT_CONFIG_VALUE_{number}": str(path),
            "GIT_CONFIG_COUNT": str(number + 1)}


def _with_own(git: Git, worktree: Path, patterns: Sequence[str]) -> bytes:
    """Return the patterns after those of the user's own list."""
    named = git.run("config", "--path", SETTING, cwd=worktree, check=False).out.removesuffix("\n")
    config = os.environ.get("XDG_CONFIG_HOME") or str(Path(os.environ.get("HOME", "/"), ".config"))
    own = Path(named) if named else Path(config, "git", "ignore")
    kept = (worktree / own).read_bytes() if (worktree / own).is_file() else b""
    text = "".join(f"{pattern}\n" for pattern in patterns).encode(errors="surrogateescape")
    return kept + (b"" if kept.endswith(b"\n") or not kept else b"\n") + text


def options(git_dir: Path) -> tuple[str, ...]:
    """Return the options of git that name the patterns of a worktree with this git directory."""
    path = git_dir / NAME
    return ("-c", f"{SETTING}={path}") if path.is_file() else ()
