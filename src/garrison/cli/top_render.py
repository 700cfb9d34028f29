"""Screen of `garrison top`: turn a frame of `views.top_frame` and a selection into exactly so many lines. Pure.

No terminal and no library: every text goes through `span`, so that nothing an agent wrote reaches the screen as
anything but words. Each state has its own symbol and word, so that colours are only a help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from garrison.cli.render import Line, Span, fit, raw, span, width, wrapped
from garrison.cli.status_render import COLOURS
from garrison.system import terminal_text
from garrison.system.clock import format_age
from garrison.views.node_state import first_line
from garrison.views.top_frame import details, size

SIGNS: Mapping[str, str] = {
    "running": "▶", "new": "▷", "done": "✓", "failed": "✗", "stopped": "■", "corrupt": "‼", "alive": "●",
    "starting": "◌", "elsewhere": "◇", "dead": "†", "lapsed": "†", "lingering": "†", "crashed": "†", "died": "†",
    "terminated": "○", "parked": "‖", "held": "◆", "working": "●", "asks": "?", "landing": "▲", "merged": "✓",
    "waiting": "·"}
"""State → its sign."""
_COLOURS: Mapping[str, str] = {**COLOURS, "working": "good", "asks": "due", "died": "bad", "crashed": "bad",
                               "parked": "bad", "held": "due", "terminated": "dim", "merged": "dim", "done": "good",
                               "landing": "due", "starting": "busy", "alive": "good"}
KEYS: Sequence[tuple[str, str]] = (
    ("↑↓", "move"), ("⏎", "info"), ("a", "attach"), ("l", "logs"), ("w", "why"), ("r", "respawn"), ("p", "park"),
    ("u", "unpark"), ("/", "filter"), ("q", "quit"))
"""What the last line shows: key and what it does."""
LEAST_DOING = 24
"""Columns below which other columns give way to what a row does."""
WIDE = 110
"""Columns from which queue and deaths stand side by side."""


@dataclass(frozen=True)
class Column:
    """A column of the table: its title, its least width, whether numbers stand in it."""

    key: str
    title: str
    least: int
    right: bool = False


COLUMNS = (
    Column("state", "STATE", 8), Column("phase", "PHASE", 9), Column("try", "TRY", 3), Column("lives", "LIVES", 5),
    Column("age", "AGE", 4, True), Column("sign", "SIGN", 4, True), Column("cpu", "CPU%", 4, True),
    Column("memory", "MEM", 4, True), Column("cost", "COST", 6, True))
GIVE_WAY = ("phase", "try", "lives", "cost", "age", "sign", "memory", "cpu")
"""Columns in the order in which they give way on a narrow screen; details show them all."""


@dataclass(frozen=True)
class Chosen:
    """What a person has chosen: the row (its id), the first row shown, the filter, and what stands over the table."""

    row: str = ""
    first: int = 0
    filter: str = ""
    typing: bool = False
    """Whether the filter is being typed."""
    ask: str = ""
    """A question that `y` answers."""
    note: str = ""
    """The last thing to say: what a command said, or why it failed."""
    bad: bool = False
    title: str = ""
    """Of the text over the table, '' if there is none."""
    text: Sequence[str] = field(default_factory=tuple)
    scrolled: int = 0


# ---------------------------------------------------------------------------------------------------------- choosing


def visible(frame: Mapping[str, Any], chosen: Chosen) -> list[Mapping[str, Any]]:
    """The rows that the filter lets through: by name, state, run or what they do; a run's own row stays with any."""
    words = chosen.filter.lower().split()
    rows: list[Mapping[str, Any]] = frame["rows"]
    if not words:
        return rows
    kept = {row["id"] for row in rows if all(word in _searched(row) for word in words)}
    runs = {row["run"] for row in rows if row["id"] in kept}
    return [row for row in rows if row["id"] in kept or (row["kind"] == "run" and row["run"] in runs)]


def _searched(row: Mapping[str, Any]) -> str:
    return f"{row['name']} {row['state']} {row['phase']} {row['run']} {row['doing']}".lower()


def place_of(rows: Sequence[Mapping[str, Any]], row: str) -> int:
    """Where a row stands; if it is there no more (or none was chosen), the first node, else the first row."""
    places = {one["id"]: place for place, one in enumerate(rows)}
    first = next((place for place, one in enumerate(rows) if one["kind"] == "node"), 0)
    return places.get(row, first)


def selected(frame: Mapping[str, Any], chosen: Chosen) -> Mapping[str, Any] | None:
    """The row that is chosen, None where there is none."""
    rows = visible(frame, chosen)
    return rows[place_of(rows, chosen.row)] if rows else None


def scrolled_to(first: int, place: int, room: int, count: int) -> int:
    """The first row to show, so that `place` is among `room` rows and no room is wasted."""
    first = min(max(first, place - room + 1), place)
    return max(0, min(first, count - room))


# ---------------------------------------------------------------------------------------------------------- painting


@dataclass(frozen=True)
class Picture:
    """A screen: its lines, which of them is the chosen row (None: none), and the first row shown."""

    lines: list[Line]
    marked: int | None
    first: int
    begin: int = 0
    """The line of the first row of the table."""


def picture(frame: Mapping[str, Any] | None, chosen: Chosen, columns: int, rows: int) -> Picture:
    """Exactly `rows` lines of at most `columns`."""
    if frame is None:
        return Picture(_filled([raw("looking …", "dim")], rows), None, 0)
    top = header(frame, columns)
    bottom = [*_said(frame, chosen, columns), keys(columns, chosen)]
    if chosen.title:
        return Picture([*top, *_text(chosen, columns, rows - len(top) - len(bottom)), *bottom][:rows], None,
                       chosen.first)
    shown = visible(frame, chosen)
    left = rows - len(top) - len(bottom) - 1
    below = _below(frame, columns, max(left * 2 // 5, left - max(1, len(shown))))
    room = max(1, left - len(below))
    place = place_of(shown, chosen.row)
    first = scrolled_to(chosen.first, place, room, len(shown))
    head, *body = table(shown, columns, indexes=range(first, min(first + room, len(shown))))
    if not shown:
        body = [raw("  nothing matches the filter" if chosen.filter else "  no run yet; `garrison launch` starts one",
                    "dim")]
    lines = [fit(line, columns) for line in [*top, head, *_filled(body, room), *below, *bottom][:rows]]
    return Picture(lines, len(top) + 1 + place - first if shown else None, first, len(top) + 1)


def _filled(lines: list[Line], room: int) -> list[Line]:
    return [*lines[:room], *([] for _ in range(room - len(lines)))]


def header(frame: Mapping[str, Any], columns: int) -> list[Line]:
    """The home and its runs; the machine and what all of garrison's trees take of it."""
    machine, used, agents = frame["machine"], frame["used"], frame["agents"]
    runs = [row for row in frame["rows"] if row["kind"] == "run"]
    words = f"{len(runs)} run{'s' if len(runs) != 1 else ''}: " + ", ".join(row["run"] for row in runs) if runs else ""
    more = f", {frame['runs_not_shown']} more" if frame["runs_not_shown"] > 0 and runs else ""
    clock = str(frame["at"])[11:19] + " UTC"
    tail = f"{words}{more}"
    room = columns - width(raw("garrison top  ")) - len(clock) - 2
    home = _tail_of(terminal_text.clean(frame["home"]), max(10, room - terminal_text.width(tail) - 2))
    left = fit([Span("garrison top", "head"), Span("  "), span(home, "due"), Span("  " + tail)],
               columns - len(clock) - 2)
    first = [*left, Span(" " * max(2, columns - width(left) - len(clock))), Span(clock, "dim")]
    load = " ".join(f"{one:.1f}" for one in machine["load"])
    free = f"{size(machine['memory_available'])} of {size(machine['memory_total'])} free"
    cores = f"{machine['cores']} core{'s' if machine['cores'] != 1 else ''}"
    cpu = "" if used["cpu"] is None else f"{used['cpu']:.0f}% "
    parts: list[tuple[int, Line]] = [
        (0, [Span("agents ", "dim"), Span(f"{agents['running']}", "head"), Span(f" of {agents['max']}")]),
        (1, [Span("use ", "dim"), Span(f"{cpu}{size(used['memory']) or '0'}", "head"),
             Span(f" in {used['processes']} processes", "dim")]),
        (3, [Span("load ", "dim"), Span(f"{load}", "bad" if machine["load"][0] > 2 * machine["cores"] else ""),
             Span(f" on {cores}", "dim")]),
        (4, [Span("memory ", "dim"), Span(free)]),
        (2, [Span("today ", "dim"), Span(f"${frame['usd_today']:.2f}")])]
    return [fit(first, columns), _joined(parts, columns)]


def _joined(parts: Sequence[tuple[int, Line]], columns: int) -> Line:
    """The parts, each with its rank, side by side: as many as fit, those of the lowest rank first."""
    kept = list(parts)
    while len(kept) > 1 and sum(width(part) + 3 for _, part in kept) - 3 > columns:
        kept.remove(max(kept, key=lambda part: part[0]))
    line: Line = []
    for _, part in kept:
        line += [*([Span(" · ", "dim")] if line else []), *part]
    return fit(line, columns)


def _tail_of(text: str, columns: int) -> str:
    """The end of a path that is too long: it says more than its beginning."""
    if terminal_text.width(text) <= columns:
        return text
    while terminal_text.width(text) > columns - 1:
        text = text[1:]
    return "…" + text


def table(rows: Sequence[Mapping[str, Any]], columns: int, indexes: Sequence[int] | None = None) -> list[Line]:
    """The table's head, then the rows at `indexes` (default: all). Columns keep their widths while it scrolls."""
    cells = [_cells(row) for row in rows]
    names = [_name(row) for row in rows]
    longest = max([4, *(terminal_text.width(name) for name in names)])
    named = min(longest, max(12, columns * 3 // 10))
    gap = 2 if columns >= WIDE else 1
    kept = [column for column in COLUMNS if column.key not in ("phase", "try", "lives", "cost")
            or any(one[column.key] for one in cells)]
    widths = {column.key: max(column.least, *(terminal_text.width(one[column.key]) for one in cells)) if cells
              else column.least for column in kept}
    for key in GIVE_WAY:
        if columns - named - sum(widths.values()) - gap * (len(widths) + 1) >= LEAST_DOING:
            break
        widths.pop(key, None)
    kept = [column for column in kept if column.key in widths]
    lines = [fit([Span(terminal_text.pad("NAME", named), "dim"), *(
        Span(" " * gap + _aligned(column.title, widths[column.key], right=column.right), "dim") for column in kept),
        Span(" " * gap + "DOING", "dim")], columns)]
    for index in range(len(rows)) if indexes is None else indexes:
        row, style = rows[index], _COLOURS.get(rows[index]["state"], "")
        name = terminal_text.pad(terminal_text.fit(names[index], named), named)
        line: Line = [Span(name, "head" if row["kind"] == "run" else "")]
        for column in kept:
            text = _aligned(cells[index][column.key], widths[column.key], right=column.right)
            line.append(Span(" " * gap + text, style if column.key == "state" else ""))
        told = span(first_line(row["doing"]), "bad" if style == "bad" else "")
        lines.append(fit([*line, Span(" " * gap), told if row["doing"] else Span("")], columns))
    return lines


def _aligned(text: str, columns: int, *, right: bool) -> str:
    text = terminal_text.fit(text, columns)
    return " " * (columns - terminal_text.width(text)) + text if right else terminal_text.pad(text, columns)


def _name(row: Mapping[str, Any]) -> str:
    depth = {"run": "", "layer": "  ", "node": "  "}[row["kind"]]
    name = row["role"] if row["role"] in ("guardian", "processor") else row["name"]
    return f"{SIGNS.get(row['state'], ' ')} {depth}{terminal_text.clean(str(name))}"


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    return {"state": terminal_text.clean(row["state"]), "phase": terminal_text.clean(row["phase"]),
            "try": f"{row['attempt']}/{row['attempts']}" if row["attempt"] else "", "lives": row["lives"],
            "age": format_age(row["age_s"]), "sign": format_age(row["beat_s"]),
            "cpu": _cpu(row["cpu"]) if row["processes"] else "", "memory": size(row["memory"]),
            "cost": "" if row["usd"] is None else f"${row['usd']:.2f}"}


def _cpu(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.0f}"


def _below(frame: Mapping[str, Any], columns: int, most: int) -> list[Line]:
    """Queue and deaths below the table, in at most so many lines; side by side where that fits."""
    if most < 3:
        return []
    if columns >= WIDE:
        half = columns // 2 - 1
        left, right = landing(frame, half, most - 1), events(frame, columns - half - 2, most - 1)
        length = max(len(left), len(right))
        return [raw(""), *([*_padded(one, half), Span("  "), *other]
                           for one, other in zip(_filled(left, length), _filled(right, length), strict=True))]
    waiting = landing(frame, columns, max(2, most // 2) - 1)
    return [raw(""), *waiting, *events(frame, columns, max(1, most - 1 - len(waiting)))]


def _padded(line: Line, columns: int) -> Line:
    line = fit(line, columns)
    return [*line, Span(" " * (columns - width(line)))]


def landing(frame: Mapping[str, Any], columns: int, most: int) -> list[Line]:
    """The merge queue: its title, then entries, first in first."""
    entries = frame["landing"]
    title: Line = [Span("merge queue", "head"), Span(f"  {len(entries)}" if entries else "  empty", "dim")]
    if frame["paused"]:
        title += [Span("  paused: ", "due"), span(first_line("; ".join(frame["paused"])), "due")]
    lines = [fit(title, columns)]
    several = len({entry["run"] for entry in entries}) > 1
    for entry in entries[:max(0, most - 1)]:
        run = f" of {entry['run']}" if several else ""
        lines.append(fit([Span(f"{entry['position']:>3} "), span(entry["node"] + run), Span("  "),
                          span(entry["status"], "busy" if entry["status"] in ("testing", "landing") else "due"),
                          Span(f"  {format_age(entry['age_s'])}", "dim"), Span("  "),
                          span(first_line(entry["doing"]), "dim")],
                         columns))
    return lines


def events(frame: Mapping[str, Any], columns: int, most: int) -> list[Line]:
    """The latest deaths, respawns and parkings, youngest first: when, what, who, why."""
    found = frame["events"]
    title: Line = [Span("deaths and respawns", "head"), *([] if found else raw("  none", "dim"))]
    lines = [fit(title, columns)]
    for event in found[:max(0, most - 1)]:
        who, _, run = str(event["agent"]).partition("@")
        style = {"died": "bad", "parked": "bad"}.get(event["kind"], "good")
        sign = {"died": "†", "parked": "‖"}.get(event["kind"], "↻")
        lines.append(fit([Span(str(event["at"])[11:19] + " ", "dim"), Span(sign + " ", style), span(who),
                          Span(f"#{event['life']} " if event["life"] else " ", "dim"), Span(event["kind"], style),
                          Span("  "), span(first_line(event["why"]), "dim"),
                          Span(f"  ({run})" if frame["runs_not_shown"] else "", "dim")], columns))
    return lines


def _said(frame: Mapping[str, Any], chosen: Chosen, columns: int) -> list[Line]:
    """The lines above the keys: a question, the filter, what a command said, a problem, or what the chosen row does.
    Always as many, so that nothing jumps while rows are chosen."""
    row = selected(frame, chosen)
    lines: list[Line] = []
    if chosen.ask:
        lines = wrapped(f"{chosen.ask}  y: yes, any other key: no", columns, "due", most=2)
    elif chosen.typing:
        lines = [fit([Span("filter: ", "due"), Span(chosen.filter if chosen.filter.strip() else ""), Span("█"),
                      Span("  ⏎ keeps it, Esc drops it", "dim")], columns)]
    elif chosen.note:
        lines = wrapped(first_line(chosen.note), columns, "bad" if chosen.bad else "good", most=2)
    elif frame["problems"]:
        lines = wrapped(first_line(frame["problems"][0]), columns, "bad", most=2)
    elif chosen.filter:
        lines = [fit([Span("filter: ", "due"), span(chosen.filter), Span("  / changes it, Esc drops it", "dim")],
                     columns)]
    elif row is not None:
        told = first_line(row["doing"]) or row["state"]
        name, *more = wrapped(f"{row['name']}: {told}", columns, most=2)
        first = terminal_text.clean(str(row["name"]))
        lines = [[Span(first, "head"), *raw(name[0].text[len(first):])] if name[0].text.startswith(first) else name,
                 *more]
    return _filled(lines, 2)


def keys(columns: int, chosen: Chosen | None = None) -> Line:
    """The keys, as many as fit; the last, which leaves, always does."""
    shown = (("↑↓", "scroll"), ("Esc", "back")) if chosen and chosen.title else KEYS
    gap = "  " if columns >= 96 else " "
    parts: list[Line] = [[Span(key, "head"), Span(f" {word}")] for key, word in shown]
    while len(parts) > 1 and sum(map(width, parts)) + len(gap) * (len(parts) - 1) > columns:
        del parts[-2]
    line: Line = []
    for part in parts:
        line += [*([Span(gap)] if line else []), *part]
    return fit(line, columns)


def _text(chosen: Chosen, columns: int, room: int) -> list[Line]:
    lines = text_lines(chosen, columns)
    last = max(0, len(lines) - (room - 1))
    at = min(chosen.scrolled, last)
    more = f"  {at + 1}-{min(len(lines), at + room - 1)} of {len(lines)}" if last else ""
    return [fit([span(chosen.title, "head"), Span(more, "dim")], columns), *_filled(lines[at:at + room - 1], room - 1)]


def text_lines(chosen: Chosen, columns: int) -> list[Line]:
    """The text that stands over the table, wrapped, indentation kept."""
    found: list[Line] = []
    for one in chosen.text:
        clean = "".join(terminal_text.clean_lines(one)[:1]).expandtabs()
        if terminal_text.width(clean) <= columns:
            found.append(raw(clean))
            continue
        indent = len(clean) - len(clean.lstrip())
        parts = wrapped(clean, max(8, columns - indent), indent="", most=20)
        found += [[Span(" " * min(indent, columns // 2)), *part] for part in parts]
    return found


def details_text(row: Mapping[str, Any]) -> list[str]:
    """A row in full, as lines."""
    return [f"{name:<10} {terminal_text.clean(text)}" for name, text in details(row)]


def plain(frame: Mapping[str, Any], columns: int | None) -> list[Line]:
    """One frame with nothing left out, for pipes and `--once`; not cut where `columns` is None."""
    room = columns or 400
    lines = [*header(frame, room), [], *table(frame["rows"], room)]
    if not frame["rows"]:
        lines[-1] = raw("no run yet; `garrison launch` starts one", "dim")
    lines += [[], *landing(frame, room, 1000), [], *events(frame, room, 21)]
    return [*lines, *(raw(terminal_text.clean(problem), "bad") for problem in frame["problems"])]
