"""A node's worktree and branch: created at the target's tip, prepared, saved, removed.

Commits that an agent made elsewhere but that continue the node's branch are brought onto it, because nothing else
lands; other commits are no result, and the reason says where they are. A landed branch is archived, not deleted. A
worktree is reset or removed only when all of it is on some ref, or was just saved under a rescue ref; where that
fails, it stays and the error says why. Only worktrees in the run's own folder are touched.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.merge import slots
from garrison.processes.snapshots import has_unsaved_work, save_worktree
from garrison.records import atomic
from garrison.system.git import Git, GitError
from garrison.system.git.rescues import ARCHIVE, LIVE, rescue_stem
from garrison.system.worktree_files import complete_worktree, hide_setup_output, setup_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from garrison.records.run import Launch, Task
    from garrison.system.git import Git


def create_worktree(git: Git, task: Task, tree: Path, branch: str, tip: str, conflicts: Path) -> list[str]:
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
    return complete_worktree(git, tree)


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


def current_setup_key(launch: Launch, task: Task, tree: Path) -> str:
    """The set-up key that the tree has now; empty if the task has no set-up."""
    return setup_key(task.setup, tree, launch.lock_files) if task.setup else ""


def remove_worktree(git: Git, tree: Path) -> None:
    """Remove the worktree, its number, and the folders it leaves empty."""
    git.remove_worktree(tree)
    folder = tree.parent.parent
    if folder.is_dir():
        slots.remove_void_claims(git, folder)
    for parent in (tree.parent, folder):
        try:
            parent.rmdir()
        except OSError:
            break


def validator_worktree(tree: Path) -> Path:
    """The validator's worktree beside the node's; no node is called so, for a name has no dot."""
    return tree.with_name(f"{tree.name}.validator")


def remove_validator_worktree(git: Git, tree: Path, task: Task) -> None:
    """Remove the validator's worktree beside the node's `tree`, if it is there; what was written in it is kept."""
    own = validator_worktree(tree)
    if not own.is_dir():
        return
    head = git.head(own)
    if head is not None and has_unsaved_work(git, own, git.containing(head)):
        save_worktree(git, own, task.run_id, task.node, task.attempt, "got from its validator", kind="validator")
    git.remove_worktree(own)


class Worktree:
    """The tree of one attempt; `folder` is the attempt's own, in the home."""

    def __init__(self, git: Git, launch: Launch, task: Task, path: Path, branch: str, folder: Path,
                 kept: Callable[[str], None]) -> None:
        self.git, self.launch, self.task = git, launch, task
        self.path, self.branch, self.folder, self._kept = path, branch, folder, kept
        self.ready = False
        """Whether this life of the runner has seen to it that the tree stands."""

    def begin(self, tip: str, *, again: bool, living: bool) -> list[str]:
        """The tree on the node's branch, begun at `tip`; a predecessor's is taken as it is. Notes for people.

        `again`: it is the first time in an attempt after another; `living`: an agent works in it.
        """
        if again and self.task.rework == "fresh" and self.path.is_dir() and not living:
            self._keep("left by an attempt that was given up", self.task.attempt - 1)
            remove_worktree(self.git, self.path)
        notes = create_worktree(self.git, self.task, self.path, self.branch, tip, self.folder / "conflicts.txt")
        if not living:
            self.clear_locks()
        self.ready = True
        return notes

    def clear_locks(self) -> None:
        """Remove the lock files that a dead agent's git left."""
        self.git.clear_locks(self.path, self.branch)

    def setup_key(self) -> str:
        """What the set-up depends on, as it is now; '' without a set-up."""
        return current_setup_key(self.launch, self.task, self.path)

    def was_set_up(self) -> None:
        """Hide what the set-up made, unless there may be an agent's new folders too."""
        if not (self.folder / "prompt.md").exists():
            hide_setup_output(self.git, self.path)

    def rescue(self, what: str) -> str:
        """Keep all that the tree holds, if it stands; the ref, or ''. `what` ends the sentence "what NODE …"."""
        if not self.path.is_dir():
            return ""
        ref = self._keep(what, self.task.attempt)
        self._kept(ref)
        return ref

    def rescue_rest(self) -> None:
        """Keep what the tree holds beside the branch, which has landed."""
        tip = self.git.branch_tip(self.branch)
        if self.path.is_dir() and has_unsaved_work(self.git, self.path, [tip] if tip else []):
            self.rescue("had not committed when its branch landed")

    def leave(self) -> None:
        """Remove the tree, and a validator's beside it; what they hold was kept."""
        remove_validator_worktree(self.git, self.path, self.task)
        remove_worktree(self.git, self.path)

    def put_aside(self) -> None:
        """Of a branch that has landed: forget the snapshots of all attempts, archive the branch."""
        stems = [rescue_stem(self.launch.run_id, self.task.node, attempt, LIVE)
                 for attempt in range(1, self.task.attempt + 1)]
        self.git.forget_rescues([one.ref for stem in stems for one in self.git.lives(stem)])
        tip = self.git.branch_tip(self.branch)
        if tip and not self.launch.adhoc:
            archive_landed_branch(self.git, self.task, self.branch, tip)

    def _keep(self, what: str, attempt: int) -> str:
        return save_worktree(self.git, self.path, self.launch.run_id, self.task.node, attempt, what)


def adopt_commits(git: Git, tree: Path, branch: str) -> str:
    """Move `branch` on to what is checked out in `tree`; '' if it stands there, else why it cannot."""
    head, tip = git.head(tree), git.branch_tip(branch)
    if head is None:
        return f"git finds no commit in {tree}: its .git is damaged or gone"
    if head == tip:
        return ""
    if (tip is None or git.is_ancestor(tip, head)) and git.update_ref(
            f"refs/heads/{branch}", head, tip, message="garrison: bring home what was committed elsewhere"):
        return ""
    where = git.current_branch(tree)
    place = f"{head[:10]} ({where})" if where else head[:10]
    return f"it left its branch {branch}: its work is at {place}, which does not go on from there"


def archive_landed_branch(git: Git, task: Task, branch: str, tip: str) -> None:
    """Put a landed branch aside under its archive ref; what stood there and is nowhere else becomes a rescue.

    GarrisonError if the ref cannot be written: the branch stays.
    """
    ref = f"{ARCHIVE}/{task.run_id}/{task.node}"
    before = git.rev(ref)
    if before not in (None, tip) and not git.containing(before, but=ref):
        git.keep_commit(before, rescue_stem(task.run_id, task.node, task.attempt - 1, "archive"))
    if not git.update_ref(ref, tip):
        raise GarrisonError(f"could not archive {branch} as {ref}")
    git.delete_refs([f"refs/heads/{branch}"])


_NAME = re.compile(r"(?P<node>[A-Za-z_][A-Za-z0-9_-]{0,47})(?:\.(?P<what>validator|left-\d+))?\Z")


@dataclass(frozen=True)
class OrphanedWorktree:
    """One tree of a run: `what` is tree, validator or directory (no worktree any more)."""

    path: Path
    run: str
    node: str
    what: str


def run_repository(launch: Launch, repo: Path | None = None) -> Git:
    """The repository of a run, or `repo` if it was moved there; Refused if there is none."""
    git = Git(repo or Path(launch.repo))
    git.common  # noqa: B018
    return git


def orphaned_worktrees(git: Git, launch: Launch) -> list[OrphanedWorktree]:
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
        found.append(OrphanedWorktree(path, launch.run_id, match["node"], what))
    return found


def _is_whole(git: Git, path: Path) -> bool:
    try:
        return git.git_dir(path).is_relative_to(git.common)
    except GarrisonError:
        return False


def orphan_holds_work(git: Git, left: OrphanedWorktree) -> bool:
    """Whether the tree holds anything that no ref has."""
    if left.what == "directory":
        return any(entry.name != ".git" for entry in left.path.iterdir())
    head = git.head(left.path)
    return has_unsaved_work(git, left.path, git.containing(head) if head else [])


def save_and_remove(git: Git, left: OrphanedWorktree, attempt: int) -> str:
    """Keep what the tree holds, then remove it; the rescue ref, '' if there was nothing to keep. GitError, OSError."""
    ref = ""
    if orphan_holds_work(git, left):
        if left.what == "directory":
            tips = (git.rev(f"refs/heads/garrison/{left.run}/{left.node}"),
                    git.rev(f"{ARCHIVE}/{left.run}/{left.node}"), git.rev("HEAD"))
            ref = git.keep_directory(left.path, next((tip for tip in tips if tip), None),
                                     rescue_stem(left.run, left.node, attempt, "left"),
                                     f"garrison: what {left.node} left in {left.path.name}")
        else:
            ref = save_worktree(git, left.path, left.run, left.node, attempt, "left when its run was over",
                            kind="validator" if left.what == "validator" else "")
    if left.what == "directory":
        git.remove_worktree(left.path)
        if left.path.exists():
            shutil.rmtree(left.path)
    remove_worktree(git, left.path)
    return ref
