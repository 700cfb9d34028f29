"""Landing: rehearse in open checkouts, record the intent, swap the ref once, update checkouts, record completion.

The ref decides whether a recorded landing was done, whichever processor started it. Blocked landings are retried every
second.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.ends import RETRY_SECONDS, Wait, WaitKind
from garrison.errors import Refused
from garrison.merge import checkouts
from garrison.merge.candidates import build_candidate
from garrison.merge.checkouts import Blocked, CheckoutLocks
from garrison.merge.guard import NAME, configured_hooks_path
from garrison.merge.queue import StepResult
from garrison.merge.records import (
    CheckoutUpdated,
    EntryLanded,
    LandingBlocked,
    LandingStarted,
    StatusChanged,
    TargetMoved,
)
from garrison.system import failpoint
from garrison.system.git import GitError
from garrison.system.git.signing import SigningFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.merge.candidates import CandidateChain, LandingCommits
    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import QueueWriter
    from garrison.merge.state import QueueState, StaleCheckout
    from garrison.system.git import Git

SIGNING_PAUSE = 30.0
"""Seconds before another try to sign, after one has failed."""


class Lander:
    """Moves the target of one queue."""

    def __init__(self, writer: QueueWriter) -> None:
        self.writer, self.queue, self.git = writer, writer.queue, writer.git
        self.retried_at = float("-inf")
        """Monotonic time of the last retry of blocked entries."""
        self._unsigned_at = float("-inf")
        """Monotonic time of the last failed signature."""

    # --- landing ----------------------------------------------------------------------------------------------------

    def land(self, chain: CandidateChain, commits: LandingCommits, gates: tuple[str, ...] = ()) -> StepResult | Wait:
        """Land the chain's first entries by one swap to the commit whose tree was tested, by `gates` alone if any.

        A processor may die between any two of these writes: lock and rehearse the open checkouts, journal `landing`,
        swap the ref, update the checkouts and journal each, journal `landed`. The ref itself tells whether the swap was
        done: `finish` reads it.
        """
        landing = LandingStarted(tuple(entry.id for entry in chain.entries[:len(commits.entries)]), chain.base,
                                 commits.new, commits.entries,
                                 chain.united[:len(commits.entries)] if any(chain.united) else (), gates,
                                 chain.trees[len(commits.entries)] if gates else "")
        with CheckoutLocks(self.git, self.queue.target, landing.old, landing.new) as locks:
            paths = [checkout.path for checkout in locks.checkouts]
            blocked = locks.blocked or self._find_stale_blocker(self.queue.state, paths)
            if blocked:  # before anything is recorded, so that nothing has to be settled later
                return self._block(chain, landing, blocked)
            if self.swap(landing, recorded=False):
                return StepResult("swap refused", landing.first)
            self.queue.note_own_landing(landing)
            stale = self._move_checkouts(landing, locks)
        return self._record_landed(landing, stale)

    def finish(self, landing: LandingStarted) -> StepResult | Wait:
        """Settle a recorded landing; the ref tells whether it was done."""
        tip = self.writer.tip()  # read once: others may move the target at any time
        if tip == landing.old and self._is_candidate_damaged(landing):
            self.writer.append(TargetMoved(landing.entries, landing.old, "its candidate was damaged; it is built again",
                                           landing.old, tip), sync=True)
            return StepResult("requeued", landing.first)
        # not `==`: others may have committed on top since
        if tip is not None and self.git.is_ancestor(landing.new, tip):
            with CheckoutLocks(self.git, self.queue.target, landing.old, landing.new) as locks:
                stale = self._move_checkouts(landing, locks, resuming=True)
            return self._record_landed(landing, stale)
        if tip != landing.old:
            self.writer.append(TargetMoved(landing.entries, landing.old, f"{self.queue.target} was moved by someone "
                                           "else", landing.old, tip or ""), sync=True)
            return StepResult("foreign", landing.first)
        # lock before the ref moves: a commit in a checkout that still shows the old tip would revert the landing
        with CheckoutLocks(self.git, self.queue.target, landing.old, landing.new) as locks:
            if locks.blocked:
                self.writer.append(LandingBlocked(landing.entries, landing.old, locks.blocked.why,
                                                  locks.blocked.files), sync=True)
                return StepResult("landing_blocked", landing.first)
            refused = self.swap(landing, recorded=True)
            if refused:
                return Wait(WaitKind.REF_LOCKED, refused, seconds=self.writer.branch.retry_seconds)
            stale = self._move_checkouts(landing, locks)
        return self._record_landed(landing, stale)

    def give_up(self, landing: LandingStarted, why: str) -> StepResult:
        """Settle a recorded landing at which git keeps failing; if the swap was done, the checkouts stay stale."""
        tip = self.writer.tip()
        if tip is not None and self.git.is_ancestor(landing.new, tip):
            return self._record_landed(landing, checkouts.find_checkouts(self.git, self.queue.target)[0])
        self.writer.append(TargetMoved(landing.entries, landing.old, why, landing.old, tip or ""), sync=True)
        return StepResult("requeued", landing.first)

    def _is_candidate_damaged(self, landing: LandingStarted) -> bool:
        """Return whether a power cut damaged the commit of an interrupted landing; git's swap would not read its
        files."""
        heads = [self.queue.entry(name).oid for name in landing.entries]
        return bool(self.git.drop_damaged_objects(landing.new, [landing.old, *heads]))

    def swap(self, landing: LandingStarted, *, recorded: bool) -> str:
        """Swap the target after recording the intent (unless `recorded`); return '', or why git refuses.

        The epoch is compared under `queue.lock`, which stays locked during a local swap of a few milliseconds. A push
        does not hold the lock: its lease excludes a processor that was fenced in between.
        """
        branch, message = self.writer.branch, f"garrison: land {' '.join(landing.entries)}"
        config = self.queue.state.config
        asked = config.hooks if config and branch.is_local else ""
        with self.queue.locked():
            if recorded:
                self.writer.state()
            else:
                # intent first: after a kill `finish` reads from the ref whether the swap was done
                self.queue.append(landing, epoch=self.writer.epoch, sync=True)
                failpoint.here("landing")
            if asked and (why := explain_change(self.git, asked)):
                return why
            if branch.is_local:
                return branch.swap(landing.old, landing.new, message, hooks=bool(asked))
        return branch.swap(landing.old, landing.new, message)

    def _move_checkouts(self, landing: LandingStarted, locks: CheckoutLocks, *, resuming: bool = False) -> list[Path]:
        """Update the open checkouts after the swap; return those that stay stale."""
        failpoint.here("swapped")
        moved = locks.move(resuming=resuming)
        for path in moved:
            self.writer.append(CheckoutUpdated(landing.first, str(path), landing.old, landing.new))
        failpoint.here("moved")
        if resuming or len(moved) < len(locks.checkouts):
            return checkouts.find_stale(self.git, self.queue.target, moved)
        return []

    def _record_landed(self, landing: LandingStarted, stale: list[Path]) -> StepResult:
        """Record the entries as landed after unlocking all checkouts: a final entry must leave nothing to clean up."""
        last = len(landing.entries) - 1
        for index, (name, commit) in enumerate(zip(landing.entries, landing.commits, strict=True)):
            paths = tuple(str(path) for path in stale) if index == last else ()
            entry = self.queue.entry(name)
            note = entry.note if entry.verdict == "green" else ""  # without the reason, which is why it waited
            # a single sync of the last: records of one file become durable in order; the pins go after that
            self.writer.append(EntryLanded(name, commit, landing.old, note, paths, entry.united),
                               sync=index == last)
            if index == 0:
                failpoint.here("landed_first")
        failpoint.here("landed")
        self.writer.drop_pins([self.queue.entry(name) for name in landing.entries])
        failpoint.here("cleaned")
        return StepResult("landed", landing.first)

    # --- blocked landings -------------------------------------------------------------------------------------------

    def _block(self, chain: CandidateChain, landing: LandingStarted, blocked: Blocked) -> StepResult:
        """Block the entries that change files in the way; rebuild the others without them."""
        touching = tuple(name for index, name in enumerate(landing.entries if blocked.files else (), 1)
                         if set(blocked.files).intersection(self.git.changed_paths(chain.trees[index - 1],
                                                                                   chain.trees[index])))
        touching = touching or landing.entries
        self.writer.append(StatusChanged(touching, "landing_blocked", blocked.why, blocked.files), sync=True)
        others = tuple(entry.id for entry in chain.entries if entry.id not in touching)
        if others:
            self.writer.append(StatusChanged(others, "queued", "built again without the entries that cannot land now"))
        return StepResult("landing_blocked", touching[0])

    def wait_for_signature(self, names: Sequence[str], why: str) -> StepResult:
        """Block entries that can no longer be signed as at the launch, until they can."""
        self._unsigned_at = self.writer.clock.monotonic()
        self.writer.append(StatusChanged(
            tuple(names), "landing_blocked", f"it cannot be signed: {why}. It lands once it can be, or unsigned with: "
                                             "garrison merge-queue config --no-sign"), sync=True)
        return StepResult("landing_blocked", names[0])

    def _can_sign(self) -> bool:
        config, now = self.queue.state.config, self.writer.clock.monotonic()
        if config is None or config.signer is None:
            return True
        if now - self._unsigned_at < SIGNING_PAUSE:
            return False
        try:
            config.signer.sign(b"trial\n")
        except SigningFailed:
            self._unsigned_at = now
            return False
        return True

    def retry_blocked(self, state: QueueState) -> StepResult | None:
        """Update stale checkouts, and requeue blocked entries that can land now; at most once a second."""
        now = self.writer.clock.monotonic()
        if now - self.retried_at < RETRY_SECONDS:
            return None
        progress = None
        for stale in state.stale_checkouts:
            with suppress(GitError):  # next time
                progress = self._update(stale) or progress
        for entry in state.unfinished():
            if entry.status == "landing_blocked" and self._can_land(entry):
                # `retried_at` is unchanged: the next step checks the others at once
                self.writer.append(StatusChanged((entry.id,), "queued", "no longer blocked"))
                return StepResult("unblocked", entry.id)
        self.retried_at = now
        return progress

    def _update(self, stale: StaleCheckout) -> StepResult | None:
        if checkouts.update_stale(self.git, self.queue.target, Path(stale.path), stale.old, stale.new):
            return None
        self.writer.append(CheckoutUpdated("", stale.path, stale.old, stale.new))
        return StepResult("moved")

    def _can_land(self, entry: MergeEntry) -> bool:
        try:
            tip = self.writer.tip()
            return tip is not None and self._could_land_on(tip, entry)
        except GitError:  # stays blocked without blocking others
            return False

    def _could_land_on(self, tip: str, entry: MergeEntry) -> bool:
        if self._find_stale_blocker(self.queue.state, checkouts.find_checkouts(self.git, self.queue.target)[0]):
            return False
        tree = entry.tree if tip == entry.base else build_candidate(self.git, entry, tip, lambda _: ()).tree
        return (not tree or checkouts.rehearse(self.git, self.queue.target, tip, tree) is None) and self._can_sign()

    def _find_stale_blocker(self, state: QueueState, paths: list[Path]) -> Blocked | None:
        """Return the checkout that blocks the next landing because it still shows an older commit of the target."""
        for stale in state.stale_checkouts:
            for path in paths:
                if str(path) == stale.path:
                    return Blocked(path, (), f"{path} still shows {stale.old[:10]}; commit or stash its edits")
        return None


# ---- hooks -----------------------------------------------------------------------------------------------------------

# The user's reference-transaction hook at a landing: runs only if requested, and only in the recorded version.
#
# `--with-hooks` records a hash of the hook, including the user's hook behind garrison's guard. A changed hook is not
# run, and nothing lands until it is restored or recorded again.


def find_hook(git: Git) -> Path | None:
    """Return the reference-transaction hook that git would run, None if none."""
    configured = configured_hooks_path(git)
    path = (git.root / configured if configured else git.common / "hooks") / NAME
    return path if os.access(path, os.X_OK) else None


def digest(git: Git) -> str:
    """Return a hash of the hook and of the hook that the guard calls; '' if git would run none."""
    hook = find_hook(git)
    if hook is None:
        return ""
    before = hook.with_name(".before")
    called = [hook.with_name(f"{NAME}.before-garrison")]
    if before.is_file():
        called.append(git.root / before.read_text(errors="replace").strip() / NAME)
    content = hashlib.sha256(hook.read_bytes())
    for path in called:
        if path.is_file():
            content.update(path.read_bytes())
    return content.hexdigest()[:16]


def record(git: Git) -> str:
    """Return the hash of the requested hook; Refused if there is none."""
    found = digest(git)
    if not found:
        raise Refused(f"--with-hooks: {git.root} has no executable {NAME} hook; leave the option out")
    return found


def explain_change(git: Git, recorded: str) -> str:
    """Return why the recorded hook cannot run at a landing, '' if it can."""
    if digest(git) == recorded:
        return ""
    return (f"the {NAME} hook is not the one that was recorded with --with-hooks, so it is not run and nothing lands; "
            "restore it, or record the present one: garrison merge-queue config --with-hooks")
