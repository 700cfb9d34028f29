"""Attestations: what each gate run wrote about itself, outside the journal of the queue.

The wrapper of a gate reads which commit is checked out in its worktree before it starts the gate, and appends a line
when the gate has ended: that commit, the tree that the queue intended to test, the exit code, 1 if it timed out, and
the names of the gates by path that ran, if it was not the whole gate. The first line of the file says since when they
are written; earlier landings have only the queue's own verdicts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

SINCE = "since"
"""First word of the first line; a time in the form of the events follows."""
_LINE = re.compile(r"([0-9a-f]{40,64}|ref: \S+|) ([0-9a-f]{40,64}) ([0-9]+) ([01])(?: ([A-Za-z0-9._,-]+))?")
"""After a gate that destroyed its worktree, the commit is a branch or empty, which attests nothing."""
_MOST_FLIPPED = 2
"""Most letters in which a damaged name differs from the original."""


class UnreadableAttestations(ValueError):
    """They are damaged, and their content is needed."""


@dataclass(frozen=True)
class Attestation:
    """One finished gate run."""

    commit: str
    """Commit that was checked out when it started, by the worktree's HEAD."""
    tree: str
    """Tree that the queue intended to test."""
    code: int
    timed_out: bool
    gates: frozenset[str] = frozenset()
    """Gates by path that ran; empty for the whole gate."""

    @property
    def passed(self) -> bool:
        """Return whether the gate ended by itself with exit code 0."""
        return self.code == 0 and not self.timed_out


@dataclass(frozen=True)
class Attestations:
    """All attestations of a home; `since` is the time since when every gate run writes one, '' if none ever did."""

    runs: tuple[Attestation, ...] = ()
    since: str = ""
    damaged: tuple[str, ...] = ()
    """Lines that are not attestations."""

    def require(self, tree: str) -> None:
        """Raise UnreadableAttestations if damage may be the reason why nothing attests that a tree passed."""
        near = next((run.tree for run in self.runs if run.tree != tree and is_flipped(run.tree, tree)), "")
        if near or self.damaged:
            what = f"it names {near}, which is almost the same" if near else f"it contains {self.damaged[0][:80]!r}"
            raise UnreadableAttestations(f"a file of attestations is damaged and cannot tell whether {tree} passed "
                                         f"({what}); move it away to check by the queue's own verdicts")


def is_flipped(name: str, other: str) -> bool:
    """Return whether two object names are almost the same, which no two names from git are."""
    return len(name) == len(other) and 0 < sum(map(str.__ne__, name, other)) <= _MOST_FLIPPED


def read_attestations(texts: Iterable[str]) -> Attestations:
    """Read attestations, one text for each queue; lines that are not attestations, such as torn ones, are listed."""
    runs: list[Attestation] = []
    starts: list[str] = []
    damaged: list[str] = []
    for text in texts:
        lines = text.splitlines()
        begun = [line.partition(" ")[2] for line in lines if line.startswith(f"{SINCE} ")]
        starts += begun[:1]
        for line in lines:
            if found := _LINE.fullmatch(line):
                commit, tree, code, timed_out, gates = found.groups()
                runs += [Attestation(commit, tree, int(code), timed_out == "1",
                                     frozenset(gates.split(",") if gates else ()))] if commit.isalnum() else []
            elif not line.startswith(f"{SINCE} "):
                damaged.append(line)
        damaged += [] if begun or not text else [lines[0]]
    return Attestations(tuple(runs), max(starts, default=""), tuple(damaged))
