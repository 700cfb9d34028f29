"""Drawing of a graph as an SVG document, without Graphviz: shapes, labels, edges, and a run's statuses. Pure.

The document is built as a tree, so that no label can become markup; it has no script, no link and loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from xml.etree import ElementTree as Tree

from garrison.pipeline.dot_writer import SHAPE_OF, STATUS_COLORS, edge_label, node_label, wrapped
from garrison.pipeline.graph import Graph, Node, text
from garrison.pipeline.layout import Box, Layout, Link, Size, lay_out
from garrison.system.terminal_text import width

LINE, SMALL = 14.0, 11.5
"""Height of a line of a node's label, and of an edge's."""
CHARACTER, NARROW = 6.7, 5.6
"""Width of a character of either, at most."""
MARGIN = 16.0
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML forbids, or that nobody should see raw."""
_ROOM: Mapping[str, tuple[float, float]] = {
    "Mdiamond": (1.7, 1.7), "diamond": (1.7, 1.7), "hexagon": (1.3, 1.1), "parallelogram": (1.3, 1.0),
    "house": (1.2, 1.6), "component": (1.15, 1.0), "tripleoctagon": (1.2, 1.2)}
"""Shape → how much wider and higher than its label it is; 1 for others."""
_CORNERS: Mapping[str, tuple[tuple[float, float], ...]] = {
    "Mdiamond": ((0.5, 0), (1, 0.5), (0.5, 1), (0, 0.5)), "diamond": ((0.5, 0), (1, 0.5), (0.5, 1), (0, 0.5)),
    "hexagon": ((0.12, 0), (0.88, 0), (1, 0.5), (0.88, 1), (0.12, 1), (0, 0.5)),
    "parallelogram": ((0.12, 0), (1, 0), (0.88, 1), (0, 1)), "house": ((0.5, 0), (1, 0.35), (1, 1), (0, 1), (0, 0.35)),
    "tripleoctagon": ((0.1, 0), (0.9, 0), (1, 0.3), (1, 0.7), (0.9, 1), (0.1, 1), (0, 0.7), (0, 0.3))}
"""Shape → its corners, as parts of its width and height; others are rectangles."""
_STYLE = ("svg{font-family:Helvetica,Arial,sans-serif;background:#fff}.n{stroke:#333;fill:#fff}.t{font-size:11px;"
          "text-anchor:middle}.e{fill:none;stroke:#555}.l{font-size:9px;text-anchor:middle;fill:#333}.p{fill:#fff}"
          ".back{stroke-dasharray:5 3}.retry{stroke-dasharray:1 3}.goal{stroke-width:3}")


def to_svg(graph: Graph, status: Mapping[str, str] | None = None) -> str:
    """Return the drawing as text; `status` maps nodes to words such as success, fail, active."""
    words = {node.id: node_label(node, (status or {}).get(node.id, "")) for node in graph.nodes.values()}
    edges = drawn_edges(graph)
    sideways = text(graph.attrs, "rankdir", "").upper() == "LR"
    layout = drawn_layout(graph, words, edges, sideways=sideways)
    title = wrapped(text(graph.attrs, "goal", ""), 80)
    top = MARGIN + (LINE * (title.count("\n") + 1) + 10 if title else 0.0)
    wide = max(layout.width, _extent(title, CHARACTER, LINE).width) + 2 * MARGIN
    root = Tree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img",
                                "viewBox": f"0 0 {wide:.1f} {layout.height + top + MARGIN:.1f}",
                                "width": f"{wide:.0f}", "height": f"{layout.height + top + MARGIN:.0f}"})
    Tree.SubElement(root, "title").text = _legible(str(graph.id or "pipeline"))
    Tree.SubElement(root, "style").text = _STYLE
    _arrow(root)
    _lines(root, title, Box(wide / 2, MARGIN + (top - MARGIN - 10) / 2, 0, 0), LINE, "t")
    drawing = Tree.SubElement(root, "g", {"transform": f"translate({(wide - layout.width) / 2:.1f} {top:.1f})"})
    for (_, _, label, kind), line, box in zip(edges, layout.lines, layout.labels, strict=True):
        _edge(drawing, label, kind, line, box)
    for node in graph.nodes.values():
        _node(drawing, node, words[node.id], layout.nodes[node.id], (status or {}).get(node.id, ""))
    return Tree.tostring(root, encoding="unicode") + "\n"


def drawn_edges(graph: Graph) -> list[tuple[str, str, str, str]]:
    """Return the edges as (source, target, label, kind): `back` if it starts over, `retry` for a retry target."""
    edges = [(str(edge.source), str(edge.target), edge_label(edge),
              "back" if text(edge.attrs, "loop_restart", "").lower() == "true" else "") for edge in graph.edges]
    return edges + [(str(node.id), str(target), "retry", "retry") for node in graph.nodes.values()
                    for key in ("retry_target", "fallback_retry_target")
                    if (target := text(node.attrs, key)) is not None and target in graph.nodes]


def drawn_layout(graph: Graph, words: Mapping[str, str], edges: list[tuple[str, str, str, str]], *,
                 sideways: bool) -> Layout:
    """Return where everything is; `sideways`: from left to right instead of downwards."""
    turned: Callable[[Size], Size] = (lambda size: Size(size.height, size.width)) if sideways else lambda size: size
    links = [Link(source, target, turned(_extent(label, NARROW, SMALL))) for source, target, label, _ in edges]
    layout = lay_out({name: turned(_node_size(graph.nodes[name], words[name])) for name in graph.nodes}, links)
    if not sideways:
        return layout
    return Layout({name: _mirrored(box) for name, box in layout.nodes.items()}, [*map(_mirrored, layout.labels)],
                  [[(y, x) for x, y in line] for line in layout.lines], layout.height, layout.width)


def _mirrored(box: Box) -> Box:
    return Box(box.y, box.x, box.height, box.width)


def _extent(words: str, character: float, line: float) -> Size:
    """Return the size of a text; nothing for an empty one."""
    lines = words.split("\n") if words else []
    return Size(max((width(_legible(each)) for each in lines), default=0) * character, len(lines) * line)


def _node_size(node: Node, words: str) -> Size:
    extent, (wider, higher) = _extent(words, CHARACTER, LINE), _ROOM.get(_shape(node), (1.0, 1.0))
    return Size(max(extent.width * wider + 20, 50.0), max(extent.height * higher + 14, 32.0))


def _shape(node: Node) -> str:
    return SHAPE_OF.get(node.handler, "box")


def _arrow(root: Tree.Element) -> None:
    marker = Tree.SubElement(Tree.SubElement(root, "defs"), "marker", {
        "id": "arrow", "viewBox": "0 0 8 8", "refX": "8", "refY": "4", "markerWidth": "8", "markerHeight": "8",
        "orient": "auto"})
    Tree.SubElement(marker, "path", {"d": "M0 0L8 4L0 8z", "fill": "#555"})


def _edge(drawing: Tree.Element, label: str, kind: str, line: Sequence[tuple[float, float]], box: Box) -> None:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
    Tree.SubElement(drawing, "polyline", {"points": points, "class": f"e {kind}".strip(), "marker-end": "url(#arrow)"})
    if label:
        Tree.SubElement(drawing, "rect", {
            "class": "p", "x": f"{box.x - box.width / 2:.1f}", "width": f"{box.width:.1f}",
            "y": f"{box.y - box.height / 2:.1f}", "height": f"{box.height:.1f}"})
        _lines(drawing, label, box, SMALL, "l")


def _node(drawing: Tree.Element, node: Node, words: str, box: Box, status: str) -> None:
    group = Tree.SubElement(drawing, "g")
    Tree.SubElement(group, "title").text = _legible(f"{node.id}: {node.handler}")
    left, top = box.x - box.width / 2, box.y - box.height / 2
    goal = text(node.attrs, "goal_gate", "").lower() in ("true", "yes", "on", "1")
    look = {"class": "n goal" if goal else "n"}
    if status in STATUS_COLORS:
        look["style"] = f"fill:{STATUS_COLORS[status]}"
    corners = _CORNERS.get(_shape(node))
    if corners is not None:
        points = " ".join(f"{left + x * box.width:.1f},{top + y * box.height:.1f}" for x, y in corners)
        Tree.SubElement(group, "polygon", {"points": points, **look})
    else:
        Tree.SubElement(group, "rect", {"x": f"{left:.1f}", "y": f"{top:.1f}", "width": f"{box.width:.1f}",
                                        "height": f"{box.height:.1f}", "rx": "4", **look})
    _lines(group, words, box, LINE, "t")


def _lines(parent: Tree.Element, words: str, box: Box, line: float, kind: str) -> None:
    """Draw a text of several lines around the centre of a box."""
    lines = words.split("\n") if words else []
    for number, each in enumerate(lines):
        y = box.y + (number - (len(lines) - 1) / 2) * line + line * 0.28
        Tree.SubElement(parent, "text", {"x": f"{box.x:.1f}", "y": f"{y:.1f}", "class": kind}).text = _legible(each)


def _legible(words: str) -> str:
    return _CONTROL.sub("�", words)
