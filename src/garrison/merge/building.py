"""Candidates: what the target would become, as commits that depend on nothing but the entry, the tip and the gate.

Built without a checkout. What cannot be built is answered here: in conflict, already landed, or its commit gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.merge import failpoint
from garrison.merge.queue import pin
from garrison.merge.steps import Progress, Wait
from garrison.system.clock import from_iso

if TYPE_CHECKING:
    from garrison.merge.entry import Entry
    from garrison.merge.pen import Pen


class Builder:
    """Builds the candidates of one queue."""

    def __init__(self, pen: Pen) -> None:
        self.pen, self.queue, self.git = pen, pen.queue, pen.git

    def build(self, entry: Entry) -> Progress | Wait:
        """queued → candidate, or at once conflict, landed (already there) or cancelled (its commit is gone)."""
        tip = self.pen.tip()
        if tip is None:
            return Wait("no_target", f"branch {self.queue.target} does not exist in {self.queue.repo}; create it")
        if self.git.rev(entry.oid) is None:
            self.pen.append("cancel", {"entry": entry.id, "reason": f"commit {entry.oid} is gone"}, sync=True)
            return Progress("cancelled", entry.id)
        if self.git.is_ancestor(entry.oid, tip):
            reason = f"already in {self.queue.target}"
            self.pen.append("landed", {"entry": entry.id, "commit": tip, "old": tip, "reason": reason}, sync=True)
            self.pen.drop_pins([self.queue.entry(entry.id)])
            return Progress("landed", entry.id)
        merged = self.git.merge_tree(tip, entry.oid)
        if merged.tree is None:
            self.pen.append("state", {"entry": entry.id, "status": "conflict", "files": merged.conflicts, "base": tip,
                                   "reason": f"{merged.reason} (against {self.queue.target} at {tip[:10]})"}, sync=True)
            return Progress("conflict", entry.id)
        commit = self.commit(entry, merged.tree, tip)
        self.pen.append("state", {"entry": entry.id, "status": "candidate", "base": tip, "tree": merged.tree,
                               "commit": commit})
        failpoint.here("candidate")
        return Progress("candidate", entry.id)

    def commit(self, entry: Entry, tree: str, tip: str) -> str:
        """The candidate: the same commit whenever it is built again from the same entry, tree and tip."""
        config = self.queue.state.config
        tested = f"{tree} gate {config.command_key}" if config and not config.no_gate else "none"
        message = (f"Merge {entry.branch} into {entry.target}\n\nMerge-Queue-Entry: {entry.id}\n"
                   f"Merge-Queue-Tested: {tested}\n")
        commit = self.git.commit_tree(tree, [tip, entry.oid], message, date=int(from_iso(entry.enqueued_at)))
        if not self.git.update_ref(pin(entry.id, "candidate"), commit):
            raise GarrisonError(f"could not pin the candidate of {entry.id}; it is tried again")
        return commit
