"""Files that are never committed from one worktree, unless its agent adds them by force (`git add -f`).

These are the patterns of the agent's profile, single files that the set-up made and the repository does not ignore, and
what interpreters and test tools write beside every source file (`CACHES`). git knows lists of ignored files for a
repository and for a user, none for a worktree. So the patterns are written beside the worktree's index, after those of
the user, and named to each git that looks at the worktree. A file that is tracked is committed like any other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.system import untrusted

if TYPE_CHECKING:
    from garrison.system.git import Git

NAME = "garrison-exclude"
"""File in a worktree's own git directory."""
OUTPUT = "garrison-setup-output"
"""File beside it, with the patterns of the files that the set-up made."""
CACHES = ("__pycache__/", "*.py[co]", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/")
"""Patterns of what programs write beside sources by themselves: never work, and no reason to refuse any."""
SETTING = "core.excludesFile"


def literal_pattern(name: str) -> str:
    return re.sub(r"([\\*?\[\] ])", r"\\\1", name)


def write_excludes(git: Git, worktree: Path, patterns: Sequence[str] = ()) -> Path | None:
    """Write the patterns of a worktree with those of its agent; return the file, None for a checkout of the user's."""
    git_dir = git.git_dir(worktree)
    if git_dir == git.common:
        return None
    made = (git_dir / OUTPUT).read_text(errors="surrogateescape").splitlines() if (git_dir / OUTPUT).is_file() else []
    path = git_dir / NAME
    path.write_bytes(_with_own(git, worktree, [*CACHES, *made, *patterns]))
    return path


def exclude_output(git: Git, worktree: Path, names: Sequence[str]) -> None:
    """Add single files that the set-up made to the patterns of a worktree; a successor's agent has them, too."""
    git_dir = git.git_dir(worktree)
    if git_dir == git.common or not names:
        return
    with (git_dir / OUTPUT).open("a", errors="surrogateescape") as file:
        file.writelines(f"/{literal_pattern(name)}\n" for name in names if "\n" not in name)
    write_excludes(git, worktree)


def is_cache(name: str) -> bool:
    parts = [part for part in name.split("/") if part]
    return any(fnmatchcase(part, pattern.rstrip("/")) for part in parts for pattern in CACHES)


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
    if own.is_absolute():
        kept = own.read_bytes() if own.is_file() else b""
    else:  # in the worktree, where it may be an agent's link to what the agent is not to see
        kept = untrusted.read_begin(worktree, str(own), untrusted.TEXT_LIMIT)
    text = "".join(f"{pattern}\n" for pattern in patterns).encode(errors="surrogateescape")
    return kept + (b"" if kept.endswith(b"\n") or not kept else b"\n") + text


def options(git_dir: Path) -> tuple[str, ...]:
    """Return the options of git that name the patterns of a worktree with this git directory."""
    path = git_dir / NAME
    return ("-c", f"{SETTING}={path}") if path.is_file() else ()
