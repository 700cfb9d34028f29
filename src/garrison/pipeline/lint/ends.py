"""Rules on where a graph begins and ends, and on the names of its nodes."""

from __future__ import annotations

from collections.abc import Iterator

from garrison.errors import UsageError
from garrison.pipeline.lint.finding import ERROR, WARNING, Found, Rules, View
from garrison.records.names import check_node


def start_node(view: View) -> Iterator[Found]:
    """Exactly one start."""
    first, *more = view.graph.of("start") or (None,)
    if first is None:
        yield Found("the graph has no start node", "give one node shape=Mdiamond")
    for node in more:
        yield Found(f"{node.id} is a second start node", f"keep {first.id if first else ''} as the only one", node)


def terminal_node(view: View) -> Iterator[Found]:
    """At least one exit."""
    if not view.graph.of("exit"):
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


RULES: Rules = {
    "start_node": (ERROR, start_node),
    "terminal_node": (ERROR, terminal_node),
    "start_no_incoming": (ERROR, start_no_incoming),
    "exit_no_outgoing": (ERROR, exit_no_outgoing),
    "node_id": (ERROR, node_id),
    "undeclared_node": (WARNING, undeclared_node),
}
