"""Who directs whom: edges by adjacency, and the block that tells a subordinate of its controllers. Pure.

The rule of this room: nothing here knows of sessions. Each question costs the degree of the nodes it is about, never
the number of edges; each answer is sorted, so that the same graph gives the same prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from garrison.agents.graph.model import AgentGraphError, Edge, NodeNotFoundError

HEADING = "## Control Hierarchy"


def control_block(node_id: str, controllers: Iterable[tuple[str, str]]) -> str:
    """The delimited block for a prompt: (id, control type) of each controller, in the order given; '' without any."""
    lines = [f"  - Agent '{who}' ({what})" for who, what in controllers]
    if not lines:
        return ""
    return "\n".join([HEADING, f"You are agent '{node_id}'. You report to the following controllers:", *lines, "",
                      "Follow directives from your controllers while maintaining your specialized role.",
                      "(end of the control hierarchy)"])


def effective_prompt(original: str, node_id: str, controllers: Sequence[tuple[str, str]]) -> str:
    """What a session is begun with: the original prompt, and the block where somebody directs the node."""
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
        """Every edge once, in the order they came."""
        return [edge for targets in self._out.values() for edge in targets.values()]

    def need(self, *ids: str) -> None:
        """NodeNotFoundError for the first of `ids` that is not there."""
        for node_id in ids:
            if node_id not in self._out:
                raise NodeNotFoundError(node_id, self.name)

    def add_node(self, node_id: str) -> None:
        """A node without edges; AgentGraphError if it is there already."""
        if node_id in self._out:
            raise AgentGraphError(f"node {node_id!r} is already in graph {self.name!r}; remove it first")
        self._out[node_id], self._in[node_id] = {}, {}

    def remove_node(self, node_id: str) -> list[str]:
        """Take a node out with its edges; the ids of those it directed."""
        self.need(node_id)
        orphaned = self.subordinates(node_id)
        for target in self._out.pop(node_id):
            self._in[target].pop(node_id, None)
        for source in self._in.pop(node_id):
            self._out[source].pop(node_id, None)
        return orphaned

    def add_edge(self, edge: Edge) -> None:
        """Connect two nodes; AgentGraphError for an edge to itself, or where the two have one in that direction."""
        self.need(edge.source, edge.target)
        if edge.source == edge.target:
            raise AgentGraphError(f"{edge.source!r} cannot direct itself")
        if edge.target in self._out[edge.source] or (not edge.directed and edge.source in self._out[edge.target]):
            raise AgentGraphError(f"{edge.source!r} and {edge.target!r} are already connected so; "
                                  "remove that edge first")
        self._out[edge.source][edge.target] = edge
        self._in[edge.target][edge.source] = edge

    def edge(self, source: str, target: str) -> Edge:
        """The edge from `source` to `target`, an undirected one from either side; AgentGraphError without any."""
        self.need(source, target)
        found = self._out[source].get(target)
        back = self._out[target].get(source)
        if found is None and back is not None and not back.directed:
            found = back
        if found is None:
            raise AgentGraphError(f"no edge from {source!r} to {target!r} in graph {self.name!r}")
        return found

    def remove_edge(self, source: str, target: str) -> Edge:
        """Disconnect two nodes; the edge that was there."""
        edge = self.edge(source, target)
        del self._out[edge.source][edge.target], self._in[edge.target][edge.source]
        return edge

    def controllers(self, node_id: str) -> list[str]:
        """Who directs the node, sorted."""
        return [who for who, _ in self.controllers_with_types(node_id)]

    def controllers_with_types(self, node_id: str) -> list[tuple[str, str]]:
        """(id, control type) of each controller, sorted."""
        self.need(node_id)
        return sorted((source, edge.control_type) for source, edge in self._in[node_id].items() if edge.directed)

    def subordinates(self, node_id: str) -> list[str]:
        """Whom the node directs, sorted."""
        self.need(node_id)
        return sorted(target for target, edge in self._out[node_id].items() if edge.directed)

    def is_controller(self, controller: str, subordinate: str) -> bool:
        """Whether the one directs the other, without anybody between."""
        self.need(controller, subordinate)
        edge = self._out[controller].get(subordinate)
        return edge is not None and edge.directed

    def relationships(self) -> dict[str, list[str]]:
        """Controller → its subordinates, both sorted; nodes that direct nobody are left out."""
        return {node_id: below for node_id in sorted(self._out) if (below := self.subordinates(node_id))}
