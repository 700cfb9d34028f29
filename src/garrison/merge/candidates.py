"""Candidates: commits that the target would become, which depend on nothing but the entries, the tip and the gate.

The entries of a batch are stacked on the tip in their order, without a checkout, and its prefixes are tested as they
are there. What lands gets commits of its own, with the same trees, whose trailers say which entries landed together and
that the last one's tree was tested. An entry that cannot be built on the tip itself is settled here: in conflict,
already landed, or its commit gone. One that cannot be built on the others of the batch waits until they have landed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.merge.queue import Progress, pin_ref
from garrison.merge.records import EntryCancelled, EntryLanded, StatusChanged
from garrison.merge.strategies import build_candidate
from garrison.system import failpoint
from garrison.system.git import GitError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import QueueWriter
    from garrison.merge.strategies import Candidate

_EXTRA = 8
"""Entries beyond the batch's size that are tried when some do not fit behind the others."""


@dataclass(frozen=True)
class CandidateChain:
    """Batch stacked on the tip `base`: `trees[i]` and `commits[i]` hold the first i entries, those at 0 none."""

    base: str
    entries: tuple[MergeEntry, ...]
    trees: tuple[str, ...]
    commits: tuple[str, ...]

    def prefix(self, entries: Sequence[MergeEntry]) -> CandidateChain:
        """Return the beginning of it, with the entries as they are now."""
        return CandidateChain(self.base, tuple(entries), self.trees[:len(entries) + 1],
                              self.commits[:len(entries) + 1])

    def after(self, count: int, tip: str) -> CandidateChain:
        """Return what is left once the first `count` entries are the tip; the trees are what they were."""
        return CandidateChain(tip, self.entries[count:], self.trees[count:], (tip, *self.commits[count + 1:]))


_NO_CHAIN = CandidateChain("", (), (), ())


class CandidateBuilder:
    """Builds the candidates of one queue, and keeps the last chain in memory."""

    def __init__(self, writer: QueueWriter) -> None:
        self.writer, self.queue, self.git = writer, writer.queue, writer.git
        self._chain = _NO_CHAIN
        self._exact: tuple[str, ...] = ()
        """Entries for which the chain's commits have the very trailers with which they would land."""
        self._pinned = ""

    # --- a batch ----------------------------------------------------------------------------------------------------

    def start_batch(self, tip: str, waiting: Sequence[MergeEntry], size: int) -> Progress:
        """Stack up to `size` of the waiting entries on the tip; or record what becomes of one that cannot be.

        The first that waits is always settled: it is in the batch, or its end is recorded.
        """
        chosen: list[MergeEntry] = []
        built: list[Candidate] = []
        names = tuple(entry.id for entry in waiting[:size])
        for entry in waiting[:size + _EXTRA]:
            if len(chosen) == size:
                break
            parent = str(built[-1].commit) if built else tip
            before = built[-1].tree if built else self.git.tree_of(tip)
            candidate = self._build(entry, parent, names, len(chosen) + 1)
            if isinstance(candidate, Progress):
                return candidate
            if (candidate.commit is None or candidate.tree == before) and self.git.is_ancestor(entry.oid, tip):
                return self._record_already_landed(entry, tip, f"already in {self.queue.target}")
            changes_nothing = bool(built) and candidate.tree == built[-1].tree
            if candidate.commit is not None and candidate.commit != parent and not changes_nothing:
                chosen.append(entry)
                built.append(candidate)
            elif not chosen:  # behind others it waits: once they have landed it may prove to be there already
                return self._record_unbuildable(entry, tip, candidate)
        self._chain = CandidateChain(tip, tuple(chosen), (self.git.tree_of(tip), *(each.tree for each in built)),
                                     (tip, *(str(each.commit) for each in built)))
        self._exact = names
        self.pin_candidate(self._chain, len(chosen))
        failpoint.here("pinned")
        self.writer.append(StatusChanged(tuple(entry.id for entry in chosen), "candidate", base=tip,
                                         trees=self._chain.trees[1:], commits=self._chain.commits[1:]))
        failpoint.here("candidate")
        return Progress("candidate", chosen[0].id)

    def _build(self, entry: MergeEntry, parent: str, names: tuple[str, ...], position: int) -> Candidate | Progress:
        try:
            return build_candidate(self.git, entry, parent, self._trailers(entry, names, position))
        except GitError:
            if self.git.rev(entry.oid) is not None:
                raise
            self.writer.append(EntryCancelled(entry.id, f"commit {entry.oid} is gone"), sync=True)
            return Progress("cancelled", entry.id)

    def _record_unbuildable(self, entry: MergeEntry, tip: str, candidate: Candidate) -> Progress:
        """Record what becomes of an entry that has no candidate on the tip."""
        if candidate.commit is not None:
            return self._record_already_landed(entry, tip, f"its changes are already in {self.queue.target}")
        return self.record_conflict(entry, tip, candidate.files, candidate.reason)

    def record_conflict(self, entry: MergeEntry, tip: str, files: Sequence[str], reason: str) -> Progress:
        """Record that an entry is in conflict with the tip."""
        self.writer.append(StatusChanged((entry.id,), "conflict", f"{reason} (against {self.queue.target} at "
                                         f"{tip[:10]})", tuple(files), tip), sync=True)
        return Progress("conflict", entry.id)

    def _record_already_landed(self, entry: MergeEntry, tip: str, reason: str) -> Progress:
        """Record that the target has all of an entry already."""
        self.writer.append(EntryLanded(entry.id, tip, tip, reason), sync=True)
        self.writer.drop_pins([self.queue.entry(entry.id)])
        return Progress("landed", entry.id)

    # --- its commits ------------------------------------------------------------------------------------------------

    def chain(self, tip: str, batch: Sequence[MergeEntry]) -> CandidateChain | None:
        """Return the batch stacked on the tip, from memory if possible; None if it does not fit together any more."""
        names = tuple(entry.id for entry in batch)
        built = tuple(entry.id for entry in self._chain.entries)
        if self._chain.base == tip and built[:len(names)] == names:
            self._chain = self._chain.prefix(batch)
            return self._chain
        trees, commits = [self.git.tree_of(tip)], [tip]
        for position, entry in enumerate(batch, 1):
            candidate = build_candidate(self.git, entry, commits[-1], self._trailers(entry, names, position))
            if candidate.commit is None or candidate.commit == commits[-1]:
                return None
            trees.append(candidate.tree)
            commits.append(candidate.commit)
        self._chain, self._exact = CandidateChain(tip, tuple(batch), tuple(trees), tuple(commits)), names
        return self._chain

    def pin_candidate(self, chain: CandidateChain, count: int) -> str:
        """Return the commit to test of the chain's first `count` entries, pinned."""
        self._pin(chain.entries[-1], chain.commits[-1])
        return chain.commits[count]

    def pin_landing(self, chain: CandidateChain, count: int) -> tuple[str, ...]:
        """Return the commits with which the chain's first `count` entries land as a batch of their own, pinned."""
        names = tuple(entry.id for entry in chain.entries[:count])
        commits = chain.commits[1:count + 1]
        if names != self._exact:
            made = [chain.base]
            for position, entry in enumerate(chain.entries[:count], 1):
                candidate = build_candidate(self.git, entry, made[-1], self._trailers(entry, names, position),
                                            chain.trees[position])
                if candidate.commit is None or candidate.tree != chain.trees[position]:
                    self._forget()
                    raise GarrisonError(f"{entry.id} gave another tree than the one that was tested; building it again")
                made.append(candidate.commit)
            commits = tuple(made[1:])
        self._pin(chain.entries[count - 1], commits[-1])
        return commits

    def _pin(self, entry: MergeEntry, commit: str) -> None:
        if self._pinned == commit and self.git.has(commit):
            return
        if not self.git.make_ref(pin_ref(entry.id, "candidate"), commit) or not self.git.has(commit):
            # git gc collected it: it had listed its refs before the pin was one
            self._forget()
            raise GarrisonError(f"could not pin the candidate of {entry.id}; trying again")
        self._pinned = commit

    def _forget(self) -> None:
        self._chain, self._exact = _NO_CHAIN, ()

    def advance(self, count: int, tip: str) -> None:
        """Make the chain start after its first `count` entries, which are the tip now."""
        self._chain, self._exact = self._chain.after(count, tip), ()

    def _trailers(self, entry: MergeEntry, names: tuple[str, ...], position: int) -> Callable[[str], list[str]]:
        """Return the end of the entry's commit message, by its tree: the history alone can tell what was tested."""
        config = self.queue.state.config
        batch = f"{hashlib.sha256(' '.join(names).encode()).hexdigest()[:8]} {position}/{len(names)}"

        def lines(tree: str) -> list[str]:
            tested = "none" if config is None or config.no_gate else \
                f"{tree} gate {config.command_key}" if position == len(names) else f"with {len(names)}/{len(names)}"
            return [f"Merge-Queue-Entry: {entry.id}", f"Merge-Queue-Batch: {batch}", f"Merge-Queue-Tested: {tested}"]

        return lines
