"""A workflow as a graph of the pipeline engine: `flow=dag`, one `tool` node a step. Pure.

Nodes are called s1, s2, … in the workflow's order, since a step may be called anything; the label is the step's name.
"""

from __future__ import annotations

from collections.abc import Mapping

from garrison.pipeline.graph import Edge, Graph, Node
from garrison.workflow.models import Workflow

START, EXIT, COMMAND = "start", "done", "workflow step"


def node_id(index: int) -> str:
    """The node of a step by its index, from 0."""
    return f"s{index + 1}"


def compile_workflow(workflow: Workflow, waits: Mapping[str, list[str]]) -> Graph:
    """The graph; `waits` as `validate.dependencies` gives it. Retries are the engine's, failures of non-critical steps
    lead on."""
    ids = {step.name: node_id(index) for index, step in enumerate(workflow.steps)}
    nodes = {START: Node(START, {"shape": "Mdiamond"}), EXIT: Node(EXIT, {"shape": "Msquare"})}
    edges = []
    for step in workflow.steps:
        attrs = {"shape": "parallelogram", "label": step.name, "tool_command": COMMAND,
                 "max_retries": str(step.retry_count)}
        if not step.critical:
            attrs["on_error"] = "continue"
        nodes[ids[step.name]] = Node(ids[step.name], attrs)
        edges += [Edge(ids[one], ids[step.name]) for one in waits[step.name]] or [Edge(START, ids[step.name])]
    leading = {edge.source for edge in edges}
    edges += [Edge(name, EXIT) for name in ids.values() if name not in leading]
    return Graph("workflow", {"flow": "dag", "max_steps": str(10 * len(nodes) + 100)}, nodes, tuple(edges))
