"""Compile a graph into a program: everything a step needs, resolved once. Pure.

In a program a condition is a tree, a weight a number, a node's edges are in the order in which they are tried, and a
parallel has its join; no step parses text. A graph that cannot be compiled is refused in one line with its position.

An edge out of a parallel opens a branch unless it asks for a failure (`outcome=fail`): that one is followed after a
failure of the parallel itself. The join is the nearest fan-in that every branch reaches, matched with its parallel like
brackets; without one, the nearest node that every branch reaches. Nearest means reached first by the farthest
branch. Paths back through the parallel are ignored.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from garrison.backoff import Backoff
from garrison.errors import GarrisonError, Refused
from garrison.pipeline.condition import (
    And,
    Clause,
    Condition,
    ConditionSyntax,
    Or,
    Tree,
    clauses_of,
    keys_of,
    parse_condition,
)
from garrison.pipeline.dot_writer import graph_digest
from garrison.pipeline.graph import (
    Edge,
    Graph,
    Node,
    TypeConflict,
    find_cycle,
    flag,
    number,
    position,
    reachable,
    seconds,
    text,
)
from garrison.pipeline.node_status import STATUS_WORDS, normalize
from garrison.pipeline.outcome import FAIL, SUCCESS, normalize_label
from garrison.values import Value, replace

CAP_S = 60.0


class RetryPolicy(Value):
    """At most `attempts` attempts; `first_s` x `factor` ** (n - 1) seconds before the nth retry, at most 60.

    With `jitter` a delay is multiplied by 0.5 to 1.5.
    """

    attempts: int = 1
    first_s: float = 0.2
    factor: float = 2.0
    jitter: bool = True

    def delay(self, retry: int, seed: str) -> float:
        """Return the seconds before a retry (from 1); the same for the same `seed`."""
        jitter = (0.5, 1.5) if self.jitter else (1.0, 1.0)
        backoff = Backoff(self.first_s, CAP_S, factor=self.factor, jitter=jitter)
        return round(backoff.delay(retry, random.Random(seed).random()), 6)


NO_RETRY = RetryPolicy()

PRESETS: Mapping[str, RetryPolicy] = {
    "none": NO_RETRY,
    "standard": RetryPolicy(5),
    "aggressive": RetryPolicy(5, 0.5),
    "linear": RetryPolicy(3, 0.5, 1.0),
    "patient": RetryPolicy(3, 2.0, 3.0),
}
"""Policies that `retry_policy` may name."""


def retry_policy_of(node: Mapping[str, str], graph: Mapping[str, str]) -> RetryPolicy:
    """Return the policy of a node from its attributes and the graph's.

    The number of retries is `max_retries` of the node; else its `retry_policy`; else `default_max_retries` (or
    `default_max_retry`) of the graph; else the graph's `retry_policy`; else none. The delays are those of the named
    policy, the node's before the graph's. Raise Refused for an unknown policy, TypeConflict for an invalid number.
    """
    node_preset, graph_preset = _preset(node), _preset(graph)
    preset = node_preset or graph_preset or PRESETS["standard"]
    retries = number(node, "max_retries")
    if retries is None and node_preset is None:
        retries = number(graph, "default_max_retries", number(graph, "default_max_retry"))
    if retries is None:
        retries = preset.attempts - 1 if node_preset or graph_preset else 0
    jitter = flag(node, "retry_jitter", flag(graph, "retry_jitter", True))
    return replace(preset, attempts=max(int(retries), 0) + 1, jitter=jitter)


def _preset(attrs: Mapping[str, str]) -> RetryPolicy | None:
    name = text(attrs, "retry_policy")
    if name is None:
        return None
    if name.strip().lower() not in PRESETS:
        raise Refused(f"retry_policy={name!r:.40} is unknown; use {', '.join(PRESETS)}")
    return PRESETS[name.strip().lower()]


START, EXIT, CONDITIONAL, PARALLEL, FAN_IN = "start", "exit", "conditional", "parallel", "parallel.fan_in"
HUMAN = "wait.human"

AUTOMATIC = (START, EXIT, CONDITIONAL, PARALLEL, FAN_IN)
"""Handlers the engine executes itself: a run passes through them without a driver."""

MAX_STEPS = 500
MAX_PARALLEL = 4
MAX_SAME_FAILURES = 3
JOIN_POLICIES = ("wait_all", "all_success", "first_success", "k_of_n", "quorum")
ERROR_POLICIES = ("continue", "fail_fast", "ignore")


class Route(Value):
    """A compiled edge: `index` is its position in `Graph.edges`, `label` is normalized."""

    index: int
    source: str
    target: str
    label: str = ""
    weight: float = 0
    condition: Condition | None = None
    loop_restart: bool = False
    into_conditional: bool = False
    branch: bool = True
    """True if it opens a branch where it leaves a parallel."""
    attrs: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


class FanOut(Value):
    """Settings of a `parallel`: its join, its policies, and how many branches run at once."""

    join: str
    region: frozenset[str]
    policy: str = "wait_all"
    on_failure: str = "continue"
    max_parallel: int = MAX_PARALLEL
    k: int | None = None
    quorum: float | None = None
    retries: int = 0
    """Times that all its branches run again after a failure."""

    def required_successes(self, branches: int) -> int | None:
        """Return how many of `branches` must succeed; None if the policy does not count them."""
        if self.policy == "k_of_n":
            return self.k
        if self.policy != "quorum":
            return None
        # 0.55 × 100 is 55.00000000000001 in floats, whose ceiling is one branch too many.
        return branches // 2 + 1 if self.quorum is None else max(1, math.ceil(self.quorum * branches - 1e-9))


class Unit(Value):
    """A compiled node. `conditional` and `plain` are its edges in the order in which they are tried."""

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
    refuses_partial: bool = False
    """Set if it has allow_partial=false: as a goal gate it then requires a full success."""
    max_visits: int | None = None
    max_same_failures: int = MAX_SAME_FAILURES
    """Identical failures in a row after which the run is stuck; 0 means never."""
    fan_out: FanOut | None = None
    words: frozenset[str] = frozenset()
    """Words that its edges, and those of the conditionals after it, ask for; normalized labels."""
    asks_outcome: bool = False
    """True if it is a conditional whose conditions ask for the previous outcome; its plain edge is then their else."""

    @property
    def automatic(self) -> bool:
        return self.handler in AUTOMATIC

    @property
    def routes(self) -> tuple[Route, ...]:
        return tuple(sorted((*self.conditional, *self.plain), key=lambda route: route.index))


class Program(Value):
    """A compiled graph. `attrs` are the graph's attributes as context keys; `max_seconds` limits wall-clock time."""

    graph: Graph
    flow: str
    start: str
    exits: tuple[str, ...]
    units: Mapping[str, Unit]
    edges: tuple[Route, ...]
    indegree: Mapping[str, int]
    attrs: Mapping[str, str]
    goal_gates: tuple[str, ...] = ()
    retry_targets: tuple[str, ...] = ()
    max_steps: int = MAX_STEPS
    max_seconds: float | None = None
    initial: Mapping[str, str] = msgspec.field(default_factory=dict)
    digest: str = ""

    def reachable(self, node: str, *, backwards: bool = False, within: Container[str] | None = None) -> set[str]:
        """Return `node` and all nodes after it, or before it; `within` limits the search to these."""
        neighbours: dict[str, list[str]] = {}
        for route in self.edges:
            here, there = (route.target, route.source) if backwards else (route.source, route.target)
            neighbours.setdefault(here, []).append(there)
        return reachable((node,), neighbours, within)


def compile_graph(graph: Graph, *, flow: str | None = None, max_steps: int | None = None) -> Program:
    """Return the program of `graph` (after its transforms); raise Refused if it cannot run.

    `flow` and `max_steps` are options of the run and override the graph's attributes.
    """
    try:
        return _compile(graph, flow, max_steps)
    except TypeConflict as error:
        raise Refused(graph.message_at(error.line, error.column, error.message)) from None


def _compile(graph: Graph, flow: str | None, max_steps: int | None) -> Program:
    flow = flow or text(graph.attrs, "flow") or "walk"
    if flow not in ("walk", "dag"):
        where = position(graph.attrs.get("flow", ""))
        raise Refused(graph.message_at(*where, f"flow={flow!r:.40} is neither walk nor dag"))
    starts, exits = graph.nodes_of(START), graph.nodes_of(EXIT)
    if len(starts) != 1 or not exits:
        raise Refused(graph.message_at(1, 1, "a graph needs one start node (shape=Mdiamond) and an exit (shape="
                                       f"Msquare); this one has {len(starts)} and {len(exits)}"))
    for node in graph.nodes.values():
        # Both separate the parts of a place's id, as in `fan#1/left/impl#1`.
        if set(node.id) & set("/#"):
            raise Refused(graph.message_at(node.line, node.column, f"node id {node.id!r:.60} has a / or #; rename it"))
    handlers = {node.id: node.handler for node in graph.nodes.values()}
    edges = tuple(_route(graph, index, edge, handlers) for index, edge in enumerate(graph.edges))
    units = _units(graph, edges, handlers, flow)
    if flow == "dag":
        _refuse_cycle(graph)
    return Program(
        graph=graph, flow=flow, start=starts[0].id, exits=tuple(node.id for node in exits), units=units, edges=edges,
        indegree=_indegree(graph, edges),
        attrs={"graph.goal": "", **{f"graph.{key}": str(value) for key, value in graph.attrs.items()}},
        goal_gates=tuple(unit.id for unit in units.values() if unit.goal_gate),
        retry_targets=graph.retry_targets(graph.attrs),
        max_steps=max_steps if max_steps is not None else int(number(graph.attrs, "max_steps", MAX_STEPS)),
        max_seconds=seconds(graph.attrs, "max_pipeline_duration"),
        initial=statuses_in(graph),
        digest=graph_digest(graph),
    )


def statuses_in(graph: Graph) -> dict[str, str]:
    """Return the status of each node that has one in the graph; raise TypeConflict for an unknown word."""
    statuses = {}
    for node in graph.nodes.values():
        word = text(node.attrs, "status")
        if word is None:
            continue
        status = normalize(word)
        if status is None:
            raise TypeConflict("status", node.attrs["status"], "a node status; write " + ", ".join(STATUS_WORDS))
        statuses[node.id] = status
    return statuses


def _units(graph: Graph, edges: tuple[Route, ...], handlers: Mapping[str, str], flow: str) -> dict[str, Unit]:
    outgoing: dict[str, list[Route]] = {name: [] for name in graph.nodes}
    for route in edges:
        outgoing[route.source].append(route)
    successors = {name: [route.target for route in routes] for name, routes in outgoing.items()}
    max_visits = _whole_number(graph.attrs, "max_node_visits", None)
    max_same = _whole_number(graph.attrs, "max_same_failures", MAX_SAME_FAILURES)
    units = {}
    for node in graph.nodes.values():
        try:
            unit = _unit(graph, node, outgoing[node.id], max_visits, max_same)
            # In a dag a parallel and its fan-in are passed through: every edge is followed anyway.
            if unit.handler == PARALLEL and flow == "walk":
                branches = [route.target for route in outgoing[node.id] if route.branch]
                join = find_join(node.id, branches, successors, handlers)
                unit = replace(unit, fan_out=_fan_out(node, join, len(branches)))
            units[node.id] = unit
        except TypeConflict:
            raise
        except GarrisonError as error:
            raise Refused(graph.message_at(node.line, node.column, f"node {node.id}: {error}")) from None
    return {name: replace(unit, words=_asked_words(name, units)) for name, unit in units.items()}


_WORD_KEYS = frozenset({"outcome", "context.outcome", "preferred_label", "context.preferred_label"})
"""Keys of conditions whose values are words that a node may report."""


def _asked_words(name: str, units: Mapping[str, Unit]) -> frozenset[str]:
    """Return the words that the edges of a node ask for; a conditional passes the node's own outcome on."""
    words, seen, pending = set[str](), set[str](), [name]
    while pending:
        unit = units[pending.pop()]
        if unit.id in seen:
            continue
        seen.add(unit.id)
        for route in unit.routes:
            words |= {clause.label for clause in (clauses_of(route.condition) if route.condition else ())
                      if clause.key in _WORD_KEYS and clause.op in ("=", "!=")}
            if route.condition is None:
                words.add(route.label)
            if route.into_conditional:
                pending.append(route.target)
    return frozenset(words - {""})


def _unit(graph: Graph, node: Node, routes: list[Route], max_visits: int | None, max_same: int | None) -> Unit:
    attrs = node.attrs
    # Never by the order in the text alone: moving a line in a file must not change where a run goes.
    ordered = sorted(routes, key=lambda route: (-route.weight, route.target, route.index))
    return Unit(
        id=node.id, handler=node.handler,
        conditional=tuple(route for route in ordered if route.condition is not None),
        plain=tuple(route for route in ordered if route.condition is None),
        retry=retry_policy_of(attrs, graph.attrs),
        retry_targets=graph.retry_targets(attrs),
        goal_gate=flag(attrs, "goal_gate"),
        on_error_continue=text(attrs, "on_error", "").strip().lower() == "continue",
        auto_status=flag(attrs, "auto_status"),
        allow_partial=flag(attrs, "allow_partial"),
        refuses_partial=not flag(attrs, "allow_partial", default=True),
        max_visits=_whole_number(attrs, "max_node_visits", _whole_number(attrs, "max_visits", max_visits)),
        max_same_failures=_whole_number(attrs, "max_same_failures", max_same) or 0,
        asks_outcome=node.handler == CONDITIONAL and any("outcome" in keys_of(route.condition) for route in ordered
                                                         if route.condition is not None),
    )


def _route(graph: Graph, index: int, edge: Edge, handlers: Mapping[str, str]) -> Route:
    try:
        condition = parse_condition(edge.attrs.get("condition", ""))
    except ConditionSyntax as error:
        raise Refused(graph.message_at(*position(edge.attrs["condition"]), f"edge {edge}: {error}")) from None
    return Route(index, edge.source, edge.target, normalize_label(edge.attrs.get("label", "")),
                 number(edge.attrs, "weight", 0), None if condition.is_always_true else condition,
                 flag(edge.attrs, "loop_restart"), handlers[edge.target] == CONDITIONAL,
                 condition.is_always_true or opens_branch(condition), edge.attrs)


def _fan_out(node: Node, join: Join | None, branches: int) -> FanOut:
    if join is None:
        raise Refused("its branches never meet again; lead them all to one node (shape=tripleoctagon)")
    attrs = node.attrs
    policy = text(attrs, "join_policy", "wait_all").strip().lower()
    on_failure = text(attrs, "error_policy", "continue").strip().lower()
    if policy not in JOIN_POLICIES:
        raise Refused(f"join_policy={policy!r:.40} is unknown; use {', '.join(JOIN_POLICIES)}")
    if on_failure not in ERROR_POLICIES:
        raise Refused(f"error_policy={on_failure!r:.40} is unknown; use {', '.join(ERROR_POLICIES)}")
    k = next((count for key in ("join_k", "k", "min_success")
              if (count := _whole_number(attrs, key, None)) is not None), None)
    if policy == "k_of_n" and (k is None or not 1 <= k <= branches):
        raise Refused(f"join_policy=k_of_n needs join_k=1 to {branches}, the branches that must succeed")
    quorum = number(attrs, "join_quorum", number(attrs, "quorum"))
    if quorum is not None and not 0 < quorum <= 1:
        raise Refused(f"quorum={quorum} is not a fraction of the branches; write 0.5 or 1")
    limit = _whole_number(attrs, "max_parallel", MAX_PARALLEL) or MAX_PARALLEL
    return FanOut(join.node, join.region, policy, on_failure, max(limit, 1), k, quorum,
                  _whole_number(attrs, "max_retries", 0) or 0)


def _indegree(graph: Graph, edges: tuple[Route, ...]) -> dict[str, int]:
    indegree = dict.fromkeys(graph.nodes, 0)
    for route in edges:
        indegree[route.target] += 1
    return indegree


def _refuse_cycle(graph: Graph) -> None:
    cycle = find_cycle(graph)
    if cycle:
        node = graph.nodes[cycle[0]]
        raise Refused(graph.message_at(node.line, node.column, f"flow=dag, but {' -> '.join(cycle[:6])} wait for each "
                                       "other; remove one of the edges, or set flow=walk"))


def _whole_number(attrs: Mapping[str, str], key: str, default: int | None) -> int | None:
    value = number(attrs, key)
    return default if value is None else int(value)


MAX_DEPTH = 16
"""Levels of nested parallels that are counted; a loop could open them endlessly."""

Successors = Mapping[str, Sequence[str]]


class Join(NamedTuple):
    """Node where branches end, and the nodes that they may visit before it (`region`)."""

    node: str
    region: frozenset[str]


class _Position(NamedTuple):
    """A node on a path from a branch's start, and the number of parallels open there."""

    node: str
    depth: int = 0


_Visit = Callable[[_Position], tuple[bool, Iterator[_Position]]]
"""Returns whether the branches may meet at a position, and the next positions."""


def opens_branch(condition: Condition | None) -> bool:
    """Return whether an edge with this condition (None: without one) opens a branch of its parallel."""
    return condition is None or not _asks_for_failure(condition.tree)


def _asks_for_failure(tree: Tree) -> bool:
    """Return whether a condition asks for a failure, or for anything but success, judged by its form."""
    match tree:
        case Clause(key="outcome" | "context.outcome", op=op, status=status):
            return (op, status) in (("=", FAIL), ("!=", SUCCESS))
        case And(parts=parts):
            return any(map(_asks_for_failure, parts))
        case Or(parts=parts):
            return all(map(_asks_for_failure, parts))
        case _:
            return False


def find_join(parallel: str, branches: Iterable[str], successors: Successors, handlers: Mapping[str, str],
              ) -> Join | None:
    """Return the join of `parallel`, whose `branches` start at these nodes; None if they never meet."""
    starts = list(dict.fromkeys(target for target in branches if target != parallel))
    if not starts:
        return None

    def visit_fan_in(at: _Position) -> tuple[bool, Iterator[_Position]]:
        kind = handlers[at.node]
        if kind == "parallel.fan_in" and at.depth == 0:
            return True, iter(())
        # Parallels and fan-ins match like brackets; one node may be reached at two depths, so these are two positions.
        depth = at.depth + (kind == "parallel") - (kind == "parallel.fan_in")
        return False, (_Position(node, depth) for node in successors[at.node]
                       if node != parallel and depth <= MAX_DEPTH)

    def visit_any(at: _Position) -> tuple[bool, Iterator[_Position]]:
        return True, (_Position(node) for node in successors[at.node] if node != parallel)

    # A fan-in is the author's explicit join, even if the branches share a node before it.
    node = _meeting_point(starts, visit_fan_in) or _meeting_point(starts, visit_any)
    if node is None:
        return None
    return Join(node, frozenset(reachable({*starts} - {node}, successors, without=(node, parallel))))


def _meeting_point(starts: Sequence[str], visit: _Visit) -> str | None:
    """Search breadth-first for the first node that all branches reach; of several, return the first by name."""
    seen: list[set[_Position]] = [{_Position(start)} for start in starts]
    frontiers: list[list[_Position]] = [[_Position(start)] for start in starts]
    reached: dict[str, set[int]] = {}
    while any(frontiers):
        common = []
        for branch, frontier in enumerate(frontiers):
            following: list[_Position] = []
            for at in frontier:
                may_meet, next_positions = visit(at)
                if may_meet:
                    reached.setdefault(at.node, set()).add(branch)
                    if len(reached[at.node]) == len(starts):
                        common.append(at.node)
                unseen = [position for position in dict.fromkeys(next_positions) if position not in seen[branch]]
                seen[branch].update(unseen)
                following += unseen
            frontiers[branch] = following
        if common:
            return min(common)
    return None
