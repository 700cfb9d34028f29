"""Plan of a garrison run: its tasks, waits and inner pipelines, or the reason why a graph is not launched. Pure.

A graph with a feature that a garrison run does not support is refused before anything starts, in one line that names
the node, its position and a fix. Nothing is skipped, reordered or approximated.

A run does tasks (codergen, tool), waits (wait.human, wait.signal) and inner pipelines (subgraph, stack.manager_loop);
the flow itself executes conditional, parallel and parallel.fan_in. `flow=walk` (the default) follows one edge at a
time, `flow=dag` every edge once all predecessors are done; for a graph that is one line they are the same.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from types import MappingProxyType

import msgspec

from garrison.errors import Refused, UsageError
from garrison.pipeline.best_of import BestOf, agents_of, best_of
from garrison.pipeline.fidelity import next_steps
from garrison.pipeline.flow.program import AUTOMATIC, Program, compile_graph, statuses_in
from garrison.pipeline.graph import (
    NAME_SEPARATOR,
    Graph,
    Located,
    Node,
    find_cycle,
    flag,
    is_known_handler,
    seconds,
    subfolder,
    text,
)
from garrison.pipeline.lint import command_of, errors, flow_of, lint
from garrison.pipeline.lint.attributes import nearest_type
from garrison.pipeline.node_status import FAILED, PENDING, VALIDATED
from garrison.pipeline.parser import parse
from garrison.pipeline.questions import WAIT_KINDS, PlannedWait, waits_of
from garrison.pipeline.subpipelines import (
    MANAGER,
    MAX_DEPTH,
    SUBGRAPH,
    Loader,
    ManagerSettings,
    inner_name,
    load_from_source,
    manager_of,
    pipeline_file,
)
from garrison.pipeline.transforms import apply_installed, prepare
from garrison.plugins import PluginGroup, offered
from garrison.values import Value, replace

TASK_HANDLERS = ("codergen", "tool")
"""Handlers whose nodes become tasks of a run."""

SUBPIPELINE_HANDLERS = (SUBGRAPH, MANAGER)
"""Handlers that run another pipeline."""

MAX_NAME = 48
"""Characters of a node's name (see records.names)."""


@dataclass(frozen=True)
class PlannedTask:
    """A task as its runner gets it; attributes that the node does not set are None."""

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
    failover: str | None = None
    """Agents that continue when its agent cannot, from the node's list."""
    escalate: str | None = None
    """Agent that continues once an attempt was refused; the node's, else the graph's."""
    allow_empty: bool | None = None
    """True if an attempt without a change succeeds; the node's setting, else the graph's."""
    subfolder: str | None = None
    """Folder of the worktree in which its agent and acceptance start, from its `path`; '' for the top."""
    attrs: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    """Words that its agent may report in addition to the statuses (`Unit.words`)."""
    next_steps: tuple[str, ...] = ()
    """Ways in which a run may continue after it, if its agent decides between several (see fidelity.next_steps)."""
    source: str = field(default="", compare=False)
    """File of its pipeline, for messages."""
    best_of: BestOf | None = None
    """Candidates that do its work, also tasks; None for one attempt after the other."""
    candidate_of: str = ""
    """Task of which this is a candidate, '' for none."""


class RunPlan(Value):
    """A graph, prepared for a garrison run.

    `tasks` are in file order; `predecessors` are those of all nodes, including start and exits; `initial`: the
    statuses in the graph (see first_status). `flow` is `dag` or `walk`. The graph attributes `id` to `setup` are None
    if absent.
    """

    goal: str
    flow: str
    tasks: Mapping[str, PlannedTask]
    start: str
    exits: tuple[str, ...]
    predecessors: Mapping[str, tuple[str, ...]]
    initial: Mapping[str, str] = msgspec.field(default_factory=dict)
    id: str | None = None
    prd_ref: str | None = None
    base: str | None = None
    gate: str | None = None
    setup: str | None = None
    land: str | None = None
    """Rule for what lands on the target, and when; None: determined by its flow."""
    gate_path: str | None = None
    """Folder of the merged tree in which the gate starts, '' for its top."""
    node_gate: str | None = None
    """Gate of the run's own branch, if nodes do not land on the target."""
    failover: str | None = None
    """Agents that continue when a node's agent cannot, from the graph's list."""
    setup_key: tuple[str, ...] = ()
    """Files whose change makes the set-up run again, as paths in the worktree."""
    program: Program | None = None
    """Compiled graph; None where only the tasks matter."""
    waits: Mapping[str, PlannedWait] = msgspec.field(default_factory=dict)
    """Node → the question or signal it waits for."""
    managers: Mapping[str, ManagerSettings] = msgspec.field(default_factory=dict)
    """Node → its settings as a manager."""
    children: Mapping[str, RunPlan] = msgspec.field(default_factory=dict)
    """Node → the plan of its nested pipeline. `tasks`, `waits`, `managers` and `predecessors` include those of the
    children, under the names of `subpipelines.inner_name`."""
    texts: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Node → the text of its nested pipeline."""
    graph: Graph | None = None
    """The graph as it is written, before its transforms; None where only the tasks matter."""

    @property
    def max_seconds(self) -> float | None:
        return self.program.max_seconds if self.program is not None else None

    def nearest_before(self, node: str, stops: Callable[[str], bool]) -> list[str]:
        """Return the nearest nodes before a node at which the path back `stops`, in the order of the graph."""
        found, seen, queue = list[str](), {node}, list(self.predecessors.get(node, ()))
        for name in queue:  # names appended in the loop are visited as well
            if name not in seen:
                seen.add(name)
                found += [name] if stops(name) else []
                queue += () if stops(name) else self.predecessors.get(name, ())
        return found


def plan_run(graph: Graph, *, max_steps: int | None = None, load: Loader = load_from_source,
             within: str = "", has_begun: bool = False) -> RunPlan:
    """Return the plan of a garrison run of `graph`; raise Refused if a garrison run does not support it.

    `max_steps` is an option of the run and overrides the graph's attribute. `load` reads the files of inner pipelines;
    `within` is the name of the node that runs this graph itself. `has_begun` is set for the graph of a started run.
    """
    problems = list(_problems(graph, has_begun=has_begun))
    if problems:
        others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise Refused(problems[0].with_more(others))
    # A run keeps the graph as written: after a change it is prepared again, as a whole.
    written, graph = graph, prepare(graph)
    goal, steps = text(graph.attrs, "goal", ""), next_steps(graph)
    program = compile_graph(graph, max_steps=max_steps)
    tasks = _with_candidates(graph, {
        node.id: replace(plan_task(node, steps.get(node.id, ()), graph.attrs),
                         words=tuple(sorted(program.units[node.id].words)), source=graph.source)
        for node in graph.nodes.values() if is_task(node.handler)})
    before = {node: tuple(others) for node, others in graph.predecessors().items()}
    before |= {name: before[task.candidate_of] for name, task in tasks.items() if task.candidate_of}
    plan = RunPlan(
        goal=goal,
        flow=flow_of(graph) or "walk",
        tasks=tasks,
        start=graph.nodes_of("start")[0].id,
        exits=tuple(node.id for node in graph.nodes_of("exit")),
        predecessors=before,
        initial={node: status for node, status in statuses_in(graph).items()
                 if is_task(graph.nodes[node].handler)},
        id=graph.id,
        prd_ref=text(graph.attrs, "prd_ref"),
        base=text(graph.attrs, "base"),
        gate=text(graph.attrs, "gate"),
        setup=text(graph.attrs, "setup"),
        land=text(graph.attrs, "land", "").strip().lower() or None,
        gate_path=subfolder(graph.attrs, "gate_path"),
        node_gate=text(graph.attrs, "node_gate"),
        failover=text(graph.attrs, "failover"),
        setup_key=tuple(re.findall(r"[^\s,]+", text(graph.attrs, "setup_key", ""))),
        program=program,
        waits=waits_of(graph),
        managers={node.id: manager_of(node) for node in graph.nodes_of(MANAGER)},
        graph=written,
    )
    nodes = graph.nodes_of(*SUBPIPELINE_HANDLERS)
    if not nodes:
        return plan
    if within.count(NAME_SEPARATOR) + 1 >= MAX_DEPTH:
        raise Refused(f"{graph.source}: pipelines run within pipelines {MAX_DEPTH} deep at most")
    texts, children = {}, {}
    for node in nodes:
        name = inner_name(within, node.id) if within else node.id
        try:
            texts[node.id], source = load(name, graph, pipeline_file(node, graph))
        except Refused as error:
            raise Refused(graph.message_at(node.line, node.column, str(error))) from error
        children[node.id] = plan_run(parse(texts[node.id], source), load=load, within=name, has_begun=has_begun)
    return _with_children(graph, plan, children, texts)


_NOT_OF_A_JUDGE = frozenset({"command", "tool_command", "script", "validator", "files", "setup", "acceptance"})
"""Attributes of a node that do not concern the judge of its candidates."""


def _with_candidates(graph: Graph, tasks: Mapping[str, PlannedTask]) -> dict[str, PlannedTask]:
    """Return the tasks and their candidates; raise Refused if a name is too long or taken."""
    found = dict(tasks)
    for task in tasks.values():
        best = task.best_of
        agents: list[str | None] = [*agents_of(task.attrs)] or [task.agent]
        found[task.node] = replace(task, agent=agents[0])  # its own attempts need none, so no other agent is checked
        for place, name in enumerate((*best.names, *filter(None, [best.judge_node])) if best is not None else ()):
            # Names become branches and folders, and some file systems ignore case.
            if len(name) > MAX_NAME or name.lower() in {each.lower() for each in (*graph.nodes, *found)}:
                problem = f"more than {MAX_NAME} characters" if len(name) > MAX_NAME else "the name of another node"
                raise Refused(graph.message_at(graph.nodes[task.node].line, graph.nodes[task.node].column, (
                    f"node {task.node} has candidates, and {name} is {problem}; rename a node")))
            if best is None or name == best.judge_node:
                continue
            found[name] = replace(task, node=name, agent=agents[place % len(agents)], best_of=None,
                                  candidate_of=task.node, escalate=None, label=f"{task.label} ({name[-1]})")
        if best is not None and best.judge_node:
            attrs = {key: value for key, value in task.attrs.items() if key not in _NOT_OF_A_JUDGE}
            found[best.judge_node] = replace(
                task, node=best.judge_node, kind="codergen", agent=best.judge, command=None, acceptance=None,
                allow_empty=True, best_of=None, candidate_of=task.node, escalate=None, attrs=attrs,
                label=f"the judge of {task.label}")
    return found


def is_task(handler: str) -> bool:
    """Return whether nodes of a handler become tasks of a run: garrison's own, and those of installed packages."""
    return handler in TASK_HANDLERS or (not is_known_handler(handler) and handler in offered(PluginGroup.HANDLERS))


def _call_of_handler(node: Node, goal: str) -> str:
    """Return the command that calls an installed package's handler for a node (`handlers.installed`)."""
    body = {"id": node.id, "attrs": {str(name): str(value) for name, value in node.attrs.items()}, "goal": goal}
    # -P (Python 3.11): without it -m puts the current folder first on the path. That is the worktree, in which an agent
    # could leave a module with the name of one of ours.
    return shlex.join([sys.executable, "-P", "-m", "garrison.pipeline.handlers.installed", node.handler,
                       json.dumps(body, ensure_ascii=False)])


def plan_task(node: Node, steps: tuple[str, ...] = (), graph_attrs: Mapping[str, str] = MappingProxyType({}),
              ) -> PlannedTask:
    """Return the task of a node after the graph's transforms; its prompt falls back to the label."""
    attrs = node.attrs
    return PlannedTask(
        node=node.id,
        kind=node.handler,
        label=node.label,
        prompt=text(attrs, "prompt") or node.label,
        agent=text(attrs, "agent") or text(attrs, "worker_type"),
        command=command_of(node) if node.handler in TASK_HANDLERS else
        _call_of_handler(node, text(graph_attrs, "goal", "")),
        acceptance=text(attrs, "acceptance"),
        setup=text(attrs, "setup"),
        timeout_s=seconds(attrs, "timeout"),
        silence_s=seconds(attrs, "silence"),
        failover=text(attrs, "failover"),
        escalate=text(attrs, "escalate") or text(graph_attrs, "escalate"),
        allow_empty=next((flag(own, "allow_empty") for own in (attrs, graph_attrs) if text(own, "allow_empty")), None),
        subfolder=subfolder(attrs, "path"),
        attrs=attrs,
        next_steps=steps,
        best_of=best_of(node.id, attrs),
    )


def with_installed_transforms(load: Loader) -> Loader:
    """Return a loader that applies the transforms of installed packages to the files that `load` reads."""
    def load_transformed(name: str, graph: Graph, file: str) -> tuple[str, str]:
        dot_text, source = load(name, graph, file)
        return apply_installed(parse(dot_text, source), dot_text)[1], source

    return load_transformed


def _with_children(graph: Graph, plan: RunPlan, children: Mapping[str, RunPlan], texts: Mapping[str, str]) -> RunPlan:
    """Return a plan that includes its inner pipelines; raise Refused if a name is too long or taken."""
    tasks, waits, predecessors = dict(plan.tasks), dict(plan.waits), dict(plan.predecessors)
    managers, all_texts = dict(plan.managers), dict(texts)
    for node, child in children.items():
        names = {name: inner_name(node, name) for name in (*child.tasks, *child.waits, *child.managers, *child.texts)}
        tasks |= {names[name]: replace(
            task, node=names[name], failover=child.failover if task.failover is None else task.failover,
            best_of=best_of(names[name], task.attrs) if task.best_of else None,
            candidate_of=names.get(task.candidate_of, "")) for name, task in child.tasks.items()}
        waits |= {names[name]: wait.renamed(names[name]) for name, wait in child.waits.items()}
        managers |= {names[name]: manager for name, manager in child.managers.items()}
        predecessors |= {names[name]: tuple(dict.fromkeys(names[other] if other in child.tasks else node
                                                          for other in child.predecessors[name]))
                         for name in child.predecessors if name in child.tasks}
        all_texts |= {names[name]: body for name, body in child.texts.items()}
    by_folded_name: dict[str, str] = {}
    for name in (*tasks, *waits, *managers):
        first = by_folded_name.setdefault(name.lower(), name)
        if len(name) > MAX_NAME or first != name:
            problem = f"has more than {MAX_NAME} characters" if len(name) > MAX_NAME else f"is taken by {first}"
            raise Refused(f"{graph.source}: a pipeline within it has the node {name}, a name that {problem}; "
                          "rename a node")
    return replace(plan, tasks=tasks, waits=waits, managers=managers, predecessors=predecessors,
                   children=dict(children), texts=all_texts)


# ---- problems, the worst first ---------------------------------------------------------------------------------------


def _problems(graph: Graph, *, has_begun: bool) -> Iterator[Located]:
    findings = errors(lint(graph, has_begun=has_begun))
    for finding in findings:
        yield graph.message_at(finding.line, finding.column, f"{finding} ({finding.rule})")
    if not findings:
        yield from _unsupported_nodes(graph)
        yield from _ambiguous_flow(graph)


def _unsupported_nodes(graph: Graph) -> Iterator[Located]:
    for node in graph.nodes.values():
        handler = node.handler
        if handler == MANAGER:
            problem = _manager_problem(graph, node)
        elif handler in (*AUTOMATIC, *WAIT_KINDS, SUBGRAPH) or is_task(handler):
            problem = ""
        elif not is_known_handler(handler):
            meant = nearest_type(handler, tuple(sorted({*_SUPPORTED, *offered(PluginGroup.HANDLERS)})))
            problem = f"has the unknown type {handler!r:.40}; " + (
                f"did you mean {meant}?" if meant else f"a run knows {', '.join(_SUPPORTED)}")
        else:
            problem = f"({handler}) needs {_A_SESSION}; a run does {', '.join(_SUPPORTED)}"
        if problem:
            yield graph.message_at(node.line, node.column, f"node {node.id} {problem}")


def _manager_problem(graph: Graph, node: Node) -> str:
    """Return the setting of a manager that is invalid, or that only `garrison pipeline run` supports; else empty."""
    try:
        manager = manager_of(node)
    except UsageError as error:
        return f"cannot be run: {error}"
    setting = ""
    if not manager.autostart:
        setting = "stack.child_autostart=false, but here a manager starts its child itself"
    elif text(node.attrs, "stack.child_workdir") or text(graph.attrs, "stack.child_workdir"):
        setting = "stack.child_workdir, but here each task has its own worktree"
    return setting and f"has {setting}; remove it, or use garrison pipeline run"


_A_SESSION = "a session around it (`garrison session send --turn-graph`, or turn_graph= of a node with session=true)"
_SUPPORTED = ("start", "exit", *TASK_HANDLERS, *WAIT_KINDS, "conditional", "parallel", "parallel.fan_in",
              *SUBPIPELINE_HANDLERS)


def _ambiguous_flow(graph: Graph) -> Iterator[Located]:
    """Refuse an acyclic graph without flow= whose nodes fork: a walk would follow one edge and drop the others."""
    if flow_of(graph) is not None or find_cycle(graph):
        return
    node = _first_fork(graph)
    if node:
        yield graph.message_at(node.line, node.column, f"node {node.id} has several edges out and the graph does not "
                               "say which are followed; set flow=dag (all of them) or flow=walk (one)")


def _first_fork(graph: Graph) -> Node | None:
    """Return the first working node with edges to different nodes and nothing to choose between them."""
    targets: dict[str, set[str]] = {}
    for edge in graph.edges:
        if not any(str(edge.attrs.get(name, "")).strip() for name in ("condition", "label", "weight")):
            targets.setdefault(edge.source, set()).add(edge.target)
    return next((node for node in graph.nodes.values()
                 if len(targets.get(node.id, ())) > 1 and (node.handler == "start" or is_task(node.handler))), None)


# ---- statuses of tasks -----------------------------------------------------------------------------------------------


def first_status(plan: RunPlan) -> dict[str, str]:
    """Return the status of every task at the start of a run.

    Validated and failed tasks of the graph stay so. Active and impl_complete ones were started elsewhere, with
    a branch and a process that this run does not have: they are pending, and start before the others.
    """
    return {task: plan.initial[task] if plan.initial.get(task) in (VALIDATED, FAILED) else PENDING
            for task in plan.tasks}


def blocked_by(plan: RunPlan, status: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return pending task of a dag that failures block → the failed tasks before it, in file order.

    `status` maps tasks to their status; others are pending. A failure blocks only along edges that need a success. In a
    walk nothing waits for a node that was not reached.
    """
    if plan.flow != "dag":
        return {}
    order = {task: position for position, task in enumerate(plan.tasks)}
    causes: dict[str, frozenset[str]] = {}
    for node in TopologicalSorter(plan.predecessors).static_order():
        if status.get(node) == FAILED:
            causes[node] = frozenset({node})
        elif node in plan.tasks and status.get(node, PENDING) != PENDING:
            causes[node] = frozenset()
        else:
            causes[node] = frozenset().union(*(causes[before] for before in plan.predecessors.get(node, ())
                                               if not _failure_leads_to(plan, status, before, node)))
    return {task: tuple(sorted(causes[task], key=order.__getitem__)) for task in plan.tasks
            if status.get(task, PENDING) == PENDING and causes[task]}


def _failure_leads_to(plan: RunPlan, status: Mapping[str, str], before: str, node: str) -> bool:
    """Return whether the failed node `before` may still lead to `node`."""
    if plan.program is None or status.get(before) != FAILED or before not in plan.program.units:
        return False
    unit = plan.program.units[before]
    return unit.on_error_continue or any(route.target == node for route in unit.conditional)
