"""Drawing of a graph as an SVG document, without Graphviz: shapes, labels, edges, and a run's statuses. Pure.

The document is built as a tree, so that no label can become markup; it has no script, no link and loads nothing.

Nodes are put into layers by their longest path from the start, ignoring edges that lead back. Between two layers of
nodes is one of labels: every edge passes it through its own place, as wide as its label, and the layers between its
ends through places without width. All places of a layer are next to each other, so that no label can overlap anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from xml.etree import ElementTree as Tree

from garrison.pipeline.dot_writer import SHAPE_OF, STATUS_COLORS, edge_label, node_label, wrapped
from garrison.pipeline.graph import Graph, Node, flag, read_or, text
from garrison.system.terminal_text import width
from garrison.values import Value

GAP, LAYER_GAP = 26.0, 26.0
"""Distances between the places of a layer, and between layers."""
SWEEPS = 8
"""Times that the layers are ordered and moved by their neighbours, down and up."""


class Size(Value):
    """Width and height."""

    width: float
    height: float


class Link(Value):
    """An edge to lay out; `label` is the size of its label, zero without one."""

    source: str
    target: str
    label: Size = Size(0.0, 0.0)


class Box(Value):
    """Place of a node or label; x and y are of its centre."""

    x: float
    y: float
    width: float
    height: float


class Layout(Value):
    """Places of everything; `lines` and `labels` are in the order of the links."""

    nodes: Mapping[str, Box]
    labels: Sequence[Box]
    lines: Sequence[Sequence[tuple[float, float]]]
    width: float
    height: float


@dataclass
class _Place:
    """A node, or the place where an edge passes a layer."""

    layer: int
    size: Size
    x: float = 0.0
    up: list[_Place] = field(default_factory=list, repr=False)
    down: list[_Place] = field(default_factory=list, repr=False)


def lay_out(nodes: Mapping[str, Size], links: Sequence[Link]) -> Layout:
    """Return the layout of a graph; a link from a node to itself has its line and label at the node's right."""
    ranks = _ranks(nodes, links)
    places = {name: _Place(2 * ranks[name], _with_loops(name, size, links)) for name, size in nodes.items()}
    chains = [_chain(link, places) for link in links]
    layers: list[list[_Place]] = [[] for _ in range(2 * max(ranks.values(), default=0) + 1)]
    for place in [*places.values(), *(each for chain in chains for each in chain[1:-1])]:
        layers[place.layer].append(place)
    _order(layers)
    _move(layers)
    left = min((place.x - place.size.width / 2 for layer in layers for place in layer), default=0.0)
    heights = [max((place.size.height for place in layer), default=0.0) for layer in layers]
    tops = [*accumulate((height + LAYER_GAP for height in heights), initial=0.0)]

    def box(place: _Place, size: Size) -> Box:
        return Box(place.x - left - (place.size.width - size.width) / 2, tops[place.layer] + heights[place.layer] / 2,
                   size.width, size.height)

    def ends(place: _Place) -> Box:
        """Return the path of an edge through a layer: straight down, so that it crosses nothing there."""
        return Box(place.x - left, tops[place.layer] + heights[place.layer] / 2, 0.0, heights[place.layer])

    boxes = {name: box(place, nodes[name]) for name, place in places.items()}
    labels, lines, below = [], [], dict.fromkeys(nodes, 0.0)
    for link, chain in zip(links, chains, strict=True):
        if link.source == link.target:
            label, line = _loop(boxes[link.source], link.label, below[link.source])
            below[link.source] += max(link.label.height, 10.0) + 4
        else:
            marked = next((place for place in chain[1:-1] if place.size.width), chain[1])
            label = box(marked, marked.size)
            line = _line([ends(place) for place in chain[1:-1]], boxes[link.source], boxes[link.target])
        labels.append(label)
        lines.append(line)
    right = max((place.x - left + place.size.width / 2 for layer in layers for place in layer), default=0.0)
    return Layout(boxes, labels, lines, right, tops[-1] - LAYER_GAP)


def _ranks(nodes: Mapping[str, Size], links: Sequence[Link]) -> dict[str, int]:
    """Return node → its layer: the longest path to it, ignoring edges that lead back in a walk from the first."""
    after: dict[str, list[str]] = {name: [] for name in nodes}
    for link in links:
        if link.source != link.target and link.target not in after[link.source]:
            after[link.source].append(link.target)
    done: list[str] = []
    state: dict[str, int] = {}
    kept: dict[str, list[str]] = {name: [] for name in nodes}
    for root in nodes:
        # With an explicit stack: recursion fails at a chain of a thousand nodes.
        stack = [(root, iter(after[root]))] if root not in state else []
        state.setdefault(root, 1)
        while stack:
            name, rest = stack[-1]
            other = next(rest, None)
            if other is None:
                state[name] = 2
                done.append(name)
                stack.pop()
            elif state.get(other) != 1:  # 1: on the current path, so this edge leads back
                kept[name].append(other)
                if other not in state:
                    state[other] = 1
                    stack.append((other, iter(after[other])))
    ranks = dict.fromkeys(nodes, 0)
    for name in reversed(done):
        for other in kept[name]:
            ranks[other] = max(ranks[other], ranks[name] + 1)
    return ranks


def _with_loops(name: str, size: Size, links: Sequence[Link]) -> Size:
    """Return the size of a node with its links to itself."""
    loops = [link.label for link in links if link.source == link.target == name]
    if not loops:
        return size
    height = sum(max(label.height, 10.0) + 4 for label in loops)
    return Size(size.width + 30 + max(label.width for label in loops), max(size.height, height))


def _chain(link: Link, places: Mapping[str, _Place]) -> list[_Place]:
    """Return the places of an edge from the upper to the lower end; its label is in the middle of them."""
    ends = [places[link.source], places[link.target]]
    if link.source == link.target:
        return [ends[0], ends[0]]
    turned = ends[0].layer > ends[1].layer
    upper, lower = reversed(ends) if turned else ends
    between = [_Place(layer, Size(0.0, 0.0)) for layer in range(upper.layer + 1, lower.layer)]
    middle = len(between) // 2
    between[middle - middle % 2].size = link.label  # the even ones are in layers of labels
    chain = [upper, *between, lower]
    for above, below in pairwise(chain):
        above.down.append(below)
        below.up.append(above)
    return chain[::-1] if turned else chain


def _order(layers: Sequence[list[_Place]]) -> None:
    """Order the places of each layer by the mean position of their neighbours, down and up."""
    for layer in layers:
        for number, place in enumerate(layer):
            place.x = float(number)
    for sweep in range(SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            # The barycentre heuristic for layered drawings (Sugiyama); a fixed number of sweeps is good enough, and
            # ends.
            wanted = {id(place): _mean(place.up if sweep % 2 == 0 else place.down, place.x) for place in layer}
            layer.sort(key=lambda place: wanted[id(place)])
            for number, place in enumerate(layer):
                place.x = float(number)


def _mean(neighbours: Sequence[_Place], otherwise: float) -> float:
    return sum(place.x for place in neighbours) / len(neighbours) if neighbours else otherwise


def _move(layers: Sequence[list[_Place]]) -> None:
    """Give each place a position near its neighbours, in the order of its layer and without overlaps."""
    for layer in layers:
        _spread(layer, [0.0] * len(layer))
    for sweep in range(SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            _spread(layer, [_mean([*place.up, *place.down], place.x) for place in layer])


def _spread(layer: Sequence[_Place], wanted: Sequence[float]) -> None:
    """Place a layer in its order: each as near to its wanted position as the others allow, in total."""
    # Pool adjacent violators: places that would overlap become one block, at the mean of the wanted positions. This is
    # the least sum of squared moves, in linear time.
    groups: list[tuple[float, int, float]] = []  # sum of the starts that its places want, their number, its length
    offsets: list[list[float]] = []
    for place, want in zip(layer, wanted, strict=True):
        width = place.size.width + GAP
        groups.append((want - width / 2, 1, width))
        offsets.append([0.0])
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] + groups[-2][2] > groups[-1][0] / groups[-1][1]:
            total, number, length = groups.pop()
            own = offsets.pop()
            before, count, size = groups[-1]
            groups[-1] = (before + total - size * number, count + number, size + length)
            offsets[-1] += [size + offset for offset in own]
    begins = [total / number + offset for (total, number, _), own in zip(groups, offsets, strict=True)
              for offset in own]
    for place, begin in zip(layer, begins, strict=True):
        place.x = begin + (place.size.width + GAP) / 2


def _loop(node: Box, label: Size, below: float) -> tuple[Box, list[tuple[float, float]]]:
    height = max(label.height, 10.0)
    right, top = node.x + node.width / 2, node.y - node.height / 2 + below
    line = [(right, top + 2), (right + 16, top + 2), (right + 16, top + height), (right, top + height)]
    return Box(right + 22 + label.width / 2, top + height / 2, label.width, label.height), line


def _line(passes: Sequence[Box], source: Box, target: Box) -> list[tuple[float, float]]:
    """Return the line of an edge: out of its source, straight through each layer that it passes, into its target."""
    way = 1 if target.y > source.y else -1
    points = [(source.x, source.y + way * source.height / 2)]
    for each in passes:
        points += [(each.x, each.y - way * each.height / 2), (each.x, each.y + way * each.height / 2)]
    return [*points, (target.x, target.y - way * target.height / 2)]


LINE, SMALL = 14.0, 11.5
"""Height of a line of a node's label, and of an edge's."""
CHARACTER, NARROW = 6.7, 5.6
"""Largest width of a character of either."""
MARGIN = 16.0
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML forbids, or that must not be shown raw."""
_ROOM: Mapping[str, tuple[float, float]] = {
    "Mdiamond": (1.7, 1.7), "diamond": (1.7, 1.7), "hexagon": (1.3, 1.1), "parallelogram": (1.3, 1.0),
    "house": (1.2, 1.6), "component": (1.15, 1.0), "tripleoctagon": (1.2, 1.2)}
"""Shape → its width and height relative to its label; 1 for others."""
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
              "back" if read_or(False, flag, edge.attrs, "loop_restart") else "") for edge in graph.edges]
    return edges + [(str(node.id), target, "retry", "retry") for node in graph.nodes.values()
                    for target in graph.retry_targets(node.attrs)]


def drawn_layout(graph: Graph, words: Mapping[str, str], edges: list[tuple[str, str, str, str]], *,
                 sideways: bool) -> Layout:
    """Return the positions; `sideways`: from left to right instead of downwards."""
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
    look = {"class": "n goal" if read_or(False, flag, node.attrs, "goal_gate") else "n"}
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
