"""History in a real browser: pages of events, a log from its end to its start, search, copy, download."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from served_run import serving

from garrison.records.run import RunFiles
from top_support import home_builder

EVENTS, LINES, BLOCKS = 700, 60_000, 900


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a run with a long history: events, the log of `a`, its transcript."""
    home = tmp_path_factory.mktemp("past")
    with home_builder(home) as builder:
        guardian = builder.run("r1", "a", "b")
        for number in range(EVENTS):
            guardian.append("node", {"node": "b", "status": "active", "attempt": 2, "reason": f"round {number} of it"},
                            builder.now())
        builder.working(guardian, "r1", "a")
        builder.enqueue("r1", "b")
        folder = RunFiles(home, "r1").attempt("a", 1)
        (folder / "claude").mkdir(parents=True)
        (folder / "output.log").write_text("".join(f"line {number}: größe <b>\n" for number in range(LINES)))
        (folder / "claude" / "stream.jsonl").write_text("".join(
            json.dumps({"kind": "text", "text": f"block {number} {'x' * 900}", "at": ""}) + "\n"
            for number in range(BLOCKS)))
        guardian.close()
        with serving(home) as url:
            yield url


@pytest.mark.slow
def test_events_are_paged_searched_and_downloaded(past: str, opened: Any, tmp_path: Path) -> None:
    page = opened(past, "/?run=r1")
    shown = page.locator("#story .pager .number")
    lines = page.locator("#list-timeline > li")
    expect(lines.first).to_be_visible()
    expect(page.locator("#story .zone")).to_contain_text("UTC")
    expect(shown).to_have_text("live")
    page.get_by_role("button", name="Oldest").click()
    expect(lines.nth(98)).to_contain_text("round 0 of it")
    expect(lines).to_have_count(100)
    page.get_by_role("button", name="Newer").click()
    expect(shown).to_have_text("101–200 of 702")
    page.get_by_role("button", name="Older").click()
    expect(shown).to_have_text("1–100 of 702")
    page.get_by_label("Search in what happened").fill("b ROUND 411")
    expect(lines).to_have_count(1)
    expect(lines).to_contain_text("round 411 of it")
    page.get_by_label("Search in what happened").fill("")
    expect(shown).to_have_text("live")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download all of it").click()
    waiting.value.save_as(tmp_path / "all")
    assert len((tmp_path / "all").read_text().splitlines()) == 702
    page.get_by_role("tab", name="Queue").click()
    expect(page.locator("#list-queue > li")).to_contain_text("queued")


@pytest.mark.slow
def test_a_log_is_read_back_searched_and_downloaded(past: str, opened: Any, tmp_path: Path) -> None:
    page = opened(past, "/?run=r1&node=a")
    page.get_by_role("tab", name="Log").click()
    log = page.locator("#detail-log")
    expect(log).to_contain_text(f"line {LINES - 1}: größe <b>")
    earlier = log.get_by_role("button", name="Show what was before")
    for _ in range(10):
        if not earlier.is_visible():
            break
        before = log.locator("pre").evaluate("box => box.childNodes.length")
        earlier.click()
        page.wait_for_function(
            "before => document.querySelector('#detail-log pre').childNodes.length > before", arg=before)
    expect(earlier).to_be_hidden()
    assert log.locator("pre").evaluate("box => box.textContent").startswith("line 0: größe <b>\nline 1:")
    log.get_by_label("Search in all of it").fill("LINE 31234:")
    page.keyboard.press("Enter")
    expect(log.locator("mark")).to_have_text("line 31234:")
    expect(log.locator("mark")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(log.locator(".number")).to_have_text("No more")
    log.get_by_role("button", name="Follow the end").click()
    expect(log).to_contain_text(f"line {LINES - 1}:")
    with page.expect_download() as waiting:
        log.get_by_role("button", name="Download all of it").click()
    waiting.value.save_as(tmp_path / "log")
    assert (tmp_path / "log").read_text().count("\n") == LINES


@pytest.mark.slow
def test_a_transcript_opens_at_its_end_and_is_read_back(past: str, opened: Any) -> None:
    page = opened(past, "/?run=r1&node=a")
    page.get_by_role("tab", name="Transcript").click()
    blocks = page.locator("#detail-transcript .block")
    expect(blocks.last).to_contain_text(f"block {BLOCKS - 1} ")
    page.get_by_role("button", name="Show what was before").click()
    box = page.locator("#detail-transcript")
    box.get_by_label("Search in all of it").fill("block 17 ")
    page.keyboard.press("Enter")
    expect(box.locator(".hit")).to_contain_text("block 17 ")
    box.get_by_role("button", name="Show what was before").click()
    expect(blocks.first).to_contain_text("block 0 ")
    box.get_by_role("button", name="Show what came after").click()
    expect(blocks.last).not_to_contain_text("block 17 ")
