"""What a garrison run of a graph will do, and why it will not be launched. Pure.

The rule of this room: whatever this version cannot do as the graph says it is refused here, before anything costs
something, in one line that names the node, its place and the remedy. Nothing is skipped, reordered or approximated.

This version runs start, exit, codergen and tool; it follows every edge once all predecessors are done (`flow=dag`),
which for a graph that is one line is the same as to walk it. A condition is accepted only when it is trivial there:
empty, `true`, or that the predecessor succeeded (`outcome=success` and its other spellings), because a task starts only
after the success of those before it anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from garrison.errors import Refused
from garrison.light import dataclass, field
from garrison.pipeline.graph import Graph, Node, known_handler, one_line, seconds, text
from garrison.pipeline.lint import command_of, errors, find_cycle, flow_of, lint
from garrison.pipeline.status import imported

TASKS = ("codergen", "tool")
"""The handlers that become tasks of a run."""

NEEDS: Mapping[str, str] = {
    "wait.human": "a person's answer",
    "wait.signal": "waiting for a signal",
    "conditional": "routing by conditions",
    "parallel": "parallel branches of a walk (with flow=dag, tasks without edges between them run side by side)",
    "parallel.fan_in": "parallel branches of a walk (with flow=dag, a task waits for all its predecessors)",
    "stack.manager_loop": "a manager loop",
    "subgraph": "a pipeline within a pipeline",
}
"""What a handler would need that this version does not have."""

_SUCCESS = re.compile(r"(?:outcome\s*==?\s*)?[\"']?(?:success|succeeded|passed|pass|ok)[\"']?\Z", re.IGNORECASE)
_GOAL = re.compile(r"\$(?:goal\b|\{goal\})")


@dataclass(frozen=True)
class PlannedTask:
    """One task as its runner will get it; what the node leaves out is None. `timeout_s` and `silence_s` are seconds."""

    node: str
    kind: str
    label: str
    prompt: str
    agent: str | None = None
    command: str | None = None
    acceptance: str | None = None
    setup: str | None = None
    timeout_s: float | None = None
    silence_s: float | None = None
    attrs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunPlan:
    """A graph as a run sees it.

    `tasks` in file order; `predecessors` of all nodes, start and exits too; `initial` holds the status that the graph
    brought along (routing.first_status says what a run makes of it). `flow` is `dag` or `walk`, as the graph says,
    and `walk` when it does not. The last four are graph attributes, None when absent.
    """

    goal: str
    flow: str
    tasks: Mapping[str, PlannedTask]
    start: str
    exits: tuple[str, ...]
    predecessors: Mapping[str, tuple[str, ...]]
    initial: Mapping[str, str] = field(default_factory=dict)
    id: str | None = None
    prd_ref: str | None = None
    base: str | None = None
    gate: str | None = None
    setup: str | None = None
    setup_key: tuple[str, ...] = ()
    """Files whose change makes set-up run again, as paths below the tree."""


def plan_run(graph: Graph) -> RunPlan:
    """The plan of a garrison run of `graph`; Refused, in one line, when this version will not run it."""
    refusals = list(_refusals(graph))
    if refusals:
        more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
        raise Refused(refusals[0] + more)
    goal = text(graph.attrs, "goal", "")
    return RunPlan(
        goal=goal,
        flow=flow_of(graph) or "walk",
        tasks={node.id: plan_task(node, goal) for node in graph.of(*TASKS)},
        start=graph.of("start")[0].id,
        exits=tuple(node.id for node in graph.of("exit")),
        predecessors={node: tuple(before) for node, before in graph.predecessors().items()},
        initial={node: status for node, status in imported(graph).items() if graph.nodes[node].handler in TASKS},
        id=graph.id,
        prd_ref=text(graph.attrs, "prd_ref"),
        base=text(graph.attrs, "base"),
        gate=text(graph.attrs, "gate"),
        setup=text(graph.attrs, "setup"),
        setup_key=tuple(re.findall(r"[^\s,]+", text(graph.attrs, "setup_key", ""))),
    )


def plan_task(node: Node, goal: str) -> PlannedTask:
    """One node as a task. The prompt falls back to the label; `$goal` in it becomes the graph's goal."""
    attrs = node.attrs
    return PlannedTask(
        node=node.id,
        kind=node.handler,
        label=node.label,
        prompt=_GOAL.sub(lambda _: goal, text(attrs, "prompt") or node.label),
        agent=text(attrs, "agent") or text(attrs, "worker_type"),
        command=command_of(node),
        acceptance=text(attrs, "acceptance"),
        setup=text(attrs, "setup"),
        timeout_s=seconds(attrs, "timeout"),
        silence_s=seconds(attrs, "silence"),
        attrs=attrs,
    )


def is_line(graph: Graph) -> bool:
    """Whether the graph is one line: no node has two ways in or out, and it does not run in a circle."""
    outgoing = [edge.source for edge in graph.edges]
    incoming = [edge.target for edge in graph.edges]
    return len(set(outgoing)) == len(outgoing) and len(set(incoming)) == len(incoming) and not find_cycle(graph)


def is_trivial(condition: str) -> bool:
    """Whether an edge's condition always holds after a success, so that following the edge obeys it."""
    bare = condition.strip()
    return not bare or bare.lower() == "true" or bool(_SUCCESS.match(bare))


# ---- refusals, the gravest first -------------------------------------------------------------------------------------


def _refusals(graph: Graph) -> Iterator[str]:
    broken = False
    for finding in errors(lint(graph)):
        broken = True
        yield _line(graph, finding.line, finding.column, f"{finding} ({finding.rule})")
    if broken:
        return
    yield from _handlers(graph)
    yield from _flow(graph)
    yield from _conditions(graph)


def _handlers(graph: Graph) -> Iterator[str]:
    for node in graph.nodes.values():
        handler = node.handler
        if handler in ("start", "exit", *TASKS):
            continue
        if not known_handler(handler):
            why = f"has the unknown type {handler!r:.40}; a run knows start, exit, codergen and tool"
        else:
            needs = NEEDS.get(handler, "a session of its own")
            why = f"({handler}) needs {needs}, not in this version; a run does start, exit, codergen and tool"
        yield _line(graph, node.line, node.column, f"node {node.id} {why}")


def _flow(graph: Graph) -> Iterator[str]:
    flow = flow_of(graph)
    if flow == "dag" or is_line(graph):
        return
    if flow == "walk":
        yield _line(graph, 1, 1, "flow=walk with branches or loops is not in this version; "
                    "make it one line, or say flow=dag when every edge is to be followed")
        return
    fork = _fork(graph)
    if fork and not find_cycle(graph):
        yield _line(graph, fork.line, fork.column, f"node {fork.id} has several edges out and the graph does not say "
                    "which are followed; say flow=dag (all of them) or flow=walk (one)")
        return
    yield _line(graph, 1, 1, "a graph with branches or loops and no flow= is walked, which is not in this version; "
                "make it one line, or say flow=dag when every edge is to be followed")


def _fork(graph: Graph) -> Node | None:
    """The first node with several unconditional edges to different nodes."""
    targets: dict[str, set[str]] = {}
    for edge in graph.edges:
        if is_trivial(edge.attrs.get("condition", "")):
            targets.setdefault(edge.source, set()).add(edge.target)
    return next((node for node in graph.nodes.values() if len(targets.get(node.id, ())) > 1), None)


def _conditions(graph: Graph) -> Iterator[str]:
    for edge in graph.edges:
        condition = edge.attrs.get("condition", "")
        if not is_trivial(condition):
            yield _line(graph, edge.line, edge.column, f"edge {edge} has condition=\"{condition!s:.60}\"; only "
                        "outcome=success is in this version, remove the condition or the edge")


def _line(graph: Graph, line: int, column: int, message: str) -> str:
    place = f"{graph.source}:{line}:{column}" if line else graph.source
    return f"{place}: {one_line(message)}"


