"""Layered layout of a graph: where each node, each label and each line of a drawing is. Pure.

Nodes are put into layers by their longest way from the start, without the edges that lead back. Between two layers of
nodes lies one of labels: every edge passes it by a place of its own, as wide as its label, and the layers between its
ends by places without width. All places of a layer stand beside each other, so that no label can overlap anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

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
    tops, bottom = _tops(layers)

    heights = [max((place.size.height for place in layer), default=0.0) for layer in layers]

    def box(place: _Place, size: Size) -> Box:
        return Box(place.x - left - (place.size.width - size.width) / 2, tops[place.layer] + heights[place.layer] / 2,
                   size.width, size.height)

    def ends(place: _Place) -> Box:
        """Return the way of an edge through a layer: straight down, so that it meets nothing there."""
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
    return Layout(boxes, labels, lines, right, bottom)


def _ranks(nodes: Mapping[str, Size], links: Sequence[Link]) -> dict[str, int]:
    """Return node → its layer: the longest way to it, without the edges that lead back in a walk from the first."""
    after: dict[str, list[str]] = {name: [] for name in nodes}
    for link in links:
        if link.source != link.target and link.target not in after[link.source]:
            after[link.source].append(link.target)
    done: list[str] = []
    state: dict[str, int] = {}
    kept: dict[str, list[str]] = {name: [] for name in nodes}
    for root in nodes:
        stack = [(root, iter(after[root]))] if root not in state else []
        state.setdefault(root, 1)
        while stack:
            name, rest = stack[-1]
            other = next(rest, None)
            if other is None:
                state[name] = 2
                done.append(name)
                stack.pop()
            elif state.get(other) != 1:  # 1: on the way here, so this edge leads back
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
    """Place a layer in its order: each as near to where it is wanted as the others allow, on the whole."""
    groups: list[tuple[float, int, float]] = []  # sum of what its places want of its begin, their number, its length
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


def _tops(layers: Sequence[Sequence[_Place]]) -> tuple[list[float], float]:
    """Return the top of each layer, and the bottom of the last."""
    tops, y = [], 0.0
    for layer in layers:
        tops.append(y)
        y += max((place.size.height for place in layer), default=0.0) + LAYER_GAP
    return tops, y - LAYER_GAP


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
