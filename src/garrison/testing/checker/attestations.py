"""Attestations: what each gate run wrote about itself, outside the journal of the queue.

The wrapper of a gate reads from its worktree which commit is checked out, before it starts the gate, and appends a line
once the gate has ended: that commit, the tree that the queue said it would test, the exit code, and 1 if it timed out.
The first line of the file says since when they are written; landings before that have only the queue's own verdicts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SINCE = "since"
"""First word of the first line; a time in the form of the events follows."""
_FIELDS = 4


@dataclass(frozen=True)
class Attestation:
    """One ended gate run."""

    commit: str
    """Commit that was checked out when it began, as the worktree's HEAD said."""
    tree: str
    """Tree that the queue meant to test."""
    code: int
    timed_out: bool

    @property
    def passed(self) -> bool:
        """Return whether the gate ended by itself with exit code 0."""
        return self.code == 0 and not self.timed_out


@dataclass(frozen=True)
class Attestations:
    """All attestations of a home; `since` is the time from which on every gate run wrote one, '' if none ever did."""

    runs: tuple[Attestation, ...] = ()
    since: str = ""


def read_attestations(texts: Iterable[str]) -> Attestations:
    """Read attestations, one text for each queue; lines that are no attestation, such as torn ones, are skipped."""
    runs: list[Attestation] = []
    starts: list[str] = []
    for text in texts:
        lines = [line.split() for line in text.splitlines()]
        runs += [Attestation(words[0], words[1], int(words[2]), words[3] == "1") for words in lines
                 if len(words) == _FIELDS and words[2].isdigit()]
        starts += [words[1] for words in lines if words[:1] == [SINCE] and len(words) > 1][:1]
    return Attestations(tuple(runs), max(starts, default=""))
