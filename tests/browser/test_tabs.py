"""Many tabs of one browser, from an empty home on: one connection, which no tab can end for the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from real_texts import ANSWERS, gate
from served_run import serving

from garrison.agents.conversation.files import AttemptFiles
from garrison.records.run import RunFiles
from support import wait_for
from top_support import HomeBuilder, home_builder

TABS = 8
"""More than the connections that a browser opens to one host."""
NODES = ("a", "b", "c")


def lines(page: Page) -> list[str]:
    return page.locator("#list-timeline > li").evaluate_all("lines => lines.map(line => line.dataset.key)")


@pytest.mark.slow
def test_many_tabs_share_a_connection_from_the_first_run_on(tmp_path: Path, opened: Any) -> None:
    with home_builder(tmp_path) as builder, serving(tmp_path) as url:
        first = opened(url)
        first.watch.allowed.append("status of 409")  # what a gate decides cannot be read: there is no repository
        expect(first.get_by_role("heading", name="No run yet")).to_be_visible()
        expect(first.locator("main")).to_contain_text(f"garrison --home {tmp_path} launch")
        guardian = builder.run("r1", *NODES)
        builder.cost("r1", "a", 1.7)
        order = AttemptFiles(RunFiles(tmp_path, "r1").attempt("a", 1)).order
        order.write_text(json.dumps({"settings": {"budget": 2.0, "budget_run": 10.0}}))
        expect(first.locator(".runs tbody tr")).to_have_count(1)  # as soon as it exists
        first.locator(".runs").get_by_role("link", name="r1").click()
        expect(first.locator("svg .node")).to_have_count(5)
        tabs = [first, *(first.context.new_page() for _ in range(TABS - 1))]
        other = builder.run("r2", "a")
        other.append("gate", gate("a", "Ship?", "Yes", *ANSWERS), builder.now())
        other.close()
        expect(first.locator("#toast")).to_contain_text("r2")
        assert first.get_by_label("Run", exact=True).locator("option").count() == 2
        for number, tab in enumerate(tabs[1:], 1):
            tab.goto(url.partition("?")[0] + f"?run=r{1 + number % 2}")
            expect(tab.locator("svg .node")).to_have_count(3 if number % 2 else 5)
            expect(tab.locator("#link")).to_have_text("Live")
        expect(first.locator("#waits")).to_contain_text("r2 has 2 items waiting for you")
        expect(tabs[2].locator("#costs .spent li")).to_contain_text("$1.70 of $2.00")
        expect(tabs[2].locator("#costs .spent .share")).to_have_class("share s-asking")
        expect(tabs[2].locator("#run-head .cost")).to_have_text("$1.70 of $10.00")
        close_first_tab_and_worker(builder, guardian, tabs)
        guardian.append("run", {"status": "failed", "reason": "r"}, builder.now())
        expect(tabs[2].get_by_role("button", name="Retry failed")).to_be_visible()
        expect(tabs[2].get_by_role("button", name="Resume")).to_be_hidden()
        guardian.close()


def close_first_tab_and_worker(builder: HomeBuilder, guardian: Any, tabs: list[Page]) -> None:
    """Check that the other tabs get every event though the first tab and then the shared worker are closed."""
    of_one = tabs[2::2]

    def skip(node: str) -> None:
        guardian.append("node", {"node": node, "status": "skipped", "attempt": 1}, builder.now())

    def all_have(number: int) -> None:
        for tab in of_one:
            expect(tab.locator("#list-timeline > li")).to_have_count(number)
        assert len({tuple(lines(tab)) for tab in of_one}) == 1

    skip("a")
    all_have(2)
    tabs[0].close()
    skip("b")
    all_have(3)
    browser = of_one[0].context.browser
    assert browser is not None
    session = browser.new_browser_cdp_session()
    workers = [one["targetId"] for one in session.send("Target.getTargets")["targetInfos"]
               if one["type"] == "shared_worker"]
    assert len(workers) == 1
    session.send("Target.closeTarget", {"targetId": workers[0]})
    skip("c")
    all_have(4)
    wait_for("the other run's tabs are back as well", lambda: all(
        tab.locator("#link").text_content() == "Live" for tab in tabs[1:]))
