"""Panel of time and cost, on a run whose records tell an hour."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from served_run import serving

from timeline_support import TimedHome, story


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("time")
    story(TimedHome(home))
    with serving(home) as url:
        yield url


@pytest.mark.slow
def test_bars_of_time_and_curves_of_cost(told: str, opened: Any) -> None:
    page = opened(told, "/?run=story-1&view=time")
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


@pytest.mark.slow
def test_the_panel_is_accessible_and_fits(told: str, opened: Any) -> None:
    page = opened(told, "/?run=story-1&view=time", reduced_motion="reduce")
    expect(page.locator(".gantt-row").first).to_be_visible()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (360, 768, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate((Path(__file__).parent / "audit.js").read_text()) == [], (scheme, width)
            page.wait_for_function("document.documentElement.scrollWidth === innerWidth")
