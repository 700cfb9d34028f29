"""Graph policy: decide whether the user's change of a run's graph is possible, and build the changed graph. Pure.

A task can be added until the run's flow has ended, and one that has not started can be edited. The resulting graph is
checked as a whole, by the rules of a launch, before anything is journaled. In a pipeline that follows every
edge (`flow=dag`) the new task is another path from its predecessor to an exit; in one that follows one edge after the
other it is inserted between its predecessor and the next node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.graph import NAME_SEPARATOR, Edge, Node, text
from garrison.pipeline.outcome import PARTIAL, SUCCESS
from garrison.pipeline.parser import parse
from garrison.records.events import NodeChanged
from garrison.records.signals import AddNode
from garrison.run.plan import replan
from garrison.spelling import nearest
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.pipeline.flow.state import FlowState
    from garrison.pipeline.graph import Graph
    from garrison.pipeline.plan import RunPlan
    from garrison.records.signals import EditNode
    from garrison.run.state import RunState

CHANGEABLE = ("prompt", "label", "agent", "budget")
"""Attributes of a task that the user can set; commands, which run outside the sandbox, are fixed at the launch."""


class ChangedGraph(Value):
    """Text of the graph after a change, and the record of the node that it adds, None if it adds none."""

    text: str
    node: NodeChanged | None = None


def change_graph(plan: RunPlan, state: RunState, run: str, change: AddNode | EditNode) -> ChangedGraph | str:
    """Return the graph after a change, or why it is refused."""
    graph, flow = plan.graph, state.flow
    if graph is None or flow is None or state.over or flow.over:
        return f"run {run} is over; `garrison run TASK` starts another"
    if wrong := [key for key in change.attributes if key not in CHANGEABLE]:
        return f"{wrong[0]} cannot be changed; you can change {', '.join(CHANGEABLE)}"
    if "prompt" in change.attributes and len(change.attributes["prompt"].strip()) < 2:
        return "the task is empty; describe in words what the agent should do"
    changed = _add(plan, graph, flow.state, run, change) if isinstance(change, AddNode) else _edit(
        plan, graph, state, run, change)
    if isinstance(changed, str):
        return changed
    written = to_dot(changed)
    try:
        written.encode()
        replan(plan, changed)  # its errors name no line of a file that the user never saw
        if parse(written) != changed:
            return "the task has characters that a graph cannot keep; write it as plain text"
    except UnicodeEncodeError:
        return "the task is not text in UTF-8"
    except GarrisonError as error:
        return str(error)
    return ChangedGraph(written, NodeChanged(change.who, "pending") if isinstance(change, AddNode) else None)


def find_same_task(plan: RunPlan, prompt: str) -> str:
    """Return the node of a run that has the same task, compared without case and layout; '' if there is none."""
    wanted = prompt.casefold().split()
    return next((name for name, task in plan.tasks.items() if task.prompt.casefold().split() == wanted), "")


def _add(plan: RunPlan, graph: Graph, flow: FlowState, run: str, change: AddNode) -> Graph | str:
    name, after = change.who, change.after or plan.start
    if name.casefold() in {each.casefold() for each in (*graph.nodes, *plan.tasks)}:
        return f"run {run} already has a node {name}; choose another name"
    if not change.attributes.get("prompt"):
        return f"{name} has no task; describe in words what its agent should do"
    if same := find_same_task(plan, change.attributes["prompt"]):
        return f"run {run} already has this task, as {same}; `garrison why {same} --run {run}` shows its state"
    if after not in graph.nodes:
        return _no_node(graph.nodes, run, after)
    if after in plan.exits:
        return f"{after} is where run {run} ends; name a node before it with --after"
    nodes = {**graph.nodes, name: Node(name, {"shape": "box", **change.attributes})}
    is_done = after in flow.outcomes and all(place.node != after for place in flow.in_flight.values())
    if plan.flow != "dag":
        return _insert(graph, nodes, after, name, run, is_done=is_done or after == plan.start)
    if is_done and flow.outcomes[after].status not in (SUCCESS, PARTIAL):
        return f"{after} has {'failed' if after in flow.failures else 'not succeeded'}, so nothing can follow it"
    exit_ = next((each for each in plan.exits if each not in flow.outcomes), None)
    if exit_ is None:
        return f"run {run} is at its end; `garrison run TASK` starts another"
    return replace(graph, nodes=nodes, edges=(*graph.edges, Edge(after, name), Edge(name, exit_)))


def _insert(graph: Graph, nodes: Mapping[str, Node], after: str, name: str, run: str, *, is_done: bool) -> Graph | str:
    """Return a graph with a node inserted between another one and its successor."""
    ways = [index for index, edge in enumerate(graph.edges) if edge.source == after]
    if is_done:
        return (f"run {run} follows one edge after the other; name a node that it has not yet passed, with --after"
                + (f": it has passed {after}" if after in graph.nodes else ""))
    if len(ways) != 1 or graph.edges[ways[0]].attrs or nodes[after].handler not in ("codergen", "tool"):
        return f"{after} leads on by a choice, so nothing can follow it directly; name another node with --after"
    at = ways[0]
    edges = (*graph.edges[:at], Edge(after, name), *graph.edges[at + 1:], Edge(name, graph.edges[at].target))
    return replace(graph, nodes=nodes, edges=edges)


def _edit(plan: RunPlan, graph: Graph, state: RunState, run: str, change: EditNode) -> Graph | str:
    name = change.who
    if NAME_SEPARATOR in name and name in plan.tasks and name not in graph.nodes:
        return f"{name} is part of a nested pipeline of run {run}; only nodes of the run's own graph can be edited"
    if name not in graph.nodes:
        return _no_node(graph.nodes, run, name)
    if name not in plan.tasks:
        return f"{name} is not a task; only tasks can be edited"
    node, before = graph.nodes[name], state.nodes.get(name)
    if before is not None and (before.status != "pending" or before.step or before.attempt > 1):
        return f"{name} has started; `garrison tell {name} TEXT --run {run}` sends a message to its session"
    if not change.attributes:
        return f"there is no change to {name}; pass --prompt, --agent or --budget"
    if text(node.attrs, "command") or node.handler != "codergen":
        return f"{name} is done by a command, which has no prompt, agent or budget"
    if "prompt" in change.attributes and (same := find_same_task(plan, change.attributes["prompt"])) not in ("", name):
        return f"run {run} already has this task, as {same}; `garrison why {same} --run {run}` shows its state"
    attributes = {**node.attrs, **change.attributes}
    return replace(graph, nodes={**graph.nodes, name: replace(node, attrs=attributes)})


def _no_node(names: Mapping[str, Node], run: str, name: str) -> str:
    near = nearest(name, list(names))
    return f"run {run} has no node {name}; " + (
        f"did you mean {near}? " if near else "") + f"`garrison status {run}` shows its nodes"
