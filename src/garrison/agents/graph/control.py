"""Control hierarchy of an agent graph: adjacency lists of its edges, and the effective prompt of a directed agent.

The cost of a query grows with the degree of its nodes, not with the number of edges. Results are sorted, so that the
same graph gives the same prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from garrison.agents.graph.model import AgentGraphError, Edge, NodeNotFoundError

CONTROL_HEADING = "## Control Hierarchy"


def effective_prompt(original: str, node_id: str, controllers: Sequence[tuple[str, str]]) -> str:
    """Return the prompt with which a session starts: the original plus the block that names the node's controllers."""
    block = control_block(node_id, controllers)
    return f"{original}\n\n{block}" if block else original


class ControlGraph:
    """Nodes by id and the edges between them."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self._out: dict[str, dict[str, Edge]] = {}
        self._in: dict[str, dict[str, Edge]] = {}

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._out

    def __len__(self) -> int:
        return len(self._out)

    @property
    def edges(self) -> list[Edge]:
        return [edge for targets in self._out.values() for edge in targets.values()]

    def require(self, *ids: str) -> None:
        """Raise NodeNotFoundError for the first of `ids` that is not in the graph."""
        for node_id in ids:
            if node_id not in self._out:
                raise NodeNotFoundError(node_id, self.name)

    def add_node(self, node_id: str) -> None:
        """Add a node without edges; AgentGraphError if it exists."""
        if node_id in self._out:
            raise AgentGraphError(f"node {node_id!r} is already in graph {self.name!r}; remove it first")
        self._out[node_id], self._in[node_id] = {}, {}

    def remove_node(self, node_id: str) -> list[str]:
        """Remove a node with its edges; return the ids of its former subordinates."""
        self.require(node_id)
        orphaned = self.subordinates(node_id)
        for target in self._out.pop(node_id):
            self._in[target].pop(node_id, None)
        for source in self._in.pop(node_id):
            self._out[source].pop(node_id, None)
        return orphaned

    def add_edge(self, edge: Edge) -> None:
        """Connect two nodes; AgentGraphError for an edge from a node to itself or one that already exists."""
        self.require(edge.source, edge.target)
        if edge.source == edge.target:
            raise AgentGraphError(f"{edge.source!r} cannot direct itself")
        if edge.target in self._out[edge.source] or (not edge.directed and edge.source in self._out[edge.target]):
            raise AgentGraphError(f"{edge.source!r} and {edge.target!r} are already connected in that direction; "
                                  "remove that edge first")
        self._out[edge.source][edge.target] = edge
        self._in[edge.target][edge.source] = edge

    def has_edge(self, source: str, target: str) -> bool:
        return target in self._out.get(source, {})

    def edge(self, source: str, target: str) -> Edge:
        """Return the edge from `source` to `target`, or an undirected one in either order; AgentGraphError for none."""
        self.require(source, target)
        edge = self._out[source].get(target)
        reverse = self._out[target].get(source)
        if edge is None and reverse is not None and not reverse.directed:
            edge = reverse
        if edge is None:
            raise AgentGraphError(f"no edge from {source!r} to {target!r} in graph {self.name!r}")
        return edge

    def remove_edge(self, source: str, target: str) -> Edge:
        """Disconnect two nodes; return the edge that was removed."""
        edge = self.edge(source, target)
        del self._out[edge.source][edge.target], self._in[edge.target][edge.source]
        return edge

    def controllers(self, node_id: str) -> list[str]:
        return [controller for controller, _ in self.controllers_with_types(node_id)]

    def controllers_with_types(self, node_id: str) -> list[tuple[str, str]]:
        """Return (id, control type) of each controller, sorted."""
        self.require(node_id)
        return sorted((source, edge.control_type) for source, edge in self._in[node_id].items() if edge.directed)

    def subordinates(self, node_id: str) -> list[str]:
        self.require(node_id)
        return sorted(target for target, edge in self._out[node_id].items() if edge.directed)

    def is_controller(self, controller: str, subordinate: str) -> bool:
        self.require(controller, subordinate)
        edge = self._out[controller].get(subordinate)
        return edge is not None and edge.directed

    def relationships(self) -> dict[str, list[str]]:
        """Return controller → its subordinates, both sorted; nodes without subordinates are omitted."""
        return {node_id: directed for node_id in sorted(self._out) if (directed := self.subordinates(node_id))}


def control_block(agent: str, controllers: Iterable[tuple[str, str]]) -> str:
    """Return the block that names an agent's controllers, each (id, control type), in the given order; '' for none."""
    lines = [f"  - Agent '{controller}' ({control_type})" for controller, control_type in controllers]
    if not lines:
        return ""
    return "\n".join([CONTROL_HEADING, f"You are agent '{agent}'. You report to the following controllers:", *lines, "",
                      "Follow directives from your controllers while maintaining your specialized role.",
                      "(end of the control hierarchy)"])
