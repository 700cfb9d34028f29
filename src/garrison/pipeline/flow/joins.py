"""Joins of parallels: the edges that open branches, and the node where the branches meet again. Pure.

An edge that asks for a failure (`outcome=fail`) opens no branch: it leads on from the failure of the parallel itself.
The join is the nearest fan-in that every branch reaches, matched with its parallel as brackets are; without one, the
nearest node that every branch reaches. Nearest means reached first by the farthest branch. Paths back through the
parallel are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from garrison.pipeline.condition import And, Clause, Condition, Or, Tree
from garrison.pipeline.outcome import FAIL, SUCCESS

MAX_DEPTH = 16
"""Levels of nested parallels that are counted; a loop could open them without end."""

Successors = Mapping[str, Sequence[str]]


class Join(NamedTuple):
    """Node where branches end, and the nodes they may visit before it (`region`)."""

    node: str
    region: frozenset[str]


class _Position(NamedTuple):
    """A node on a path from a branch's start, and the number of parallels open there."""

    node: str
    depth: int = 0


_Visit = Callable[[_Position], tuple[bool, Iterator[_Position]]]
"""Returns whether the branches may meet at a position, and the next positions."""


def opens_branch(condition: Condition | None) -> bool:
    """Return whether an edge with this condition (None: without one) opens a branch of its parallel."""
    return condition is None or not _asks_for_failure(condition.tree)


def _asks_for_failure(tree: Tree) -> bool:
    """Return whether a condition asks for a failure, or for anything but success, judged by its form."""
    match tree:
        case Clause(key="outcome" | "context.outcome", op=op, status=status):
            return (op, status) in (("=", FAIL), ("!=", SUCCESS))
        case And(parts=parts):
            return any(map(_asks_for_failure, parts))
        case Or(parts=parts):
            return all(map(_asks_for_failure, parts))
        case _:
            return False


def find_join(parallel: str, branches: Iterable[str], successors: Successors, handlers: Mapping[str, str],
              ) -> Join | None:
    """Return the join of `parallel`, whose `branches` start at these nodes; None if they never meet."""
    starts = list(dict.fromkeys(target for target in branches if target != parallel))
    if not starts:
        return None

    def visit_fan_in(at: _Position) -> tuple[bool, Iterator[_Position]]:
        kind = handlers[at.node]
        if kind == "parallel.fan_in" and at.depth == 0:
            return True, iter(())
        depth = at.depth + (kind == "parallel") - (kind == "parallel.fan_in")
        return False, (_Position(node, depth) for node in successors[at.node]
                       if node != parallel and depth <= MAX_DEPTH)

    def visit_any(at: _Position) -> tuple[bool, Iterator[_Position]]:
        return True, (_Position(node) for node in successors[at.node] if node != parallel)

    node = _meeting_point(starts, visit_fan_in) or _meeting_point(starts, visit_any)
    return None if node is None else Join(node, _region(starts, node, parallel, successors))


def _meeting_point(starts: Sequence[str], visit: _Visit) -> str | None:
    """Search breadth-first for the first node that all branches reach; of several, return the first by name."""
    seen: list[set[_Position]] = [{_Position(start)} for start in starts]
    frontiers: list[list[_Position]] = [[_Position(start)] for start in starts]
    reached: dict[str, set[int]] = {}
    while any(frontiers):
        common = []
        for branch, frontier in enumerate(frontiers):
            following: list[_Position] = []
            for at in frontier:
                may_meet, next_positions = visit(at)
                if may_meet:
                    reached.setdefault(at.node, set()).add(branch)
                    if len(reached[at.node]) == len(starts):
                        common.append(at.node)
                unseen = [position for position in dict.fromkeys(next_positions) if position not in seen[branch]]
                seen[branch].update(unseen)
                following += unseen
            frontiers[branch] = following
        if common:
            return min(common)
    return None


def _region(starts: Sequence[str], join: str, parallel: str, successors: Successors) -> frozenset[str]:
    region = set(starts) - {join}
    pending = list(region)
    while pending:
        for node in successors[pending.pop()]:
            if node not in region and node not in (join, parallel):
                region.add(node)
                pending.append(node)
    return frozenset(region)
