"""What a garrison run of a graph will do, and why it will not be launched. Pure.

The rule of this room: whatever this version cannot do as the graph says it is refused here, before anything costs
something, in one line that names the node, its place and the remedy. Nothing is skipped, reordered or approximated.

A run does tasks (codergen, tool), gates (wait.human, wait.signal), pipelines within it (subgraph, and
stack.manager_loop over them), and whatever the machine of `flow` passes through by itself: conditional, parallel,
parallel.fan_in. `flow=walk` (the default) follows one edge at a time, `flow=dag` every edge once all predecessors are
done; for a graph that is one line both are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from garrison.errors import Refused, UsageError
from garrison.pipeline.fidelity import ways_on
from garrison.pipeline.flow.program import AUTOMATIC, Program, compile_graph
from garrison.pipeline.gates import GATE_KINDS, Gate, gates_of
from garrison.pipeline.graph import Graph, Node, find_cycle, is_known_handler, one_line, seconds, text
from garrison.pipeline.lint import command_of, errors, flow_of, lint
from garrison.pipeline.node_status import FAILED, PENDING, VALIDATED, statuses_in
from garrison.pipeline.parser import parse
from garrison.pipeline.subpipelines import (
    JOINT,
    MANAGER,
    MAX_DEPTH,
    SUBGRAPH,
    Loader,
    Manager,
    beside,
    file_of,
    inner,
    manager_of,
)
from garrison.pipeline.transforms import prepare, rewritten

TASKS = ("codergen", "tool")
"""The handlers that become tasks of a run."""

NESTED = (SUBGRAPH, MANAGER)
"""The handlers that run another pipeline."""


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
    ways: tuple[str, ...] = ()
    """How the run may go on after it, where its agent has a say in that (see fidelity.ways_on)."""


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
    program: Program | None = None
    """The graph made ready to run; None where only the tasks are of interest."""
    gates: Mapping[str, Gate] = field(default_factory=dict)
    """The nodes that wait for a word from outside."""
    managers: Mapping[str, Manager] = field(default_factory=dict)
    """The nodes that watch over the pipeline they run."""
    children: Mapping[str, RunPlan] = field(default_factory=dict)
    """The pipelines that its subgraph nodes run. `tasks`, `gates` and `predecessors` have theirs too, under the names
    that `nesting.inner` gives them."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """The name of a subgraph node in the run → the text of the file that it runs."""

    @property
    def max_seconds(self) -> float | None:
        """How long a run of it may last."""
        return self.program.max_seconds if self.program is not None else None


def plan_run(graph: Graph, *, max_steps: int | None = None, load: Loader = beside, within: str = "") -> RunPlan:
    """The plan of a garrison run of `graph`; Refused, in one line, when this version will not run it.

    `max_steps` is an option of the run and wins over the graph's attribute. `load` reads the files of its subgraph
    nodes; `within` is the name of the node that runs this graph itself.
    """
    refusals = list(_refusals(graph))
    if refusals:
        more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
        raise Refused(refusals[0] + more)
    graph = prepare(graph)
    goal, ways = text(graph.attrs, "goal", ""), ways_on(graph)
    own = RunPlan(
        goal=goal,
        flow=flow_of(graph) or "walk",
        tasks={node.id: plan_task(node, ways.get(node.id, ())) for node in graph.nodes_of(*TASKS)},
        start=graph.nodes_of("start")[0].id,
        exits=tuple(node.id for node in graph.nodes_of("exit")),
        predecessors={node: tuple(before) for node, before in graph.predecessors().items()},
        initial={node: status for node, status in statuses_in(graph).items() if graph.nodes[node].handler in TASKS},
        id=graph.id,
        prd_ref=text(graph.attrs, "prd_ref"),
        base=text(graph.attrs, "base"),
        gate=text(graph.attrs, "gate"),
        setup=text(graph.attrs, "setup"),
        setup_key=tuple(re.findall(r"[^\s,]+", text(graph.attrs, "setup_key", ""))),
        program=compile_graph(graph, max_steps=max_steps),
        gates=gates_of(graph),
        managers={node.id: manager_of(node) for node in graph.nodes_of(MANAGER)},
    )
    nodes = graph.nodes_of(*NESTED)
    if not nodes:
        return own
    if within.count(JOINT) + 1 >= MAX_DEPTH:
        raise Refused(f"{graph.source}: pipelines run within pipelines {MAX_DEPTH} deep at most")
    texts, children = {}, {}
    for node in nodes:
        name = inner(within, node.id) if within else node.id
        try:
            texts[node.id], source = load(name, graph, file_of(node, graph))
        except Refused as error:
            raise Refused(_line(graph, node.line, node.column, str(error))) from error
        children[node.id] = plan_run(parse(texts[node.id], source), load=load, within=name)
    return _nested(graph, own, children, texts)


def rewriting(load: Loader) -> Loader:
    """The files that `load` reads, as the transforms of installed packages leave them."""
    def loaded(name: str, graph: Graph, named: str) -> tuple[str, str]:
        written, source = load(name, graph, named)
        return rewritten(parse(written, source), written)[1], source

    return loaded


def _nested(graph: Graph, own: RunPlan, children: Mapping[str, RunPlan], texts: Mapping[str, str]) -> RunPlan:
    """A plan with what its subgraph nodes run; Refused if a name does not fit or is taken."""
    tasks, gates, before = dict(own.tasks), dict(own.gates), dict(own.predecessors)
    managers, all_texts = dict(own.managers), dict(texts)
    for node, child in children.items():
        tasks |= {inner(node, name): replace(task, node=inner(node, name)) for name, task in child.tasks.items()}
        gates |= {inner(node, name): gate.renamed(inner(node, name)) for name, gate in child.gates.items()}
        managers |= {inner(node, name): manager for name, manager in child.managers.items()}
        before |= {inner(node, name): tuple(dict.fromkeys(
            inner(node, one) if one in child.tasks else node for one in all_))
            for name, all_ in child.predecessors.items() if name in child.tasks}
        all_texts |= {inner(node, name): body for name, body in child.texts.items()}
    folded: dict[str, str] = {}
    for name in (*tasks, *gates, *managers):
        known = folded.setdefault(name.lower(), name)
        if len(name) > NAME or known != name:
            what = f"has more than {NAME} characters" if len(name) > NAME else f"is taken by {known}"
            raise Refused(f"{graph.source}: a pipeline within it has the node {name}, a name that {what}; "
                          "rename a node")
    return replace(own, tasks=tasks, gates=gates, managers=managers, predecessors=before, children=dict(children),
                   texts=all_texts)


NAME = 48
"""Characters of a node's name at most (see records.names)."""


def plan_task(node: Node, ways: tuple[str, ...] = ()) -> PlannedTask:
    """One node, after the graph's transforms, as a task; `ways` lead on from it. The prompt falls back to the label."""
    attrs = node.attrs
    return PlannedTask(
        node=node.id,
        kind=node.handler,
        label=node.label,
        prompt=text(attrs, "prompt") or node.label,
        agent=text(attrs, "agent") or text(attrs, "worker_type"),
        command=command_of(node),
        acceptance=text(attrs, "acceptance"),
        setup=text(attrs, "setup"),
        timeout_s=seconds(attrs, "timeout"),
        silence_s=seconds(attrs, "silence"),
        attrs=attrs,
        ways=ways,
    )


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


def _handlers(graph: Graph) -> Iterator[str]:
    for node in graph.nodes.values():
        handler = node.handler
        if handler == MANAGER:
            why = _unmanageable(graph, node)
        elif handler in (*AUTOMATIC, *TASKS, *GATE_KINDS, SUBGRAPH):
            why = ""
        elif not is_known_handler(handler):
            why = f"has the unknown type {handler!r:.40}; a run knows {', '.join(_KNOWN)}"
        else:
            why = f"({handler}) needs {_A_SESSION}; a run does {', '.join(_KNOWN)}"
        if not why:
            continue
        yield _line(graph, node.line, node.column, f"node {node.id} {why}")


def _unmanageable(graph: Graph, node: Node) -> str:
    """What a manager asks for that cannot be meant, or that only `garrison pipeline run` has."""
    try:
        manager = manager_of(node)
    except UsageError as error:
        return f"cannot be run: {error}"
    elsewhere = ""
    if not manager.autostart:
        elsewhere = "stack.child_autostart=false, but here a manager starts its child itself"
    elif text(node.attrs, "stack.child_workdir") or text(graph.attrs, "stack.child_workdir"):
        elsewhere = "stack.child_workdir, but here each task has a worktree of its own"
    return elsewhere and f"has {elsewhere}; remove it, or use garrison pipeline run"


_A_SESSION = "a session around it (`garrison session send --turn-graph`, or turn_graph= of a node with session=true)"
_KNOWN = ("start", "exit", *TASKS, *GATE_KINDS, "conditional", "parallel", "parallel.fan_in", *NESTED)


def _flow(graph: Graph) -> Iterator[str]:
    """In a walk only one of several unconditional edges is followed: who did not say so would lose the others."""
    if flow_of(graph) is not None or find_cycle(graph):
        return
    fork = _fork(graph)
    if fork:
        yield _line(graph, fork.line, fork.column, f"node {fork.id} has several edges out and the graph does not say "
                    "which are followed; say flow=dag (all of them) or flow=walk (one)")


def _fork(graph: Graph) -> Node | None:
    """The first node that does work and has several edges to different nodes with nothing to choose between them."""
    targets: dict[str, set[str]] = {}
    for edge in graph.edges:
        if not any(str(edge.attrs.get(name, "")).strip() for name in _CHOOSES):
            targets.setdefault(edge.source, set()).add(edge.target)
    return next((node for node in graph.nodes.values()
                 if len(targets.get(node.id, ())) > 1 and node.handler in ("start", *TASKS)), None)


_CHOOSES = ("condition", "label", "weight")
"""Edge attributes by which a walk chooses."""


def _line(graph: Graph, line: int, column: int, message: str) -> str:
    place = f"{graph.source}:{line}:{column}" if line else graph.source
    return f"{place}: {one_line(message)}"


# ---- the status of tasks ---------------------------------------------------------------------------------------------


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
