"""The page of a home: what waits in any run comes first, the table of runs has its view in the address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect
from served_run import serving

from garrison.records import run as run_records
from garrison.records.run import Launch
from garrison.schedules.policy import Schedule
from garrison.schedules.starts import Schedules
from garrison.system.clock import iso
from timeline_support import BEGIN, Story, TimedHome, story

FINISHED = 130
"""More than the table shows at first."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("home")
    for number in range(FINISHED):
        builder = TimedHome(folder, begin=BEGIN - 86400 + 60 * number)
        told = Story(builder, f"old-{number:03d}")
        run_records.save(told.files.launch, Launch(
            told.run, "nightly" if number % 2 else "release", f"/src/{'shop' if number % 2 else 'parser'}", "main",
            iso(builder.begin), "/trees"))
        told.guardian(0, "run", status="running")
        told.node(1, "one", "active")
        told.node(2, "one", "failed" if number == 3 else "impl_complete")
        if number != 3:
            told.node(3, "one", "validated", commit="1" * 40)
        told.guardian(number, "run", status="failed" if number == 3 else "done")
        told.writers.popitem()[1].close()
    story(TimedHome(folder))
    Schedules(folder).add(Schedule("nightly", "0 3 * * 1-5", ["run", "update"], "/src/shop", 0.0, "Europe/Berlin"))
    with serving(folder) as url:
        yield url


@pytest.mark.slow
def test_waiting_items_come_first_and_runs_are_found(home: str, opened: Any) -> None:
    page = opened(home)
    page.watch.allowed.append("status of 4(04|09)")  # what the gate decides: there is no repository
    expect(page.locator("#waits .card")).to_have_count(2)
    expect(page.locator("#waits .number")).to_have_text("2")
    expect(page).to_have_title("(2) garrison")
    gate = page.locator("#waits .card").nth(1)
    expect(gate).to_contain_text("Release it?")
    expect(gate.get_by_role("button", name="Yes")).to_be_visible()
    for key, at in (("j", 0), ("j", 1), ("j", 1), ("k", 0), ("j", 1)):
        page.keyboard.press(key)
        expect(page.locator("#waits .card").nth(at)).to_be_focused()
    with page.expect_request(lambda request: request.method == "POST" and "/gates/" in request.url) as answer:
        page.keyboard.press("a")
    assert answer.value.post_data_json == {"choice": "Yes"}
    rows = page.locator(".runs tbody tr")
    expect(rows).to_have_count(100)
    expect(rows.first).to_contain_text("story-1")
    expect(rows.first.locator(".c-gates")).to_have_text("2 items")
    expect(rows.first).to_contain_text("3 of 5 landed")
    expect(rows.first.locator(".c-cost")).to_have_text("$3.00")
    bar = rows.first.locator(".c-progress .bar").get_attribute("aria-label")
    expect(rows.first.locator(".c-duration")).to_have_text("50 min")
    page.get_by_role("button", name=f"Show all {FINISHED + 1} runs").click()
    expect(rows).to_have_count(FINISHED + 1)
    page.get_by_role("button", name="failed 1").click()
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("old-003")
    assert "state=failed" in page.url
    page.get_by_role("button", name=f"all {FINISHED + 1}").click()
    page.keyboard.press("/")
    page.keyboard.type("shop nightly")
    expect(rows).to_have_count(FINISHED // 2)
    page.get_by_role("button", name="Duration").click()
    expect(rows.first).to_contain_text("old-129")
    address = page.url
    page.goto(address)
    expect(page.get_by_label("Search the runs")).to_have_value("shop nightly")
    expect(rows.first).to_contain_text("old-129")
    expect(page.locator(".runs [aria-sort]")).to_contain_text("Duration")
    rows.first.get_by_role("link").click()
    expect(page.locator("#run-head")).to_contain_text("old-129")
    page.go_back()
    expect(rows.first).to_contain_text("old-129")
    page.goto(page.url.split("?")[0] + "?run=story-1")
    expect(page.locator("#run-head .bar")).to_have_attribute("aria-label", bar or "")


PLACES = """
window.places = new Set();
const look = () => {
  const parts = [".brand", "#head nav", ".head-end", "#head .goal"].map(one => document.querySelector(one));
  const top = one => [one.className || one.tagName, Math.round(one.getBoundingClientRect().top)].join(" at ");
  for (const one of parts) if (one) window.places.add(top(one));
  requestAnimationFrame(look);
};
look();
"""
"""Record in each frame where the parts of the head are."""


def test_nothing_in_the_head_moves_when_the_first_data_arrives(home: str, opened: Any) -> None:
    page = opened("about:blank")
    page.watch.home = home.partition("/?")[0]
    page.add_init_script(PLACES)
    for width in (1440, 1300, 1024, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"{home}&run=story-1")
        expect(page.locator("#run-head .bar")).to_be_visible()
        places = page.evaluate("[...window.places]")
        assert len(places) == 4, (width, places)


@pytest.mark.slow
def test_the_time_view_has_bars_of_nodes_and_curves_of_cost(home: str, opened: Any) -> None:
    page = opened(home, "/?run=story-1&view=time")
    page.watch.allowed.append("status of 4(04|09)")
    rows = page.locator(".gantt-row")
    expect(rows).to_have_count(4)  # the merge queue, and the nodes that have started
    docs = page.locator('.gantt-row[data-key="docs"]')
    expect(docs.locator("rect.k-asks")).to_have_count(1)
    expect(docs.locator("rect.k-limit title")).to_have_text("docs: waiting for a limit, 3 min: limit reached")
    expect(docs.get_by_role("img")).to_have_accessible_name(
        "docs: starting 2 min, working 11 min, waiting for your answer 4 min, waiting for a limit 3 min, "
        "tested by the gate 4 min")
    expect(page.locator(".gantt-sum")).to_contain_text("50 min; about 30 min left for 2 nodes")
    expect(page.locator(".gantt-facts")).to_contain_text("3 landed, 4.9 an hour, 4 gate runs, 1 red")
    curves = page.locator(".money")
    expect(curves.locator("polyline")).to_have_count(2)
    curves.get_by_role("button", name="by node").click()
    expect(curves.locator("polyline")).to_have_count(3)
    expect(curves.locator(".curve-list li").first).to_contain_text("parse")
    docs.get_by_role("button", name="docs").click()
    expect(page.locator("#detail-title")).to_have_text("docs")
    assert "view=time" in page.url
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Pipeline").click()
    expect(page.locator("#gantt")).to_be_hidden()
    expect(page.locator("#graph")).to_be_visible()
    assert "view" not in page.url


def test_a_schedule_is_shown_with_its_next_time_and_paused(home: str, opened: Any) -> None:
    panel = opened(home).locator("#schedules")
    expect(panel).to_contain_text("next")
    expect(panel).to_contain_text("garrison run update")
    panel.get_by_role("button", name="Pause nightly").click()
    expect(panel).to_contain_text("paused: by hand")
    panel.get_by_role("button", name="Resume nightly").click()
    expect(panel.get_by_role("button", name="Pause nightly")).to_be_visible()
