"""Batches: decide which prefixes to test next, what to land, reject or pause, and how large a batch is. Pure.

The first i entries of a batch, merged in order onto the target's tip, give `trees[i]`; `trees[0]` is the tip's own.
Only prefixes are tested, so a green prefix lands at once and the entries behind it are already built on it. A red batch
is bisected: its shortest red prefix is tested further, and the entries behind that return to the queue, unjudged. If
its first half is green, that half lands, and the rest is known to be red without a run, since its tree was the red one.
What remains is a leaf, the first entry alone: it is tested once more by itself before it is rejected.

If each of n entries is bad with probability p, a run gives most information when green and red are equally likely: at
n = 0.69/p. With k gates at a time, the prefixes are chosen so that the first bad entry is equally likely between any
two of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from garrison.frozen import frozen
from garrison.merge.verdicts import BROKEN, JUDGED_WINDOW, Evidence, RedRun

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BATCH = 32
"""Entries of the longest batch."""
MAX_GATES = 4
"""Gates that run at a time, at most."""
SHORT_GATE = 0.25
"""Seconds; entries with a quicker gate are tested one by one, each with a verdict of its own."""
SHORT_QUEUE = 2
"""Length of a queue up to which entries are tested one by one."""
RED_RUNS_NEEDED = 2
"""Red runs of a leaf's tree before it is rejected, one of them its own; one more if the gate is flaky."""
_ASSUMED_ENTRIES, _ASSUMED_BAD = 8.0, 0.4
"""Prior of the failure rate: as if 0.4 of 8 earlier entries had been bad."""
_RETRIED_ON_BASE = frozenset({"red", "setup"})
"""Results of the bare target that are tried again before the queue pauses."""


@frozen
class Land:
    """Land the first `count` entries."""

    count: int


@frozen
class Reject:
    """Reject the first entry."""


@frozen
class PauseQueue:
    """Pause the queue, since the bare target does not pass; `reason` is base_red or gate_broken."""

    reason: str


@frozen
class RunGates:
    """Test the prefixes `wanted`, shortest first (0: the bare target); `start` those without a run in progress."""

    wanted: tuple[int, ...]
    start: tuple[int, ...]


Decision = Land | Reject | PauseQueue | RunGates


def decide_next(entries: Sequence[str], trees: Sequence[str], evidence: Evidence, *, width: int = 1) -> Decision:
    """Decide what to do next with a batch of at least one entry; `width` gates may run at a time."""
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
    """Return whether a leaf has been red often enough, and at least once by itself."""
    alone = [red for red in reds if red.entries == (entry,)]
    return bool(alone) and (len(reds) >= RED_RUNS_NEEDED + evidence.flaky or alone[-1].result == "lost")


def _consult_base(tip: str, reds: Sequence[RedRun], evidence: Evidence) -> Decision | None:
    """Decide whether to test the bare target, or to pause because it does not pass; None if it does.

    A plain red is the entries' fault if the target's tree passed; but the gate may have broken since.
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
    """Return prefixes to test of `red` entries that are red together: at equal distances, as any may be the cause."""
    if red == 1:
        return (1,)
    return tuple(sorted({max(1, red * part // (width + 1)) for part in range(1, width + 1)}))


def probe_points(size: int, width: int) -> tuple[int, ...]:
    """Return prefixes to test of `size` unjudged entries: all of them, and with idle cores shorter ones too.

    The first bad entry is equally likely to be in each of the resulting parts.
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
