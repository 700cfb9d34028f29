"""`garrison timeline`: show how a run spent time and money, as bars, as a picture or as JSON.

Each kind of span has its own character, so that bars are readable without colours; a cell shows its longest span. The
picture is built as a tree, so that names and reasons cannot become markup; it has no scripts and loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as Tree

import click

from garrison.cli import completion
from garrison.cli.commands import Command
from garrison.cli.home import report_no_runs
from garrison.cli.options import home_option, json_option
from garrison.cli.output import print_json, print_message
from garrison.cli.render import Line, StyledText, fit, raw, span, wrapped
from garrison.cli.resolve import latest_run, open_store
from garrison.cli.terminal import show, stdout_terminal
from garrison.directories import find_home
from garrison.errors import GarrisonError
from garrison.records.run import list_runs
from garrison.system import terminal_text
from garrison.system.clock import format_age
from garrison.views.run_timeline import FOR_PEOPLE, Lane, MarkKind, RunTimeline, SpanKind, TimelineReader


@click.command(cls=Command, examples=(
    ("garrison timeline", "the latest run: a bar per node, then durations, queue and costs"),
    ("garrison timeline crew-1 --svg crew-1.svg", "the same as a picture"),
    ("garrison timeline crew-1 --json | jq '.estimate.seconds'", "for programs; times are seconds since the epoch"),
))
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write it as a picture to FILE.")
@json_option
@home_option
def timeline(run: str | None, svg: Path | None, as_json: bool, home: str | None) -> None:
    """Show when each node of RUN (default: the latest) worked, died, and waited for people, queue, limits or an agent.

    Also shows the estimated rest (without waits for people), the speed of the merge queue, and costs.
    """
    place = find_home(home)
    runs = list_runs(place)
    if run is None and not runs:
        report_no_runs(place)
        return
    reader = TimelineReader(place, latest_run(open_store(place), run))
    made = reader.read()
    if svg is not None:
        try:
            svg.write_text(to_svg(made), encoding="utf-8")
        except OSError as error:
            raise GarrisonError(f"cannot write {svg}: {error.strerror}; name another FILE") from None
    if as_json:
        print_json(made)
    elif svg is not None:
        print_message(f"wrote {svg}")
    else:
        here = stdout_terminal()
        show(render(made, here.columns), here)


# ---- as text

WIDTH = 100
"""Width if the output is not a terminal."""
BARS: Mapping[SpanKind, tuple[str, str]] = {
    SpanKind.READY: ("·", "dim"), SpanKind.STARTING: ("░", "busy"), SpanKind.WORKING: ("█", "good"),
    SpanKind.CHECKING: ("▓", "busy"), SpanKind.RESTARTING: ("x", "bad"), SpanKind.ASKS: ("?", "due"),
    SpanKind.SIGNAL: ("~", "due"), SpanKind.LIMIT: ("$", "bad"), SpanKind.PARKED: ("p", "due"),
    SpanKind.QUEUED: ("-", "dim"), SpanKind.TESTING: ("=", "busy"), SpanKind.APPROVAL: ("a", "due"),
    SpanKind.STOPPED: ("_", "dim")}
"""Kind of a span → character and style of its bar."""
WORDS: Mapping[SpanKind, str] = {
    SpanKind.READY: "waiting for a free agent", SpanKind.ASKS: "waiting for your answer",
    SpanKind.SIGNAL: "waiting for a signal", SpanKind.LIMIT: "waiting for a limit",
    SpanKind.QUEUED: "in the merge queue", SpanKind.TESTING: "tested by the gate"}
"""Kind of a span → its words, if different."""
SIGNS: Mapping[MarkKind, tuple[str, str]] = {
    MarkKind.DIED: ("†", "bad"), MarkKind.FAILED: ("✗", "bad"), MarkKind.REJECTED: ("✗", "bad"),
    MarkKind.CONFLICT: ("✗", "bad"), MarkKind.RETRY: ("↻", "due"), MarkKind.LANDED: ("✓", "good"),
    MarkKind.NO_CHANGE: ("=", "good"), MarkKind.KEPT: ("+", "good")}
"""Kind of a mark → its sign and style; others are not shown."""
COSTS = 8
"""Maximum number of nodes and models with listed costs."""


def words_of(kind: SpanKind) -> str:
    return WORDS.get(kind, str(kind))


def length(seconds: float) -> str:
    """Return a duration in two units: `3 s`, `12 min`, `2 h 05`, `1 d 3 h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02}"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def clock(at: float, *, day: bool = False) -> str:
    """Return the time of day in UTC, with the date if `day`."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M" if day else "%H:%M")


def headline(made: RunTimeline) -> str:
    """Return the run, its duration and the estimate in one sentence."""
    rest = ""
    if made.estimate is not None:
        nodes = "1 node" if made.estimate.nodes == 1 else f"{made.estimate.nodes} nodes"
        rest = f", about {length(made.estimate.seconds)} left for {nodes} (without waits for people)"
    return f"run {made.run}: {made.status}, {length(made.end - made.begin)}{rest}"


def render(made: RunTimeline, columns: int | None) -> list[Line]:
    """Render everything, `columns` wide."""
    room = columns or WIDTH
    lines = [*wrapped(headline(made), room, "head"), []]
    lines += bars(made, room) if any(lane.spans for lane in made.lanes) else [raw("nothing has started", "dim")]
    lines += [[], *_durations(made, room), *_queue(made, room), *_costs(made, room)]
    lines += [line for problem in made.problems for line in wrapped(problem, room, "bad")]
    return [fit(line, room) for line in lines]


def bars(made: RunTimeline, columns: int) -> list[Line]:
    """Return the axis, a bar per node, and the legend."""
    names = max(4, *(terminal_text.width(terminal_text.clean(lane.node)) for lane in made.lanes))
    named = min(names, max(8, columns // 4))
    room = max(8, columns - named - 2 - 9)
    step = max((made.end - made.begin) / room, 1e-9)
    lines = [_axis(made, named, room)]
    for lane in made.lanes:
        spent = sum(seconds for kind, seconds in lane.seconds.items() if kind != SpanKind.READY)
        name = terminal_text.pad(terminal_text.fit(terminal_text.clean(lane.node), named), named)
        lines.append(fit([StyledText(f"{name}  "), *_bar(lane, made, room, step),
                          StyledText(f"{length(spent) if lane.spans else '':>9}", "dim")], columns))
    return [*lines, *_legend(made, columns)]


def _axis(made: RunTimeline, named: int, room: int) -> Line:
    begin, end = clock(made.begin, day=True) + " UTC", clock(made.end)
    if room < len(begin) + len(end) + 2:
        begin = clock(made.begin)
    return [StyledText(" " * (named + 2)), StyledText(begin + " " * max(1, room - len(begin) - len(end)) + end, "dim")]


def _bar(lane: Lane, made: RunTimeline, room: int, step: float) -> Line:
    shares: list[dict[SpanKind, float]] = [{} for _ in range(room)]
    for each in lane.spans:
        begin, end = each.begin - made.begin, (made.end if each.end is None else each.end) - made.begin
        for cell in range(max(0, int(begin / step)), min(room, int(end / step) + 1)):
            part = min(end, (cell + 1) * step) - max(begin, cell * step)
            shares[cell][each.kind] = shares[cell].get(each.kind, 0.0) + max(part, 0.0)
    cells = [BARS[max(share, key=lambda kind: share[kind])] if share else (" ", "") for share in shares]
    for mark in lane.marks:
        if mark.kind in SIGNS:
            cells[min(room - 1, max(0, int((mark.at - made.begin) / step)))] = SIGNS[mark.kind]
    line: Line = []
    for character, style in cells:
        if line and line[-1].style == style:
            line[-1] = StyledText(line[-1].text + character, style)
        else:
            line.append(StyledText(character, style))
    return line


def _legend(made: RunTimeline, columns: int) -> list[Line]:
    """Return the legend of the characters used, with as many per line as fit."""
    kinds = {each.kind for lane in made.lanes for each in lane.spans}
    signs = {mark.kind for lane in made.lanes for mark in lane.marks}
    parts = [[StyledText(BARS[kind][0], BARS[kind][1]),
              StyledText(f" {words_of(kind)}", "dim")] for kind in BARS if kind in kinds]
    parts += [[StyledText(sign, style), StyledText(f" {kind}", "dim")] for kind,
              (sign, style) in SIGNS.items() if kind in signs]
    lines: list[Line] = []
    used = columns
    for part in parts:
        wide = sum(terminal_text.width(each.text) for each in part)
        if used + 2 + wide > columns:
            lines.append([])
            used = -2
        lines[-1] += [*([StyledText("  ")] if lines[-1] else []), *part]
        used += 2 + wide
    return lines


def _durations(made: RunTimeline, columns: int) -> list[Line]:
    """Return how the nodes spent their time, longest first."""
    spent = sorted(((kind, made.seconds[kind]) for kind in BARS if made.seconds.get(kind)), key=lambda item: -item[1])
    if not spent:
        return []
    people = sum(seconds for kind, seconds in spent if kind in FOR_PEOPLE)
    text = ", ".join(f"{words_of(kind)} {length(seconds)}" for kind, seconds in spent)
    lines = wrapped(f"time of all nodes: {text}", columns)
    return [*lines, *(wrapped(f"waiting for people: {length(people)}", columns, "due") if people else [])]


def _queue(made: RunTimeline, columns: int) -> list[Line]:
    queue = made.queue
    if not queue.landed and not queue.gates:
        return []
    parts = [f"{queue.landed} landed", f"{queue.per_hour:.1f} an hour" if queue.per_hour and queue.landed > 1 else "",
             f"{len(queue.gates)} gate runs, {queue.red} red" if queue.gates else "",
             f"a gate run takes {format_age(queue.gate_s)}" if queue.gate_s is not None else "",
             f"an entry lands after {format_age(queue.wait_s)}" if queue.wait_s is not None else ""]
    return wrapped("merge queue: " + ", ".join(part for part in parts if part), columns)


def _costs(made: RunTimeline, columns: int) -> list[Line]:
    if not made.costs.usd:
        return []
    lines = wrapped(f"cost: ${made.costs.usd:.2f}", columns)
    for title, series in (("by node", made.costs.nodes), ("by model", made.costs.models)):
        sums = [(name, part[-1]) for name, part in series.items()][:COSTS]
        text = ", ".join(f"{name} ${usd:.2f}" for name, usd in sums)
        lines += [fit([StyledText(f"  {title}: ", "dim"), span(text)], columns)]
    return lines


# ---- as a picture

NAMED, BAR, ROW, EDGE = 180, 900, 24, 16
"""Pixels: width of the names, width of the bars, height of a row, margin."""
COST = 90
"""Height of the cost curve."""
COLOURS: Mapping[SpanKind, tuple[str, str]] = {
    SpanKind.READY: ("#dadad2", "#3d4341"), SpanKind.STARTING: ("#9cc3de", "#3f6480"),
    SpanKind.WORKING: ("#2f7fb5", "#4d9fd6"), SpanKind.CHECKING: ("#6a9f7c", "#5f9d77"),
    SpanKind.RESTARTING: ("#c9443e", "#d9605a"), SpanKind.ASKS: ("#d98a1f", "#e0a046"),
    SpanKind.SIGNAL: ("#b98f4d", "#a98a55"), SpanKind.LIMIT: ("#8a3f9b", "#b06cc2"),
    SpanKind.PARKED: ("#b39b32", "#b8a44b"), SpanKind.QUEUED: ("#b9abdd", "#5c5086"),
    SpanKind.TESTING: ("#7a5fc0", "#9a84de"), SpanKind.APPROVAL: ("#d9a441", "#d9ae5c"),
    SpanKind.STOPPED: ("#aeb2ac", "#575e5b")}
"""Kind of a span → its colour, light and dark, as on the page."""
LINES = ("#2f7fb5", "#d98a1f", "#7a5fc0", "#6a9f7c", "#c9443e", "#8a8f8b")
"""Colours of the cost curves, by model."""
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML forbids, or that should not be shown raw."""
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
        for each in lane.spans:
            begin, end = self._x(each.begin), self._x(self.made.end if each.end is None else each.end)
            rect = self._rect(begin, self.y + 4, max(end - begin, 1.0), ROW - 8, f"k-{each.kind.name.lower()}")
            attempt = f", attempt {each.attempt}" if each.attempt > 1 else ""
            text = f": {each.text}" if each.text else ""
            _titled(rect, f"{lane.node}: {words_of(each.kind)}{attempt}, {length(each.length(self.made.end))}{text}")
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
