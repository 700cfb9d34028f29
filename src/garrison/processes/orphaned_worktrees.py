"""Trees that a run left: found, and given back once what they hold is kept. Thin.

The rule of this room: a tree is removed only when all of it is on some ref, or was just kept under a rescue ref; where
that fails, it stays and the error says why. Only what lies in the run's own folder of trees is touched.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.light import dataclass
from garrison.processes.snapshots import keep_tree, unkept
from garrison.processes.worktree import remove_tree
from garrison.system.git import Git
from garrison.system.git.rescues import ARCHIVE, rescue_stem

if TYPE_CHECKING:
    from garrison.records.run import Launch

_NAME = re.compile(r"(?P<node>[A-Za-z_][A-Za-z0-9_-]{0,47})(?:\.(?P<what>validator|left-\d+))?\Z")


@dataclass(frozen=True)
class LeftTree:
    """One tree of a run: `what` is tree, validator or directory (no worktree any more)."""

    path: Path
    run: str
    node: str
    what: str


def repository(launch: Launch, repo: Path | None = None) -> Git:
    """The repository of a run, or `repo` if it was moved there; Refused if there is none."""
    git = Git(repo or Path(launch.repo))
    git.common  # noqa: B018
    return git


def left_trees(git: Git, launch: Launch) -> list[LeftTree]:
    """The trees of a run that stand, by name; of another repository none."""
    folder = Path(launch.trees) / git.key / launch.run_id
    if not folder.is_dir():
        return []
    registered = {tree.path for tree in git.worktrees()}
    found = []
    for path in sorted(folder.iterdir()):
        match = _NAME.match(path.name)
        if match is None or path.is_symlink() or not path.is_dir():
            continue
        whole = folder.resolve() / path.name in registered and _is_whole(git, path)
        what = "directory" if not whole else "validator" if match["what"] == "validator" else "tree"
        found.append(LeftTree(path, launch.run_id, match["node"], what))
    return found


def _is_whole(git: Git, path: Path) -> bool:
    try:
        return git.git_dir(path).is_relative_to(git.common)
    except GarrisonError:
        return False


def holds_work(git: Git, left: LeftTree) -> bool:
    """Whether the tree holds anything that no ref has."""
    if left.what == "directory":
        return any(entry.name != ".git" for entry in left.path.iterdir())
    head = git.head(left.path)
    return unkept(git, left.path, git.containing(head) if head else [])


def give_back(git: Git, left: LeftTree, attempt: int) -> str:
    """Keep what the tree holds, then remove it; the rescue ref, '' if there was nothing to keep. GitError, OSError."""
    ref = ""
    if holds_work(git, left):
        if left.what == "directory":
            tips = (git.rev(f"refs/heads/garrison/{left.run}/{left.node}"),
                    git.rev(f"{ARCHIVE}/{left.run}/{left.node}"), git.rev("HEAD"))
            ref = git.keep_directory(left.path, next((tip for tip in tips if tip), None),
                                     rescue_stem(left.run, left.node, attempt, "left"),
                                     f"garrison: what {left.node} left in {left.path.name}")
        else:
            ref = keep_tree(git, left.path, left.run, left.node, attempt, "left when its run was over",
                            kind="validator" if left.what == "validator" else "")
    if left.what == "directory":
        git.remove_worktree(left.path)
        if left.path.exists():
            shutil.rmtree(left.path)
    remove_tree(git, left.path)
    return ref
