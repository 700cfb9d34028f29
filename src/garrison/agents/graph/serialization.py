"""Agent graphs as JSON files and as networkx graphs. Sessions are not saved: no agent of a loaded graph runs."""

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
    """Return the graph as JSON data."""
    return {"schema": SCHEMA, "name": graph.name,
            "nodes": [{**asdict(node), "status": node.status.value} for node in graph.nodes.values()],
            "edges": [asdict(edge) for edge in graph.control.edges],
            "messages": [asdict(message) for message in graph.messages]}


def from_data(data: dict[str, Any], **options: Any) -> AgentGraph:
    """Invert `to_data`; active agents become stopped, and every prompt is computed again."""
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
    """Write the graph durably and atomically; UsageError if its metadata cannot be written as JSON."""
    try:
        text = json.dumps(to_data(graph), ensure_ascii=False, indent=1)
    except (TypeError, ValueError) as error:
        raise UsageError(f"graph {graph.name!r} cannot be saved: {error}; keep JSON's types in metadata") from error
    atomic.write(Path(path), text.encode())


def load_graph(path: Path | str, **options: Any) -> AgentGraph:
    """Read the graph of a file; NotFound, RecordCorrupt or NewerSchema if that is impossible."""
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
    """Return a networkx.DiGraph with the nodes' and edges' attributes; an undirected edge is there both ways."""
    nx = _networkx()
    converted = nx.DiGraph(name=graph.name)
    for node in graph.nodes.values():
        converted.add_node(node.id, system_prompt=node.system_prompt, model=node.model, status=node.status.value,
                           metadata=dict(node.metadata))
    for edge in graph.control.edges:
        attributes = {"directed": edge.directed, "control_type": edge.control_type,
                      "properties": dict(edge.properties)}
        converted.add_edge(edge.source, edge.target, **attributes)
        if not edge.directed:
            converted.add_edge(edge.target, edge.source, **attributes)
    return converted


def from_networkx(source: Any, **options: Any) -> AgentGraph:
    """Convert any networkx graph.

    Each node's `system_prompt` is used ('' without one), its other attributes become metadata. Edges of an undirected
    graph, and those with directed=False, direct nobody.
    """
    graph = AgentGraph(str(source.graph.get("name") or "graph"), **options)
    for node_id, attributes in source.nodes(data=True):
        rest = dict(attributes)
        prompt, model = rest.pop("system_prompt", ""), rest.pop("model", None)
        rest.pop("status", None)
        metadata = {**rest.pop("metadata", {}), **rest}
        name = check_name("node's id", node_id)
        graph.control.add_node(name)
        graph.nodes[name] = Node(name, prompt, model, metadata, graph._now())
    for begin, end, attributes in source.edges(data=True):
        rest = dict(attributes)
        directed = bool(rest.pop("directed", source.is_directed()))
        kind = check_name("control type", rest.pop("control_type", SUPERVISOR))
        edge = Edge(begin, end, directed, kind, {**rest.pop("properties", {}), **rest})
        if directed or not graph.control.has_edge(end, begin):
            graph.control.add_edge(edge)
    return graph


def _networkx() -> Any:
    try:
        networkx = import_module("networkx")
    except ImportError as error:
        raise Refused("networkx is not installed; `pip install 'garrison[graph]'` brings it") from error
    return networkx
