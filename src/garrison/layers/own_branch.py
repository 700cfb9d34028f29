"""What an agent committed must stand on its node's own branch, for nothing else lands.

An agent may have switched branches, or detached HEAD. Commits that go on from the node's branch are brought there;
others are no result, and the reason says where they are. What has landed is put aside under the archive.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.system.git.rescues import ARCHIVE, rescue_stem

if TYPE_CHECKING:
    from garrison.records.run import Task
    from garrison.system.git import Git


def bring_home(git: Git, tree: Path, branch: str) -> str:
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


def archive(git: Git, task: Task, branch: str, tip: str) -> None:
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
