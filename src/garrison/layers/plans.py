"""A run's plan, read from its snapshot of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.pipeline.launch import RunPlan, plan_run
from garrison.pipeline.nesting import kept
from garrison.pipeline.parser import parse_file

if TYPE_CHECKING:
    from garrison.records.run import Launch, RunFiles


def plan_of(files: RunFiles, launch: Launch | None = None) -> RunPlan:
    """The plan of the run's graph.dot, with the options of its launch."""
    return plan_run(parse_file(files.graph), max_steps=launch.max_steps if launch is not None else None,
                    load=kept(files.graphs))
