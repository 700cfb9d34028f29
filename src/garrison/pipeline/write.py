"""A graph back to text: one statement a line, chains and subgraphs already expanded. Pure.

The rule of this room: reading what was written gives the same graph (tests/unit/test_pipeline_write.py holds it to
that). It is for copies that people look at; garrison never writes over the file a graph came from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from garrison.pipeline.graph import Graph

_PLAIN = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_NUMBER = re.compile(r"\d+\Z", re.ASCII)
_KEYWORDS = frozenset({"digraph", "subgraph", "graph", "node", "edge", "strict"})
_QUOTED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"})


def to_dot(graph: Graph, annotations: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """The graph as text; `annotations` maps a node to attributes that are added to or put over its own."""
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
    """Plain only where Graphviz takes it plain too: a dotted key is quoted."""
    return text if _PLAIN.match(text) and text.lower() not in _KEYWORDS else _quote(text)


def _value(text: str) -> str:
    return text if _NUMBER.match(text) else _id(text)


def _quote(text: str) -> str:
    return f'"{str(text).translate(_QUOTED)}"'
