"""History in pages: every entry once, forwards and back, whatever is added; search in files of any length."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import NotFound, UsageError
from garrison.records import run as run_records
from garrison.records.journal import Writer
from garrison.records.run import Launch, RunFiles, Task, save
from garrison.values import replace
from garrison.views.changes import read_evidence
from garrison.views.event_log import GUARDIAN, LoggedEvent
from garrison.views.page_view import TimelineEntry
from garrison.web.history import Histories, Wanted, cursor_of, cut_page, text_of
from garrison.web.node import (
    BLOCKS,
    LOG_BYTES,
    TextMatch,
    find_text,
    read_attempt,
    read_log,
    read_transcript,
    search_file,
)

ENTRIES = [TimelineEntry(f"guardian:{number}", f"2026-01-01T00:00:{number // 3:02}Z", "", "",
                      "even" if number % 2 == 0 else "Odd one") for number in range(20)]


def cut(entries: Sequence[TimelineEntry], wanted: Wanted) -> Any:
    return cut_page(entries, wanted, cursor_of, text_of)


def walk(entries: list[TimelineEntry], way: str, **more: Any) -> list[str]:
    """Return all ids, page by page."""
    found: list[str] = []
    page = cut(entries, Wanted(after="", limit=3, **more) if way == "newer" else Wanted(limit=3, **more))
    while True:
        ids = [entry.id for entry in page.entries]
        found = found + ids if way == "newer" else ids + found
        cursor = getattr(page, way)
        if cursor is None:
            return found
        page = cut(entries, Wanted(**{"after" if way == "newer" else "before": cursor}, limit=3, **more))


@pytest.mark.parametrize("way", ["older", "newer"])
@pytest.mark.parametrize(("query", "count"), [("", 20), ("odd", 10), ("ONE odd", 10), ("nothing", 0)])
def test_every_entry_is_on_one_page(way: str, query: str, count: int) -> None:
    found = walk(ENTRIES[::-1], way, query=query)
    by_time = [entry.id for entry in sorted(ENTRIES, key=cursor_of)]
    assert len(found) == count and found == [name for name in by_time if name in found]


def test_a_cursor_stays_valid_when_entries_are_added_and_invalid_pages_are_refused() -> None:
    page = cut(ENTRIES, Wanted(limit=5))
    more = [*ENTRIES, TimelineEntry("late:1", "2026-01-01T00:00:00.5Z", "", "", ""), replace(ENTRIES[-1], id="x:99")]
    older = cut(more, Wanted(before=page.older, limit=100))
    assert {entry.id for entry in older.entries} == {entry.id for entry in more} - {
        entry.id for entry in page.entries} - {"x:99"}
    for bad in (Wanted("a", "b"), Wanted(limit=0), Wanted(limit=100_000)):
        with pytest.raises(UsageError):
            bad.check()


def test_the_whole_timeline_of_a_run_is_read_and_later_entries(tmp_path: Path) -> None:
    files = RunFiles(tmp_path, "r1")
    run_records.save(files.launch, Launch("r1", "crew", "/repo", "main", "2026-01-01T00:00:00Z", "/trees"))
    guardian = Writer(files.journal, "guardian-crew#1")
    for number in range(700):
        at = f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"
        guardian.append("node", {"node": f"n{number}", "status": "active", "attempt": 2, "reason": "again"}, at)
    histories = Histories(tmp_path)
    first: Any = histories.page("r1", "timeline", Wanted(after="", limit=500))
    assert (first.total, first.entries[0].node) == (700, "n0"), "the event stream has 300"
    guardian.append("node", {"node": "n0", "status": "failed", "reason": "red"}, "2026-01-01T01:00:00Z")
    guardian.close()
    assert histories.page("r1", "timeline", Wanted(query="n0 red")).total == 1
    assert histories.page("r1", "queue", Wanted()).entries == []
    for run, kind in (("r1", "secrets"), ("r2", "timeline")):
        with pytest.raises(NotFound):
            histories.page(run, kind, Wanted())


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    folder = RunFiles(tmp_path, "r1").attempt("a", 1)
    (folder / "claude").mkdir(parents=True)
    return folder


def test_a_log_and_a_transcript_are_read_back_to_their_start(tmp_path: Path, attempt: Path) -> None:
    text = "".join(f"line {number} größe\n" for number in range(60_000))
    (attempt / "output.log").write_text(text)
    piece = read_log(tmp_path, "r1", "a", 1, -400_000)
    whole, at = piece.text, piece.begin
    assert whole.startswith("line ")
    while at:
        piece = read_log(tmp_path, "r1", "a", 1, max(0, at - LOG_BYTES), at)
        assert piece.next == at > piece.begin
        whole, at = piece.text + whole, piece.begin
    assert text.startswith(whole)
    lines = [json.dumps({"kind": "text", "text": f"{number} {'x' * 300}", "at": ""}) for number in range(3000)]
    stream = attempt / "claude" / "stream.jsonl"
    stream.write_text("\n".join(lines) + '\n{"kind": "te')
    piece = read_transcript(tmp_path, "r1", "a", 1, -50_000)
    assert not piece.more, "a torn line is waited for"
    blocks, at = piece.blocks, piece.begin
    while at:
        piece = read_transcript(tmp_path, "r1", "a", 1, max(0, at - LOG_BYTES), at)
        assert len(piece.blocks) <= BLOCKS and piece.begin < at
        blocks, at = piece.blocks + blocks, piece.begin
    assert [int(block.text.split()[0]) for block in blocks] == list(range(3000))


def test_a_text_is_found_forwards_and_back(tmp_path: Path, attempt: Path) -> None:
    path = attempt / "output.log"
    path.write_text("x" * 995 + "\nfirst Needle here\n" + "y" * 5000 + "\nsecond nEEdle\n")
    data = path.read_bytes().lower()
    first, second = data.find(b"needle"), data.rfind(b"needle")
    found = find_text(tmp_path, "r1", "a", 1, "log", "needle", 0)
    assert (found.found, found.line, found.next) == (first, first - 6, None)
    assert search_file(path, b"needle", first + 1, chunk=1000).found == second
    assert search_file(path, b"needle", second + 1, chunk=1000) == TextMatch(None, None, None, len(data))
    assert search_file(path, b"needle", -1, backwards=True, chunk=1000).found == second
    assert search_file(path, b"needle", second, backwards=True, chunk=1000).found == first
    rest = search_file(path, b"needle", first + 1, chunk=1000, scan=2000)
    assert rest.found is None and rest.next == first + 2001
    for bad in (("log", ""), ("../launch.json", "x")):
        with pytest.raises((UsageError, NotFound)):
            find_text(tmp_path, "r1", "a", 1, *bad, 0)


# ---- details of a node: its attempts and the evidence for its work


def test_an_attempt_without_a_change_did_not_land_and_a_blank_reason_for_rework_is_no_evidence(tmp_path: Path) -> None:
    def status_of(**data: str) -> str:
        event = LoggedEvent("2026-01-01T00:00:00Z", "r1", GUARDIAN, "", 1, "node", "a", "",
                            {"node": "a", "status": "validated", "attempt": 1, **data})
        return read_attempt(RunFiles(tmp_path, "r1"), "a", [event], 1).status

    assert (status_of(), status_of(landing="no change")) == ("landed", "no change")
    save(tmp_path / "task.json", Task("r1", "a", 2, rework_reason=" \n"))
    assert read_evidence(tmp_path, "r1", "a", 2) == []
