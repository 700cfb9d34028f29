"""Read a session's graph: parse it, correct its context keys, translate foreign node types. Pure.

Two mistakes are corrected and reported rather than run: a condition that reads `context.X` where only `session.X` is
written (a gate would let everything pass), and the node types of a later engine of the same family:

    type=exec, action=A        the session node named by A, or by the last word of A
    type=compute               a model call; with use_tools=true the tool loop is added as a cycle
    type=transform             session.transform: one key written from another
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from garrison.errors import UsageError
from garrison.pipeline.graph import Edge, Graph, Node, flag
from garrison.pipeline.lint.context_keys import SESSION_STATE, WRITTEN
from garrison.pipeline.parser import parse
from garrison.session.adapters import NODES
from garrison.values import replace

ACTIONS: Mapping[str, str] = {
    "session_memory.recall": "memory_recall", "session_memory.update": "memory_update",
    "session_memory.update_wm": "update_working_memory", "session_goals.update": "update_goals",
    "session_goals.store_decomps": "store_decompositions", "session_goals.process_proposals":
    "process_proposal_decisions", "background_checks_run": "background_checks", "background_checks.run":
    "background_checks",
}
"""Actions whose last word is not the name of a session node."""
KEYS: Mapping[str, str] = {"last_response": "llm.content", "session.block_reason": "session.refusal"}
"""Keys of the other engine → ours."""
WANTS_TOOLS, IS_TEXT = (f"outcome != fail && context.llm.response_type {sign} tool_call" for sign in ("=", "!="))
_CONTEXT_KEY = re.compile(r"\bcontext\.([A-Za-z_]\w*)(?![\w.])", re.ASCII)


def read_session_graph(text: str, name: str) -> tuple[Graph, list[str]]:
    """Return the graph of a DOT text, prepared for a session, and the corrections, one line each.

    Raises DialectError if the text is not a graph, UsageError for an unknown action.
    """
    return to_session_graph(parse(text, name), name)


def to_session_graph(graph: Graph, name: str) -> tuple[Graph, list[str]]:
    """Return a graph, prepared for a session, and the corrections; UsageError for an unknown action."""
    graph = _translate(graph)
    bare = {key.removeprefix("session.") for key in _session_keys()} - {
        key for node in graph.nodes.values() for key in WRITTEN.get(node.handler, ())}
    corrections: dict[str, None] = {}

    def correct(edge: Edge) -> Edge:
        condition = str(edge.attrs.get("condition", ""))
        corrected = _CONTEXT_KEY.sub(
            lambda match: f"context.session.{match[1]}" if match[1] in bare else match[0], condition)
        if corrected == condition:
            return edge
        corrections[f"{name}: {edge}: no node writes the condition's key; it is read as {corrected!r}"] = None
        return replace(edge, attrs={**edge.attrs, "condition": corrected})

    return replace(graph, edges=tuple(correct(edge) for edge in graph.edges)), list(corrections)


def adapters_of(graph: Graph) -> frozenset[str]:
    return frozenset(node.handler.removeprefix("session.") for node in graph.nodes.values())


def _session_keys() -> frozenset[str]:
    written = {key for keys in WRITTEN.values() for key in keys if key.startswith("session.")}
    return frozenset({*written, *SESSION_STATE})


def _translate(graph: Graph) -> Graph:
    """Replace the other engine's node types by ours."""
    nodes, edges = dict(graph.nodes), list(graph.edges)
    for node in graph.nodes.values():
        reader = _READERS.get(node.handler)
        if reader is None:
            continue
        nodes[node.id] = reader(node)
        if node.handler == "compute" and flag(node.attrs, "use_tools"):
            edges = _add_tool_loop(node, nodes, edges)
    return replace(graph, nodes=nodes, edges=tuple(edges))


def _exec(node: Node) -> Node:
    action = str(node.attrs.get("action", ""))
    kind = ACTIONS.get(action, action.rpartition(".")[2])
    if kind not in NODES:
        raise UsageError(f"node {node.id} is type=exec with the action {action!r:.60}, which no session has; use "
                         f"type=\"session.NAME\" with one of {', '.join(sorted(NODES))}")
    return _with_type(node, kind)


def _compute(node: Node) -> Node:
    return _with_type(node, "llm_call")


def _transform(node: Node) -> Node:
    source = str(node.attrs.get("source_key", ""))
    return replace(node, attrs={**node.attrs, "type": "session.transform", "source_key": KEYS.get(source, source)})


_READERS = {"exec": _exec, "compute": _compute, "transform": _transform}
TRANSLATED_TYPES = frozenset(_READERS)
"""Types of the other engine that a session runs."""


def _with_type(node: Node, kind: str) -> Node:
    attrs = {key: value for key, value in node.attrs.items() if key != "handler"}
    mode = attrs.get("param.mode")
    return replace(node, attrs={**attrs, "type": f"session.{kind}", **({"mode": mode} if mode else {})})


def _add_tool_loop(node: Node, nodes: dict[str, Node], edges: list[Edge]) -> list[Edge]:
    """Return the edges with a tool loop after a model node: the model is called again until it requests no tool."""
    check, tools = f"{node.id}__check", f"{node.id}__tools"
    nodes[check] = Node(check, {"shape": "diamond", "label": "Tools wanted?"})
    nodes[tools] = Node(tools, {"type": "session.tool_dispatch", "label": "Call the tools"})
    return [*(_after_text(edge, check) if edge.source == node.id else edge for edge in edges), Edge(node.id, check),
            Edge(check, tools, {"condition": WANTS_TOOLS}), Edge(tools, node.id)]


def _after_text(edge: Edge, check: str) -> Edge:
    condition = edge.attrs.get("condition")
    guarded = f"{IS_TEXT} && ({condition})" if condition else IS_TEXT
    return replace(edge, source=check, attrs={**edge.attrs, "condition": guarded})
