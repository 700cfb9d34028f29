"""Turns: a node that lost to a moved target lands next. Pure.

When an entry is in conflict because others landed first, its node begins another attempt from the new tip. Until that
has landed the node has a *turn* on the files in which it lost: entries of other nodes that change one of them wait, all
others continue. So of n nodes that change one file each loses once at most, and n of them cost at most 2n - 1 attempts.

- Turns are numbered in the order of the losses. An entry waits for turns of other nodes, and if its own node has a turn
  only for those with a lower number. What the holder of a turn needs to have landed first (`depends_on`) shares its
  number. So the numbers fall along every chain of waiting, and no two wait for each other, whatever files they share.
- A turn lasts `[merge] turn` at most, in time that the holder works: not while its agent waits for a limit to pass,
  while it waits for an earlier turn or is under test, nor while the queue is paused or nobody works it.
- It ends with the landing, or earlier: `TurnEnd` lists why.

A loss costs the node none of its `max_rework`, unless it lost in the same files before (`is_free_loss`).
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
"""Seconds of work that a turn lasts at most, if `[merge] turn` does not say otherwise."""
MAX_FREE_LOSSES = 10
"""Losses of a node that cost none of its rework: a branch that always begins at an old commit would lose for ever."""
SHOWN_FILES = 2
"""Files named in a line of text."""


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
    """Return whether a conflict in these files costs its node no rework.

    It does not if the node has a turn on them already, or had: then nobody else could land on them, or its time was up.

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
    """Return the turn that each of these entries waits for; what waits for none is left out."""
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
    """Return the turn's files that an entry changes; all of them if it changes more than is known."""
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
    """Return those of the ordered `entries` that wait for no turn, nor for an entry that does."""
    out, free = set(waits), []
    for entry in entries:
        if entry.id in out or any(other.id in out for other in state.unmet_dependencies(entry)):
            out.add(entry.id)
        else:
            free.append(entry)
    return free


def find_running(state: QueueState, waits: Mapping[str, Waits]) -> list[QueueTurn]:
    """Return the turns whose time runs: neither waits the holder for something, nor does it wait to be judged."""
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
    """Return what an entry waits for, in words: waits for impl_b (CHANGELOG.md)."""
    return f"waits for {node} ({list_some(files, SHOWN_FILES)})"


class TurnClock:
    """Time that turns have lasted, as the processor measures it, between two records of it.

    Only the time between two steps counts, and of it `LONGEST` at most: a machine or processor that stood still in
    between did no work.
    """

    LONGEST = 5.0
    """Seconds between two steps that count at most."""
    STEP = 30.0
    """Seconds after which what a turn has used is recorded; a tenth of its limit if that is less."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._used: dict[tuple[tuple[str, str], int], float] = {}

    def stop(self) -> None:
        """Note that nothing is judged now."""
        self._at = None

    def measure(self, now: float, running: Sequence[QueueTurn]) -> list[tuple[QueueTurn, float]]:
        """Count the time since the last step for the running turns; return those of which the time has to be recorded,
        and what they have used by now. `now` is monotonic."""
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
