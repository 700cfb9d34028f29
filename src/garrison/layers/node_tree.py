"""A node's tree and branch in its runner's hands: begun at the target's tip, kept, left.

The rule of this room: nothing goes before what no ref has is kept. `kept` is told each ref that was written, so that
the runner's journal has it; which of these steps is due the runner's policy decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.layers import validator
from garrison.layers.own_branch import archive
from garrison.layers.rescue import keep_tree, unkept
from garrison.layers.runner_tree import key_of_setup, make_tree, remove_tree
from garrison.system.git.rescues import LIVE, rescue_stem
from garrison.system.leftovers import hide_untracked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from garrison.records.run import Launch, Task
    from garrison.system.git import Git


class NodeTree:
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
            remove_tree(self.git, self.path)
        notes = make_tree(self.git, self.task, self.path, self.branch, tip, self.folder / "conflicts.txt")
        if not living:
            self.clear_locks()
        self.ready = True
        return notes

    def clear_locks(self) -> None:
        """Remove the lock files that a dead agent's git left."""
        self.git.clear_locks(self.path, self.branch)

    def setup_key(self) -> str:
        """What the set-up depends on, as it is now; '' without a set-up."""
        return key_of_setup(self.launch, self.task, self.path)

    def was_set_up(self) -> None:
        """Hide what the set-up made, unless there may be an agent's new folders too."""
        if not (self.folder / "prompt.md").exists():
            hide_untracked(self.git, self.path)

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
        if self.path.is_dir() and unkept(self.git, self.path, [tip] if tip else []):
            self.rescue("had not committed when its branch landed")

    def leave(self) -> None:
        """Remove the tree, and a validator's beside it; what they hold was kept."""
        validator.leave_tree(self.git, self.path, self.task)
        remove_tree(self.git, self.path)

    def put_aside(self) -> None:
        """Of a branch that has landed: forget the snapshots of all attempts, archive the branch."""
        stems = [rescue_stem(self.launch.run_id, self.task.node, attempt, LIVE)
                 for attempt in range(1, self.task.attempt + 1)]
        self.git.forget_rescues([one.ref for stem in stems for one in self.git.lives(stem)])
        tip = self.git.branch_tip(self.branch)
        if tip and not self.launch.adhoc:
            archive(self.git, self.task, self.branch, tip)

    def _keep(self, what: str, attempt: int) -> str:
        return keep_tree(self.git, self.path, self.launch.run_id, self.task.node, attempt, what)
