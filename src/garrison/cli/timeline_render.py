"""Timeline of a run as lines for a terminal: a bar for each node, then durations, the merge queue and costs. Pure.

Each kind of span has a character of its own, so that a bar reads without colours; a cell shows what took most of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from garrison.cli.render import Line, Span, fit, raw, span, wrapped
from garrison.system import terminal_text
from garrison.system.clock import format_age
from garrison.views.run_timeline import FOR_PEOPLE, Lane, MarkKind, RunTimeline, SpanKind

WIDTH = 100
"""Columns where the output is no terminal."""
BARS: Mapping[SpanKind, tuple[str, str]] = {
    SpanKind.READY: ("·", "dim"), SpanKind.STARTING: ("░", "busy"), SpanKind.WORKING: ("█", "good"),
    SpanKind.CHECKING: ("▓", "busy"), SpanKind.RESTARTING: ("x", "bad"), SpanKind.ASKS: ("?", "due"),
    SpanKind.SIGNAL: ("~", "due"), SpanKind.LIMIT: ("$", "bad"), SpanKind.PARKED: ("p", "due"),
    SpanKind.QUEUED: ("-", "dim"), SpanKind.TESTING: ("=", "busy"), SpanKind.APPROVAL: ("a", "due"),
    SpanKind.STOPPED: ("_", "dim")}
"""Kind of a span → the character of its bar, and its style."""
WORDS: Mapping[SpanKind, str] = {
    SpanKind.READY: "waiting for a free agent", SpanKind.ASKS: "waiting for your answer",
    SpanKind.SIGNAL: "waiting for a signal", SpanKind.LIMIT: "waiting for a limit",
    SpanKind.QUEUED: "in the merge queue", SpanKind.TESTING: "tested by the gate"}
"""Kind of a span → its words, where they are not the kind itself."""
SIGNS: Mapping[MarkKind, tuple[str, str]] = {
    MarkKind.DIED: ("†", "bad"), MarkKind.FAILED: ("✗", "bad"), MarkKind.REJECTED: ("✗", "bad"),
    MarkKind.CONFLICT: ("✗", "bad"), MarkKind.RETRY: ("↻", "due"), MarkKind.LANDED: ("✓", "good"),
    MarkKind.NO_CHANGE: ("=", "good")}
"""Kind of a mark → its sign and style; the others are not shown."""
COSTS = 8
"""Nodes and models whose costs are listed."""


def words_of(kind: SpanKind) -> str:
    return WORDS.get(kind, str(kind))


def length(seconds: float) -> str:
    """Return a length of time in two units: `3 s`, `12 min`, `2 h 05`, `1 d 3 h`."""
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
    """Return everything, `columns` wide."""
    room = columns or WIDTH
    lines = [*wrapped(headline(made), room, "head"), []]
    lines += bars(made, room) if any(lane.spans for lane in made.lanes) else [raw("nothing has started", "dim")]
    lines += [[], *_durations(made, room), *_queue(made, room), *_costs(made, room)]
    lines += [line for problem in made.problems for line in wrapped(problem, room, "bad")]
    return [fit(line, room) for line in lines]


def bars(made: RunTimeline, columns: int) -> list[Line]:
    """Return the axis, a bar for each node, and the characters that occur."""
    names = max(4, *(terminal_text.width(terminal_text.clean(lane.node)) for lane in made.lanes))
    named = min(names, max(8, columns // 4))
    room = max(8, columns - named - 2 - 9)
    step = max((made.end - made.begin) / room, 1e-9)
    lines = [_axis(made, named, room)]
    for lane in made.lanes:
        spent = sum(seconds for kind, seconds in lane.seconds.items() if kind != SpanKind.READY)
        name = terminal_text.pad(terminal_text.fit(terminal_text.clean(lane.node), named), named)
        lines.append(fit([Span(f"{name}  "), *_bar(lane, made, room, step),
                          Span(f"{length(spent) if lane.spans else '':>9}", "dim")], columns))
    return [*lines, *_legend(made, columns)]


def _axis(made: RunTimeline, named: int, room: int) -> Line:
    begin, end = clock(made.begin, day=True) + " UTC", clock(made.end)
    if room < len(begin) + len(end) + 2:
        begin = clock(made.begin)
    return [Span(" " * (named + 2)), Span(begin + " " * max(1, room - len(begin) - len(end)) + end, "dim")]


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
            line[-1] = Span(line[-1].text + character, style)
        else:
            line.append(Span(character, style))
    return line


def _legend(made: RunTimeline, columns: int) -> list[Line]:
    """Return the characters that occur with their words, as many on a line as fit."""
    kinds = {each.kind for lane in made.lanes for each in lane.spans}
    signs = {mark.kind for lane in made.lanes for mark in lane.marks}
    parts = [[Span(BARS[kind][0], BARS[kind][1]), Span(f" {words_of(kind)}", "dim")] for kind in BARS if kind in kinds]
    parts += [[Span(sign, style), Span(f" {kind}", "dim")] for kind, (sign, style) in SIGNS.items() if kind in signs]
    lines: list[Line] = []
    used = columns
    for part in parts:
        wide = sum(terminal_text.width(each.text) for each in part)
        if used + 2 + wide > columns:
            lines.append([])
            used = -2
        lines[-1] += [*([Span("  ")] if lines[-1] else []), *part]
        used += 2 + wide
    return lines


def _durations(made: RunTimeline, columns: int) -> list[Line]:
    """Return where the nodes' time went, the most first."""
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
        lines += [fit([Span(f"  {title}: ", "dim"), span(text)], columns)]
    return lines
