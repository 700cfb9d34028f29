"""Landing: rehearse under open checkouts, record the intent, swap the ref once, move checkouts along, record it done.

A landing that was recorded and not settled is judged by the ref, whoever began it. What is blocked is looked at again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from garrison.merge import failpoint, publish
from garrison.merge.publish import Blocked, Hold
from garrison.merge.steps import RETRY_SECONDS, Progress, Wait

if TYPE_CHECKING:
    from garrison.merge.entry import Entry
    from garrison.merge.pen import Pen
    from garrison.merge.state import Landing, Owed, QueueState


class Lander:
    """Moves the target of one queue."""

    def __init__(self, pen: Pen) -> None:
        self.pen, self.queue, self.git = pen, pen.queue, pen.git
        self.looked = float("-inf")
        """When blocked entries were last looked at, monotonic seconds."""

    def look_again(self, state: QueueState) -> Progress | None:
        """Once a second: move along checkouts that still owe it, and requeue blocked entries whose way is free."""
        now = self.pen.clock.monotonic()
        if now - self.looked < RETRY_SECONDS:
            return None
        done = None
        for owed in state.owed:
            done = self._pay(owed) or done
        for entry in state.unfinished():
            if entry.status == "landing_blocked" and self._way_free(entry):
                self.pen.append("state", {"entry": entry.id, "status": "queued", "reason": "its way is free again"})
                return Progress("unblocked", entry.id)
        self.looked = now
        return done

    def _pay(self, owed: Owed) -> Progress | None:
        if publish.finish_owed(self.git, self.queue.target, Path(owed.path), owed.old, owed.new):
            return None
        self.pen.append("moved", {"entry": "", "path": owed.path, "old": owed.old, "new": owed.new})
        return Progress("moved")

    def _way_free(self, entry: Entry) -> bool:
        tip = self.pen.tip()
        if tip is None:
            return False
        if self._owing(self.queue.state, publish.holders(self.git, self.queue.target)[0]):
            return False
        tree = entry.tree if tip == entry.base else self.git.merge_tree(tip, entry.oid).tree
        return tree is None or publish.rehearse(self.git, self.queue.target, tip, tree) is None

    def land(self, entry: Entry) -> Progress | Wait:
        """Rehearse, record the intent, swap, move along, record the landing."""
        if self.pen.tip() != entry.base:
            self.pen.append("state", {"entry": entry.id, "status": "queued", "reason": f"{self.queue.target} moved"})
            return Progress("requeued", entry.id)
        with Hold(self.git, self.queue.target, entry.base, entry.commit) as hold:
            blocked = hold.blocked or self._owing(self.queue.state, [one.path for one in hold.checkouts])
            if blocked:
                self.pen.append("state", {"entry": entry.id, "status": "landing_blocked", "reason": blocked.why,
                                       "files": list(blocked.files)}, sync=True)
                return Progress("landing_blocked", entry.id)
            with self.queue.locked():
                self.queue.append("landing", {"entry": entry.id, "old": entry.base, "new": entry.commit},
                                  epoch=self.pen.epoch, sync=True)
                failpoint.here("landing")
                swapped = self._swap(entry.base, entry.commit, entry.id)
            if not swapped:
                return Progress("swap refused", entry.id)
            owed = self._move(entry.id, entry.base, entry.commit, hold)
        return self._landed(entry.id, entry.base, entry.commit, owed)

    def _swap(self, old: str, new: str, entry: str) -> bool:
        """The one write to the target; the caller holds `queue.lock` and has compared the epoch."""
        return self.git.update_ref(self.pen.ref, new, old, message=f"garrison: land {entry}", hooks=True)

    def _move(self, entry: str, old: str, new: str, hold: Hold, *, again: bool = False) -> list[Path]:
        """After the swap: move along whatever checkout can be; returns those that are owed it."""
        failpoint.here("swapped")
        moved = hold.move(old, new, again=again)
        for path in moved:
            self.pen.append("moved", {"entry": entry, "path": str(path), "old": old, "new": new})
        failpoint.here("moved")
        return publish.behind(self.git, self.queue.target, moved) if again or len(moved) < len(hold.checkouts) else []

    def _landed(self, entry: str, old: str, new: str, owed: list[Path]) -> Progress:
        """Record the landing, with no checkout held: what is final needs no successor to clean up after us."""
        self.pen.append("landed", {"entry": entry, "commit": new, "old": old, "owed": [str(path) for path in owed]},
                     sync=True)
        failpoint.here("landed")
        self.pen.drop_pins([self.queue.entry(entry)])
        failpoint.here("cleaned")
        return Progress("landed", entry)

    def finish(self, landing: Landing) -> Progress | Wait:
        """A landing that was recorded and not settled: judged by the ref, whoever began it."""
        tip = self.pen.tip()
        if tip is not None and self.git.is_ancestor(landing.new, tip):
            with Hold(self.git, self.queue.target, landing.old, landing.new) as hold:
                owed = self._move(landing.entry, landing.old, landing.new, hold, again=True)
            return self._landed(landing.entry, landing.old, landing.new, owed)
        if tip != landing.old:
            self.pen.append("foreign", {"entry": landing.entry, "expected": landing.old, "found": tip or "", "old":
                                     landing.old, "reason": f"{self.queue.target} was moved by somebody else"},
                         sync=True)
            return Progress("foreign", landing.entry)
        with Hold(self.git, self.queue.target, landing.old, landing.new) as hold:
            if hold.blocked:
                self.pen.append("unlanded", {"entry": landing.entry, "old": landing.old, "reason": hold.blocked.why,
                                          "files": list(hold.blocked.files)}, sync=True)
                return Progress("landing_blocked", landing.entry)
            with self.queue.locked():
                self.pen.state()
                swapped = self._swap(landing.old, landing.new, landing.entry)
            if not swapped:
                return Wait("ref_locked", f"git refuses to move {self.pen.ref}; if no git runs, remove {self._lock}, "
                                          "and see that no reference-transaction hook forbids it")
            owed = self._move(landing.entry, landing.old, landing.new, hold)
        return self._landed(landing.entry, landing.old, landing.new, owed)

    @property
    def _lock(self) -> Path:
        return self.git.common / f"{self.pen.ref}.lock"

    def _owing(self, state: QueueState, paths: list[Path]) -> Blocked | None:
        """A checkout that still shows an older value must be moved along before the next landing."""
        for owed in state.owed:
            for path in paths:
                if str(path) == owed.path:
                    return Blocked(path, (), f"{path} still shows {owed.old[:10]}; commit or stash its edits")
        return None
