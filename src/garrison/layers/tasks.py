"""What a runner is told of a node's attempt. Pure.

The rule of this room: a task says all that its runner and agent need, in JSON's shapes, so that neither reads the
pipeline; it is made once an attempt, and what comes later (a target that moved, a new life) is no part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from garrison.pipeline.transforms import expand_context
from garrison.records.run import Task

if TYPE_CHECKING:
    from garrison.layers.run_state import NodeState
    from garrison.pipeline.fidelity import Carried
    from garrison.pipeline.launch import PlannedTask, RunPlan
    from garrison.records.run import Launch


def task_of(planned: PlannedTask, launch: Launch, plan: RunPlan, node: NodeState,
            context: dict[str, Any] | None = None, told: Carried | None = None) -> Task:
    """What a runner is told of a node's current attempt; `context` is what the flow's step sees, `told` what its agent
    is told of the run before it. Pure."""
    attempt = node.attempt
    agent = planned.agent or ("command" if planned.command else launch.agent)
    return Task(
        launch.run_id, planned.node, attempt, label=planned.label, prd_ref=launch.prd_ref,
        prompt="\n\n".join(filter(None, (node.steer, expand_context(planned.prompt, context or {})))), agent=agent,
        command=planned.command, acceptance=planned.acceptance,
        setup=planned.setup or launch.setup, timeout_s=planned.timeout_s,
        silence_s=planned.silence_s, goal=plan.goal,
        # "Done, still to validate": its acceptance is asked of the target; without one nothing would be proven.
        skip_agent=plan.initial.get(planned.node) == "impl_complete" and planned.acceptance is not None,
        rework=str(planned.attrs.get("rework", "fresh")), rework_reason=node.reason if attempt > 1 else "",
        attributes=_plain(planned.attrs), context=context or {}, ways=list(planned.ways),
        preamble=told.preamble or told.history if told else "", continues=told.session if told else "")


def _plain(attrs: Any) -> dict[str, Any]:
    return {str(name): value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
            for name, value in dict(attrs).items()}


