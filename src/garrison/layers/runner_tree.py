"""A node's worktree: made at the target's tip, set up again when its key changed, removed. Used by its runner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from garrison.merge import numbers
from garrison.records import atomic
from garrison.system.furnish import furnish
from garrison.system.git import GitError
from garrison.system.git.rescues import rescue_stem
from garrison.system.setup_key import setup_key

if TYPE_CHECKING:
    from garrison.records.run import Launch, Task
    from garrison.system.git import Git


def make_tree(git: Git, task: Task, tree: Path, branch: str, tip: str, conflicts: Path) -> list[str]:
    """The worktree on the node's branch, begun at `tip`; a predecessor's is taken as it is. Notes for people.

    The names of files that an attempt with `rework=merge` begins with in conflict are written to `conflicts`.
    """
    tree.parent.mkdir(parents=True, exist_ok=True)
    if task.attempt > 1 and task.rework == "fresh" and not tree.exists():
        # What the earlier attempt did is under its rescue ref; the attempt that repeats it begins anew. Its branch may
        # hold more: an agent that checked out another one left its tree, and so the rescue, elsewhere.
        before = git.branch_tip(branch)
        if before is not None and not git.containing(before, but=f"refs/heads/{branch}"):
            git.keep_commit(before, rescue_stem(task.run_id, task.node, task.attempt - 1, "branch"))
        git.update_ref(f"refs/heads/{branch}", tip)
    git.add_worktree(tree, branch, tip)
    if task.attempt > 1 and task.rework == "merge":
        _merge_tip(git, tree, tip, conflicts)
    return furnish(git, tree)


def _merge_tip(git: Git, tree: Path, tip: str, told: Path) -> None:
    """Merge the target's tip into the branch, leaving conflict markers and telling the agent in `told` where they are.

    Once an attempt: a later runner of it must not merge again, under an agent at work, because the target moved.
    """
    if told.exists():
        return
    head = git.head(tree) or tip
    merging = (git.git_dir(tree) / "MERGE_HEAD").exists()
    merge = ("merge", "--no-commit", "--no-ff", tip)
    done = None
    if not merging and not git.is_ancestor(tip, head):
        done = git.run(*merge, cwd=tree, check=False, extra=git.author(tree))
    files = git.run("diff", "--name-only", "--diff-filter=U", "-z", cwd=tree).out.split("\0")
    if done is not None and done.code and not any(files):
        raise GitError(merge, done.code, done.err)  # git did not merge at all
    atomic.write(told, "".join(f"{name}\n" for name in files if name).encode())


def key_of_setup(launch: Launch, task: Task, tree: Path) -> str:
    """The set-up key that the tree has now; empty if the task has no set-up."""
    return setup_key(task.setup, tree, launch.lock_files) if task.setup else ""


def remove_tree(git: Git, tree: Path) -> None:
    """Remove the worktree, its number, and the folders it leaves empty."""
    git.remove_worktree(tree)
    folder = tree.parent.parent
    if folder.is_dir():
        numbers.tidy(git, folder)
    for parent in (tree.parent, folder):
        try:
            parent.rmdir()
        except OSError:
            break
