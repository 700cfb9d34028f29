"""Cursor of a client: its position in all journals of a run, as one event id. Pure.

A run has several journals, each with its own numbers and writers, so a position consists of one number per journal:

    3f2a9c1d-g412.l5.m88-12.9.0.31

stamp of the run, guardian, launcher, merge queue, then the runners in the order in which the guardian's journal names
their nodes. That order only grows, so that an id of one server means the same to the next.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from garrison.views.event_log import GUARDIAN, LAUNCHER, QUEUE, RUNNER, Record

_ID = re.compile(r"([0-9a-f]{8})-g(\d{1,12})\.l(\d{1,12})\.m(\d{1,12})-((?:\d{1,12}(?:\.\d{1,12})*)?)\Z", re.ASCII)


def run_stamp(run: str, created_at: str) -> str:
    return f"{zlib.crc32(f'{run} {created_at}'.encode()):08x}"


@dataclass
class Cursor:
    """Number of the last seen record of each journal, 0 for none."""

    stamp: str
    guardian: int = 0
    launch: int = 0
    queue: int = 0
    runners: dict[str, int] = field(default_factory=dict)
    """Node → number in its runner's journal."""

    def position(self, record: Record) -> int:
        """Return the last seen number in the journal of a record."""
        journal = record.journal
        if journal.startswith(RUNNER):
            return self.runners.get(journal.removeprefix(RUNNER), 0)
        return {GUARDIAN: self.guardian, LAUNCHER: self.launch, QUEUE: self.queue}.get(journal, 0)

    def advance(self, record: Record) -> None:
        """Count a record as seen."""
        journal, seq = record.journal, max(record.entry.seq, self.position(record))
        if journal.startswith(RUNNER):
            self.runners[journal.removeprefix(RUNNER)] = seq
        elif journal == GUARDIAN:
            self.guardian = seq
        elif journal == LAUNCHER:
            self.launch = seq
        elif journal == QUEUE:
            self.queue = seq

    def within(self, other: Cursor) -> bool:
        return (self.stamp == other.stamp and self.guardian <= other.guardian and self.launch <= other.launch
                and self.queue <= other.queue
                and all(seq <= other.runners.get(node, 0) for node, seq in self.runners.items()))

    def encode(self, order: Sequence[str]) -> str:
        """Return it as an event id; `order`: the nodes as the guardian's journal named them."""
        numbers = [self.runners.get(node, 0) for node in order]
        while numbers and not numbers[-1]:
            numbers.pop()
        return (f"{self.stamp}-g{self.guardian}.l{self.launch}.m{self.queue}-" + ".".join(map(str, numbers)))


def decode(text: str, order: Sequence[str]) -> Cursor | None:
    """Return the cursor that an event id encodes; None if it is none of a run with these nodes."""
    match = _ID.match(text)
    if match is None:
        return None
    numbers = [int(digits) for digits in match[5].split(".") if digits]
    if len(numbers) > len(order):
        return None
    runners = {node: seq for node, seq in zip(order, numbers, strict=False) if seq}
    return Cursor(match[1], int(match[2]), int(match[3]), int(match[4]), runners)
