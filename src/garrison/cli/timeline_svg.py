"""Timeline of a run as an SVG document: a bar for each node, marks, and the cost over time. Pure.

The document is built as a tree, so that no name or reason can become markup; it has no script and loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree as Tree

from garrison.cli.timeline_render import BARS, SIGNS, clock, headline, length, words_of
from garrison.views.run_timeline import Lane, RunTimeline, SpanKind

NAMED, BAR, ROW, EDGE = 180, 900, 24, 16
"""Pixels: the column of names, that of bars, the height of a row, the margin."""
COST = 90
"""Height of the curve of costs."""
COLOURS: Mapping[SpanKind, tuple[str, str]] = {
    SpanKind.READY: ("#dadad2", "#3d4341"), SpanKind.STARTING: ("#9cc3de", "#3f6480"),
    SpanKind.WORKING: ("#2f7fb5", "#4d9fd6"), SpanKind.CHECKING: ("#6a9f7c", "#5f9d77"),
    SpanKind.RESTARTING: ("#c9443e", "#d9605a"), SpanKind.ASKS: ("#d98a1f", "#e0a046"),
    SpanKind.SIGNAL: ("#b98f4d", "#a98a55"), SpanKind.LIMIT: ("#8a3f9b", "#b06cc2"),
    SpanKind.PARKED: ("#b39b32", "#b8a44b"), SpanKind.QUEUED: ("#b9abdd", "#5c5086"),
    SpanKind.TESTING: ("#7a5fc0", "#9a84de"), SpanKind.APPROVAL: ("#d9a441", "#d9ae5c"),
    SpanKind.STOPPED: ("#aeb2ac", "#575e5b")}
"""Kind of a span → its colour, light and dark; the page has the same."""
LINES = ("#2f7fb5", "#d98a1f", "#7a5fc0", "#6a9f7c", "#c9443e", "#8a8f8b")
"""Colours of the curves of costs, by model."""
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML forbids, or that nobody should see raw."""
_BASE = ("svg{font:12px system-ui,sans-serif}text{fill:#1d1f1e}.soft{fill:#565a57}.paper{fill:#fff}"
         ".line{stroke:#d9d9d2}.cost{fill:none;stroke-width:2}.bad{fill:#a3211c}.good{fill:#20663f}.due{fill:#8a4300}")
_DARK = ("text{fill:#e6e9e7}.soft{fill:#a5aca8}.paper{fill:#1b1e1d}.line{stroke:#343a38}.bad{fill:#ff9d96}"
         ".good{fill:#8ed6a6}.due{fill:#f5b767}")


def to_svg(made: RunTimeline) -> str:
    return _Drawing(made).text()


class _Drawing:
    def __init__(self, made: RunTimeline) -> None:
        self.made = made
        self.width = NAMED + BAR + 80 + 2 * EDGE
        self.y = EDGE
        self.root = Tree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
        _titled(self.root, headline(made))
        Tree.SubElement(self.root, "style").text = _style()
        self.paper = self._rect(0, 0, self.width, 0, "paper")

    def text(self) -> str:
        """Draw everything and return the document."""
        self._text(EDGE, self.y + 12, headline(self.made), "")
        self.y += 34
        top = self.y
        self._axis(top)
        self.y += 20
        for lane in self.made.lanes:
            self._lane(lane)
        self.y += 8
        self._legend()
        if self.made.costs.usd:
            self._costs()
        height = self.y + EDGE
        self.root.set("viewBox", f"0 0 {self.width} {height}")
        self.root.set("width", str(self.width))
        self.root.set("height", str(height))
        self.paper.set("height", str(height))
        return Tree.tostring(self.root, encoding="unicode") + "\n"

    def _x(self, at: float) -> float:
        whole = max(self.made.end - self.made.begin, 0.001)
        share = min(max((at - self.made.begin) / whole, 0.0), 1.0)
        return round(EDGE + NAMED + BAR * share, 2)

    def _axis(self, top: int) -> None:
        bottom = top + 20 + ROW * len(self.made.lanes)
        for part in range(5):
            at = self.made.begin + (self.made.end - self.made.begin) * part / 4
            x = self._x(at)
            Tree.SubElement(self.root, "line", {"x1": str(x), "x2": str(x), "y1": str(top + 16), "y2": str(bottom),
                                                "class": "line"})
            words = f"{clock(at, day=True)} UTC" if not part else clock(at)
            self._text(x, top + 10, words, "soft", anchor="end" if part == 4 else "start" if not part else "middle")

    def _lane(self, lane: Lane) -> None:
        self._text(EDGE, self.y + 15, _cut(lane.node, 26), "", title=lane.node)
        for span in lane.spans:
            begin, end = self._x(span.begin), self._x(self.made.end if span.end is None else span.end)
            rect = self._rect(begin, self.y + 4, max(end - begin, 1.0), ROW - 8, f"k-{span.kind.name.lower()}")
            attempt = f", attempt {span.attempt}" if span.attempt > 1 else ""
            text = f": {span.text}" if span.text else ""
            _titled(rect, f"{lane.node}: {words_of(span.kind)}{attempt}, {length(span.length(self.made.end))}{text}")
        for mark in lane.marks:
            if mark.kind in SIGNS:
                sign, style = SIGNS[mark.kind]
                self._text(self._x(mark.at), self.y + 17, sign, style, anchor="middle",
                           title=f"{lane.node}: {mark.kind} {clock(mark.at)}{f': {mark.text}' if mark.text else ''}")
        spent = sum(seconds for kind, seconds in lane.seconds.items() if kind != SpanKind.READY)
        if lane.spans:
            self._text(self.width - EDGE, self.y + 15, length(spent), "soft", anchor="end")
        self.y += ROW

    def _legend(self) -> None:
        kinds = {span.kind for lane in self.made.lanes for span in lane.spans}
        x = EDGE
        for kind in (kind for kind in BARS if kind in kinds):
            wide = 30 + 7 * len(words_of(kind))
            if x + wide > self.width - EDGE:
                x, self.y = EDGE, self.y + 20
            self._rect(x, self.y + 4, 12, 12, f"k-{kind.name.lower()}")
            self._text(x + 18, self.y + 14, words_of(kind), "soft")
            x += wide
        self.y += 28

    def _costs(self) -> None:
        costs = self.made.costs
        self._text(EDGE, self.y + 14, f"Cost ${costs.usd:.2f}", "")
        top, most = self.y, max(costs.usd, 0.01)
        bottom = top + COST
        Tree.SubElement(self.root, "line", {"x1": str(EDGE + NAMED), "x2": str(EDGE + NAMED + BAR), "y1": str(bottom),
                                            "y2": str(bottom), "class": "line"})
        for number, (model, sums) in enumerate(costs.models.items()):
            colour = LINES[min(number, len(LINES) - 1)]
            points = [(self._x(self.made.begin), bottom), *(
                (self._x(at), round(bottom - COST * usd / most, 2)) for at, usd in zip(costs.times, sums, strict=True))]
            line = Tree.SubElement(self.root, "polyline", {
                "points": " ".join(f"{x},{y}" for x, y in points), "class": "cost", "stroke": colour})
            _titled(line, f"{model}: ${sums[-1]:.2f}")
            self._rect(EDGE, top + 26 + 16 * number, 10, 10, "", fill=colour)
            self._text(EDGE + 16, top + 35 + 16 * number, f"{_cut(model, 16)} ${sums[-1]:.2f}", "soft", title=model)
        self.y = max(bottom, top + 26 + 16 * len(costs.models)) + 8

    def _rect(self, x: float, y: float, width: float, height: float, kind: str, **more: str) -> Tree.Element:
        return Tree.SubElement(self.root, "rect", {
            "x": str(x), "y": str(y), "width": str(round(width, 2)), "height": str(height), "class": kind, **more})

    def _text(self, x: float, y: float, words: str, kind: str, *, anchor: str = "start", title: str = "") -> None:
        made = Tree.SubElement(self.root, "text", {"x": str(x), "y": str(y), "class": kind, "text-anchor": anchor})
        made.text = _legible(words)
        if title:
            _titled(made, title)


def _style() -> str:
    light = "".join(f".k-{kind.name.lower()}{{fill:{colour}}}" for kind, (colour, _) in COLOURS.items())
    dark = "".join(f".k-{kind.name.lower()}{{fill:{colour}}}" for kind, (_, colour) in COLOURS.items())
    return f"{_BASE}{light}@media(prefers-color-scheme:dark){{{_DARK}{dark}}}"


def _titled(element: Tree.Element, words: str) -> None:
    Tree.SubElement(element, "title").text = _legible(words)


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[:most - 1]}…"


def _legible(words: str) -> str:
    return _CONTROL.sub("�", words)
