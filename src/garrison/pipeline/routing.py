"""The life of a task's status in a run, and what keeps a pending one from starting. Pure.

The rule of this room: no clock, disk, process or randomness; a plan and a mapping of statuses go in, names come out.
A task that the mapping does not name is pending. Done means validated, that is landed. Where a run goes next the
machine in `flow` decides.

    pending -> active -> impl_complete -> validated
               active | impl_complete -> failed        the work or its landing was refused for good
               impl_complete -> active                 rework: landing was refused, and a new attempt starts
               failed -> active                        rework of a failure, or a word of a person
    validated | failed | skipped -> pending            the flow comes here again: a retry, or a loop
    pending -> skipped                                 no edge into it was followed
"""

from __future__ import annotations

from collections.abc import Mapping

from garrison.errors import ForbiddenTransition
from garrison.pipeline.launch import RunPlan
from garrison.pipeline.status import ACTIVE, FAILED, IMPL_COMPLETE, PENDING, SKIPPED, VALIDATED

NODE_STATUS: Mapping[str, frozenset[str]] = {
    PENDING: frozenset({ACTIVE, SKIPPED}),
    ACTIVE: frozenset({IMPL_COMPLETE, FAILED}),
    IMPL_COMPLETE: frozenset({VALIDATED, FAILED, ACTIVE}),
    FAILED: frozenset({ACTIVE, PENDING}),
    VALIDATED: frozenset({PENDING}),
    SKIPPED: frozenset({PENDING}),
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
    branch and process this run does not have, so it is pending here, and starts before the others.
    """
    kept = (VALIDATED, FAILED)
    return {task: plan.initial[task] if plan.initial.get(task) in kept else PENDING for task in plan.tasks}


def blocked_by(plan: RunPlan, status: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """For each pending task of a dag that failures keep from starting: the failed tasks before it, in file order.

    A failure passes on only along edges that need a success; in a walk nobody waits for what was not reached.
    """
    if plan.flow != "dag":
        return {}
    order = {task: position for position, task in enumerate(plan.tasks)}
    causes: dict[str, frozenset[str]] = {}
    for node in _in_order(plan):
        if status.get(node) == FAILED:
            causes[node] = frozenset({node})
        elif node in plan.tasks and status.get(node, PENDING) != PENDING:
            causes[node] = frozenset()
        else:
            causes[node] = frozenset().union(*(causes[one] for one in plan.predecessors.get(node, ())
                                               if not _passes(plan, status, one, node)))
    return {task: tuple(sorted(causes[task], key=order.__getitem__)) for task in plan.tasks
            if status.get(task, PENDING) == PENDING and causes[task]}


def _passes(plan: RunPlan, status: Mapping[str, str], before: str, node: str) -> bool:
    """Whether a failed node may lead on to `node` all the same."""
    if plan.program is None or status.get(before) != FAILED or before not in plan.program.units:
        return False
    unit = plan.program.units[before]
    return unit.on_error_continue or any(route.target == node for route in unit.conditional)


def _in_order(plan: RunPlan) -> list[str]:
    """All nodes, predecessors before successors."""
    from graphlib import TopologicalSorter

    return list(TopologicalSorter(plan.predecessors).static_order())
