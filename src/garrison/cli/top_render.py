"""Lines of `garrison top`: render the parts of a frame of `views.top_frame`, on a screen or for `--once`. Pure.

All text is cleaned when it becomes a span, so that agents' text cannot control the terminal. Each state has its own
symbol and word, in addition to colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from garrison.cli.render import Line, StyledText, fit, raw, span, width
from garrison.cli.status import STYLES as STATUS_STYLES
from garrison.system import terminal_text
from garrison.system.clock import format_age
from garrison.values import Value
from garrison.views.node_view import first_line
from garrison.views.top_frame import Frame, TopRow, format_bytes

SYMBOLS: Mapping[str, str] = {
    "running": "▶", "new": "▷", "done": "✓", "failed": "✗", "stopped": "■", "corrupt": "‼", "alive": "●",
    "starting": "◌", "elsewhere": "◇", "dead": "†", "lapsed": "†", "lingering": "†", "crashed": "†", "died": "†",
    "terminated": "○", "parked": "‖", "held": "◆", "working": "●", "asks": "?", "queued": "▲", "testing": "▲",
    "landed": "✓", "no change": "=", "kept": "+", "waiting for approval": "?", "rejected": "✗", "undone": "✗",
    "withdrawn": "-", "waiting": "·", "interrupted": "⊘"}
"""State → its symbol."""
STYLES: Mapping[str, str] = {**STATUS_STYLES, "working": "good", "asks": "due", "died": "bad", "crashed": "bad",
                             "parked": "bad", "held": "due", "terminated": "dim", "landed": "dim", "no change": "dim",
                             "kept": "dim", "done": "good", "starting": "busy", "alive": "good"}
"""State → its style."""
LEAST_DOING = 24
"""Minimum width of the column DOING; other columns shrink first."""
NO_RUN = "no run yet; in a repository, `garrison run TASK` starts one"
WIDE = 110
"""Minimum width for queue and deaths side by side."""
WAITS = 4
"""Maximum number of waits for the user listed below the table."""


class Column(Value):
    """Column of the table; `right`: its values are right-aligned."""

    key: str
    title: str
    least: int
    right: bool = False


COLUMNS = (
    Column("state", "STATE", 8), Column("phase", "PHASE", 9), Column("attempt", "ATTEMPT", 7),
    Column("starts", "STARTS", 6), Column("age", "AGE", 4, True), Column("beat", "BEAT", 4, True),
    Column("cpu", "CPU%", 4, True), Column("memory", "MEM", 4, True), Column("cost", "COST", 6, True))
GIVE_WAY = ("phase", "attempt", "starts", "cost", "age", "beat", "memory", "cpu")
"""Columns in the order in which a narrow screen leaves them out; a row's details show all."""


# ---- selecting


def visible(rows: Sequence[TopRow], filtered: str) -> Sequence[TopRow]:
    """Return the rows that match the filter by name, state, run or activity, and the rows of their runs."""
    words = filtered.lower().split()
    if not words:
        return rows
    kept = {row.id for row in rows if all(word in _searched(row) for word in words)}
    runs = {row.run for row in rows if row.id in kept}
    return [row for row in rows if row.id in kept or (row.kind == "run" and row.run in runs)]


def _searched(row: TopRow) -> str:
    return f"{row.name} {row.state} {row.phase} {row.run} {row.doing}".lower()


def index_of(rows: Sequence[TopRow], row: str) -> int:
    """Return the index of a row; if it is gone (or none was selected), the first node's, else 0."""
    indexes = {each.id: index for index, each in enumerate(rows)}
    first = next((index for index, each in enumerate(rows) if each.kind == "node"), 0)
    return indexes.get(row, first)


# ---- rendering


def header(frame: Frame, columns: int) -> list[Line]:
    """Render the home and its runs, then the machine and its use by all garrison processes."""
    machine, used, agents = frame.machine, frame.used, frame.agents
    runs = [row for row in frame.rows if row.kind == "run"]
    words = f"{len(runs)} run{'s' if len(runs) != 1 else ''}: " + ", ".join(row.run for row in runs) if runs else ""
    more = f", {frame.runs_not_shown} more" if frame.runs_not_shown > 0 and runs else ""
    clock = frame.at[11:19] + " UTC"
    tail = f"{words}{more}"
    room = columns - width(raw("garrison top  ")) - len(clock) - 2
    home = _end_of(terminal_text.clean(frame.home), max(10, room - terminal_text.width(tail) - 2))
    left = fit([StyledText("garrison top", "head"), StyledText("  "), span(home, "due"), StyledText("  " + tail)],
               columns - len(clock) - 2)
    first = [*left, StyledText(" " * max(2, columns - width(left) - len(clock))), StyledText(clock, "dim")]
    load = " ".join(f"{number:.1f}" for number in machine.load)
    free = f"{format_bytes(machine.available)} of {format_bytes(machine.total)} free"
    cores = f"{machine.cores} core{'s' if machine.cores != 1 else ''}"
    cpu = "" if used.cpu is None else f"{used.cpu:.0f}% "
    parts: list[tuple[int, Line]] = [
        (0, [StyledText("agents ", "dim"), StyledText(f"{agents.running}", "head"), StyledText(f" of {agents.max}")]),
        (1, [StyledText("use ", "dim"), StyledText(f"{cpu}{format_bytes(used.memory) or '0'}", "head"),
             StyledText(f" in {used.processes} processes", "dim")]),
        (3, [StyledText("load ", "dim"), StyledText(f"{load}", "bad" if machine.load[0] > 2 * machine.cores else ""),
             StyledText(f" on {cores}", "dim")]),
        (4, [StyledText("memory ", "dim"), StyledText(free)]),
        (2, [StyledText("today ", "dim"), StyledText(f"${frame.usd_today:.2f}")])]
    return [fit(first, columns), _joined(parts, columns)]


def _joined(parts: Sequence[tuple[int, Line]], columns: int) -> Line:
    """Join as many parts as fit, lowest rank first."""
    kept = list(parts)
    while len(kept) > 1 and sum(width(part) + 3 for _, part in kept) - 3 > columns:
        kept.remove(max(kept, key=lambda part: part[0]))
    line: Line = []
    for _, part in kept:
        line += [*([StyledText(" · ", "dim")] if line else []), *part]
    return fit(line, columns)


def _end_of(text: str, columns: int) -> str:
    """Return the end of a long path, which tells more than its start."""
    if terminal_text.width(text) <= columns:
        return text
    while terminal_text.width(text) > columns - 1:
        text = text[1:]
    return "…" + text


def table(rows: Sequence[TopRow], columns: int, indexes: Sequence[int] | None = None) -> list[Line]:
    """Render the head, then the rows at `indexes` (default: all). Columns keep their widths while it scrolls."""
    cells = [_cells(row) for row in rows]
    names = [_name(row) for row in rows]
    longest = max([4, *(terminal_text.width(name) for name in names)])
    named = min(longest, max(12, columns * 3 // 10))
    gap = 2 if columns >= WIDE else 1
    kept = [column for column in COLUMNS if column.key not in ("phase", "attempt", "starts", "cost")
            or any(row[column.key] for row in cells)]
    widths = {column.key: max(column.least, *(terminal_text.width(row[column.key]) for row in cells)) if cells
              else column.least for column in kept}
    for key in GIVE_WAY:
        if columns - named - sum(widths.values()) - gap * (len(widths) + 1) >= LEAST_DOING:
            break
        widths.pop(key, None)
    kept = [column for column in kept if column.key in widths]
    lines = [fit([StyledText(terminal_text.pad("NAME", named), "dim"), *(
        StyledText(" " * gap + _aligned(column.title, widths[column.key], right=column.right),
                   "dim") for column in kept),
        StyledText(" " * gap + "DOING", "dim")], columns)]
    for index in range(len(rows)) if indexes is None else indexes:
        row, style = rows[index], STYLES.get(rows[index].state, "")
        name = terminal_text.pad(terminal_text.fit(names[index], named), named)
        line: Line = [StyledText(name, "head" if row.kind == "run" else "")]
        for column in kept:
            text = _aligned(cells[index][column.key], widths[column.key], right=column.right)
            line.append(StyledText(" " * gap + text, style if column.key == "state" else ""))
        doing = span(first_line(row.doing), "bad" if style == "bad" else "")
        lines.append(fit([*line, StyledText(" " * gap), doing if row.doing else StyledText("")], columns))
    return lines


def _aligned(text: str, columns: int, *, right: bool) -> str:
    text = terminal_text.fit(text, columns)
    return " " * (columns - terminal_text.width(text)) + text if right else terminal_text.pad(text, columns)


def _name(row: TopRow) -> str:
    depth = {"run": "", "layer": "  ", "node": "  "}[row.kind]
    name = row.role if row.role in ("guardian", "processor") else row.name
    return f"{SYMBOLS.get(row.state, ' ')} {depth}{terminal_text.clean(name)}"


def _cells(row: TopRow) -> dict[str, str]:
    return {"state": terminal_text.clean(row.state), "phase": terminal_text.clean(row.phase),
            "attempt": f"{row.attempt}/{row.attempts}" if row.attempt else "", "starts": row.starts,
            "age": format_age(row.age_s), "beat": format_age(row.beat_s),
            "cpu": _cpu(row.cpu) if row.processes else "", "memory": format_bytes(row.memory),
            "cost": "" if row.usd is None else f"${row.usd:.2f}"}


def _cpu(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.0f}"


def below(frame: Frame, columns: int, most: int) -> list[Line]:
    """Render queue and deaths below the table, in at most `most` lines; side by side if there is room."""
    if most < 3:
        return []
    listed = waiting(frame, columns, min(WAITS + 1, most - 3)) if frame.waits and most >= 5 else []
    most -= len(listed) + bool(listed)
    return [*([raw(""), *listed] if listed else []), *_queue_and_deaths(frame, columns, most)]


def waiting(frame: Frame, columns: int, most: int) -> list[Line]:
    """Render waits for the user: their number, then each with its question or reason."""
    lines = [[StyledText("waits for you", "due"), StyledText(f"  {len(frame.waits)}", "due")]]
    several = len({wait.run for wait in frame.waits}) > 1
    for wait in frame.waits[:max(0, most - 1)]:
        name = f"{wait.node or wait.run}{f' of {wait.run}' if several and wait.node else ''}"
        lines.append(fit([StyledText("  "), span(wait.kind, "due"), StyledText("  "), span(name), StyledText("  "),
                          span(first_line(wait.shown_text), "dim")], columns))
    return lines


def _queue_and_deaths(frame: Frame, columns: int, most: int) -> list[Line]:
    if columns >= WIDE:
        half = columns // 2 - 1
        left, right = landing(frame, half, most - 1), events(frame, columns - half - 2, most - 1)
        return [raw(""), *([*_padded(ours, half), StyledText("  "), *other]
                           for ours, other in zip_longest(left, right, fillvalue=raw("")))]
    waiting = landing(frame, columns, max(2, most // 2) - 1)
    return [raw(""), *waiting, *events(frame, columns, max(1, most - 1 - len(waiting)))]


def _padded(line: Line, columns: int) -> Line:
    line = fit(line, columns)
    return [*line, StyledText(" " * (columns - width(line)))]


def landing(frame: Frame, columns: int, most: int) -> list[Line]:
    """Render the merge queue: its title, then its entries in order."""
    entries = frame.landing
    title: Line = [StyledText("merge queue", "head"), StyledText(f"  {len(entries)}" if entries else "  empty", "dim")]
    if frame.paused:
        title += [StyledText("  paused: ", "due"), span(first_line("; ".join(frame.paused)), "due")]
    lines = [fit(title, columns)]
    several = len({entry.run for entry in entries}) > 1
    for entry in entries[:max(0, most - 1)]:
        of_run = f" of {entry.run}" if several else ""
        lines.append(fit([StyledText(f"{entry.position:>3} "), span(entry.node + of_run), StyledText("  "),
                          span(entry.status, "busy" if entry.status in ("testing", "landing") else "due"),
                          StyledText(f"  {format_age(entry.age_s)}", "dim"), StyledText("  "),
                          span(first_line(entry.doing), "dim")], columns))
    return lines


def events(frame: Frame, columns: int, most: int) -> list[Line]:
    """Render the latest deaths, respawns and parkings, latest first: time, kind, agent, reason."""
    found = frame.events
    title: Line = [StyledText("deaths and respawns", "head"), *([] if found else raw("  none", "dim"))]
    lines = [fit(title, columns)]
    for event in found[:max(0, most - 1)]:
        agent = event.agent.partition("@")[0]
        style = {"died": "bad", "parked": "bad"}.get(event.kind, "good")
        symbol = {"died": "†", "parked": "‖"}.get(event.kind, "↻")
        lines.append(fit([StyledText(event.at[11:19] + " ", "dim"), StyledText(symbol + " ", style), span(agent),
                          StyledText(f"#{event.incarnation} " if event.incarnation else " ", "dim"),
                          StyledText(event.kind, style),
                          StyledText("  "), span(first_line(event.why), "dim"),
                          StyledText(f"  ({event.run})" if frame.runs_not_shown else "", "dim")], columns))
    return lines


def plain(frame: Frame, columns: int | None) -> list[Line]:
    """Render one complete frame for pipes and `--once`; not cut if `columns` is None."""
    room = columns or 400
    lines = [*header(frame, room), [], *table(frame.rows, room)]
    if not frame.rows:
        lines[-1] = raw(NO_RUN, "dim")
    lines += [[], *waiting(frame, room, 1000)] if frame.waits else []
    lines += [[], *landing(frame, room, 1000), [], *events(frame, room, 21)]
    return [*lines, *(raw(terminal_text.clean(problem), "bad") for problem in frame.problems)]
