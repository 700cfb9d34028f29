"""Screen of `garrison top`: pictures that fill it exactly, and what keys do to the selection. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.cli import top_app, top_render
from garrison.cli.render import text, width
from garrison.cli.top_render import SYMBOLS, Selection, picture
from garrison.system.resource_usage import Machine, Usage
from garrison.views.top_frame import Agents, EventOfRun, Frame, LandingOfRun, Row, format_bytes
from garrison.views.usage import next_pause

EVIL = "\x1b]0;owned\x07\x1b[2Jred 日本語\x07"


def row(name: str, kind: str = "node", state: str = "working") -> Row:
    return Row(12.3, 30 << 20, 2, id=f"r1/{kind}/{name}", run="r1", kind=kind, name=name, state=state, attempt=1,
               attempts=3, starts="1+2", age_s=75.0, beat_s=0.4, phase="executing", usd=0.5, doing=f"does {EVIL}")


def frame(*rows: Row) -> Frame:
    event = EventOfRun("2026-01-31T12:00:00.000000Z", "died", "runner-a@r1", 2, EVIL, run="r1")
    return Frame(f"/somewhere/that/is/long/{EVIL}", "2026-01-31T12:00:00.000000Z",
                 Machine((9.0, 1, 1), 2, 1 << 33, 1 << 34), Usage(12.0, 1 << 30, 9), Agents(1, 2), 1.5, 1,
                 [row("r1", "run", "running"), row("guardian-crew", "layer", "alive"), *rows],
                 [LandingOfRun(1, EVIL, 1, "testing", 3.0, EVIL, run="r1")], [f"r1: tests: {EVIL}"],
                 [event] * 30, [EVIL])


FULL = frame(*(row(f"{name}{number}") for number in range(12) for name in ("名前", EVIL, "n" * 48)))


@settings(max_examples=50)
@given(st.integers(20, 220), st.integers(5, 70), st.integers(0, 130), st.sampled_from(
    [{}, {"ask": EVIL}, {"note": EVIL * 9, "bad": True}, {"filter": "n", "typing": True}, {"filter": "nothing like it"},
     {"title": EVIL, "text": (f"    {EVIL * 20}", "", "plain"), "scrolled": 7}]))
def test_a_picture_fills_the_screen_exactly_and_shows_the_selected_row(columns: int, rows: int, place: int,
                                                                     more: dict[str, Any]) -> None:
    place = min(place, len(FULL.rows) - 1)
    shown = picture(FULL, Selection(row=FULL.rows[place].id, **more), columns, rows)
    assert len(shown.lines) == rows
    assert all(width(line) <= columns for line in shown.lines)
    said = text(shown.lines, colours=False)
    assert "\x1b" not in said
    assert "\x07" not in said
    if not more and rows >= 8:
        assert shown.marked is not None
        line = text([shown.lines[shown.marked]], colours=False)
        assert line.startswith(SYMBOLS[FULL.rows[place].state])
    if rows >= 8:
        assert "q" in text(shown.lines[-1:], colours=False) or "Esc" in text(shown.lines[-1:], colours=False)


def test_columns_are_aligned_with_wide_characters_and_all_keys_fit_80() -> None:
    lines = picture(FULL, Selection(), 80, 24).lines
    head = text([lines[2]], colours=False)
    begin = head.index("DOING")
    for line in lines[3:8]:
        assert width(line[:-1]) == begin
    assert all(word in text(lines[-1:], colours=False) for _, word in top_render.KEYS)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(1, 50), st.integers(1, 200))
def test_scrolling_shows_the_selected_row_and_wastes_no_room(first: int, place: int, room: int, count: int) -> None:
    place = min(place, count - 1)
    found = top_render.scrolled_to(first, place, room, count)
    assert found <= place < found + room
    assert found == 0 or found + room <= count


def test_keys_move_within_the_rows_and_a_filter_is_typed() -> None:
    selection = Selection(row=FULL.rows[0].id)
    last = FULL.rows[-1].name
    for key, name in (("k", "r1"), ("j", "guardian-crew"), ("G", last), ("down", last), ("g", "r1")):
        selection = top_app.move(FULL, selection, key)
        found = top_render.selected(FULL, selection)
        assert found is not None
        assert found.name == name, key
    for key in ("a", "é", "x", "backspace", "enter"):
        selection = top_app.type_filter(selection, key, key if len(key) == 1 else None)
    assert (selection.filter, selection.typing) == ("aé", False)


@pytest.mark.parametrize(("number", "said"), [
    (0, ""), (1000, "1K"), (640 << 10, "640K"), (12 << 20, "12M"), (1023 << 20, "1.0G"), (1 << 30, "1.0G"),
    (25 << 30, "25G"), (1 << 41, "2.0T")])
def test_sizes(number: int, said: str) -> None:
    assert format_bytes(number) == said


def test_expensive_refreshes_are_made_less_often() -> None:
    assert next_pause(1.0, 0.01) == 0.99
    assert next_pause(1.0, 0.1) == pytest.approx(3.2)
