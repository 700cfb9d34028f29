"""A session's graph as it runs: read, its context keys put right, and node types of another engine put into ours. Pure.

Two slips are mended, and said, rather than run: a condition that asks for `context.X` where only `session.X` is written
(a gate would let everything pass), and the node types by which a later engine of the same family writes its sessions:

    type=exec, action=A        the node of a session that A names, or of A's last word
    type=compute               a call of the model; with use_tools=true the tool loop is put in as a cycle
    type=transform             session.transform: one key written from another
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from garrison.errors import UsageError
from garrison.pipeline.graph import Edge, Graph, Node, flag
from garrison.pipeline.lint.context_keys import SESSION_STATE, WRITTEN
from garrison.pipeline.parser import parse
from garrison.session.adapters import NODES

ACTIONS: Mapping[str, str] = {
    "session_memory.recall": "memory_recall", "session_memory.update": "memory_update",
    "session_memory.update_wm": "update_working_memory", "session_goals.update": "update_goals",
    "session_goals.store_decomps": "store_decompositions", "session_goals.process_proposals":
    "process_proposal_decisions", "background_checks_run": "background_checks", "background_checks.run":
    "background_checks",
}
"""Actions whose last word is not the name of a session's node."""
KEYS: Mapping[str, str] = {"last_response": "llm.content", "session.block_reason": "session.refusal"}
"""What the other engine calls a key of ours."""
TOOLS_WANTED, TEXT_SAID = (f"outcome != fail && context.llm.response_type {sign} tool_call" for sign in ("=", "!="))
_ASKED = re.compile(r"\bcontext\.([A-Za-z_]\w*)(?![\w.])", re.ASCII)


def read_session_graph(text: str, name: str) -> tuple[Graph, list[str]]:
    """The graph of a DOT text as a session runs it, and what was put right in it, a line each.

    DialectError for what is no graph, UsageError for an action that no session has.
    """
    graph = _translated(parse(text, name))
    bare = {key.removeprefix("session.") for key in _session_keys()} - {
        key for node in graph.nodes.values() for key in WRITTEN.get(node.handler, ())}
    said: dict[str, None] = {}

    def mended(edge: Edge) -> Edge:
        condition = str(edge.attrs.get("condition", ""))
        better = _ASKED.sub(lambda match: f"context.session.{match[1]}" if match[1] in bare else match[0], condition)
        if better == condition:
            return edge
        said[f"{name}: {edge}: the condition asks for a key that nobody writes; it is read as {better!r}"] = None
        return replace(edge, attrs={**edge.attrs, "condition": better})

    return replace(graph, edges=tuple(mended(edge) for edge in graph.edges)), list(said)


def adapters_of(graph: Graph) -> frozenset[str]:
    """The names of the adapters that a graph's nodes ask."""
    return frozenset(node.handler.removeprefix("session.") for node in graph.nodes.values())


def _session_keys() -> frozenset[str]:
    written = {key for keys in WRITTEN.values() for key in keys if key.startswith("session.")}
    return frozenset({*written, *SESSION_STATE})


def _translated(graph: Graph) -> Graph:
    """The graph with the other engine's nodes in our types."""
    nodes, edges = dict(graph.nodes), list(graph.edges)
    for node in graph.nodes.values():
        reader = _READERS.get(node.handler)
        if reader is None:
            continue
        nodes[node.id] = reader(node)
        if node.handler == "compute" and flag(node.attrs, "use_tools"):
            edges = _with_tools(node, nodes, edges)
    return replace(graph, nodes=nodes, edges=tuple(edges))


def _exec(node: Node) -> Node:
    action = str(node.attrs.get("action", ""))
    kind = ACTIONS.get(action, action.rpartition(".")[2])
    if kind not in NODES:
        raise UsageError(f"node {node.id} is type=exec with the action {action!r:.60}, which no session has; write "
                         f"type=\"session.NAME\" with one of {', '.join(sorted(NODES))}")
    return _typed(node, kind)


def _compute(node: Node) -> Node:
    return _typed(node, "llm_call")


def _transform(node: Node) -> Node:
    source = str(node.attrs.get("source_key", ""))
    return replace(node, attrs={**node.attrs, "type": "session.transform", "source_key": KEYS.get(source, source)})


_READERS = {"exec": _exec, "compute": _compute, "transform": _transform}


def _typed(node: Node, kind: str) -> Node:
    attrs = {key: value for key, value in node.attrs.items() if key != "handler"}
    mode = attrs.get("param.mode")
    return replace(node, attrs={**attrs, "type": f"session.{kind}", **({"mode": mode} if mode else {})})


def _with_tools(node: Node, nodes: dict[str, Node], edges: list[Edge]) -> list[Edge]:
    """The edges with the tool loop after a model's node: it is asked again until it wants no tool."""
    check, tools = f"{node.id}__check", f"{node.id}__tools"
    nodes[check] = Node(check, {"shape": "diamond", "label": "Tools wanted?"})
    nodes[tools] = Node(tools, {"type": "session.tool_dispatch", "label": "Call the tools"})
    return [*(_after_text(edge, check) if edge.source == node.id else edge for edge in edges), Edge(node.id, check),
            Edge(check, tools, {"condition": TOOLS_WANTED}), Edge(tools, node.id)]


def _after_text(edge: Edge, check: str) -> Edge:
    own = edge.attrs.get("condition")
    condition = f"{TEXT_SAID} && ({own})" if own else TEXT_SAID
    return replace(edge, source=check, attrs={**edge.attrs, "condition": condition})
