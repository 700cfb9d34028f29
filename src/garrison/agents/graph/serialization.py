"""Agent graphs as files and as networkx graphs. Sessions are never kept: in a graph that was read, nobody runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from garrison.agents.graph.graph import AgentGraph
from garrison.agents.graph.model import SUPERVISOR, AgentStatus, Edge, Message, Node, check_name
from garrison.errors import NewerSchema, NotFound, RecordCorrupt, Refused, UsageError
from garrison.records import atomic

SCHEMA = 1


def to_data(graph: AgentGraph) -> dict[str, Any]:
    """The graph as JSON's shapes."""
    return {"schema": SCHEMA, "name": graph.name,
            "nodes": [{**asdict(node), "status": node.status.value} for node in graph.nodes.values()],
            "edges": [asdict(edge) for edge in graph.control.edges],
            "messages": [asdict(message) for message in graph.messages]}


def from_data(data: dict[str, Any], **options: Any) -> AgentGraph:
    """The inverse of `to_data`: who was active is stopped, and every prompt is computed anew."""
    graph = AgentGraph(data["name"], **options)
    for body in data["nodes"]:
        node = Node(**{**body, "status": AgentStatus(body["status"]), "prompt_dirty": True})
        if node.status is AgentStatus.ACTIVE:
            node.move(AgentStatus.STOPPED)
        graph.control.add_node(check_name("node's id", node.id))
        graph.nodes[node.id] = node
    for body in data["edges"]:
        check_name("control type", body["control_type"])
        graph.control.add_edge(Edge(**body))
    graph.messages = [Message(**body) for body in data["messages"]]
    return graph


def save_graph(graph: AgentGraph, path: Path | str) -> None:
    """Write the graph, durably, whole or not at all; UsageError if its metadata is not JSON's."""
    try:
        text = json.dumps(to_data(graph), ensure_ascii=False, indent=1)
    except (TypeError, ValueError) as error:
        raise UsageError(f"graph {graph.name!r} cannot be saved: {error}; keep JSON's types in metadata") from error
    atomic.write(Path(path), text.encode())


def load_graph(path: Path | str, **options: Any) -> AgentGraph:
    """The graph of a file; NotFound, RecordCorrupt or NewerSchema where there is none that can be read."""
    path = Path(path)
    try:
        data = json.loads(path.read_bytes())
        if data.get("schema", SCHEMA) > SCHEMA:
            raise NewerSchema(path, data["schema"], SCHEMA)
        return from_data(data, **options)
    except FileNotFoundError as error:
        raise NotFound(f"no graph at {path}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordCorrupt(path, f"it is no agent graph ({error})") from error


def to_networkx(graph: AgentGraph) -> Any:
    """A networkx.DiGraph: nodes with system_prompt, model, status, metadata; edges with directed, control_type,
    properties."""
    nx = _networkx()
    found = nx.DiGraph(name=graph.name)
    for node in graph.nodes.values():
        found.add_node(node.id, system_prompt=node.system_prompt, model=node.model, status=node.status.value,
                       metadata=dict(node.metadata))
    for edge in graph.control.edges:
        attributes = {"directed": edge.directed, "control_type": edge.control_type,
                      "properties": dict(edge.properties)}
        found.add_edge(edge.source, edge.target, **attributes)
        if not edge.directed:
            found.add_edge(edge.target, edge.source, **attributes)
    return found


def from_networkx(found: Any, **options: Any) -> AgentGraph:
    """A graph of any networkx graph: `system_prompt` is taken from each node ('' without), the rest of its attributes
    become metadata; edges of an undirected graph, and those that say directed=False, direct nobody."""
    graph = AgentGraph(str(found.graph.get("name") or "graph"), **options)
    for node_id, attributes in found.nodes(data=True):
        rest = dict(attributes)
        prompt, model = rest.pop("system_prompt", ""), rest.pop("model", None)
        rest.pop("status", None)
        metadata = {**rest.pop("metadata", {}), **rest}
        name = check_name("node's id", node_id)
        graph.control.add_node(name)
        graph.nodes[name] = Node(name, prompt, model, metadata, graph._now())
    for source, target, attributes in found.edges(data=True):
        rest = dict(attributes)
        directed = bool(rest.pop("directed", found.is_directed()))
        kind = check_name("control type", rest.pop("control_type", SUPERVISOR))
        edge = Edge(source, target, directed, kind, {**rest.pop("properties", {}), **rest})
        if directed or target not in graph.control._out or source not in graph.control._out[target]:
            graph.control.add_edge(edge)
    return graph


def _networkx() -> Any:
    try:
        networkx = import_module("networkx")
    except ImportError as error:
        raise Refused("networkx is not installed; `pip install 'garrison[graph]'` brings it") from error
    return networkx
