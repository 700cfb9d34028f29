"""Render text for a terminal: styled spans, lines, tables that fit the width, with or without colours. Pure.

All text is cleaned when it becomes a span, so that agents' text cannot control the terminal. `columns` is the width of
the terminal; None means no limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from garrison.system import terminal_text
from garrison.values import Value

STYLES: Mapping[str, str] = {
    "": "", "head": "1", "dim": "2", "good": "32", "busy": "33", "due": "36", "bad": "1;31",
}
"""Style → numbers of its SGR sequence."""
GAP = "  "


class StyledText(Value):
    """Clean text in one style."""

    text: str
    style: str = ""


Line = list[StyledText]


def span(value: object, style: str = "") -> StyledText:
    """Return `value` as clean text; `-` for None and ''."""
    text = "" if value is None else terminal_text.clean(str(value))
    return StyledText(text or "-", style if text else "dim")


def raw(text: str, style: str = "") -> Line:
    return [StyledText(text, style)]


def width(line: Line) -> int:
    return sum(terminal_text.width(part.text) for part in line)


def fit(line: Line, columns: int | None) -> Line:
    """Return the line, cut to `columns`."""
    if columns is None or width(line) <= columns:
        return line
    result: Line = []
    for part in line:
        room = columns - width(result)
        result.append(StyledText(terminal_text.fit(part.text, room), part.style))
        if terminal_text.width(part.text) > room:
            break
    return result


def wrapped(text: str, columns: int | None, style: str = "", indent: str = "", most: int = 8) -> list[Line]:
    """Return `text`, cleaned and wrapped into at most `most` lines, indented after the first."""
    text = terminal_text.clean(text)
    if columns is None:
        return [[StyledText(text, style)]]
    lines = terminal_text.wrap(text, max(2, columns - len(indent))) or [""]
    if len(lines) > most:
        rest = " ".join(lines[most - 1:])
        lines = [*lines[: most - 1], terminal_text.fit(rest, columns - len(indent))]
    return [[StyledText((indent if number else "") + line, style)] for number, line in enumerate(lines)]


def table(head: Sequence[str], rows: Iterable[Sequence[StyledText]], columns: int | None, least: int = 24,
          most: int = 3) -> list[Line]:
    """Return a table whose last column takes the remaining width, with at most `most` lines per row; a block per row if
    fewer than `least` columns remain.
    """
    body = [list(row) for row in rows]
    widths = [max([terminal_text.width(name), *(terminal_text.width(row[column].text) for row in body)])
              for column, name in enumerate(head)]
    fixed = sum(widths[:-1]) + len(GAP) * (len(head) - 1)
    room = None if columns is None else columns - fixed
    if room is None or room >= min(widths[-1], least):
        return [line for row in [[StyledText(name, "dim") for name in head],
                                 *body] for line in _row(row, widths, room, most)]
    return [line for row in body for line in _block(head, row, columns or 0, most)]


def _row(cells: Sequence[StyledText], widths: Sequence[int], room: int | None, most: int) -> list[Line]:
    """Return a row; its last cell is wrapped below itself if wider than `room`."""
    first: Line = [StyledText(terminal_text.pad(cell.text, each) + GAP, cell.style)
                   for cell, each in zip(cells[:-1], widths, strict=False)]
    last = wrapped(cells[-1].text, room, cells[-1].style, most=most)
    return [[*first, *last[0]], *([StyledText(" " * width(first)), *line] for line in last[1:])]


def _block(head: Sequence[str], row: Sequence[StyledText], columns: int, most: int) -> list[Line]:
    """Return a row for a narrow screen: its first two cells, then the non-empty others by name, then the last.
    """
    second = row[1].text
    first = terminal_text.fit(row[0].text, max(8, columns - terminal_text.width(second) - len(GAP)))
    lines = [fit([StyledText(first + GAP, row[0].style), row[1]], columns)]
    facts = " · ".join(f"{name.lower()} {cell.text}" for name, cell in zip(head[2:-1], row[2:-1], strict=True)
                       if cell.text != "-")
    for text, style in ((facts, "dim"), ("" if row[-1].text == "-" else row[-1].text, row[-1].style)):
        if text:
            lines += [[StyledText("  "), *line] for line in wrapped(text, columns - 2, style, most=most)]
    return lines


def text(lines: Iterable[Line], *, colours: bool) -> str:
    """Return the lines for the terminal, as plain text without colours."""
    return "".join(_line(line, colours) + "\n" for line in lines)


def _line(line: Line, colours: bool) -> str:
    joined = "".join(_styled(part) if colours else part.text for part in line)
    return joined if colours else joined.rstrip()


def _styled(part: StyledText) -> str:
    code = STYLES[part.style]
    return f"\x1b[{code}m{part.text}\x1b[0m" if code and part.text else part.text
