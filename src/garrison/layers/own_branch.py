"""What an agent committed must stand on its node's own branch, for nothing else lands.

An agent may have switched branches, or detached HEAD. Commits that go on from the node's branch are brought there;
others are no result, and the reason says where they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
