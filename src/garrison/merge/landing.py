"""Landing: rehearse under open checkouts, record the intent, swap the ref once, move checkouts along, record it done.

A landing that was recorded and not settled is judged by the ref, whoever began it. What is blocked is looked at again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.merge import checkouts, failpoint, strategies
from garrison.merge.checkouts import Blocked, CheckoutHold
from garrison.merge.queue import RETRY_SECONDS, Progress, Wait
from garrison.merge.state import Landing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.merge.candidates import CandidateChain
    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import QueueWriter
    from garrison.merge.state import QueueState, StaleCheckout


class Lander:
    """Moves the target of one queue."""

    def __init__(self, writer: QueueWriter) -> None:
        self.writer, self.queue, self.git = writer, writer.queue, writer.git
        self.looked = float("-inf")
        """When blocked entries were last looked at, monotonic seconds."""

    def look_again(self, state: QueueState) -> Progress | None:
        """Once a second: move along checkouts that still owe it, and requeue blocked entries whose way is free."""
        now = self.writer.clock.monotonic()
        if now - self.looked < RETRY_SECONDS:
            return None
        done = None
        for owed in state.owed:
            done = self._pay(owed) or done
        for entry in state.unfinished():
            if entry.status == "landing_blocked" and self._way_free(entry):
                self.writer.append("state", {"entry": entry.id, "status": "queued", "reason": "its way is free again"})
                return Progress("unblocked", entry.id)
        self.looked = now
        return done

    def _pay(self, owed: StaleCheckout) -> Progress | None:
        if checkouts.update_stale(self.git, self.queue.target, Path(owed.path), owed.old, owed.new):
            return None
        self.writer.append("moved", {"entry": "", "path": owed.path, "old": owed.old, "new": owed.new})
        return Progress("moved")

    def _way_free(self, entry: MergeEntry) -> bool:
        tip = self.writer.tip()
        if tip is None:
            return False
        if self._owing(self.queue.state, checkouts.find_checkouts(self.git, self.queue.target)[0]):
            return False
        tree = entry.tree if tip == entry.base else strategies.build(self.git, entry, tip, lambda _: ()).tree
        return not tree or checkouts.rehearse(self.git, self.queue.target, tip, tree) is None

    def land(self, chain: CandidateChain, commits: Sequence[str]) -> Progress | Wait:
        """Land the chain's first entries, of which these are the commits: rehearse, record the intent, swap to the last
        one, move along, record the landing of each.

        Only the last one's tree was tested, so the target takes no other value.
        """
        landing = Landing(tuple(entry.id for entry in chain.entries[:len(commits)]), tuple(commits), chain.base,
                          commits[-1])
        with CheckoutHold(self.git, self.queue.target, landing.old, landing.new) as hold:
            blocked = hold.blocked or self._owing(self.queue.state, [one.path for one in hold.checkouts])
            if blocked:
                return self._block(chain, landing, blocked)
            if self._swap(landing, begun=False):
                return Progress("swap refused", landing.entry)
            owed = self._move(landing, hold)
        return self._landed(landing, owed)

    def _block(self, chain: CandidateChain, landing: Landing, blocked: Blocked) -> Progress:
        """Those that touch what is in the way wait for it; the others are built again without them."""
        touching = []
        for place, name in enumerate(landing.entries if blocked.files else (), 1):
            if set(blocked.files).intersection(self.git.changed_paths(chain.trees[place - 1], chain.trees[place])):
                touching.append(name)
        touching = touching or list(landing.entries)
        self.writer.move(touching, "landing_blocked", blocked.why, files=list(blocked.files), sync=True)
        others = [entry.id for entry in chain.entries if entry.id not in touching]
        if others:
            self.writer.move(others, "queued", "built again without what cannot land now")
        return Progress("landing_blocked", touching[0])

    def _swap(self, landing: Landing, *, begun: bool) -> str:
        """The one write to the target, its intent recorded before it; empty, or why git refuses it.

        The epoch is compared under `queue.lock`, which is held over a brief swap. With a remote nobody waits for it:
        the lease of the push keeps out whoever was fenced meanwhile.
        """
        place, message = self.writer.branch, f"garrison: land {' '.join(landing.entries)}"
        with self.queue.locked():
            if begun:
                self.writer.state()
            else:
                self.queue.append("landing", {
                    "entry": landing.entry, "entries": list(landing.entries), "commits": list(landing.commits),
                    "old": landing.old, "new": landing.new}, epoch=self.writer.epoch, sync=True)
                failpoint.here("landing")
            if place.brief:
                return place.swap(landing.old, landing.new, message)
        return place.swap(landing.old, landing.new, message)

    def _move(self, landing: Landing, hold: CheckoutHold, *, again: bool = False) -> list[Path]:
        """After the swap: move along whatever checkout can be; returns those that are owed it."""
        failpoint.here("swapped")
        old, new = landing.old, landing.new
        moved = hold.move(old, new, again=again)
        for path in moved:
            self.writer.append("moved", {"entry": landing.entry, "path": str(path), "old": old, "new": new})
        failpoint.here("moved")
        if again or len(moved) < len(hold.checkouts):
            return checkouts.find_stale(self.git, self.queue.target, moved)
        return []

    def _landed(self, landing: Landing, owed: list[Path]) -> Progress:
        """Record the landing, with no checkout held: what is final needs no successor to clean up after us."""
        last = len(landing.entries) - 1
        for place, (name, commit) in enumerate(zip(landing.entries, landing.commits, strict=True)):
            told = {"owed": [str(path) for path in owed]} if place == last else {}
            self.writer.append("landed", {"entry": name, "commit": commit, "old": landing.old, **told},
                               sync=place == last)
            if place == 0:
                failpoint.here("landed_first")
        failpoint.here("landed")
        self.writer.drop_pins([self.queue.entry(name) for name in landing.entries])
        failpoint.here("cleaned")
        return Progress("landed", landing.entry)

    def finish(self, landing: Landing) -> Progress | Wait:
        """A landing that was recorded and not settled: judged by the ref, whoever began it."""
        tip = self.writer.tip()
        if tip is not None and self.git.is_ancestor(landing.new, tip):
            with CheckoutHold(self.git, self.queue.target, landing.old, landing.new) as hold:
                owed = self._move(landing, hold, again=True)
            return self._landed(landing, owed)
        if tip != landing.old:
            self.writer.append("foreign", {**_named(landing), "expected": landing.old, "found": tip or "",
                                        "reason": f"{self.queue.target} was moved by somebody else"}, sync=True)
            return Progress("foreign", landing.entry)
        with CheckoutHold(self.git, self.queue.target, landing.old, landing.new) as hold:
            if hold.blocked:
                self.writer.append("unlanded", {**_named(landing), "reason": hold.blocked.why,
                                             "files": list(hold.blocked.files)}, sync=True)
                return Progress("landing_blocked", landing.entry)
            refused = self._swap(landing, begun=True)
            if refused:
                return Wait("ref_locked", refused, seconds=self.writer.branch.pause)
            owed = self._move(landing, hold)
        return self._landed(landing, owed)

    def _owing(self, state: QueueState, paths: list[Path]) -> Blocked | None:
        """A checkout that still shows an older value must be moved along before the next landing."""
        for owed in state.owed:
            for path in paths:
                if str(path) == owed.path:
                    return Blocked(path, (), f"{path} still shows {owed.old[:10]}; commit or stash its edits")
        return None


def _named(landing: Landing) -> dict[str, Any]:
    """How a record says which landing it is about."""
    return {"entry": landing.entry, "entries": list(landing.entries), "old": landing.old}
