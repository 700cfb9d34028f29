"""Order of conflicting entries: choose which go first, so that most land. Pure.

If two entries conflict, only the first lands: the other ends as `conflict`, and its node tries again. In arrival order
one entry may thus cost several others. A conflict-free set with the most expected landings goes first (a maximum weight
independent set; the weight is the probability of being good), then the others, both in queue order.

The user's order has precedence: conflicting entries of different priorities keep their order, dependencies go first,
and the number of times that an entry is passed over is bounded (`find_due`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from garrison.merge.entry import MergeEntry
    from garrison.merge.state import QueueState

MAX_EXACT = 16
"""Size of a connected group up to which the best set is searched; for a larger one, a good set is taken."""
MAX_PASSED = 8
"""Later entries that may land before a waiting one; then it is no longer passed over."""


class WaitingEntry(Value):
    """Waiting entry as the order sees it."""

    id: str
    weight: float = 1.0
    """Probability that it lands if nothing conflicts with it."""
    priority: int = 0
    needs: frozenset[str] = frozenset()
    """Waiting entries that must land before it."""
    is_due: bool = False
    """Set if it must not be passed over."""


def choose_order(places: Sequence[WaitingEntry], conflicts: Collection[frozenset[str]]) -> list[str]:
    """Return the ids of waiting entries (given in queue order) in the order with the most expected landings."""
    against = _neighbours(places, conflicts)
    chosen: set[str] = set()
    for group in _groups(places, against):
        chosen |= _choose(group, against) if any(against[place.id] for place in group) else {each.id for each in group}
    ordered = [place.id for place in places]
    return [name for name in ordered if name in chosen] + [name for name in ordered if name not in chosen]


def _neighbours(places: Sequence[WaitingEntry], conflicts: Iterable[frozenset[str]]) -> dict[str, set[str]]:
    against: dict[str, set[str]] = {place.id: set() for place in places}
    for one, other in (sorted(pair) for pair in conflicts if len(pair) == 2):
        if one in against and other in against:
            against[one].add(other)
            against[other].add(one)
    return against


def _groups(places: Sequence[WaitingEntry], against: dict[str, set[str]]) -> list[list[WaitingEntry]]:
    """Return groups connected by conflicts or dependencies, each in queue order."""
    linked = {place.id: set(against[place.id]) for place in places}
    for place in places:
        for need in place.needs & linked.keys():
            linked[place.id].add(need)
            linked[need].add(place.id)
    groups, left = [], {place.id: place for place in places}
    while left:
        reached, todo = set(), [next(iter(left))]
        while todo:
            name = todo.pop()
            if name not in reached:
                reached.add(name)
                todo += linked[name] - reached
        groups.append([place for place in left.values() if place.id in reached])
        left = {name: place for name, place in left.items() if name not in reached}
    return groups


def _choose(group: Sequence[WaitingEntry], against: dict[str, set[str]]) -> set[str]:
    """Return the entries of a group that go first."""
    in_order = _take(group, against, group)
    priority = {place.id: place.priority for place in group}
    if any(priority[place.id] != priority[other] for place in group for other in against[place.id]):
        return in_order
    due = _take([place for place in group if place.is_due], against, group)
    free = [place for place in group if place.id not in due and not against[place.id] & due]
    best = _search(free, against, due, group) if len(free) <= MAX_EXACT else _take(
        sorted(free, key=lambda place: (len(against[place.id]), -place.weight)), against, group, due)
    return best if _weight(best, group) > _weight(in_order, group) or not due <= in_order else in_order


def _take(order: Sequence[WaitingEntry], against: dict[str, set[str]], group: Sequence[WaitingEntry],
          taken: Collection[str] = (),
          ) -> set[str]:
    """Take entries greedily in `order`, skipping those that conflict with earlier ones."""
    chosen, names = set(taken), {place.id for place in group}
    left = list(order)
    while True:
        free = next((place for place in left if not against[place.id] & chosen and place.needs & names <= chosen), None)
        if free is None:
            return chosen
        left.remove(free)
        chosen.add(free.id)


def _search(free: Sequence[WaitingEntry], against: dict[str, set[str]], due: set[str],
            group: Sequence[WaitingEntry]) -> set[str]:
    """Return the set of the greatest weight, preferring earlier entries: branch on taking each entry, then on leaving
    it out.
    """
    names = {place.id for place in group} - due
    rest = [0.0] * (len(free) + 1)
    for index in reversed(range(len(free))):
        rest[index] = rest[index + 1] + free[index].weight
    best: tuple[float, set[str]] = (-1.0, set())

    def extend(index: int, weight: float, chosen: frozenset[str]) -> None:
        nonlocal best
        if weight + rest[index] <= best[0] + 1e-9:
            return
        if index == len(free):
            best = (weight, set(chosen))
            return
        place = free[index]
        if not against[place.id] & chosen and place.needs & names <= chosen:
            extend(index + 1, weight + place.weight, chosen | {place.id})
        extend(index + 1, weight, chosen)

    extend(0, 0.0, frozenset())
    return due | best[1]


def _weight(chosen: Collection[str], group: Sequence[WaitingEntry]) -> float:
    return sum(place.weight for place in group if place.id in chosen)


# ------------------------------------------------------------------------------------------------------------ fairness


def find_due(entries: Sequence[MergeEntry], state: QueueState) -> set[str]:
    """Return the entries that must not be passed over: their node lost to a conflict before, or many later entries have
    landed."""
    lost = {other.key for other in state.entries.values() if other.status == "conflict"}
    landed = sorted(state.positions.get(other.id, 0) for other in state.entries.values() if other.status == "landed")
    return {entry.id for entry in entries if entry.key in lost
            or len(landed) - bisect_right(landed, state.positions.get(entry.id, 0)) >= MAX_PASSED}


def find_places(entries: Sequence[MergeEntry], state: QueueState, bad: Mapping[str, float]) -> list[WaitingEntry]:
    """Return these entries as the order sees them; `bad` has the probabilities that they are bad."""
    names, due = frozenset(entry.id for entry in entries), find_due(entries, state)
    return [WaitingEntry(entry.id, 1.0 - bad.get(entry.id, 0.0), entry.priority,
                         names.intersection(other.id for other in state.unmet_dependencies(entry)), entry.id in due)
            for entry in entries]
