"""Candidates: what the target would become, as commits that depend on nothing but the entries, the tip and the gate.

The line's entries are stacked on the tip in their order, without a checkout, and its prefixes are tested as they stand
there. What lands gets commits of its own, with the same trees, whose trailers tell which entries landed together and
that the last one's tree was tested. Who cannot be built on the tip itself is answered here: in conflict, already
landed, or its commit gone. Who cannot be built on the others of the line waits until they have landed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.merge import failpoint, strategies
from garrison.merge.queue import Progress, pin_ref
from garrison.system.git import GitError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import QueueWriter
    from garrison.merge.strategies import Built

_TRIES = 8
"""Entries beyond those wanted that are tried for the line when some do not fit behind the others."""


@dataclass(frozen=True)
class CandidateChain:
    """A line stacked on the tip `base`: `trees[i]` and `commits[i]` hold the first i entries, those at 0 none."""

    base: str
    entries: tuple[MergeEntry, ...]
    trees: tuple[str, ...]
    commits: tuple[str, ...]

    def first(self, entries: Sequence[MergeEntry]) -> CandidateChain:
        """The beginning of it, as the entries are now."""
        return CandidateChain(self.base, tuple(entries), self.trees[:len(entries) + 1], self.commits[:len(entries) + 1])

    def after(self, count: int, tip: str) -> CandidateChain:
        """What is left once the first `count` entries are the tip; the trees are what they were."""
        return CandidateChain(tip, self.entries[count:], self.trees[count:], (tip, *self.commits[count + 1:]))


NO_CHAIN = CandidateChain("", (), (), ())


class CandidateBuilder:
    """Builds the candidates of one queue."""

    def __init__(self, writer: QueueWriter) -> None:
        self.writer, self.queue, self.git = writer, writer.queue, writer.git
        self._chain = NO_CHAIN
        self._exact: tuple[str, ...] = ()
        """The entries for which the chain's commits bear the very trailers with which they would land."""
        self._pinned = ""

    # --- the line ---------------------------------------------------------------------------------------------------

    def form(self, tip: str, waiting: Sequence[MergeEntry], size: int) -> Progress:
        """Stack up to `size` of the waiting entries on the tip; or record what becomes of one that cannot be.

        The first that waits is always settled: it is in the line, or its end is recorded.
        """
        chosen: list[MergeEntry] = []
        built: list[Built] = []
        names = tuple(entry.id for entry in waiting[:size])
        for entry in waiting[:size + _TRIES]:
            if len(chosen) == size:
                break
            parent = str(built[-1].commit) if built else tip
            before = built[-1].tree if built else self.git.tree_of(tip)
            found = self._build(entry, parent, names, len(chosen) + 1)
            if isinstance(found, Progress):
                return found
            if (found.commit is None or found.tree == before) and self.git.is_ancestor(entry.oid, tip):
                return self._there(entry, tip, f"already in {self.queue.target}")
            if found.commit is not None and found.commit != parent and not (
                    built and found.tree == built[-1].tree):  # behind its like it may prove to be landed already
                chosen.append(entry)
                built.append(found)
            elif not chosen:
                return self._without(entry, tip, found)
        self._chain = CandidateChain(tip, tuple(chosen), (self.git.tree_of(tip), *(one.tree for one in built)),
                            (tip, *(str(one.commit) for one in built)))
        self._exact = names
        taken = [entry.id for entry in chosen]
        self.candidate(self._chain, len(chosen))
        failpoint.here("pinned")
        self.writer.append("state", {"entry": taken[0], "entries": taken, "status": "candidate", "base": tip,
                                  "trees": list(self._chain.trees[1:]), "commits": list(self._chain.commits[1:])})
        failpoint.here("candidate")
        return Progress("candidate", taken[0])

    def _build(self, entry: MergeEntry, parent: str, names: tuple[str, ...], place: int) -> Built | Progress:
        try:
            return strategies.build(self.git, entry, parent, self._trailers(entry, names, place))
        except GitError:
            if self.git.rev(entry.oid) is not None:
                raise
            self.writer.append("cancel", {"entry": entry.id, "reason": f"commit {entry.oid} is gone"}, sync=True)
            return Progress("cancelled", entry.id)

    def _without(self, entry: MergeEntry, tip: str, built: Built) -> Progress:
        """Record what becomes of one that has no candidate on the tip."""
        if built.commit is not None:
            return self._there(entry, tip, f"its changes are already in {self.queue.target}")
        return self.conflict(entry, tip, built.files, built.reason)

    def conflict(self, entry: MergeEntry, tip: str, files: Sequence[str], reason: str) -> Progress:
        """Record that an entry is in conflict with the tip."""
        self.writer.append("state", {"entry": entry.id, "status": "conflict", "files": list(files), "base": tip,
                                  "reason": f"{reason} (against {self.queue.target} at {tip[:10]})"}, sync=True)
        return Progress("conflict", entry.id)

    def _there(self, entry: MergeEntry, tip: str, reason: str) -> Progress:
        """Nothing of it is to be landed: the target has it all."""
        self.writer.append("landed", {"entry": entry.id, "commit": tip, "old": tip, "reason": reason}, sync=True)
        self.writer.drop_pins([self.queue.entry(entry.id)])
        return Progress("landed", entry.id)

    # --- its commits ------------------------------------------------------------------------------------------------

    def chain(self, tip: str, line: Sequence[MergeEntry]) -> CandidateChain | None:
        """The line stacked on the tip, from memory if it stands there; None if it does not fit together any more."""
        names = tuple(entry.id for entry in line)
        kept = tuple(entry.id for entry in self._chain.entries)
        if self._chain.base == tip and kept[:len(names)] == names:
            self._chain = self._chain.first(line)
            return self._chain
        trees, commits = [self.git.tree_of(tip)], [tip]
        for place, entry in enumerate(line, 1):
            built = strategies.build(self.git, entry, commits[-1], self._trailers(entry, names, place))
            if built.commit is None or built.commit == commits[-1]:
                return None
            trees.append(built.tree)
            commits.append(built.commit)
        self._chain, self._exact = CandidateChain(tip, tuple(line), tuple(trees), tuple(commits)), names
        return self._chain

    def candidate(self, chain: CandidateChain, count: int) -> str:
        """The commit to test of the chain's first `count` entries, pinned."""
        self._pin(chain.entries[-1], chain.commits[-1])
        return chain.commits[count]

    def to_land(self, chain: CandidateChain, count: int) -> tuple[str, ...]:
        """The commits with which the chain's first `count` entries land, as a batch of their own; the last pinned."""
        names = tuple(entry.id for entry in chain.entries[:count])
        commits = chain.commits[1:count + 1]
        if names != self._exact:
            made = [chain.base]
            for place, entry in enumerate(chain.entries[:count], 1):
                built = strategies.build(self.git, entry, made[-1], self._trailers(entry, names, place),
                                         chain.trees[place])
                if built.commit is None or built.tree != chain.trees[place]:
                    self._chain, self._exact = NO_CHAIN, ()
                    raise GarrisonError(f"{entry.id} gave another tree than the one that was tested; it is built anew")
                made.append(built.commit)
            commits = tuple(made[1:])
        self._pin(chain.entries[count - 1], commits[-1])
        return commits

    def _pin(self, entry: MergeEntry, commit: str) -> None:
        if self._pinned == commit and self.git.has(commit):
            return
        if not self.git.make_ref(pin_ref(entry.id, "candidate"), commit) or not self.git.has(commit):
            # Collected: git had listed its refs before the pin was one. All of it is built anew.
            self._chain, self._exact = NO_CHAIN, ()
            raise GarrisonError(f"could not pin the candidate of {entry.id}; it is tried again")
        self._pinned = commit

    def landed(self, count: int, tip: str) -> None:
        """The chain's first `count` entries are the tip now."""
        self._chain, self._exact = self._chain.after(count, tip), ()

    def _trailers(self, entry: MergeEntry, names: tuple[str, ...], place: int) -> Callable[[str], list[str]]:
        """What ends the message of the entry's commit, by its tree: the history alone can tell what was tested."""
        config = self.queue.state.config
        batch = f"{hashlib.sha256(' '.join(names).encode()).hexdigest()[:8]} {place}/{len(names)}"

        def lines(tree: str) -> list[str]:
            tested = "none" if config is None or config.no_gate else \
                f"{tree} gate {config.command_key}" if place == len(names) else f"with {len(names)}/{len(names)}"
            return [f"Merge-Queue-Entry: {entry.id}", f"Merge-Queue-Batch: {batch}", f"Merge-Queue-Tested: {tested}"]

        return lines
