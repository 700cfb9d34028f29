"""Batches: decide which prefixes to test next, what to land, reject or pause, and how large a batch is. Pure.

The first i entries of a batch, merged in order onto the target's tip, give `trees[i]`; `trees[0]` is the tip's own.
Only prefixes are tested, so a green prefix lands at once and the entries behind it are already built on it. A red batch
is halved: the work left is the shortest prefix known to be red, and the entries behind it return to the queue, unknown.
If the first half is green, the second is known to be red without a run, for its tree is the one that was red. The last
one left is a leaf, the first entry alone; it is run once more before it is rejected, never without a run of its own.

With n entries of which each is bad with probability p, a run tells most when it is as likely green as red: n = 0.69/p.
With k gates at a time the longest prefix is chosen so that the first bad entry is as likely between any two of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from garrison.merge.verdicts import BROKEN, JUDGED_WINDOW, Evidence, RedRun

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BATCH = 32
"""Entries of the longest batch."""
MAX_GATES = 4
"""Gates that run at a time, at most."""
SHORT_GATE = 0.25
"""Seconds; a gate that is quicker is not worth a batch, and one by one every entry has a verdict of its own."""
SHORT_QUEUE = 2
"""Waiting entries up to which they are tested one by one."""
RED_RUNS_NEEDED = 2
"""Red runs of a leaf's tree before it is rejected, one of them its own; one more if the gate is flaky."""
_ASSUMED_ENTRIES, _ASSUMED_BAD = 8.0, 0.4
"""Prior of the failure rate: as if of 8 entries 0.4 had been bad."""
_RETRIED_ON_BASE = frozenset({"red", "setup"})
"""Results of the bare target that are tried again before the queue pauses."""


@dataclass(frozen=True)
class Land:
    """Land the first `count` entries."""

    count: int


@dataclass(frozen=True)
class Reject:
    """Reject the first entry."""


@dataclass(frozen=True)
class PauseQueue:
    """Judge nothing, since the bare target does not pass; `reason` is base_red or gate_broken."""

    reason: str


@dataclass(frozen=True)
class RunGates:
    """Have these prefixes under test, shortest first; 0 is the bare target. Empty `start`: wait for those running."""

    wanted: tuple[int, ...]
    start: tuple[int, ...]


Decision = Land | Reject | PauseQueue | RunGates


def decide_next(entries: Sequence[str], trees: Sequence[str], evidence: Evidence, *, width: int = 1) -> Decision:
    """Decide what to do next with a batch that is not empty; `width` gate runs may go on at a time."""
    prefixes = range(1, len(entries) + 1)
    green = max((i for i in prefixes if trees[i] in evidence.green), default=0)
    if green:
        return Land(green)
    red = shortest_red(trees, evidence)
    if red and (decision := _consult_base(trees[0], evidence.red[trees[red]], evidence)):
        return decision
    if red == 1 and _is_proven_bad(entries[0], evidence.red[trees[1]], evidence):
        return Reject()
    return _run(split_points(red, width) if red else probe_points(len(entries), width), trees, evidence, width)


def shortest_red(trees: Sequence[str], evidence: Evidence) -> int:
    """Return the length of the shortest prefix known to be red, 0 if there is none."""
    return next((i for i in range(1, len(trees)) if evidence.red.get(trees[i])), 0)


def _run(wanted: Sequence[int], trees: Sequence[str], evidence: Evidence, width: int) -> RunGates:
    running = {trees[i] for i in wanted} & set(evidence.running)
    missing = [i for i in wanted if trees[i] not in running]
    return RunGates(tuple(wanted), tuple(missing[:max(0, width - len(running))]))


def _is_proven_bad(entry: str, reds: Sequence[RedRun], evidence: Evidence) -> bool:
    """Return whether the leaf has been red often enough, once by itself."""
    own = [red for red in reds if red.entries == (entry,)]
    return bool(own) and (len(reds) >= RED_RUNS_NEEDED + evidence.flaky or own[-1].result == "lost")


def _consult_base(tip: str, reds: Sequence[RedRun], evidence: Evidence) -> Decision | None:
    """Decide whether to test the bare target, or to pause because it does not pass; None if it does.

    A plain red is the entries' own fault if the target's tree is known to pass; a gate may have broken since.
    """
    base = evidence.base
    if base is not None and base.result != "green":
        if base.failures < RED_RUNS_NEEDED and base.result in _RETRIED_ON_BASE:
            return _run((0,), [tip], evidence, 1)
        return PauseQueue("base_red" if base.result == "red" else "gate_broken")
    is_answered = base is not None and base.seq > evidence.broken
    if is_answered or (tip in evidence.green and not evidence.broken and reds[-1].result not in BROKEN):
        return None
    return _run((0,), [tip], evidence, 1)


def split_points(red: int, width: int) -> tuple[int, ...]:
    """Return prefixes to test of `red` entries known to be red together: equal parts, for any may be the culprit."""
    if red == 1:
        return (1,)
    return tuple(sorted({max(1, red * part // (width + 1)) for part in range(1, width + 1)}))


def probe_points(size: int, width: int) -> tuple[int, ...]:
    """Return prefixes to test of `size` unknown entries: all of them, and with idle cores shorter ones too.

    Each is as likely as the others to hold the first bad entry.
    """
    whole = math.log(width + 1)
    parts = {max(1, round(size * -math.log(1 - part / (width + 1)) / whole)) for part in range(1, width)}
    return tuple(sorted({*parts, size}))


def choose_batch_size(rejections: Sequence[bool], backlog: int, durations: Sequence[float], *, width: int = 1,
                      max_batch: int = MAX_BATCH) -> int:
    """Return how many entries to test together, 1 or more.

    Args:
        rejections: of each entry judged lately, whether it was rejected.
        backlog: entries that wait.
        durations: seconds that the last gate runs took.
        width: gate runs that may go on at a time.
        max_batch: entries that may be tested together at most.
    """
    if backlog <= SHORT_QUEUE or not durations or min(durations) < SHORT_GATE:
        return 1
    best = math.log(width + 1) / -math.log1p(-min(failure_rate(rejections), 0.99))
    return max(1, min(MAX_BATCH, max_batch, backlog, round(best)))


def failure_rate(rejections: Sequence[bool]) -> float:
    """Return the share of bad entries to expect, from those judged lately."""
    recent = rejections[-JUDGED_WINDOW:]
    return (sum(recent) + _ASSUMED_BAD) / (len(recent) + _ASSUMED_ENTRIES)


def choose_gate_width(cores: int, gate_cores: int) -> int:
    """Return how many gates may run at a time on `cores`, if one keeps `gate_cores` busy (0: all of them)."""
    return max(1, min(MAX_GATES, cores // gate_cores)) if gate_cores > 0 else 1
