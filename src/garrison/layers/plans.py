"""A run's plan, read from its snapshot of the graph."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.pipeline.launch import RunPlan, plan_run
from garrison.pipeline.nesting import kept
from garrison.pipeline.parser import parse_file

if TYPE_CHECKING:
    from garrison.records.run import Launch, RunFiles


def plan_of(files: RunFiles, launch: Launch | None = None) -> RunPlan:
    """The plan of the run's graph.dot, with the options of its launch; Refused if that was changed since."""
    plan = plan_run(parse_file(files.graph), max_steps=launch.max_steps if launch is not None else None,
                    load=kept(files.graphs))
    if launch is not None and launch.graph_hash not in ("", hash_of(files.graph.read_text(encoding="utf-8"), plan)):
        raise Refused(f"{files.graph}, or what lies in {files.graphs}, is not what run {launch.run_id} began with any "
                      "more; put it back, or start another run with --new")
    return plan


def hash_of(text: str, plan: RunPlan) -> str:
    """What tells a run's graph, and those within it, from others: of the texts, as the run keeps them."""
    return hashlib.sha256(json.dumps([text, dict(plan.texts)], sort_keys=True).encode()).hexdigest()
