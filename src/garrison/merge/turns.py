"""Turns: a node that lost to a moved target lands next. Pure.

When an entry is in conflict because others landed first, its node starts another attempt from the new tip. Until that
has landed the node has a *turn* on the conflicting files: entries of other nodes that change one of them wait, all
others continue. So if n nodes change one file, each loses at most once, and they take at most 2n - 1 attempts.

- Turns are numbered in the order of the losses. An entry waits for turns of other nodes; if its own node has a turn,
  only for those with a lower number. Dependencies of a turn's holder (`depends_on`) share its number. So numbers
  decrease along every chain of waiting, and there are no deadlocks, whatever files are shared.
- A turn lasts at most `[merge] turn` of the holder's working time: its clock stops while the agent waits for the end of
  a limit, while the holder waits for an earlier turn or is under test, and while the queue is paused or has no
  processor.
- It ends with the landing, or earlier for a reason in `TurnEnd`.

A loss does not count against the node's `max_rework`, unless it lost in the same files before (`is_free_loss`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from garrison.system.terminal_text import list_some
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from garrison.merge.entry import MergeEntry
    from garrison.merge.state import QueueState, QueueTurn
    from garrison.merge.touched import Touched

TURN = 900.0
"""Default of `[merge] turn`, in seconds of work."""
MAX_FREE_LOSSES = 10
"""Free losses of a node; without a limit a branch that always starts at an old commit would lose for ever."""
SHOWN_FILES = 2
"""Maximum number of files named in a line of text."""


class TurnEnd(StrEnum):
    """Reasons why a turn ends before its holder has landed."""

    TIME = "time"
    """It has lasted `[merge] turn`."""
    FAILED = "failed"
    """The holder has failed for good, or has nothing to land."""
    ASKS = "asks"
    """The holder waits for the user's answer or approval."""
    PARKED = "parked"
    STOPPED = "stopped"
    """The holder's run was stopped, or is over."""
    CANCELLED = "cancelled"
    """The user withdrew the holder's entry."""


class Waits(Value):
    """Turn that an entry waits for, and the files that both change."""

    turn: QueueTurn
    files: tuple[str, ...]


def is_free_loss(files: Collection[str], earlier: Sequence[MergeEntry]) -> bool:
    """Return whether a conflict in these files does not count as rework of its node.

    It counts if the node has, or had, a turn on them: then nobody else could land on them, or its time was up.

    Args:
        earlier: the node's entries before.
    """
    lost: set[str] = set()
    losses = 0
    for entry in earlier:
        if entry.status == "landed":
            lost, losses = set(), 0
        elif entry.status == "conflict" and entry.moved:
            lost.update(entry.files)
            losses += 1
    return bool(set(files) - lost) and losses < MAX_FREE_LOSSES


def find_waits(state: QueueState, entries: Iterable[MergeEntry], touched: Mapping[str, Touched]) -> dict[str, Waits]:
    """Return the turn that each of these entries waits for, without entries that wait for none."""
    turns = sorted(state.turns.values(), key=lambda turn: turn.number)
    needed = {turn.key: _needed_by(state, turn) for turn in turns}
    waits: dict[str, Waits] = {}
    for entry in entries:
        own = min((turn.number for turn in turns if turn.key == entry.key or entry.id in needed[turn.key]),
                  default=None)
        for turn in turns if own is None else [each for each in turns if each.number < own]:
            if shared := _shared(touched[entry.id], turn):
                waits[entry.id] = Waits(turn, shared)
                break
    return waits


def _shared(touched: Touched, turn: QueueTurn) -> tuple[str, ...]:
    """Return the turn's files that an entry changes; all if the entry's files are not all known."""
    if touched.count > len(touched.files):
        return turn.files
    return tuple(path for path in turn.files if path in touched.files)


def _needed_by(state: QueueState, turn: QueueTurn) -> set[str]:
    """Return the entries that must land before the latest entry of a turn's holder."""
    own = state.entries_of(*turn.key)
    todo, found = own[-1:], set[str]()
    while todo:
        for other in state.unmet_dependencies(todo.pop()):
            if other.id not in found:
                found.add(other.id)
                todo.append(other)
    return found


def free_of_turns(state: QueueState, entries: Sequence[MergeEntry], waits: Mapping[str, Waits]) -> list[MergeEntry]:
    """Return the ordered `entries` without those that wait for a turn, or for an entry that does."""
    out, free = set(waits), []
    for entry in entries:
        if entry.id in out or any(other.id in out for other in state.unmet_dependencies(entry)):
            out.add(entry.id)
        else:
            free.append(entry)
    return free


def find_running(state: QueueState, waits: Mapping[str, Waits]) -> list[QueueTurn]:
    """Return the turns whose clock runs: their holders are not waiting, for anything or to be judged."""
    turns = sorted(state.turns.values(), key=lambda turn: turn.number)
    running = []
    for index, turn in enumerate(turns):
        own = next((entry for entry in reversed(state.entries_of(*turn.key)) if not entry.is_final), None)
        is_behind = any(set(earlier.files).intersection(turn.files) for earlier in turns[:index])
        is_judged = own is not None and (own.status in ("candidate", "testing", "landing") or own.id in waits or (
            own.status == "queued" and not state.unmet_dependencies(own)))
        if not (turn.waits or is_behind or is_judged):
            running.append(turn)
    return running


def describe_wait(node: str, files: Sequence[str]) -> str:
    """Describe what an entry waits for: `waits for impl_b (CHANGELOG.md)`."""
    return f"waits for {node} ({list_some(files, SHOWN_FILES)})"


class TurnClock:
    """Elapsed time of turns, measured by the processor between two records of it.

    Only time between two steps counts, at most `LONGEST` each: a suspended machine or stopped processor did no work.
    """

    LONGEST = 5.0
    """Maximum number of seconds counted between two steps."""
    STEP = 30.0
    """Seconds after which a turn's elapsed time is recorded; a tenth of its limit if that is less."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._used: dict[tuple[tuple[str, str], int], float] = {}

    def stop(self) -> None:
        """Stop the clock, since nothing is judged now."""
        self._at = None

    def measure(self, now: float, running: Sequence[QueueTurn]) -> list[tuple[QueueTurn, float]]:
        """Count the time since the last step for the running turns; return those whose time has to be recorded, with
        their elapsed time. `now` is monotonic."""
        passed = 0.0 if self._at is None else min(self.LONGEST, max(0.0, now - self._at))
        self._at = now
        due = []
        for turn in running:
            place = (turn.key, turn.number)
            used = max(turn.used, self._used.get(place, 0.0)) + passed
            self._used[place] = used
            if used >= turn.limit or used - turn.used >= min(self.STEP, turn.limit / 10):
                due.append((turn, used))
                del self._used[place]
        return due
