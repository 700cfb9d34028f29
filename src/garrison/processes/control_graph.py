"""Control graph: the processes of a run as an agent graph, with edges from controllers to subordinates. Pure.

Both the prompts of the agents and `garrison agents graph` use this table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.records.names import Key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from garrison.agents.graph.control import ControlGraph
    from garrison.records.identity import Identity

CONTROL_KINDS: Mapping[tuple[str, str], str] = {
    ("launch", "guardian"): "keeps it alive",
    ("guardian", "runner"): "coordinates the run",
    ("guardian", "processor"): "coordinates the run",
    ("guardian", "orchestrator"): "coordinates the run",
    ("runner", "orchestrator"): "supervises this node",
}
"""(role of the controller, role of the subordinate) → kind of control."""


def control_graph(identities: Iterable[Identity]) -> ControlGraph:
    """Return the graph of these identities: edges from parent to child, and from a guardian to its orchestrators.

    A parent without an identity of its own is left out.
    """
    from garrison.agents.graph.control import ControlGraph  # an orchestrator reads only the table
    from garrison.agents.graph.model import Edge

    graph = ControlGraph("layers")
    by_key = {identity.key: identity for identity in identities}
    for key in by_key:
        graph.add_node(key.full)
    for key, identity in by_key.items():
        for controller in _controllers(by_key, identity):
            kind = CONTROL_KINDS.get((controller.role, key.role))
            if kind is not None and not graph.is_controller(controller.full, key.full):
                graph.add_edge(Edge(controller.full, key.full, control_type=kind))
    return graph


def _controllers(by_key: Mapping[Key, Identity], identity: Identity) -> list[Key]:
    parent = identity.parent
    if parent is None:
        return []
    key = Key(parent["role"], parent["name"], identity.key.run)
    if key not in by_key or key == identity.key:
        return []
    is_agent_of_runner = identity.key.role == "orchestrator" and key.role == "runner"
    return [key, *(_controllers(by_key, by_key[key]) if is_agent_of_runner else [])]
