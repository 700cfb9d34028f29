"""Graph and table of a large run in a real browser: found, sorted, walked; and what is left where no graph is drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from served_run import serving

from garrison.records.run import RunFiles
from top_support import build_large_run, home_builder


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a served run of two hundred nodes."""
    home = tmp_path_factory.mktemp("large")
    with home_builder(home) as builder:
        build_large_run(builder, 200)
        with serving(home) as url:
            yield url


def rows(page: Any) -> list[str]:
    return page.locator(".node-table tbody tr").evaluate_all("rows => rows.map(row => row.dataset.key)")


def test_a_node_is_found_in_graph_and_table(large: str, opened: Any) -> None:
    page = opened(large, "/?run=r1")
    expect(page.locator(".group").first.locator(".one")).to_have_text(re.compile("task_110"))
    page.keyboard.press("/")
    page.keyboard.type("write 164")
    expect(page.locator(".one.at")).to_have_attribute("data-key", "task_164")
    expect(page.locator(".one.at")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#detail-title")).to_have_text("task_164")
    page.keyboard.press("Escape")
    page.get_by_label("Find a node").fill("")
    page.get_by_role("tab", name="Graph").click()
    expect(page.locator("svg .node")).to_have_count(202)
    size = page.locator("svg .node text").first.evaluate("text => text.getBoundingClientRect().height")
    assert size >= 11, "labels are as large as the page's small print"
    expect(page.locator(".minimap")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("write 164")
    expect(page.locator(".find .number")).to_have_text("1 of 202")
    expect(page.locator("svg .node.found")).to_have_attribute("data-node", "task_164")
    expect(page.locator("svg .node.found")).to_be_in_viewport()
    page.get_by_role("tab", name="Table").click()
    expect(page.locator(".node-table tbody tr")).to_have_count(1)
    page.get_by_label("Find a node").fill("")
    expect(page.locator(".node-table tbody tr")).to_have_count(202)
    page.get_by_role("button", name="State").click()
    expect(page.locator("th.c-state")).to_have_attribute("aria-sort", "ascending")
    assert rows(page)[0] == "task_110", "what failed comes before what works"
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    expect(page.locator(":focus")).to_have_text("task_110")
    page.keyboard.press("Enter")
    expect(page.locator("#detail-title")).to_have_text("task_110")
    page.keyboard.press("Escape")
    page.reload()
    expect(page.locator(".node-table tbody tr")).to_have_count(202), "the browser keeps the choice"
    page.get_by_role("tab", name="Graph").click()
    page.get_by_role("button", name="Active (8)").click()
    expect(page.locator('svg .node[data-node="task_100"]')).to_be_in_viewport()


@pytest.mark.slow
def test_a_graph_that_takes_too_long_gives_way_to_the_table(large: str, opened: Any) -> None:
    page = opened(large, "/chat")
    page.clock.install()
    page.route("**/graph_worker.js", lambda route: route.fulfill(content_type="text/javascript", body=""))
    page.goto(large.partition("/?")[0] + "/?run=r1")
    page.get_by_role("tab", name="Graph").click()
    expect(page.locator("#graph")).to_contain_text("Drawing the graph…")
    page.clock.fast_forward(11_000)
    expect(page.locator("#graph .note")).to_contain_text(
        "The graph is not drawn: it was not laid out within 10 s. The table has all of its nodes.")
    expect(page.locator(".node-table tbody tr")).to_have_count(202)
    page.unroute("**/graph_worker.js")
    page.get_by_role("button", name="Try longer").click()
    expect(page.locator("svg .node")).to_have_count(202)
    expect(page.locator("#graph .note")).to_be_hidden()


@pytest.mark.slow
def test_a_thousand_nodes_can_be_used(tmp_path: Path, opened: Any) -> None:
    with home_builder(tmp_path) as builder:
        build_large_run(builder, 1000)
        with serving(tmp_path) as url:
            page = opened(url, "/?run=r1")
            expect(page.locator('.one[data-key="task_510"]')).to_be_in_viewport(), "what failed"
            expect(page.locator(".group .one")).to_have_count(1000)
            page.get_by_role("tab", name="Graph").click()
            expect(page.locator("svg .node")).to_have_count(1002)
            page.get_by_label("Find a node").fill("task_777")
            expect(page.locator("svg .node.found")).to_be_in_viewport()
            page.locator("svg .node.found").click()
            expect(page.locator("#detail-title")).to_have_text("task_777")


@pytest.mark.slow
def test_followed_edges_loops_and_answers_are_drawn(tmp_path: Path, opened: Any) -> None:
    with home_builder(tmp_path) as builder:
        guardian = builder.run("r1", "work")
        RunFiles(tmp_path, "r1").graph.write_text("""digraph { flow=walk; start [shape=Mdiamond]; exit [shape=Msquare]
            work [shape=box, command="true"]; ask [shape=hexagon, label="Ship it?"]
            start -> work; work -> ask; ask -> exit [label="[Y] Yes"]; ask -> work [label="[N] Again"] }""")
        for place, label in (("work#1", ""), ("ask#1", "Again"), ("work#2", "")):
            guardian.append("flow", {"event": "finished", "place_id": place, "node": place[:-2], "attempt": 1,
                                     "outcome": {"status": "success", "preferred_label": label}}, builder.now())
        with serving(tmp_path) as url:
            page = opened(url, "/?run=r1")
            expect(page.locator("svg .edge.followed")).to_have_count(3)
            expect(page.locator("svg .edge .times")).to_have_text("×2")
            expect(page.locator('svg .node[data-node="ask"]')).to_have_attribute(
                "aria-label", re.compile("answered: Again"))
            guardian.append("flow", {"event": "finished", "place_id": "ask#2", "node": "ask", "attempt": 1,
                                     "outcome": {"status": "success", "preferred_label": "Yes"}}, builder.now())
            expect(page.locator("svg .edge.followed")).to_have_count(4)
        guardian.close()
