"""Lint rules on the structure of a graph: start, exits, node ids, reachability, cycles, and where branches join.

Every rule is linear in nodes and edges and free of recursion, so that a chain of 20,000 nodes is no special case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache

from garrison.errors import UsageError
from garrison.pipeline.condition import Condition
from garrison.pipeline.flow.joins import find_join, opens_branch
from garrison.pipeline.graph import Graph, Node, TypeConflict, find_cycle, flag, text
from garrison.pipeline.lint.findings import RETRY_TARGETS, Found, View, condition_of
from garrison.records.names import check_node

MAX_SHOWN = 8
"""Nodes of a cycle that a message names."""
MAX_SIMILAR = 500
"""Nodes up to which a graph is searched for a similar name."""


def start_node(view: View) -> Iterator[Found]:
    """Exactly one start."""
    first, *more = view.graph.nodes_of("start") or (None,)
    if first is None:
        yield Found("the graph has no start node", "give one node shape=Mdiamond")
    for node in more:
        yield Found(f"{node.id} is a second start node", f"keep {first.id if first else ''} as the only one", node)


def terminal_node(view: View) -> Iterator[Found]:
    """At least one exit."""
    if not view.graph.nodes_of("exit"):
        yield Found("the graph has no exit node", "give one node shape=Msquare")


def start_no_incoming(view: View) -> Iterator[Found]:
    """Nothing leads back into the start."""
    for edge in view.graph.edges:
        if view.handler[edge.target] == "start":
            yield Found(f"{edge} leads into the start node", "lead it to the node to go back to", edge)


def exit_no_outgoing(view: View) -> Iterator[Found]:
    """Nothing leads on from an exit."""
    for edge in view.graph.edges:
        if view.handler[edge.source] == "exit":
            yield Found(f"{edge} leaves an exit node", "remove it, or give the node another shape", edge)


def node_id(view: View) -> Iterator[Found]:
    """A node's name also names branches, files and sessions."""
    taken: dict[str, str] = {}
    for node in view.graph.nodes.values():
        try:
            check_node(node.id)
        except UsageError:
            yield Found(f"{node.id!r:.60} cannot name a task", "use 1 to 48 of A-Z a-z 0-9 _ -, first a letter or _",
                        node)
        other = taken.setdefault(node.id.lower(), node.id)
        if other != node.id:
            yield Found(f"{node.id} and {other} differ only in case", "rename one of them", node)


def undeclared_node(view: View) -> Iterator[Found]:
    """A node that only edges name may be a slip of the pen."""
    for node in view.graph.nodes.values():
        if not node.declared:
            yield Found(f"{node.id} stands only in edges", f"declare it ({node.id} [label=...]) or correct the name",
                        node)


def reachability(view: View) -> Iterator[Found]:
    """A way leads from the start to each node, along edges or by a retry target."""
    starts = [node.id for node in view.graph.nodes_of("start")]
    if not starts:
        return
    reached = reach([*starts, *_rescues(view.graph)], _ways(view))
    for node in view.graph.nodes.values():
        if node.id not in reached:
            yield Found(f"no path leads from start to {node.id}", "add an edge to it, or remove it", node)


def retry_target_exists(view: View) -> Iterator[Found]:
    """Where a failure is sent to is a node of this graph."""
    names = tuple(view.graph.nodes)
    for owner, attrs in [(None, view.graph.attrs), *((node, node.attrs) for node in view.graph.nodes.values())]:
        for key in RETRY_TARGETS:
            target = text(attrs, key)
            if target is not None and target not in view.graph.nodes:
                value = attrs[key]
                yield Found(f"{f'{owner.id}: ' if owner else ''}{key}={target:.60} names no node of this graph",
                            f"use one of its nodes{_nearest(target, names)}", owner,
                            getattr(value, "line", 0), getattr(value, "column", 0))


def goal_gate_has_retry(view: View) -> Iterator[Found]:
    """A goal gate that is not met has a node to go back to, or a condition on an edge that leads back."""
    if any(text(view.graph.attrs, key) for key in RETRY_TARGETS):
        return
    gates = [node for node in view.graph.nodes.values()
             if _is_gate(node) and not any(text(node.attrs, key) for key in RETRY_TARGETS)]
    circle = {node: at for at, members in enumerate(circles(view.graph) if gates else ()) for node in members}
    for node in gates:
        back = [edge for edge in view.outgoing[node.id]
                if condition_of(edge) and node.id in circle and circle[node.id] == circle.get(edge.target)]
        if not back:
            yield Found(f"{node.id} is a goal gate without a way back, so the run fails when it is not met",
                        "write retry_target=NODE", node)


def _is_gate(node: Node) -> bool:
    try:
        return flag(node.attrs, "goal_gate")
    except TypeConflict:
        return False


def parallel_without_join(view: View) -> Iterator[Found]:
    """The branches of a parallel meet again, and there are as many as must succeed."""
    if view.flow == "dag":
        return
    targets = view.graph.successors()
    for node in view.graph.nodes_of("parallel"):
        branches = _branches(view, node)
        if targets[node.id] and find_join(node.id, branches, targets, view.handler) is None:
            yield Found(f"the branches of {node.id} never meet again", "lead them all to one node "
                        "(shape=tripleoctagon)", node)
            continue
        wanted = next((text(node.attrs, key) for key in ("join_k", "k", "min_success") if text(node.attrs, key)), None)
        if text(node.attrs, "join_policy", "").strip().lower() == "k_of_n" and not _within(wanted, branches):
            yield Found(f"{node.id} has join_policy=k_of_n, but not how many of its {len(branches)} branches "
                        "must succeed", f"write join_k=1 to {len(branches)}", node)


def _branches(view: View, node: Node) -> list[str]:
    """Where the branches of a parallel begin; an edge whose condition cannot be read counts."""
    found = [(edge.target, view.conditions.get(condition_of(edge))) for edge in view.outgoing[node.id]]
    return [target for target, condition in found if not isinstance(condition, Condition) or opens_branch(condition)]


def _within(wanted: str | None, branches: Sequence[str]) -> bool:
    return wanted is not None and wanted.strip().isdigit() and 1 <= int(wanted) <= len(branches)


def dag_cycle(view: View) -> Iterator[Found]:
    """With flow=dag nothing may wait for itself."""
    cycle = find_cycle(view.graph) if view.flow == "dag" else []
    if cycle:
        yield Found(f"flow=dag, but these wait for each other: {_shown(cycle)}", "remove one of the edges",
                    view.graph.nodes[cycle[0]])


def dead_end(view: View) -> Iterator[Found]:
    """A walk that comes to a node without a way on fails there; with flow=dag a last task is no fault."""
    if view.flow == "dag":
        return
    for node in view.graph.nodes.values():
        if not view.outgoing[node.id] and view.handler[node.id] != "exit":
            yield Found(f"nothing leads on from {node.id}, so a run that comes here fails",
                        "lead it to an exit node, or give it shape=Msquare", node)


def loop_without_exit(view: View) -> Iterator[Found]:
    """A circle that no edge leaves ends only when a budget is spent."""
    if view.flow == "dag":
        return
    for circle in circles(view.graph):
        members = set(circle)
        if all(edge.target in members for one in circle for edge in view.outgoing[one]):
            yield Found(f"no edge leaves the loop {_shown([*circle, circle[0]])}, so it runs until a budget is spent",
                        "add an edge out of it, with a condition that ends it", view.graph.nodes[circle[0]])


# ---- ways through a graph --------------------------------------------------------------------------------------------


def reach(starts: Iterable[str], ways: Mapping[str, Sequence[str]]) -> set[str]:
    """All that a way leads to from `starts`, themselves too."""
    reached = set(starts)
    waiting = list(reached)
    while waiting:
        for target in ways[waiting.pop()]:
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached


def circles(graph: Graph) -> list[list[str]]:
    """The strongly connected components that hold a cycle (Tarjan's algorithm); the nodes of each in file order."""
    targets = graph.successors()
    order = {node: at for at, node in enumerate(graph.nodes)}
    return [sorted(component, key=order.__getitem__) for component in _components(targets)
            if len(component) > 1 or component[0] in targets[component[0]]]


def _components(targets: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in targets:
        if root in number:
            continue
        path = [(root, iter(targets[root]))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while path:
            node, rest = path[-1]
            for target in rest:
                if target not in number:
                    number[target] = low[target] = len(number)
                    stack.append(target)
                    on_stack.add(target)
                    path.append((target, iter(targets[target])))
                    break
                if target in on_stack:
                    low[node] = min(low[node], number[target])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == number[node]:
                    component = _down_to(node, stack)
                    on_stack.difference_update(component)
                    yield component


def _down_to(node: str, stack: list[str]) -> list[str]:
    """Takes off the stack what lies above `node`, and `node` itself."""
    taken = [stack.pop()]
    while taken[-1] != node:
        taken.append(stack.pop())
    return taken


def _ways(view: View) -> dict[str, list[str]]:
    return {node: [*targets, *view.jumps[node]] for node, targets in view.graph.successors().items()}


def _rescues(graph: Graph) -> list[str]:
    """The nodes that the graph itself sends failures to."""
    return [target for key in RETRY_TARGETS if (target := text(graph.attrs, key)) and target in graph.nodes]


def _shown(cycle: Sequence[str]) -> str:
    return " -> ".join(cycle if len(cycle) <= MAX_SHOWN else [*cycle[:MAX_SHOWN - 2], "...", cycle[-1]])


@lru_cache(maxsize=64)
def _nearest(word: str, words: tuple[str, ...]) -> str:
    """Looked for only where that takes no time."""
    near = get_close_matches(word, words, 1, 0.6) if len(words) <= MAX_SIMILAR else []
    return f" (did you mean {near[0]}?)" if near else ""
