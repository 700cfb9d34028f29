"""A launch check: no run is larger than somebody can review."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from garrison.pipeline.plan import RunPlan
    from garrison.records.run import Launch

MOST = 50
"""Nodes of one run."""


def is_small(launch: Launch, plan: RunPlan) -> None:
    """Refuse a graph with too many nodes."""
    if len(plan.tasks) > MOST:
        raise ValueError(f"{len(plan.tasks)} nodes on {launch.base} are too many to review, {MOST} is the limit")
