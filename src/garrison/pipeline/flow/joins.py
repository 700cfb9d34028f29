"""Which edges of a parallel open its branches, and where these meet again. Pure.

The rule of this room: the graph alone decides. An edge that asks for a failure (`outcome=fail`) opens no branch; it is
where the failure of the parallel itself leads. The join is the nearest fan-in that every branch reaches and that no
parallel on the way has used up, as brackets match; where there is none, the nearest node that every branch reaches.
Nearest is the one that the farthest branch reaches first. Ways that lead back through the parallel do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from garrison.pipeline.condition import All, Any_, Clause, Condition, Tree
from garrison.pipeline.outcome import FAIL, SUCCESS

MAX_DEPTH = 16
"""Parallels within parallels that are counted; a loop could open them without end."""

Successors = Mapping[str, Sequence[str]]


class Join(NamedTuple):
    """Where branches end, and the nodes they may visit before (`region`, without the join)."""

    node: str
    region: frozenset[str]


class _At(NamedTuple):
    """A node on a way from a branch's start, within so many parallels."""

    node: str
    depth: int = 0


_Look = Callable[[_At], tuple[bool, Iterator[_At]]]
"""Whether the branches could meet here, and where the way goes on."""


def opens_branch(condition: Condition | None) -> bool:
    """Whether an edge with this condition (None: without one) opens a branch of the parallel that it leaves."""
    return condition is None or not _asks_failure(condition.tree)


def _asks_failure(tree: Tree) -> bool:
    """Whether it asks for a failure, or for anything but success, as far as its form says."""
    match tree:
        case Clause(key="outcome" | "context.outcome", op=op, status=status):
            return (op, status) in (("=", FAIL), ("!=", SUCCESS))
        case All(parts=parts):
            return any(map(_asks_failure, parts))
        case Any_(parts=parts):
            return all(map(_asks_failure, parts))
        case _:
            return False


def find_join(parallel: str, branches: Iterable[str], successors: Successors, handlers: Mapping[str, str],
              ) -> Join | None:
    """The join of `parallel`, whose `branches` begin at these nodes; None when they never meet."""
    starts = list(dict.fromkeys(target for target in branches if target != parallel))
    if not starts:
        return None

    def matched(at: _At) -> tuple[bool, Iterator[_At]]:
        kind = handlers[at.node]
        if kind == "parallel.fan_in" and at.depth == 0:
            return True, iter(())
        depth = at.depth + (kind == "parallel") - (kind == "parallel.fan_in")
        return False, (_At(one, depth) for one in successors[at.node] if one != parallel and depth <= MAX_DEPTH)

    def plain(at: _At) -> tuple[bool, Iterator[_At]]:
        return True, (_At(one) for one in successors[at.node] if one != parallel)

    node = _meet(starts, matched) or _meet(starts, plain)
    return None if node is None else Join(node, _region(starts, node, parallel, successors))


def _meet(starts: Sequence[str], look: _Look) -> str | None:
    """The first node that all branches have reached, going outwards level by level; of several, the first by name."""
    seen: list[set[_At]] = [{_At(start)} for start in starts]
    edge: list[list[_At]] = [[_At(start)] for start in starts]
    reached: dict[str, set[int]] = {}
    while any(edge):
        common = []
        for branch, level in enumerate(edge):
            following: list[_At] = []
            for at in level:
                meets, onward = look(at)
                if meets:
                    reached.setdefault(at.node, set()).add(branch)
                    if len(reached[at.node]) == len(starts):
                        common.append(at.node)
                fresh = [one for one in dict.fromkeys(onward) if one not in seen[branch]]
                seen[branch].update(fresh)
                following += fresh
            edge[branch] = following
        if common:
            return min(common)
    return None


def _region(starts: Sequence[str], join: str, parallel: str, successors: Successors) -> frozenset[str]:
    found = set(starts) - {join}
    waiting = list(found)
    while waiting:
        for one in successors[waiting.pop()]:
            if one not in found and one not in (join, parallel):
                found.add(one)
                waiting.append(one)
    return frozenset(found)
