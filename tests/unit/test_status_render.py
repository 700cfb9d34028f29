"""`status` for people: a body becomes lines that fit, with and without colours, and never what an agent wrote raw."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from garrison.cli import status_render as view
from garrison.cli.render import Span, table, text, width
from garrison.cli.terminal import frame, stage_of
from garrison.config import Timing
from garrison.records.run import Launch
from garrison.views.limits import Used, limits

EVIL = "\x1b]0;owned\x07\x1b[2Jred 日本語\x07"


def node(name: str, place: str, **more: Any) -> dict[str, Any]:
    return {"node": name, "place": place, "status": place, "phase": "executing", "attempt": 1, "attempts": 3,
            "lives": {"runner": 1, "agent": 2}, "since_s": 75.0, "doing": "its agent works", **more}


def body(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    counts = {place: sum(one["place"] == place for one in nodes)
              for place in ("merged", "landing", "working", "failed", "waiting")}
    layer = {"agent": "guardian-crew@r1", "incarnation": 2, "status": "active", "verdict": "alive", "living": True,
             "phase": "executing", "pid": 4711, "beat_age_s": 0.4, "why": "process 4711 lives", "role": "guardian"}
    return {"run_id": "r1", "status": "running", "reason": "", "merged": counts["merged"], "total": len(nodes),
            "counts": counts, "waiting": False, "gates": [], "pipeline_id": "crew", "repo": "/repo", "adhoc": False,
            "age_s": 90.0, "hint": "",
            "layers": [layer], "nodes": list(nodes), "queue": None, "problems": [],
            "failed": [{"node": one["node"], "attempt": 1, "reason": one["doing"], "tail": f"one\n\t{EVIL}",
                        "folder": "/home/runs/r1"} for one in nodes if one["place"] == "failed"],
            "limits": limits(Launch("r1", "crew", "/repo", "main", "", ""), Timing(), Used()), **more}


FULL = body(node("format_all", "merged", doing="merged as 0123456789"), node("add_tests", "landing"),
            node("a_very_long_name_that_goes_on_and_to_the_limit", "working"),
            node("bad", "failed", doing=f"exit code 3: {EVIL}"), node("later", "waiting", doing="waits for add_tests"),
            hint=f"its launcher is gone {EVIL}", reason=EVIL)


@pytest.mark.parametrize("columns", [None, 200, 100, 60, 40, 20])
def test_everything_is_told_at_every_width(columns: int | None) -> None:
    lines = [*view.overview([FULL], columns), *view.whole(FULL, columns, with_limits=True)]
    folder = "  /home/runs/r1"  # a path is not cut: it is there to be copied
    assert all(columns is None or width(line) <= columns or line[-1].text == folder.strip() for line in lines)
    said = text(lines, colours=False)
    assert "\x1b" not in said
    assert "\x07" not in said
    for word in ("r1", "running", "landing", "working", "failed", "waiting", "guardian", "日本語", "--max-respawn"):
        assert word in said, (columns, word)
    assert columns is not None or "a_very_long_name_that_goes_on_and_to_the_limit" in said


def test_colours_are_the_only_escapes_and_only_where_they_are_asked_for() -> None:
    painted = text(view.whole(FULL, 100), colours=True)
    plain = text(view.whole(FULL, 100), colours=False)
    assert "\x1b[1;31mfailed" in painted
    assert [line.rstrip() for line in re.sub("\x1b\\[[0-9;]*m", "", painted).splitlines()] == plain.splitlines()


@pytest.mark.parametrize(("terminal", "environ", "colours", "in_place"), [
    (True, {"TERM": "xterm"}, True, True), (False, {"TERM": "xterm"}, False, False),
    (True, {"TERM": "dumb"}, False, False), (True, {"TERM": "xterm", "NO_COLOR": "1"}, False, True),
    (False, {"FORCE_COLOR": "1"}, True, False), (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    (False, {"FORCE_COLOR": "1", "TERM": "dumb"}, False, False)])
def test_where_colours_are(terminal: bool, environ: dict[str, str], colours: bool, in_place: bool) -> None:
    here = stage_of(terminal, environ, (80, 24))
    assert (here.colours, here.terminal, here.columns) == (colours, in_place, 80 if terminal else None)


@pytest.mark.parametrize(("counts", "room"), [((5, 0, 0, 0, 0, 0, 0), 30), ((1, 1, 1, 1, 96, 0, 0), 30),
                                              ((0, 3, 2, 0, 7, 0, 1), 8), ((1, 0, 0, 1, 0, 2, 0), 9),
                                              ((999, 1, 0, 0, 0, 0, 0), 8), ((1, 1, 1, 1, 1, 1, 1), 8)])
def test_the_bar_is_full_and_hides_nobody(counts: tuple[int, ...], room: int) -> None:
    named = dict(zip(view.BLOCKS, counts, strict=True))
    shares = view.parts(named, sum(counts), room)
    assert sum(shares.values()) == room
    assert all((share > 0) == (named[place] > 0) for place, share in shares.items()), shares


def test_a_table_becomes_blocks_where_its_last_column_has_no_room() -> None:
    rows = [[Span("a"), Span("up"), Span("1"), Span("why " * 20)]]
    assert text(table(("NAME", "STATUS", "N", "WHY"), rows, 44), colours=False).startswith("NAME  STATUS  N  WHY\na ")
    assert text(table(("NAME", "STATUS", "N", "WHY"), rows, 22), colours=False).startswith("a  up\n  n 1\n  why why")


def test_a_frame_never_scrolls() -> None:
    lines = view.whole(FULL, 60, with_limits=True)
    drawn = frame(lines, stage_of(True, {"TERM": "xterm", "NO_COLOR": "1"}, (60, 12)))
    assert drawn.count("\n") == 11
    assert "more lines" in drawn.splitlines()[-2]
    assert drawn.startswith("\x1b[H")


def test_changes_are_told_once_each() -> None:
    first = view.changes(None, FULL)
    assert len(first) == 2 + 5
    assert view.changes(FULL, FULL) == []
    later = copy.deepcopy(FULL)
    later["nodes"][2] |= {"since_s": 99.0}
    assert view.changes(FULL, later) == [], "an age is no event"
    later["nodes"][2] |= {"attempt": 2}
    assert view.changes(FULL, later) == [
        "a_very_long_name_that_goes_on_and_to_the_limit: working, executing, attempt 2: its agent works"]


def test_a_run_that_only_waits_for_a_person_says_so_with_what_it_asks() -> None:
    gate = {"node": "ask", "doing": f"asks you: Ship it? (garrison answer ask LABEL) {EVIL}"}
    waits = body(node("a", "merged"), waiting=True, gates=[gate])
    said = text(view.whole(waits, None), colours=False)
    assert said.startswith("run r1: waiting, 1 of 1 merged")
    assert "ask asks you: Ship it?" in said and "\x1b" not in said
    assert any("Ship it?" in line for line in view.changes(None, waits))
    assert view.changes(waits, waits) == []
