"""Graph to DOT text: an exact copy (`to_dot`) and a drawing (`to_drawing`). Pure.

Parsing an exact copy gives the same graph (tests/unit/test_pipeline_dot_writer.py checks it). garrison never overwrites
the file of a graph.

A drawing shows shapes, labels, conditions and, for a run, the status of each node. It passes on no attribute of the
graph: some make Graphviz read files or emit links, and graphs are untrusted.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Mapping

from garrison.pipeline.graph import SHAPES, Edge, Graph, Node, flag, read_or, text

_PLAIN = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_NUMBER = re.compile(r"\d+\Z", re.ASCII)
_KEYWORDS = frozenset({"digraph", "subgraph", "graph", "node", "edge", "strict"})
_QUOTED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"})


def to_dot(graph: Graph, annotations: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """Return the graph as text; `annotations` maps a node to attributes that override its own."""
    extra = annotations or {}
    lines = ["digraph {" if graph.id is None else f"digraph {_id(graph.id)} {{"]
    if graph.attrs:
        lines.append(f"    graph{_attributes(graph.attrs)};")
    for node in graph.nodes.values():
        lines.append(f"    {_id(node.id)}{_attributes({**node.attrs, **extra.get(node.id, {})})};")
    for edge in graph.edges:
        lines.append(f"    {_id(edge.source)} -> {_id(edge.target)}{_attributes(edge.attrs)};")
    return "\n".join([*lines, "}", ""])


def _attributes(attrs: Mapping[str, str]) -> str:
    if not attrs:
        return ""
    return " [" + ", ".join(f"{_id(key)}={_value(value)}" for key, value in attrs.items()) + "]"


def _id(text: str) -> str:
    """Return an id, unquoted only if Graphviz accepts that: a dotted key is quoted."""
    return text if _PLAIN.match(text) and text.lower() not in _KEYWORDS else _quote(text)


def _value(text: str) -> str:
    return text if _NUMBER.match(text) else _id(text)


def _quote(text: str) -> str:
    return f'"{str(text).translate(_QUOTED)}"'


LABEL_CHARS, EDGE_CHARS = 28, 24
"""Characters per line of a node's label, and of an edge's."""
MAX_LINES = 4

SHAPE_OF = {handler: shape for shape, handler in reversed(list(SHAPES.items()))}
STATUS_COLORS: Mapping[str, str] = {
    **dict.fromkeys(("success", "validated", "done", "partial_success"), "#c8e6c9"),
    **dict.fromkeys(("fail", "failed"), "#ffcdd2"),
    **dict.fromkeys(("active", "running", "impl_complete"), "#bbdefb"),
    **dict.fromkeys(("waiting", "retry"), "#fff9c4"),
    "skipped": "#eeeeee",
}
"""Fill color of each status; a node without one is white."""


def to_drawing(graph: Graph, status: Mapping[str, str] | None = None, *, titled: bool = True,
               font: str = "sans-serif", for_page: bool = False) -> str:
    """Return the text for `dot`; `status` maps nodes to words such as success, fail, active (see `STATUS_COLORS`).

    With `titled` the goal is above the drawing. Where no `font` is installed, Graphviz knows the widths of Helvetica.
    With `for_page` the edge at index N of the graph has the id `way-N` in an SVG, and a node has room for its signs and
    is labelled with its id, as in all lists and commands.
    """
    node_size = 'fontsize=12, margin="0.44,0.08"' if for_page else "fontsize=11"
    named, title = f"fontname={_drawn_string(font)}", wrapped(text(graph.attrs, "goal", ""), 80) if titled else ""
    lines = [f"digraph {_drawn_string(graph.id or 'pipeline')} {{",
             f'    graph [rankdir={"LR" if text(graph.attrs, "rankdir", "").upper() == "LR" else "TB"}, '
             f"label={_drawn_string(title)}, labelloc=t, {named}];",
             f'    node [style="filled", fillcolor=white, {named}, {node_size}];',
             f"    edge [{named}, fontsize={12 if for_page else 9}];"]
    lines += [f"    {_drawn_string(node.id)} [{_drawn_node(node, (status or {}).get(node.id, ''), for_page)}];"
              for node in graph.nodes.values()]
    lines += [f"    {_drawn_string(edge.source)} -> {_drawn_string(edge.target)}"
              f"{_drawn_edge(edge, f'way-{index}' if for_page else '')};" for index, edge in enumerate(graph.edges)]
    lines += [f"    {_drawn_string(node.id)} -> {_drawn_string(target)} "
              '[style=dotted, constraint=false, label="retry"];'
              for node in graph.nodes.values() for target in graph.retry_targets(node.attrs)]
    return "\n".join([*lines, "}", ""])


def node_label(node: Node, status: str = "") -> str:
    label = wrapped(node.label, LABEL_CHARS)
    return f"{label}\n({status})" if status else label


def edge_label(edge: Edge) -> str:
    """Return the lines of an edge's label and condition; '' for neither."""
    label, condition = text(edge.attrs, "label", ""), text(edge.attrs, "condition", "")
    return "\n".join([*([wrapped(label, EDGE_CHARS)] if label else []),
                      *([wrapped(f"[{condition}]", EDGE_CHARS)] if condition else [])])


def _drawn_node(node: Node, status: str, by_id: bool) -> str:
    label = wrapped(node.id, LABEL_CHARS) if by_id else node_label(node, status)
    attrs = {"label": label, "shape": SHAPE_OF.get(node.handler, "box"),
             "tooltip": f"{node.id}: {node.handler}"}
    if status:
        attrs["fillcolor"] = STATUS_COLORS.get(status, "white")
    if node.handler.startswith("session.") or node.handler not in SHAPE_OF:
        attrs["xlabel"] = node.handler
    if read_or(False, flag, node.attrs, "goal_gate"):
        attrs["peripheries"] = "2"
    return ", ".join(f"{key}={_drawn_string(value)}" for key, value in attrs.items())


def _drawn_edge(edge: Edge, name: str) -> str:
    attrs = {"id": name} if name else {}
    if label := edge_label(edge):
        attrs["label"] = label
    if read_or(False, flag, edge.attrs, "loop_restart"):
        attrs["style"] = "dashed"
    return f" [{', '.join(f'{key}={_drawn_string(value)}' for key, value in attrs.items())}]" if attrs else ""


def wrapped(written: str, width: int) -> str:
    lines = textwrap.wrap(" ".join(written.split()), width)
    return "\n".join(lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES - 1], lines[MAX_LINES - 1][:-1] + "…"])


def _drawn_string(written: str) -> str:
    """Return a quoted string; backslashes are doubled, since Graphviz has its own escapes (\\N, \\G, \\l)."""
    escaped = written.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\0", "")
    return f'"{escaped}"'


def graph_digest(graph: Graph) -> str:
    return hashlib.sha256(to_dot(graph).encode("utf-8", "surrogatepass")).hexdigest()
