"""A graph as a drawing: Graphviz text with shapes, labels, conditions, and, of a run, how far each node is. Pure.

The rule of this room: only what is drawn is written. The attributes of a graph come from somebody, and some of them
make Graphviz read files or emit links; so shape, label and class of look are chosen here and nothing is passed on.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from garrison.pipeline.graph import SHAPES, Edge, Graph, Node, text

LABEL_CHARS, EDGE_CHARS = 28, 24
"""Characters of a line of a node's label, and of an edge's."""
MAX_LINES = 4

SHAPE_OF = {handler: shape for shape, handler in reversed(list(SHAPES.items()))}
_COLOURS: Mapping[str, str] = {
    **dict.fromkeys(("success", "validated", "done", "partial_success"), "#c8e6c9"),
    **dict.fromkeys(("fail", "failed"), "#ffcdd2"),
    **dict.fromkeys(("active", "running", "impl_complete"), "#bbdefb"),
    **dict.fromkeys(("waiting", "retry"), "#fff9c4"),
    "skipped": "#eeeeee",
}
"""What a node's status is painted with; a node without one is white."""


def to_drawing(graph: Graph, status: Mapping[str, str] | None = None, *, titled: bool = True,
               font: str = "sans-serif") -> str:
    """The text for `dot`; `status` maps nodes to words such as success, fail, active (see `_COLOURS`).

    Not `titled`: without the goal above it. `font`: where no fonts are installed, Graphviz knows Helvetica's widths.
    """
    named, title = f"fontname={_quoted(font)}", _wrapped(text(graph.attrs, "goal", ""), 80) if titled else ""
    lines = [f"digraph {_quoted(graph.id or 'pipeline')} {{",
             f'    graph [rankdir={"LR" if text(graph.attrs, "rankdir", "").upper() == "LR" else "TB"}, '
             f"label={_quoted(title)}, labelloc=t, {named}];",
             f'    node [style="filled", fillcolor=white, {named}, fontsize=11];',
             f"    edge [{named}, fontsize=9];"]
    lines += [f"    {_quoted(node.id)} [{_node(node, (status or {}).get(node.id, ''))}];"
              for node in graph.nodes.values()]
    lines += [f"    {_quoted(edge.source)} -> {_quoted(edge.target)}{_edge(edge)};" for edge in graph.edges]
    lines += [f'    {_quoted(node.id)} -> {_quoted(target)} [style=dotted, constraint=false, label="retry"];'
              for node in graph.nodes.values() for key in ("retry_target", "fallback_retry_target")
              if (target := text(node.attrs, key)) is not None and target in graph.nodes]
    return "\n".join([*lines, "}", ""])


def _node(node: Node, status: str) -> str:
    label = _wrapped(node.label, LABEL_CHARS)
    if status:
        label = f"{label}\n({status})"
    found = {"label": label, "shape": SHAPE_OF.get(node.handler, "box"), "tooltip": f"{node.id}: {node.handler}"}
    if status:
        found["fillcolor"] = _COLOURS.get(status, "white")
    if node.handler.startswith("session.") or node.handler not in SHAPE_OF:
        found["xlabel"] = node.handler
    if text(node.attrs, "goal_gate", "").lower() in ("true", "yes", "on", "1"):
        found["peripheries"] = "2"
    return ", ".join(f"{key}={_quoted(value)}" for key, value in found.items())


def _edge(edge: Edge) -> str:
    label, condition = text(edge.attrs, "label", ""), text(edge.attrs, "condition", "")
    said = [_wrapped(label, EDGE_CHARS)] if label else []
    if condition:
        said.append(_wrapped(f"[{condition}]", EDGE_CHARS))
    found = {"label": "\n".join(said)} if said else {}
    if text(edge.attrs, "loop_restart", "").lower() == "true":
        found["style"] = "dashed"
    return f" [{', '.join(f'{key}={_quoted(value)}' for key, value in found.items())}]" if found else ""


def _wrapped(written: str, width: int) -> str:
    lines = textwrap.wrap(" ".join(written.split()), width)
    return "\n".join(lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES - 1], lines[MAX_LINES - 1][:-1] + "…"])


def _quoted(written: str) -> str:
    """A quoted string; a backslash is doubled, because Graphviz has escapes of its own (\\N, \\G, \\l)."""
    escaped = written.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\0", "")
    return f'"{escaped}"'
