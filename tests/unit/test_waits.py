"""Everything that waits for the user: one list and one count in every view."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from garrison.cli.main import main
from garrison.cli.render import text
from garrison.cli.status import render_run
from garrison.cli.top_app import ACTIONS, Top
from garrison.cli.top_render import plain
from garrison.ends import WaitKind
from garrison.errors import NotFound, Refused
from garrison.merge.entry import MergeEntry
from garrison.run.status import Status
from garrison.values import project
from garrison.views.changes import choose_judged, choose_shown
from garrison.views.page_view import HomeObserver
from garrison.views.run_view import RunReader, show_run
from garrison.views.top_frame import FrameReader
from garrison.views.waits import ShownWait, show_review
from garrison.web.run_stream import RunStream
from timeline_support import Story, TimedHome, story


@pytest.fixture
def told(tmp_path: Path) -> Story:
    made = story(TimedHome(tmp_path))
    made.guardian(51, "signal", id="h9", type="USER_GUIDANCE", node="notes", attempt=1, **{"from": "person"},
                  hold="notes", text="not now")
    made.node(52, "release", "active", step="release#1:1")
    made.node(53, "release", "failed", reason="the gate is red")
    return made


def test_every_view_has_the_same_list_and_count(told: Story, tmp_path: Path) -> None:
    view = RunReader(tmp_path).read("story-1")
    expected = [(WaitKind.RUN, ""), (WaitKind.GATE, "ask"), (WaitKind.PARKED, "notes"), (WaitKind.FAILED, "release")]
    assert [(wait.kind, wait.node) for wait in view.waits] == expected
    observer = HomeObserver(tmp_path)
    line = observer.lines()[0]
    stream = RunStream(tmp_path, "story-1")
    stream.read()
    stream.observe(observer.observe(["story-1"])["story-1"])
    page = stream.snapshot().waits
    frame = FrameReader(tmp_path).read()
    shown = [project(ShownWait, wait) for wait in view.waits]
    assert line.waits == page == shown == show_run(view).waits
    assert [project(ShownWait, wait) for wait in frame.waits] == shown
    assert line.gates == len(page) == len(frame.waits) == 4
    last = text(render_run(view, None), colours=False).splitlines()[-5:]
    assert last[0] == "waits for you: 4"
    assert [line.split()[0] for line in last[2:]] == ["ask", "notes", "release"]
    shown = text(plain(frame, 100), colours=False)
    assert "waits for you  4" in shown
    assert "gate  ask  Release it?" in shown


def test_an_ended_or_stopped_run_does_not_wait(told: Story, tmp_path: Path) -> None:
    told.guardian(54, "run", status="stopped", reason="stopped by a person")
    stopped = RunReader(tmp_path).read("story-1")
    assert stopped.status == Status.STOPPED
    assert WaitKind.RUN not in [wait.kind for wait in stopped.waits], "the user stopped it"
    told.guardian(55, "run", status="done")
    assert RunReader(tmp_path).read("story-1").waits == []


def test_a_failed_node_waits_while_its_run_continues(tmp_path: Path) -> None:
    told = Story(TimedHome(tmp_path), "r1")
    story(TimedHome(tmp_path), "r1")
    told.node(60, "release", "active", step="release#1:1")
    told.node(61, "release", "failed", reason="exit 3")
    assert [wait.text for wait in RunReader(tmp_path).read("r1").waits if wait.kind == WaitKind.FAILED] == ["exit 3"]
    told.node(62, "notes", "skipped")
    told.guardian(63, "run", status="failed", reason="release failed")
    assert RunReader(tmp_path).read("r1").waits == []


def test_lines_of_ended_runs_are_cached_until_their_journal_changes(told: Story, tmp_path: Path) -> None:
    reader = RunReader(tmp_path)
    assert reader.read_all()[0] is not reader.read_all()[0], "an unfinished run is read each time"
    told.guardian(55, "run", status="done")
    kept = reader.read_all()[0]
    assert reader.read_all()[0] is kept
    told.guardian(56, "node", node="late", status="pending", attempt=1)
    assert reader.read_all()[0] is not kept


def test_every_view_uses_the_terms_of_status(told: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--home", str(tmp_path), "status"])
    said = capsys.readouterr().out
    line = HomeObserver(tmp_path).lines()[0]
    row = next(row for row in FrameReader(tmp_path).read().rows if row.kind == "run")
    assert row.state == line.status == "interrupted"
    assert line.status in said
    assert line.progress in said
    assert line.progress in row.doing
    told.guardian(60, "run", status="done")
    line = HomeObserver(tmp_path).lines()[0]
    assert (line.created, line.ended) == ("2026-03-01T12:00:00.000000Z", "2026-03-01T13:00:00.000000Z")
    assert (line.cost, line.progress, line.repo, line.counts) == (
        3.0, "3 of 5 landed", "/repo", {"landed": 3, "failed": 1, "parked": 1})


def test_all_keys_are_shown_on_narrow_screens(told: Story, tmp_path: Path) -> None:
    async def play(columns: int) -> list[str]:
        app = Top(FrameReader(tmp_path), 3600)
        async with app.run_test(size=(columns, 24)) as pilot:
            while app.frame is None:
                await pilot.pause(0.02)
            await pilot.pause()
            return [strip.text for strip in app.screen._compositor.render_strips()]

    for columns in (36, 60):
        lines = asyncio.run(play(columns))
        said = "\n".join(lines)
        assert len(lines) == 24
        if columns >= 60:
            assert all(f"{key} {action.word}" in said for key, action in ACTIONS.items()), "at 60 columns on two lines"
        assert "q quit" in said
        assert "waits for you" in said


# ---- the entry of the queue that a review shows and judges: never an attempt that the user has not seen


def entry(attempt: int, oid: str, status: str = "held", *, approval: bool = True) -> MergeEntry:
    return MergeEntry(f"a-{attempt}-{oid[:8]}", "r1", "a", attempt, "garrison/r1/a", oid * 8, "main", status=status,
                      approval=approval)


FIRST, SECOND = entry(1, "aaaaa", "superseded"), entry(2, "bbbbb")


def test_the_latest_or_the_requested_attempt_is_shown() -> None:
    assert choose_shown([FIRST, SECOND]) == SECOND
    assert choose_shown([FIRST, SECOND], 1) == FIRST
    assert choose_shown([FIRST, SECOND], 1, "AAAAA") == FIRST
    there = r"there are attempt 1 \(aaaaaaaaaa, withdrawn\), attempt 2 \(bbbbbbbbbb, waiting for approval\)"
    with pytest.raises(NotFound, match=f"attempt 3 of a has no work in the merge queue; {there}"):
        choose_shown([FIRST, SECOND], 3)
    with pytest.raises(NotFound, match="attempt 1 of a has no work at commit bbb in the merge queue"):
        choose_shown([FIRST, SECOND], 1, "bbb")


def test_an_attempt_needs_its_number_if_another_one_ever_waited() -> None:
    assert choose_judged([SECOND]) == SECOND
    assert choose_judged([entry(1, "aaaaa", "conflict", approval=False), SECOND]) == SECOND
    assert choose_judged([FIRST, SECOND], 2) == SECOND
    assert choose_judged([FIRST, SECOND], 1) == FIRST, "the queue refuses it, since it is final"
    with pytest.raises(Refused, match=r"pass the attempt of a that you have reviewed: --attempt N; there are"):
        choose_judged([FIRST, SECOND])
    again = entry(2, "ccccc")
    with pytest.raises(NotFound, match="attempt 2 of a has no work at commit ddddd"):
        choose_judged([SECOND, again], 2, "ddddd")
    with pytest.raises(Refused, match="pass the attempt"):
        choose_judged([SECOND, again])
    assert choose_judged([SECOND, again], 2, "bbbbb") == SECOND
    shown = show_review(SECOND)
    assert shown.gate == "review:a-2-bbbbb" and "attempt 2 (bbbbbbbbbb)" in shown.question
