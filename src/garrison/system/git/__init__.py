"""Git as garrison calls it: one class per repository, every call a short-lived child.

- The user's settings apply, except what would disturb working agents: no automatic gc or maintenance, no
  fsmonitor daemon, no signing prompt, no terminal prompt, no line-ending check that refuses a commit, no descent into
  submodules, and no foreign `GIT_*` variable (a hook or an agent that runs us must not redirect us into another
  repository). Messages are English (`LC_ALL=C`).
- The user's hooks run for what agents commit, not for our bookkeeping. The one exception is the landing itself: with
  `--with-hooks` a `reference-transaction` hook may refuse to move the target, and is asked before a run starts.
- Programs named in the repository's configuration run only if they were there when the user launched a run
  (`neutral.py`).
- Nothing here switches, resets or cleans a checkout that garrison did not create. Reading a worktree's state uses a
  temporary index.
- Errors are `GitError`: one line, with git's own message.
- Paths that are not UTF-8 are returned with `\\xNN` for the invalid bytes, so that they fit into JSON.
"""

from __future__ import annotations

from pathlib import Path

from garrison.system.git.commits import ABSENT, MergeResult
from garrison.system.git.repository import (
    GitError,
    GitResult,
    common_dir,
    environment,
    locate_repository,
    repository_key,
    validate_repository,
)
from garrison.system.git.rescues import Rescues
from garrison.system.git.worktrees import Worktree

__all__ = [
    "ABSENT",
    "Git",
    "GitError",
    "GitResult",
    "MergeResult",
    "Worktree",
    "common_dir",
    "environment",
    "open_repository",
    "repository_key",
    "validate_repository",
]


class Git(Rescues):
    """One repository, seen from `root` (any directory of it). Methods that take `path` act in that worktree."""


def open_repository(path: Path, home: Path | None = None) -> Git:
    """Open the repository that `path` is in, from its top directory; Refused as in `validate_repository`."""
    top, common = locate_repository(path)
    return Git(top, common=common, home=home)
