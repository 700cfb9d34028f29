"""Lint rules on the structure of a graph: start, exits, node ids, reachability, cycles, and where branches join.

Every rule is linear in nodes and edges and not recursive, so that a chain of 20,000 nodes is no special case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from garrison.errors import UsageError
from garrison.pipeline.condition import Condition
from garrison.pipeline.flow.program import MAX_DEPTH, find_join, opens_branch
from garrison.pipeline.graph import RETRY_TARGETS, Edge, Graph, Node, find_cycle, flag, reachable, read_or, text
from garrison.pipeline.lint.findings import Problem, View, condition_of, near
from garrison.records.names import check_node, quote

MAX_SHOWN = 8
"""Nodes of a cycle that a message names."""


def start_node(view: View) -> Iterator[Problem]:
    """Require exactly one start."""
    first, *more = view.graph.nodes_of("start") or (None,)
    if first is None:
        yield Problem("the graph has no start node", "give one node shape=Mdiamond")
    for node in more:
        yield Problem(f"{node.id} is a second start node", f"keep {first.id if first else ''} as the only one", node)


def terminal_node(view: View) -> Iterator[Problem]:
    """Require at least one exit."""
    if not view.graph.nodes_of("exit"):
        yield Problem("the graph has no exit node", "give one node shape=Msquare")


def single_exit(view: View) -> Iterator[Problem]:
    """Report a second exit: the public specification has one."""
    for node in view.graph.nodes_of("exit")[1:]:
        yield Problem(f"{node.id} is another exit node, which not every engine accepts",
                      "lead its edges to the first one, unless the graph is only for garrison", node)


def start_no_incoming(view: View) -> Iterator[Problem]:
    """Forbid edges into the start."""
    for edge in view.graph.edges:
        if view.handler[edge.target] == "start":
            yield Problem(f"{edge} leads into the start node", "lead it to the node to go back to", edge)


def exit_no_outgoing(view: View) -> Iterator[Problem]:
    """Forbid edges out of an exit."""
    for edge in view.graph.edges:
        if view.handler[edge.source] == "exit":
            yield Problem(f"{edge} leaves an exit node", "remove it, or give the node another shape", edge)


def node_id(view: View) -> Iterator[Problem]:
    """Require ids that can name branches, files and sessions."""
    first_by_folded_id: dict[str, str] = {}
    for node in view.graph.nodes.values():
        try:
            check_node(node.id)
        except UsageError:
            yield Problem(f"{quote(node.id)} cannot name a task", "use 1 to 48 of A-Z a-z 0-9 _ -, first a letter or _",
                          node)
        other = first_by_folded_id.setdefault(node.id.lower(), node.id)
        if other != node.id:
            yield Problem(f"{node.id} and {other} differ only in case", "rename one of them", node)


def edge_target_exists(view: View) -> Iterator[Problem]:
    """Forbid edges to or from undeclared nodes at which the graph ends or starts: misspelt names.

    An undeclared node with edges in and out is allowed, as in the specification's own example; see `undeclared_node`.
    """
    first_edge: dict[str, Edge] = {}
    for edge in view.graph.edges:
        first_edge.setdefault(edge.target, edge)
        first_edge.setdefault(edge.source, edge)
    for name, meant in view.missing.items():
        if name in first_edge:
            edge = first_edge[name]
            way = "leads to" if edge.target == name else "comes from"
            yield Problem(f"{edge} {way} {name}, which is not a node of this graph{_hint(meant)}",
                          f"declare it ({name} [label=...]) or correct the name", edge)


def undeclared_node(view: View) -> Iterator[Problem]:
    """Report a node that only edges mention: its name may be misspelled."""
    for node in view.graph.nodes.values():
        if not node.declared and node.id not in view.missing:
            yield Problem(f"{node.id} appears only in edges{_hint(near(node.id, view.declared))}",
                          f"declare it ({node.id} [label=...]) or correct the name", node)


def reachability(view: View) -> Iterator[Problem]:
    """Require a path from the start to each node, along edges or retry targets.

    Only the first node of an unreached part is named, and a misspelt name (`edge_target_exists`) counts as the similar
    one: a mistake must not cause further findings.
    """
    starts = [node.id for node in view.graph.nodes_of("start")]
    if not starts:
        return
    targets = {node: [*after, *view.jumps[node]] for node, after in view.graph.successors().items()}
    for name, meant in view.missing.items():
        if meant:
            targets[name], targets[meant] = [*targets[name], meant], [*targets[meant], *targets[name]]
    starts += view.graph.retry_targets(view.graph.attrs)
    reached = reachable(starts, targets) | view.missing.keys()
    entered = {target for source, others in targets.items() if source not in reached for target in others
               if target != source}
    lost = [node for node in view.graph.nodes.values() if node.id not in reached]
    for node in sorted(lost, key=lambda node: node.id in entered):  # first those to which no other lost node leads
        if node.id not in reached:
            behind = reachable([node.id], targets) - reached
            others = f" (and so to {len(behind) - 1} more)" if len(behind) > 1 else ""
            yield Problem(f"no path leads from start to {node.id}{others}", "add an edge to it, or remove it", node)
            reached |= behind


def retry_target_exists(view: View) -> Iterator[Problem]:
    """Require retry targets to be nodes of this graph."""
    names = tuple(view.graph.nodes)
    for owner, attrs in [(None, view.graph.attrs), *((node, node.attrs) for node in view.graph.nodes.values())]:
        for key in RETRY_TARGETS:
            target = text(attrs, key)
            if target is not None and target not in view.graph.nodes:
                value = attrs[key]
                yield Problem(f"{f'{owner.id}: ' if owner else ''}{key}={target:.60} is not a node of this graph",
                              f"use one of its nodes{_hint(near(target, names))}", owner,
                              getattr(value, "line", 0), getattr(value, "column", 0))


def goal_gate_has_retry(view: View) -> Iterator[Problem]:
    """Report a goal gate without a retry target and without a conditional edge back."""
    if any(text(view.graph.attrs, key) for key in RETRY_TARGETS):
        return
    gates = [node for node in view.graph.nodes.values()
             if read_or(False, flag, node.attrs, "goal_gate")
             and not any(text(node.attrs, key) for key in RETRY_TARGETS)]
    cycle_of = {node: number for number, cycle in enumerate(cycles(view.graph) if gates else ()) for node in cycle}
    for node in gates:
        has_way_back = any(condition_of(edge) and node.id in cycle_of and cycle_of[node.id] == cycle_of.get(edge.target)
                           for edge in view.outgoing[node.id])
        if not has_way_back:
            yield Problem(f"{node.id} is a goal gate without a retry target, so the run fails if it is not met",
                          "write retry_target=NODE", node)


def parallel_without_join(view: View) -> Iterator[Problem]:
    """Require the branches of a parallel to meet again, and enough of them for its policy."""
    if view.flow == "dag":
        return
    targets = view.graph.successors()
    for node in view.graph.nodes_of("parallel"):
        branches = _branches(view, node)
        if targets[node.id] and find_join(node.id, branches, targets, view.handler) is None:
            yield Problem(f"the branches of {node.id} never meet again", "lead them all to one node "
                          "(shape=tripleoctagon)", node)
            continue
        k = next((word for key in ("join_k", "k", "min_success") if (word := text(node.attrs, key, "").strip())), "")
        is_possible = k.isdigit() and 1 <= int(k) <= len(branches)
        if text(node.attrs, "join_policy", "").strip().lower() == "k_of_n" and not is_possible:
            yield Problem(f"{node.id} has join_policy=k_of_n, but does not set how many of its {len(branches)} "
                          "branches must succeed", f"write join_k=1 to {len(branches)}", node)


def branch_misses_join(view: View) -> Iterator[Problem]:
    """Forbid a parallel with a join that only some of its branches reach."""
    if view.flow == "dag":
        return
    targets = view.graph.successors()
    for node in view.graph.nodes_of("parallel"):
        branches = [branch for branch in dict.fromkeys(_branches(view, node)) if branch != node.id]
        join = find_join(node.id, branches, targets, view.handler)
        if join is None or view.handler[join.node] == "parallel.fan_in" or len(branches) < 2:
            continue
        for name in _joins_within(branches, targets, view.handler):
            before = reachable([name], view.graph.predecessors())
            missed = next((branch for branch in branches if branch not in before), None)
            if missed is not None:
                yield Problem(f"{missed} is a branch of {node.id} that never reaches the join {name}, unlike others",
                              f"lead it there ({missed} -> {name})", view.graph.nodes[missed])
                break


def _joins_within(branches: Iterable[str], targets: Mapping[str, Sequence[str]], handler: Mapping[str, str],
                  ) -> list[str]:
    """Return the joins that branches reach, without those of nested parallels; a few, in that order."""
    pending = deque((branch, 0) for branch in branches)
    seen, found = set(pending), list[str]()
    while pending and len(found) < MAX_SHOWN:
        name, depth = pending.popleft()
        if handler[name] == "parallel.fan_in" and not depth:
            found.append(name)
            continue
        depth += (handler[name] == "parallel") - (handler[name] == "parallel.fan_in")
        following = {(target, depth) for target in targets[name] if depth <= MAX_DEPTH} - seen
        seen |= following
        pending.extend(sorted(following))
    return found


def _branches(view: View, node: Node) -> list[str]:
    """Return the first nodes of a parallel's branches; an edge with an invalid condition counts."""
    edges = [(edge.target, view.conditions.get(condition_of(edge))) for edge in view.outgoing[node.id]]
    return [target for target, condition in edges if not isinstance(condition, Condition) or opens_branch(condition)]


def dag_cycle(view: View) -> Iterator[Problem]:
    """Forbid cycles with flow=dag."""
    cycle = find_cycle(view.graph) if view.flow == "dag" else []
    if cycle:
        yield Problem(f"flow=dag, but these wait for each other: {_format_cycle(cycle)}", "remove one of the edges",
                      view.graph.nodes[cycle[0]])


def dead_end(view: View) -> Iterator[Problem]:
    """Report a node without outgoing edges, where a walk fails; with flow=dag a last task is fine."""
    if view.flow == "dag":
        return
    for node in view.graph.nodes.values():
        if not view.outgoing[node.id] and view.handler[node.id] != "exit" and node.id not in view.missing:
            yield Problem(f"no edge leaves {node.id}, so a run that gets there fails",
                          "lead it to an exit node, or give it shape=Msquare", node)


def loop_without_exit(view: View) -> Iterator[Problem]:
    """Report a cycle that no edge leaves: it ends only when a budget is used up."""
    if view.flow == "dag":
        return
    for cycle in cycles(view.graph):
        members = set(cycle)
        if all(edge.target in members for node in cycle for edge in view.outgoing[node]):
            yield Problem(f"no edge leaves the loop {_format_cycle([*cycle, cycle[0]])}, so it runs until a budget is "
                          "used up", "add an edge out of it, with a condition that ends it",
                          view.graph.nodes[cycle[0]])


# ---- paths -----------------------------------------------------------------------------------------------------------


def cycles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components that contain a cycle, the nodes of each in file order."""
    targets = graph.successors()
    order = {node: at for at, node in enumerate(graph.nodes)}
    return [sorted(component, key=order.__getitem__) for component in _components(targets)
            if len(component) > 1 or component[0] in targets[component[0]]]


def _components(targets: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components (Tarjan's algorithm, without recursion)."""
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
                # Not `in number`: no edge to a finished component closes a cycle.
                if target in on_stack:
                    low[node] = min(low[node], number[target])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == number[node]:
                    component = _pop_through(node, stack)
                    on_stack.difference_update(component)
                    yield component


def _pop_through(node: str, stack: list[str]) -> list[str]:
    """Pop everything above `node` and `node` itself."""
    popped = [stack.pop()]
    while popped[-1] != node:
        popped.append(stack.pop())
    return popped


def _format_cycle(cycle: Sequence[str]) -> str:
    return " -> ".join(cycle if len(cycle) <= MAX_SHOWN else [*cycle[:MAX_SHOWN - 2], "...", cycle[-1]])


def _hint(near: str) -> str:
    return f" (did you mean {near}?)" if near else ""
