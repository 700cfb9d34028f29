"""Candidates: what the target would become, as commits that depend on nothing but the entry, the tip and the gate.

Built without a checkout. What cannot be built is answered here: in conflict, already landed, or its commit gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.merge import failpoint, strategies
from garrison.merge.queue import pin
from garrison.merge.steps import Progress, Wait

if TYPE_CHECKING:
    from collections.abc import Callable

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
            return self._there(entry, tip, f"already in {self.queue.target}")
        built = strategies.build(self.git, entry, tip, self._trailers(entry))
        if built.commit is None:
            self.pen.append("state", {"entry": entry.id, "status": "conflict", "files": list(built.files), "base": tip,
                                   "reason": f"{built.reason} (against {self.queue.target} at {tip[:10]})"}, sync=True)
            return Progress("conflict", entry.id)
        if built.commit == tip:
            return self._there(entry, tip, f"its changes are already in {self.queue.target}")
        if not self.git.update_ref(pin(entry.id, "candidate"), built.commit):
            raise GarrisonError(f"could not pin the candidate of {entry.id}; it is tried again")
        self.pen.append("state", {"entry": entry.id, "status": "candidate", "base": tip, "tree": built.tree,
                               "commit": built.commit})
        failpoint.here("candidate")
        return Progress("candidate", entry.id)

    def _there(self, entry: Entry, tip: str, reason: str) -> Progress:
        """Nothing of it is to be landed: the target has it all."""
        self.pen.append("landed", {"entry": entry.id, "commit": tip, "old": tip, "reason": reason}, sync=True)
        self.pen.drop_pins([self.queue.entry(entry.id)])
        return Progress("landed", entry.id)

    def _trailers(self, entry: Entry) -> Callable[[str], list[str]]:
        """What ends the message of the entry's commit, by its tree: the history alone can tell what was tested."""
        config = self.queue.state.config

        def lines(tree: str) -> list[str]:
            tested = f"{tree} gate {config.command_key}" if config and not config.no_gate else "none"
            return [f"Merge-Queue-Entry: {entry.id}", f"Merge-Queue-Tested: {tested}"]

        return lines
