"""Batches: decide which prefixes of the line to test next, what to land, reject or pause, and how large a batch is.

The first i entries of the line, merged in order onto the target's tip, give `trees[i]`; `trees[0]` is the tip's own.
Only prefixes are tested, so a green prefix lands at once and the entries behind it are already built on it. A red line
is halved: the work left is the shortest prefix known to be red, and the entries behind it return to the queue, unknown.
If the first half is green, the second is known to be red without a run, for its tree is the one that was red. The last
one left is a leaf, the first entry alone; it is run once more before it is rejected, never without a run of its own.

With n entries of which each is bad with probability p, a run tells most when it is as likely green as red: n = 0.69/p.
With k gates at a time the longest prefix is chosen so that the first bad entry is as likely between any two of them.
Everything here is pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from garrison.merge.verdicts import BROKEN, WINDOW, Evidence, RedRun

if TYPE_CHECKING:
    from collections.abc import Sequence


NEEDED = 2
"""Red runs of a leaf's tree before it is rejected, one of them its own; one more where the gate was seen to waver."""
ONCE_MORE = frozenset({"red", "setup"})
"""Verdicts on the bare target that are asked for again before the queue pauses."""


@dataclass(frozen=True)
class Land:
    """Land the first `count` entries."""

    count: int


@dataclass(frozen=True)
class Reject:
    """Reject the first entry."""


@dataclass(frozen=True)
class PauseQueue:
    """The bare target does not pass: judge nobody; `reason` is base_red or gate_broken."""

    reason: str


@dataclass(frozen=True)
class RunGates:
    """Have these prefixes under test, shortest first; 0 is the bare target. Empty `start`: wait for those running."""

    wanted: tuple[int, ...]
    start: tuple[int, ...]


Step = Land | Reject | PauseQueue | RunGates


def decide_next(line: Sequence[str], trees: Sequence[str], known: Evidence, *, width: int = 1) -> Step:
    """The next thing to do with a line that is not empty; `width` gate runs may go on at a time."""
    prefixes = range(1, len(line) + 1)
    green = max((i for i in prefixes if trees[i] in known.green), default=0)
    if green:
        return Land(green)
    red = shortest_red(trees, known)
    if red and (step := _ask_base(trees[0], known.red[trees[red]], known)):
        return step
    if red == 1 and _final(line[0], known.red[trees[1]], known):
        return Reject()
    return _test(cuts(red, width) if red else probes(len(line), width), trees, known, width)


def shortest_red(trees: Sequence[str], known: Evidence) -> int:
    """How many entries the shortest prefix has that is known to be red; 0 if none is."""
    return next((i for i in range(1, len(trees)) if known.red.get(trees[i])), 0)


def _test(wanted: Sequence[int], trees: Sequence[str], known: Evidence, width: int) -> RunGates:
    waited = {trees[i] for i in wanted} & set(known.running)
    fresh = [i for i in wanted if trees[i] not in waited]
    return RunGates(tuple(wanted), tuple(fresh[:max(0, width - len(waited))]))


def _final(entry: str, reds: Sequence[RedRun], known: Evidence) -> bool:
    """Whether the leaf has been red often enough, once by itself."""
    own = [red for red in reds if red.entries == (entry,)]
    return bool(own) and (len(reds) >= NEEDED + known.wavers or own[-1].result == "lost")


def _ask_base(tip: str, reds: Sequence[RedRun], known: Evidence) -> Step | None:
    """Whether the bare target must be asked, or has answered that nobody can be judged; None if it passes.

    A plain red is the entries' own if the target's tree is known to pass; a broken gate may have broken since.
    """
    base = known.base
    if base is not None and base.result != "green":
        if base.failures < NEEDED and base.result in ONCE_MORE:
            return _test((0,), [tip], known, 1)
        return PauseQueue("base_red" if base.result == "red" else "gate_broken")
    asked = base is not None and base.seq > known.broken
    if asked or (tip in known.green and not known.broken and reds[-1].result not in BROKEN):
        return None
    return _test((0,), [tip], known, 1)


def cuts(red: int, width: int) -> tuple[int, ...]:
    """Prefixes to test of `red` entries known to be red together: equal parts, for the culprit may be anyone."""
    if red == 1:
        return (1,)
    return tuple(sorted({max(1, red * part // (width + 1)) for part in range(1, width + 1)}))


def probes(size: int, width: int) -> tuple[int, ...]:
    """Prefixes to test of `size` entries of which nothing is known: the whole, and with idle cores shorter ones too,
    so that each is as likely as the other to hold the first bad entry."""
    whole = math.log(width + 1)
    parts = {max(1, round(size * -math.log(1 - part / (width + 1)) / whole)) for part in range(1, width)}
    return tuple(sorted({*parts, size}))


MAX_BATCH = 32
"""Entries of the longest batch."""
SHORT_TEST = 0.25
"""Seconds; a gate that is quicker is not worth a batch, and one by one every entry has a verdict of its own."""
SHORT_QUEUE = 2
"""So many waiting entries, or fewer, are tested one by one."""
WIDEST = 4
"""Gates that run at a time, at most."""
_SEEN, _BAD = 8.0, 0.4
"""What is believed before anything was seen: as if of 8 entries 0.4 had been bad."""


def failure_rate(judged: Sequence[bool]) -> float:
    """The share of bad entries to be expected; `judged` says of each entry so far whether it was rejected."""
    recent = judged[-WINDOW:]
    return (sum(recent) + _BAD) / (len(recent) + _SEEN)


def choose_batch_size(judged: Sequence[bool], backlog: int, seconds: Sequence[float], *, width: int = 1,
                      max_batch: int = MAX_BATCH) -> int:
    """How many entries to test together, 1 or more; `seconds` is what the last gate runs took, `backlog` who waits."""
    if backlog <= SHORT_QUEUE or not seconds or min(seconds) < SHORT_TEST:
        return 1
    best = math.log(width + 1) / -math.log1p(-min(failure_rate(judged), 0.99))
    return max(1, min(MAX_BATCH, max_batch, backlog, round(best)))


def choose_gate_width(cores: int, gate_cores: int) -> int:
    """How many gates may run at a time on `cores`, if one keeps `gate_cores` busy (0: all of them)."""
    return max(1, min(WIDEST, cores // gate_cores)) if gate_cores > 0 else 1
