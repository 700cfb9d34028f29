"""A graph made ready to run: everything that a step needs, resolved once. Pure.

The rule of this room: after `compile_graph` nobody looks at text again. A condition is a tree, a weight a number, the
edges of a node stand in the order in which they are tried, a parallel knows its join. What cannot be made ready is
refused here, in one line with its place, before anything runs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from garrison.errors import GarrisonError, Refused
from garrison.pipeline.condition import Condition, ConditionSyntax, keys_of, normal_label, parse_condition
from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.flow.joins import Join, find_join, opens_branch
from garrison.pipeline.flow.retry import NO_RETRY, RetryPolicy, policy_of
from garrison.pipeline.graph import (
    Edge,
    Graph,
    Node,
    TypeConflict,
    find_cycle,
    flag,
    number,
    one_line,
    place,
    seconds,
    text,
)
from garrison.pipeline.node_status import imported

START, EXIT, CONDITIONAL, PARALLEL, FAN_IN = "start", "exit", "conditional", "parallel", "parallel.fan_in"

AUTOMATIC = frozenset({START, EXIT, CONDITIONAL, PARALLEL, FAN_IN})
"""The handlers that need nobody: a run passes through them by itself."""

MAX_STEPS = 500
MAX_PARALLEL = 4
MAX_SAME_FAILURES = 3
JOIN_POLICIES = ("wait_all", "all_success", "first_success", "k_of_n", "quorum")
ERROR_POLICIES = ("continue", "fail_fast", "ignore")


@dataclass(frozen=True, slots=True)
class Route:
    """One edge, ready: `index` is its place in `Graph.edges`, `label` as labels are compared."""

    index: int
    source: str
    target: str
    label: str = ""
    weight: float = 0
    condition: Condition | None = None
    loop_restart: bool = False
    into_conditional: bool = False
    branch: bool = True
    """Whether it opens a branch where it leaves a parallel."""
    attrs: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True, slots=True)
class Fanning:
    """What a `parallel` does: its policies, how many branches run at once, and where they end.

    `need` is how many branches must succeed (k_of_n, quorum), None when the policy does not count.
    """

    join: str
    region: frozenset[str]
    policy: str = "wait_all"
    on_failure: str = "continue"
    max_parallel: int = MAX_PARALLEL
    k: int | None = None
    quorum: float | None = None
    retries: int = 0
    """How often all its branches run again after a failure."""

    def need(self, branches: int) -> int | None:
        """How many of `branches` must succeed; None when the policy does not count."""
        if self.policy == "k_of_n":
            return self.k
        if self.policy != "quorum":
            return None
        return branches // 2 + 1 if self.quorum is None else max(1, math.ceil(self.quorum * branches - 1e-9))


@dataclass(frozen=True, slots=True)
class Unit:
    """One node, ready. `conditional` and `plain` are its edges in the order in which they are tried."""

    id: str
    handler: str
    conditional: tuple[Route, ...] = ()
    plain: tuple[Route, ...] = ()
    retry: RetryPolicy = NO_RETRY
    retry_targets: tuple[str, ...] = ()
    goal_gate: bool = False
    on_error_continue: bool = False
    auto_status: bool = False
    allow_partial: bool = False
    max_visits: int | None = None
    max_same_failures: int = MAX_SAME_FAILURES
    """How often in a row it may fail in the same way; at that the run is stuck (0: never)."""
    fanning: Fanning | None = None
    asks_outcome: bool = False
    """Whether it is a conditional whose conditions ask how the node before it ended: its plain edge is their else."""

    @property
    def automatic(self) -> bool:
        """Whether a run passes through it by itself."""
        return self.handler in AUTOMATIC

    @property
    def routes(self) -> tuple[Route, ...]:
        """All its edges in the order of the text."""
        return tuple(sorted((*self.conditional, *self.plain), key=lambda route: route.index))


@dataclass(frozen=True, slots=True)
class Program:
    """A graph, ready to run. `attrs` are the graph's attributes as context keys; `max_seconds` is wall-clock time."""

    graph: Graph
    flow: str
    start: str
    exits: tuple[str, ...]
    units: Mapping[str, Unit]
    edges: tuple[Route, ...]
    indegree: Mapping[str, int]
    attrs: Mapping[str, str]
    gates: tuple[str, ...] = ()
    retry_targets: tuple[str, ...] = ()
    max_steps: int = MAX_STEPS
    max_seconds: float | None = None
    initial: Mapping[str, str] = field(default_factory=dict)
    digest: str = ""


def compile_graph(graph: Graph, *, flow: str | None = None, max_steps: int | None = None) -> Program:
    """`graph` (after its transforms) as a program; Refused, in one line with its place, when it cannot be run.

    `flow` and `max_steps` are options of the run and win over the graph's attributes.
    """
    try:
        return _compile(graph, flow, max_steps)
    except TypeConflict as error:
        raise Refused(_line(graph, error.line, error.column, error.message)) from None


def _compile(graph: Graph, flow: str | None, max_steps: int | None) -> Program:
    flow = flow or text(graph.attrs, "flow") or "walk"
    if flow not in ("walk", "dag"):
        raise Refused(_line(graph, *place(graph.attrs.get("flow", "")), f"flow={flow!r:.40} is neither walk nor dag"))
    starts, exits = graph.of(START), graph.of(EXIT)
    if len(starts) != 1 or not exits:
        raise Refused(_line(graph, 1, 1, "a graph needs one start node (shape=Mdiamond) and an exit (shape=Msquare); "
                                         f"this one has {len(starts)} and {len(exits)}"))
    for node in graph.nodes.values():
        if set(node.id) & set("/#"):
            raise Refused(_line(graph, node.line, node.column, f"node id {node.id!r:.60} has a / or #; rename it"))
    handlers = {node.id: node.handler for node in graph.nodes.values()}
    edges = tuple(_route(graph, index, edge, handlers) for index, edge in enumerate(graph.edges))
    units = _units(graph, edges, handlers, flow)
    if flow == "dag":
        _refuse_cycle(graph)
    return Program(
        graph=graph, flow=flow, start=starts[0].id, exits=tuple(node.id for node in exits), units=units, edges=edges,
        indegree=_indegree(graph, edges),
        attrs={"graph.goal": "", **{f"graph.{key}": str(value) for key, value in graph.attrs.items()}},
        gates=tuple(unit.id for unit in units.values() if unit.goal_gate),
        retry_targets=_targets(graph, graph.attrs),
        max_steps=max_steps if max_steps is not None else int(number(graph.attrs, "max_steps", MAX_STEPS)),
        max_seconds=seconds(graph.attrs, "max_pipeline_duration"),
        initial=imported(graph),
        digest=hashlib.sha256(to_dot(graph).encode("utf-8", "surrogatepass")).hexdigest(),
    )


def _units(graph: Graph, edges: tuple[Route, ...], handlers: Mapping[str, str], flow: str) -> dict[str, Unit]:
    outgoing: dict[str, list[Route]] = {name: [] for name in graph.nodes}
    for route in edges:
        outgoing[route.source].append(route)
    successors = {name: [route.target for route in routes] for name, routes in outgoing.items()}
    common = _whole(graph.attrs, "max_node_visits", None)
    alike = _whole(graph.attrs, "max_same_failures", MAX_SAME_FAILURES)
    units = {}
    for node in graph.nodes.values():
        try:
            units[node.id] = _unit(graph, node, outgoing[node.id], common, alike)
            if handlers[node.id] == PARALLEL and flow == "walk":
                branches = [route.target for route in outgoing[node.id] if route.branch]
                found = find_join(node.id, branches, successors, handlers)
                units[node.id] = _with_fanning(units[node.id], _fanning(node, found, len(branches)))
        except TypeConflict:
            raise
        except GarrisonError as error:
            raise Refused(_line(graph, node.line, node.column, f"node {node.id}: {error}")) from None
    return units


def _unit(graph: Graph, node: Node, routes: list[Route], max_visits: int | None, max_same: int | None) -> Unit:
    attrs = node.attrs
    tried = sorted(routes, key=lambda route: (-route.weight, route.target, route.index))
    return Unit(
        id=node.id, handler=node.handler,
        conditional=tuple(route for route in tried if route.condition is not None),
        plain=tuple(route for route in tried if route.condition is None),
        retry=policy_of(attrs, graph.attrs),
        retry_targets=_targets(graph, attrs),
        goal_gate=flag(attrs, "goal_gate"),
        on_error_continue=text(attrs, "on_error", "").strip().lower() == "continue",
        auto_status=flag(attrs, "auto_status"),
        allow_partial=flag(attrs, "allow_partial"),
        max_visits=_whole(attrs, "max_node_visits", _whole(attrs, "max_visits", max_visits)),
        max_same_failures=_whole(attrs, "max_same_failures", max_same) or 0,
        asks_outcome=node.handler == CONDITIONAL and any("outcome" in keys_of(route.condition) for route in tried
                                                         if route.condition is not None),
    )


def _with_fanning(unit: Unit, fanning: Fanning) -> Unit:
    return replace(unit, fanning=fanning)


def _route(graph: Graph, index: int, edge: Edge, handlers: Mapping[str, str]) -> Route:
    try:
        condition = parse_condition(edge.attrs.get("condition", ""))
    except ConditionSyntax as error:
        raise Refused(_line(graph, *place(edge.attrs["condition"]), f"edge {edge}: {error}")) from None
    return Route(index, edge.source, edge.target, normal_label(edge.attrs.get("label", "")),
                 number(edge.attrs, "weight", 0), None if condition.always else condition,
                 flag(edge.attrs, "loop_restart"), handlers[edge.target] == CONDITIONAL,
                 condition.always or opens_branch(condition), edge.attrs)


def _fanning(node: Node, join: Join | None, branches: int) -> Fanning:
    if join is None:
        raise Refused("its branches never meet again; lead them all to one node (shape=tripleoctagon)")
    attrs = node.attrs
    policy = text(attrs, "join_policy", "wait_all").strip().lower()
    on_failure = text(attrs, "error_policy", "continue").strip().lower()
    if policy not in JOIN_POLICIES:
        raise Refused(f"join_policy={policy!r:.40} is none of {', '.join(JOIN_POLICIES)}")
    if on_failure not in ERROR_POLICIES:
        raise Refused(f"error_policy={on_failure!r:.40} is none of {', '.join(ERROR_POLICIES)}")
    k = next((found for key in ("join_k", "k", "min_success") if (found := _whole(attrs, key, None)) is not None), None)
    if policy == "k_of_n" and (k is None or not 1 <= k <= branches):
        raise Refused(f"join_policy=k_of_n needs join_k=1 to {branches}, the branches that must succeed")
    quorum = number(attrs, "join_quorum", number(attrs, "quorum"))
    if quorum is not None and not 0 < quorum <= 1:
        raise Refused(f"quorum={quorum} is no fraction of the branches; write 0.5 or 1")
    limit = _whole(attrs, "max_parallel", MAX_PARALLEL) or MAX_PARALLEL
    return Fanning(join.node, join.region, policy, on_failure, max(limit, 1), k, quorum,
                   _whole(attrs, "max_retries", 0) or 0)


def _targets(graph: Graph, attrs: Mapping[str, str]) -> tuple[str, ...]:
    """`retry_target`, then `fallback_retry_target`, as far as the graph has these nodes."""
    named = (text(attrs, "retry_target"), text(attrs, "fallback_retry_target"))
    return tuple(name for name in named if name is not None and name in graph.nodes)


def _indegree(graph: Graph, edges: tuple[Route, ...]) -> dict[str, int]:
    found = dict.fromkeys(graph.nodes, 0)
    for route in edges:
        found[route.target] += 1
    return found


def _refuse_cycle(graph: Graph) -> None:
    cycle = find_cycle(graph)
    if cycle:
        node = graph.nodes[cycle[0]]
        raise Refused(_line(graph, node.line, node.column, f"flow=dag, but {' -> '.join(cycle[:6])} wait for each "
                                                           "other; remove one of the edges, or say flow=walk"))


def _whole(attrs: Mapping[str, str], key: str, default: int | None) -> int | None:
    found = number(attrs, key)
    return default if found is None else int(found)


def _line(graph: Graph, line: int, column: int, message: str) -> str:
    where = f"{graph.source}:{line}:{column}" if line else graph.source
    return f"{where}: {one_line(message)}"
