"""Where a run goes next: the life of a node's status and the frontier of a plan. Pure.

The rule of this room: no clock, disk, process or randomness; a plan and a mapping of statuses go in, names come out.
A task that the mapping does not name is pending. Done means validated, that is landed; the start node counts as done.

    pending -> active -> impl_complete -> validated
               active | impl_complete -> failed        the work or its landing was refused for good
               impl_complete -> active                 rework: landing was refused, and a new attempt starts
               failed -> active                        retry, by a person or a rule
"""

from __future__ import annotations

from collections.abc import Mapping

from garrison.errors import ForbiddenTransition
from garrison.pipeline.launch import RunPlan
from garrison.pipeline.status import ACTIVE, FAILED, IMPL_COMPLETE, PENDING, VALIDATED

NODE_STATUS: Mapping[str, frozenset[str]] = {
    PENDING: frozenset({ACTIVE}),
    ACTIVE: frozenset({IMPL_COMPLETE, FAILED}),
    IMPL_COMPLETE: frozenset({VALIDATED, FAILED, ACTIVE}),
    FAILED: frozenset({ACTIVE}),
    VALIDATED: frozenset(),
}
"""From each status, those that may follow."""


def step(old: str, new: str, node: str = "node") -> str:
    """`new`, if it may follow `old`; ForbiddenTransition (which changes nothing) if it may not."""
    allowed = NODE_STATUS.get(old, frozenset())
    if new not in allowed:
        raise ForbiddenTransition(node, old, new, allowed)
    return new


def first_status(plan: RunPlan) -> dict[str, str]:
    """The status of every task when a new run begins.

    What the graph calls validated or failed is so; what it calls active or impl_complete was begun by someone whose
    branch and process this run does not have, so it is pending here, and `frontier` lets it start first.
    """
    kept = (VALIDATED, FAILED)
    return {task: plan.initial[task] if plan.initial.get(task) in kept else PENDING for task in plan.tasks}


def frontier(plan: RunPlan, status: Mapping[str, str]) -> list[str]:
    """The tasks that may start now: pending, and all predecessors done. Those begun earlier first, then file order."""
    ready = [task for task in plan.tasks if status.get(task, PENDING) == PENDING
             and all(_done(plan, status, before) for before in plan.predecessors[task])]
    return sorted(ready, key=lambda task: _URGENCY.get(plan.initial.get(task, PENDING), 2))


def finished(plan: RunPlan, status: Mapping[str, str]) -> str | None:
    """`done` when every task is validated (so every exit is reached); `failed` when nothing runs or can start any more.

    None while there is something to wait for.
    """
    stand = [status.get(task, PENDING) for task in plan.tasks]
    if all(one == VALIDATED for one in stand):
        return "done"
    if ACTIVE in stand or IMPL_COMPLETE in stand or frontier(plan, status):
        return None
    return "failed"


def blocked_by(plan: RunPlan, status: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """For each pending task that failures keep from starting: the failed tasks before it, in file order."""
    order = {task: position for position, task in enumerate(plan.tasks)}
    causes: dict[str, frozenset[str]] = {}
    for node in _in_order(plan):
        if status.get(node) == FAILED:
            causes[node] = frozenset({node})
        elif node in plan.tasks and status.get(node, PENDING) != PENDING:
            causes[node] = frozenset()
        else:
            causes[node] = frozenset().union(*(causes[one] for one in plan.predecessors.get(node, ())))
    return {task: tuple(sorted(causes[task], key=order.__getitem__)) for task in plan.tasks
            if status.get(task, PENDING) == PENDING and causes[task]}


_URGENCY = {ACTIVE: 0, IMPL_COMPLETE: 1}


def _done(plan: RunPlan, status: Mapping[str, str], node: str) -> bool:
    return node not in plan.tasks or status.get(node) == VALIDATED


def _in_order(plan: RunPlan) -> list[str]:
    """All nodes, predecessors before successors."""
    from graphlib import TopologicalSorter

    return list(TopologicalSorter(plan.predecessors).static_order())
