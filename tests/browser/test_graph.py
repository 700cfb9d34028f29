"""Graph and table of large runs in a real browser: search, sort, keys, one layout for many events, and the table where
no graph is drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from served_run import serving

from garrison.records.journal import Writer
from garrison.records.run import RunFiles
from top_support import HomeBuilder, build_large_run, home_builder

NODES = [f"task_{number}" for number in range(200)]
STEPS = ("active", "impl_complete", "validated")
MEASURE = """() => {
  window.measured = { frames: [], moved: [], svg: document.querySelector("svg") };
  const inList = node => (node.nodeType === 1 ? node : node.parentElement)?.closest("ol, ul, svg, .bar");
  new PerformanceObserver(list => {
    for (const { node, previousRect, currentRect } of list.getEntries().flatMap(one => one.sources)) {
      if (!node?.isConnected || inList(node)) continue;
      if (["x", "y"].every(side => previousRect[side] === currentRect[side])) continue; // a text of another length
      window.measured.moved.push([node.outerHTML?.slice(0, 60) ?? node.textContent, previousRect, currentRect]);
    }
  }).observe({ type: "layout-shift", buffered: true });
  let last = performance.now();
  const frame = now => { window.measured.frames.push(now - last); last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
}"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HomeBuilder, str]]:
    """Yield a home with a run of two hundred nodes, and its address."""
    folder = tmp_path_factory.mktemp("large")
    with home_builder(folder) as builder:
        build_large_run(builder, 200)
        with serving(folder) as url:
            yield builder, url


def test_a_node_is_found_in_graph_and_table(home: tuple[HomeBuilder, str], opened: Any) -> None:
    page = opened(home[1], "/?run=r1")
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
    expect(page.locator(".node-table tbody tr").first).to_have_attribute("data-key", "task_110")  # the failed one
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
def test_a_graph_that_takes_too_long_is_replaced_by_the_table(home: tuple[HomeBuilder, str], opened: Any) -> None:
    page = opened(home[1], "/chat")
    page.clock.install()
    page.route("**/graph_worker.js", lambda route: route.fulfill(content_type="text/javascript", body=""))
    page.goto(home[1].partition("/?")[0] + "/?run=r1")
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
def test_a_thousand_nodes_can_be_used(home: tuple[HomeBuilder, str], opened: Any) -> None:
    builder, url = home
    build_large_run(builder, 1000, "r2")
    page = opened(url, "/?run=r2")
    expect(page.locator('.one[data-key="task_510"]')).to_be_in_viewport(), "what failed"
    expect(page.locator(".group .one")).to_have_count(1000)
    page.get_by_role("tab", name="Graph").click()
    expect(page.locator("svg .node")).to_have_count(1002)
    page.get_by_label("Find a node").fill("task_777")
    expect(page.locator("svg .node.found")).to_be_in_viewport()
    page.locator("svg .node.found").click()
    expect(page.locator("#detail-title")).to_have_text("task_777")


@pytest.mark.slow
def test_followed_edges_loops_and_answers_are_drawn(home: tuple[HomeBuilder, str], opened: Any) -> None:
    builder, url = home
    guardian = builder.run("r3", "work")
    RunFiles(builder.home, "r3").graph.write_text("""digraph { flow=walk; start [shape=Mdiamond]; exit [shape=Msquare]
        work [shape=box, command="true"]; ask [shape=hexagon, label="Ship it?"]
        start -> work; work -> ask; ask -> exit [label="[Y] Yes"]; ask -> work [label="[N] Again"] }""")

    def finished(place: str, label: str) -> None:
        guardian.append("flow", {"event": "finished", "place_id": place, "node": place[:-2], "attempt": 1,
                                 "outcome": {"status": "success", "preferred_label": label}}, builder.now())

    for place, label in (("work#1", ""), ("ask#1", "Again"), ("work#2", "")):
        finished(place, label)
    page = opened(url, "/?run=r3")
    expect(page.locator("svg .edge.followed")).to_have_count(3)
    expect(page.locator("svg .edge .times")).to_have_text("×2")
    expect(page.locator('svg .node[data-node="ask"]')).to_have_attribute("aria-label", re.compile("answered: Again"))
    finished("ask#2", "Yes")
    expect(page.locator("svg .edge.followed")).to_have_count(4)
    guardian.close()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[tuple[HomeBuilder, Writer, str]]:
    """Yield a home with a run that is a tree, its guardian's journal, and its address."""
    with home_builder(tmp_path) as builder:
        guardian = builder.run("r1", *NODES)
        builder.incarnation("guardian", "crew", "r1")
        edges = "".join(f"{NODES[(number - 1) // 3]} -> {name}; " for number, name in enumerate(NODES) if number)
        boxes = "".join(f'{name} [shape=box, command="true", label="Do task {name}"]; ' for name in NODES)
        RunFiles(tmp_path, "r1").graph.write_text(
            f"digraph crew {{ flow=dag; start [shape=Mdiamond]; exit [shape=Msquare]; {boxes} {edges} "
            f"start -> {NODES[0]}; {NODES[-1]} -> exit }}")
        with serving(tmp_path) as url:
            yield builder, guardian, url
        guardian.close()


@pytest.mark.slow
def test_two_hundred_nodes_are_drawn_once_and_stay_smooth(tree: tuple[HomeBuilder, Writer, str], opened: Any,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    builder, guardian, url = tree
    page = opened(url, "/?run=r1")
    page.get_by_role("tab", name="Graph").click()
    expect(page.locator("svg .node")).to_have_count(202)
    painted = page.evaluate("performance.now()")
    page.evaluate(MEASURE)
    thread = page.context.new_cdp_session(page)
    thread.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = {one["name"]: one["value"] for one in thread.send("Performance.getMetrics")["metrics"]}
    for step in STEPS:
        for name in NODES:
            guardian.append("node", {"node": name, "status": step, "attempt": 1}, builder.now())
    expect(page.locator("svg .node.s-landed")).to_have_count(200)
    expect(page.locator("#run-head .far")).to_have_text("200 of 200")
    frames = sorted(page.evaluate("window.measured.frames"))
    after = {one["name"]: one["value"] for one in thread.send("Performance.getMetrics")["metrics"]}
    spent = after["TaskDuration"] - before["TaskDuration"]
    half, most = frames[len(frames) // 2], frames[len(frames) * 99 // 100]
    with capsys.disabled():
        print(f"\n200 nodes: graph after {painted:.0f} ms, frames {half:.0f} ms (median), {most:.0f} ms (99 of 100), "
              f"{spent:.2f} s of CPU for {len(STEPS) * len(NODES)} events")
    assert page.evaluate("window.measured.svg.isConnected"), "six hundred events, and the drawing is the same"
    moved = page.evaluate("window.measured.moved.map(one => JSON.stringify(one))")
    assert moved == [], "only lines of a list move"
    assert spent < 5, "of the page's thread; a layout each would take a minute"
