"""Screen of `garrison top` with hostile names and any size; its columns and sizes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.cli import top_render
from garrison.cli.render import text, width
from garrison.cli.top_app import Top
from garrison.cli.top_render import SYMBOLS
from garrison.system.resource_usage import Machine, ResourceUsage
from garrison.views.top_frame import Agents, EventOfRun, Frame, FrameReader, LandingOfRun, TopRow, format_bytes
from garrison.views.usage import next_pause

EVIL = "\x1b]0;owned\x07\x1b[2Jred 日本語\x07"


def row(name: str, kind: str = "node", state: str = "working") -> TopRow:
    return TopRow(12.3, 30 << 20, 2, id=f"r1/{kind}/{name}", run="r1", kind=kind, name=name, state=state, attempt=1,
                  attempts=3, starts="1+2", age_s=75.0, beat_s=0.4, phase="executing", usd=0.5, doing=f"does {EVIL}")


def frame(*rows: TopRow) -> Frame:
    event = EventOfRun("2026-01-31T12:00:00.000000Z", "died", "runner-a@r1", 2, EVIL, run="r1")
    return Frame(f"/somewhere/that/is/long/{EVIL}", "2026-01-31T12:00:00.000000Z",
                 Machine((9.0, 1, 1), 2, 1 << 33, 1 << 34), ResourceUsage(12.0, 1 << 30, 9), Agents(1, 2), 1.5, 1,
                 [row("r1", "run", "running"), row("guardian-crew", "layer", "alive"), *rows],
                 [LandingOfRun(1, EVIL, 1, "testing", 3.0, EVIL, run="r1")], [f"r1: tests: {EVIL}"],
                 [event] * 30, [EVIL])


FULL = frame(*(row(f"{name}{number}") for number in range(12) for name in ("名前", EVIL, "n" * 48)))


class StillReader:
    """Always reads the same frame."""

    home = Path("/somewhere")

    def read(self) -> Frame:
        return FULL


@settings(max_examples=settings.default.max_examples // 25)
@given(st.integers(20, 220), st.integers(9, 70), st.integers(0, len(FULL.rows) - 1))
def test_the_screen_is_clean_and_shows_the_selected_row_and_the_keys(columns: int, rows: int, place: int) -> None:
    chosen = FULL.rows[place]

    async def play() -> str:
        app = Top(cast(FrameReader, StillReader()), 3600)
        app.selected = chosen.id
        async with app.run_test(size=(columns, rows)) as pilot:
            for _ in range(500):  # on a busy machine it is drawn in several steps
                await pilot.pause(0.02)
                strips = app.screen._compositor.render_strips()
                marked = [strip.text for strip in strips if any(part.style and part.style.reverse for part in strip)]
                drawn = "".join(strip.text for strip in strips)
                if marked and "q" in drawn[-4 * columns:]:
                    break
            assert [line[:1] for line in marked] == [SYMBOLS[chosen.state]]
            return drawn

    said = asyncio.run(play())
    assert "\x1b" not in said
    assert "\x07" not in said
    assert "q" in said[-4 * columns:]


def test_columns_are_aligned_with_wide_characters() -> None:
    head, *lines = top_render.table(FULL.rows, 80)
    begin = text([head], colours=False).index("DOING")
    for line in lines[:5]:
        assert width(line[:-1]) == begin


def test_sizes_and_pauses() -> None:
    assert [format_bytes(number) for number in (
        0, 1000, 640 << 10, 12 << 20, 1023 << 20, 1 << 30, 25 << 30, 1 << 41)] == [
            "", "1K", "640K", "12M", "1.0G", "1.0G", "25G", "2.0T"]
    assert next_pause(1.0, 0.01) == 0.99
    assert next_pause(1.0, 0.1) == pytest.approx(3.2), "an expensive refresh is made less often"
